//! What another thread decides is seen soon: the end of a request follows the call that decided it
//! without waiting for a timer. Time that the run took away from its cores is allowed for.

use std::time::Duration;

use ringcat_engine::{sim::world::lost_time, timestamp::Timestamp};

use super::{Checker, Seen, Verdict, entry};
use crate::{
    plan::Kind,
    run::{now, run},
};

/// Longer than a wake takes that is late as often as may be, and shorter than the time after which
/// a parked request is looked at anyway.
const SOON: Duration = Duration::from_millis(150);

#[derive(Default)]
pub(super) struct Promptness {
    decided: Vec<Option<(Timestamp, Duration)>>,
}

impl Checker for Promptness {
    fn name(&self) -> &'static str {
        "promptness"
    }

    fn see(&mut self, seen: &Seen) -> Verdict {
        match seen {
            // A worker that is inside may write as long as its client reads slowly.
            Seen::EndDecided { number, .. } if run().plan(*number).kind == Kind::Blocking => {}
            // It was seen before the caller could say so.
            Seen::EndDecided { number, .. } if run().record(*number).is_dispatched => {}
            Seen::EndDecided { number, .. } => {
                entry(&mut self.decided, *number).get_or_insert((now(), lost_time()));
            }
            Seen::CallbackBegan { number } | Seen::Completed { number } => {
                let Some((at, lost)) = entry(&mut self.decided, *number).take() else {
                    return Ok(());
                };
                let lost = lost_time().saturating_sub(lost);
                let took = now().saturating_since(at).saturating_sub(lost);
                if took > SOON && !run().record(*number).is_excused {
                    return Err(format!(
                        "the end of request {number} was decided {took:?} before it was seen"
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
