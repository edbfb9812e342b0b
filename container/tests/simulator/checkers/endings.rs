//! A round is ended by one call and no more, however many race for it. An error in between takes
//! the decision back, as one by `send_error` may: then it is decided anew.

use super::{Checker, Seen, Verdict, entry};
use crate::run::run;

#[derive(Default)]
pub(super) struct Endings {
    /// A bit for each round that was ended.
    ended: Vec<u32>,
}

impl Checker for Endings {
    fn name(&self) -> &'static str {
        "endings"
    }

    fn see(&mut self, seen: &Seen) -> Verdict {
        if let Seen::EndDecided { number, round } = seen {
            let ended = entry(&mut self.ended, *number);
            let bit = 1 << round;
            let record = run().record(*number);
            let may_be_undecided = record.has_erred || record.plan.is_impolite;
            if *ended & bit != 0 && !may_be_undecided {
                return Err(format!("two calls ended round {round} of request {number}"));
            }
            *ended |= bit;
        }
        Ok(())
    }
}
