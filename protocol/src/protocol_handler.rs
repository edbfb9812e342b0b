//! The connections of one core as exchanges: finds or makes the processor of a connection, runs
//! the process loop, and puts the processor where its state says: back to the pool, or into the
//! waiting set. Stands for Tomcat's `AbstractProtocol.ConnectionHandler`.

use std::{rc::Rc, time::Duration};

use ringcat_engine::{
    backend::Io,
    canary::{self, Canary},
    connection_handler::{ConnectionHandler, SocketEvent, SocketState},
    core_context::{CoreContext, CoreMessage, CoreSeat},
    core_counters::Counter,
    current::ExchangeName,
    inbox::Inbox,
    key::ConnKey,
    observe::{Observation, observe},
    sync::{Arc, thread},
    timer_wheel::TICK,
};

use crate::{
    adapter::{Adapter, Returned},
    async_cell::{AsyncCell, Doorbell},
    async_state_machine::Flag,
    exchange::Exchange,
    exchange_key::ExchangeKey,
    exchange_table::ExchangeTable,
    http11::{
        head::Head,
        hook::Http11Hook,
        options::Http11Options,
        processor::{Cx, Http11Processor, Turn},
    },
    message::{InboxDoorbell, Message},
    response::BUFFER_BYTES,
};

/// How long after it was parked an exchange's client is looked for.
const PEER_CHECK_DELAY: Duration = Duration::from_millis(250);

/// Recycled processors that keep their memory.
const POOL_COUNT_MAX: usize = 64;

/// Handles a core's connections with HTTP/1.1.
pub struct ProtocolHandler<A: Adapter> {
    table: ExchangeTable<Box<Http11Processor<A>>>,
    #[expect(clippy::vec_box, reason = "a processor moves between pool and table by its box")]
    pool: Vec<Box<Http11Processor<A>>>,
    shared: Shared<A>,
}

/// What processors share on their core: the way up, and storage that is lent for a turn.
pub(crate) struct Shared<A: Adapter> {
    pub(crate) adapter: A,
    pub(crate) hook: Rc<Http11Hook<A::Operation>>,
    pub(crate) options: Http11Options,
    pub(crate) inbox: Arc<Inbox<CoreMessage<Message<A::Note>>>>,
    pub(crate) doorbell: std::sync::Arc<InboxDoorbell<A::Note>>,
    pub(crate) counters: Arc<RequestCounters>,
    pub(crate) buffer: Vec<u8>,
    pub(crate) body_piece: Vec<u8>,
    pub(crate) unclosed: Vec<Arc<AsyncCell<A::Operation>>>,
    pub(crate) turn_requests: usize,
    /// Requests whose head is complete and that are not over.
    pub(crate) requests_under_way: usize,
    head: Option<Box<Head>>,
}

/// What a core counts of its requests. One writer, any reader.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct RequestCounters {
    /// Requests that reached the adapter.
    pub requests: Counter,
    /// Requests that the protocol refused.
    pub refused: Counter,
    /// Responses by class: 1xx to 5xx.
    pub statuses: [Counter; 5],
    /// Requests whose response is not whole: the client left, or the application failed after
    /// the commit.
    pub aborts: Counter,
    /// Times that an exchange was put into the waiting set: at the start of a round, and again
    /// after each event that a parked exchange was taken out for.
    pub parked: Counter,
    /// Asynchronous rounds that timed out.
    pub timeouts: Counter,
    /// Polls of futures that run requests, the first ones apart.
    pub polls: Counter,
}

impl RequestCounters {
    pub(crate) fn count_status(&self, status: u16) {
        if let Some(class) = self.statuses.get(usize::from(status / 100).wrapping_sub(1)) {
            class.add(1);
        }
    }

    /// Requests that were answered, refused ones included.
    pub fn answered(&self) -> u64 {
        self.statuses.iter().map(Counter::get).sum()
    }
}

