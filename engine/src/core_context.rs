//! What a core lends to its connection handler: sockets, deadlines, the clock, and the way to ask
//! for things. Everything here belongs to one core and is touched by its thread alone.

use std::{rc::Rc, time::Duration};

use crate::{
    backend::{Command, Commands, Errno, Io},
    connection_handler::SocketState,
    core_counters::CoreCounters,
    inbox::Inbox,
    key::{ConnKey, CoreId},
    local::{
        executor::{TaskDoor, TaskKey},
        services::LocalServices,
    },
    out_queue::BufferPool,
    socket::{Failure, Phase, ReadDeadline, Socket},
    sync::Arc,
    timer_wheel::{TimerId, TimerWheel},
    timestamp::Timestamp,
};

/// Timeouts of the connections of a core. Each has one name; all are on by default.
#[derive(Clone, Copy, Debug)]
pub struct CoreTimeouts {
    /// Wait for the first byte of a connection's first request. 20 s.
    pub connection: Duration,
    /// Wait for the next request. 60 s.
    pub keep_alive: Duration,
    /// From the first byte of a head to its end. 20 s.
    pub head: Duration,
    /// Silence inside a body, and what [`CoreTimeouts::body_rate_min`] is measured over. 20 s.
    pub body: Duration,
    /// Bytes of a body that have to come in a second, in the mean; 0 asks for none. 500.
    ///
    /// A client has the patience of `body` at first. Waiting for it uses that up, and what comes
    /// gives it back: so many bytes a second of it, and never more than `body`.
    pub body_rate_min: u32,
    /// How long a peer may take for a piece of output, which has 128 KiB at most. 60 s.
    pub write: Duration,
    /// Wait for the peer's end of stream after an early answer. 2 s.
    pub linger: Duration,
    /// What an idle connection has left to send a request when the server drains. 250 ms.
    pub drain_idle: Duration,
    /// From the drain limit to the cut of what is still open. 1 s.
    pub drain_cut: Duration,
}

impl Default for CoreTimeouts {
    fn default() -> Self {
        Self {
            connection: Duration::from_secs(20),
            keep_alive: Duration::from_secs(60),
            head: Duration::from_secs(20),
            body: Duration::from_secs(20),
            body_rate_min: 500,
            write: Duration::from_secs(60),
            linger: Duration::from_secs(2),
            drain_idle: Duration::from_millis(250),
            drain_cut: Duration::from_secs(1),
        }
    }
}

/// A message to a core.
#[derive(Debug)]
pub enum CoreMessage<M> {
    /// For the connection handler.
    Handler(M),
    /// Stop accepting, serve what has arrived, close idle connections, end when all is done.
    Drain,
    /// The drain limit passed: end what is parked, then cut.
    DrainLimit,
    /// Poll a task that was woken.
    WakeTask(TaskKey),
}

/// The way of wakes to a core, from any thread.
struct InboxDoor<M: Send>(Arc<Inbox<CoreMessage<M>>>);

impl<M: Send> TaskDoor for InboxDoor<M> {
    fn post_wake(&self, task: TaskKey) {
        self.0.post(CoreMessage::WakeTask(task));
    }
}

/// What a timer of the wheel is for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TimerKey {
    Socket(ConnKey),
    Exchange(u64),
    DrainCut,
}

/// A core's own state, lent to its [`ConnectionHandler`](crate::connection_handler).
pub struct CoreContext<M: Send> {
    pub(crate) id: CoreId,
    pub(crate) timeouts: CoreTimeouts,
    pub(crate) now: Timestamp,
    pub(crate) io: Rc<dyn Io>,
    pub(crate) sockets: Vec<Option<Box<Socket>>>,
    pub(crate) socket_count: usize,
    pub(crate) wheel: TimerWheel<TimerKey>,
    pub(crate) commands: Commands,
    pub(crate) inbox: Arc<Inbox<CoreMessage<M>>>,
    pub(crate) pool: BufferPool,
    pub(crate) is_draining: bool,
    /// Connections whose output left without the ring, so that no completion tells.
    pub(crate) sent_at_once: Vec<ConnKey>,
    pub(crate) counters: Arc<CoreCounters>,
    pub(crate) services: Rc<LocalServices>,
}

