//! Runs HTTP/1.1 on one connection: head, body, the call into the adapter, the rest of the body,
//! and the next request. Attached to a socket while in use and recycled otherwise. Bytes in and
//! bytes out; it owns no socket. Stands for Tomcat's `Http11Processor` and
//! `AbstractProcessor`.

use std::{net::SocketAddr, rc::Rc, time::Duration};

use ringcat_engine::{
    backend::Errno,
    connection_handler::{SocketEvent, SocketState},
    core_context::CoreContext,
    current::{Current, ExchangeName},
    key::{ConnKey, ListenerId},
    socket::{Failure, ReadDeadline},
    sync::Arc,
    timestamp::Timestamp,
};

use crate::{
    action_code::{ActionCode, ActionHook, Hook},
    adapter::{Adapter, Call, Delegation, Plan, ResumeHandle, Returned, Serviced},
    async_cell::{AsyncCell, Operation, Took},
    async_state_machine::{Event, Flag, Outcome, transition},
    exchange::Exchange,
    exchange_key::ExchangeKey,
    http11::{
        body_decoder::BodyDecoder,
        framing::{BodyLength, framing},
        head::{HeadParser, HeadProgress},
        hook::{CallState, Http11Hook, Purpose},
        response_encoder::ResponseEncoder,
        target::parse_target,
    },
    message::Message,
    protocol_error::ProtocolError,
    protocol_handler::Shared,
    request::Request,
    response::Response,
};

/// The connection's core, as a processor sees it.
pub(crate) type Cx<A> = CoreContext<Message<<A as Adapter>::Note>>;

/// One HTTP/1.1 exchange and what carries it.
pub(crate) struct Http11Processor<A: Adapter> {
    exchange: Option<Exchange<A::Note>>,
    delegated: Option<Box<Response>>,
    /// What a worker gave back and the core did not go on with yet.
    returned: Option<Returned<A::Note>>,
    deferred: Vec<A::Operation>,
    cell: Option<Arc<AsyncCell<A::Operation>>>,
    parser: HeadParser,
    decoder: BodyDecoder,
    encoder: ResponseEncoder,
    stage: Stage,
    has_empty_lines: bool,
    /// Whether `on_complete` ran.
    is_completed: bool,
    /// Whether a callback ended while a caller was inside the cell.
    is_callback_unsettled: bool,
    /// An event that came while a caller was inside the cell.
    event_put_off: Option<SocketEvent>,
    is_ack_due: bool,
    is_error_due: bool,
    is_read_due: bool,
    credit_bytes: usize,
    swallowed_bytes: u64,
    /// Decoded bytes on their way to a worker.
    piece: Vec<u8>,
    is_inbound_ended: bool,
}

/// Where an exchange is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Its head is being received.
    Head,
    /// Its body is being collected, up to so many bytes.
    Collecting { body_bytes_max: u64 },
    /// It was called, and is asynchronous, or is about to end.
    Called,
    /// A worker thread has it.
    Delegated,
    /// It is over; the rest of its body is read and dropped.
    Swallowing,
}

impl<A: Adapter> Http11Processor<A> {
    pub(crate) fn new(peer: SocketAddr, listener: ListenerId) -> Self {
        let exchange = Exchange {
            request: Box::new(Request::new(peer, listener)),
            response: Box::new(Response::default()),
            note: Box::default(),
        };
        Self {
            exchange: Some(exchange),
            delegated: None,
            returned: None,
            deferred: Vec::new(),
            cell: None,
            parser: HeadParser::default(),
            decoder: BodyDecoder::None,
            encoder: ResponseEncoder::default(),
            stage: Stage::Head,
            has_empty_lines: false,
            is_completed: false,
            is_callback_unsettled: false,
            event_put_off: None,
            is_ack_due: false,
            is_error_due: false,
            is_read_due: false,
            credit_bytes: 0,
            swallowed_bytes: 0,
            piece: Vec::new(),
            is_inbound_ended: false,
        }
    }

    /// Takes a recycled processor into use on another connection.
    pub(crate) fn attach_to(&mut self, peer: SocketAddr, listener: ListenerId) {
        let request = &mut self.exchange_mut().request;
        request.peer = peer;
        request.listener = listener;
    }

    /// The process loop of one event (Tomcat's `AbstractProcessorLight.process`).
    pub(crate) fn process(
        &mut self,
        shared: &mut Shared<A>,
        cx: &mut Cx<A>,
        at: At,
        event: SocketEvent,
    ) -> SocketState {
        self.lend_buffer(shared);
        let unsettled = self.settle_callback(shared, cx, at, event);
        let mut event = event;
        let state = loop {
            if let Some(state) = unsettled {
                break state;
            }
            let state = if std::mem::take(&mut self.is_error_due) {
                self.dispatch(shared, cx, at, SocketEvent::Error)
            } else if std::mem::take(&mut self.is_read_due) {
                self.dispatch(shared, cx, at, SocketEvent::OpenRead)
            } else if self.stage == Stage::Called {
                // Asynchronous, or its rounds are over and the response is to be finished.
                self.dispatch_event(shared, cx, at, event)
            } else {
                self.process_plain(shared, cx, at, event)
            };
            let state = match state {
                SocketState::Open if !self.is_input_over(cx, at) => self.service(shared, cx, at),
                state => state,
            };
            if state == SocketState::Closed {
                break state;
            }
            let state =
                if self.is_async() { self.async_post_process(shared, cx, at) } else { state };
            if state == SocketState::AsyncEnd {
                // The event has had its effect; the second round only finishes the response.
                event = SocketEvent::OpenRead;
                self.event_put_off = None;
            }
            let is_over = self.is_callback_unsettled
                || state != SocketState::AsyncEnd && !self.is_error_due && !self.is_read_due;
            if is_over {
                break state;
            }
        };
        if matches!(state, SocketState::Long | SocketState::Suspended) {
            self.leave_turn(shared, cx, at);
        }
        state
    }

