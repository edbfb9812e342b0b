//! A timeout is never early, by the application's own reckoning, and at most a tick late of its
//! core's clock: no turn ends with a parked request whose time was over a tick before.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use ringcat_engine::{
    current::ExchangeName, key::CoreId, observe::Observation, timer_wheel::TICK,
    timestamp::Timestamp,
};

use super::{Checker, Seen, Verdict};
use crate::run::{now, run};

/// What turns and waits for a turn may take, in time of the application.
const SLACK: Duration = Duration::from_millis(20);

#[derive(Default)]
pub(super) struct Timeouts {
    parked: HashMap<ExchangeName, Timestamp, foldless::Build>,
    /// By core, deadline and key.
    due: BTreeSet<(CoreId, Timestamp, u64)>,
}

impl Timeouts {
    fn forget(&mut self, exchange: ExchangeName) {
        if let Some(deadline) = self.parked.remove(&exchange) {
            self.due.remove(&(exchange.core, deadline, exchange.key));
        }
    }
}

impl Checker for Timeouts {
    fn name(&self) -> &'static str {
        "timeouts"
    }

    fn see(&mut self, seen: &Seen) -> Verdict {
        match seen {
            Seen::TimedOut { number, after, own, timeout } => {
                let parked = run().record(*number).parked_after;
                // The limit of a drain is a timeout of its own.
                if run().is_draining() {
                    return Ok(());
                }
                let is_early = after < timeout;
                let is_late =
                    parked.is_some_and(|parked| *own > parked.max(*timeout) + TICK + SLACK);
                if is_early || is_late {
                    return Err(format!(
                        "request {number} timed out after {after:?}, {own:?} of it its own; its \
                         timeout is {timeout:?}, it was parked after {parked:?}; {:?}",
                        run().record(*number)
                    ));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn observe(&mut self, observation: &Observation) -> Verdict {
        match *observation {
            Observation::Parked { exchange, deadline: Some(deadline) } => {
                // One that is over already fires on the next tick.
                let deadline = deadline.max(now());
                self.parked.insert(exchange, deadline);
                self.due.insert((exchange.core, deadline, exchange.key));
            }
            Observation::Unparked { exchange } | Observation::Ended { exchange } => {
                self.forget(exchange);
            }
            Observation::TimedOut { exchange, deadline, now } if now < deadline => {
                return Err(format!("{exchange:?} timed out at {now:?}, before {deadline:?}"));
            }
            Observation::TurnEnded { core, now, .. } => {
                let first = self.due.range((core, Timestamp::ZERO, 0)..).next();
                if let Some((of, deadline, key)) = first
                    && *of == core
                    && *deadline + TICK < now
                {
                    return Err(format!(
                        "exchange {key:#x} of core {core} waits at {now:?} for a timeout that was \
                         due at {deadline:?}"
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// A hash without a seed: the order of a map's entries must not differ between two runs.
mod foldless {
    use std::hash::{BuildHasherDefault, DefaultHasher};

    pub(super) type Build = BuildHasherDefault<DefaultHasher>;
}
