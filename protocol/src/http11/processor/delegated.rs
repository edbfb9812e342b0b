//! An exchange that a worker thread has: its body goes to the worker's reads, the worker's
//! operations to the connection, in the order of its calls.

use std::rc::Rc;

use ringcat_engine::{
    backend::Errno,
    connection_handler::{SocketEvent, SocketState},
    current::Current,
    few::Few,
    socket::Failure,
    sync::Arc,
};

use super::{
    processor::{Http11Processor, Stage},
    turn::Turn,
};
use crate::{
    action_code::{ActionHook, Hook},
    adapter::{Adapter, Delegation, ResumeHandle, Returned},
    async_cell::{Operation, Took},
    async_state_machine::{AsyncState, Flag},
    exchange::Exchange,
};

impl<A: Adapter> Http11Processor<A> {
    /// A worker thread gave the exchange back; the next event goes on with it.
    pub(crate) fn take_back(&mut self, returned: Returned<A::Note>) {
        assert!(self.stage == Stage::Delegated, "given back without having been delegated");
        self.returned = Some(returned);
    }

    /// The core has the exchange again, and applied all that the worker did.
    pub(super) fn resume(
        &mut self,
        turn: &mut Turn<'_, A>,
        returned: Returned<A::Note>,
    ) -> SocketState {
        let Returned { request, note } = returned;
        let response = self.delegated.take().expect("the response stayed while delegated");
        self.exchange = Some(Exchange { request, response, note });
        self.stage = Stage::Called;
        self.take_back_inbound();
        self.refresh_failure(turn);
        self.apply_deferred(turn);
        self.with_call(turn, |adapter, call| (adapter.resume(call), ()));
        // The one event of a failed connection came while the worker had the exchange.
        if self.exchange_mut().request.failure.is_some() {
            let word = self.cell.as_ref().map(|cell| cell.word());
            let state = word.map(|word| word.state());
            self.is_error_due |= state == Some(AsyncState::Starting);
            // A thread met the error before: the target of its dispatch would write for nobody.
            let is_dispatched =
                matches!(state, Some(AsyncState::MustDispatch | AsyncState::DispatchPending));
            if is_dispatched && word.is_some_and(|word| word.has(Flag::FailedBeforeExit)) {
                return self.dispatch(turn, SocketEvent::Error);
            }
        }
        self.after_call(turn)
    }