    /// Leaves the callback that ended while a caller was inside, before anything else happens.
    /// `Some`: that ends this event too; if a caller still is inside, it comes again.
    fn settle_callback(
        &mut self,
        shared: &mut Shared<A>,
        cx: &mut Cx<A>,
        at: At,
        event: SocketEvent,
    ) -> Option<SocketState> {
        if !std::mem::take(&mut self.is_callback_unsettled) {
            return None;
        }
        let state = self.async_post_process(shared, cx, at);
        if self.is_callback_unsettled || self.is_error_due || self.is_read_due {
            self.put_off(event);
        }
        (self.is_callback_unsettled || state == SocketState::Closed).then_some(state)
    }

    /// Remembers an event that met a caller, for the look that was posted.
    fn put_off(&mut self, event: SocketEvent) {
        self.event_put_off = Some(self.with_event_put_off(event));
    }

    /// The more urgent one of an event and the one that was put off.
    fn with_event_put_off(&self, event: SocketEvent) -> SocketEvent {
        match self.event_put_off {
            Some(SocketEvent::Error) => SocketEvent::Error,
            Some(SocketEvent::Timeout) if event != SocketEvent::Error => SocketEvent::Timeout,
            Some(_) | None => event,
        }
    }

    /// Whether the exchange is in asynchronous mode.
    pub(crate) fn is_async(&self) -> bool {
        self.stage != Stage::Delegated
            && self.cell.as_ref().is_some_and(|cell| cell.word().state().is_async())
    }

    /// When the round of a parked exchange times out. One that waits for a caller to leave looks
    /// again when that is done.
    pub(crate) fn async_deadline(&self) -> Option<Timestamp> {
        let cell = self.cell.as_ref().filter(|_| self.event_put_off.is_none())?;
        let millis = u64::try_from(cell.timeout_millis()).ok().filter(|millis| *millis > 0)?;
        Some(Timestamp::from_nanos(cell.start_nanos()) + Duration::from_millis(millis))
    }

    /// A worker thread gave the exchange back; the next event goes on with it.
    pub(crate) fn take_back(&mut self, returned: Returned<A::Note>) {
        assert!(self.stage == Stage::Delegated, "given back without having been delegated");
        self.returned = Some(returned);
    }

    /// The core has the exchange again, and applied all that the worker did.
    fn resume(
        &mut self,
        shared: &mut Shared<A>,
        cx: &mut Cx<A>,
        at: At,
        returned: Returned<A::Note>,
    ) -> SocketState {
        let Returned { request, note } = returned;
        let response = self.delegated.take().expect("the response stayed while delegated");
        self.exchange = Some(Exchange { request, response, note });
        self.stage = Stage::Called;
        self.take_back_inbound();
        self.refresh_failure(cx, at);
        self.apply_deferred(shared, cx, at);
        self.with_call(shared, cx, at, |adapter, call| (adapter.resume(call), ()));
        self.after_call(shared, cx, at)
    }

    /// Content that the worker left unread is the exchange's again.
    fn take_back_inbound(&mut self) {
        let Some(cell) = self.cell.clone() else { return };
        let rest = std::mem::take(&mut self.piece);
        let is_done = self.decoder.is_done();
        let body = &mut self.exchange_mut().request.body;
        let mut piece = [0; 4096];
        while let Ok(count @ 1..) = cell.try_read(&mut piece) {
            body.sink().extend_from_slice(&piece[..count]);
        }
        body.sink().extend_from_slice(&rest);
        if is_done {
            body.finish();
        }
    }

    /// Bytes left the out-queue: credit goes back to those who wait for it.
    pub(crate) fn on_sent(&mut self, queued_bytes: usize) {
        let buffered = match (&self.exchange, &self.delegated) {
            (Some(exchange), _) => exchange.response.buffer.len(),
            (None, Some(response)) => response.buffer.len(),
            (None, None) => 0,
        };
        let held_bytes = self.credit_bytes.min(buffered + queued_bytes);
        if let Some(cell) = &self.cell
            && held_bytes < self.credit_bytes
        {
            cell.release_credit(self.credit_bytes - held_bytes);
        }
        self.credit_bytes = held_bytes;
    }

    /// Makes the processor ready for the next request, every field of it.
    pub(crate) fn recycle(&mut self, shared: &mut Shared<A>) {
        let cell = self.close_cell(shared);
        let Self {
            exchange,
            delegated,
            returned,
            deferred,
            cell: _,
            parser,
            decoder,
            encoder,
            stage,
            has_empty_lines,
            is_completed,
            is_callback_unsettled,
            event_put_off,
            is_ack_due,
            is_error_due,
            is_read_due,
            credit_bytes,
            swallowed_bytes,
            piece,
            is_inbound_ended,
        } = self;
        let exchange = exchange.as_mut().expect("an exchange is recycled by its owner");
        exchange.request.recycle();
        shared.take_storage(exchange);
        exchange.response.recycle();
        shared.adapter.recycle(&mut exchange.note);
        *delegated = None;
        *returned = None;
        deferred.clear();
        *parser = HeadParser::default();
        *decoder = BodyDecoder::None;
        *encoder = ResponseEncoder::default();
        *stage = Stage::Head;
        *has_empty_lines = false;
        *is_completed = false;
        *is_callback_unsettled = false;
        *event_put_off = None;
        *is_ack_due = false;
        *is_error_due = false;
        *is_read_due = false;
        *credit_bytes = 0;
        *swallowed_bytes = 0;
        *piece = Vec::new();
        *is_inbound_ended = false;
        // The note has let go of its handles by now.
        if let Some(cell) = cell {
            shared.hook.keep_cell(cell);
        }
    }

