//! A core for tests: its handler is a closure that sees every event, and the test's thread can
//! queue commands for it.

use std::{
    collections::VecDeque,
    io,
    net::{SocketAddr, TcpStream},
    rc::Rc,
    sync::{Arc, mpsc},
    thread::JoinHandle,
    time::Duration,
};

use ringcat_engine::{
    backend::{Backend, Command, Commands, CoreHandler, Event, Io},
    event_fd::EventFd,
    native::{backend::NativeBackend, listen, options::NativeOptions, probe, stats::NativeStats},
    timestamp::Timestamp,
};

/// What a handler may touch in a callback.
pub(crate) struct Turn<'a> {
    pub(crate) now: Timestamp,
    pub(crate) commands: &'a mut Commands,
    pub(crate) io: &'a Rc<dyn Io>,
    /// Set to keep the loop from waiting.
    pub(crate) is_busy: &'a mut bool,
    /// When to call with `Timeout` at the latest.
    pub(crate) deadline: &'a mut Option<Timestamp>,
}

impl Turn<'_> {
    pub(crate) fn push(&mut self, command: Command) {
        self.commands.push(command);
    }
}

/// The closure's core.
pub(crate) struct TestCore<F> {
    on_event: F,
    io: Rc<dyn Io>,
    inbox: mpsc::Receiver<Command>,
    posted: VecDeque<Command>,
    is_busy: bool,
    deadline: Option<Timestamp>,
}

impl<F: FnMut(&mut Turn<'_>, Event)> TestCore<F> {
    pub(crate) fn new(on_event: F, io: Rc<dyn Io>, inbox: mpsc::Receiver<Command>) -> Self {
        let posted = VecDeque::new();
        Self { on_event, io, inbox, posted, is_busy: false, deadline: None }
    }
}

impl<F: FnMut(&mut Turn<'_>, Event)> CoreHandler for TestCore<F> {
    fn on(&mut self, now: Timestamp, event: Event, commands: &mut Commands) {
        let io = &self.io;
        let (is_busy, deadline) = (&mut self.is_busy, &mut self.deadline);
        (self.on_event)(&mut Turn { now, commands, io, is_busy, deadline }, event);
    }

    fn run_ready(&mut self, _now: Timestamp, commands: &mut Commands) -> bool {
        self.posted.extend(self.inbox.try_iter());
        self.posted.drain(..).for_each(|command| commands.push(command));
        self.is_busy
    }

    fn next_deadline(&self) -> Option<Timestamp> {
        self.deadline
    }

    fn may_sleep(&mut self) -> bool {
        self.posted.extend(self.inbox.try_iter());
        self.posted.is_empty() && !self.is_busy
    }

    fn awake(&mut self) {}
}

/// What the core counted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) overflows: u64,
    pub(crate) no_buffers: u64,
    pub(crate) cancels: u64,
    #[allow(dead_code, reason = "for the test in a process of its own")]
    pub(crate) accept_pauses: u64,
    #[allow(dead_code, reason = "for the test in a process of its own")]
    pub(crate) accept_errors: u64,
    pub(crate) wakes: u64,
}

impl Counts {
    fn of(stats: &NativeStats) -> Self {
        Self {
            overflows: stats.overflows.get(),
            no_buffers: stats.no_buffers.get(),
            cancels: stats.cancels.get(),
            accept_pauses: stats.accept_pauses.get(),
            accept_errors: stats.accept_errors.get(),
            wakes: stats.wakes.get(),
        }
    }
}

/// A core on a thread of its own.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) wake: Arc<EventFd>,
    inbox: mpsc::Sender<Command>,
    thread: Option<JoinHandle<io::Result<Counts>>>,
}

impl Server {
    /// Starts a core with one listener; `make` makes its handler there.
    pub(crate) fn start<F, M>(options: NativeOptions, make: M) -> Self
    where
        F: FnMut(&mut Turn<'_>, Event) + 'static,
        M: FnOnce() -> F + Send + 'static,
    {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut listeners = listen::bind(&[any], 1, 1024).unwrap().remove(0);
        let address = listeners[0].local_addr;
        let wake = Arc::new(EventFd::new().unwrap());
        let (inbox, receiver) = mpsc::channel();
        let core_wake = Arc::clone(&wake);
        let thread = std::thread::spawn(move || {
            let listeners = std::mem::take(&mut listeners);
            let backend = open(&options, listeners, core_wake);
            let stats = backend.stats();
            let io = backend.io();
            backend.run(&mut TestCore::new(make(), io, receiver))?;
            Ok(Counts::of(&stats))
        });
        Self { address, wake, inbox, thread: Some(thread) }
    }

    /// Queues a command for the core.
    pub(crate) fn command(&self, command: Command) {
        self.inbox.send(command).unwrap();
        self.wake.wake();
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Ends the loop and waits for it.
    pub(crate) fn stop(mut self) -> Counts {
        self.command(Command::Stop);
        self.thread.take().unwrap().join().unwrap().unwrap()
    }
}

/// Opens a backend as the engine does.
pub(crate) fn open(
    options: &NativeOptions,
    listeners: Vec<listen::Listener>,
    wake: Arc<EventFd>,
) -> NativeBackend {
    let capabilities = probe::probe(options).expect("a host with io_uring");
    NativeBackend::open(&capabilities, options, listeners, wake).unwrap()
}

/// Sends every event's text and lets a closure act on it.
pub(crate) fn next<T>(events: &mpsc::Receiver<T>) -> T {
    events.recv_timeout(PATIENCE).expect("an event")
}

/// Bytes whose order and number can be checked.
pub(crate) fn pattern(len: usize, seed: u32) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761).max(1);
    let step = |_| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as u8
    };
    (0..len).map(step).collect()
}

/// How long a test waits before it fails; nothing waits that long when all is well.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
