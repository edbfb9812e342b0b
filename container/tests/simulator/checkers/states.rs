//! Every change of state is in the table. The table here is written from the specification and not
//! from the code that it checks; it also counts which state met which event.

use ringcat_engine::observe::Observation;
use ringcat_protocol::async_state_machine::{AsyncState, Event, Flag, Word};

use super::Verdict;

/// What a state may become by an event: nothing (illegal), itself, or another state.
const NO: u8 = 0xff;
const SAME: u8 = 0xfe;

/// States by their numbers.
const DISPATCHED: u8 = 0;
const STARTING: u8 = 1;
const STARTED: u8 = 2;
const MUST_COMPLETE: u8 = 3;
const COMPLETE_PENDING: u8 = 4;
const COMPLETING: u8 = 5;
const TIMING_OUT: u8 = 6;
const MUST_DISPATCH: u8 = 7;
const DISPATCH_PENDING: u8 = 8;
const DISPATCHING: u8 = 9;
const READ_WRITE_OP: u8 = 10;
const MUST_ERROR: u8 = 11;
const ERROR: u8 = 12;

/// Async states in rows, kinds of events in columns: async_start; complete and dispatch, request
/// side and other; dispatched; post_process drained and not; timeout; error, request side and
/// other; operation; run; recycle.
#[rustfmt::skip]
const TABLE: [[u8; Event::KINDS]; 13] = {
    // The tenth and eleventh columns hold the first error of a round; later ones change nothing.
    [
        // DISPATCHED
        [STARTING, NO, NO, NO, NO, NO, NO, NO, SAME, ERROR, ERROR, NO, NO, DISPATCHED],
        // STARTING
        [NO, MUST_COMPLETE, COMPLETE_PENDING, MUST_DISPATCH, DISPATCH_PENDING, NO,
         STARTED, STARTED, NO, MUST_ERROR, MUST_ERROR, NO, SAME, DISPATCHED],
        // STARTED
        [NO, COMPLETING, COMPLETING, DISPATCHING, DISPATCHING, NO,
         SAME, SAME, TIMING_OUT, ERROR, ERROR, READ_WRITE_OP, SAME, DISPATCHED],
        // MUST_COMPLETE
        [NO, NO, NO, NO, NO, NO, DISPATCHED, SAME, NO, ERROR, ERROR, NO, NO, DISPATCHED],
        // COMPLETE_PENDING
        [NO, NO, NO, NO, NO, NO, COMPLETING, COMPLETING, NO, ERROR, ERROR, NO, NO, DISPATCHED],
        // COMPLETING
        [NO, NO, NO, NO, NO, NO, DISPATCHED, SAME, SAME, ERROR, ERROR, SAME, NO, DISPATCHED],
        // TIMING_OUT
        [NO, COMPLETING, COMPLETING, DISPATCHING, DISPATCHING, NO,
         NO, NO, NO, ERROR, ERROR, NO, NO, DISPATCHED],
        // MUST_DISPATCH
        [NO, NO, NO, NO, NO, DISPATCHED, DISPATCHING, DISPATCHING, NO, ERROR, ERROR, NO, NO,
         DISPATCHED],
        // DISPATCH_PENDING
        [NO, NO, NO, NO, NO, NO, DISPATCHING, DISPATCHING, NO, ERROR, ERROR, NO, NO, DISPATCHED],
        // DISPATCHING
        [NO, NO, NO, NO, NO, DISPATCHED, DISPATCHED, SAME, SAME, ERROR, ERROR, SAME, NO,
         DISPATCHED],
        // READ_WRITE_OP
        [NO, COMPLETING, COMPLETE_PENDING, DISPATCHING, DISPATCH_PENDING, NO,
         STARTED, STARTED, NO, ERROR, ERROR, NO, SAME, DISPATCHED],
        // MUST_ERROR
        [NO, MUST_COMPLETE, MUST_COMPLETE, MUST_DISPATCH, MUST_DISPATCH, NO,
         ERROR, ERROR, NO, ERROR, ERROR, NO, NO, DISPATCHED],
        // ERROR
        [NO, COMPLETING, COMPLETING, DISPATCHING, DISPATCHING, NO,
         NO, NO, NO, SAME, SAME, NO, NO, DISPATCHED],
    ]
};

/// Kinds of events in the order of their numbers.
pub(crate) const EVENTS: [&str; Event::KINDS] = [
    "async_start",
    "complete (request)",
    "complete (other)",
    "dispatch (request)",
    "dispatch (other)",
    "dispatched",
    "post_process",
    "post_process (pending)",
    "timeout",
    "error (request)",
    "error (other)",
    "operation",
    "run",
    "recycle",
];

const COMPLETE_OR_DISPATCH: [u8; 4] = [1, 2, 3, 4];
const DISPATCHES: [u8; 2] = [3, 4];
const FROM_OTHERS: [u8; 2] = [2, 4];
const ERRORS: [u8; 2] = [9, 10];

const ASYNC_START: u8 = 0;
const MARKS: [Flag; 3] = [Flag::ErrorMarked, Flag::DispatchUsed, Flag::OthersBarred];

pub(super) struct States {
    counts: Vec<u64>,
}

impl Default for States {
    fn default() -> Self {
        Self { counts: vec![0; TABLE.len() * Event::KINDS] }
    }
}

impl States {
    pub(super) fn observe(&mut self, observation: &Observation) -> Verdict {
        let Observation::Transition { exchange, from, to, event } = observation else {
            return Ok(());
        };
        let from = Word::from_bits(*from);
        let to = to.map(Word::from_bits);
        let state = from.state() as u8;
        self.counts[usize::from(state) * Event::KINDS + usize::from(*event)] += 1;
        let expected = expected(from, *event);
        let matches = match (expected, to) {
            (NO, to) => to.is_none(),
            (SAME, Some(to)) => to.state() == from.state(),
            (expected, Some(to)) => to.state() as u8 == expected,
            (_, None) => false,
        };
        // Marks are of a round: the next one begins without.
        let is_marked = to.is_some_and(|to| MARKS.into_iter().any(|mark| to.has(mark)));
        let begins_marked = *event == ASYNC_START && is_marked;
        if matches && !begins_marked {
            return Ok(());
        }
        let name = EVENTS[usize::from(*event)];
        Err(format!("{exchange:?}: {name} made {to:?} of {from:?}, which is not in the table"))
    }

    pub(super) fn cells(&self) -> Vec<u64> {
        self.counts.clone()
    }
}

fn expected(from: Word, event: u8) -> u8 {
    let is_dispatch = DISPATCHES.contains(&event);
    let is_barred = FROM_OTHERS.contains(&event)
        && COMPLETE_OR_DISPATCH.contains(&event)
        && from.has(Flag::OthersBarred);
    let is_late_start = event == ASYNC_START && from.has(Flag::StartBarred);
    if from.has(Flag::Closed)
        || is_late_start
        || is_barred
        || is_dispatch && from.has(Flag::DispatchUsed)
    {
        return NO;
    }
    let is_later_error = ERRORS.contains(&event)
        && from.has(Flag::ErrorMarked)
        && from.state() != AsyncState::Starting;
    if is_later_error {
        return SAME;
    }
    TABLE[from.state() as usize][usize::from(event)]
}
