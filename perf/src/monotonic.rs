//! The kernel's monotonic clock in nanoseconds. It is one clock for all processes of a machine, so
//! a moment that the server took and one that its client took can be subtracted; the `Instant` of
//! std is the same clock and keeps its number to itself.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since a moment that is the same for every process.
pub(crate) fn now_nanos() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).expect("the clock counts from the machine's start");
    let nanos = u64::try_from(time.tv_nsec).expect("a part of a second is not negative");
    seconds * 1_000_000_000 + nanos
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn runs_with_the_clock_of_std() {
        let (begin, instant) = (now_nanos(), Instant::now());
        while instant.elapsed().as_millis() < 5 {}
        let elapsed_millis = (now_nanos() - begin) / 1_000_000;
        assert!((5..5000).contains(&elapsed_millis), "{elapsed_millis} ms");
    }
}
