//! The loop of a simulated core: the same turn as the native backend's, with completions that are
//! drawn instead of reaped.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    io,
    net::{Ipv4Addr, SocketAddr},
    rc::Rc,
    time::Duration,
};

use super::{
    connection::{SimConnection, SimLease, close_link},
    fault::Fault,
    network::Port,
    upstream,
    world::{self, hits},
};
use crate::{
    backend::{
        Backend, Command, Commands, ConnectRequest, CoreHandler, Departure, Errno, Event, Io,
        SendNow, Stream,
    },
    buffer::{Chunks, Lease},
    key::{ConnKey, CoreId, ListenerId},
    native::{
        connection::{Arming, Brought, Shots, WriteSide, departure},
        send::{Progress, Sending},
        sockets::slab_key,
    },
    observe::{Observation, observe},
    slab::{Slab, SlabKey},
    timestamp::{Clock, Timestamp},
};

/// How long an acceptor pauses that found no descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Connections accepted a turn, at most.
const ACCEPT_BURST: usize = 256;

/// Completions that a turn takes at most.
const BATCH_MAX: usize = 1024;

/// A core's loop without a kernel. Runs as an actor.
pub struct SimBackend {
    sockets: Rc<SimSockets>,
    port: Rc<Port>,
    shots: Shots,
    connections_max: usize,
    commands: Commands,
    deferred: VecDeque<Event>,
    /// Kept for its memory.
    batch: Vec<ConnKey>,
    /// Connections that wait for a buffer.
    starved: Vec<ConnKey>,
    accept_paused_until: Timestamp,
    is_accept_paused: bool,
    is_accept_stopping: bool,
    is_stopped: bool,
    now: Timestamp,
    /// Receive buffers that are lent.
    leases: Rc<Cell<usize>>,
}

/// What the backend shares with its handler.
pub(crate) struct SimSockets {
    connections: RefCell<Slab<SimConnection>>,
    /// Those that were not accepted.
    outgoing: Cell<usize>,
    /// Completions that the last turn left behind.
    has_unreaped: Cell<bool>,
}

impl SimSockets {
    /// Frees the slot of a connection that has ended.
    fn remove(&self, key: SlabKey) -> Option<SimConnection> {
        let removed = self.connections.borrow_mut().remove(key)?;
        if removed.link.is_outgoing {
            self.outgoing.set(self.outgoing.get() - 1);
        }
        Some(removed)
    }

    fn open<R>(&self, conn: ConnKey, f: impl FnOnce(&SimConnection) -> R) -> Option<R> {
        let connections = self.connections.borrow();
        let connection = connections.get(slab_key(conn))?;
        (!connection.is_closing).then(|| f(connection))
    }
}

impl Io for SimSockets {
    fn send_now(&self, conn: ConnKey, bytes: &[u8]) -> SendNow {
        self.open(conn, |connection| connection.send_now(bytes))
            .unwrap_or(SendNow::Failed(Errno(libc::EBADF)))
    }

    fn unread(&self, conn: ConnKey) -> bool {
        self.open(conn, |connection| {
            self.has_unreaped.get() || !connection.link.up.borrow().bytes.is_empty()
        })
        .unwrap_or(false)
    }

    fn is_reset(&self, conn: ConnKey) -> bool {
        let asked = self.open(conn, |connection| {
            let events = connection.poll();
            events != 0 && departure(events, connection.write) == Departure::Reset
        });
        asked.unwrap_or(false)
    }

    fn clock(&self) -> Clock {
        Clock::system()
    }

    fn local_address(&self, _conn: ConnKey) -> Option<SocketAddr> {
        Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 80)))
    }
}

/// What completes next.
#[derive(Clone, Copy)]
enum Kind {
    Receive,
    ReceiveCancel,
    Watch,
    Send,
    Close,
}

const KINDS: [Kind; 5] = [Kind::Receive, Kind::ReceiveCancel, Kind::Watch, Kind::Send, Kind::Close];

