//! All that a core offers to the futures on it. Made with the core; whoever runs on the core finds
//! it in what the thread says of itself.

use std::{cell::RefCell, rc::Rc, sync::Arc as StdArc};

use super::{
    executor::{Executor, TaskDoor},
    outgoing::Outgoing,
    sleep::Sleepers,
};
use crate::{
    backend::{Command, Commands},
    current,
    timestamp::Timestamp,
};

/// What a core offers to the futures that run on it.
pub struct LocalServices {
    pub(super) executor: Executor,
    pub(super) sleepers: Sleepers,
    pub(super) outgoing: Outgoing,
    /// What is asked of the backend, until the core hands it over.
    pub(super) commands: RefCell<Vec<Command>>,
}

impl LocalServices {
    pub(crate) fn new(now: Timestamp, door: StdArc<dyn TaskDoor>) -> Self {
        Self {
            executor: Executor::new(door),
            sleepers: Sleepers::new(now),
            outgoing: Outgoing::default(),
            commands: RefCell::default(),
        }
    }

    /// Those of the core that runs on the calling thread.
    pub fn current() -> Option<Rc<Self>> {
        current::services()
    }

    /// Runs `f` on the thread of the core that these belong to.
    pub fn scope<R>(self: &Rc<Self>, f: impl FnOnce() -> R) -> R {
        current::with_services(Rc::clone(self), f)
    }

    /// Tasks that have not ended.
    pub fn task_count(&self) -> usize {
        self.executor.len()
    }

    /// Timers that are waited for.
    pub fn sleeper_count(&self) -> usize {
        self.sleepers.len()
    }

    /// Outgoing connections, those included that are being made or closed.
    pub fn outgoing_count(&self) -> usize {
        self.outgoing.len()
    }

    /// What is kept for futures: tasks, timers that are waited for, streams that are held.
    pub fn held_count(&self) -> usize {
        self.executor.len() + self.sleepers.len() + self.outgoing.stream_count()
    }

    /// Hands over what futures asked of the backend.
    pub(crate) fn drain_commands(&self, commands: &mut Commands) {
        self.outgoing.flush(&self.commands);
        for command in self.commands.borrow_mut().drain(..) {
            commands.push(command);
        }
    }

    /// The core ends: tasks go, and so do connections.
    pub(crate) fn stop(&self) {
        self.executor.drop_all();
        self.outgoing.close_all(&self.commands);
    }
}

/// What futures of a core say when there is no core.
pub(super) const OUTSIDE: &str =
    "timers, tasks and streams live on cores: use them in an async fn servlet or a task of a core";
