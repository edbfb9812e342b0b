//! Named windows of the steps that cross threads. Outside the simulator a window is nothing; in
//! it, other actors run there, so that what lies between a lock, a transition, a push and a post
//! is explored although everything shares one thread.

/// A window in a step that crosses threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Point {
    /// A caller holds the operation list of a cell.
    CellLocked,
    /// A caller made its transition; its operation is not in the list yet.
    CellTransitioned,
    /// A caller released the list; its look is not posted yet.
    CellUnlocked,
    /// A message is in the inbox; the wake is not decided yet.
    InboxPushed,
    /// The owner announced sleep; its second look comes next.
    InboxAsleep,
    /// The owner took the list of a cell and has not acted on the state yet.
    OwnerTook,
    /// The owner decided its transition from the word that it took; the swap comes next.
    OwnerAdvances,
}

impl Point {
    /// Every window, in the order of its number.
    pub const ALL: [Self; 7] = [
        Self::CellLocked,
        Self::CellTransitioned,
        Self::CellUnlocked,
        Self::InboxPushed,
        Self::InboxAsleep,
        Self::OwnerTook,
        Self::OwnerAdvances,
    ];
}

/// Lets other actors run.
#[cfg(all(feature = "sim", not(loom)))]
pub fn interleave(point: Point) {
    crate::sim::world::interleave(point);
}

/// Nothing.
#[cfg(not(all(feature = "sim", not(loom))))]
#[inline(always)]
pub fn interleave(_point: Point) {}