impl<A: Adapter> ProtocolHandler<A> {
    /// A handler for the core of `seat`.
    pub fn new(
        seat: &CoreSeat<Message<A::Note>>,
        io: Rc<dyn Io>,
        options: Http11Options,
        counters: Arc<RequestCounters>,
        adapter: A,
    ) -> Self {
        let doorbell = std::sync::Arc::new(InboxDoorbell::new(seat.id, Arc::clone(&seat.inbox)));
        let door = std::sync::Arc::clone(&doorbell) as std::sync::Arc<dyn Doorbell>;
        let shared = Shared {
            adapter,
            hook: Rc::new(Http11Hook::new(seat.id, io, door, options.cell)),
            options,
            inbox: Arc::clone(&seat.inbox),
            doorbell,
            counters,
            buffer: Vec::with_capacity(BUFFER_BYTES as usize),
            body_piece: Vec::new(),
            unclosed: Vec::new(),
            turn_requests: 0,
            requests_under_way: 0,
            head: None,
        };
        Self { table: ExchangeTable::default(), pool: Vec::new(), shared }
    }

    /// Exchanges under way, parked ones included.
    pub fn exchange_count(&self) -> usize {
        self.table.len()
    }

    /// Requests whose head is complete and that are not over.
    pub fn requests_under_way(&self) -> usize {
        self.shared.requests_under_way
    }

    /// Recycled processors that wait for a connection.
    pub fn pooled_count(&self) -> usize {
        self.pool.len()
    }

    /// Runs the process loop of an exchange whose processor was detached.
    fn process_detached(
        &mut self,
        cx: &mut Cx<A>,
        (conn, key): (ConnKey, ExchangeKey),
        mut processor: Box<Http11Processor<A>>,
        event: SocketEvent,
    ) -> SocketState {
        self.table.unpark(cx, key);
        observe(&Observation::Unparked { exchange: name_of(cx, key) });
        self.shared.turn_requests = 0;
        let state = processor
            .process(&mut Turn { shared: &mut self.shared, cx: &mut *cx, conn, key }, event);
        self.put_away(cx, (conn, key), processor, state);
        state
    }

    /// Puts a processor where its state says.
    fn put_away(
        &mut self,
        cx: &mut Cx<A>,
        (conn, key): (ConnKey, ExchangeKey),
        processor: Box<Http11Processor<A>>,
        state: SocketState,
    ) {
        match state {
            SocketState::Open | SocketState::Closed => self.release(cx, (conn, key), processor),
            SocketState::Long if processor.is_async() => {
                let check = processor.is_peer_check_due().then(|| cx.now() + PEER_CHECK_DELAY);
                let round_deadline = processor.async_deadline();
                let deadline = match (round_deadline, check) {
                    (Some(deadline), Some(check)) => Some(deadline.min(check)),
                    (deadline, check) => deadline.or(check),
                };
                let exchange = name_of(cx, key);
                observe(&Observation::Parked { exchange, deadline: round_deadline });
                self.table.attach(key, processor);
                self.table.park(cx, key, deadline);
                self.shared.counters.parked.add(1);
            }
            SocketState::Long | SocketState::Suspended => self.table.attach(key, processor),
            SocketState::AsyncEnd => panic!("AsyncEnd left the process loop"),
        }
    }

    /// The exchange is over: its key dies, its processor is recycled.
    fn release(
        &mut self,
        cx: &mut Cx<A>,
        (conn, key): (ConnKey, ExchangeKey),
        mut processor: Box<Http11Processor<A>>,
    ) {
        processor.recycle(&mut self.shared);
        self.table.close(cx, key);
        observe(&Observation::Ended { exchange: name_of(cx, key) });
        if let Some(socket) = cx.socket_mut(conn) {
            socket.attachment = None;
            socket.write_interest = false;
        }
        if self.pool.len() < POOL_COUNT_MAX {
            self.pool.push(processor);
        }
    }

