//! The protocol handler on one driven core: what a client sends and when, what it gets, and that
//! nothing is left afterwards.

#![allow(clippy::unwrap_used, reason = "a test")]
#![allow(clippy::disallowed_methods, reason = "foreign threads are what is tested")]

mod adapter;
mod bodies;
mod closing;
mod contention;
mod deadlines;
mod delegated;
mod drain;
mod parked;
mod requests;
mod schedules;
#[path = "../support/mod.rs"]
mod support;

use std::{rc::Rc, sync::mpsc, time::Duration};

use ringcat_engine::{backend::Io, core_context::CoreTimeouts, key::ConnKey, sync::Arc};
use ringcat_protocol::{
    async_cell::Look,
    http11::options::Http11Options,
    protocol_handler::{ProtocolHandler, RequestCounters},
};

use crate::{
    adapter::{Handle, Op, Stage, TestAdapter},
    support::Driver,
};

/// A core that serves the test adapter's paths.
struct Site {
    driver: Driver<ProtocolHandler<TestAdapter>>,
    stage: Arc<Stage>,
    counters: Arc<RequestCounters>,
}

/// Timeout of an asynchronous round of [`Site::new`].
const ASYNC_TIMEOUT: Duration = Duration::from_millis(500);

impl Site {
    fn new() -> Self {
        Self::with(Http11Options::default())
    }

    fn with(options: Http11Options) -> Self {
        Self::with_timeouts(options, CoreTimeouts::default())
    }

    fn with_timeouts(options: Http11Options, timeouts: CoreTimeouts) -> Self {
        let stage = Arc::new(Stage::default());
        let counters = Arc::new(RequestCounters::default());
        let driver = Driver::new(timeouts, |seat, kernel| {
            let adapter = TestAdapter {
                stage: Arc::clone(&stage),
                kernel: Rc::clone(kernel),
                async_timeout_millis: i64::try_from(ASYNC_TIMEOUT.as_millis()).unwrap(),
            };
            let io = Rc::clone(kernel) as Rc<dyn Io>;
            ProtocolHandler::new(seat, io, options, Arc::clone(&counters), adapter)
        });
        Self { driver, stage, counters }
    }

    /// A new connection on which a GET of `path` was received.
    fn get(&mut self, path: &str) -> ConnKey {
        let conn = self.driver.connect();
        self.driver.receive(conn, get(path));
        conn
    }

    /// Ends all connections from the peer's side and asserts that nothing is left on the core.
    fn finish(mut self, conns: &[ConnKey]) {
        for &conn in conns {
            if !self.driver.conn(conn).is_closed {
                self.driver.end(conn);
            }
        }
        self.driver.assert_empty();
        assert_eq!(self.driver.core.handler().exchange_count(), 0, "exchanges");
        assert!(self.driver.core.handler().pooled_count() <= 64, "recycled processors");
    }
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")
}

/// A whole answer without its date.
fn answer(content: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{content}", content.len())
}

/// A foreign thread that is inside the list of an exchange until it is told to leave.
struct Inside {
    leave: mpsc::Sender<()>,
    thread: std::thread::JoinHandle<()>,
}

impl Inside {
    fn enter(handle: &Handle) -> Self {
        let (locked, is_locked) = mpsc::channel();
        let (leave, may_leave) = mpsc::channel();
        let handle = handle.clone();
        let thread = std::thread::spawn(move || {
            let operation = Op::Lock(locked, may_leave.into());
            handle.0.call(None, Some(operation), Look::Never).unwrap();
        });
        is_locked.recv().unwrap();
        Self { leave, thread }
    }

    fn leave(self) {
        self.leave.send(()).unwrap();
        self.thread.join().unwrap();
    }
}

/// Runs `f` on another thread and waits for it.
fn elsewhere<R: Send>(f: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| scope.spawn(f).join().unwrap())
}
