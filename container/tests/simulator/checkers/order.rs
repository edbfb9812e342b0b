//! Pipelined requests are answered in their order: an answer that names its request names the one
//! whose turn it is.

use super::{Checker, Seen, Verdict};

#[derive(Default)]
pub(super) struct Order;

impl Checker for Order {
    fn name(&self) -> &'static str {
        "order"
    }

    fn see(&mut self, seen: &Seen) -> Verdict {
        match seen {
            Seen::Answered { number, named: Some(named), .. } if named != number => {
                Err(format!("the answer to request {named} came in the place of {number}"))
            }
            _ => Ok(()),
        }
    }
}
