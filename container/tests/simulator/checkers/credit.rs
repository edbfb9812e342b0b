//! A response has no more bytes under way than its credit: a client that does not read stops its
//! writers.

use super::{Checker, Seen, Verdict};

#[derive(Default)]
pub(super) struct Credit;

impl Checker for Credit {
    fn name(&self) -> &'static str {
        "credit"
    }

    fn see(&mut self, seen: &Seen) -> Verdict {
        match seen {
            Seen::Written { number, under_way, bound } if under_way > bound => {
                Err(format!("{under_way} bytes of request {number} are under way, {bound} may be"))
            }
            _ => Ok(()),
        }
    }
}
