//! Body bytes on their way from the owner to a reader on another thread, copied out of the
//! buffers that the kernel filled, since those go back to it in the same turn.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, OnceLock},
    task::{Poll, Waker},
    time::Duration,
};

use ringcat_engine::{
    current::Current,
    parker::Parker,
    sync::{AtomicU32, AtomicUsize, Mutex, MutexGuard, Ordering, PoisonError, TryLockError},
};

use super::cell::{AsyncCell, Direction, Operation};
use crate::async_state_machine::{Flag, Word};

/// What the owner learns when it pushed body bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pushed {
    /// Bytes that wait for a reader now. From
    /// [`CellLimits::high_water_bytes`](super::CellLimits::high_water_bytes) on the owner stops
    /// receiving; a look comes when less than half of that waits.
    pub queued_bytes: usize,
    /// Whether a read callback was owed, which the owner runs now.
    pub is_owed: bool,
}

/// Name, in lower case, and value of a trailer field.
pub type TrailerField = (Vec<u8>, Vec<u8>);

/// The queue with its end.
pub(super) struct Inbound {
    /// 0 while more may come, 1 after the last byte, an errno and 2 after a failure.
    end: AtomicU32,
    queued_bytes: AtomicUsize,
    /// Set before `end`, if there are any.
    trailers: OnceLock<Vec<TrailerField>>,
    queue: Mutex<Queue>,
    /// What a reader has taken out and not used up; readers lock it while they copy.
    front: Mutex<Front>,
}

#[derive(Default)]
struct Queue {
    chunks: VecDeque<Vec<u8>>,
    waiters: Vec<Waker>,
}

#[derive(Default)]
struct Front {
    chunk: Vec<u8>,
    /// Bytes of `chunk` that were read.
    read_bytes: usize,
}

/// Room that a chunk starts with, so that a body in tiny pieces does not cost an allocation each.
const CHUNK_BYTES_MIN: usize = 512;

const END_OPEN: u32 = 0;
const END_FINISHED: u32 = 1;
const END_FAILED: u32 = 2;

impl<O: Operation> AsyncCell<O> {
    /// Copies body bytes into the queue and wakes who waits for them. None if a reader is inside:
    /// nothing was pushed, a look is posted, and the owner keeps the bytes until then as it
    /// does when the queue is full. The owner's.
    pub fn push_inbound(&self, bytes: &[u8]) -> Option<Pushed> {
        let inbound = self.inbound();
        let Some(mut queue) = inbound.try_lock_queue() else {
            self.post_look();
            return None;
        };
        if bytes.is_empty() {
            return Some(Pushed { queued_bytes: self.inbound_len(), is_owed: false });
        }
        queue.push(bytes);
        let before = inbound.queued_bytes.fetch_add(bytes.len(), Ordering::AcqRel);
        // Inside the lock, or a reader that takes it all could clear READY before it is set.
        let is_owed = self.make_ready(Direction::Read);
        let waiters = std::mem::take(&mut queue.waiters);
        drop(queue);
        waiters.into_iter().for_each(Waker::wake);
        Some(Pushed { queued_bytes: before + bytes.len(), is_owed })
    }

    /// Leaves the trailer fields for whoever reads to the end; once, and before
    /// [`AsyncCell::finish_inbound`]. The owner's.
    pub fn set_trailers(&self, trailers: Vec<TrailerField>) {
        let refused = self.inbound().trailers.set(trailers);
        debug_assert!(refused.is_ok(), "a body ends once");
    }

    /// The trailer fields, after a read that found the end of the body. Any thread.
    pub fn trailers(&self) -> &[TrailerField] {
        let trailers = self.inbound.get().and_then(|inbound| inbound.trailers.get());
        trailers.map_or(&[], Vec::as_slice)
    }

    /// Notes that the last byte of the body was pushed; answers whether a read callback was owed.
    /// The owner's.
    pub fn finish_inbound(&self) -> bool {
        self.end_inbound(END_FINISHED)
    }

    /// Notes that no more of the body will come, since receiving failed with `errno`; answers
    /// whether a read callback was owed. What was pushed before can still be read. The owner's.
    pub fn fail_inbound(&self, errno: i32) -> bool {
        self.end_inbound(END_FAILED.saturating_add(errno.unsigned_abs()))
    }

