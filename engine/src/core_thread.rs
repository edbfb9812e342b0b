//! A core: what stands between a backend's loop and the connection handler. Its poller part is
//! the only place that turns completions (as events) into socket events; its acceptor part gives
//! each new connection its entry; and it owns every deadline. Stands for Tomcat's `Acceptor`,
//! `Poller` and `NioEndpoint` of one core.

use std::rc::Rc;

use crate::{
    backend::{Command, Commands, CoreHandler, Departure, Errno, Event, Io},
    buffer::{Chunks, Lease},
    connection_handler::{ConnectionHandler, SocketEvent},
    core_context::{CoreContext, CoreMessage, CoreSeat, CoreTimeouts, TimerKey},
    inbox::Batch,
    key::{ConnKey, ListenerId},
    local::services::LocalServices,
    observe::{Observation, observe},
    socket::{Failure, Phase, ReadDeadline, Socket},
    timer_wheel::TICK,
    timestamp::Timestamp,
};

/// Messages that one turn handles at most; the rest waits for the next turn, behind new input.
const INBOX_BURST: usize = 256;

/// Bytes read and dropped after an early answer, at most.
const LINGER_BYTES_MAX: u32 = 2 * 1024 * 1024;

/// One core, without its loop.
pub struct Core<H: ConnectionHandler> {
    handler: H,
    cx: CoreContext<H::Message>,
    pending: Option<Batch<CoreMessage<H::Message>>>,
    listeners_open: usize,
    is_stopping: bool,
}

impl<H: ConnectionHandler> Core<H> {
    /// A core that serves `listener_count` listeners.
    pub fn new(
        seat: &CoreSeat<H::Message>,
        io: Rc<dyn Io>,
        timeouts: CoreTimeouts,
        listener_count: usize,
        handler: H,
    ) -> Self {
        Self {
            handler,
            cx: CoreContext::new(seat, io, timeouts),
            pending: None,
            listeners_open: listener_count,
            is_stopping: false,
        }
    }

    /// The handler, for its final words after the loop ended.
    pub fn handler(&self) -> &H {
        &self.handler
    }

    /// What the core offers to futures.
    pub fn services(&self) -> &Rc<LocalServices> {
        &self.cx.services
    }

    /// Connections that are not closed yet.
    pub fn socket_count(&self) -> usize {
        self.cx.socket_count
    }

