//! What another thread decides is seen soon: the end of a request follows the call that decided it
//! without waiting for a timer, and a writer that waits learns of the end. Time that the run took
//! away from its cores is allowed for.

use std::time::Duration;

use super::{Checker, Seen, Verdict, entry};
use crate::{
    plan::{End, Kind},
    run::{Moment, run},
};

/// Longer than a wake takes that is late as often as may be, and shorter than the time after which
/// a parked request is looked at anyway.
pub(super) const SOON: Duration = Duration::from_millis(150);

#[derive(Default)]
pub(super) struct Promptness {
    decided: Vec<Option<Moment>>,
}

impl Checker for Promptness {
    fn name(&self) -> &'static str {
        "promptness"
    }

    fn see(&mut self, seen: &Seen) -> Verdict {
        match seen {
            // A worker that is inside may write as long as its client reads slowly, and what a
            // write listener wrote leaves before its request ends.
            Seen::EndDecided { number, .. }
                if run().plan(*number).kind == Kind::Blocking
                    || run().plan(*number).end == End::WriteListener => {}
            // It was seen before the caller could say so; or it is seen when the callback ends.
            Seen::EndDecided { number, round }
                if run().record(*number).is_dispatched
                    || run().record(*number).callbacks_running > 0
                    || run().record(*number).round > *round => {}
            Seen::EndDecided { number, .. } => {
                entry(&mut self.decided, *number).get_or_insert_with(Moment::now);
            }
            Seen::CallbackBegan { number } | Seen::Completed { number, .. } => {
                let Some(decided) = entry(&mut self.decided, *number).take() else {
                    return Ok(());
                };
                let took = decided.elapsed();
                if took > SOON && !run().record(*number).is_excused {
                    return Err(format!(
                        "the end of request {number} was decided {took:?} before it was seen"
                    ));
                }
            }
            Seen::WriteEnded { number, begun } => {
                let completed = run().record(*number).completed_at;
                let waited = completed.map(|completed| completed.max(*begun).elapsed());
                if let Some(took) = waited.filter(|took| *took > SOON) {
                    return Err(format!(
                        "a writer of request {number} waited on for {took:?} after its end"
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
