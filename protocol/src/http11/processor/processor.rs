//! Runs HTTP/1.1 on one connection: head, body, the call into the adapter, the rest of the body,
//! and the next request. Attached to a socket while in use and recycled otherwise. Bytes in and
//! bytes out; it owns no socket. This file has its state, its life and the process loop; the steps
//! are beside it. Stands for Tomcat's `Http11Processor` and `AbstractProcessor`.

use std::net::SocketAddr;

use ringcat_engine::{
    connection_handler::{SocketEvent, SocketState},
    current::ExchangeName,
    few::Few,
    key::ListenerId,
    sync::Arc,
};

use super::turn::Turn;
use crate::{
    adapter::{Adapter, LocalTask, Returned},
    async_cell::AsyncCell,
    exchange::Exchange,
    http11::{body_decoder::BodyDecoder, head::HeadParser, response_encoder::ResponseEncoder},
    message::Message,
    protocol_handler::Shared,
    request::Request,
    response::Response,
};

/// One HTTP/1.1 exchange and what carries it.
pub(crate) struct Http11Processor<A: Adapter> {
    pub(super) exchange: Option<Exchange<A::Note>>,
    /// The response of an exchange that a worker or a future has.
    pub(super) delegated: Option<Box<Response>>,
    /// The future that has the exchange.
    pub(super) task: Option<Box<dyn LocalTask<A::Note>>>,
    /// What a worker gave back and the core did not go on with yet.
    pub(super) returned: Option<Returned<A::Note>>,
    pub(super) deferred: Few<A::Operation>,
    pub(super) cell: Option<Arc<AsyncCell<A::Operation>>>,
    pub(super) parser: HeadParser,
    pub(super) decoder: BodyDecoder,
    pub(super) encoder: ResponseEncoder,
    pub(super) stage: Stage,
    pub(super) has_empty_lines: bool,
    /// Whether it is one of the core's requests under way.
    pub(super) is_under_way: bool,
    /// Whether `on_complete` ran.
    pub(super) is_completed: bool,
    /// Whether a callback ended while a caller was inside the cell.
    pub(super) is_callback_unsettled: bool,
    /// Whether the end of the callback waits until others had what it asked of them.
    pub(super) is_yielding: bool,
    /// An event that came while a caller was inside the cell.
    pub(super) event_put_off: Option<SocketEvent>,
    pub(super) is_ack_due: bool,
    pub(super) is_error_due: bool,
    pub(super) is_read_due: bool,
    pub(super) is_write_due: bool,
    pub(super) credit_bytes: usize,
    /// Bytes of the body that came since its deadline was set.
    pub(super) received_bytes: u64,
    /// Decoded bytes on their way to a worker.
    pub(super) piece: Few<u8>,
    pub(super) is_inbound_ended: bool,
    /// Whether the adapter had the dispatch of this round and did not enter its target.
    pub(super) is_dispatch_dropped: bool,
    /// Whether the connection had its share of a turn and waits for the message that goes on. What
    /// else comes meanwhile, a look for a request that has ended say, takes no further request.
    pub(super) is_share_used: bool,
    /// Whether the kernel was asked, while the exchange was parked, if its client is still there.
    pub(super) is_peer_checked: bool,
}

