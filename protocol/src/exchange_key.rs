//! The name of an exchange on its core. Everything above the poller names an exchange by this
//! key; only the protocol handler knows which connection carries it.

use std::fmt;

/// A slot of a core's processor slab and the stamp of this use of the slot.
///
/// A key of an earlier use reaches nobody: the slab compares the stamp. (Tomcat learnt the need
/// from responses that went to the next request of a recycled processor.)
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ExchangeKey {
    /// Index of the slot.
    pub slot: u32,
    /// Distinguishes the uses of one slot.
    pub stamp: u32,
}

impl ExchangeKey {
    /// The key as one number, for timers and thread-locals.
    pub const fn to_u64(self) -> u64 {
        (self.stamp as u64) << 32 | self.slot as u64
    }

    /// The key that [`ExchangeKey::to_u64`] made a number of.
    #[expect(clippy::cast_possible_truncation, reason = "the halves are what is wanted")]
    pub const fn from_u64(number: u64) -> Self {
        Self { slot: number as u32, stamp: (number >> 32) as u32 }
    }
}

impl fmt::Debug for ExchangeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "exchange {}:{}", self.slot, self.stamp)
    }
}