    /// The exchange's cell, if it has one.
    pub(crate) fn cell(&self) -> Option<&Arc<AsyncCell<A::Operation>>> {
        self.cell.as_ref()
    }

    /// The server stops under an exchange: what other threads still hold becomes illegal.
    pub(crate) fn abandon(&mut self, shared: &mut Shared<A>) {
        drop(self.close_cell(shared));
    }

    fn exchange_mut(&mut self) -> &mut Exchange<A::Note> {
        self.exchange.as_mut().expect("the core owns the exchange here")
    }

    /// An event of an exchange that is not asynchronous.
    fn process_plain(
        &mut self,
        shared: &mut Shared<A>,
        cx: &mut Cx<A>,
        at: At,
        event: SocketEvent,
    ) -> SocketState {
        match (self.stage, event) {
            (Stage::Delegated, SocketEvent::Error) => self.delegate_failed(cx, at),
            (Stage::Delegated, _) => self.service_delegated(shared, cx, at),
            (_, SocketEvent::Disconnect | SocketEvent::Stop) => SocketState::Closed,
            (Stage::Head | Stage::Collecting { .. }, SocketEvent::Error) => {
                self.input_failed(shared, cx, at)
            }
            (_, SocketEvent::Error) => SocketState::Closed,
            (_, SocketEvent::OpenRead) | (Stage::Head, SocketEvent::OpenWrite) => {
                self.service(shared, cx, at)
            }
            // A wake or timer that came too late for its round changes nothing.
            (_, SocketEvent::OpenWrite | SocketEvent::Timeout) => SocketState::Long,
        }
    }

    /// Receives and runs requests until one waits for something.
    fn service(&mut self, shared: &mut Shared<A>, cx: &mut Cx<A>, at: At) -> SocketState {
        loop {
            let state = match self.stage {
                Stage::Head => self.read_head(shared, cx, at),
                Stage::Collecting { body_bytes_max } => {
                    self.collect_body(shared, cx, at, body_bytes_max)
                }
                Stage::Swallowing => self.swallow(shared, cx, at),
                Stage::Called | Stage::Delegated => return SocketState::Long,
            };
            match state {
                // The exchange moved on to its next stage.
                None => {}
                Some(SocketState::Open) if !self.is_input_over(cx, at) => {}
                Some(state) => return state,
            }
        }
    }

    /// Whether nothing is left to parse.
    fn is_input_over(&self, cx: &Cx<A>, at: At) -> bool {
        // Empty lines wait in the input for the request line behind them.
        self.has_empty_lines
            || cx.socket(at.conn).is_none_or(|socket| socket.input.is_empty() || !socket.is_open())
    }

    /// Whether the next pipelined request has to wait: for the client to read its answers, or for
    /// others on this core to have their turn.
    fn must_yield(&self, shared: &mut Shared<A>, cx: &mut Cx<A>, at: At) -> bool {
        let Some(socket) = cx.socket_mut(at.conn) else { return false };
        socket.write_interest = socket.out.len_bytes() > OUT_HIGH_WATER_BYTES;
        if socket.write_interest {
            cx.set_read_interest(at.conn, false);
            return true;
        }
        if shared.turn_requests >= TURN_REQUESTS_MAX {
            cx.post(Message::Look(at.key));
            return true;
        }
        false
    }

    fn read_head(&mut self, shared: &mut Shared<A>, cx: &mut Cx<A>, at: At) -> Option<SocketState> {
        if self.must_yield(shared, cx, at) {
            return Some(SocketState::Long);
        }
        let now = cx.now();
        let Some(socket) = cx.socket_mut(at.conn) else { return Some(SocketState::Closed) };
        let exchange = self.exchange.as_mut().expect("the core owns an exchange without head");
        // A head that began in an earlier turn goes on in its own storage.
        if self.parser.is_fresh() {
            shared.lend_storage(exchange);
        }
        let head = exchange.request.head.lent_mut();
        let input = socket.input.bytes();
        let progress = self.parser.parse(input, head, &shared.options.head);
        match progress {
            Ok(HeadProgress::Incomplete) if socket.is_eof() => Some(SocketState::Closed),
            Ok(HeadProgress::Incomplete) if !self.parser.has_started() => {
                self.has_empty_lines = !input.is_empty();
                Some(SocketState::Open)
            }
            Ok(HeadProgress::Incomplete) => {
                // Empty lines before a request do not start its clock.
                let has_started = self.parser.has_started();
                if has_started && exchange.request.started == Timestamp::ZERO {
                    exchange.request.started = now;
                    cx.set_read_deadline(at.conn, Some(ReadDeadline::Head));
                }
                cx.set_read_interest(at.conn, true);
                Some(SocketState::Long)
            }
            Ok(HeadProgress::Complete { consumed }) => {
                socket.input.consume(consumed);
                socket.request_count += 1;
                shared.turn_requests += 1;
                if exchange.request.started == Timestamp::ZERO {
                    exchange.request.started = now;
                }
                self.begin(shared, cx, at)
            }
            Err(error) => {
                exchange.request.started = now;
                Some(self.refuse(shared, cx, at, error))
            }
        }
    }

