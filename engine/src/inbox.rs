//! The only door of a core for other threads: a list of messages, and the wake of the core.
//!
//! Any thread pushes a boxed node with a compare-and-swap; the owner takes the whole list with one
//! swap and reverses it. So a producer never waits for another thread that was preempted half way,
//! and the owner never waits for a producer. There is no ABA problem: nodes are only added at the
//! head, and leave only all together.
//!
//! # Who touches what
//!
//! | field | who | how | ordering |
//! |---|---|---|---|
//! | `head` | producers | compare-and-swap | Release (1) |
//! | | owner | load, swap with null | Acquire (2); Relaxed where null means "not now" |
//! | `asleep` | producer, after its push | swap to `false` | AcqRel (3) |
//! | | owner, before it waits and after | swap to `true`, to `false` | AcqRel (3) |
//! | `wake_count` | the producer that wakes; statistics | add; load | Relaxed: orders nothing |
//! | `wake` | producers | read | fixed at construction |
//! | a node | its producer until the push, then who took it | plain | goes over with `head` |
//!
//! 1. The node's content is there for whoever sees the node. A later push is a read-modify-write,
//!    so it carries on what the earlier ones released.
//! 2. The contents of all nodes taken.
//! 3. See below. The one producer that reads `true` wakes, so a burst of posts wakes once.
//!
//! # No wake is lost
//! The owner may wait only if it finds the list empty *after* it announced sleep (its second
//! look). Both sides change `asleep` by swaps, so one of the two comes first:
//!
//! - The producer's swap comes after the owner's. Then it reads `true` and wakes.
//! - It comes before. Then the owner's swap reads what it (or a later swap) wrote and acquires
//!   what came before it: the push. The second look finds the message.
//!
//! A plain store and load in place of either swap could be reordered around the access to `head`,
//! each side would miss the other, and the message would lie there until some other event.
//!
//! `head` and `asleep` lie on cache lines of their own: pushes do not slow the owner's announcing,
//! and neither slows what is only read.

use std::{fmt, iter::FusedIterator, ptr};

use crate::{
    canary::{self, Canary},
    interleave::{Point, interleave},
    sync::{AtomicBool, AtomicPtr, AtomicU64, Ordering},
};

/// Ends the wait of the owner of an [`Inbox`].
pub trait Wake: Send + Sync {
    /// Makes the owner's present or next wait return. Called from any thread; must not wait.
    fn wake(&self);
}

/// The messages of other threads to one owner, and its wake.
///
/// Not bounded by itself: who posts has its own bound (an exchange has at most one look on its
/// way). Undelivered messages are dropped with the inbox.
pub struct Inbox<M: Send> {
    senders: CacheLine<Senders<M>>,
    receiver: CacheLine<Receiver>,
    wake: Box<dyn Wake>,
}

#[repr(align(64))]
struct CacheLine<T>(T);

struct Senders<M> {
    /// The newest message, which links to the older ones; null if there is none.
    head: AtomicPtr<Node<M>>,
}

struct Receiver {
    /// Whether the owner waits or is about to; `false` again once somebody wakes it.
    asleep: AtomicBool,
    wake_count: AtomicU64,
}

struct Node<M> {
    message: M,
    /// The message pushed before this one; in a [`Batch`] the one pushed after.
    next: *mut Self,
}

impl<M: Send> Inbox<M> {
    /// An empty inbox whose owner is awake.
    pub fn new(wake: Box<dyn Wake>) -> Self {
        Self {
            senders: CacheLine(Senders { head: AtomicPtr::new(ptr::null_mut()) }),
            receiver: CacheLine(Receiver {
                asleep: AtomicBool::new(false),
                wake_count: AtomicU64::new(0),
            }),
            wake,
        }
    }

