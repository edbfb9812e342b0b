//! A future that a test makes ready, from whichever thread; and a thread that runs one.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
};

use ringcat_engine::parker::Parker;

use super::PATIENCE;

/// Ready once it was given; clones share that, and the last one that was polled is woken.
#[derive(Clone, Default)]
pub(crate) struct Signal(Arc<Mutex<(bool, Option<Waker>)>>);

impl Signal {
    /// Makes it ready.
    pub(crate) fn give(&self) {
        let waker = {
            let mut state = self.0.lock().unwrap();
            state.0 = true;
            state.1.take()
        };
        // Outside the lock: in a simulation others may run inside a wake.
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Wakes who waits, for nothing.
    pub(crate) fn wake_only(&self) {
        let waker = self.0.lock().unwrap().1.clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Future for Signal {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.0.lock().unwrap();
        if state.0 {
            return Poll::Ready(());
        }
        state.1 = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// Ready on its second poll.
#[derive(Default)]
pub(crate) struct Yield(bool);

impl Future for Yield {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.0, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Runs a future on the calling thread, which waits.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let parker = Arc::new(Parker::new(Some(PATIENCE)));
    let waker = Waker::from(Arc::clone(&parker));
    let mut future = std::pin::pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        assert!(parker.park(), "the future waited in vain");
    }
}