    /// Content that the worker left unread is the exchange's again.
    pub(super) fn take_back_inbound(&mut self) {
        let Some(cell) = self.cell.clone() else { return };
        let rest = std::mem::take::<Few<u8>>(&mut self.piece);
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

    /// Gives the exchange to a worker thread: at the end of its head, or when a dispatch sends it
    /// to a servlet that blocks.
    pub(super) fn delegate(&mut self, turn: &mut Turn<'_, A>) -> SocketState {
        turn.cx.set_read_deadline(turn.conn, None);
        let mut exchange = self.exchange.take().expect("the core owns the exchange here");
        let cell = Arc::clone(self.cell.get_or_insert_with(|| turn.shared.hook.new_cell(turn.key)));
        cell.set_head(|| exchange.request.head.share());
        if turn.is_peer_closed() {
            cell.set_flag(Flag::PeerClosed);
        }
        let storage = exchange.request.head.give_back(true);
        turn.shared.put_head(storage);
        self.piece = exchange.request.body.take_available().into();
        let resume = ResumeHandle { key: turn.key, inbox: Arc::clone(&turn.shared.inbox) };
        let name = turn.name();
        let delegation = Delegation { exchange, cell: Arc::clone(&cell), resume, name };
        self.enter(turn);
        let hook = Rc::clone(&turn.shared.hook) as Rc<dyn ActionHook<A::Operation>>;
        let serviced = Current::in_exchange(name, || {
            turn.shared.adapter.delegate(delegation, Hook::Core(hook))
        });
        self.leave(turn);
        self.after_service(turn, serviced)
    }

    /// Moves body bytes to the worker, and the worker's output to the connection.
    pub(super) fn service_delegated(&mut self, turn: &mut Turn<'_, A>) -> SocketState {
        // While a caller is inside, an exchange that came back waits for what lies in the list.
        if self.take_operations_delegated(turn)
            && let Some(returned) = self.returned.take()
        {
            return self.resume(turn, returned);
        }
        self.feed_inbound(turn);
        SocketState::Suspended
    }

    /// Moves body bytes to the cell's queue, for whoever has the exchange, and receives more while
    /// the queue has room.
    pub(super) fn feed_inbound(&mut self, turn: &mut Turn<'_, A>) {
        let Some(cell) = self.cell.clone() else { return };
        let Some(socket) = turn.cx.socket_mut(turn.conn) else { return };
        // The cell's own mark: a reader asks for more when it has fallen below half of that.
        let high_water = turn.shared.options.cell.high_water_bytes as usize;
        let mut failed = None;
        loop {
            // A reader that is inside the queue right now gets the piece with the next look.
            if !self.piece.is_empty() && cell.push_inbound(&self.piece).is_none() {
                break;
            }
            self.piece.clear();
            let room = high_water.saturating_sub(cell.inbound_len());
            let input = socket.input.bytes();
            if failed.is_some() || self.decoder.is_done() || room == 0 || input.is_empty() {
                break;
            }
            match self.decoder.decode(input, &mut self.piece, room) {
                Ok(decoded) => {
                    self.received_bytes += decoded.consumed as u64;
                    socket.input.consume(decoded.consumed);
                }
                // Once more round, for what came before.
                Err(_) => failed = Some(Errno::EBADMSG),
            }
        }
        let is_done = self.decoder.is_done() && self.piece.is_empty();
        if is_done && !std::mem::replace(&mut self.is_inbound_ended, true) {
            let trailers = self.decoder.take_trailers();
            if !trailers.is_empty() {
                cell.set_trailers(trailers);
            }
            cell.finish_inbound();
        }
        if !self.decoder.is_done() && socket.is_eof() && socket.input.is_empty() {
            failed = Some(Errno::ECONNRESET);
        }
        if let Some(errno) = failed {
            self.encoder.keep_alive = false;
            // What a reader that is inside right now kept out is read first.
            if self.piece.is_empty() && !std::mem::replace(&mut self.is_inbound_ended, true) {
                cell.fail_inbound(errno.0);
            }
        }
        // After a failure, this one or an earlier deadline's, the worker has been told the end.
        let is_wanted =
            !self.is_inbound_ended && !self.decoder.is_done() && cell.inbound_len() < high_water;
        if is_wanted {
            self.await_body(turn);
        } else {
            turn.cx.set_read_interest(turn.conn, false);
            turn.cx.set_read_deadline(turn.conn, None);
        }
    }

    /// Applies what the worker asked for; `false` if a caller holds the list right now.
    pub(super) fn take_operations_delegated(&mut self, turn: &mut Turn<'_, A>) -> bool {
        let Some(cell) = self.cell.clone() else { return true };
        let Took::Taken { operations, .. } = cell.take() else { return false };
        if operations.is_empty() {
            return true;
        }
        self.credit_bytes += operations.iter().map(Operation::credit_bytes).sum::<usize>();
        let response = self.delegated.take().expect("the response stayed while delegated");
        let mut deferred = Vec::from(std::mem::take::<Few<_>>(&mut self.deferred));
        let name = turn.name();
        self.enter(turn);
        let hook = Rc::clone(&turn.shared.hook) as Rc<dyn ActionHook<A::Operation>>;
        let response = Current::in_exchange(name, || {
            turn.shared.adapter.apply_delegated(
                response,
                Hook::Core(hook),
                operations,
                &mut deferred,
            )
        });
        self.delegated = Some(response);
        self.deferred = deferred.into();
        self.leave(turn);
        true
    }

    /// The connection failed under a worker: it learns from its next read or write.
    pub(super) fn delegate_failed(&mut self, turn: &mut Turn<'_, A>) -> SocketState {
        let failure = turn.cx.socket(turn.conn).and_then(|socket| socket.failure());
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
}
