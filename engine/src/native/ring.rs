//! The two queues of an io_uring: push, enter, reap. Safe: what an entry may point to is promised
//! by [`Operation`]'s constructors.
//!
//! Used by the thread that made it only, as the kernel demands of `SINGLE_ISSUER` rings. The
//! ring's descriptor is not registered, so the short-lived queue views of the crate are enough.

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsRawFd, RawFd},
    rc::Rc,
    thread,
    time::Duration,
};

use io_uring::{EnterFlags, IoUring, Submitter, cqueue, types};

use super::{operation::Operation, stats::NativeStats};

/// Tries to make a ring of one size, 50 ms in all. A delay of 20 to 30 ms was seen.
const ENOMEM_RETRIES: u32 = 10;

/// Between two such tries.
const ENOMEM_PAUSE: Duration = Duration::from_millis(5);

/// When the kernel runs what completes an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskRun {
    /// In the loop's enter only (`DEFER_TASKRUN`, 6.1).
    Deferred,
    /// At the thread's next system call (`COOP_TASKRUN`, 5.19).
    Cooperative,
    /// By interrupting the thread.
    Interrupting,
}

impl TaskRun {
    /// Best first.
    pub(crate) const ALL: [Self; 3] = [Self::Deferred, Self::Cooperative, Self::Interrupting];
}

/// How to make a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Setup {
    /// When completions are run.
    pub(crate) task_run: TaskRun,
    /// Submission queue entries.
    pub(crate) sq_entries: u32,
    /// Completion queue entries.
    pub(crate) cq_entries: u32,
}

impl Setup {
    /// The next smaller ring, if there is one worth having.
    pub(crate) fn halved(self) -> Option<Self> {
        if self.sq_entries <= SQ_ENTRIES_MIN {
            return None;
        }
        let (sq_entries, cq_entries) = (self.sq_entries / 2, self.cq_entries / 2);
        Some(Self { sq_entries, cq_entries, ..self })
    }
}

/// Whether an enter waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Submit and collect only.
    No,
    /// Until a completion is there, or for this long.
    For(Option<Duration>),
}

/// A completion, copied out of the queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    /// The operation's name.
    pub(crate) user_data: u64,
    /// Its result, negative an errno.
    pub(crate) result: i32,
    flags: u32,
}

impl Completion {
    /// Whether the operation goes on; else this was its last completion.
    #[inline]
    pub(crate) fn has_more(self) -> bool {
        cqueue::more(self.flags)
    }

    /// The buffer that the kernel filled.
    #[inline]
    pub(crate) fn buffer(self) -> Option<u16> {
        cqueue::buffer_select(self.flags)
    }

    /// Whether the socket had more bytes than it gave.
    #[inline]
    pub(crate) fn is_socket_nonempty(self) -> bool {
        cqueue::sock_nonempty(self.flags)
    }
}

/// An io_uring.
pub(crate) struct Ring {
    ring: IoUring,
    /// Operations that found the queue full, oldest first. They go before all newer ones.
    backlog: VecDeque<Operation>,
    /// Operations pushed whose last completion was not reaped.
    in_flight: usize,
    wait_flags: EnterFlags,
    stats: Rc<NativeStats>,
}

impl Ring {
    /// Makes a ring that belongs to the calling thread. Where locked memory is short it tries for
    /// a moment: the kernel gives the memory of a closed ring, the probe's or a predecessor's,
    /// back with a delay.
    ///
    /// # Errors
    /// The kernel refused: `EINVAL` where it lacks a flag, `ENOMEM` at the locked memory limit.
    pub(crate) fn new(setup: Setup, stats: &Rc<NativeStats>) -> io::Result<Self> {
        for _ in 0..ENOMEM_RETRIES {
            match Self::open(setup, Rc::clone(stats)) {
                Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => {
                    thread::sleep(ENOMEM_PAUSE);
                }
                made => return made,
            }
        }
        Self::open(setup, Rc::clone(stats))
    }

