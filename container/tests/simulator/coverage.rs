//! What the runs reached: every kind of fault, every window between threads, every pair of state
//! and event that can meet. What stays at zero is not tested, and fails a long run.

use std::fmt;

use ringcat_engine::{interleave::Point, sim::fault::Fault};
use ringcat_protocol::async_state_machine::{AsyncState, Event};

use crate::{checkers::EVENTS, scenario::Played};

/// Counts over many runs.
pub(crate) struct Coverage {
    faults: Vec<u64>,
    points: Vec<u64>,
    cells: Vec<u64>,
}

impl Default for Coverage {
    fn default() -> Self {
        Self {
            faults: vec![0; Fault::ALL.len()],
            points: vec![0; Point::ALL.len()],
            cells: vec![0; AsyncState::ALL.len() * Event::KINDS],
        }
    }
}

impl Coverage {
    pub(crate) fn add(&mut self, played: &Played) {
        let add = |sums: &mut [u64], counts: &[u64]| {
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        };
        add(&mut self.faults, &played.outcome.fault_hits);
        add(&mut self.points, &played.outcome.point_hits);
        add(&mut self.cells, &played.cells);
    }

    /// Everything that can be reached, with its count.
    fn rows(&self) -> impl Iterator<Item = (String, u64)> {
        let faults =
            Fault::ALL.iter().zip(&self.faults).map(|(fault, n)| (format!("fault {fault:?}"), *n));
        let points =
            Point::ALL.iter().zip(&self.points).map(|(point, n)| (format!("window {point:?}"), *n));
        let cells = AsyncState::ALL.iter().flat_map(move |state| {
            EVENTS.iter().enumerate().filter_map(move |(kind, event)| {
                let count = self.cells[*state as usize * Event::KINDS + kind];
                is_reachable(*state, kind).then(|| (format!("{state} meets {event}"), count))
            })
        });
        faults.chain(points).chain(cells)
    }

    /// Whether nothing that can be reached was missed.
    pub(crate) fn is_full(&self) -> bool {
        self.rows().all(|(_, count)| count > 0)
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, count) in self.rows() {
            let mark = if count == 0 { "  <- never" } else { "" };
            writeln!(f, "{count:>12}  {name}{mark}")?;
        }
        Ok(())
    }
}

/// Whether the container can bring an event to a state. Rows that are not listed take every state.
fn is_reachable(state: AsyncState, kind: usize) -> bool {
    use AsyncState as S;
    match EVENTS[kind] {
        // Storage is used again without an event, output never holds a state back, and a failure
        // of the connection is always seen by the owner.
        "recycle" | "post_process (pending)" | "error (other)" => false,
        // The request side is inside a callback, which a request that is parked is not.
        "async_start" | "complete (request)" | "dispatch (request)" => state != S::Started,
        // A dispatch is decided for good before its target is entered.
        "dispatched" => state == S::Dispatching,
        // These the owner itself has left when it leaves the callback.
        "post_process" => !matches!(state, S::Dispatched | S::TimingOut | S::Error),
        // Parked when its time was over, and what others made of that since.
        "timeout" => {
            matches!(state, S::Started | S::Completing | S::Dispatching | S::Dispatched)
        }
        "operation" => matches!(state, S::Started | S::Completing | S::Dispatching),
        _ => true,
    }
}
