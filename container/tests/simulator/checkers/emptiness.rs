//! Nothing is left of a core when it has ended: no connection, no timer, no exchange, no message,
//! and nothing of a future. Only a cut leaves connections behind, and with them their deadlines.

use super::{Checker, End, Verdict};

#[derive(Default)]
pub(super) struct Emptiness;

impl Checker for Emptiness {
    fn name(&self) -> &'static str {
        "emptiness"
    }

    fn at_end(&mut self, end: &End) -> Verdict {
        // The cut itself is a timer, which a core that ends before leaves.
        let timers_max = usize::from(end.drained_after_limit.is_some());
        for core in &end.cores {
            if !end.is_cut && (core.sockets > 0 || core.timers > timers_max) {
                return Err(format!("something is left: {core:?}"));
            }
            if core.held > 0 {
                return Err(format!("futures are left: {core:?}"));
            }
        }
        if end.exchanges > 0 {
            return Err(format!("{} exchanges are left", end.exchanges));
        }
        Ok(())
    }
}