impl SimBackend {
    /// The loop of `core`, which listens from now on.
    ///
    /// # Panics
    /// Outside a simulation.
    pub fn open(core: CoreId, connections_max: usize) -> Self {
        let port = world::world().network.port(core);
        port.actor.set(world::running());
        port.is_listening.set(true);
        let shots = if world::chance(64) { Shots::Single } else { Shots::Multi };
        let sockets = SimSockets {
            connections: RefCell::new(Slab::with_stamp_mask(ConnKey::STAMP_MASK)),
            outgoing: Cell::new(0),
            has_unreaped: Cell::new(false),
        };
        Self {
            sockets: Rc::new(sockets),
            port,
            shots,
            connections_max,
            commands: Commands::default(),
            deferred: VecDeque::new(),
            batch: Vec::new(),
            starved: Vec::new(),
            accept_paused_until: Timestamp::ZERO,
            is_accept_paused: false,
            is_accept_stopping: false,
            is_stopped: false,
            now: Timestamp::ZERO,
            leases: Rc::default(),
        }
    }

    fn deliver<H: CoreHandler>(&mut self, event: Event, handler: &mut H) {
        handler.on(self.now, event, &mut self.commands);
        self.execute_commands();
    }

    /// Waits unless something is to do.
    fn enter<H: CoreHandler>(&mut self, has_work: bool, handler: &mut H) {
        let is_waiting = !has_work && !self.has_work() && handler.may_sleep();
        if !is_waiting {
            world::give_way("ends its turn");
            return;
        }
        // A wake that came since ends the wait at once.
        if !self.port.is_woken.get() {
            let pause = (!self.port.backlog.borrow().is_empty() && self.port.is_listening.get())
                .then_some(self.accept_paused_until);
            let early = hits(Fault::EarlyWake).then(|| world_now() + Duration::from_micros(1));
            let deadlines = [handler.next_deadline(), pause, early];
            world::park(deadlines.into_iter().flatten().min());
        }
        handler.awake();
    }

    fn has_work(&self) -> bool {
        !self.deferred.is_empty()
            || !self.port.dirty.borrow().is_empty()
            || !self.starved.is_empty()
            || self.is_accept_stopping && self.port.is_listening.get()
            || self.may_accept() && !self.port.backlog.borrow().is_empty()
    }

    fn turn<H: CoreHandler>(&mut self, handler: &mut H) -> bool {
        self.now = self.now.max(world_now());
        observe(&Observation::TurnBegan { core: self.port.core });
        self.complete_all(handler);
        if self.port.is_woken.replace(false) && !self.is_stopped {
            let times = if hits(Fault::ManyWakes) { 3 } else { 1 };
            for _ in 0..times {
                self.deliver(Event::Woken, handler);
            }
        }
        self.accept(handler);
        if self.is_stopped {
            return false;
        }
        let has_work = handler.run_ready(self.now, &mut self.commands);
        self.execute_commands();
        if self.is_stopped {
            return false;
        }
        self.deliver(Event::Timeout, handler);
        for conn in std::mem::take(&mut self.starved) {
            self.with_open(conn, |connection| connection.receive.is_starved = false);
            self.step(conn);
        }
        observe(&Observation::TurnEnded {
            core: self.port.core,
            now: self.now,
            leases: self.leases.get(),
        });
        has_work
    }

    fn complete_all<H: CoreHandler>(&mut self, handler: &mut H) {
        for _ in 0..self.deferred.len() {
            let Some(event) = self.deferred.pop_front() else { break };
            let is_connect = matches!(event, Event::Connected { .. } | Event::ConnectFailed { .. });
            if is_connect && hits(Fault::LateCompletion) {
                self.deferred.push_back(event);
                continue;
            }
            if !self.is_stopped {
                self.deliver(event, handler);
            }
        }
        let mut batch = std::mem::take(&mut self.batch);
        batch.extend(self.port.dirty.borrow_mut().drain(..));
        for index in (1..batch.len()).rev() {
            batch.swap(index, world::draw_len(0, index));
        }
        // What does not fit the batch is unreaped, and unread with it.
        for conn in batch.drain(BATCH_MAX.min(batch.len())..) {
            self.port.dirty.borrow_mut().push_back(conn);
        }
        for conn in &batch {
            let connections = self.sockets.connections.borrow();
            let Some(connection) = connections.get(slab_key(*conn)) else { continue };
            connection.link.is_queued.set(false);
            if hits(Fault::LateCompletion) {
                connection.link.queue();
                continue;
            }
            drop(connections);
            if !self.is_stopped {
                self.complete(*conn, handler);
            }
        }
        batch.clear();
        self.batch = batch;
        self.sockets.has_unreaped.set(!self.port.dirty.borrow().is_empty());
    }

