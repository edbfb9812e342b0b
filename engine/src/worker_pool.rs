//! Bounded threads for code that blocks: `blocking` servlets, `AsyncContext::start`, what an
//! application calls that waits. Stands for Tomcat's `Executor`, of which only the part that runs
//! application code is left.
//!
//! A job goes to an idle thread; else to a new one, up to the limit; else to the queue, up to its
//! limit; else it is refused and comes back. No call waits for a job. A thread that found nothing
//! to do for a minute ends.

use std::{
    collections::VecDeque,
    fmt, io, mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use crate::current::Current;

/// What a worker runs, once.
pub type Job = Box<dyn FnOnce() + Send>;

/// Where blocking code is sent: a [`WorkerPool`], or what a simulation puts in its place.
pub trait Pool: Send + Sync {
    /// Has the job run on a thread that may block. Never waits for a job to end.
    ///
    /// # Errors
    /// Gives the job back if the pool is full or stopped.
    fn try_submit(&self, job: Job) -> Result<(), Job>;
}

/// Limits of a [`WorkerPool`].
#[derive(Clone, Debug)]
pub struct WorkerPoolOptions {
    /// Threads at most; at least 1. Default 200.
    pub threads_max: usize,
    /// Jobs at most that wait for a thread. Default 10 000.
    pub queue_max: usize,
    /// What the names of the threads begin with, before a dash and a number. The system keeps 15
    /// bytes of a name. Default `http-worker`.
    pub name_prefix: String,
}

impl Default for WorkerPoolOptions {
    fn default() -> Self {
        Self { threads_max: 200, queue_max: 10_000, name_prefix: "http-worker".to_owned() }
    }
}

/// How busy a pool is, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerPoolCounts {
    /// Jobs that run.
    pub active: usize,
    /// Jobs that wait for a thread.
    pub queued: usize,
    /// Threads, with or without a job.
    pub threads: usize,
}

/// Bounded threads for code that blocks; see the file's head. Any thread may call it.
///
/// Dropping it stops it without waiting: what is queued still runs.
pub struct WorkerPool {
    shared: Arc<Shared>,
}

struct Shared {
    options: WorkerPoolOptions,
    /// After this long without a job a thread ends.
    idle_max: Duration,
    /// Held for a few instructions at a time and while a thread starts; never while a job runs.
    state: Mutex<State>,
    /// A job is queued, or the pool is stopped.
    work: Condvar,
    /// The last thread ended.
    ended: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    /// Threads that wait on `work`.
    idle: usize,
    active: usize,
    /// Not 0 while a job is queued.
    threads: usize,
    /// Threads that were ever started: the number of the last one.
    started: usize,
    is_stopped: bool,
}

impl WorkerPool {
    /// A pool without threads: they start with the jobs.
    ///
    /// # Panics
    /// If `threads_max` is 0, or `name_prefix` contains a NUL.
    pub fn new(options: WorkerPoolOptions) -> Self {
        Self::with_idle_max(options, IDLE_MAX)
    }

    fn with_idle_max(options: WorkerPoolOptions, idle_max: Duration) -> Self {
        assert!(options.threads_max > 0, "a worker pool needs a thread");
        assert!(!options.name_prefix.contains('\0'), "the name of a thread has no NUL");
        let shared = Shared {
            options,
            idle_max,
            state: Mutex::default(),
            work: Condvar::new(),
            ended: Condvar::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Takes no job from now on, runs what is queued, and waits until all threads ended, for
    /// `timeout` at most. `false` if some still run then; they end after their jobs, unattended.
    /// To be called from outside the pool: a job that calls it waits for itself.
    pub fn shutdown(&self, timeout: Duration) -> bool {
        self.shared.stop();
        self.shared.wait_for_the_end(timeout)
    }

    /// How busy the pool is now.
    pub fn counts(&self) -> WorkerPoolCounts {
        let state = self.shared.lock();
        WorkerPoolCounts { active: state.active, queued: state.queue.len(), threads: state.threads }
    }
}

impl Pool for WorkerPool {
    fn try_submit(&self, job: Job) -> Result<(), Job> {
        let WorkerPoolOptions { threads_max, queue_max, .. } = self.shared.options;
        let mut state = self.shared.lock();
        if state.is_stopped {
            return Err(job);
        }
        // A notified thread counts as idle until it has the lock, and its job is queued as long.
        let has_idle_thread = state.idle > state.queue.len();
        if !has_idle_thread && state.threads < threads_max {
            return self.shared.start_thread(&mut state, job);
        }
        if !has_idle_thread && state.queue.len() >= queue_max {
            return Err(job);
        }
        state.queue.push_back(job);
        drop(state);
        self.shared.work.notify_one();
        Ok(())
    }
}

impl Drop for WorkerPool {
    fn drop(&mut self) {
        self.shared.stop();
    }
}

impl fmt::Debug for WorkerPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerPool")
            .field("options", &self.shared.options)
            .field("counts", &self.counts())
            .finish_non_exhaustive()
    }
}

