//! A handle of a request that has ended never acts, also when its slot serves another request.

use super::{Checker, Seen, Verdict};

#[derive(Default)]
pub(super) struct Stale;

impl Checker for Stale {
    fn name(&self) -> &'static str {
        "stale"
    }

    fn see(&mut self, seen: &Seen) -> Verdict {
        match seen {
            Seen::StaleCall { number, has_acted: true, call } => {
                Err(format!("{call} on request {number}, which had ended, was taken"))
            }
            _ => Ok(()),
        }
    }
}
