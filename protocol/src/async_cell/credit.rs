//! Credit: how many bytes of a response may be on their way between a writer on another thread
//! and the kernel. A write takes it, and it is given back when the bytes have left the socket's
//! out-queue or are discarded, so that a slow client slows its writers and not the server.

use std::{
    fmt,
    sync::Arc,
    task::{Poll, Waker},
    time::Duration,
};

use ringcat_engine::{
    canary::{self, Canary},
    current::Current,
    interleave::{Point, interleave},
    parker::Parker,
    sync::Ordering,
};

use super::cell::{AsyncCell, Operation, Ops};
use crate::async_state_machine::{Flag, Side, Word};

/// A write that was not accepted. The operation comes back.
#[derive(Debug, PartialEq, Eq)]
pub enum WriteRefused<O> {
    /// There is no credit now: a `try_` form, or a thread that must not wait.
    WouldBlock(O),
    /// The exchange is over.
    Closed(O),
    /// Sending has failed.
    Io(O),
    /// The owner is inside a callback of the exchange, so waiting could be for ever, and
    /// [`CellLimits::backlog_bytes_max`](super::CellLimits::backlog_bytes_max) is reached.
    Backlog(O),
    /// No credit came within the write timeout.
    TimedOut(O),
}

impl<O> WriteRefused<O> {
    /// The operation that was refused.
    pub fn into_operation(self) -> O {
        match self {
            Self::WouldBlock(operation)
            | Self::Closed(operation)
            | Self::Io(operation)
            | Self::Backlog(operation)
            | Self::TimedOut(operation) => operation,
        }
    }
}

impl<O> fmt::Display for WriteRefused<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WouldBlock(_) => {
                "the response takes no more bytes now; use try_write or await the write"
            }
            Self::Closed(_) => "the exchange is over",
            Self::Io(_) => "the response can no longer be sent",
            Self::Backlog(_) => "too many bytes were written during a callback of the request",
            Self::TimedOut(_) => "the client did not take the response in time",
        })
    }
}

impl<O: fmt::Debug> std::error::Error for WriteRefused<O> {}

/// What becomes of a write.
#[derive(Clone, Copy)]
enum Admission {
    Accepted,
    Wait,
    Closed,
    Io,
    Backlog,
}

impl<O: Operation> AsyncCell<O> {
    /// Bytes of the response that hold credit. For an answer only.
    pub fn in_flight_bytes(&self) -> u64 {
        self.in_flight.load(Ordering::Acquire)
    }

    /// Pushes a write if there is credit. A write that finds any is accepted whole. The owner is
    /// asked to look when enough has gathered. Any thread, never waits.
    ///
    /// # Errors
    /// [`WriteRefused`], with the operation.
    pub fn try_write(&self, operation: O) -> Result<(), WriteRefused<O>> {
        self.write_or_register(operation, None)
    }

    /// The form for futures: pushes the write that `operation` holds, or leaves it there and
    /// wakes `waker` when trying again makes sense. Any thread, never waits.
    ///
    /// # Errors
    /// [`WriteRefused`], with the operation, but for `WouldBlock`.
    ///
    /// # Panics
    /// If `operation` is empty.
    pub fn poll_write(
        &self,
        operation: &mut Option<O>,
        waker: &Waker,
    ) -> Poll<Result<(), WriteRefused<O>>> {
        let wanted = operation.take().expect("a write is polled until it is ready, not longer");
        match self.write_or_register(wanted, Some(waker)) {
            Err(WriteRefused::WouldBlock(back)) => {
                *operation = Some(back);
                Poll::Pending
            }
            result => Poll::Ready(result),
        }
    }

    /// Waits for credit, then pushes the write. The wait ends by credit, by the owner entering
    /// a callback of the exchange, by an I/O error, by the end of the exchange, or after
    /// `timeout`. On a core's thread it never waits: that could be for itself.
    ///
    /// # Errors
    /// [`WriteRefused`], with the operation; `WouldBlock` on a core's thread only.
    pub fn write_blocking(
        &self,
        operation: O,
        timeout: Option<Duration>,
    ) -> Result<(), WriteRefused<O>> {
        let refused = match self.try_write(operation) {
            Err(WriteRefused::WouldBlock(operation)) => operation,
            result => return result,
        };
        if Current::get().core.is_some() {
            return Err(WriteRefused::WouldBlock(refused));
        }
        let parker = Arc::new(Parker::new(timeout));
        let waker = Waker::from(Arc::clone(&parker));
        let mut operation = Some(refused);
        loop {
            if let Poll::Ready(result) = self.poll_write(&mut operation, &waker) {
                return result;
            }
            if !parker.park() {
                self.forget_waiter(&waker);
                let operation = operation.expect("a write that has to wait is left in place");
                return Err(WriteRefused::TimedOut(operation));
            }
        }
    }

    /// Gives credit back: so many bytes have left the socket's out-queue or were discarded. The
    /// owner's.
    ///
    /// # Panics
    /// If more comes back than was taken.
    pub fn release_credit(&self, bytes: usize) {
        let before = self.in_flight.fetch_sub(bytes as u64, Ordering::AcqRel);
        assert!(before >= bytes as u64, "credit of {bytes} bytes comes back, {before} are out");
        if self.word().has(Flag::Waiters) && !canary::has(Canary::WaiterNotWoken) {
            self.wake_due_waiters();
        }
    }