    fn open(setup: Setup, stats: Rc<NativeStats>) -> io::Result<Self> {
        let mut builder = IoUring::builder();
        builder.dontfork().setup_clamp().setup_cqsize(setup.cq_entries);
        match setup.task_run {
            TaskRun::Deferred => {
                builder.setup_submit_all().setup_single_issuer().setup_defer_taskrun();
            }
            TaskRun::Cooperative => {
                builder.setup_submit_all().setup_coop_taskrun();
            }
            TaskRun::Interrupting => {}
        }
        let ring = builder.build(setup.sq_entries)?;
        // Without the flag an idle core shows as a CPU that waits for a disk.
        let wait_flags = if ring.params().is_feature_no_iowait() {
            EnterFlags::NO_IOWAIT
        } else {
            EnterFlags::empty()
        };
        Ok(Self { ring, backlog: VecDeque::new(), in_flight: 0, wait_flags, stats })
    }

    /// The registration calls.
    pub(crate) fn submitter(&self) -> Submitter<'_> {
        self.ring.submitter()
    }

    /// What the kernel said of the ring.
    pub(crate) fn parameters(&self) -> &io_uring::Parameters {
        self.ring.params()
    }

    /// Operations whose last completion was not reaped yet.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Queues an operation for the next enter. If the queue is full the kernel is entered once to
    /// empty it; if that does not help the operation waits here.
    #[inline]
    pub(crate) fn push(&mut self, operation: Operation) {
        self.in_flight += 1;
        if !self.backlog.is_empty() || !self.try_push(&operation) {
            self.push_to_full_queue(operation);
        }
    }

    /// Submits all that is queued, collects completions and, if asked, waits for one.
    ///
    /// `EINTR` and a passed timeout are success: whoever calls looks at queue and clock anyway,
    /// since the kernel does not always say which of the two came.
    ///
    /// # Errors
    /// `EBADR`: a completion was lost, no operation can be trusted to end. Anything else would be
    /// an error in this file.
    pub(crate) fn enter(&mut self, wait: Wait) -> io::Result<()> {
        // Each round hands a queue full of waiting operations over; at least one moves a round.
        for _ in 0..BACKLOG_ROUNDS_MAX {
            self.drain_backlog();
            if self.backlog.is_empty() {
                break;
            }
            let queued = self.queued();
            self.enter_once(queued, Wait::No)?;
        }
        let wait = if self.backlog.is_empty() { wait } else { Wait::No };
        let queued = self.queued();
        let entered = self.enter_once(queued, wait)?;
        if entered == Entered::TryAgain && self.ring.completion().is_empty() {
            // The kernel is short of memory and took no submission, so it did not wait either.
            // A short wait for what is in flight keeps this loop from spinning.
            self.enter_once(0, Wait::For(Some(Duration::from_millis(1))))?;
        }
        if self.ring.submission().cq_overflow() {
            self.stats.overflows.add(1);
        }
        Ok(())
    }

    /// Copies up to `max` completions to the end of `batch` and frees their places, so that the
    /// kernel can post more while they are handled. Returns whether some are left.
    pub(crate) fn reap(&mut self, batch: &mut Vec<Completion>, max: usize) -> bool {
        let before = batch.len();
        let mut queue = self.ring.completion();
        batch.extend(queue.by_ref().take(max).map(|entry| Completion {
            user_data: entry.user_data(),
            result: entry.result(),
            flags: entry.flags(),
        }));
        let has_more = !queue.is_empty();
        drop(queue);
        let ended = batch[before..].iter().filter(|completion| !completion.has_more()).count();
        assert!(ended <= self.in_flight, "more completions than operations");
        self.in_flight -= ended;
        self.stats.completions.add((batch.len() - before) as u64);
        has_more
    }

    #[inline]
    fn try_push(&mut self, operation: &Operation) -> bool {
        let mut queue = self.ring.submission();
        // SAFETY: the memory that the entry names, if any, stays until the operation's last
        // completion; that is what `Operation` stands for.
        unsafe { queue.push(operation.entry()) }.is_ok()
    }

    #[cold]
    fn push_to_full_queue(&mut self, operation: Operation) {
        self.stats.queue_full.add(1);
        if self.backlog.is_empty() {
            // A refusal shows again at the next enter, which reports it.
            let refused = self.ring.submit().is_err();
            self.stats.enters.add(1);
            if !refused && self.try_push(&operation) {
                return;
            }
        }
        self.backlog.push_back(operation);
    }

    fn drain_backlog(&mut self) {
        while let Some(operation) = self.backlog.pop_front() {
            if !self.try_push(&operation) {
                self.backlog.push_front(operation);
                return;
            }
        }
    }

    /// Entries in the submission queue.
    fn queued(&mut self) -> u32 {
        u32::try_from(self.ring.submission().len()).expect("a queue has at most 2^15 entries")
    }

    fn enter_once(&mut self, to_submit: u32, wait: Wait) -> io::Result<Entered> {
        // Completions are delivered only by an enter that asks for them: always ask.
        let flags = EnterFlags::GETEVENTS | EnterFlags::EXT_ARG;
        let (want, flags, timeout) = match wait {
            Wait::No => (0, flags, None),
            Wait::For(timeout) => (1, flags | self.wait_flags, timeout),
        };
        let timespec = types::Timespec::from(timeout.unwrap_or_default());
        let mut arguments = types::SubmitArgs::new();
        if timeout.is_some() {
            arguments = arguments.timespec(&timespec);
        }
        self.stats.enters.add(1);
        // SAFETY: the flags say that the argument is an extended one, as `SubmitArgs` is; it and
        // the timespec that it names live in this frame until the call returns.
        let entered =
            unsafe { self.ring.submitter().enter(to_submit, want, flags.bits(), Some(&arguments)) };
        let error = match entered {
            Ok(_) => return Ok(Entered::Done),
            Err(error) => error,
        };
        match error.raw_os_error() {
            Some(libc::ETIME | libc::EINTR) => Ok(Entered::Done),
            Some(libc::EAGAIN | libc::EBUSY) => Ok(Entered::TryAgain),
            Some(libc::EBADR) => Err(io::Error::new(
                error.kind(),
                "the kernel lost a completion (EBADR): it was out of memory",
            )),
            _ => Err(error),
        }
    }
}

