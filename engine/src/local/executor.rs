//! Tasks of a core: futures without an owner. One is polled when it was woken, by a message like
//! any other, so that its turn comes between those of connections; at most one message of a task
//! is on its way, so it is polled once a wake and once more at most.

use std::{
    cell::{Cell, RefCell},
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use super::services::{LocalServices, OUTSIDE};
use crate::slab::{Slab, SlabKey};

/// The name of a task on its core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TaskKey(SlabKey);

/// The way of a wake to the core, from any thread.
pub(crate) trait TaskDoor: Send + Sync {
    fn post_wake(&self, task: TaskKey);
}

/// Starts a task on the calling core. It is polled for the first time in the core's next turn, and
/// dropped when the core ends. A panic in it ends it, and is logged.
///
/// # Panics
/// On a thread that is no core's.
pub fn spawn(future: impl Future<Output = ()> + 'static) -> TaskKey {
    LocalServices::current().expect(OUTSIDE).executor.spawn(Box::pin(future))
}

/// Ends a task of the calling core, if it has not ended: it is dropped here, or after its poll if
/// this is called from inside that.
///
/// # Panics
/// On a thread that is no core's.
pub fn cancel(task: TaskKey) {
    LocalServices::current().expect(OUTSIDE).executor.cancel(task);
}

type LocalFuture = Pin<Box<dyn Future<Output = ()>>>;

/// The tasks of a core.
pub(super) struct Executor {
    tasks: RefCell<Slab<Task>>,
    door: Arc<dyn TaskDoor>,
    polls: Cell<u64>,
}

struct Task {
    /// `None` while it is polled.
    future: Option<LocalFuture>,
    waker: Arc<TaskWaker>,
    is_cancelled: bool,
}

struct TaskWaker {
    key: TaskKey,
    door: Arc<dyn TaskDoor>,
    /// Whether a message is on its way.
    is_woken: AtomicBool,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_woken.swap(true, Ordering::AcqRel) {
            self.door.post_wake(self.key);
        }
    }
}

impl Executor {
    pub(super) fn new(door: Arc<dyn TaskDoor>) -> Self {
        Self { tasks: RefCell::new(Slab::new()), door, polls: Cell::new(0) }
    }

    pub(super) fn len(&self) -> usize {
        self.tasks.borrow().len()
    }

    fn spawn(&self, future: LocalFuture) -> TaskKey {
        let door = Arc::clone(&self.door);
        let key = self.tasks.borrow_mut().insert_with(|key| {
            let key = TaskKey(key);
            let waker = Arc::new(TaskWaker { key, door, is_woken: AtomicBool::new(true) });
            Task { future: Some(future), waker, is_cancelled: false }
        });
        self.door.post_wake(TaskKey(key));
        TaskKey(key)
    }

    fn cancel(&self, task: TaskKey) {
        let mut tasks = self.tasks.borrow_mut();
        let is_polled = match tasks.get_mut(task.0) {
            Some(task) => {
                task.is_cancelled = true;
                task.future.is_none()
            }
            None => return,
        };
        let removed = if is_polled { None } else { tasks.remove(task.0) };
        drop(tasks);
        drop_apart(removed.and_then(|task| task.future));
    }

    pub(super) fn drop_all(&self) {
        let keys = self.tasks.borrow().keys();
        keys.into_iter().for_each(|key| self.cancel(TaskKey(key)));
    }

    fn poll(&self, key: TaskKey) {
        let taken = self.tasks.borrow_mut().get_mut(key.0).and_then(|task| {
            let waker = Arc::clone(&task.waker);
            task.future.take().map(|future| (future, waker))
        });
        let Some((mut future, waker)) = taken else { return };
        // A wake that comes while it is polled is for the next time.
        waker.is_woken.swap(false, Ordering::AcqRel);
        self.polls.set(self.polls.get() + 1);
        let waker = Waker::from(waker);
        let mut cx = Context::from_waker(&waker);
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut cx)));
        if polled.is_err() {
            tracing::error!("a task of a core panicked, see above; it has ended");
        }
        let mut tasks = self.tasks.borrow_mut();
        let is_over = !matches!(polled, Ok(Poll::Pending));
        match tasks.get_mut(key.0) {
            Some(task) if !is_over && !task.is_cancelled => task.future = Some(future),
            Some(_) | None => {
                drop(tasks.remove(key.0));
                drop(tasks);
                drop_apart(Some(future));
            }
        }
    }
}

impl LocalServices {
    /// Polls a task that was woken.
    pub(crate) fn poll_task(&self, task: TaskKey) {
        self.executor.poll(task);
    }

    /// Polls of tasks so far.
    pub fn polls(&self) -> u64 {
        self.executor.polls.get()
    }
}

/// Drops what is the application's where its panic is caught.
fn drop_apart(future: Option<LocalFuture>) {
    if catch_unwind(AssertUnwindSafe(|| drop(future))).is_err() {
        tracing::error!("the drop of a task of a core panicked, see above");
    }
}