impl<M: Send + 'static> CoreContext<M> {
    pub(crate) fn new(seat: &CoreSeat<M>, io: Rc<dyn Io>, timeouts: CoreTimeouts) -> Self {
        let now = io.now();
        let door = std::sync::Arc::new(InboxDoor(Arc::clone(&seat.inbox)));
        Self {
            services: Rc::new(LocalServices::new(now, door)),
            id: seat.id,
            timeouts,
            now,
            io,
            sockets: Vec::new(),
            socket_count: 0,
            wheel: TimerWheel::new(now),
            commands: Commands::default(),
            inbox: Arc::clone(&seat.inbox),
            pool: BufferPool::default(),
            is_draining: false,
            sent_at_once: Vec::new(),
            counters: Arc::clone(&seat.counters),
        }
    }
}

impl<M: Send> CoreContext<M> {
    /// What the core offers to futures.
    pub fn services(&self) -> &Rc<LocalServices> {
        &self.services
    }

    /// The core's number.
    pub fn id(&self) -> CoreId {
        self.id
    }

    /// The time of this turn, read once.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// Takes the time of the turn over, unless a slow callback made a later one known.
    pub(crate) fn advance_to(&mut self, now: Timestamp) {
        self.now = self.now.max(now);
    }

    /// The backend, for what cannot wait until the turn ends.
    pub fn io(&self) -> &Rc<dyn Io> {
        &self.io
    }

    /// Whether the server drains: every response says `Connection: close`.
    pub fn is_draining(&self) -> bool {
        self.is_draining
    }

    /// The timeouts of this core's connections.
    pub fn timeouts(&self) -> &CoreTimeouts {
        &self.timeouts
    }

    /// A connection, unless it is closed.
    pub fn socket(&self, conn: ConnKey) -> Option<&Socket> {
        self.sockets.get(conn.slot as usize)?.as_deref().filter(|socket| socket.key == conn)
    }

    /// A connection, unless it is closed.
    pub fn socket_mut(&mut self, conn: ConnKey) -> Option<&mut Socket> {
        let socket = self.sockets.get_mut(conn.slot as usize)?.as_deref_mut();
        socket.filter(|socket| socket.key == conn)
    }

    /// Gives the connection's out-queue a recycled buffer to encode into, if it has none.
    pub fn offer_tail(&mut self, conn: ConnKey) {
        if let Some(socket) = self.sockets.get_mut(conn.slot as usize).and_then(Option::as_mut)
            && socket.key == conn
        {
            socket.out.offer_tail(&mut self.pool);
        }
    }

    /// Takes a buffer back that nothing was encoded into.
    fn return_tail(&mut self, conn: ConnKey) {
        if let Some(socket) = self.sockets.get_mut(conn.slot as usize).and_then(Option::as_mut)
            && socket.key == conn
        {
            socket.out.return_tail(&mut self.pool);
        }
    }

    /// Whether the handler wants the connection's bytes. Without interest the receive stays armed
    /// until the first data, which is kept, and is then cancelled: most parked clients send
    /// nothing, and pay nothing.
    pub fn set_read_interest(&mut self, conn: ConnKey, interest: bool) {
        let Some(socket) = self.socket_mut(conn) else { return };
        socket.read_interest = interest;
        if interest && !socket.is_demanded && socket.phase == Phase::Open && !socket.is_eof {
            socket.is_demanded = true;
            socket.is_watched = false;
            self.commands.push(Command::Demand(conn, true));
        }
    }