/// Where an exchange is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Its head is being received.
    Head,
    /// Its body is being collected, up to so many bytes.
    Collecting { body_bytes_max: u64 },
    /// It was called, and is asynchronous, or is about to end.
    Called,
    /// A worker thread has it.
    Delegated,
    /// A future on this core has it.
    Pending,
    /// It is over; the rest of its body is read and dropped.
    Swallowing { swallowed_bytes: u64 },
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
            task: None,
            returned: None,
            deferred: Few::default(),
            cell: None,
            parser: HeadParser::default(),
            decoder: BodyDecoder::None,
            encoder: ResponseEncoder::default(),
            stage: Stage::Head,
            has_empty_lines: false,
            is_under_way: false,
            is_completed: false,
            is_callback_unsettled: false,
            is_yielding: false,
            event_put_off: None,
            is_ack_due: false,
            is_error_due: false,
            is_read_due: false,
            is_write_due: false,
            credit_bytes: 0,
            received_bytes: 0,
            piece: Few::default(),
            is_inbound_ended: false,
            is_dispatch_dropped: false,
            is_share_used: false,
            is_peer_checked: false,
        }
    }

    /// Takes a recycled processor into use on another connection.
    pub(crate) fn attach_to(&mut self, peer: SocketAddr, listener: ListenerId) {
        let request = &mut self.exchange_mut().request;
        request.peer = peer.into();
        request.listener = listener;
    }

    /// The process loop of one event (Tomcat's `AbstractProcessorLight.process`).
    pub(crate) fn process(&mut self, turn: &mut Turn<'_, A>, event: SocketEvent) -> SocketState {
        if self.is_yielding {
            self.put_off(event);
            return SocketState::Long;
        }
        self.lend_buffer(turn.shared);
        if self.stage == Stage::Pending
            && let Some(state) = self.process_pending(turn, event)
        {
            return state;
        }
        let unsettled = self.settle_callback(turn, event);
        let mut event = event;
        let state = loop {
            if let Some(state) = unsettled {
                break state;
            }
            let state = if std::mem::take(&mut self.is_error_due) {
                self.dispatch(turn, SocketEvent::Error)
            } else if std::mem::take(&mut self.is_read_due) {
                self.dispatch(turn, SocketEvent::OpenRead)
            } else if std::mem::take(&mut self.is_write_due) {
                self.dispatch(turn, SocketEvent::OpenWrite)
            } else if self.stage == Stage::Called {
                // Asynchronous, or its rounds are over and the response is to be finished.
                self.dispatch_event(turn, event)
            } else {
                self.process_plain(turn, event)
            };
            let state = match state {
                SocketState::Open if !self.is_input_over(turn) => self.service(turn),
                state => state,
            };
            if state == SocketState::Closed {
                break state;
            }
            // A future that began just now.
            let state = if self.stage == Stage::Pending {
                if let Some(state) = self.process_pending(turn, SocketEvent::OpenRead) {
                    return state;
                }
                self.event_put_off = None;
                self.after_call(turn)
            } else {
                state
            };
            let has_own_post = turn.shared.doorbell.take_own_post();
            if has_own_post && self.is_async() {
                // What this callback asked of other exchanges of the core comes before its own end.
                self.is_callback_unsettled = true;
                self.is_yielding = true;
                turn.cx.post(Message::Settle(turn.key));
                break SocketState::Long;
            }
            // An event that was put off left no callback: what it decides is not decided here.
            let is_settled = self.is_async() && self.event_put_off.is_none();
            let state = if is_settled { self.async_post_process(turn) } else { state };
            if state == SocketState::AsyncEnd {
                // The event has had its effect; the second round only finishes the response.
                event = SocketEvent::OpenRead;
                self.event_put_off = None;
            }
            let is_over = self.is_callback_unsettled
                || state != SocketState::AsyncEnd && !self.is_listener_due();
            if is_over {
                break state;
            }
        };
        if matches!(state, SocketState::Long | SocketState::Suspended) {
            self.leave_turn(turn);
        }
        state
    }

    /// The connection's next share of a turn begins.
    pub(crate) fn may_go_on(&mut self) {
        self.is_share_used = false;
    }

    /// What was posted before the end of the last callback has been seen.
    pub(crate) fn may_settle(&mut self) {
        self.is_yielding = false;
    }

    /// The exchange's cell, if it has one.
    pub(crate) fn cell(&self) -> Option<&Arc<AsyncCell<A::Operation>>> {
        self.cell.as_ref()
    }

    /// The group that the exchange belongs to, unless a worker has it.
    pub(crate) fn group(&self, adapter: &A) -> Option<u16> {
        match (&self.exchange, &self.task) {
            (Some(exchange), _) => adapter.group(&exchange.note),
            (None, Some(task)) => task.group(),
            (None, None) => None,
        }
    }

    /// The server stops under an exchange: what other threads still hold becomes illegal.
    pub(crate) fn abandon(&mut self, shared: &mut Shared<A>, name: ExchangeName) {
        drop(self.close_cell(shared));
        self.drop_task(name);
        if std::mem::take(&mut self.is_under_way) {
            shared.requests_under_way -= 1;
        }
        if matches!(self.stage, Stage::Called | Stage::Delegated) {
            // Its answer may be out already, although its rounds were never ended. What a worker
            // has cannot be logged.
            match &self.delegated {
                Some(response) => shared.counters.count_status(response.status),
                None if self.exchange.is_some() => self.log(shared),
                None => {}
            }
            if !self.encoder.is_finished() {
                shared.counters.aborts.add(1);
            }
        }
        if let Some(exchange) = &mut self.exchange {
            shared.adapter.recycle(&mut exchange.note);
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
            task,
            returned,
            deferred,
            cell: _,
            parser,
            decoder,
            encoder,
            stage,
            has_empty_lines,
            received_bytes,
            is_under_way,
            is_completed,
            is_callback_unsettled,
            is_yielding,
            event_put_off,
            is_ack_due,
            is_error_due,
            is_read_due,
            is_write_due,
            credit_bytes,
            piece,
            is_inbound_ended,
            is_dispatch_dropped,
            is_share_used,
            is_peer_checked,
        } = self;
        let exchange = exchange.as_mut().expect("an exchange is recycled by its owner");
        exchange.request.recycle();
        shared.take_storage(exchange);
        exchange.response.recycle();
        shared.adapter.recycle(&mut exchange.note);
        *delegated = None;
        debug_assert!(task.is_none(), "a future ends before its exchange");
        *task = None;
        *returned = None;
        deferred.clear();
        *parser = HeadParser::default();
        *decoder = BodyDecoder::None;
        *encoder = ResponseEncoder::default();
        *stage = Stage::Head;
        *has_empty_lines = false;
        *received_bytes = 0;
        if std::mem::take(is_under_way) {
            shared.requests_under_way -= 1;
        }
        *is_completed = false;
        *is_callback_unsettled = false;
        *is_yielding = false;
        *event_put_off = None;
        *is_ack_due = false;
        *is_error_due = false;
        *is_read_due = false;
        *is_write_due = false;
        *credit_bytes = 0;
        *piece = Few::default();
        *is_inbound_ended = false;
        *is_dispatch_dropped = false;
        *is_share_used = false;
        *is_peer_checked = false;
        // The note has let go of its handles by now.
        if let Some(cell) = cell {
            shared.hook.keep_cell(cell);
        }
    }

    pub(super) fn exchange_mut(&mut self) -> &mut Exchange<A::Note> {
        self.exchange.as_mut().expect("the core owns the exchange here")
    }

    /// An event of an exchange that is not asynchronous.
    pub(super) fn process_plain(
        &mut self,
        turn: &mut Turn<'_, A>,
        event: SocketEvent,
    ) -> SocketState {
        match (self.stage, event) {
            (Stage::Delegated, SocketEvent::Error) => self.delegate_failed(turn),
            (Stage::Delegated, _) => self.service_delegated(turn),
            (Stage::Head | Stage::Collecting { .. }, SocketEvent::Error) => self.input_failed(turn),
            (_, SocketEvent::Error) => SocketState::Closed,
            (_, SocketEvent::OpenRead) | (Stage::Head, SocketEvent::OpenWrite) => {
                self.service(turn)
            }
            // A wake or timer that came too late for its round changes nothing.
            (_, SocketEvent::OpenWrite | SocketEvent::Timeout) => SocketState::Long,
        }
    }

    /// What a waiting exchange keeps is exactly as large as its bytes; storage goes back.
    pub(super) fn leave_turn(&mut self, turn: &mut Turn<'_, A>) {
        let is_complete = self.stage != Stage::Head;
        if let Some(exchange) = self.exchange.as_mut() {
            let head = &mut exchange.request.head;
            let storage = if is_complete { head.give_back(true) } else { head.keep_partial() };
            turn.shared.put_head(storage);
            turn.shared.put_buffer(exchange.response.give_back_buffer());
        }
        if self.is_async() {
            let queued = self.cell.as_ref().map_or(0, |cell| cell.inbound_len());
            let request = &self.exchange_mut().request;
            let queued = queued + request.body.len_available();
            let wants_body = request.uses_inbound
                && !request.body.is_finished()
                && queued < turn.shared.options.body_high_water_bytes;
            let wants_room = self.wants_room(turn);
            if let Some(socket) = turn.cx.socket_mut(turn.conn) {
                socket.write_interest = wants_room;
            }
            if wants_body {
                self.await_body(turn);
            } else {
                turn.cx.set_read_interest(turn.conn, false);
                turn.cx.set_read_deadline(turn.conn, None);
            }
        }
    }

    pub(super) fn lend_buffer(&mut self, shared: &mut Shared<A>) {
        let own = self.exchange.as_mut().map(|exchange| &mut exchange.response);
        let response = own.or(self.delegated.as_mut().filter(|_| self.stage == Stage::Pending));
        if let Some(response) = response {
            response.lend_buffer(&mut shared.buffer);
        }
    }
}
