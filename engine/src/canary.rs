//! Deliberate defects, to prove that the simulator finds such. One build has them all; a run
//! chooses one. Outside the feature `sim` none is there.

/// A defect that a run of the simulator may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Canary {
    /// A post to a sleeping core does not wake it.
    LostWake,
    /// The operation of a call is pushed after the lock is released, behind its transition.
    PushedAfterTransition,
    /// A receive buffer goes back while its bytes are still wanted.
    LeaseReturnedEarly,
    /// A key of an earlier use of a slot reaches the present one.
    MissingStampCheck,
    /// `complete()` is legal a second time.
    DoubleCompletion,
    /// A parked exchange is taken out without its timer.
    TimerLeftBehind,
    /// What a send left behind is taken for sent.
    ShortSendTakenForWhole,
    /// Credit comes back when a write is applied, not when it is sent.
    CreditReturnedOnApply,
    /// The cell of an ended exchange is not closed.
    ClosedNotSet,
    /// The owner finds the list locked and does not come back.
    LookLostWhenLocked,
    /// QUEUED is cleared after the list was taken.
    QueuedClearedLate,
    /// Credit comes back and nobody who waits for it is woken.
    WaiterNotWoken,
    /// A timer fires one tick before its deadline.
    TimerEarly,
    /// A receive that ended by itself is not armed again.
    ReceiveNotRearmed,
    /// Operations of a call are applied in reverse.
    OperationsReversed,
    /// Listeners that were told of the end are kept and told again.
    CompletedTwice,
    /// A stream of a future that was dropped is not closed.
    StreamNotClosed,
    /// A wake that comes while the future is polled is taken for one that came before.
    PollDueClearedLate,
    /// `complete()` of another thread before the callback ended counts as the callback's own.
    PendingTakenForMust,
    /// A read or write callback runs without its state.
    OperationUnseen,
    /// The error of a round is still marked in the next one.
    ErrorMarkLasts,
}

impl Canary {
    /// Every defect.
    pub const ALL: &[Self] = &[
        Self::LostWake,
        Self::PushedAfterTransition,
        Self::LeaseReturnedEarly,
        Self::MissingStampCheck,
        Self::DoubleCompletion,
        Self::TimerLeftBehind,
        Self::ShortSendTakenForWhole,
        Self::CreditReturnedOnApply,
        Self::ClosedNotSet,
        Self::LookLostWhenLocked,
        Self::QueuedClearedLate,
        Self::WaiterNotWoken,
        Self::TimerEarly,
        Self::ReceiveNotRearmed,
        Self::OperationsReversed,
        Self::CompletedTwice,
        Self::StreamNotClosed,
        Self::PollDueClearedLate,
        Self::PendingTakenForMust,
        Self::OperationUnseen,
        Self::ErrorMarkLasts,
    ];

    /// Those that are mutants of the asynchronous state machine.
    pub const OF_THE_MACHINE: &[Self] =
        &[Self::PendingTakenForMust, Self::OperationUnseen, Self::ErrorMarkLasts];
}

/// Gives this process a defect, outside of a simulator's run too.
#[cfg(all(feature = "sim", not(loom)))]
pub fn choose(canary: Canary) {
    CHOSEN.set(canary).expect("a process has one defect");
}

#[cfg(all(feature = "sim", not(loom)))]
static CHOSEN: std::sync::OnceLock<Canary> = std::sync::OnceLock::new();

/// Whether the present run has this defect.
#[cfg(all(feature = "sim", not(loom)))]
pub fn has(canary: Canary) -> bool {
    crate::sim::world::has_canary(canary) || CHOSEN.get() == Some(&canary)
}

/// Never.
#[cfg(not(all(feature = "sim", not(loom))))]
#[inline(always)]
pub const fn has(_canary: Canary) -> bool {
    false
}