    /// The head is complete: decides how the message is framed and what happens with it.
    fn begin(&mut self, shared: &mut Shared<A>, cx: &mut Cx<A>, at: At) -> Option<SocketState> {
        let exchange = self.exchange.as_mut().expect("the core owns an exchange that begins");
        let request = &mut exchange.request;
        let head = request.head.get();
        let (version, is_head) = (head.version(), request.is_head());
        let parsed = parse_target(head.method(), head.target())
            .and_then(|target| framing(head, &target).map(|framing| (target, framing)));
        let (target, framing) = match parsed {
            Ok(parsed) => parsed,
            Err(error) => {
                self.encoder = ResponseEncoder::new(version, is_head, false);
                return Some(self.refuse(shared, cx, at, error));
            }
        };
        self.encoder = ResponseEncoder::new(version, is_head, framing.keep_alive);
        self.decoder = BodyDecoder::new(framing.body);
        self.is_ack_due = framing.expects_continue && framing.body != BodyLength::None;
        request.target = target;
        request.framing = framing;
        if self.decoder.is_done() {
            request.body.finish();
        }
        let plan = self.with_call(shared, cx, at, |adapter, call| adapter.post_parse(call));
        self.follow(plan, shared, cx, at)
    }

    fn follow(
        &mut self,
        plan: Plan,
        shared: &mut Shared<A>,
        cx: &mut Cx<A>,
        at: At,
    ) -> Option<SocketState> {
        match plan {
            Plan::WithoutBody => Some(self.run(shared, cx, at)),
            Plan::WhenBodyComplete { .. } if self.decoder.is_done() => {
                Some(self.run(shared, cx, at))
            }
            Plan::WhenBodyComplete { body_bytes_max } => {
                let length = self.exchange_mut().request.content_length();
                if length.is_some_and(|length| length > body_bytes_max) {
                    return Some(self.refuse(shared, cx, at, BODY_TOO_LARGE));
                }
                self.acknowledge(shared, cx, at);
                self.stage = Stage::Collecting { body_bytes_max };
                None
            }
            Plan::AtEndOfHead => {
                self.acknowledge(shared, cx, at);
                self.receive_body(shared, cx, at);
                Some(self.run(shared, cx, at))
            }
            Plan::Delegate => {
                self.acknowledge(shared, cx, at);
                Some(self.delegate(shared, cx, at))
            }
        }
    }

    fn acknowledge(&mut self, shared: &mut Shared<A>, cx: &mut Cx<A>, at: At) {
        if self.is_ack_due {
            let sent = self.with_hook(shared, cx, at, |hook| hook.action(ActionCode::Ack));
            if let Err(error) = sent {
                tracing::debug!("100-continue could not be sent: {error}");
            }
        }
    }

    fn collect_body(
        &mut self,
        shared: &mut Shared<A>,
        cx: &mut Cx<A>,
        at: At,
        body_bytes_max: u64,
    ) -> Option<SocketState> {
        self.receive_body(shared, cx, at);
        let request = &self.exchange_mut().request;
        let (error, is_finished) = (request.body_error, request.body.is_finished());
        let collected = request.body.len_available() as u64;
        if let Some(error) = error {
            return Some(self.refuse(shared, cx, at, error));
        }
        if collected > body_bytes_max {
            return Some(self.refuse(shared, cx, at, BODY_TOO_LARGE));
        }
        if is_finished {
            return Some(self.run(shared, cx, at));
        }
        if cx.socket(at.conn).is_none_or(ringcat_engine::socket::Socket::is_eof) {
            return Some(self.refuse(shared, cx, at, BODY_CUT));
        }
        self.await_body(cx, at);
        Some(SocketState::Long)
    }

    /// Decodes what was received of the body, up to the high-water mark of whoever reads it.
    fn receive_body(&mut self, shared: &mut Shared<A>, cx: &mut Cx<A>, at: At) {
        let high_water = match self.stage {
            Stage::Collecting { body_bytes_max } => {
                usize::try_from(body_bytes_max.saturating_add(1)).unwrap_or(usize::MAX)
            }
            Stage::Head | Stage::Called | Stage::Delegated | Stage::Swallowing => {
                shared.options.body_high_water_bytes
            }
        };
        let Some(socket) = cx.socket_mut(at.conn) else { return };
        let Some(exchange) = self.exchange.as_mut() else { return };
        let request = &mut exchange.request;
        while !self.decoder.is_done() && request.body_error.is_none() {
            let room = high_water.saturating_sub(request.body.len_available());
            let input = socket.input.bytes();
            if room == 0 || input.is_empty() {
                break;
            }
            match self.decoder.decode(input, request.body.sink(), room) {
                Ok(decoded) => {
                    socket.input.consume(decoded.consumed);
                    if decoded.consumed == 0 && !decoded.done {
                        break;
                    }
                }
                Err(error) => request.body_error = Some(error),
            }
        }
        if self.decoder.is_done() && !request.body.is_finished() {
            request.trailers = self.decoder.take_trailers();
            request.body.finish();
            cx.set_read_deadline(at.conn, None);
        }
    }

    fn await_body(&self, cx: &mut Cx<A>, at: At) {
        cx.set_read_interest(at.conn, true);
        cx.set_read_deadline(at.conn, Some(ReadDeadline::Body));
    }

