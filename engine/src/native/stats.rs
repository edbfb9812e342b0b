//! Counters of a native core. They belong to its thread: no atomics.

use std::cell::Cell;

/// A number that only its core's thread touches.
#[derive(Debug, Default)]
pub struct Counter(Cell<u64>);

impl Counter {
    /// Adds to the number.
    #[inline]
    pub fn add(&self, count: u64) {
        self.0.set(self.0.get().wrapping_add(count));
    }

    /// The number now.
    pub fn get(&self) -> u64 {
        self.0.get()
    }
}

/// What a native core counted since its start.
#[derive(Debug, Default)]
pub struct NativeStats {
    /// Calls of `io_uring_enter`.
    pub enters: Counter,
    /// Completions reaped.
    pub completions: Counter,
    /// Turns that found the completion queue overflown.
    pub overflows: Counter,
    /// Receives that found no buffer.
    pub no_buffers: Counter,
    /// Receives armed again after their operation had ended.
    pub rearms: Counter,
    /// Cancellations submitted.
    pub cancels: Counter,
    /// Sends of which the kernel took only a part.
    pub short_sends: Counter,
    /// Connections accepted.
    pub accepts: Counter,
    /// Accepts that failed.
    pub accept_errors: Counter,
    /// Times that accepting was put off because descriptors or memory were short.
    pub accept_pauses: Counter,
    /// Buffers lent to the handler.
    pub leases: Counter,
    /// Submissions that found the submission queue full.
    pub queue_full: Counter,
    /// Wakes by other threads.
    pub wakes: Counter,
}