impl Shared {
    /// Starts a thread with its first job. Under the lock, so that nobody queues a job for a
    /// thread that then does not start.
    fn start_thread(self: &Arc<Self>, state: &mut State, job: Job) -> Result<(), Job> {
        let number = state.started + 1;
        // A failed start drops its closure; what lies here it cannot take along.
        let first = Arc::new(Mutex::new(Some(job)));
        let Err(error) = self.spawn(&first, number) else {
            state.started = number;
            state.threads += 1;
            return Ok(());
        };
        tracing::error!(%error, number, "a worker thread could not be started");
        let job = first.lock().unwrap_or_else(PoisonError::into_inner).take();
        let job = job.expect("no thread ran that could take it");
        if state.threads == 0 || state.queue.len() >= self.options.queue_max {
            return Err(job);
        }
        // No thread is idle: the first that ends its job finds this one.
        state.queue.push_back(job);
        Ok(())
    }

    fn spawn(self: &Arc<Self>, first: &Arc<Mutex<Option<Job>>>, number: usize) -> io::Result<()> {
        let (shared, first) = (Arc::clone(self), Arc::clone(first));
        let name = format!("{}-{number}", self.options.name_prefix);
        thread::Builder::new().name(name).spawn(move || {
            let job = first.lock().unwrap_or_else(PoisonError::into_inner).take();
            drop(first);
            let current = Current { core: None, is_worker: true, exchange: None };
            current.scope(|| shared.run_jobs(job));
        })?;
        Ok(())
    }

    /// The life of a thread.
    fn run_jobs(&self, mut job: Option<Job>) {
        let mut state = self.lock();
        let mut has_waited_in_vain = false;
        loop {
            if let Some(job) = job.take().or_else(|| state.queue.pop_front()) {
                state.active += 1;
                drop(state);
                run(job);
                state = self.lock();
                state.active -= 1;
                has_waited_in_vain = false;
            } else if state.is_stopped || has_waited_in_vain {
                break;
            } else {
                state.idle += 1;
                let waited = self.work.wait_timeout(state, self.idle_max);
                let (again, result) = waited.unwrap_or_else(PoisonError::into_inner);
                state = again;
                state.idle -= 1;
                has_waited_in_vain = result.timed_out();
            }
        }
        state.threads -= 1;
        if state.threads == 0 {
            self.ended.notify_all();
        }
    }

    fn stop(&self) {
        self.lock().is_stopped = true;
        self.work.notify_all();
    }

    fn wait_for_the_end(&self, timeout: Duration) -> bool {
        let state = self.lock();
        let waited = self.ended.wait_timeout_while(state, timeout, |state| state.threads > 0);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.threads == 0
    }

    /// No code of a job runs under the lock, so a poisoned one is consistent all the same.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs a job; its panic ends here, so that the thread and the counts survive it.
fn run(job: Job) {
    let Err(panic) = catch_unwind(AssertUnwindSafe(job)) else { return };
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    tracing::error!(panic = text.as_deref().unwrap_or("not a text"), "a worker's job panicked");
    // What was thrown may be of the application's making and panic when it is dropped.
    if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        mem::forget(another);
    }
}

const IDLE_MAX: Duration = Duration::from_secs(60);

