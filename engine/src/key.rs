//! Names of things that cross a layer: cores, listeners, connections. Newtypes, never bare
//! integers, and each name of a reused slot carries a stamp.

use std::fmt;

/// The number of a core, 0 for the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CoreId(pub u16);

/// The number of a listening address in the engine's configuration, 0 for the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ListenerId(pub u16);

/// The name of a connection on its core: a slot of the backend's slab and the stamp of this use
/// of the slot. Minted by the backend; a key of an earlier use reaches nobody.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConnKey {
    /// Index of the slot.
    pub slot: u32,
    /// Distinguishes the uses of one slot; 24 bits, since it travels in an io_uring `user_data`.
    pub stamp: u32,
}

impl ConnKey {
    /// Bits of a stamp that fit beside slot and kind in 64 bits.
    pub const STAMP_BITS: u32 = 24;
    /// The stamp's mask.
    pub const STAMP_MASK: u32 = (1 << Self::STAMP_BITS) - 1;
}

impl fmt::Debug for ConnKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "conn {}:{}", self.slot, self.stamp)
    }
}

impl fmt::Display for CoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
