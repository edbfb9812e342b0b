//! What may go wrong, and how often. Each place that can go wrong asks for its own kind, so that a
//! run can have one kind switched off or turned up without touching another.

use fastrand::Rng;

macro_rules! faults {
    ($($(#[$doc:meta])* $name:ident = $weight:literal,)*) => {
        /// A kind of fault. The weight is its chance in 10,000 at each opportunity.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Fault {
            $($(#[$doc])* $name,)*
        }

        impl Fault {
            /// Every kind, in the order of its number.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            const WEIGHTS: &[u16] = &[$($weight,)*];

            /// Its name, as written in code.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }
        }
    };
}

faults! {
    /// A receive brings fewer bytes than there are.
    ShortReceive = 500,
    /// A send takes fewer bytes than there is room for.
    ShortSend = 500,
    /// The peer's receive window is small.
    NarrowWindow = 1000,
    /// A completion is left for a later turn, behind others.
    LateCompletion = 500,
    /// No receive buffer is left: the receive ends with `ENOBUFS`.
    NoBuffers = 100,
    /// A multishot operation ends without an error, as after a full completion queue.
    ShotEnds = 100,
    /// A cancelled receive brings bytes all the same.
    CancelTooLate = 3000,
    /// A cancellation finds nothing to cancel.
    CancelMisses = 2000,
    /// An accept finds no descriptor left.
    NoDescriptors = 100,
    /// A wake reaches its core late.
    LateWake = 1000,
    /// A core wakes although nobody woke it.
    EarlyWake = 50,
    /// One wake is reported more than once.
    ManyWakes = 500,
    /// The clock leaps ahead.
    ClockLeap = 2,
    /// A core does not run for a while.
    CoreStall = 10,
    /// The worker pool is full.
    PoolFull = 100,
    /// A worker starts late.
    LateWorker = 500,
    /// A close completes some turns late.
    LateClose = 1000,
    /// A close with unread input destroys what the client has not read yet.
    CloseResets = 5000,
    /// A client's bytes arrive in pieces.
    ClientPieces = 1000,
    /// A client resets its connection.
    ClientResets = 50,
    /// A client ends its sending side and waits for the answers.
    ClientHalfCloses = 100,
    /// A client ends its sending side in the middle of a request.
    ClientCuts = 50,
    /// A client falls silent for longer than the server's patience.
    ClientSilent = 20,
    /// A client reads slowly.
    ClientSlow = 300,
    /// A client sends what is no request.
    ClientGarbage = 50,
    /// A callback of the application fails.
    CallbackFails = 200,
    /// A callback of the application panics.
    CallbackPanics = 200,
    /// The server drains in the middle of the run.
    EarlyDrain = 1500,
}

/// How often each kind of fault hits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultPlan {
    weights: Vec<u16>,
}

/// Chances are counted in this many parts.
const PARTS: u16 = 10_000;

impl FaultPlan {
    /// Nothing goes wrong.
    pub fn none() -> Self {
        Self { weights: vec![0; Fault::ALL.len()] }
    }

    /// Every kind with its usual weight.
    pub fn usual() -> Self {
        Self { weights: Fault::WEIGHTS.to_vec() }
    }

    /// Drawn from a seed: some kinds off, some turned up, some runs without any.
    pub fn swarm(rng: &mut Rng) -> Self {
        if rng.u8(..16) == 0 {
            return Self::none();
        }
        let mut plan = Self::usual();
        for weight in &mut plan.weights {
            *weight = match rng.u8(..8) {
                0 | 1 => 0,
                2 => weight.saturating_mul(8).min(PARTS / 2),
                _ => *weight,
            };
        }
        plan
    }

    /// The plan with one kind at another weight.
    #[must_use]
    pub fn with(mut self, fault: Fault, weight: u16) -> Self {
        self.weights[fault as usize] = weight.min(PARTS);
        self
    }

    /// The weight of a kind.
    pub fn weight(&self, fault: Fault) -> u16 {
        self.weights[fault as usize]
    }

    /// Whether the kind hits this time.
    #[inline]
    pub(crate) fn hits(&self, fault: Fault, rng: &mut Rng) -> bool {
        let weight = self.weight(fault);
        weight > 0 && rng.u16(..PARTS) < weight
    }
}