    /// Calls the adapter on this core.
    fn run(&mut self, shared: &mut Shared<A>, cx: &mut Cx<A>, at: At) -> SocketState {
        self.stage = Stage::Called;
        cx.set_read_deadline(at.conn, None);
        shared.counters.requests.add(1);
        self.with_call(shared, cx, at, |adapter, call| match adapter.service(call) {
            Serviced::Returned(exchange) => (exchange, ()),
            Serviced::Delegated(_) => panic!("service delegated without being asked to"),
        });
        self.after_call(shared, cx, at)
    }

    fn after_call(&mut self, shared: &mut Shared<A>, cx: &mut Cx<A>, at: At) -> SocketState {
        if self.is_async() {
            self.look_for_input(shared, cx, at);
            return SocketState::Long;
        }
        self.end(shared, cx, at)
    }

    /// Gives the exchange to a worker thread.
    fn delegate(&mut self, shared: &mut Shared<A>, cx: &mut Cx<A>, at: At) -> SocketState {
        shared.counters.requests.add(1);
        cx.set_read_deadline(at.conn, None);
        let mut exchange = self.exchange.take().expect("the core owns the exchange here");
        let cell = Arc::clone(self.cell.get_or_insert_with(|| shared.hook.new_cell(at.key)));
        cell.set_head(|| exchange.request.head.share());
        let storage = exchange.request.head.give_back(true);
        shared.put_head(storage);
        let resume = ResumeHandle { key: at.key, inbox: Arc::clone(&shared.inbox) };
        let name = at.name(cx);
        let delegation = Delegation { exchange, cell: Arc::clone(&cell), resume, name };
        // The worker may write before this ends, and its own writes may wait.
        self.enter(shared, cx, at, Purpose::Apply);
        let hook = Rc::clone(&shared.hook) as Rc<dyn ActionHook<A::Operation>>;
        let serviced =
            Current::in_exchange(name, || shared.adapter.delegate(delegation, Hook::Core(hook)));
        self.leave(shared, cx, at);
        match serviced {
            Serviced::Returned(exchange) => {
                self.exchange = Some(exchange);
                self.stage = Stage::Called;
                self.after_call(shared, cx, at)
            }
            Serviced::Delegated(response) => {
                self.delegated = Some(response);
                self.stage = Stage::Delegated;
                self.service_delegated(shared, cx, at)
            }
        }
    }

    /// Moves body bytes to the worker, and the worker's output to the connection.
    fn service_delegated(&mut self, shared: &mut Shared<A>, cx: &mut Cx<A>, at: At) -> SocketState {
        // While a caller is inside, an exchange that came back waits for what lies in the list.
        if self.take_operations_delegated(shared, cx, at)
            && let Some(returned) = self.returned.take()
        {
            return self.resume(shared, cx, at, returned);
        }
        let Some(cell) = self.cell.clone() else { return SocketState::Suspended };
        let Some(socket) = cx.socket_mut(at.conn) else { return SocketState::Suspended };
        let high_water = shared.options.body_high_water_bytes;
        let mut failed = None;
        loop {
            // A reader that is inside the queue right now gets the piece with the next look.
            if !self.piece.is_empty() && cell.push_inbound(&self.piece).is_none() {
                break;
            }
            self.piece.clear();
            let room = high_water.saturating_sub(cell.inbound_len());
            let input = socket.input.bytes();
            if self.decoder.is_done() || room == 0 || input.is_empty() {
                break;
            }
            match self.decoder.decode(input, &mut self.piece, room) {
                Ok(decoded) => socket.input.consume(decoded.consumed),
                Err(_) => {
                    failed = Some(Errno::EBADMSG);
                    break;
                }
            }
        }
        let is_done = self.decoder.is_done() && self.piece.is_empty();
        if is_done && !std::mem::replace(&mut self.is_inbound_ended, true) {
            cell.finish_inbound();
        }
        if !self.decoder.is_done() && socket.is_eof() && socket.input.is_empty() {
            failed = Some(Errno::ECONNRESET);
        }
        if let Some(errno) = failed {
            self.encoder.keep_alive = false;
            if !std::mem::replace(&mut self.is_inbound_ended, true) {
                cell.fail_inbound(errno.0);
            }
        }
        let is_wanted =
            failed.is_none() && !self.decoder.is_done() && cell.inbound_len() < high_water;
        if is_wanted {
            self.await_body(cx, at);
        } else {
            cx.set_read_interest(at.conn, false);
            cx.set_read_deadline(at.conn, None);
        }
        SocketState::Suspended
    }

    /// Applies what the worker asked for; `false` if a caller holds the list right now.
    fn take_operations_delegated(
        &mut self,
        shared: &mut Shared<A>,
        cx: &mut Cx<A>,
        at: At,
    ) -> bool {
        let Some(cell) = self.cell.clone() else { return true };
        let Took::Taken { operations, .. } = cell.take() else { return false };
        if operations.is_empty() {
            return true;
        }
        self.credit_bytes += operations.iter().map(Operation::credit_bytes).sum::<usize>();
        let response = self.delegated.take().expect("the response stayed while delegated");
        let mut deferred = std::mem::take(&mut self.deferred);
        let name = at.name(cx);
        self.enter(shared, cx, at, Purpose::Apply);
        let hook = Rc::clone(&shared.hook) as Rc<dyn ActionHook<A::Operation>>;
        let response = Current::in_exchange(name, || {
            shared.adapter.apply_delegated(response, Hook::Core(hook), operations, &mut deferred)
        });
        self.delegated = Some(response);
        self.deferred = deferred;
        self.leave(shared, cx, at);
        true
    }