    /// Completes operations of one connection, one of each kind at most, in any order.
    fn complete<H: CoreHandler>(&mut self, conn: ConnKey, handler: &mut H) {
        let first = world::draw_len(0, KINDS.len() - 1);
        for index in 0..KINDS.len() {
            if self.is_stopped {
                return;
            }
            match KINDS[(first + index) % KINDS.len()] {
                Kind::Receive => self.complete_receive(conn, handler),
                Kind::ReceiveCancel => self.complete_receive_cancel(conn),
                Kind::Watch => self.complete_watch(conn, handler),
                Kind::Send => self.complete_send(conn, handler),
                Kind::Close => self.complete_close(conn, handler),
            }
        }
        let connections = self.sockets.connections.borrow();
        if let Some(connection) = connections.get(slab_key(conn))
            && connection.is_completable()
        {
            connection.link.queue();
        }
    }

    /// Runs `f` on a connection that is not closing.
    fn with_open<R>(&self, conn: ConnKey, f: impl FnOnce(&mut SimConnection) -> R) -> Option<R> {
        let mut connections = self.sockets.connections.borrow_mut();
        let connection = connections.get_mut(slab_key(conn))?;
        (!connection.is_closing).then(|| f(connection))
    }

    /// Submits what a connection needs now; its completions are looked for in the next turn.
    fn step(&mut self, conn: ConnKey) {
        let shots = self.shots;
        self.with_open(conn, |connection| {
            connection.step_receive(shots);
            connection.step_watch();
            if connection.is_completable() {
                connection.link.queue();
            }
        });
    }

    fn complete_receive<H: CoreHandler>(&mut self, conn: ConnKey, handler: &mut H) {
        let shots = self.shots;
        let completed = self.with_open(conn, |connection| {
            let completed = connection.complete_receive(shots)?;
            let brought = connection.receive.on_completion(
                completed.result,
                completed.has_more,
                completed.is_nonempty,
            );
            connection.watch.is_end_known |= brought == Brought::EndOfStream;
            Some((completed, brought, connection.receive.is_starved))
        });
        let Some((completed, brought, is_starved)) = completed.flatten() else { return };
        match brought {
            Brought::Bytes => {
                let lease = Lease::from_sim(SimLease::new(completed.bytes, &self.leases));
                self.deliver(Event::Received(conn, lease), handler);
            }
            Brought::EndOfStream => self.deliver(Event::Eof(conn), handler),
            Brought::Error(errno) => self.deliver(Event::RecvFailed(conn, Errno(errno)), handler),
            Brought::Nothing if is_starved => self.starved.push(conn),
            Brought::Nothing => {}
        }
        self.step(conn);
    }

    fn complete_receive_cancel(&mut self, conn: ConnKey) {
        let is_missed = self.with_open(conn, |connection| {
            let misses =
                connection.receive.arming == Arming::Cancelling && hits(Fault::CancelMisses);
            if misses {
                connection.complete_receive_cancel();
            }
            misses
        });
        if is_missed == Some(true) {
            self.step(conn);
        }
    }