#[cfg(all(test, not(loom)))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc,
    };

    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    fn pool(threads_max: usize, queue_max: usize) -> WorkerPool {
        let options = WorkerPoolOptions { threads_max, queue_max, ..Default::default() };
        WorkerPool::new(options)
    }

    /// Submits a job that says that it runs and then waits for the returned sender.
    fn block_a_thread(pool: &WorkerPool) -> mpsc::Sender<()> {
        let (release, released) = mpsc::channel::<()>();
        let (running, runs) = mpsc::channel();
        let job: Job = Box::new(move || {
            running.send(()).unwrap();
            released.recv().expect_err("the test lets go by dropping");
        });
        assert!(pool.try_submit(job).is_ok());
        runs.recv_timeout(LONG).unwrap();
        release
    }

    #[test]
    fn a_job_runs_as_a_worker_on_a_named_thread() {
        let pool = pool(1, 0);
        let (send, receive) = mpsc::channel();
        let job: Job = Box::new(move || {
            let name = thread::current().name().map(str::to_owned);
            send.send((Current::get(), name)).unwrap();
        });
        assert!(pool.try_submit(job).is_ok());
        let (current, name) = receive.recv_timeout(LONG).unwrap();
        assert_eq!(current, Current { core: None, is_worker: true, exchange: None });
        assert_eq!(name.as_deref(), Some("http-worker-1"));
        assert!(pool.shutdown(LONG));
    }

    #[test]
    fn threads_then_queue_then_refusal() {
        let pool = pool(2, 1);
        let releases = [block_a_thread(&pool), block_a_thread(&pool)];
        let (send, receive) = mpsc::channel();
        let job: Job = Box::new(move || send.send("queued").unwrap());
        assert!(pool.try_submit(job).is_ok());
        assert_eq!(pool.counts(), WorkerPoolCounts { active: 2, queued: 1, threads: 2 });

        let (send, refused_ran) = mpsc::channel();
        let job: Job = Box::new(move || send.send("refused").unwrap());
        let refused = pool.try_submit(job).expect_err("the queue is full");
        drop(releases);
        assert_eq!(receive.recv_timeout(LONG), Ok("queued"));
        refused();
        assert_eq!(refused_ran.recv(), Ok("refused"), "the job came back whole");
        assert!(pool.shutdown(LONG));
    }

    #[test]
    fn a_panic_leaves_thread_and_counts_alone() {
        struct Spiteful;
        impl Drop for Spiteful {
            fn drop(&mut self) {
                std::panic::resume_unwind(Box::new("again"));
            }
        }
        let pool = pool(1, 10);
        assert!(pool.try_submit(Box::new(|| std::panic::resume_unwind(Box::new("x")))).is_ok());
        let spiteful: Job = Box::new(|| std::panic::resume_unwind(Box::new(Spiteful)));
        assert!(pool.try_submit(spiteful).is_ok());
        drop(block_a_thread(&pool));
        assert_eq!(pool.counts().threads, 1);
        assert!(pool.shutdown(LONG));
        assert_eq!(pool.counts(), WorkerPoolCounts::default());
    }

    #[test]
    fn shutdown_runs_what_is_queued_and_refuses_the_rest() {
        let pool = pool(1, 10);
        let release = block_a_thread(&pool);
        let ran = Arc::new(AtomicUsize::new(0));
        for _ in 0..5 {
            let ran = Arc::clone(&ran);
            let job: Job = Box::new(move || {
                ran.fetch_add(1, Ordering::Relaxed);
            });
            assert!(pool.try_submit(job).is_ok());
        }
        assert!(!pool.shutdown(Duration::ZERO), "a job runs still");
        assert!(pool.try_submit(Box::new(|| ())).is_err());
        drop(release);
        assert!(pool.shutdown(LONG));
        assert_eq!(ran.load(Ordering::Relaxed), 5);
    }

    #[test]
    fn an_idle_thread_is_used_again() {
        let pool = pool(8, 0);
        for _ in 0..3 {
            drop(block_a_thread(&pool));
            while pool.shared.lock().idle == 0 {
                thread::yield_now();
            }
        }
        assert_eq!(pool.shared.lock().started, 1);
    }

    #[test]
    fn an_idle_thread_ends_after_its_time() {
        let options = WorkerPoolOptions { threads_max: 8, queue_max: 0, ..Default::default() };
        let pool = WorkerPool::with_idle_max(options, Duration::from_millis(1));
        for _ in 0..3 {
            drop(block_a_thread(&pool));
            assert!(pool.shared.wait_for_the_end(LONG), "idle threads end");
        }
        assert_eq!(pool.shared.lock().started, 3);
    }

    #[test]
    fn dropping_the_pool_runs_what_is_queued() {
        let pool = pool(1, 1);
        let release = block_a_thread(&pool);
        let (send, receive) = mpsc::channel();
        assert!(pool.try_submit(Box::new(move || send.send(()).unwrap())).is_ok());
        let shared = Arc::clone(&pool.shared);
        drop(pool);
        drop(release);
        assert_eq!(receive.recv_timeout(LONG), Ok(()));
        assert!(shared.wait_for_the_end(LONG));
    }
}
