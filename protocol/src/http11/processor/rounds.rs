//! The asynchronous rounds of an exchange on its owner: the owner's step (operations of other
//! threads first, then the state), the dispatch of events, what was put off while a caller was
//! inside the cell. Stands for the asynchronous part of Tomcat's `AbstractProcessor`.

use std::time::Duration;

use ringcat_engine::{
    backend::Errno,
    canary::{self, Canary},
    connection_handler::{SocketEvent, SocketState},
    few::Few,
    socket::Failure,
    sync::Arc,
    timestamp::Timestamp,
};

use super::{
    processor::{Http11Processor, Stage},
    turn::Turn,
};
use crate::{
    adapter::{Adapter, Serviced},
    async_cell::{AsyncCell, Operation, Took},
    async_state_machine::{AsyncState, Event, Flag, Outcome, transition},
    protocol_error::BODY_CUT,
    protocol_handler::Shared,
};

impl<A: Adapter> Http11Processor<A> {
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

    /// Whether the kernel is still to be asked if the client of this parked exchange is there: a
    /// reset that follows a request at once can go by a multishot receive (seen on Linux 6.18,
    /// once in some ten thousand), and nothing else would tell before the answer.
    pub(crate) fn is_peer_check_due(&self) -> bool {
        !self.is_peer_checked
    }

    /// The kernel was asked.
    pub(crate) fn peer_checked(&mut self) {
        self.is_peer_checked = true;
    }

    /// Leaves the callback that ended while a caller was inside, before anything else happens.
    /// `Some`: that ends this event too; if a caller still is inside, it comes again.
    pub(super) fn settle_callback(
        &mut self,
        turn: &mut Turn<'_, A>,
        event: SocketEvent,
    ) -> Option<SocketState> {
        if !std::mem::take(&mut self.is_callback_unsettled) {
            return None;
        }
        let state = self.async_post_process(turn);
        if !self.is_callback_unsettled && self.is_listener_due() {
            // The listener goes first, and its event is the look that a reader asked for.
            self.look_for_input(turn);
        }
        if self.is_callback_unsettled || self.is_listener_due() {
            self.put_off(event);
        }
        (self.is_callback_unsettled || state == SocketState::Closed).then_some(state)
    }

    /// Whether a listener is to be called before this event is over.
    pub(super) fn is_listener_due(&self) -> bool {
        self.is_error_due || self.is_read_due || self.is_write_due
    }

    /// Remembers an event that met a caller, for the look that was posted.
    pub(super) fn put_off(&mut self, event: SocketEvent) {
        self.event_put_off = Some(self.with_event_put_off(event));
    }

    /// The more urgent one of an event and the one that was put off.
    pub(super) fn with_event_put_off(&self, event: SocketEvent) -> SocketEvent {
        match self.event_put_off {
            Some(SocketEvent::Error) => SocketEvent::Error,
            Some(SocketEvent::Timeout) if event != SocketEvent::Error => SocketEvent::Timeout,
            Some(_) | None => event,
        }
    }

    /// An event of an asynchronous exchange, or the second round of one that ended.
    pub(super) fn dispatch_event(
        &mut self,
        turn: &mut Turn<'_, A>,
        event: SocketEvent,
    ) -> SocketState {
        if let Some(cell) = &self.cell {
            cell.begin_look();
        }
        self.look_for_departure(turn);
        self.refresh_failure(turn);
        self.look_for_input(turn);
        let is_in_error =
            self.cell.as_ref().is_some_and(|cell| cell.word().state() == AsyncState::Error);
        if std::mem::take(&mut self.is_error_due) || is_in_error {
            return self.dispatch(turn, SocketEvent::Error);
        }
        self.is_read_due = false;
        self.is_write_due = false;
        self.dispatch(turn, event)
    }

    /// A client that has ended its stream counts as gone where that was asked for: a round that is
    /// under way ends in error.
    pub(super) fn look_for_departure(&mut self, turn: &mut Turn<'_, A>) {
        let is_left = self.is_async()
            && self.cell.as_ref().is_some_and(|cell| {
                let word = cell.word();
                word.has(Flag::PeerClosed) && word.has(Flag::EndsOnPeerClose)
            });
        if is_left && turn.cx.give_up(turn.conn) {
            self.is_error_due = true;
        }
    }

    /// Whether output that a write listener wrote has to leave before the request goes on, or
    /// before the listener is called again.
    pub(super) fn wants_room(&self, turn: &Turn<'_, A>) -> bool {
        let Some(cell) = &self.cell else { return false };
        let word = cell.word();
        let is_owed = word.has(Flag::WriteOwed) && word.state().keeps_listeners();
        (is_owed || !word.state().keeps_listeners()) && self.is_output_pending(turn)
    }

    /// Whether a write listener wrote what has not left yet, on a connection that still takes it.
    pub(super) fn is_output_pending(&self, turn: &Turn<'_, A>) -> bool {
        let has_listener =
            self.exchange.as_ref().is_some_and(|exchange| exchange.response.has_write_listener);
        has_listener
            && turn
                .cx
                .socket(turn.conn)
                .is_some_and(|socket| socket.failure().is_none() && !socket.out.is_empty())
    }

