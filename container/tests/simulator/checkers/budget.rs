//! A turn stays within its work budget: it handles so many messages and no more, so that input of
//! others is not kept waiting; and every receive buffer is back at its end.

use ringcat_engine::{key::CoreId, observe::Observation};

use super::{Checker, Verdict};

/// Looks and timeouts of one turn: 256 messages and 256 completions lead to a look each, every
/// timer of a tick to one more. What passes this is a circle.
const LOOKS_MAX: u32 = 4096;

#[derive(Default)]
pub(super) struct Budget {
    looks: Vec<u32>,
    messages: Vec<u32>,
    /// The last exchange that took a head, and how many in a row.
    heads: Vec<(u64, u32)>,
}

/// Messages that one turn handles, at most.
const MESSAGES_MAX: u32 = 256;

/// Pipelined requests of one connection that a turn takes. One look more may come within a turn:
/// what arrived, and a message.
const REQUESTS_MAX: u32 = 2 * 32;

impl Budget {
    fn of<T: Clone + Default>(list: &mut Vec<T>, core: CoreId) -> &mut T {
        super::entry(list, u64::from(core.0))
    }
}

impl Checker for Budget {
    fn name(&self) -> &'static str {
        "budget"
    }

    fn observe(&mut self, observation: &Observation) -> Verdict {
        match *observation {
            Observation::TurnBegan { core } => {
                *Self::of(&mut self.looks, core) = 0;
                *Self::of(&mut self.messages, core) = 0;
                *Self::of(&mut self.heads, core) = (0, 0);
            }
            Observation::Unparked { exchange } => {
                let looks = Self::of(&mut self.looks, exchange.core);
                *looks += 1;
                if *looks > LOOKS_MAX {
                    return Err(format!(
                        "core {} looks at {looks} exchanges a turn",
                        exchange.core
                    ));
                }
            }
            Observation::Head { exchange } => {
                let heads = Self::of(&mut self.heads, exchange.core);
                if heads.0 != exchange.key {
                    *heads = (exchange.key, 0);
                }
                heads.1 += 1;
                if heads.1 > REQUESTS_MAX {
                    let (core, count) = (exchange.core, heads.1);
                    return Err(format!(
                        "core {core} takes {count} requests of a connection a turn"
                    ));
                }
            }
            Observation::Message { core } => {
                let messages = Self::of(&mut self.messages, core);
                *messages += 1;
                if *messages > MESSAGES_MAX {
                    return Err(format!("core {core} handles {messages} messages a turn"));
                }
            }
            Observation::TurnEnded { core, leases: 1.., .. } => {
                return Err(format!("core {core} keeps receive buffers over the end of a turn"));
            }
            _ => {}
        }
        Ok(())
    }
}
