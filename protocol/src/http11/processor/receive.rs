//! The receiving half of a processor: heads, bodies, the rest of bodies that nobody read, and what
//! is refused. Stands for Tomcat's `Http11InputBuffer` and `Http11Processor.service`.

use ringcat_engine::{
    connection_handler::SocketState,
    observe::{Observation, observe},
    socket::{Failure, ReadDeadline, Socket},
    timestamp::Timestamp,
};

use super::{
    processor::{Http11Processor, Stage},
    turn::Turn,
};
use crate::{
    action_code::{ActionCode, ActionHook},
    adapter::{Adapter, Plan},
    http11::{
        body_decoder::BodyDecoder,
        framing::{BodyLength, framing},
        head::HeadProgress,
        response_encoder::ResponseEncoder,
        target::parse_target,
    },
    message::Message,
    protocol_error::{BODY_CUT, ProtocolError},
};

impl<A: Adapter> Http11Processor<A> {
    /// Receives and runs requests until one waits for something.
    pub(super) fn service(&mut self, turn: &mut Turn<'_, A>) -> SocketState {
        loop {
            let state = match self.stage {
                Stage::Head => self.read_head(turn),
                Stage::Collecting { body_bytes_max } => self.collect_body(turn, body_bytes_max),
                Stage::Swallowing { .. } => self.swallow(turn),
                Stage::Called | Stage::Delegated | Stage::Pending => return SocketState::Long,
            };
            match state {
                // The exchange moved on to its next stage.
                None => {}
                Some(SocketState::Open) if !self.is_input_over(turn) => {}
                Some(state) => return state,
            }
        }
    }

    /// Whether nothing is left to parse.
    pub(super) fn is_input_over(&self, turn: &Turn<'_, A>) -> bool {
        // Empty lines wait in the input for the request line behind them.
        self.has_empty_lines
            || turn
                .cx
                .socket(turn.conn)
                .is_none_or(|socket| socket.input.is_empty() || !socket.is_open())
    }

    /// Whether the next pipelined request has to wait: for the client to read its answers, or for
    /// others on this core to have their turn.
    pub(super) fn must_yield(&mut self, turn: &mut Turn<'_, A>) -> bool {
        let Some(socket) = turn.cx.socket_mut(turn.conn) else { return false };
        socket.write_interest = socket.out.len_bytes() > OUT_HIGH_WATER_BYTES;
        if socket.write_interest {
            turn.cx.set_read_interest(turn.conn, false);
            return true;
        }
        if self.is_share_used {
            return true;
        }
        if turn.shared.turn_requests >= TURN_REQUESTS_MAX {
            // Until the message comes, what arrives is kept only.
            turn.cx.set_read_interest(turn.conn, false);
            turn.cx.post(Message::GoOn(turn.key));
            self.is_share_used = true;
            return true;
        }
        false
    }

