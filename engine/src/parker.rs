//! A thread that waits until it is told to go on, or until its time is over. Only for threads
//! that are no core's: a core never waits for anybody. Telling never waits either, since it takes
//! no lock, so a core may do it.

use std::{fmt, sync::Arc, task::Wake, time::Duration};

use crate::{
    sync::{AtomicBool, Ordering, thread},
    timestamp::{Clock, Timestamp},
};

/// The place where one thread waits. Whoever may tell it to go on holds it as a
/// [`Waker`](std::task::Waker), so that a waiting thread and a waiting future look alike.
///
/// | field | who reads | who writes | ordering and why |
/// |---|---|---|---|
/// | `thread` | anybody, to wake | nobody | fixed at the start |
/// | `is_told` | the waiting thread | anybody | Release, Acquire: what went before is seen |
/// | `deadline` | the waiting thread | nobody | fixed at the start |
pub struct Parker {
    thread: thread::Thread,
    is_told: AtomicBool,
    deadline: Option<Timestamp>,
}

impl Parker {
    /// A place for the calling thread, which alone may [`park`](Self::park) there. All its waits
    /// together last as long as `timeout`, counted from now; without one they last for ever.
    pub fn new(timeout: Option<Duration>) -> Self {
        Self {
            thread: thread::current(),
            is_told: AtomicBool::new(false),
            deadline: timeout.map(|timeout| Clock::system().now() + timeout),
        }
    }

    /// Waits until a wake that no earlier call has answered; false once the time is over.
    pub fn park(&self) -> bool {
        loop {
            // The load alone does not take it: a wake that comes in between must be seen too.
            if self.is_told.load(Ordering::Acquire) && self.is_told.swap(false, Ordering::Acquire) {
                return true;
            }
            let left = match self.deadline {
                // A timeout beyond the clock's range is as good as none.
                None | Some(Timestamp::NEVER) => None,
                Some(deadline) => match deadline.saturating_since(Clock::system().now()) {
                    Duration::ZERO => return false,
                    left => Some(left),
                },
            };
            park_thread(left);
        }
    }
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is_told.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

impl fmt::Debug for Parker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parker").field("thread", &self.thread).finish_non_exhaustive()
    }
}

/// May return early, as parked threads do.
#[cfg(not(loom))]
fn park_thread(left: Option<Duration>) {
    match left {
        None => thread::park(),
        Some(left) => thread::park_timeout(left),
    }
}

/// Models have no clock, and loom forgets the token of a thread that it blocks elsewhere. A wake
/// that is lost shows as a model that never ends.
#[cfg(loom)]
fn park_thread(_left: Option<Duration>) {
    thread::yield_now();
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::task::Waker;

    use super::*;

    #[test]
    fn a_wake_is_kept_until_it_is_answered() {
        let parker = Arc::new(Parker::new(None));
        let waker = Waker::from(Arc::clone(&parker));
        waker.wake_by_ref();
        waker.wake();
        assert!(parker.park());
    }

    #[test]
    fn a_foreign_token_is_no_wake_and_the_time_ends() {
        let parker = Parker::new(Some(Duration::ZERO));
        thread::current().unpark();
        assert!(!parker.park());
        // The token of the line above may be left; it must not end a wait either.
        let parker = Arc::new(Parker::new(None));
        let waker = Waker::from(Arc::clone(&parker));
        let other = std::thread::spawn(move || waker.wake());
        assert!(parker.park());
        other.join().expect("the other thread only wakes");
    }
}
