//! A moment on a core's clock. The clock belongs to the backend, so that a simulated one can
//! stand in for the kernel's; nothing above a backend reads a clock of its own.

use std::{
    ops::{Add, Sub},
    sync::OnceLock,
    time::{Duration, Instant, SystemTime},
};

/// A moment, in nanoseconds since the engine's start, on a clock that never goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The engine's start.
    pub const ZERO: Self = Self(0);
    /// A moment that never comes.
    pub const NEVER: Self = Self(u64::MAX);

    /// The moment `nanos` nanoseconds after the engine's start.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the engine's start.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time since `earlier`, or zero if `earlier` is later.
    pub fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Timestamp {
    type Output = Self;

    /// Saturates at [`Timestamp::NEVER`]: "never" is a common timeout.
    fn add(self, duration: Duration) -> Self {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }
}

impl Sub<Duration> for Timestamp {
    type Output = Self;

    /// Saturates at [`Timestamp::ZERO`].
    fn sub(self, duration: Duration) -> Self {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_sub(nanos))
    }
}

/// A clock that any thread may read; a core reads its backend's, which is the same.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// The system's monotonic clock, counted from its first use in the process.
    pub fn system() -> Self {
        static START: OnceLock<Instant> = OnceLock::new();
        Self { start: *START.get_or_init(Instant::now) }
    }

    /// The time; inside the simulator its own.
    pub fn now(&self) -> Timestamp {
        #[cfg(all(feature = "sim", not(loom)))]
        if let Some(now) = crate::sim::world::now() {
            return now;
        }
        Timestamp::ZERO + self.start.elapsed()
    }

    /// The time since the Unix epoch, for dates in responses and logs. It may jump; deadlines
    /// never depend on it.
    pub fn unix_time(&self) -> Duration {
        #[cfg(all(feature = "sim", not(loom)))]
        if let Some(now) = crate::sim::world::now() {
            return now.saturating_since(Timestamp::ZERO);
        }
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
    }
}
