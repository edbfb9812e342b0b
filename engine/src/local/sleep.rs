//! Timers of futures: a wheel of their own on each core, beside that of its deadlines.

use std::{
    cell::RefCell,
    fmt,
    future::Future,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use super::services::{LocalServices, OUTSIDE};
use crate::{
    slab::{Slab, SlabKey},
    timer_wheel::{TimerId, TimerWheel},
    timestamp::{Clock, Timestamp},
};

/// Ready when so much time has passed: never early, and at most a tick of the wheel (1 ms) after
/// its core looks. It counts from this call.
pub fn sleep(duration: Duration) -> Sleep {
    sleep_until(Clock::system().now() + duration)
}

/// Ready at a time of the cores' clock.
pub fn sleep_until(deadline: Timestamp) -> Sleep {
    Sleep { deadline, place: None }
}

/// Ready with what `future` answers, or with [`Elapsed`] when it takes longer than `duration`; then
/// the future is dropped with this one.
pub fn timeout<F: Future>(duration: Duration, future: F) -> Timeout<F> {
    Timeout { future: Box::pin(future), sleep: sleep(duration) }
}

/// A future that waits for a time. From [`sleep`].
///
/// # Panics
/// When it is polled on a thread that is no core's.
#[must_use = "a future does nothing unless it is awaited"]
pub struct Sleep {
    deadline: Timestamp,
    place: Option<Place>,
}

struct Place {
    services: Rc<LocalServices>,
    key: SlabKey,
}

impl Sleep {
    /// When it is ready.
    pub fn deadline(&self) -> Timestamp {
        self.deadline
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(Place { services, key }) = &self.place {
            return match services.sleepers.poll(*key, cx.waker()) {
                Poll::Ready(()) => {
                    self.place = None;
                    Poll::Ready(())
                }
                Poll::Pending => Poll::Pending,
            };
        }
        if Clock::system().now() >= self.deadline {
            return Poll::Ready(());
        }
        let services = LocalServices::current().expect(OUTSIDE);
        let key = services.sleepers.insert(self.deadline, cx.waker().clone());
        self.place = Some(Place { services, key });
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(Place { services, key }) = self.place.take() {
            services.sleepers.remove(key);
        }
    }
}

impl fmt::Debug for Sleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sleep").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}

/// A future with a limit. From [`timeout`].
#[must_use = "a future does nothing unless it is awaited"]
#[derive(Debug)]
pub struct Timeout<F> {
    /// Boxed, so that this type is `Unpin` without unsafe code.
    future: Pin<Box<F>>,
    sleep: Sleep,
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, Elapsed>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(output) = self.future.as_mut().poll(cx) {
            return Poll::Ready(Ok(output));
        }
        Pin::new(&mut self.sleep).poll(cx).map(|()| Err(Elapsed))
    }
}

/// The time of a [`timeout`] is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elapsed;

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it took longer than its timeout")
    }
}

impl std::error::Error for Elapsed {}

/// The timers of a core's futures.
pub(super) struct Sleepers(RefCell<Inner>);

struct Inner {
    wheel: TimerWheel<SlabKey>,
    entries: Slab<Sleeper>,
}

struct Sleeper {
    /// On the wheel; `None` once it fired.
    timer: Option<TimerId>,
    waker: Waker,
}

impl Sleepers {
    pub(super) fn new(now: Timestamp) -> Self {
        Self(RefCell::new(Inner { wheel: TimerWheel::new(now), entries: Slab::new() }))
    }

    pub(super) fn len(&self) -> usize {
        self.0.borrow().entries.len()
    }

    fn insert(&self, deadline: Timestamp, waker: Waker) -> SlabKey {
        let inner = &mut *self.0.borrow_mut();
        let wheel = &mut inner.wheel;
        inner.entries.insert_with(|key| Sleeper { timer: Some(wheel.insert(deadline, key)), waker })
    }

    fn poll(&self, key: SlabKey, waker: &Waker) -> Poll<()> {
        // Dropped behind the borrow: its drop may be that of another timer.
        let _old: Waker;
        let mut inner = self.0.borrow_mut();
        let Some(sleeper) = inner.entries.get_mut(key) else { return Poll::Ready(()) };
        if sleeper.timer.is_some() {
            _old = std::mem::replace(&mut sleeper.waker, waker.clone());
            return Poll::Pending;
        }
        if let Some(sleeper) = inner.entries.remove(key) {
            _old = sleeper.waker;
        }
        Poll::Ready(())
    }

    fn remove(&self, key: SlabKey) {
        let mut inner = self.0.borrow_mut();
        let removed = inner.entries.remove(key);
        if let Some(timer) = removed.as_ref().and_then(|sleeper| sleeper.timer) {
            inner.wheel.remove(timer);
        }
        drop(inner);
        drop(removed);
    }
}

impl LocalServices {
    /// When [`LocalServices::expire`] is due next.
    pub(crate) fn next_deadline(&self) -> Option<Timestamp> {
        self.sleepers.0.borrow().wheel.next_deadline()
    }

    /// Wakes whoever waited for the time that it is now.
    pub(crate) fn expire(&self, now: Timestamp) {
        loop {
            let mut inner = self.sleepers.0.borrow_mut();
            let Some((_, key)) = inner.wheel.expire(now) else { return };
            let Some(sleeper) = inner.entries.get_mut(key) else { continue };
            sleeper.timer = None;
            let waker = sleeper.waker.clone();
            // Outside the borrow: a waker may drop what it was the last to hold.
            drop(inner);
            waker.wake();
        }
    }
}