    fn complete_watch<H: CoreHandler>(&mut self, conn: ConnKey, handler: &mut H) {
        let news = self.with_open(conn, |connection| {
            let completed = connection.complete_watch()?;
            if !completed.has_more {
                connection.watch.arming = Arming::Idle;
            }
            let how = departure(completed.result, connection.write);
            let is_news = completed.result >= 0 && connection.watch.is_news(how);
            if is_news {
                connection.watch.is_wanted = false;
                connection.watch.is_end_known |= how == Departure::EndOfStream;
            }
            Some(is_news.then_some(how))
        });
        let Some(news) = news.flatten() else { return };
        self.step(conn);
        if let Some(how) = news {
            self.deliver(Event::PeerGone(conn, how), handler);
        }
    }

    fn complete_send<H: CoreHandler>(&mut self, conn: ConnKey, handler: &mut H) {
        let ended = self.with_open(conn, |connection| {
            let result = connection.complete_send()?;
            let progress = connection.sending.as_mut()?.on_completion(result);
            if progress == Progress::Short {
                return None;
            }
            let chunks = connection.take_sent()?;
            if connection.write == WriteSide::Ending {
                connection.end_write_side();
            }
            Some((progress, chunks))
        });
        let Some((progress, chunks)) = ended.flatten() else { return };
        match progress {
            Progress::Failed(errno) => self.deliver(Event::SendFailed(conn, Errno(errno)), handler),
            Progress::Done | Progress::Short => self.deliver(Event::Sent(conn, chunks), handler),
        }
    }

    fn complete_close<H: CoreHandler>(&mut self, conn: ConnKey, handler: &mut H) {
        let connections = self.sockets.connections.borrow_mut();
        let key = slab_key(conn);
        let now = self.now;
        let is_due = connections
            .get(key)
            .is_some_and(|connection| connection.is_closing && connection.close_due <= now);
        if !is_due {
            return;
        }
        drop(connections);
        if let Some(connection) = self.sockets.remove(key) {
            connection.link.conn.set(None);
        }
        self.deliver(Event::Closed(conn), handler);
    }

    fn may_accept(&self) -> bool {
        self.port.is_listening.get()
            && (!self.is_accept_paused || self.is_accept_stopping)
            && self.accept_paused_until <= world_now()
            && self.sockets.connections.borrow().len() - self.sockets.outgoing.get()
                < self.connections_max
    }

    fn accept<H: CoreHandler>(&mut self, handler: &mut H) {
        for _ in 0..ACCEPT_BURST {
            if self.is_stopped || !self.may_accept() {
                return;
            }
            if self.port.backlog.borrow().is_empty() {
                break;
            }
            if hits(Fault::NoDescriptors) {
                self.accept_paused_until = self.now + ACCEPT_PAUSE;
                return;
            }
            let Some(link) = self.port.backlog.borrow_mut().pop_front() else { break };
            let listener = ListenerId(0);
            let peer = link.peer;
            let connection = SimConnection::new(Rc::clone(&link));
            let SlabKey { slot, stamp } = self.sockets.connections.borrow_mut().insert(connection);
            let conn = ConnKey { slot, stamp };
            link.conn.set(Some(conn));
            self.deliver(Event::Accepted { conn, listener, peer }, handler);
        }
        let is_done = self.port.backlog.borrow().is_empty();
        if self.is_accept_stopping && is_done && self.port.is_listening.replace(false) {
            self.deliver(Event::AcceptStopped(ListenerId(0), None), handler);
        }
    }

    fn execute_commands(&mut self) {
        if self.commands.is_empty() {
            return;
        }
        let mut commands = std::mem::take(&mut self.commands);
        for command in commands.drain() {
            self.execute(command);
        }
        self.commands = commands;
    }

