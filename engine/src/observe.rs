//! What the product says about itself to the checkers of the simulator; nothing elsewhere. An
//! observation is plain numbers: this crate does not know what the layers above mean by them.

use crate::{current::ExchangeName, key::CoreId, timestamp::Timestamp};

/// Something that checkers want to know.
#[derive(Clone, Copy, Debug)]
pub enum Observation {
    /// A core begins a turn.
    TurnBegan {
        /// The core.
        core: CoreId,
    },
    /// A core has ended a turn, its timers included.
    TurnEnded {
        /// The core.
        core: CoreId,
        /// The turn's time.
        now: Timestamp,
        /// Receive buffers of the core that are lent still.
        leases: usize,
    },
    /// A core takes a message out of its inbox.
    Message {
        /// The core.
        core: CoreId,
    },
    /// A request's head is complete.
    Head {
        /// The exchange.
        exchange: ExchangeName,
    },
    /// An event met the state of an exchange.
    Transition {
        /// The exchange.
        exchange: ExchangeName,
        /// The state word before.
        from: u64,
        /// The state word after; `None` if the event was refused.
        to: Option<u64>,
        /// The event, by the number that the layer above gives it.
        event: u8,
    },
    /// An exchange was parked.
    Parked {
        /// The exchange.
        exchange: ExchangeName,
        /// When its round times out.
        deadline: Option<Timestamp>,
    },
    /// The asynchronous round of an exchange timed out.
    TimedOut {
        /// The exchange.
        exchange: ExchangeName,
        /// When it was to.
        deadline: Timestamp,
        /// The core's time.
        now: Timestamp,
    },
    /// A parked exchange was taken out again, or one that was not parked has an event.
    Unparked {
        /// The exchange.
        exchange: ExchangeName,
    },
    /// An exchange is over, its key dead.
    Ended {
        /// The exchange.
        exchange: ExchangeName,
    },
}

/// Tells the checkers.
#[cfg(all(feature = "sim", not(loom)))]
pub fn observe(observation: &Observation) {
    crate::sim::world::observe(observation);
}

/// Nothing.
#[cfg(not(all(feature = "sim", not(loom))))]
#[inline(always)]
pub const fn observe(_observation: &Observation) {}