    /// Bytes that wait for a reader. For an answer only.
    pub fn inbound_len(&self) -> usize {
        self.inbound.get().map_or(0, |inbound| inbound.queued_bytes.load(Ordering::Acquire))
    }

    /// Whether all of the body was pushed and read, and no thread is at work with its last bytes:
    /// a listener may hear of the end.
    pub fn is_inbound_done(&self) -> bool {
        self.is_inbound_consumed() && !self.word().has(Flag::ReaderInside)
    }

    /// Whether all of the body was pushed and read. Any thread.
    pub fn is_inbound_consumed(&self) -> bool {
        self.inbound.get().is_some_and(|inbound| {
            inbound.end.load(Ordering::Acquire) == END_FINISHED
                && inbound.queued_bytes.load(Ordering::Acquire) == 0
        })
    }

    /// Reads what is there, 0 at the end of the body. Any thread, never waits.
    ///
    /// # Errors
    /// `WouldBlock` when nothing is there yet; the error of the connection once the rest cannot
    /// come; `ConnectionAborted` when the exchange is over.
    pub fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
        match self.read_or_register(buf, None) {
            Poll::Ready(result) => result,
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// The form for futures: as [`AsyncCell::try_read`], and when nothing is there yet `waker` is
    /// woken once that has changed.
    ///
    /// # Errors
    /// As [`AsyncCell::try_read`], but for `WouldBlock`.
    pub fn poll_read(&self, buf: &mut [u8], waker: &Waker) -> Poll<io::Result<usize>> {
        self.read_or_register(buf, Some(waker))
    }

    /// Waits until something is there and reads it, 0 at the end of the body. On a core's thread
    /// it never waits.
    ///
    /// # Errors
    /// As [`AsyncCell::try_read`], with `WouldBlock` on a core's thread only, and `TimedOut`
    /// after `timeout`.
    pub fn read_blocking(&self, buf: &mut [u8], timeout: Option<Duration>) -> io::Result<usize> {
        match self.try_read(buf) {
            Err(error)
                if error.kind() == io::ErrorKind::WouldBlock && Current::get().core.is_none() => {}
            result => return result,
        }
        let parker = Arc::new(Parker::new(timeout));
        let waker = Waker::from(Arc::clone(&parker));
        loop {
            if let Poll::Ready(result) = self.poll_read(buf, &waker) {
                return result;
            }
            if !parker.park() {
                self.inbound().lock_queue().waiters.retain(|other| !other.will_wake(&waker));
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }

    /// Wakes who waits to read, when the exchange has closed or the body ended. If the queue is
    /// locked, the holder comes here after it: see the folder's map.
    pub(super) fn wake_readers(&self) {
        let Some(inbound) = self.inbound.get() else { return };
        let Some(mut queue) = inbound.try_lock_queue() else { return };
        let waiters = std::mem::take(&mut queue.waiters);
        drop(queue);
        waiters.into_iter().for_each(Waker::wake);
    }

    fn inbound(&self) -> &Inbound {
        if let Some(inbound) = self.inbound.get() {
            return inbound;
        }
        // Made before, so that of two threads here none waits for the other's allocation.
        let inbound = Box::new(Inbound::new());
        self.inbound.get_or_init(|| inbound)
    }

    fn end_inbound(&self, end: u32) -> bool {
        self.inbound().end.store(end, Ordering::Release);
        let (ready, owed) = (Flag::ReadReady, Flag::ReadOwed);
        let ends = |word: Word| word.with(Flag::InboundEnded).with(ready).without(owed);
        let is_owed = self.update(ends).has(owed);
        self.wake_readers();
        is_owed
    }

    fn read_or_register(&self, buf: &mut [u8], waker: Option<&Waker>) -> Poll<io::Result<usize>> {
        if self.word().has(Flag::Closed) {
            return Poll::Ready(Err(over()));
        }
        let inbound = self.inbound();
        let mut front = inbound.front.lock().unwrap_or_else(PoisonError::into_inner);
        let mut read_bytes = front.read(buf);
        let mut has_waiters = false;
        let mut end = END_OPEN;
        while front.is_used_up() {
            // Loaded first: what is found to be empty after the end stays empty.
            end = inbound.end.load(Ordering::Acquire);
            let mut queue = inbound.lock_queue();
            let Some(chunk) = queue.chunks.pop_front() else {
                self.note_dry();
                if let (Some(waker), 0, END_OPEN) = (waker, read_bytes, end) {
                    queue.register(waker);
                }
                has_waiters = !queue.waiters.is_empty();
                break;
            };
            drop(queue);
            *front = Front { chunk, read_bytes: 0 };
            read_bytes += front.read(&mut buf[read_bytes..]);
        }
        drop(front);
        if has_waiters {
            self.wake_readers_if_over(inbound);
        }
        self.note_read(inbound, read_bytes);
        match (read_bytes, end) {
            (0, END_OPEN) if !buf.is_empty() => Poll::Pending,
            (0, END_FAILED..) => Poll::Ready(Err(failure(end))),
            (read_bytes, _) => Poll::Ready(Ok(read_bytes)),
        }
    }

    /// The queue is empty: not ready, unless nothing more will come. In one step, or who asks in
    /// between would be promised a call that nobody owes. Inside the queue's lock.
    fn note_dry(&self) {
        self.update(|word| match word.has(Flag::InboundEnded) {
            true => word,
            false => word.without(Flag::ReadReady),
        });
    }

    /// What a thread owes that held the queue's lock: the owner may have found it locked.
    fn wake_readers_if_over(&self, inbound: &Inbound) {
        // A read that is a write: either the owner saw the queue unlocked, or this thread sees
        // what the owner did before it tried.
        let word = Word::from_bits(self.word.fetch_or(0, Ordering::AcqRel));
        if word.has(Flag::Closed) || inbound.end.load(Ordering::Acquire) != END_OPEN {
            self.wake_readers();
        }
    }

    /// Lets the owner receive again once less than half of the mark waits.
    fn note_read(&self, inbound: &Inbound, read_bytes: usize) {
        let before = inbound.queued_bytes.fetch_sub(read_bytes, Ordering::AcqRel);
        let resume_bytes = self.limits.high_water_bytes as usize / 2;
        if before >= resume_bytes && before - read_bytes < resume_bytes {
            self.post_look();
        }
    }
}

fn over() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the exchange is over")
}

fn failure(end: u32) -> io::Error {
    io::Error::from_raw_os_error((end - END_FAILED).cast_signed())
}

impl Inbound {
    fn new() -> Self {
        Self {
            end: AtomicU32::new(END_OPEN),
            queued_bytes: AtomicUsize::new(0),
            trailers: OnceLock::new(),
            queue: Mutex::new(Queue::default()),
            front: Mutex::new(Front::default()),
        }
    }

    /// For readers.
    fn lock_queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For the owner, which never waits.
    fn try_lock_queue(&self) -> Option<MutexGuard<'_, Queue>> {
        match self.queue.try_lock() {
            Ok(queue) => Some(queue),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl Queue {
    fn push(&mut self, bytes: &[u8]) {
        match self.chunks.back_mut() {
            Some(last) if last.capacity() - last.len() >= bytes.len() => {
                last.extend_from_slice(bytes);
            }
            Some(_) | None => {
                let mut chunk = Vec::with_capacity(bytes.len().max(CHUNK_BYTES_MIN));
                chunk.extend_from_slice(bytes);
                self.chunks.push_back(chunk);
            }
        }
    }

    fn register(&mut self, waker: &Waker) {
        if !self.waiters.iter().any(|other| other.will_wake(waker)) {
            self.waiters.push(waker.clone());
        }
    }
}

impl Front {
    /// Copies as much as there is and fits.
    fn read(&mut self, buf: &mut [u8]) -> usize {
        let left = &self.chunk[self.read_bytes..];
        let bytes = left.len().min(buf.len());
        buf[..bytes].copy_from_slice(&left[..bytes]);
        self.read_bytes += bytes;
        bytes
    }

    fn is_used_up(&self) -> bool {
        self.read_bytes == self.chunk.len()
    }
}