    pub(super) fn read_head(&mut self, turn: &mut Turn<'_, A>) -> Option<SocketState> {
        if self.must_yield(turn) {
            return Some(SocketState::Long);
        }
        let now = turn.cx.now();
        let Some(socket) = turn.cx.socket_mut(turn.conn) else { return Some(SocketState::Closed) };
        let exchange = self.exchange.as_mut().expect("the core owns an exchange without head");
        // A head that began in an earlier turn goes on in its own storage.
        if self.parser.is_fresh() {
            turn.shared.lend_storage(exchange);
        }
        let head = exchange.request.head.lent_mut();
        let input = socket.input.bytes();
        let progress = self.parser.parse(input, head, &turn.shared.options.head);
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
                    turn.cx.set_read_deadline(turn.conn, Some(ReadDeadline::Head));
                }
                turn.cx.set_read_interest(turn.conn, true);
                Some(SocketState::Long)
            }
            Ok(HeadProgress::Complete { consumed }) => {
                socket.input.consume(consumed);
                socket.request_count = socket.request_count.saturating_add(1);
                turn.shared.turn_requests += 1;
                observe(&Observation::Head { exchange: turn.name() });
                if exchange.request.started == Timestamp::ZERO {
                    exchange.request.started = now;
                }
                self.begin(turn)
            }
            Err(error) => {
                exchange.request.started = now;
                Some(self.refuse(turn, error))
            }
        }
    }

    /// The head is complete: decides how the message is framed and what happens with it.
    pub(super) fn begin(&mut self, turn: &mut Turn<'_, A>) -> Option<SocketState> {
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
                return Some(self.refuse(turn, error));
            }
        };
        let requests_max = turn.shared.options.keep_alive_requests_max;
        let requests = turn.cx.socket(turn.conn).map_or(0, |socket| socket.request_count);
        let is_last = requests_max != 0 && requests >= requests_max;
        self.encoder = ResponseEncoder::new(version, is_head, framing.keep_alive && !is_last);
        self.decoder = BodyDecoder::new(framing.body);
        self.is_ack_due = framing.expects_continue && framing.body != BodyLength::None;
        request.target = target;
        request.framing = framing;
        if self.decoder.is_done() {
            request.body.finish();
        }
        if turn.shared.requests_under_way >= turn.shared.options.requests_max {
            return Some(self.refuse(turn, OVERLOADED));
        }
        turn.shared.requests_under_way += 1;
        self.is_under_way = true;
        let plan = self.with_call(turn, |adapter, call| adapter.post_parse(call));
        self.follow(plan, turn)
    }

    pub(super) fn follow(&mut self, plan: Plan, turn: &mut Turn<'_, A>) -> Option<SocketState> {
        match plan {
            Plan::WithoutBody => Some(self.run(turn)),
            Plan::WhenBodyComplete { .. } if self.decoder.is_done() => Some(self.run(turn)),
            Plan::WhenBodyComplete { body_bytes_max } => {
                let length = self.exchange_mut().request.content_length();
                if length.is_some_and(|length| length > body_bytes_max) {
                    return Some(self.refuse(turn, BODY_TOO_LARGE));
                }
                self.acknowledge(turn);
                self.stage = Stage::Collecting { body_bytes_max };
                None
            }
            Plan::AtEndOfHead => {
                self.acknowledge(turn);
                self.receive_body(turn);
                Some(self.run(turn))
            }
            Plan::Delegate => {
                self.acknowledge(turn);
                turn.shared.counters.requests.add(1);
                Some(self.delegate(turn))
            }
        }
    }

    pub(super) fn acknowledge(&mut self, turn: &mut Turn<'_, A>) {
        if self.is_ack_due {
            let sent = self.with_hook(turn, |hook| hook.action(ActionCode::Ack));
            if let Err(error) = sent {
                tracing::debug!("100-continue could not be sent: {error}");
            }
        }
    }

    pub(super) fn collect_body(
        &mut self,
        turn: &mut Turn<'_, A>,
        body_bytes_max: u64,
    ) -> Option<SocketState> {
        self.receive_body(turn);
        let request = &self.exchange_mut().request;
        let (error, is_finished) = (request.body_error(), request.body.is_finished());
        let collected = request.body.len_available() as u64;
        if let Some(error) = error {
            return Some(self.refuse(turn, error));
        }
        if collected > body_bytes_max {
            return Some(self.refuse(turn, BODY_TOO_LARGE));
        }
        if is_finished {
            return Some(self.run(turn));
        }
        if turn.is_eof() {
            return Some(self.refuse(turn, BODY_CUT));
        }
        self.await_body(turn);
        Some(SocketState::Long)
    }

    /// Decodes what was received of the body, up to the high-water mark of whoever reads it.
    pub(super) fn receive_body(&mut self, turn: &mut Turn<'_, A>) {
        let high_water = match self.stage {
            Stage::Collecting { body_bytes_max } => {
                usize::try_from(body_bytes_max.saturating_add(1)).unwrap_or(usize::MAX)
            }
            Stage::Head
            | Stage::Called
            | Stage::Delegated
            | Stage::Pending
            | Stage::Swallowing { .. } => turn.shared.options.body_high_water_bytes,
        };
        let Some(socket) = turn.cx.socket_mut(turn.conn) else { return };
        let Some(exchange) = self.exchange.as_mut() else { return };
        let request = &mut exchange.request;
        let queued = match (&self.cell, request.uses_inbound) {
            (Some(cell), true) => cell.inbound_len(),
            _ => 0,
        };
        let high_water = high_water.saturating_sub(queued);
        while !self.decoder.is_done() && request.body_error().is_none() {
            let room = high_water.saturating_sub(request.body.len_available());
            let input = socket.input.bytes();
            if room == 0 || input.is_empty() {
                break;
            }
            match self.decoder.decode(input, request.body.sink(), room) {
                Ok(decoded) => {
                    self.received_bytes += decoded.consumed as u64;
                    socket.input.consume(decoded.consumed);
                    if decoded.consumed == 0 && !decoded.done {
                        break;
                    }
                }
                Err(error) => request.set_body_error(error),
            }
        }
        if self.decoder.is_done() && !request.body.is_finished() {
            request.set_trailers(self.decoder.take_trailers());
            request.body.finish();
            turn.cx.set_read_deadline(turn.conn, None);
        }
    }

    /// Waits for more of the body. Only its bytes move the deadline, not what others do meanwhile.
    pub(super) fn await_body(&mut self, turn: &mut Turn<'_, A>) {
        turn.cx.set_read_interest(turn.conn, true);
        let awaited = turn.cx.socket(turn.conn).and_then(Socket::awaited);
        let received_bytes = std::mem::take(&mut self.received_bytes);
        if awaited != Some(ReadDeadline::Body) {
            turn.cx.set_read_deadline(turn.conn, Some(ReadDeadline::Body));
        } else if received_bytes > 0 {
            turn.cx.extend_body_deadline(turn.conn, received_bytes);
        }
    }

    /// Reads and drops the rest of a body, within bounds.
    pub(super) fn swallow(&mut self, turn: &mut Turn<'_, A>) -> Option<SocketState> {
        let Stage::Swallowing { mut swallowed_bytes } = self.stage else { return None };
        let mut dropped = std::mem::take(&mut turn.shared.body_piece);
        let mut is_broken = false;
        let Some(socket) = turn.cx.socket_mut(turn.conn) else { return Some(SocketState::Closed) };
        while !self.decoder.is_done() && !is_broken {
            let input = socket.input.bytes();
            if input.is_empty() {
                break;
            }
            match self.decoder.decode(input, &mut dropped, usize::MAX) {
                Ok(decoded) => {
                    self.received_bytes += decoded.consumed as u64;
                    socket.input.consume(decoded.consumed);
                }
                Err(_) => is_broken = true,
            }
            swallowed_bytes += dropped.len() as u64;
            is_broken |= swallowed_bytes > turn.shared.options.swallow_bytes_max;
            dropped.clear();
        }
        turn.shared.body_piece = dropped;
        self.stage = Stage::Swallowing { swallowed_bytes };
        if is_broken || socket.is_eof() && !self.decoder.is_done() {
            turn.cx.close(turn.conn, true);
            return Some(SocketState::Closed);
        }
        if self.decoder.is_done() {
            self.recycle(turn.shared);
            return Some(SocketState::Open);
        }
        self.await_body(turn);
        Some(SocketState::Long)
    }

    /// The deadline of a head or body passed, or the connection failed before the call.
    pub(super) fn input_failed(&mut self, turn: &mut Turn<'_, A>) -> SocketState {
        match turn.cx.socket(turn.conn).and_then(|socket| socket.failure()) {
            Some(Failure::ReadTimeout(_)) => self.refuse(turn, REQUEST_TIMEOUT),
            Some(Failure::System(_) | Failure::WriteTimeout) | None => {
                turn.shared.counters.aborts.add(1);
                SocketState::Closed
            }
        }
    }

    /// Answers a request that is refused; the connection closes, since where the next message
    /// begins is in doubt.
    pub(super) fn refuse(&mut self, turn: &mut Turn<'_, A>, error: ProtocolError) -> SocketState {
        tracing::debug!("core {}: {:?} refused: {error}", turn.cx.id(), turn.conn);
        turn.shared.counters.refused.add(1);
        self.stage = Stage::Called;
        self.encoder.keep_alive = false;
        self.with_call(turn, |adapter, call| (adapter.refuse(call, error), ()));
        self.log(turn.shared);
        turn.cx.close(turn.conn, true);
        SocketState::Closed
    }
}

/// Pipelined requests of one connection that one turn answers; the rest waits for the next turn.
const TURN_REQUESTS_MAX: usize = 32;

/// Output that may wait before the next pipelined request does.
const OUT_HIGH_WATER_BYTES: usize = 256 * 1024;

const BODY_TOO_LARGE: ProtocolError =
    ProtocolError::new(413, "the content is larger than the server takes");
const OVERLOADED: ProtocolError = ProtocolError::new(
    503,
    "as many requests are under way as the server takes at a time; try again later",
);
const REQUEST_TIMEOUT: ProtocolError =
    ProtocolError::new(408, "the request did not arrive in time");
