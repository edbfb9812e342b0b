//! The atomics, locks and threads of everything that two threads touch: the real ones, or loom's
//! under `--cfg loom`; locks and threads may be those of the simulator too. The layers above take
//! theirs from here, so one switch covers a model that spans crates.

#[cfg(loom)]
pub use loom::{
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    },
    thread,
};
#[cfg(not(loom))]
pub use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};
/// The answers of a lock; loom's locks give std's.
pub use std::sync::{PoisonError, TryLockError};
#[cfg(all(not(feature = "sim"), not(loom)))]
pub use std::{
    sync::{Mutex, MutexGuard},
    thread,
};

#[cfg(all(feature = "sim", not(loom)))]
pub use crate::sim::sync::{Mutex, MutexGuard, thread};
