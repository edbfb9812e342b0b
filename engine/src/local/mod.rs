//! What a core offers to the futures that run on it: tasks of their own, timers, and TCP streams
//! over the core's own ring. Nothing here is `Send`, and nothing here waits.
//!
//! | file | what it is |
//! |---|---|
//! | [`services`] | all of it, one a core, and the way to those of the calling core |
//! | [`executor`] | tasks: futures that are polled when they are woken |
//! | [`sleep`] | timers |
//! | [`outgoing`] | outgoing connections as the core sees them |
//! | [`tcp_stream`] | the same as a future sees them |
//! | `compat` | the I/O traits of other crates (features `compat-hyper`, `compat-futures`) |

#[cfg(any(feature = "compat-hyper", feature = "compat-futures"))]
mod compat;
pub mod executor;
pub mod outgoing;
pub mod services;
pub mod sleep;
pub mod tcp_stream;