    /// Wakes who waits for credit if trying again makes sense. Any thread, outside the lock. If
    /// the lock is held, the holder comes here after it: see the folder's map.
    pub(super) fn wake_due_waiters(&self) {
        // A read that is a write: of two threads that come here one sees the other's doings.
        let word = Word::from_bits(self.word.fetch_or(0, Ordering::AcqRel));
        let in_flight_bytes = self.in_flight_bytes();
        let is_due =
            |asker| !matches!(self.admission(asker, word, in_flight_bytes), Admission::Wait);
        let (others_due, own_due) = (is_due(Side::Other), is_due(Side::Request));
        let watchers_due = is_client_gone(word);
        if !word.has(Flag::Waiters) || !others_due && !own_due && !watchers_due {
            return;
        }
        let Some(mut ops) = self.try_lock() else { return };
        let mut due = Vec::new();
        if let Some(waiters) = &mut ops.waiters {
            if others_due {
                due.append(&mut waiters.others);
            }
            if own_due {
                due.append(&mut waiters.own);
            }
            if watchers_due {
                due.append(&mut waiters.watchers);
            }
        }
        self.forget_waiters_if_none(&mut ops);
        drop(ops);
        due.into_iter().for_each(Waker::wake);
    }

    /// Waits for the client's departure: ready once it has ended its sending side, the connection
    /// has failed, or the exchange is over. Any thread.
    pub fn poll_client_gone(&self, waker: &Waker) -> Poll<()> {
        if is_client_gone(self.word()) {
            return Poll::Ready(());
        }
        let mut ops = self.lock();
        // Closing takes the waiters away, and nobody would come for a later one.
        if !self.word().has(Flag::Closed) {
            register(&mut ops.waiters.get_or_insert_default().watchers, waker);
            self.set_bits(Flag::Waiters);
        }
        drop(ops);
        self.wake_due_waiters();
        if is_client_gone(self.word()) { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Nobody waits any more, unless somebody does. Inside the lock.
    fn forget_waiters_if_none(&self, ops: &mut Ops<O>) {
        if ops.waiters.as_ref().is_none_or(|waiters| waiters.is_empty()) {
            ops.waiters = None;
            self.clear_flag(Flag::Waiters);
        }
    }

    fn write_or_register(
        &self,
        operation: O,
        waker: Option<&Waker>,
    ) -> Result<(), WriteRefused<O>> {
        let mut ops = self.lock();
        interleave(Point::CellLocked);
        // A future that waits for its own writes lets go of the thread: BUSY is no bar to that.
        let asker = if waker.is_some() { self.side() } else { Side::Other };
        let mut admission = self.admission(asker, self.word(), self.in_flight_bytes());
        if let (Admission::Wait, Some(waker)) = (admission, waker) {
            ops.register(asker, waker);
            let word = self.set_bits(Flag::Waiters);
            // A read that is a write: either the owner that gives credit back sees WAITERS, or
            // this thread sees the credit.
            let in_flight_bytes = self.in_flight.fetch_add(0, Ordering::AcqRel);
            admission = self.admission(asker, word, in_flight_bytes);
        }
        let result = match admission {
            Admission::Accepted => Ok(self.push(&mut ops, operation)),
            Admission::Wait => Err(WriteRefused::WouldBlock(operation)),
            Admission::Closed => Err(WriteRefused::Closed(operation)),
            Admission::Io => Err(WriteRefused::Io(operation)),
            Admission::Backlog => Err(WriteRefused::Backlog(operation)),
        };
        let has_waiters = ops.waiters.is_some();
        drop(ops);
        if has_waiters {
            self.wake_due_waiters();
        }
        interleave(Point::CellUnlocked);
        if result? {
            self.post_look();
        }
        Ok(())
    }

    fn admission(&self, asker: Side, word: Word, in_flight_bytes: u64) -> Admission {
        if word.has(Flag::Closed) {
            return Admission::Closed;
        }
        if word.has(Flag::IoError) {
            return Admission::Io;
        }
        if in_flight_bytes < u64::from(self.limits.high_water_bytes) {
            Admission::Accepted
        } else if !word.has(Flag::Busy) || asker == Side::Request {
            Admission::Wait
        } else if in_flight_bytes < u64::from(self.limits.backlog_bytes_max) {
            Admission::Accepted
        } else {
            Admission::Backlog
        }
    }

    fn forget_waiter(&self, waker: &Waker) {
        let mut ops = self.lock();
        if let Some(waiters) = &mut ops.waiters {
            waiters.others.retain(|other| !other.will_wake(waker));
            waiters.own.retain(|other| !other.will_wake(waker));
        }
        self.forget_waiters_if_none(&mut ops);
        let has_waiters = ops.waiters.is_some();
        drop(ops);
        if has_waiters {
            self.wake_due_waiters();
        }
    }
}

impl<O> Ops<O> {
    fn register(&mut self, asker: Side, waker: &Waker) {
        let waiters = self.waiters.get_or_insert_default();
        match asker {
            Side::Request => register(&mut waiters.own, waker),
            Side::Other => register(&mut waiters.others, waker),
        }
    }
}

fn register(wakers: &mut Vec<Waker>, waker: &Waker) {
    if !wakers.iter().any(|other| other.will_wake(waker)) {
        wakers.push(waker.clone());
    }
}

/// Whether nobody may be there to take the answer any more.
fn is_client_gone(word: Word) -> bool {
    word.has(Flag::PeerClosed) || word.has(Flag::IoError) || word.has(Flag::Closed)
}
