//! A drain ends within its limit: what is still open a moment after it is cut.

use std::time::Duration;

use super::{Checker, End, Verdict};

#[derive(Default)]
pub(super) struct Drain;

/// Turns and ticks that the last cut may take.
const SLACK: Duration = Duration::from_millis(100);

impl Checker for Drain {
    fn name(&self) -> &'static str {
        "drain"
    }

    fn at_end(&mut self, end: &End) -> Verdict {
        match end.drained_after_limit {
            Some(took) if took > end.drain_cut + SLACK => Err(format!(
                "the cores ended {took:?} after the drain limit, {:?} is allowed",
                end.drain_cut
            )),
            Some(_) | None => Ok(()),
        }
    }
}
