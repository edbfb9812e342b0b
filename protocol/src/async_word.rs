//! State, round and flags of an asynchronous request in one number: what
//! [`transition`](crate::async_state_machine::transition) takes and gives.

use std::fmt;

use crate::async_state_machine::AsyncState;

/// A bit of a [`Word`]. The first three belong to the machine, the others to the layers round it;
/// the machine only clears them with `recycle` and obeys [`Flag::Closed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Flag {
    /// The first error of this round was processed.
    ErrorMarked,
    /// This round's one dispatch was used.
    DispatchUsed,
    /// `on_error` has returned: only the owner may complete or dispatch in this round.
    OthersBarred,
    /// The round failed before the callback that started it had returned.
    FailedBeforeExit,
    /// The owner is inside a callback of this exchange.
    Busy,
    /// A look is posted to the owner and not taken up yet.
    Queued,
    /// The head of the response is fixed.
    Committed,
    /// Sending failed; writes answer with the error.
    IoError,
    /// The peer ended its stream.
    PeerClosed,
    /// Somebody waits for credit, or to hear that the client has left.
    Waiters,
    /// Input can be read without waiting.
    ReadReady,
    /// A read callback is owed.
    ReadOwed,
    /// Output can be written without waiting.
    WriteReady,
    /// A write callback is owed.
    WriteOwed,
    /// A read listener is set.
    ReadListened,
    /// A write listener is set.
    WriteListened,
    /// Another thread has bytes of the body and did not ask for more yet: it may still be at work
    /// with the last ones.
    ReaderInside,
    /// Another thread wants to read the body.
    InboundWanted,
    /// Nothing more of the body will come: input stays ready.
    InboundEnded,
    /// The exchange is to end when the peer ends its stream.
    EndsOnPeerClose,
    /// The last callback of a request that is not asynchronous has returned: no round begins.
    StartBarred,
    /// The future that runs the request was woken, and is to be polled.
    PollDue,
    /// The exchange is over; the word serves no further event.
    Closed,
}

impl Flag {
    /// The flag's bit in the number of a [`Word`].
    pub const fn bit(self) -> u64 {
        1 << (Word::STATE_BITS + self as u32)
    }
}

/// The state, the number of the round and the flags of a request in one number, so that they
/// change in one step: state in bits 0-3, flags in bits 4-31, round in bits 32-63.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Word(u64);

impl Word {
    /// An ordinary request in round 0 without flags.
    pub const NEW: Self = Self(0);

    const STATE_BITS: u32 = 4;
    const STATE_MASK: u64 = (1 << Self::STATE_BITS) - 1;
    const ROUND_SHIFT: u32 = 32;

    /// The word as an atomic holds it.
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// The word that [`Word::to_bits`] made a number of.
    ///
    /// # Panics
    /// If the number holds no state, which only a number from elsewhere can.
    pub const fn from_bits(bits: u64) -> Self {
        assert!((bits & Self::STATE_MASK) < AsyncState::ALL.len() as u64, "no such state");
        Self(bits)
    }

    /// The state.
    pub const fn state(self) -> AsyncState {
        AsyncState::ALL[(self.0 & Self::STATE_MASK) as usize]
    }

    /// The number of the current round, 0 before the first `start_async`; it wraps.
    pub const fn round(self) -> u32 {
        (self.0 >> Self::ROUND_SHIFT) as u32
    }

    /// Whether a flag is set.
    pub const fn has(self, flag: Flag) -> bool {
        self.0 & flag.bit() != 0
    }

    /// The word with a flag set.
    #[must_use]
    pub const fn with(self, flag: Flag) -> Self {
        Self(self.0 | flag.bit())
    }

    /// The word with a flag cleared.
    #[must_use]
    pub const fn without(self, flag: Flag) -> Self {
        Self(self.0 & !flag.bit())
    }

    /// The word in another state.
    #[must_use]
    pub const fn with_state(self, state: AsyncState) -> Self {
        Self(self.0 & !Self::STATE_MASK | state as u64)
    }

    /// The word at the start of the next round, with the marks of the last one forgotten.
    pub(crate) const fn next_round(self) -> Self {
        let flags = self.without(Flag::ErrorMarked).without(Flag::DispatchUsed);
        let flags = flags.without(Flag::FailedBeforeExit);
        let flags = flags.without(Flag::OthersBarred).0 & ((1 << Self::ROUND_SHIFT) - 1);
        Self((self.round().wrapping_add(1) as u64) << Self::ROUND_SHIFT | flags)
    }

    /// Nothing but the round, in state DISPATCHED: what the next request on this storage starts
    /// with, also where [`Flag::Closed`] forbids the event `recycle`.
    #[must_use]
    pub const fn recycled(self) -> Self {
        Self((self.round() as u64) << Self::ROUND_SHIFT)
    }
}

impl fmt::Debug for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = (self.0 as u32) >> Self::STATE_BITS;
        write!(f, "{} round {} flags {flags:#x}", self.state(), self.round())
    }
}

const _: () = assert!(Flag::Closed.bit() < 1 << Word::ROUND_SHIFT, "the flags reach the round");
const _: () = assert!(AsyncState::ALL.len() <= 1 << Word::STATE_BITS, "the states need more bits");
