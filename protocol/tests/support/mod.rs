//! Drives one core without a kernel: events in, commands out, bytes collected. Time is what the
//! test says it is. A send is whole when its `Sent` is delivered; a test may hold it back.

#![allow(dead_code, reason = "each test binary uses its part of the driver")]

use std::{
    cell::{Cell, RefCell},
    collections::{HashMap, HashSet, VecDeque},
    net::SocketAddr,
    rc::Rc,
    time::Duration,
};

use ringcat_engine::{
    backend::{Command, Commands, CoreHandler, Errno, Event, Io, SendNow},
    buffer::{Chunks, Lease},
    connection_handler::ConnectionHandler,
    core_context::{CoreMessage, CoreSeat, CoreTimeouts},
    core_counters::CoreCounters,
    core_thread::Core,
    inbox::{Inbox, Wake},
    key::{ConnKey, CoreId, ListenerId},
    sync::Arc,
    timestamp::{Clock, Timestamp},
};

/// Turns after which a core that always has work left counts as stuck.
const TURNS_MAX: usize = 10_000;

/// The kernel's side of the connections.
pub(crate) struct Kernel {
    now: Cell<Timestamp>,
    wire: RefCell<HashMap<ConnKey, Vec<u8>>>,
    unread: RefCell<HashSet<ConnKey>>,
    reset: RefCell<HashSet<ConnKey>>,
    /// Bytes that `send_now` still takes.
    pub(crate) room: Cell<usize>,
}

impl Kernel {
    pub(crate) fn time(&self) -> Timestamp {
        self.now.get()
    }

    fn put(&self, conn: ConnKey, bytes: &[u8]) {
        self.wire.borrow_mut().entry(conn).or_default().extend_from_slice(bytes);
    }
}

impl Io for Kernel {
    fn send_now(&self, conn: ConnKey, bytes: &[u8]) -> SendNow {
        let count = bytes.len().min(self.room.get());
        if count == 0 {
            return SendNow::WouldBlock;
        }
        self.room.set(self.room.get() - count);
        self.put(conn, &bytes[..count]);
        SendNow::Sent(count)
    }

    fn unread(&self, conn: ConnKey) -> bool {
        self.unread.borrow().contains(&conn)
    }

    fn is_reset(&self, conn: ConnKey) -> bool {
        self.reset.borrow().contains(&conn)
    }

    fn clock(&self) -> Clock {
        Clock::system()
    }

    fn now(&self) -> Timestamp {
        self.now.get()
    }

    fn local_address(&self, _conn: ConnKey) -> Option<SocketAddr> {
        None
    }
}

struct NoWake;

impl Wake for NoWake {
    fn wake(&self) {}
}

/// What the core asked of a connection.
#[derive(Default)]
pub(crate) struct Conn {
    pub(crate) is_demanded: bool,
    pub(crate) is_watched: bool,
    pub(crate) is_shut_down: bool,
    pub(crate) is_closed: bool,
    /// Whether `Sent` waits for [`Driver::release_send`].
    pub(crate) is_held: bool,
    held: VecDeque<Chunks>,
}

/// A core, its kernel and its clock.
pub(crate) struct Driver<H: ConnectionHandler> {
    pub(crate) core: Core<H>,
    pub(crate) seat: CoreSeat<H::Message>,
    pub(crate) kernel: Rc<Kernel>,
    conns: HashMap<ConnKey, Conn>,
    commands: Commands,
    events: VecDeque<Event>,
    slots: u32,
    pub(crate) is_stopped: bool,
}