    /// Takes the receive away: `Demand(false)`, and a watch for the peer's departure.
    pub(crate) fn suspend_receive(&mut self, conn: ConnKey) {
        let Some(socket) = self.socket_mut(conn) else { return };
        if socket.is_demanded {
            socket.is_demanded = false;
            self.commands.push(Command::Demand(conn, false));
        }
        self.watch(conn);
    }

    /// Watches for the peer's departure while nothing is received; after its end of stream, for
    /// a reset.
    pub(crate) fn watch(&mut self, conn: ConnKey) {
        let Some(socket) = self.socket_mut(conn) else { return };
        if socket.is_open() && !socket.is_watched && !socket.is_demanded {
            socket.is_watched = true;
            self.commands.push(Command::Watch(conn));
        }
    }

    /// Sets or takes away the receiving side's deadline, counted from now.
    pub fn set_read_deadline(&mut self, conn: ConnKey, kind: Option<ReadDeadline>) {
        let now = self.now;
        let timeout = |kind| match kind {
            ReadDeadline::First | ReadDeadline::KeepAlive if self.is_draining => {
                self.timeouts.drain_idle
            }
            ReadDeadline::First => self.timeouts.connection,
            ReadDeadline::KeepAlive => self.timeouts.keep_alive,
            ReadDeadline::Head => self.timeouts.head,
            ReadDeadline::Body => self.timeouts.body,
            ReadDeadline::Linger => self.timeouts.linger,
        };
        let deadline = kind.map(|kind| (now + timeout(kind), kind));
        let Some(socket) = self.socket_mut(conn) else { return };
        socket.read_deadline = deadline;
        self.arm_socket(conn);
    }

    /// So many bytes of the body came that the connection waits for: they move its deadline.
    pub fn extend_body_deadline(&mut self, conn: ConnKey, received_bytes: u64) {
        let (now, timeouts) = (self.now, self.timeouts);
        let Some(socket) = self.socket_mut(conn) else { return };
        let Some((deadline, ReadDeadline::Body)) = socket.read_deadline else { return };
        let latest = now + timeouts.body;
        let extended = match u64::from(timeouts.body_rate_min) {
            0 => latest,
            // What it had left when the bytes came late is nothing, and not a debt.
            rate => deadline.max(now) + Duration::from_millis(received_bytes * 1000 / rate),
        };
        socket.read_deadline = Some((extended.min(latest), ReadDeadline::Body));
        self.arm_socket(conn);
    }

    /// Keeps the one wheel node of a socket at or before its earliest deadline. A later deadline
    /// needs nothing: the node fires early and links itself again.
    pub(crate) fn arm_socket(&mut self, conn: ConnKey) {
        let Some(socket) = self.sockets.get_mut(conn.slot as usize).and_then(Option::as_mut) else {
            return;
        };
        match (socket.earliest_deadline(), socket.timer) {
            (Some(deadline), Some(timer)) => self.wheel.rearm(timer, deadline),
            (Some(deadline), None) => {
                socket.timer = Some(self.wheel.insert(deadline, TimerKey::Socket(conn)));
            }
            (None, _) => {}
        }
    }

    /// Arms the deadline of an exchange.
    pub fn arm_exchange(&mut self, exchange: u64, deadline: Timestamp) -> TimerId {
        self.wheel.insert(deadline, TimerKey::Exchange(exchange))
    }

    /// Takes back the wheel node of a connection that waits for nothing: a parked request has one
    /// of its own, and may stay for long.
    pub fn release_timer(&mut self, conn: ConnKey) {
        let Some(socket) = self.socket_mut(conn) else { return };
        if socket.earliest_deadline().is_none()
            && let Some(timer) = socket.timer.take()
        {
            self.wheel.remove(timer);
        }
    }

    /// Takes the deadline of an exchange off the wheel; no timer survives its round.
    pub fn disarm_exchange(&mut self, timer: TimerId) {
        self.wheel.remove(timer);
    }