    /// The processor of a connection: the attached one, else a recycled one, else a new one.
    fn processor_of(
        &mut self,
        cx: &mut Cx<A>,
        conn: ConnKey,
        event: SocketEvent,
    ) -> Option<(ExchangeKey, Box<Http11Processor<A>>)> {
        let socket = cx.socket_mut(conn)?;
        if let Some(attachment) = socket.attachment {
            let key = ExchangeKey::from_u64(attachment);
            let processor = self.table.detach(key)?;
            return Some((key, processor));
        }
        if event != SocketEvent::OpenRead {
            return None;
        }
        let (peer, listener) = (socket.peer(), socket.listener());
        let processor = match self.pool.pop() {
            Some(mut processor) => {
                processor.attach_to(peer, listener);
                processor
            }
            None => Box::new(Http11Processor::new(peer, listener)),
        };
        let key = self.table.open(conn, processor);
        socket.attachment = Some(key.to_u64());
        let processor = self.table.detach(key)?;
        Some((key, processor))
    }

    /// Runs an exchange for a message or timer, and settles its connection.
    fn process_exchange(&mut self, cx: &mut Cx<A>, key: ExchangeKey, event: SocketEvent) {
        let Some(conn) = self.table.connection(key) else { return };
        let Some(processor) = self.table.detach(key) else { return };
        let state = self.process_detached(cx, (conn, key), processor, event);
        cx.settle(conn, state);
    }

    fn resume(&mut self, cx: &mut Cx<A>, key: ExchangeKey, returned: Returned<A::Note>) {
        let Some(conn) = self.table.connection(key) else { return };
        let Some(mut processor) = self.table.detach(key) else { return };
        processor.take_back(returned);
        let state = self.process_detached(cx, (conn, key), processor, SocketEvent::OpenRead);
        cx.settle(conn, state);
    }

    /// Closes the cells that a caller held when their exchange ended.
    fn close_the_unclosed(&mut self) {
        let Shared { unclosed, adapter, .. } = &mut self.shared;
        unclosed.retain(|cell| match cell.close() {
            Some(left) => {
                adapter.discard(left);
                false
            }
            None => true,
        });
    }
}

/// The core stops: threads that wait for one of its exchanges go on, and later calls are refused.
impl<A: Adapter> Drop for ProtocolHandler<A> {
    fn drop(&mut self) {
        let cells = self.table.processors().filter_map(|processor| processor.cell());
        for cell in cells.chain(&self.shared.unclosed) {
            // No turn is left that could try again, and a caller is inside for a moment only.
            while cell.close().is_none() {
                thread::yield_now();
            }
        }
    }
}

impl<A: Adapter> ConnectionHandler for ProtocolHandler<A> {
    type Message = Message<A::Note>;

    fn process(&mut self, cx: &mut Cx<A>, conn: ConnKey, event: SocketEvent) -> SocketState {
        match self.processor_of(cx, conn, event) {
            Some((key, processor)) => self.process_detached(cx, (conn, key), processor, event),
            None => SocketState::Closed,
        }
    }

    fn on_message(&mut self, cx: &mut Cx<A>, message: Self::Message) {
        if !self.shared.unclosed.is_empty() {
            self.close_the_unclosed();
        }
        match message {
            Message::Look(key) => self.process_exchange(cx, key, SocketEvent::OpenRead),
            Message::Settle(key) => {
                if let Some(processor) = self.table.processor_mut(key) {
                    processor.may_settle();
                }
                self.process_exchange(cx, key, SocketEvent::OpenRead);
            }
            Message::TimeOutGroup(group) => {
                self.time_out(cx, |own| own == Some(group));
            }
            Message::GoOn(key) => {
                if let Some(processor) = self.table.processor_mut(key) {
                    processor.may_go_on();
                }
                self.process_exchange(cx, key, SocketEvent::OpenRead);
            }
            Message::Resume(key, returned) => self.resume(cx, key, returned),
        }
    }