    fn execute(&mut self, command: Command) {
        match command {
            Command::Demand(conn, is_demanded) => {
                self.with_open(conn, |connection| {
                    connection.receive.is_demanded = is_demanded;
                    connection.watch.is_wanted &= !is_demanded;
                });
                self.step(conn);
            }
            Command::Watch(conn) => {
                self.with_open(conn, |connection| connection.watch.is_wanted = true);
                self.step(conn);
            }
            Command::Send(conn, chunks) => self.send(conn, chunks),
            Command::ShutdownWrite(conn) => {
                self.with_open(conn, |connection| {
                    if connection.sending.is_some() {
                        connection.write = WriteSide::Ending;
                    } else if connection.write == WriteSide::Open {
                        connection.end_write_side();
                    }
                });
            }
            Command::Close(conn) => {
                let now = self.now;
                self.with_open(conn, |connection| {
                    connection.close(now);
                    connection.link.queue();
                });
            }
            Command::Connect(request) => self.connect(request),
            Command::CancelConnect { token } => self.cancel_connect(token),
            Command::File(request) => {
                let (token, result) = (request.token, Err(Errno(libc::EOPNOTSUPP)));
                let buffer = request.buffer;
                self.deferred.push_back(Event::FileDone { token, result, buffer });
            }
            Command::PauseAccept => self.is_accept_paused = true,
            Command::ResumeAccept => self.is_accept_paused = false,
            Command::StopAccept => self.is_accept_stopping = true,
            Command::Handoff(conn) => {
                panic!("{conn:?}: a simulated connection has no descriptor to hand over")
            }
            Command::Adopt(Stream { peer, .. }) => {
                panic!("{peer}: a simulated core takes no descriptor over")
            }
            Command::Stop => self.is_stopped = true,
        }
    }

    fn connect(&mut self, request: ConnectRequest) {
        let ConnectRequest { token, address } = request;
        let failed = |errno| Event::ConnectFailed { token, errno: Errno(errno) };
        if hits(Fault::NoDescriptors) {
            self.deferred.push_back(failed(libc::EMFILE));
            return;
        }
        let Some(link) = upstream::connect(address, &self.port) else {
            self.deferred.push_back(failed(libc::ECONNREFUSED));
            return;
        };
        let connection = SimConnection::new(Rc::clone(&link));
        let SlabKey { slot, stamp } = self.sockets.connections.borrow_mut().insert(connection);
        let conn = ConnKey { slot, stamp };
        link.conn.set(Some(conn));
        self.sockets.outgoing.set(self.sockets.outgoing.get() + 1);
        self.deferred.push_back(Event::Connected { conn, token });
    }

    /// Gives up a connect whose answer is not out yet; if the cancellation comes too late, that
    /// comes all the same.
    fn cancel_connect(&mut self, token: u64) {
        let is_it = |event: &Event| {
            matches!(event, Event::Connected { token: own, .. } if *own == token)
                || matches!(event, Event::ConnectFailed { token: own, .. } if *own == token)
        };
        let Some(index) = self.deferred.iter().position(is_it) else { return };
        if hits(Fault::CancelTooLate) {
            return;
        }
        if let Some(Event::Connected { conn, .. }) = self.deferred.remove(index)
            && let Some(connection) = self.sockets.remove(slab_key(conn))
        {
            connection.link.conn.set(None);
            close_link(&connection.link);
        }
    }

    fn send(&mut self, conn: ConnKey, chunks: Chunks) {
        self.with_open(conn, |connection| {
            assert!(connection.sending.is_none(), "{conn:?} has a send under way");
            connection.sending = Some(Sending::new(chunks));
        });
        self.step(conn);
    }
}

impl Backend for SimBackend {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn io(&self) -> Rc<dyn Io> {
        Rc::<SimSockets>::clone(&self.sockets)
    }

    fn run<H: CoreHandler>(mut self, handler: &mut H) -> io::Result<()> {
        self.now = world_now();
        let mut has_work = false;
        while !self.is_stopped {
            self.enter(has_work, handler);
            has_work = self.turn(handler);
        }
        Ok(())
    }
}

impl Drop for SimBackend {
    fn drop(&mut self) {
        self.port.is_listening.set(false);
        let mut connections = self.sockets.connections.borrow_mut();
        for key in connections.keys() {
            if let Some(connection) = connections.remove(key)
                && !connection.is_closing
            {
                close_link(&connection.link);
            }
        }
        for link in self.port.backlog.borrow_mut().drain(..) {
            close_link(&link);
        }
    }
}

fn world_now() -> Timestamp {
    world::now().unwrap_or_default()
}
