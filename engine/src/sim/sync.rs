//! Locks and threads of actors. Outside a simulation they are the standard library's, so that
//! other tests of the same build run as ever.

use std::{
    sync::{LockResult, TryLockError, TryLockResult},
    time::Duration,
};

pub use std::sync::MutexGuard;

use super::world;

/// A lock whose waiters give way to other actors.
#[derive(Debug, Default)]
pub struct Mutex<T>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// A lock that is free.
    pub const fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    /// Waits for the lock.
    ///
    /// # Errors
    /// As the standard library's.
    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        if !world::is_inside() {
            return self.0.lock();
        }
        loop {
            match self.0.try_lock() {
                Ok(guard) => return Ok(guard),
                Err(TryLockError::Poisoned(poisoned)) => return Err(poisoned),
                Err(TryLockError::WouldBlock) => world::give_way("waits for a lock"),
            }
        }
    }

    /// Takes the lock if it is free.
    ///
    /// # Errors
    /// As the standard library's.
    pub fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        self.0.try_lock()
    }

    /// The value, which nobody else can reach.
    ///
    /// # Errors
    /// As the standard library's.
    pub fn get_mut(&mut self) -> LockResult<&mut T> {
        self.0.get_mut()
    }
}

/// Threads, which inside a simulation are actors.
pub mod thread {
    use super::{Duration, world};
    use crate::timestamp::Clock;

    /// A thread or an actor.
    #[derive(Clone, Debug)]
    pub struct Thread(Who);

    #[derive(Clone, Debug)]
    enum Who {
        System(std::thread::Thread),
        Actor(world::ActorId),
    }

    impl Thread {
        /// Ends its present or next wait.
        pub fn unpark(&self) {
            match &self.0 {
                Who::System(thread) => thread.unpark(),
                Who::Actor(actor) => world::unpark(*actor),
            }
        }
    }

    /// Who is running.
    pub fn current() -> Thread {
        Thread(match world::running() {
            Some(actor) => Who::Actor(actor),
            None => Who::System(std::thread::current()),
        })
    }

    /// Waits for an unpark.
    pub fn park() {
        if world::is_inside() { world::park(None) } else { std::thread::park() }
    }

    /// Waits for an unpark, or for so long.
    pub fn park_timeout(timeout: Duration) {
        if world::is_inside() {
            world::park(Some(Clock::system().now() + timeout));
        } else {
            std::thread::park_timeout(timeout);
        }
    }

    /// Lets others run.
    pub fn yield_now() {
        if world::is_inside() { world::give_way("yields") } else { std::thread::yield_now() }
    }
}