    /// Room for output is an event for a write listener that waits for it.
    pub(super) fn look_for_room(&mut self, turn: &Turn<'_, A>) {
        if !self.is_async() || !self.exchange_mut().response.has_write_listener {
            return;
        }
        let word = self.cell.as_ref().map(|cell| cell.word());
        let is_owed =
            word.is_some_and(|word| word.has(Flag::WriteOwed) && word.state().keeps_listeners());
        self.is_write_due = is_owed && !self.is_output_pending(turn);
    }

    /// Body bytes that came for a read listener are an event; so is a body that is broken or cut.
    pub(super) fn look_for_input(&mut self, turn: &mut Turn<'_, A>) {
        if !self.is_async() {
            return;
        }
        let is_wanted = self.cell.as_ref().is_some_and(|cell| cell.word().has(Flag::InboundWanted));
        let request = &mut self.exchange_mut().request;
        request.uses_inbound |= is_wanted || request.has_read_listener;
        if !request.uses_inbound {
            return;
        }
        self.receive_body(turn);
        self.fill_inbound();
        // What the reader left no room for is still in the input, behind which the stream may end.
        let is_over =
            turn.is_eof() && turn.cx.socket(turn.conn).is_none_or(|socket| socket.input.is_empty());
        let cell = self.cell.clone();
        let request = &mut self.exchange_mut().request;
        let is_cut = is_over && !request.body.is_finished() && request.body.len_available() == 0;
        if is_cut && request.body_error().is_none() {
            request.set_body_error(BODY_CUT);
        }
        // What a reader inside the queue kept out comes with the look that was posted.
        let is_kept_out = request.body.len_available() > 0;
        if let (Some(error), Some(cell), false) = (request.body_error(), cell, is_kept_out) {
            // What came before it is read first; then the read fails, which is for the listener to
            // meet, as for any other reader.
            let errno = if error == BODY_CUT { Errno::ECONNRESET } else { Errno::EBADMSG };
            let is_owed = self.fail_inbound(&cell, errno);
            self.exchange_mut().request.is_read_due |= is_owed;
        }
        let is_read = self.cell.as_ref().is_some_and(|cell| cell.is_inbound_done());
        let request = &self.exchange_mut().request;
        self.is_read_due |= request.has_read_listener && (request.is_read_due || is_read);
    }

    /// Moves what was decoded of the body to where any thread reads it.
    fn fill_inbound(&mut self) {
        let Some(cell) = self.cell.clone() else { return };
        let request = &mut self.exchange_mut().request;
        let mut is_owed = false;
        if request.body.len_available() > 0 {
            // A reader that is inside the queue right now gets the bytes with the next look.
            let Some(pushed) = cell.push_inbound(request.body.available()) else { return };
            request.body.clear_available();
            is_owed = pushed.is_owed;
        }
        if request.body.is_finished() && !self.is_inbound_ended {
            self.is_inbound_ended = true;
            let trailers = self.exchange_mut().request.trailers().to_vec();
            cell.set_trailers(trailers);
            is_owed |= cell.finish_inbound();
        }
        self.exchange_mut().request.is_read_due |= is_owed;
    }

    /// Whoever waits for the rest of the body learns that it will not come; answers whether a read
    /// callback was owed.
    fn fail_inbound(&mut self, cell: &AsyncCell<A::Operation>, errno: Errno) -> bool {
        let is_ended = std::mem::replace(&mut self.is_inbound_ended, true);
        !is_ended && cell.fail_inbound(errno.0)
    }

    /// Tells the request how its connection failed, and other threads that sending is over.
    pub(super) fn refresh_failure(&mut self, turn: &Turn<'_, A>) {
        let failure = match turn.cx.socket(turn.conn) {
            Some(socket) => socket.failure(),
            None => Some(Failure::System(Errno::ECONNRESET)),
        };
        self.exchange_mut().request.failure = failure;
        let is_sending_over = match failure {
            Some(Failure::System(_) | Failure::WriteTimeout) => true,
            Some(Failure::ReadTimeout(_)) | None => false,
        };
        if let Some(cell) = self.cell.clone().filter(|_| is_sending_over) {
            cell.set_flag(Flag::IoError);
            if self.exchange_mut().request.uses_inbound {
                self.fail_inbound(&cell, Errno::ECONNRESET);
            }
        }
    }