    /// Deadlines that are set.
    pub fn timer_count(&self) -> usize {
        self.cx.wheel.len()
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Accepted { conn, listener, peer } => self.accepted(conn, listener, peer),
            Event::Received(conn, lease) => self.received(conn, lease),
            Event::Eof(conn) => self.eof(conn),
            Event::RecvFailed(conn, errno) => {
                self.cx.services.receiving_ended(conn, Some(errno));
                self.failed(conn, Failure::System(errno));
            }
            Event::SendFailed(conn, errno) => {
                self.cx.services.sending_failed(conn, errno);
                self.failed(conn, Failure::System(errno));
            }
            Event::Sent(conn, chunks) => self.sent(conn, chunks),
            Event::PeerGone(conn, Departure::EndOfStream) => self.peer_closed(conn),
            Event::PeerGone(conn, Departure::Reset) => {
                self.failed(conn, Failure::System(Errno::ECONNRESET));
            }
            Event::Closed(conn) => self.closed(conn),
            Event::AcceptStopped(listener, errno) => self.accept_stopped(listener, errno),
            Event::Timeout => self.timeout(),
            Event::Woken => {}
            Event::Connected { conn, token } => self.cx.services.connected(conn, token),
            Event::ConnectFailed { token, errno } => self.cx.services.connect_failed(token, errno),
            Event::Detached(..) | Event::FileDone { .. } => {
                tracing::error!("core {}: an answer came that nobody asked for", self.cx.id);
            }
        }
    }

    fn accepted(&mut self, conn: ConnKey, listener: ListenerId, peer: std::net::SocketAddr) {
        let slot = conn.slot as usize;
        if self.cx.sockets.len() <= slot {
            self.cx.sockets.resize_with(slot + 1, || None);
        }
        assert!(self.cx.sockets[slot].is_none(), "the backend reused a slot before Closed");
        self.cx.sockets[slot] = Some(Box::new(Socket::new(conn, listener, peer)));
        self.cx.socket_count += 1;
        self.cx.counters.connections_accepted.add(1);
        self.cx.set_read_interest(conn, true);
        self.cx.set_read_deadline(conn, Some(ReadDeadline::First));
    }

    fn received(&mut self, conn: ConnKey, lease: Lease) {
        let CoreContext { sockets, counters, services, .. } = &mut self.cx;
        let socket = sockets.get_mut(conn.slot as usize).and_then(Option::as_mut);
        let Some(socket) = socket.filter(|socket| socket.key == conn) else {
            services.received(conn, &lease);
            return;
        };
        counters.received_bytes.add(lease.len() as u64);
        match &mut socket.phase {
            Phase::Open => {}
            Phase::Draining { .. } | Phase::Closing => return,
            Phase::Lingering { discarded_bytes } => {
                *discarded_bytes = discarded_bytes.saturating_add(lease.len() as u32);
                if *discarded_bytes > LINGER_BYTES_MAX {
                    self.cx.close_now(conn);
                }
                return;
            }
        }
        socket.input.receive(lease);
        if socket.read_interest {
            self.process(conn, SocketEvent::OpenRead);
        } else {
            socket.input.settle();
            self.cx.suspend_receive(conn);
        }
    }

    fn eof(&mut self, conn: ConnKey) {
        let Some(socket) = self.cx.socket_mut(conn) else {
            self.cx.services.receiving_ended(conn, None);
            return;
        };
        socket.is_eof = true;
        socket.is_peer_closed = true;
        socket.is_demanded = false;
        match socket.phase {
            Phase::Open if socket.attachment.is_none() && socket.input.is_empty() => {
                self.cx.close(conn, false);
            }
            Phase::Open => {
                let is_awaited = socket.read_interest;
                self.handler.on_peer_closed(&mut self.cx, conn);
                if is_awaited {
                    self.process(conn, SocketEvent::OpenRead);
                }
                // Who still waits for an answer may reset the connection instead.
                self.cx.watch(conn);
            }
            Phase::Lingering { .. } => self.cx.close_now(conn),
            Phase::Draining { .. } | Phase::Closing => {}
        }
    }

    fn peer_closed(&mut self, conn: ConnKey) {
        if let Some(socket) = self.cx.socket_mut(conn) {
            socket.is_watched = false;
            socket.is_peer_closed = true;
            self.handler.on_peer_closed(&mut self.cx, conn);
            self.cx.watch(conn);
        }
    }

    fn failed(&mut self, conn: ConnKey, failure: Failure) {
        if !self.cx.fail(conn, failure) {
            return;
        }
        if self.cx.socket(conn).is_some_and(|socket| socket.attachment.is_some()) {
            self.process(conn, SocketEvent::Error);
        } else {
            self.cx.close_now(conn);
        }
    }

    fn sent(&mut self, conn: ConnKey, chunks: Chunks) {
        let CoreContext { sockets, pool, counters, services, .. } = &mut self.cx;
        let socket = sockets.get_mut(conn.slot as usize).and_then(Option::as_mut);
        let Some(socket) = socket.filter(|socket| socket.key == conn) else {
            services.sent(conn);
            return;
        };
        counters.sent_bytes.add(chunks.len_bytes() as u64);
        socket.out.on_sent(chunks, pool);
        socket.write_deadline = None;
        self.after_sent(conn);
    }

    /// Output left: those who wait for that go on, a close that waited for it too.
    fn after_sent(&mut self, conn: ConnKey) {
        let Some(socket) = self.cx.socket_mut(conn) else { return };
        let sent_bytes = socket.out.take_sent_at_once();
        let is_attached = socket.attachment.is_some();
        let is_writable = socket.write_interest && socket.out.is_empty();
        self.cx.counters.sent_bytes.add(sent_bytes);
        if is_attached {
            self.handler.on_sent(&mut self.cx, conn);
        }
        if is_attached && is_writable {
            self.process(conn, SocketEvent::OpenWrite);
        } else {
            self.cx.flush(conn);
        }
        self.cx.finish_close(conn);
    }

    fn settle_sent_at_once(&mut self) {
        while let Some(conn) = self.cx.sent_at_once.pop() {
            self.after_sent(conn);
        }
    }

    fn closed(&mut self, conn: ConnKey) {
        let slot = self.cx.sockets.get_mut(conn.slot as usize);
        let own = slot.filter(|slot| slot.as_ref().is_some_and(|socket| socket.key == conn));
        let Some(mut socket) = own.and_then(Option::take) else {
            self.cx.services.outgoing_closed(conn);
            return;
        };
        self.cx.counters.sent_bytes.add(socket.out.take_sent_at_once());
        if let Some(timer) = socket.timer {
            self.cx.wheel.remove(timer);
        }
        self.cx.socket_count -= 1;
        self.cx.counters.connections_closed.add(1);
        if let Some(attachment) = socket.attachment {
            self.handler.on_closed(&mut self.cx, attachment);
        }
        self.stop_when_drained();
    }

    fn accept_stopped(&mut self, listener: ListenerId, errno: Option<Errno>) {
        if let Some(errno) = errno {
            tracing::error!("core {}: listener {} stopped: {errno:?}", self.cx.id, listener.0);
        }
        self.listeners_open = self.listeners_open.saturating_sub(1);
        self.stop_when_drained();
    }

    fn process(&mut self, conn: ConnKey, event: SocketEvent) {
        let state = self.handler.process(&mut self.cx, conn, event);
        self.cx.settle(conn, state);
    }

    fn timeout(&mut self) {
        while let Some((_, key)) = self.cx.wheel.expire(self.cx.now) {
            match key {
                TimerKey::Socket(conn) => self.socket_deadline(conn),
                TimerKey::Exchange(exchange) => {
                    self.handler.on_exchange_deadline(&mut self.cx, exchange);
                }
                TimerKey::DrainCut => self.cut(),
            }
        }
        self.cx.services.expire(self.cx.now);
    }

    fn socket_deadline(&mut self, conn: ConnKey) {
        let now = self.cx.now;
        let io = Rc::clone(self.cx.io());
        let Some(socket) = self.cx.socket_mut(conn) else { return };
        socket.timer = None;
        if socket.write_deadline.is_some_and(|deadline| deadline <= now) {
            socket.write_deadline = None;
            self.cx.counters.deadlines.write.add(1);
            self.failed(conn, Failure::WriteTimeout);
            return;
        }
        match socket.read_deadline {
            // What the kernel already holds was sent in time; it is read before it is judged.
            Some((deadline, kind)) if deadline <= now && io.unread(conn) => {
                socket.read_deadline = Some((now + TICK, kind));
                self.cx.arm_socket(conn);
            }
            Some((deadline, kind)) if deadline <= now => {
                socket.read_deadline = None;
                self.cx.arm_socket(conn);
                self.read_deadline(conn, kind);
            }
            Some(_) | None => self.cx.arm_socket(conn),
        }
    }

    fn read_deadline(&mut self, conn: ConnKey, kind: ReadDeadline) {
        let counters = &self.cx.counters.deadlines;
        match kind {
            ReadDeadline::Linger => {
                counters.linger.add(1);
                self.cx.close_now(conn);
            }
            // A client that still receives its answer is not silent: the write deadline judges it.
            ReadDeadline::KeepAlive if self.has_output(conn) => {
                self.cx.set_read_deadline(conn, Some(kind));
            }
            ReadDeadline::First | ReadDeadline::KeepAlive => {
                let is_first = kind == ReadDeadline::First;
                let counter = if is_first { &counters.connection } else { &counters.keep_alive };
                counter.add(1);
                self.cx.close(conn, false);
            }
            ReadDeadline::Head | ReadDeadline::Body => {
                let Some(socket) = self.cx.socket_mut(conn) else { return };
                // A failure that ended sending stays: output was given up in the middle.
                if !socket.can_send() {
                    return;
                }
                socket.failure = Some(Failure::ReadTimeout(kind));
                let counters = &self.cx.counters;
                let is_head = kind == ReadDeadline::Head;
                let counter =
                    if is_head { &counters.deadlines.head } else { &counters.deadlines.body };
                counter.add(1);
                counters.connections_failed.add(1);
                self.process(conn, SocketEvent::Error);
            }
        }
    }

    fn has_output(&self, conn: ConnKey) -> bool {
        self.cx.socket(conn).is_some_and(|socket| !socket.out.is_empty())
    }

    fn on_message(&mut self, message: CoreMessage<H::Message>) {
        self.cx.counters.messages.add(1);
        observe(&Observation::Message { core: self.cx.id });
        match message {
            CoreMessage::Handler(message) => self.handler.on_message(&mut self.cx, message),
            CoreMessage::WakeTask(task) => self.cx.services.poll_task(task),
            CoreMessage::Drain => self.drain(),
            CoreMessage::DrainLimit => {
                self.handler.on_drain_limit(&mut self.cx);
                let deadline = self.cx.now + self.cx.timeouts.drain_cut;
                self.cx.wheel.insert(deadline, TimerKey::DrainCut);
            }
        }
    }

    /// Stops accepting; connections between requests get a short while for a request that is on
    /// its way, since closing under it would lose it.
    fn drain(&mut self) {
        if std::mem::replace(&mut self.cx.is_draining, true) {
            return;
        }
        self.cx.commands.push(Command::StopAccept);
        let idle: Vec<ConnKey> = self
            .cx
            .sockets
            .iter()
            .flatten()
            .filter(|socket| socket.phase == Phase::Open && socket.attachment.is_none())
            .map(|socket| socket.key)
            .collect();
        for conn in idle {
            self.cx.set_read_deadline(conn, Some(ReadDeadline::KeepAlive));
        }
        self.stop_when_drained();
    }

    fn cut(&mut self) {
        let cut = self.cx.socket_count;
        if cut > 0 {
            self.cx.counters.connections_cut.add(cut as u64);
            tracing::warn!("core {}: drain limit: {cut} connections cut", self.cx.id);
        }
        self.stop();
    }

    fn stop_when_drained(&mut self) {
        if self.cx.is_draining && self.listeners_open == 0 && self.cx.socket_count == 0 {
            self.stop();
        }
    }

    /// Ends the loop. What still belongs to connections is released before the ring goes, so that
    /// no other thread waits for it.
    fn stop(&mut self) {
        if std::mem::replace(&mut self.is_stopping, true) {
            return;
        }
        let sockets = self.cx.sockets.iter_mut().flatten();
        let left: Vec<u64> = sockets.filter_map(|socket| socket.attachment.take()).collect();
        for attachment in left {
            self.handler.on_closed(&mut self.cx, attachment);
        }
        self.cx.services.stop();
        self.cx.services.drain_commands(&mut self.cx.commands);
        self.cx.commands.push(Command::Stop);
    }
}