    /// The connection failed under a worker: it learns from its next read or write.
    fn delegate_failed(&mut self, cx: &mut Cx<A>, at: At) -> SocketState {
        let failure = cx.socket(at.conn).and_then(|socket| socket.failure());
        if let Some(cell) = &self.cell {
            let is_timeout = matches!(failure, Some(Failure::ReadTimeout(_)));
            let errno = if is_timeout { Errno::ETIMEDOUT } else { Errno::ECONNRESET };
            if !std::mem::replace(&mut self.is_inbound_ended, true) {
                cell.fail_inbound(errno.0);
            }
            if !is_timeout {
                cell.set_flag(Flag::IoError);
            }
        }
        self.encoder.keep_alive = false;
        SocketState::Suspended
    }

    /// The deadline of a head or body passed, or the connection failed before the call.
    fn input_failed(&mut self, shared: &mut Shared<A>, cx: &mut Cx<A>, at: At) -> SocketState {
        match cx.socket(at.conn).and_then(|socket| socket.failure()) {
            Some(Failure::ReadTimeout(_)) => self.refuse(shared, cx, at, REQUEST_TIMEOUT),
            Some(Failure::System(_) | Failure::WriteTimeout | Failure::PeerClosed) | None => {
                shared.counters.aborts.add(1);
                SocketState::Closed
            }
        }
    }

    /// Answers a request that is refused; the connection closes, since where the next message
    /// begins is in doubt.
    fn refuse(
        &mut self,
        shared: &mut Shared<A>,
        cx: &mut Cx<A>,
        at: At,
        error: ProtocolError,
    ) -> SocketState {
        tracing::debug!("core {}: {:?} refused: {error}", cx.id(), at.conn);
        shared.counters.refused.add(1);
        self.stage = Stage::Called;
        self.encoder.keep_alive = false;
        self.with_call(shared, cx, at, |adapter, call| (adapter.refuse(call, error), ()));
        self.log(shared);
        cx.close(at.conn, true);
        SocketState::Closed
    }

    fn log(&mut self, shared: &mut Shared<A>) {
        let exchange = self.exchange.as_mut().expect("the core owns a request that ended");
        shared.counters.count_status(exchange.response.status);
        shared.adapter.log(exchange);
    }

    /// The response is finished, or given up: what becomes of the connection?
    fn end(&mut self, shared: &mut Shared<A>, cx: &mut Cx<A>, at: At) -> SocketState {
        self.log(shared);
        let is_body_done = self.decoder.is_done();
        let is_refused = self.is_ack_due && !is_body_done;
        let is_usable = self.encoder.is_finished()
            && self.encoder.keep_alive
            && !is_refused
            && self.exchange_mut().request.body_error.is_none();
        if !self.encoder.is_finished() {
            shared.counters.aborts.add(1);
        }
        if !is_usable {
            if !is_body_done {
                cx.close(at.conn, true);
            }
            return SocketState::Closed;
        }
        if is_body_done {
            self.recycle(shared);
            return SocketState::Open;
        }
        self.stage = Stage::Swallowing;
        self.swallow(shared, cx, at).unwrap_or(SocketState::Long)
    }

    /// Reads and drops the rest of a body, within bounds.
    fn swallow(&mut self, shared: &mut Shared<A>, cx: &mut Cx<A>, at: At) -> Option<SocketState> {
        let mut dropped = std::mem::take(&mut shared.body_piece);
        let mut is_broken = false;
        let Some(socket) = cx.socket_mut(at.conn) else { return Some(SocketState::Closed) };
        while !self.decoder.is_done() && !is_broken {
            let input = socket.input.bytes();
            if input.is_empty() {
                break;
            }
            match self.decoder.decode(input, &mut dropped, usize::MAX) {
                Ok(decoded) => socket.input.consume(decoded.consumed),
                Err(_) => is_broken = true,
            }
            self.swallowed_bytes += dropped.len() as u64;
            is_broken |= self.swallowed_bytes > shared.options.swallow_bytes_max;
            dropped.clear();
        }
        shared.body_piece = dropped;
        if is_broken || socket.is_eof() && !self.decoder.is_done() {
            cx.close(at.conn, true);
            return Some(SocketState::Closed);
        }
        if self.decoder.is_done() {
            self.recycle(shared);
            return Some(SocketState::Open);
        }
        self.await_body(cx, at);
        Some(SocketState::Long)
    }

    /// An event of an asynchronous exchange, or the second round of one that ended.
    fn dispatch_event(
        &mut self,
        shared: &mut Shared<A>,
        cx: &mut Cx<A>,
        at: At,
        event: SocketEvent,
    ) -> SocketState {
        self.refresh_failure(cx, at);
        self.look_for_input(shared, cx, at);
        if std::mem::take(&mut self.is_error_due) {
            return self.dispatch(shared, cx, at, SocketEvent::Error);
        }
        self.is_read_due = false;
        self.dispatch(shared, cx, at, event)
    }