impl<H: ConnectionHandler> Driver<H> {
    pub(crate) fn new(
        timeouts: CoreTimeouts,
        make: impl FnOnce(&CoreSeat<H::Message>, &Rc<Kernel>) -> H,
    ) -> Self {
        let kernel = Rc::new(Kernel {
            now: Cell::new(Timestamp::from_nanos(1_000_000_000)),
            wire: RefCell::default(),
            unread: RefCell::default(),
            reset: RefCell::default(),
            room: Cell::new(usize::MAX),
        });
        let seat = CoreSeat {
            id: CoreId(0),
            inbox: Arc::new(Inbox::new(Box::new(NoWake))),
            counters: Arc::new(CoreCounters::default()),
        };
        let handler = make(&seat, &kernel);
        let io = Rc::clone(&kernel) as Rc<dyn Io>;
        let core = Core::new(&seat, io, timeouts, 1, handler);
        Self {
            core,
            seat,
            kernel,
            conns: HashMap::new(),
            commands: Commands::default(),
            events: VecDeque::new(),
            slots: 0,
            is_stopped: false,
        }
    }

    /// A new connection.
    pub(crate) fn connect(&mut self) -> ConnKey {
        let conn = ConnKey { slot: self.slots, stamp: 1 };
        self.slots += 1;
        self.conns.insert(conn, Conn::default());
        let peer = SocketAddr::from(([127, 0, 0, 1], 40_000));
        self.deliver(Event::Accepted { conn, listener: ListenerId(0), peer });
        conn
    }

    /// Bytes arrive; the core is driven until it has nothing left to do.
    pub(crate) fn receive(&mut self, conn: ConnKey, bytes: impl AsRef<[u8]>) {
        self.deliver(Event::Received(conn, Lease::from_vec(bytes.as_ref().to_vec())));
        self.settle();
    }

    /// The peer ends its sending side.
    pub(crate) fn end(&mut self, conn: ConnKey) {
        self.deliver(Event::Eof(conn));
        self.settle();
    }

    /// The peer resets the connection.
    pub(crate) fn reset(&mut self, conn: ConnKey) {
        self.deliver(Event::RecvFailed(conn, Errno::ECONNRESET));
        self.settle();
    }

    /// Hands an event to the core, and runs the commands that follow; the inbox waits.
    pub(crate) fn deliver(&mut self, event: Event) {
        self.core.on(self.kernel.now.get(), event, &mut self.commands);
        self.run_commands();
    }

    /// One turn of the loop without input; whether work is left.
    pub(crate) fn turn(&mut self) -> bool {
        let now = self.kernel.now.get();
        let has_more = self.core.run_ready(now, &mut self.commands);
        self.core.on(now, Event::Timeout, &mut self.commands);
        self.run_commands();
        while let Some(event) = self.events.pop_front() {
            self.deliver(event);
        }
        has_more || !self.seat.inbox.is_empty()
    }

    /// Drives the core until it has nothing left to do now.
    pub(crate) fn settle(&mut self) {
        for _ in 0..TURNS_MAX {
            if !self.turn() {
                return;
            }
        }
        panic!("the core never comes to rest");
    }

    /// Lets time pass, with every turn that the core asks for.
    pub(crate) fn advance(&mut self, by: Duration) {
        let target = self.kernel.now.get() + by;
        for _ in 0..TURNS_MAX {
            match self.core.next_deadline().filter(|deadline| *deadline <= target) {
                Some(deadline) => self.kernel.now.set(self.kernel.now.get().max(deadline)),
                None => {
                    self.kernel.now.set(target);
                    self.settle();
                    return;
                }
            }
            self.settle();
        }
        panic!("a deadline never passes");
    }

    /// Lets time pass while the core does something else.
    pub(crate) fn skip(&mut self, by: Duration) {
        self.kernel.now.set(self.kernel.now.get() + by);
    }

    /// Says whether the kernel holds input of the connection.
    /// The peer resets the connection, and no event tells.
    pub(crate) fn reset_silently(&mut self, conn: ConnKey) {
        self.kernel.reset.borrow_mut().insert(conn);
    }