impl AsRawFd for Ring {
    fn as_raw_fd(&self) -> RawFd {
        self.ring.as_raw_fd()
    }
}

/// What an enter did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entered {
    /// It submitted and waited as asked, or was cut short by clock or signal.
    Done,
    /// The kernel cannot take submissions now: reap, then come again. They stay queued.
    TryAgain,
}

/// The smallest submission queue that `ENOMEM` leads to.
const SQ_ENTRIES_MIN: u32 = 256;

/// Times that an enter hands over a full queue before it goes on with what came back.
const BACKLOG_ROUNDS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(sq_entries: u32, cq_entries: u32) -> Ring {
        let setup = Setup { task_run: TaskRun::Deferred, sq_entries, cq_entries };
        Ring::new(setup, &Rc::default()).unwrap()
    }

    #[test]
    fn more_operations_than_both_queues_hold_all_complete() {
        let mut ring = ring(4, 8);
        for _ in 0..1000 {
            ring.push(Operation::nop());
        }
        assert_eq!(ring.in_flight(), 1000);
        let mut batch = Vec::new();
        while ring.in_flight() > 0 {
            ring.enter(Wait::For(Some(Duration::from_secs(5)))).unwrap();
            ring.reap(&mut batch, 3);
        }
        assert_eq!(batch.len(), 1000);
        assert!(ring.stats.queue_full.get() > 0);
        assert!(ring.stats.overflows.get() > 0, "8 places for 1000 completions");
    }

    #[test]
    fn halving_stops_at_256() {
        let setup = Setup { task_run: TaskRun::Deferred, sq_entries: 1024, cq_entries: 4096 };
        let smaller = setup.halved().unwrap();
        assert_eq!((smaller.sq_entries, smaller.cq_entries), (512, 2048));
        let smallest = smaller.halved().unwrap();
        assert_eq!((smallest.sq_entries, smallest.cq_entries), (256, 1024));
        assert_eq!(smallest.halved(), None);
    }
}