    /// Puts a message through the door, and wakes the owner if it sleeps. Any thread.
    pub fn post(&self, message: M) {
        self.push(message);
        interleave(Point::InboxPushed);
        let Receiver { asleep, wake_count } = &self.receiver.0;
        if asleep.swap(false, Ordering::AcqRel) {
            wake_count.fetch_add(1, Ordering::Relaxed);
            if !canary::has(Canary::LostWake) {
                self.wake.wake();
            }
        }
    }

    /// Takes all messages, in the order in which they were pushed. For the owner.
    pub fn take(&self) -> Batch<M> {
        // A core asks every turn and mostly for nothing: a load leaves the line shared.
        let head = &self.senders.0.head;
        if head.load(Ordering::Relaxed).is_null() {
            return Batch { first: ptr::null_mut() };
        }
        let mut newest = head.swap(ptr::null_mut(), Ordering::Acquire);
        let mut first = ptr::null_mut();
        while !newest.is_null() {
            // SAFETY: `newest` came from `Box::into_raw` in `push`, which initialised the node
            // before it released it to `head`; the swap acquired it and all it links to. The swap
            // also took every node out of the list, so no other thread has this pointer: producers
            // read `head` but follow no link.
            let next = unsafe { &mut (*newest).next };
            let older = std::mem::replace(next, first);
            first = newest;
            newest = older;
        }
        Batch { first }
    }

    /// Announces that the owner will wait, then looks again: `true` if it may wait, `false` if a
    /// message came in. After `true`, a post wakes. For the owner.
    pub fn prepare_sleep(&self) -> bool {
        self.receiver.0.asleep.swap(true, Ordering::AcqRel);
        interleave(Point::InboxAsleep);
        if self.is_empty() {
            return true;
        }
        self.awake();
        false
    }

    /// Says that the owner does not wait (any more): posts need not wake it. For the owner.
    pub fn awake(&self) {
        self.receiver.0.asleep.swap(false, Ordering::AcqRel);
    }

    /// Whether no message waits.
    pub fn is_empty(&self) -> bool {
        self.senders.0.head.load(Ordering::Acquire).is_null()
    }

    /// How often a post called [`Wake::wake`].
    pub fn wake_count(&self) -> u64 {
        self.receiver.0.wake_count.load(Ordering::Relaxed)
    }

    fn push(&self, message: M) {
        let head = &self.senders.0.head;
        let mut newest = head.load(Ordering::Relaxed);
        let node = Box::into_raw(Box::new(Node { message, next: newest }));
        while let Err(now) =
            head.compare_exchange_weak(newest, node, Ordering::Release, Ordering::Relaxed)
        {
            newest = now;
            // SAFETY: `node` came from `Box::into_raw` above and no other thread has seen it: the
            // exchange that would have shown it failed.
            unsafe { (*node).next = newest };
        }
    }
}

impl<M: Send> Drop for Inbox<M> {
    fn drop(&mut self) {
        drop(self.take());
    }
}

impl<M: Send> fmt::Debug for Inbox<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbox")
            .field("is_empty", &self.is_empty())
            .field("wake_count", &self.wake_count())
            .finish_non_exhaustive()
    }
}

/// Messages taken out of an [`Inbox`], oldest first. Dropping it drops what it still has.
pub struct Batch<M> {
    /// The oldest message, which links to the newer ones; null if there is none.
    first: *mut Node<M>,
}

impl<M> Batch<M> {
    /// Whether no message is left.
    pub const fn is_empty(&self) -> bool {
        self.first.is_null()
    }
}

impl<M> Iterator for Batch<M> {
    type Item = M;

    fn next(&mut self) -> Option<M> {
        if self.first.is_null() {
            return None;
        }
        // SAFETY: `first` came from `Box::into_raw` in `push`; `take` gave this batch alone the
        // chain that starts there, and the node leaves the chain right here.
        let node = unsafe { Box::from_raw(self.first) };
        let Node { message, next } = *node;
        self.first = next;
        Some(message)
    }
}

impl<M> FusedIterator for Batch<M> {}

impl<M> Drop for Batch<M> {
    fn drop(&mut self) {
        self.for_each(drop);
    }
}

