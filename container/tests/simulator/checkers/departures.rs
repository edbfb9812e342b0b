//! A parked request learns soon what its client did: after a reset it is ended through its
//! listeners, and its writers are refused; the end of the client's stream shows, and ends nothing.

use std::time::Duration;

use super::{Checker, Seen, Verdict};
use crate::{
    plan::Kind,
    run::{Moment, run},
};

/// The product promises a second.
const LEARNT_AFTER: Duration = Duration::from_millis(1100);

#[derive(Default)]
pub(super) struct Departures;

impl Checker for Departures {
    fn name(&self) -> &'static str {
        "departures"
    }

    fn see(&mut self, seen: &Seen) -> Verdict {
        let (number, is_closed_seen) = match seen {
            Seen::Completed { number, is_peer_closed } => (*number, Some(*is_peer_closed)),
            Seen::Written { number, .. } => (*number, None),
            _ => return Ok(()),
        };
        let record = run().record(number);
        // A worker that is inside holds its request as long as it likes.
        if record.plan.kind == Kind::Blocking || record.callbacks_running > 1 {
            return Ok(());
        }
        let Some(quiet) = record.quiet_since else { return Ok(()) };
        let parked_for = |moment: Option<Moment>| moment.map(|moment| moment.max(quiet).elapsed());
        if let Some(took) = parked_for(record.reset_at)
            && took > LEARNT_AFTER
        {
            return Err(format!("request {number} lived on for {took:?} after its client's reset"));
        }
        if let (Some(took), Some(false)) = (parked_for(record.half_closed_at), is_closed_seen)
            && took > LEARNT_AFTER
        {
            return Err(format!(
                "request {number} does not know after {took:?} of its client's end"
            ));
        }
        Ok(())
    }
}