    pub(crate) fn set_unread(&mut self, conn: ConnKey, unread: bool) {
        let mut set = self.kernel.unread.borrow_mut();
        if unread {
            set.insert(conn);
        } else {
            set.remove(&conn);
        }
    }

    /// Keeps the sends of a connection under way until they are released.
    pub(crate) fn hold_sends(&mut self, conn: ConnKey) {
        self.conn_mut(conn).is_held = true;
    }

    /// Lets the oldest send of a connection arrive; its bytes, 0 if none was under way.
    pub(crate) fn release_send(&mut self, conn: ConnKey) -> usize {
        let Some(chunks) = self.conn_mut(conn).held.pop_front() else { return 0 };
        let count = chunks.len_bytes();
        self.deliver(Event::Sent(conn, chunks));
        self.settle();
        count
    }

    /// All bytes that the peer got so far.
    pub(crate) fn wire(&self, conn: ConnKey) -> Vec<u8> {
        self.kernel.wire.borrow().get(&conn).cloned().unwrap_or_default()
    }

    /// All bytes that the peer got so far, without their dates.
    pub(crate) fn text(&self, conn: ConnKey) -> String {
        let wire = String::from_utf8(self.wire(conn)).unwrap();
        wire.split_inclusive("\r\n").filter(|line| !line.starts_with("Date: ")).collect()
    }

    /// What the core asked of a connection.
    pub(crate) fn conn(&self, conn: ConnKey) -> &Conn {
        &self.conns[&conn]
    }

    /// The posts of another thread.
    pub(crate) fn post(&self, message: CoreMessage<H::Message>) {
        self.seat.inbox.post(message);
    }

    /// Asserts that nothing is left: no open connection, no timer, no message.
    pub(crate) fn assert_empty(&self) {
        for (key, conn) in &self.conns {
            assert!(conn.is_closed, "{key:?} is open");
        }
        assert_eq!(self.core.socket_count(), 0, "sockets");
        assert_eq!(self.core.timer_count(), 0, "timers");
        assert!(self.seat.inbox.is_empty(), "messages");
    }

    fn conn_mut(&mut self, conn: ConnKey) -> &mut Conn {
        self.conns.get_mut(&conn).unwrap()
    }

    fn run_commands(&mut self) {
        let commands: Vec<Command> = self.commands.drain().collect();
        for command in commands {
            self.run_command(command);
        }
    }

    fn run_command(&mut self, command: Command) {
        match command {
            Command::Demand(conn, demand) => {
                let entry = self.conn_mut(conn);
                entry.is_demanded = demand;
                entry.is_watched &= !demand;
            }
            Command::Watch(conn) => self.conn_mut(conn).is_watched = true,
            Command::Send(conn, chunks) => {
                assert!(!self.conns[&conn].is_closed && !self.conns[&conn].is_shut_down);
                for chunk in chunks.as_slice() {
                    self.kernel.put(conn, chunk);
                }
                let entry = self.conn_mut(conn);
                if entry.is_held {
                    assert!(entry.held.is_empty(), "two sends of a connection are under way");
                    entry.held.push_back(chunks);
                } else {
                    self.events.push_back(Event::Sent(conn, chunks));
                }
            }
            Command::ShutdownWrite(conn) => self.conn_mut(conn).is_shut_down = true,
            Command::Close(conn) => {
                self.conn_mut(conn).is_closed = true;
                self.events.retain(|event| !matches!(event, Event::Sent(key, _) if *key == conn));
                self.events.push_back(Event::Closed(conn));
            }
            Command::StopAccept => {
                self.events.push_back(Event::AcceptStopped(ListenerId(0), None));
            }
            Command::Stop => self.is_stopped = true,
            Command::Connect(_)
            | Command::CancelConnect { .. }
            | Command::File(_)
            | Command::PauseAccept
            | Command::ResumeAccept
            | Command::Handoff(_)
            | Command::Adopt(_) => panic!("nobody asked for {command:?}"),
        }
    }
}
