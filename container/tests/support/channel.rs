//! What threads of a test wait for each other with. In a simulation, where its threads are actors,
//! it is the actor that waits and not the thread that carries them all.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use ringcat_engine::{sync::thread, timestamp::Clock};

use super::PATIENCE;

/// A value that one waits for and others change.
#[derive(Default)]
pub(crate) struct Waiting<T> {
    value: Mutex<T>,
    waiting: Mutex<Vec<thread::Thread>>,
}

impl<T> Waiting<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: Mutex::new(value), waiting: Mutex::default() }
    }

    /// Runs `f` on the value, and has those who wait look again.
    pub(crate) fn change<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        let result = f(&mut self.value.lock().unwrap());
        self.waiting.lock().unwrap().drain(..).for_each(|thread| thread.unpark());
        result
    }

    /// Waits until `look` answers something; `None` if that takes longer than [`PATIENCE`].
    pub(crate) fn wait<R>(&self, mut look: impl FnMut(&mut T) -> Option<R>) -> Option<R> {
        let clock = Clock::system();
        let deadline = clock.now() + PATIENCE;
        loop {
            // Known before the look, so that a change after it wakes.
            self.waiting.lock().unwrap().push(thread::current());
            if let Some(result) = look(&mut self.value.lock().unwrap()) {
                return Some(result);
            }
            let rest = deadline.saturating_since(clock.now());
            if rest.is_zero() {
                return None;
            }
            thread::park_timeout(rest);
        }
    }
}

/// The end of a channel that sends; servlets hold it.
pub(crate) struct Sender<T>(Arc<Waiting<VecDeque<T>>>);

/// The end of a channel that [`take`] receives from.
pub(crate) struct Receiver<T>(Arc<Waiting<VecDeque<T>>>);

/// A channel without a limit.
pub(crate) fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let queue = Arc::new(Waiting::new(VecDeque::new()));
    (Sender(Arc::clone(&queue)), Receiver(queue))
}

impl<T> Sender<T> {
    pub(crate) fn send(&self, value: T) {
        self.0.change(|queue| queue.push_back(value));
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// What comes over a channel, soon.
#[track_caller]
pub(crate) fn take<T>(receiver: &Receiver<T>) -> T {
    receiver.0.wait(VecDeque::pop_front).expect("nothing came")
}