    /// Body bytes that came for a read listener are an event; so is a body that is broken or cut.
    fn look_for_input(&mut self, shared: &mut Shared<A>, cx: &mut Cx<A>, at: At) {
        if !self.is_async() || !self.exchange_mut().request.has_read_listener {
            return;
        }
        self.receive_body(shared, cx, at);
        let is_eof = cx.socket(at.conn).is_none_or(ringcat_engine::socket::Socket::is_eof);
        let request = &mut self.exchange_mut().request;
        let is_cut = is_eof && !request.body.is_finished() && request.body.len_available() == 0;
        if is_cut && request.body_error.is_none() {
            request.body_error = Some(BODY_CUT);
        }
        let is_readable = request.body.len_available() > 0 || request.body.is_finished();
        let is_owed = request.is_read_owed && is_readable;
        self.is_error_due |= self.exchange_mut().request.body_error.is_some();
        self.is_read_due |= is_owed;
    }

    fn refresh_failure(&mut self, cx: &Cx<A>, at: At) {
        let failure = match cx.socket(at.conn) {
            Some(socket) => socket.failure(),
            None => Some(Failure::System(Errno::ECONNRESET)),
        };
        self.exchange_mut().request.failure = failure;
    }

    fn dispatch(
        &mut self,
        shared: &mut Shared<A>,
        cx: &mut Cx<A>,
        at: At,
        event: SocketEvent,
    ) -> SocketState {
        if !self.take_operations(shared, cx, at) {
            self.put_off(event);
            return SocketState::Long;
        }
        let event = self.with_event_put_off(event);
        self.event_put_off = None;
        let is_usable = self.with_call(shared, cx, at, |adapter, call| {
            let dispatched = adapter.async_dispatch(call, event);
            (dispatched.exchange, dispatched.is_connection_usable)
        });
        if !is_usable {
            self.encoder.keep_alive = false;
        }
        if self.is_async() {
            return SocketState::Long;
        }
        self.end(shared, cx, at)
    }

    /// Applies what other threads asked for; `false` if a caller holds the list right now, so
    /// that this exchange has to wait for the look that was posted.
    fn take_operations(&mut self, shared: &mut Shared<A>, cx: &mut Cx<A>, at: At) -> bool {
        let Some(cell) = self.cell.clone() else { return true };
        match cell.take() {
            Took::Contended => false,
            Took::Taken { operations, .. } => {
                self.apply_deferred(shared, cx, at);
                self.apply(shared, cx, at, operations);
                true
            }
        }
    }

    /// Applies what concerns more than the response and was met inside a call.
    fn apply_deferred(&mut self, shared: &mut Shared<A>, cx: &mut Cx<A>, at: At) {
        let deferred = std::mem::take(&mut self.deferred);
        if !deferred.is_empty() {
            self.with_call_for(Purpose::Apply, shared, cx, at, |adapter, call| {
                (adapter.apply(call, deferred), ())
            });
        }
    }

    fn apply(
        &mut self,
        shared: &mut Shared<A>,
        cx: &mut Cx<A>,
        at: At,
        operations: Vec<A::Operation>,
    ) {
        if operations.is_empty() {
            return;
        }
        self.credit_bytes += operations.iter().map(Operation::credit_bytes).sum::<usize>();
        self.with_call_for(Purpose::Apply, shared, cx, at, |adapter, call| {
            (adapter.apply(call, operations), ())
        });
    }

    /// Leaves a callback: settles what was decided meanwhile (`exchange.md`, the owner's step).
    fn async_post_process(
        &mut self,
        shared: &mut Shared<A>,
        cx: &mut Cx<A>,
        at: At,
    ) -> SocketState {
        loop {
            let Some(cell) = self.cell.clone() else { return SocketState::Long };
            let Took::Taken { word, operations } = cell.take() else {
                self.is_callback_unsettled = true;
                return SocketState::Long;
            };
            if !operations.is_empty() || !self.deferred.is_empty() {
                // What was put off was called before what is in the list now.
                self.apply_deferred(shared, cx, at);
                self.apply(shared, cx, at, operations);
                continue;
            }
            let io_allowed = self.exchange_mut().request.failure.is_none();
            // The out-queue takes every byte in order, so output never holds a state back.
            let event = Event::PostProcess { drained: true, io_allowed };
            let effects = match transition(word, event) {
                Ok((_, effects)) => effects,
                Err(illegal) => {
                    tracing::error!("core {}: {illegal}: the connection closes", cx.id());
                    return SocketState::Closed;
                }
            };
            // Whatever changes the word meanwhile, a flag too, leads here again: not so the listeners.
            if effects.on_complete && !std::mem::replace(&mut self.is_completed, true) {
                self.with_call(shared, cx, at, |adapter, call| (adapter.on_complete(call), ()));
            }
            match cell.advance(word, event) {
                Err(_) => {}
                Ok(effects) => match effects.outcome {
                    Some(Outcome::AsyncEnd) => return SocketState::AsyncEnd,
                    Some(Outcome::ErrorHandling) => {
                        self.is_error_due = true;
                        return SocketState::Long;
                    }
                    Some(Outcome::Long) | None => return SocketState::Long,
                },
            }
        }
    }

    /// What a waiting exchange keeps is exactly as large as its bytes; storage goes back.
    fn leave_turn(&mut self, shared: &mut Shared<A>, cx: &mut Cx<A>, at: At) {
        let is_complete = self.stage != Stage::Head;
        if let Some(exchange) = self.exchange.as_mut() {
            let head = &mut exchange.request.head;
            let storage = if is_complete { head.give_back(true) } else { head.keep_partial() };
            shared.put_head(storage);
            shared.put_buffer(exchange.response.give_back_buffer());
        }
        if self.is_async() {
            let request = &self.exchange_mut().request;
            let wants_body = request.has_read_listener
                && !request.body.is_finished()
                && request.body.len_available() < shared.options.body_high_water_bytes;
            if wants_body {
                self.await_body(cx, at);
            } else {
                cx.set_read_interest(at.conn, false);
                cx.set_read_deadline(at.conn, None);
            }
        }
    }