    /// Posts a message to this core itself; it runs after the current `process` returned.
    pub fn post(&self, message: M) {
        self.inbox.post(CoreMessage::Handler(message));
    }

    /// Asks the kernel whether the peer of a connection has reset it; if so the connection has
    /// failed from now on, and the handler is to process the error.
    pub fn fail_if_reset(&mut self, conn: ConnKey) -> bool {
        let is_reset = self.io.is_reset(conn);
        is_reset && self.fail(conn, Failure::System(Errno::ECONNRESET))
    }

    /// Takes a client that has ended its stream for gone: the connection has failed from now on, as
    /// by a reset, and the handler is to process the error. `false` if it had failed before.
    pub fn give_up(&mut self, conn: ConnKey) -> bool {
        self.fail(conn, Failure::System(Errno::ECONNRESET))
    }

    /// Marks a connection as failed; `false` if it had failed before, or is closing anyway: the
    /// first failure counts, and what follows from it is its echo.
    pub(crate) fn fail(&mut self, conn: ConnKey, failure: Failure) -> bool {
        let core = self.id;
        let Some(socket) = self.socket_mut(conn) else { return false };
        if socket.phase == Phase::Closing || !socket.can_send() {
            return false;
        }
        socket.failure = Some(failure);
        socket.is_demanded = false;
        socket.out.discard();
        self.counters.connections_failed.add(1);
        tracing::debug!("core {core}: {conn:?} failed: {failure:?}");
        true
    }

    /// Does what a socket state asks for, and sends what is queued.
    pub fn settle(&mut self, conn: ConnKey, state: SocketState) {
        match state {
            SocketState::Open => self.settle_open(conn),
            SocketState::Closed => self.close(conn, false),
            SocketState::Long | SocketState::Suspended => {}
            SocketState::AsyncEnd => panic!("AsyncEnd left the process loop"),
        }
        if let Some(socket) = self.socket_mut(conn) {
            socket.input.settle();
        }
        self.flush(conn);
    }

    /// Closes the connection once its output is sent. With `linger` the peer's bytes are read for
    /// a while before: it is still sending, and closing on unread input would reset it.
    pub fn close(&mut self, conn: ConnKey, linger: bool) {
        let Some(socket) = self.socket_mut(conn) else { return };
        match &mut socket.phase {
            Phase::Open => socket.phase = Phase::Draining { linger },
            Phase::Draining { linger: before } => *before |= linger,
            // Beyond that already; a lingering connection keeps the deadline that ends it.
            Phase::Lingering { .. } | Phase::Closing => return,
        }
        socket.read_deadline = None;
        self.finish_close(conn);
    }

    /// Sends what is queued, unless a send is under way: with the next enter, so that the answers
    /// of a whole batch leave together; or at once, if the turn has taken so long already that
    /// others of the batch would keep this answer back.
    pub fn flush(&mut self, conn: ConnKey) {
        let io = Rc::clone(&self.io);
        let Some(socket) = self.socket_mut(conn) else { return };
        if matches!(socket.phase, Phase::Closing | Phase::Lingering { .. }) || !socket.can_send() {
            return;
        }
        if socket.out.is_in_flight() || socket.out.is_empty() {
            self.return_tail(conn);
            return;
        }
        let now = io.now();
        if now.saturating_since(self.now) > BATCH_DELAY_MAX {
            self.now = now;
            let Some(socket) = self.socket_mut(conn) else { return };
            if let Err(errno) = socket.out.send_now(&*io, conn) {
                // What is left goes to the ring, whose completion reports the failure in order.
                tracing::debug!("{conn:?}: {errno:?}");
            }
            self.sent_at_once.push(conn);
        }
        let write_deadline = self.now + self.timeouts.write;
        let Some(socket) = self.socket_mut(conn) else { return };
        if let Some(chunks) = socket.out.take_send() {
            socket.write_deadline = Some(write_deadline);
            self.commands.push(Command::Send(conn, chunks));
            self.arm_socket(conn);
        }
    }

