//! What a core counts. Each counter has one writer, its core, so that counting costs a load and a
//! store and no atomic read-modify-write; any thread may read.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that one thread raises and any thread reads.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `count`. Only the owning core calls this: two writers would lose counts.
    pub fn add(&self, count: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }

    /// The present value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How often each deadline of a core's connections passed, named as in
/// [`CoreTimeouts`](crate::core_context::CoreTimeouts).
#[derive(Debug, Default)]
pub struct DeadlineCounters {
    /// No first byte came.
    pub connection: Counter,
    /// No further request came.
    pub keep_alive: Counter,
    /// A head was not complete.
    pub head: Counter,
    /// A body came too slowly, or not at all.
    pub body: Counter,
    /// The client took its output too slowly, or not at all.
    pub write: Counter,
    /// The client did not end its stream after an early answer.
    pub linger: Counter,
}

/// Counters of one core, on cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct CoreCounters {
    /// Connections accepted.
    pub connections_accepted: Counter,
    /// Connections closed.
    pub connections_closed: Counter,
    /// Connections that failed: resets, broken sends, timeouts.
    pub connections_failed: Counter,
    /// Deadlines of connections that passed.
    pub deadlines: DeadlineCounters,
    /// Connections cut by the end of a drain.
    pub connections_cut: Counter,
    /// Bytes received.
    pub received_bytes: Counter,
    /// Bytes sent.
    pub sent_bytes: Counter,
    /// Messages of other threads and of the core to itself.
    pub messages: Counter,
}
