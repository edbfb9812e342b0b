//! A processor's calls into the adapter: what is lent for the length of a call, and what becomes of
//! the connection when the response is finished or given up.

use std::rc::Rc;

use ringcat_engine::{
    backend::Errno, connection_handler::SocketState, current::Current, out_queue::OutQueue,
    socket::Failure,
};

use super::{
    processor::{Http11Processor, Stage},
    turn::Turn,
};
use crate::{
    action_code::{ActionHook, Hook},
    adapter::{Adapter, Call, Serviced},
    exchange::Exchange,
    http11::hook::{CallState, Http11Hook},
    protocol_handler::Shared,
};

impl<A: Adapter> Http11Processor<A> {
    /// Calls the adapter on this core.
    pub(super) fn run(&mut self, turn: &mut Turn<'_, A>) -> SocketState {
        self.stage = Stage::Called;
        turn.cx.set_read_deadline(turn.conn, None);
        turn.shared.counters.requests.add(1);
        let exchange = self.exchange.take().expect("the core owns the exchange here");
        let serviced = self.call_with(turn, exchange, |adapter, call| adapter.service(call));
        self.after_service(turn, serviced)
    }

    /// Keeps what came back of the exchange, and goes on with it.
    pub(super) fn after_service(
        &mut self,
        turn: &mut Turn<'_, A>,
        serviced: Serviced<A::Note>,
    ) -> SocketState {
        match serviced {
            Serviced::Returned(exchange) => {
                self.exchange = Some(exchange);
                self.stage = Stage::Called;
                self.after_call(turn)
            }
            Serviced::Delegated(response) => {
                self.delegated = Some(response);
                self.stage = Stage::Delegated;
                self.service_delegated(turn)
            }
            Serviced::Pending(pending) => {
                self.delegated = Some(pending.response);
                self.task = Some(pending.task);
                self.stage = Stage::Pending;
                SocketState::Long
            }
        }
    }

    pub(super) fn after_call(&mut self, turn: &mut Turn<'_, A>) -> SocketState {
        if self.is_async() {
            self.look_for_departure(turn);
            self.look_for_input(turn);
            self.look_for_room(turn);
            return SocketState::Long;
        }
        self.end(turn)
    }

    /// The response is finished, or given up: what becomes of the connection?
    pub(super) fn end(&mut self, turn: &mut Turn<'_, A>) -> SocketState {
        self.log(turn.shared);
        let is_body_done = self.decoder.is_done();
        let is_refused = self.is_ack_due && !is_body_done;
        let is_usable = self.encoder.is_finished()
            && self.encoder.keep_alive
            && !is_refused
            && self.exchange_mut().request.body_error().is_none();
        if !self.encoder.is_finished() {
            turn.shared.counters.aborts.add(1);
        }
        if !is_usable {
            if !is_body_done {
                turn.cx.close(turn.conn, true);
            }
            return SocketState::Closed;
        }
        if is_body_done {
            self.recycle(turn.shared);
            return SocketState::Open;
        }
        self.stage = Stage::Swallowing { swallowed_bytes: 0 };
        self.swallow(turn).unwrap_or(SocketState::Long)
    }

    pub(super) fn log(&mut self, shared: &mut Shared<A>) {
        let exchange = self.exchange.as_mut().expect("the core owns a request that ended");
        shared.counters.count_status(exchange.response.status);
        shared.adapter.log(exchange);
    }

    /// Runs a call into the adapter: the connection's output, encoder and cell go to the hook,
    /// and come back.
    pub(super) fn with_call<R>(
        &mut self,
        turn: &mut Turn<'_, A>,
        f: impl FnOnce(&A, Call<A>) -> (Exchange<A::Note>, R),
    ) -> R {
        let exchange = self.exchange.take().expect("the core owns the exchange here");
        let (exchange, result) = self.call_with(turn, exchange, f);
        self.exchange = Some(exchange);
        result
    }

    /// As [`Self::with_call`], for calls that may not give the exchange back.
    pub(super) fn call_with<R>(
        &mut self,
        turn: &mut Turn<'_, A>,
        exchange: Exchange<A::Note>,
        f: impl FnOnce(&A, Call<A>) -> R,
    ) -> R {
        let name = turn.name();
        self.enter(turn);
        let hook = Rc::clone(&turn.shared.hook) as Rc<dyn ActionHook<A::Operation>>;
        let call = Call { exchange, hook: Hook::Core(hook), name };
        let result = Current::in_exchange(name, || f(&turn.shared.adapter, call));
        self.leave(turn);
        result
    }

    pub(super) fn with_hook<R>(
        &mut self,
        turn: &mut Turn<'_, A>,
        f: impl FnOnce(&Http11Hook<A::Operation>) -> R,
    ) -> R {
        self.enter(turn);
        let result = f(&turn.shared.hook);
        self.leave(turn);
        result
    }

    pub(super) fn enter(&mut self, turn: &mut Turn<'_, A>) {
        // The last answer of a drain says so, also where its request came before the drain. One
        // with requests behind it is not the last: they arrived and will be served.
        let is_last = turn.cx.is_draining() && self.is_input_over(turn);
        if is_last && !self.encoder.is_committed() {
            self.encoder.keep_alive = false;
        }
        turn.cx.offer_tail(turn.conn);
        let (out, errno) = match turn.cx.socket_mut(turn.conn) {
            Some(socket) => {
                let errno = match socket.failure() {
                    Some(Failure::System(errno)) => Some(errno),
                    Some(Failure::WriteTimeout) => Some(Errno::EPIPE),
                    Some(Failure::ReadTimeout(_)) | None => None,
                };
                (std::mem::take(&mut socket.out), errno)
            }
            None => (OutQueue::default(), Some(Errno::EPIPE)),
        };
        turn.shared.hook.enter(
            turn.cx.now(),
            CallState {
                conn: turn.conn,
                key: turn.key,
                out,
                encoder: self.encoder,
                cell: self.cell.take(),
                is_ack_due: self.is_ack_due,
                is_peer_closed: turn.is_peer_closed(),
                errno,
                credit_bytes: 0,
                deferred: Vec::new(),
                head_storage: None,
                is_inbound_ended: self.is_inbound_ended,
            },
        );
    }

    pub(super) fn leave(&mut self, turn: &mut Turn<'_, A>) {
        let call = turn.shared.hook.leave();
        self.encoder = call.encoder;
        self.cell = call.cell;
        self.is_ack_due = call.is_ack_due;
        self.credit_bytes += call.credit_bytes;
        self.deferred.extend(call.deferred);
        self.is_inbound_ended = call.is_inbound_ended;
        turn.shared.put_head(call.head_storage);
        let mut queued_bytes = 0;
        if let Some(socket) = turn.cx.socket_mut(turn.conn) {
            socket.out = call.out;
            queued_bytes = socket.out.len_bytes();
        }
        // What a flush sent at once, or what has no content, brings no event of its own.
        if self.credit_bytes > 0 {
            self.on_sent(queued_bytes);
        }
    }
}
