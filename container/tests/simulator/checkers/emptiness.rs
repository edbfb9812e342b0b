//! Nothing is left of a core when it has ended: no connection, no timer, no exchange, no message.
//! Only a cut leaves connections behind, and with them their deadlines.

use super::{Checker, End, Verdict};

#[derive(Default)]
pub(super) struct Emptiness;

impl Checker for Emptiness {
    fn name(&self) -> &'static str {
        "emptiness"
    }

    fn at_end(&mut self, end: &End) -> Verdict {
        for core in &end.cores {
            if !end.is_cut && (core.sockets > 0 || core.timers > 0) {
                return Err(format!("something is left: {core:?}"));
            }
        }
        if end.exchanges > 0 {
            return Err(format!("{} exchanges are left", end.exchanges));
        }
        Ok(())
    }
}
