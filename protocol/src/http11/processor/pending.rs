//! An exchange that a future on its core has: the future is polled when it was woken, and it is
//! dropped, before anything else happens, when somebody else ends its round. Its steps lie in the
//! cell's list like those of other threads, and go to the connection in the order of the calls.

use ringcat_engine::{
    canary::{self, Canary},
    connection_handler::{SocketEvent, SocketState},
    current::{Current, ExchangeName},
    few::Few,
};

use super::{
    processor::{Http11Processor, Stage},
    turn::Turn,
};
use crate::{
    adapter::{Adapter, Returned, TaskEnd},
    async_state_machine::{AsyncState, Event, Outcome},
    exchange::Exchange,
};

impl<A: Adapter> Http11Processor<A> {
    /// An event of an exchange that a future has. `None`: the future is over, and the exchange is
    /// back, for the event to go on with.
    pub(super) fn process_pending(
        &mut self,
        turn: &mut Turn<'_, A>,
        event: SocketEvent,
    ) -> Option<SocketState> {
        let mut is_polled = false;
        loop {
            if !self.take_operations_delegated(turn) {
                self.put_off(event);
                return Some(self.stay_pending(turn));
            }
            let event = self.with_event_put_off(event);
            self.event_put_off = None;
            self.look_for_departure(turn);
            if self.is_round_over(turn, event) {
                self.take_task_back(turn, TaskEnd::Dropped);
                self.put_off(event);
                return None;
            }
            self.feed_inbound(turn);
            if is_polled || !self.cell.as_ref().is_some_and(|cell| cell.take_poll_due()) {
                return Some(self.stay_pending(turn));
            }
            is_polled = true;
            if self.poll_task(turn) {
                self.take_task_back(turn, TaskEnd::Ready);
                return None;
            }
        }
    }

    /// Drops the future, if there is one, and takes its parts back.
    pub(super) fn drop_task(&mut self, name: ExchangeName) {
        let Some(task) = self.task.take() else { return };
        let response = self.delegated.take().expect("the response stayed while pending");
        if let Some(cell) = &self.cell {
            cell.enter_callback();
        }
        let Returned { request, note } = Current::in_exchange(name, || task.take_back());
        if let Some(cell) = &self.cell {
            cell.leave_callback();
        }
        self.exchange = Some(Exchange { request, response, note });
        self.stage = Stage::Called;
    }

    /// Whether the round that the future runs in was ended by somebody else, or ends with this
    /// event.
    fn is_round_over(&mut self, turn: &Turn<'_, A>, event: SocketEvent) -> bool {
        if matches!(event, SocketEvent::Error | SocketEvent::Timeout) || self.is_error_due {
            return true;
        }
        let Some(cell) = &self.cell else { return true };
        loop {
            let word = cell.word();
            match word.state() {
                AsyncState::Started => return false,
                // The callback that began the round has returned.
                AsyncState::Starting => {
                    let failure = turn.cx.socket(turn.conn).and_then(|socket| socket.failure());
                    let io_allowed = failure.is_none();
                    let left = cell.advance(word, Event::PostProcess { drained: true, io_allowed });
                    // Changed meanwhile: what it is now is looked at.
                    if left.is_ok_and(|effects| effects.outcome == Some(Outcome::ErrorHandling)) {
                        self.is_error_due = true;
                        return true;
                    }
                }
                _ => return true,
            }
        }
    }

    /// Polls the future inside a callback of its exchange; true when it has ended.
    fn poll_task(&mut self, turn: &mut Turn<'_, A>) -> bool {
        let (Some(task), Some(cell)) = (&mut self.task, &self.cell) else { return false };
        turn.shared.counters.polls.add(1);
        cell.enter_callback();
        let name = ExchangeName { core: turn.cx.id(), key: turn.key.to_u64() };
        let polled = Current::in_exchange(name, || task.poll());
        cell.leave_callback();
        if canary::has(Canary::PollDueClearedLate) {
            cell.take_poll_due();
        }
        polled.is_ready()
    }

    /// The exchange is the core's again, with all that came for the future and was not read.
    fn take_task_back(&mut self, turn: &mut Turn<'_, A>, end: TaskEnd) {
        self.drop_task(turn.name());
        let rest = std::mem::take::<Few<u8>>(&mut self.piece);
        let is_whole = self.decoder.is_done() && !self.is_inbound_ended;
        let request = &mut self.exchange.as_mut().expect("taken back").request;
        request.body.sink().extend_from_slice(&rest);
        if is_whole {
            request.set_trailers(self.decoder.take_trailers());
            request.body.finish();
        }
        self.refresh_failure(turn);
        self.apply_deferred(turn);
        self.with_call(turn, |adapter, call| (adapter.end_task(call, end), ()));
    }

    /// Nothing happens until the future is woken, or its round ends.
    fn stay_pending(&mut self, turn: &mut Turn<'_, A>) -> SocketState {
        // What is asked of other exchanges needs no order with an end that is not there.
        turn.shared.doorbell.take_own_post();
        // What the future read made room for bytes that came long ago.
        self.feed_inbound(turn);
        if let Some(response) = &mut self.delegated {
            turn.shared.put_buffer(response.give_back_buffer());
        }
        SocketState::Long
    }
}
