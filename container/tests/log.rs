//! What the log says of failures: the application's are errors, a client's mistake is none, and
//! values of the application that panic in their turn harm nobody. A test program of its own,
//! since a log is installed for the whole process.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests fail by panics, and their clients are threads with clocks"
)]
#![allow(dead_code, reason = "the support is made for the tests of the server")]

#[path = "support/mod.rs"]
mod support;

use std::{
    fmt,
    sync::{Mutex, PoisonError},
};

use ringcat::{AsyncEvent, AsyncListener, Context, Error, Next, Request, Response, Result, Valve};
use tracing::{Level, Metadata, Subscriber, field::Field, span};

use support::{TestServer, blocking, parking};

/// Warnings and errors of the process.
static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Log;

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn event(&self, event: &tracing::Event<'_>) {
        struct Text(String);
        impl tracing::field::Visit for Text {
            fn record_debug(&mut self, _field: &Field, value: &dyn fmt::Debug) {
                self.0 = format!("{value:?}");
            }
        }
        let mut text = Text(String::new());
        event.record(&mut text);
        LINES.lock().unwrap_or_else(PoisonError::into_inner).push(text.0);
    }

    fn new_span(&self, _span: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _span: &span::Id, _values: &span::Record<'_>) {}
    fn record_follows_from(&self, _span: &span::Id, _follows: &span::Id) {}
    fn enter(&self, _span: &span::Id) {}
    fn exit(&self, _span: &span::Id) {}
}

/// Starts a server whose warnings and errors are kept.
fn start(context: Context) -> TestServer {
    static INSTALLED: std::sync::Once = std::sync::Once::new();
    INSTALLED.call_once(|| tracing::subscriber::set_global_default(Log).unwrap());
    TestServer::start(context)
}

/// The lines so far that name `what`.
fn lines_with(what: &str) -> Vec<String> {
    let lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
    lines.iter().filter(|line| line.contains(what)).cloned().collect()
}

/// An error that panics whatever is done with it.
#[derive(Debug)]
struct Vicious;

impl fmt::Display for Vicious {
    fn fmt(&self, _f: &mut fmt::Formatter<'_>) -> fmt::Result {
        panic!("no text for you")
    }
}

impl std::error::Error for Vicious {}

impl Drop for Vicious {
    fn drop(&mut self) {
        panic!("no end for you")
    }
}

fn vicious(_req: &mut Request, _res: &mut Response) -> Result<()> {
    Err(Error::app(Vicious))
}

struct ViciousValve;

impl Valve for ViciousValve {
    fn name(&self) -> &str {
        "vicious"
    }

    fn invoke(&self, req: &mut Request, res: &mut Response, next: Next<'_>) -> Result<()> {
        if req.servlet_path() == "/valve" {
            return Err(Error::servlet_caused("", Vicious));
        }
        next.invoke(req, res)
    }
}

#[test]
fn an_error_that_panics_in_its_turn_is_a_500() {
    let context = Context::new("")
        .get("/core", vicious)
        .servlet("/worker", blocking(vicious))
        .get("/valve", |_req, res| res.write("fine"))
        .valve(ViciousValve)
        .get("/fine", |_req, res| res.write("fine"));
    let server = start(context);
    let mut bystander = server.client();
    for place in ["/core", "/worker", "/valve"] {
        server.get(place).expect_report(500);
        bystander.get("/fine").expect(200, "fine");
    }
    for place in ["/core", "/worker", "/valve"] {
        let lines = lines_with(&format!("failed on GET {place}:"));
        assert!(lines.len() == 1 && lines[0].ends_with("panicked: no text for you"), "{lines:?}");
    }
    assert_eq!(server.stop().statuses[4], 3);
}

/// A value whose end is a panic.
struct BadEnd;

impl Drop for BadEnd {
    fn drop(&mut self) {
        panic!("a bad end")
    }
}

impl AsyncListener for BadEnd {
    fn on_complete(&mut self, _event: &mut AsyncEvent<'_>) -> Result<()> {
        Err(Error::app(Vicious))
    }
}

#[test]
fn values_that_panic_when_they_are_dropped_do_so_one_by_one() {
    let context = Context::new("")
        .servlet(
            "/listeners",
            parking(|req, res| {
                let context = req.start_async()?;
                context.add_listener(BadEnd)?;
                context.add_listener(BadEnd)?;
                res.write("done")?;
                context.complete()
            }),
        )
        .servlet(
            "/round",
            parking(|req, res| {
                let is_first = req.attribute("again").is_none();
                req.set_attribute("again", ());
                let context = req.start_async()?;
                if !is_first {
                    res.write("done")?;
                    return context.complete();
                }
                context.add_listener(BadEnd)?;
                context.add_listener(BadEnd)?;
                context.dispatch()
            }),
        )
        .get("/attributes", |req, res| {
            req.set_attribute("a", BadEnd);
            req.set_attribute("b", BadEnd);
            res.write("done")
        });
    let server = start(context);
    let mut client = server.client();
    for path in ["/listeners", "/round", "/attributes"] {
        client.get(path).expect(200, "done");
    }
    // The last one's are dropped once its slot is reused, or here.
    client.get("/listeners").expect(200, "done");
    server.stop();
}

#[test]
fn a_client_s_mistake_is_no_error_in_the_log() {
    let context = Context::new("")
        .get("/mistake", |req, res| {
            let found = req.parameter("a")?.is_some();
            res.write(found.to_string())
        })
        .get("/file", |_req, _res| {
            Err(std::io::Error::new(std::io::ErrorKind::NotFound, "its own file").into())
        });
    let server = start(context);
    server.get("/mistake?a=%zz").expect_report(400);
    server.get("/mistake?a=%ff").expect_report(400);
    assert_eq!(lines_with("/mistake"), Vec::<String>::new());
    server.get("/file").expect_report(500);
    assert_eq!(lines_with("/file").len(), 1, "a failure of the application is told");
}

#[test]
fn a_servlet_that_holds_a_core_is_named() {
    struct Sleeper;
    impl ringcat::Servlet for Sleeper {
        fn service(&self, _req: &mut Request, res: &mut Response) -> Result<()> {
            std::thread::sleep(std::time::Duration::from_millis(400));
            res.write("slept")
        }
    }
    let context = Context::new("/held").named_servlet("the-sleeper", &["/sleep"], Sleeper);
    let threshold = std::time::Duration::from_millis(100);
    let _log = start(Context::new(""));
    let server = TestServer::of(support::builder(context).watchdog(threshold));
    server.get("/held/sleep").expect(200, "slept");
    let is_told = |part: &str| {
        let lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
        let is_of_it = |line: &&String| line.contains("servlet the-sleeper of context \"/held\"");
        lines.iter().filter(is_of_it).any(|line| line.contains(part))
    };
    support::wait_until("it is told while it lasts", || is_told("core 0: "));
    support::wait_until("and when it is over", || is_told("has left the core, after "));
}
