//! Futures beside the requests of a core: what drives a client's connection, say. They end with
//! their core.

use std::future::Future;

use ringcat_engine::local::executor;
pub use ringcat_engine::local::executor::TaskKey;

/// Starts a task on the calling core. It is polled for the first time in the core's next turn, need
/// not be `Send`, and is dropped when the core ends. A panic in it ends it, and is logged.
///
/// # Panics
/// On a thread that is no core's.
pub fn spawn(future: impl Future<Output = ()> + 'static) -> TaskKey {
    executor::spawn(future)
}

/// Ends a task of the calling core, if it has not ended.
///
/// # Panics
/// On a thread that is no core's.
pub fn cancel(task: TaskKey) {
    executor::cancel(task);
}