impl<M> fmt::Debug for Batch<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("is_empty", &self.is_empty()).finish_non_exhaustive()
    }
}

// Loom's atomics exist inside a model only; its models are in tests/loom_inbox.rs.
#[cfg(all(test, not(loom)))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::{
        sync::{Arc, mpsc},
        thread,
    };

    use super::*;
    use crate::event_fd::EventFd;

    struct NoWake;

    impl Wake for NoWake {
        fn wake(&self) {}
    }

    /// Wakes by a message, so that a test can wait for it.
    struct Bell(mpsc::SyncSender<()>);

    impl Wake for Bell {
        fn wake(&self) {
            self.0.send(()).unwrap();
        }
    }

    #[test]
    fn messages_come_in_order_and_all_at_once() {
        let inbox = Inbox::new(Box::new(NoWake));
        assert!(inbox.is_empty());
        assert_eq!(inbox.take().next(), None);
        (0..5).for_each(|n| inbox.post(n));
        assert!(!inbox.is_empty());
        let mut batch = inbox.take();
        assert!(inbox.is_empty());
        inbox.post(5);
        assert_eq!(batch.by_ref().collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        assert!(batch.is_empty());
        assert_eq!(inbox.take().collect::<Vec<_>>(), [5]);
    }

    #[test]
    fn a_burst_while_the_owner_sleeps_wakes_once() {
        let event = EventFd::new().unwrap();
        let inbox = Inbox::new(Box::new(event));
        inbox.post(0);
        assert_eq!(inbox.wake_count(), 0, "the owner is awake at first");
        assert!(!inbox.prepare_sleep(), "a message is there");
        inbox.post(1);
        assert_eq!(inbox.wake_count(), 0, "a refused sleep leaves the owner awake");
        inbox.take();
        assert!(inbox.prepare_sleep());
        (0..1000).for_each(|n| inbox.post(n));
        assert_eq!(inbox.wake_count(), 1);
        inbox.awake();
        assert_eq!(inbox.take().count(), 1000);
        assert!(inbox.prepare_sleep());
        inbox.awake();
        inbox.post(0);
        assert_eq!(inbox.wake_count(), 1, "the owner came back by itself");
    }

    #[test]
    fn undelivered_messages_are_dropped() {
        let witness = Arc::new(());
        let inbox = Inbox::new(Box::new(NoWake));
        (0..4).for_each(|_| inbox.post(Arc::clone(&witness)));
        let mut batch = inbox.take();
        drop(batch.next());
        assert_eq!(Arc::strong_count(&witness), 4);
        drop(batch);
        assert_eq!(Arc::strong_count(&witness), 1);
        (0..3).for_each(|_| inbox.post(Arc::clone(&witness)));
        drop(inbox);
        assert_eq!(Arc::strong_count(&witness), 1);
    }

    #[test]
    fn a_sleeping_owner_gets_everything_of_many_threads() {
        const THREADS: usize = 4;
        const MESSAGES: usize = 2000;
        let (ring, bell) = mpsc::sync_channel(1);
        let inbox = Inbox::new(Box::new(Bell(ring)));
        let mut next = [0; THREADS];
        thread::scope(|scope| {
            for producer in 0..THREADS {
                let inbox = &inbox;
                scope.spawn(move || (0..MESSAGES).for_each(|n| inbox.post((producer, n))));
            }
            while next != [MESSAGES; THREADS] {
                for (producer, n) in inbox.take() {
                    assert_eq!(n, next[producer], "a producer's messages keep their order");
                    next[producer] += 1;
                }
                if next != [MESSAGES; THREADS] && inbox.prepare_sleep() {
                    bell.recv().unwrap();
                    inbox.awake();
                }
            }
        });
        assert!(inbox.is_empty());
    }

    #[test]
    fn sides_and_neighbours_are_on_lines_of_their_own() {
        assert_eq!(align_of::<Inbox<u8>>(), 64);
        assert!(size_of::<Inbox<u8>>() >= 3 * 64);
    }
}
