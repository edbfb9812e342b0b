//! The waker of the future that runs a request on its core. It holds nothing but the cell, so the
//! way to the owner and the exchange's key: a wake marks the future as due and asks the owner to
//! look, from any thread, and one look is on its way at most.

use std::{
    sync::Arc as StdArc,
    task::{Wake, Waker},
};

use ringcat_engine::sync::Arc;

use super::cell::{AsyncCell, Operation};
use crate::async_state_machine::Flag;

/// In std's `Arc`, which is what a waker is made of; the models have one of their own.
struct TaskWaker<O: Operation>(Arc<AsyncCell<O>>);

impl<O: Operation + 'static> Wake for TaskWaker<O> {
    fn wake(self: StdArc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &StdArc<Self>) {
        self.0.wake_task();
    }
}

impl<O: Operation + 'static> AsyncCell<O> {
    /// A waker for the future of the exchange. One that outlives the exchange reaches nobody.
    pub fn task_waker(cell: &Arc<Self>) -> Waker {
        Waker::from(StdArc::new(TaskWaker(Arc::clone(cell))))
    }

    fn wake_task(&self) {
        let before = self.set_bits(Flag::PollDue);
        if !before.has(Flag::PollDue) && !before.has(Flag::Closed) {
            self.post_look();
        }
    }

    /// Whether the future was woken since this was asked last. The owner's, before it polls: a
    /// wake that comes while it polls is for the next time.
    pub fn take_poll_due(&self) -> bool {
        self.clear_flag(Flag::PollDue).has(Flag::PollDue)
    }
}