    fn lend_buffer(&mut self, shared: &mut Shared<A>) {
        if let Some(exchange) = self.exchange.as_mut() {
            exchange.response.lend_buffer(&mut shared.buffer);
        }
    }

    /// Ends the exchange for other threads; the cell comes back if it is closed.
    fn close_cell(&mut self, shared: &mut Shared<A>) -> Option<Arc<AsyncCell<A::Operation>>> {
        let cell = self.cell.take()?;
        match cell.close() {
            Some(left) => {
                shared.adapter.discard(left);
                Some(cell)
            }
            None => {
                // A caller holds the list; the next turn closes it.
                shared.unclosed.push(cell);
                None
            }
        }
    }

    /// Runs a call into the adapter: the connection's output, encoder and cell go to the hook,
    /// and come back.
    fn with_call<R>(
        &mut self,
        shared: &mut Shared<A>,
        cx: &mut Cx<A>,
        at: At,
        f: impl FnOnce(&A, Call<A>) -> (Exchange<A::Note>, R),
    ) -> R {
        self.with_call_for(Purpose::Callback, shared, cx, at, f)
    }

    fn with_call_for<R>(
        &mut self,
        purpose: Purpose,
        shared: &mut Shared<A>,
        cx: &mut Cx<A>,
        at: At,
        f: impl FnOnce(&A, Call<A>) -> (Exchange<A::Note>, R),
    ) -> R {
        let exchange = self.exchange.take().expect("the core owns the exchange here");
        let name = at.name(cx);
        self.enter(shared, cx, at, purpose);
        let hook = Rc::clone(&shared.hook) as Rc<dyn ActionHook<A::Operation>>;
        let call = Call { exchange, hook: Hook::Core(hook), name };
        let (exchange, result) = Current::in_exchange(name, || f(&shared.adapter, call));
        self.exchange = Some(exchange);
        self.leave(shared, cx, at);
        result
    }

    fn with_hook<R>(
        &mut self,
        shared: &mut Shared<A>,
        cx: &mut Cx<A>,
        at: At,
        f: impl FnOnce(&Http11Hook<A::Operation>) -> R,
    ) -> R {
        self.enter(shared, cx, at, Purpose::Apply);
        let result = f(&shared.hook);
        self.leave(shared, cx, at);
        result
    }

    fn enter(&mut self, shared: &mut Shared<A>, cx: &mut Cx<A>, at: At, purpose: Purpose) {
        // The last answer of a drain says so, also where its request came before the drain. One
        // with requests behind it is not the last: they arrived and will be served.
        if cx.is_draining() && !self.encoder.is_committed() && self.is_input_over(cx, at) {
            self.encoder.keep_alive = false;
        }
        cx.offer_tail(at.conn);
        let (out, errno) = match cx.socket_mut(at.conn) {
            Some(socket) => {
                let errno = match socket.failure() {
                    Some(Failure::System(errno)) => Some(errno),
                    Some(Failure::WriteTimeout | Failure::PeerClosed) => Some(Errno::EPIPE),
                    Some(Failure::ReadTimeout(_)) | None => None,
                };
                (std::mem::take(&mut socket.out), errno)
            }
            None => (ringcat_engine::out_queue::OutQueue::default(), Some(Errno::EPIPE)),
        };
        shared.hook.enter(
            cx.now(),
            CallState {
                conn: at.conn,
                key: at.key,
                out,
                encoder: self.encoder,
                cell: self.cell.take(),
                is_ack_due: self.is_ack_due,
                errno,
                purpose,
                credit_bytes: 0,
                deferred: Vec::new(),
            },
        );
    }

    fn leave(&mut self, shared: &mut Shared<A>, cx: &mut Cx<A>, at: At) {
        let call = shared.hook.leave();
        self.encoder = call.encoder;
        self.cell = call.cell;
        self.is_ack_due = call.is_ack_due;
        self.credit_bytes += call.credit_bytes;
        self.deferred.extend(call.deferred);
        let mut queued_bytes = 0;
        if let Some(socket) = cx.socket_mut(at.conn) {
            socket.out = call.out;
            queued_bytes = socket.out.len_bytes();
        }
        // What a flush sent at once, or what has no content, brings no event of its own.
        if self.credit_bytes > 0 {
            self.on_sent(queued_bytes);
        }
    }
}

/// Where a processor works: its connection and its own name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At {
    pub(crate) conn: ConnKey,
    pub(crate) key: ExchangeKey,
}

impl At {
    fn name<M: Send>(self, cx: &CoreContext<M>) -> ExchangeName {
        ExchangeName { core: cx.id(), key: self.key.to_u64() }
    }
}

/// Pipelined requests of one connection that one turn answers; the rest waits for the next turn.
const TURN_REQUESTS_MAX: usize = 32;

/// Output that may wait before the next pipelined request does.
const OUT_HIGH_WATER_BYTES: usize = 256 * 1024;

const BODY_TOO_LARGE: ProtocolError =
    ProtocolError::new(413, "the content is larger than the server takes");
const BODY_CUT: ProtocolError =
    ProtocolError::bad_request("the connection ended inside the content");
const REQUEST_TIMEOUT: ProtocolError =
    ProtocolError::new(408, "the request did not arrive in time");