impl<H: ConnectionHandler> CoreHandler for Core<H> {
    fn on(&mut self, now: Timestamp, event: Event, commands: &mut Commands) {
        self.cx.advance_to(now);
        std::mem::swap(&mut self.cx.commands, commands);
        self.on_event(event);
        self.settle_sent_at_once();
        self.cx.services.drain_commands(&mut self.cx.commands);
        std::mem::swap(&mut self.cx.commands, commands);
    }

    fn run_ready(&mut self, now: Timestamp, commands: &mut Commands) -> bool {
        self.cx.advance_to(now);
        std::mem::swap(&mut self.cx.commands, commands);
        // What the core posts to itself meanwhile is for the next turn, behind new input.
        let mut batch = match self.pending.take() {
            Some(batch) => batch,
            None => self.cx.inbox.take(),
        };
        for message in batch.by_ref().take(INBOX_BURST) {
            self.on_message(message);
            self.settle_sent_at_once();
        }
        self.pending = (!batch.is_empty()).then_some(batch);
        self.cx.services.drain_commands(&mut self.cx.commands);
        std::mem::swap(&mut self.cx.commands, commands);
        self.pending.is_some() || !self.cx.inbox.is_empty()
    }

    fn next_deadline(&self) -> Option<Timestamp> {
        let deadlines = [self.cx.wheel.next_deadline(), self.cx.services.next_deadline()];
        deadlines.into_iter().flatten().min()
    }

    fn may_sleep(&mut self) -> bool {
        self.cx.inbox.prepare_sleep()
    }

    fn awake(&mut self) {
        self.cx.inbox.awake();
    }
}