    pub(super) fn dispatch(&mut self, turn: &mut Turn<'_, A>, event: SocketEvent) -> SocketState {
        if !self.take_operations(turn) {
            self.put_off(event);
            return SocketState::Long;
        }
        let request = &self.exchange_mut().request;
        if request.has_read_listener && !request.uses_inbound {
            // Set just now, by another thread.
            self.look_for_input(turn);
        }
        let event = self.with_event_put_off(event);
        self.event_put_off = None;
        let before = self.content_for_listener();
        let was_dispatching = self.is_dispatching();
        let exchange = self.exchange.take().expect("the core owns the exchange here");
        let dispatched =
            self.call_with(turn, exchange, |adapter, call| adapter.async_dispatch(call, event));
        if !dispatched.is_connection_usable {
            self.encoder.keep_alive = false;
        }
        match dispatched.serviced {
            Serviced::Returned(exchange) => self.exchange = Some(exchange),
            serviced => return self.after_service(turn, serviced),
        }
        if dispatched.is_for_worker {
            return self.delegate(turn);
        }
        self.is_dispatch_dropped =
            was_dispatching && self.is_dispatching() && !self.is_output_pending(turn);
        if self.is_async() && self.content_for_listener() == before {
            self.look_for_room(turn);
            return SocketState::Long;
        }
        // Also looks for input: what a listener read made room for bytes that came long ago. Who
        // read nothing is not asked again, or this would go on for ever.
        self.after_call(turn)
    }

    fn is_dispatching(&self) -> bool {
        let state = self.cell.as_ref().map(|cell| cell.word().state());
        state == Some(AsyncState::Dispatching)
    }

    /// Whether the read listener is owed a callback, and how many bytes wait for it.
    fn content_for_listener(&mut self) -> (bool, usize) {
        let inbound_len = self.cell.as_ref().map_or(0, |cell| cell.inbound_len());
        let request = &self.exchange_mut().request;
        (request.is_read_due, request.body.len_available() + inbound_len)
    }

    /// Applies what other threads asked for; `false` if a caller holds the list right now, so
    /// that this exchange has to wait for the look that was posted. When the rounds are over the
    /// list is closed with it: what was called before still counts, what comes later is refused.
    pub(super) fn take_operations(&mut self, turn: &mut Turn<'_, A>) -> bool {
        let Some(cell) = self.cell.clone() else { return true };
        let taken = if self.is_async() {
            match cell.take() {
                Took::Contended => None,
                Took::Taken { operations, .. } => Some(operations),
            }
        } else {
            cell.close()
        };
        let Some(operations) = taken else { return false };
        self.apply_deferred(turn);
        self.apply(turn, operations);
        true
    }

    /// Applies what concerns more than the response and was met inside a call.
    pub(super) fn apply_deferred(&mut self, turn: &mut Turn<'_, A>) {
        let deferred = Vec::from(std::mem::take::<Few<_>>(&mut self.deferred));
        if !deferred.is_empty() {
            self.with_call(turn, |adapter, call| (adapter.apply(call, deferred), ()));
        }
    }

    pub(super) fn apply(&mut self, turn: &mut Turn<'_, A>, operations: Vec<A::Operation>) {
        if operations.is_empty() {
            return;
        }
        let credit_bytes = operations.iter().map(Operation::credit_bytes).sum::<usize>();
        if canary::has(Canary::CreditReturnedOnApply)
            && let Some(cell) = &self.cell
        {
            cell.release_credit(credit_bytes);
        } else {
            self.credit_bytes += credit_bytes;
        }
        self.with_call(turn, |adapter, call| (adapter.apply(call, operations), ()));
    }

    /// Leaves a callback: applies what other threads asked for meanwhile, then settles the state.
    pub(super) fn async_post_process(&mut self, turn: &mut Turn<'_, A>) -> SocketState {
        loop {
            let Some(cell) = self.cell.clone() else { return SocketState::Long };
            let Took::Taken { word, operations } = cell.take() else {
                self.is_callback_unsettled = true;
                return SocketState::Long;
            };
            if !operations.is_empty() || !self.deferred.is_empty() {
                // What was put off was called before what is in the list now.
                self.apply_deferred(turn);
                self.apply(turn, operations);
                continue;
            }
            if word.state() == AsyncState::Error {
                // Another thread found the connection broken meanwhile.
                self.is_error_due = true;
                return SocketState::Long;
            }
            let drained = !self.is_output_pending(turn);
            // Decided while nobody looked: its target comes first. Only a dispatch that was dropped
            // for an error report ends here.
            if word.state() == AsyncState::Dispatching && !self.is_dispatch_dropped {
                return if drained { SocketState::AsyncEnd } else { SocketState::Long };
            }
            let io_allowed = self.exchange_mut().request.failure.is_none();
            // The out-queue takes every byte in order, so only what a listener wrote, who was
            // promised to hear of it, holds a state back.
            let event = Event::PostProcess { drained, io_allowed };
            let effects = match transition(word, event) {
                Ok((_, effects)) => effects,
                Err(illegal) => {
                    tracing::error!("core {}: {illegal}: the connection closes", turn.cx.id());
                    return SocketState::Closed;
                }
            };
            // Whatever changes the word meanwhile, a flag too, leads here again, but the
            // listeners run once.
            if effects.on_complete && !std::mem::replace(&mut self.is_completed, true) {
                self.with_call(turn, |adapter, call| (adapter.on_complete(call), ()));
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

    /// Ends the exchange for other threads; the cell comes back if it is closed.
    pub(super) fn close_cell(
        &mut self,
        shared: &mut Shared<A>,
    ) -> Option<Arc<AsyncCell<A::Operation>>> {
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
}