    fn on_exchange_deadline(&mut self, cx: &mut Cx<A>, exchange: u64) {
        let key = ExchangeKey::from_u64(exchange);
        if !self.table.timer_fired(key) {
            return;
        }
        let deadline =
            self.table.processor_mut(key).and_then(|processor| processor.async_deadline());
        let early = if canary::has(Canary::TimerEarly) { TICK } else { Duration::ZERO };
        if let Some(deadline) = deadline.filter(|deadline| *deadline <= cx.now() + early) {
            observe(&Observation::TimedOut { exchange: name_of(cx, key), deadline, now: cx.now() });
            self.shared.counters.timeouts.add(1);
            self.process_exchange(cx, key, SocketEvent::Timeout);
            return;
        }
        if let Some(processor) = self.table.processor_mut(key) {
            processor.peer_checked();
        }
        let is_lost = self.table.connection(key).is_some_and(|conn| cx.fail_if_reset(conn));
        let event = if is_lost { SocketEvent::Error } else { SocketEvent::OpenRead };
        // Without an error it parks anew, with the deadline that counts now.
        self.process_exchange(cx, key, event);
    }

    fn on_sent(&mut self, cx: &mut Cx<A>, conn: ConnKey) {
        let Some(socket) = cx.socket(conn) else { return };
        let queued_bytes = socket.out.len_bytes();
        if let Some(attachment) = socket.attachment
            && let Some(processor) = self.table.processor_mut(ExchangeKey::from_u64(attachment))
        {
            processor.on_sent(queued_bytes);
        }
    }

    fn on_peer_closed(&mut self, cx: &mut Cx<A>, conn: ConnKey) {
        let Some(attachment) = cx.socket(conn).and_then(|socket| socket.attachment) else {
            return;
        };
        let key = ExchangeKey::from_u64(attachment);
        let Some(processor) = self.table.processor_mut(key) else { return };
        let Some(cell) = processor.cell() else { return };
        let before = cell.set_flag(Flag::PeerClosed);
        if processor.is_async() && before.has(Flag::EndsOnPeerClose) {
            self.process_exchange(cx, key, SocketEvent::OpenRead);
        }
    }

    fn on_closed(&mut self, cx: &mut Cx<A>, attachment: u64) {
        let key = ExchangeKey::from_u64(attachment);
        if let Some(mut processor) = self.table.detach(key) {
            processor.abandon(&mut self.shared, name_of(cx, key));
        }
        self.table.close(cx, key);
        observe(&Observation::Ended { exchange: name_of(cx, key) });
    }

    fn on_drain_limit(&mut self, cx: &mut Cx<A>) {
        self.time_out(cx, |_| true);
    }
}

impl<A: Adapter> ProtocolHandler<A> {
    /// Parked exchanges time out through their listeners.
    fn time_out(&mut self, cx: &mut Cx<A>, is_concerned: impl Fn(Option<u16>) -> bool) {
        for key in self.table.parked().to_vec() {
            let Some(processor) = self.table.processor_mut(key) else { continue };
            if is_concerned(processor.group(&self.shared.adapter)) {
                self.shared.counters.timeouts.add(1);
                self.process_exchange(cx, key, SocketEvent::Timeout);
            }
        }
    }
}

/// The name of one of the core's exchanges in the whole process.
fn name_of<M: Send>(cx: &CoreContext<M>, key: ExchangeKey) -> ExchangeName {
    ExchangeName { core: cx.id(), key: key.to_u64() }
}

impl<A: Adapter> Shared<A> {
    /// Lends an exchange the storage of the turn: a head to parse into.
    pub(crate) fn lend_storage(&mut self, exchange: &mut Exchange<A::Note>) {
        exchange.request.head.lend(self.head.take());
        exchange.response.lend_buffer(&mut self.buffer);
    }

    /// Takes the storage back from an exchange that is over.
    pub(crate) fn take_storage(&mut self, exchange: &mut Exchange<A::Note>) {
        self.put_head(exchange.request.head.give_back(false));
        self.put_buffer(exchange.response.take_buffer());
    }

    pub(crate) fn put_head(&mut self, head: Option<Box<Head>>) {
        let Some(mut head) = head else { return };
        let own_bytes = self.head.as_ref().map_or(0, |own| own.memory_bytes());
        if head.memory_bytes() > own_bytes {
            head.clear();
            self.head = Some(head);
        }
    }

    pub(crate) fn put_buffer(&mut self, buffer: Vec<u8>) {
        if buffer.capacity() > self.buffer.capacity() {
            self.buffer = buffer;
        }
    }
}