    /// The next step of a close whose output may be sent by now.
    pub(crate) fn finish_close(&mut self, conn: ConnKey) {
        let io = Rc::clone(self.io());
        let Some(socket) = self.socket_mut(conn) else { return };
        let Phase::Draining { linger } = socket.phase else { return };
        if socket.can_send() && !socket.out.is_empty() {
            return;
        }
        let unread = || !socket.input.is_empty() || io.unread(conn);
        if socket.failure.is_none() && !socket.is_eof && (linger || unread()) {
            socket.phase = Phase::Lingering { discarded_bytes: 0 };
            socket.input.clear();
            let demand = !socket.is_demanded;
            socket.is_demanded = true;
            self.commands.push(Command::ShutdownWrite(conn));
            if demand {
                self.commands.push(Command::Demand(conn, true));
            }
            self.set_read_deadline(conn, Some(ReadDeadline::Linger));
        } else {
            self.close_now(conn);
        }
    }

    /// Closes at once.
    pub(crate) fn close_now(&mut self, conn: ConnKey) {
        let Some(socket) = self.socket_mut(conn) else { return };
        if socket.phase != Phase::Closing {
            socket.phase = Phase::Closing;
            socket.out.discard();
            socket.input.clear();
            self.commands.push(Command::Close(conn));
        }
    }

    fn settle_open(&mut self, conn: ConnKey) {
        let is_draining = self.is_draining;
        let Some(socket) = self.socket_mut(conn) else { return };
        if is_draining || !socket.is_open() || (socket.is_eof && socket.input.is_empty()) {
            self.close(conn, false);
            return;
        }
        self.set_read_interest(conn, true);
        self.set_read_deadline(conn, Some(ReadDeadline::KeepAlive));
    }
}

impl Socket {
    /// Whether output still has a chance: a peer that sends too slowly may still read the answer.
    pub(crate) fn can_send(&self) -> bool {
        matches!(self.failure, None | Some(crate::socket::Failure::ReadTimeout(_)))
    }
}

/// How long an answer may wait for the rest of its batch.
const BATCH_DELAY_MAX: Duration = Duration::from_millis(1);

/// What a core is given at start: its number and its door.
pub struct CoreSeat<M: Send> {
    /// The core's number.
    pub id: CoreId,
    /// The only door for other threads.
    pub inbox: Arc<Inbox<CoreMessage<M>>>,
    /// What the core counts.
    pub counters: Arc<CoreCounters>,
}

impl<M: Send> Clone for CoreSeat<M> {
    fn clone(&self) -> Self {
        Self { id: self.id, inbox: Arc::clone(&self.inbox), counters: Arc::clone(&self.counters) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::{inbox::Wake, key::ListenerId, native::sockets::Sockets};

    struct NoWake;

    impl Wake for NoWake {
        fn wake(&self) {}
    }

    #[test]
    fn a_connection_that_waits_without_output_owns_no_buffer() {
        let seat = CoreSeat::<()> {
            id: CoreId(0),
            inbox: Arc::new(Inbox::new(Box::new(NoWake))),
            counters: Arc::default(),
        };
        let mut cx = CoreContext::new(&seat, Rc::new(Sockets::new()), CoreTimeouts::default());
        let conn = ConnKey { slot: 0, stamp: 1 };
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        cx.sockets.push(Some(Box::new(Socket::new(conn, ListenerId(0), peer))));
        cx.socket_mut(conn).unwrap().out.tail();
        cx.settle(conn, SocketState::Long);
        cx.offer_tail(conn);
        assert_eq!(cx.pool.len(), 0, "the buffer of before is used again");
        cx.settle(conn, SocketState::Long);
        assert_eq!(cx.pool.len(), 1);
    }
}
