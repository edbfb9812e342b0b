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
}

/// Messages that one turn handles, at most.
const MESSAGES_MAX: u32 = 256;

impl Budget {
    fn of(list: &mut Vec<u32>, core: CoreId) -> &mut u32 {
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
