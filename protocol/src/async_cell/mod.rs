//! The part of an exchange that other threads may touch. Everything else of an exchange belongs
//! to its owner, the core of its connection; another thread leaves its operations here, changes
//! the state, and asks the owner to look. It owns the state word, the operations that wait to be
//! applied, the credit of the response and the body bytes that wait to be read; it never runs
//! code of the application, and it never does I/O. Stands for what Tomcat does under the lock of
//! the connection's `SocketWrapper` and of `AsyncStateMachine`.
//!
//! | file | what it is |
//! |---|---|
//! | `cell` | the cell, a call from any thread, the owner's step |
//! | `credit` | how much of a response may be on its way, and waiting for room |
//! | `inbound` | body bytes on their way to a reader on another thread |
//! | `task_waker` | the waker of the future that runs the request on its core |
//!
//! # Who touches what
//!
//! | field | who reads | who writes | ordering |
//! |---|---|---|---|
//! | `word` | anybody | anybody | swaps and read-modify-writes, AcqRel (1) |
//! | `ops` | lock holder | callers push, the owner empties | callers lock, the owner tries (2) |
//! | `in_flight` | anybody | callers in `ops`, the owner | read-modify-writes, AcqRel (3) |
//! | `timeout`, `start` | anybody | anybody; the owner | Release, Acquire (4) |
//! | `attributes` | lock holder | anybody | a lock of its own (5) |
//! | `head` | anybody | the owner, once | `OnceLock` |
//! | `inbound` queue | lock holder | the owner pushes, readers take | as `ops` (2) |
//! | `inbound` end | anybody | the owner, once | Release, Acquire (6) |
//! | `inbound` trailers | anybody, after the end | the owner, once, before `end` | as `end` |
//! | `inbound` front | lock holder | readers | a lock of theirs, the owner stays out (7) |
//! | the rest | anybody | nobody while shared | fixed by `new` and `reset` |
//!
//! 1. A state is seen with all that was done before it.
//! 2. The owner never waits for a thread that was preempted inside; it comes back.
//! 3. Of a caller and the owner the second sees the first, so that no waiter is missed.
//! 4. The look that follows a change finds the value.
//! 5. Held for a map operation, the one lock that the owner may wait for.
//! 6. Stored after the last push, loaded before the queue is found empty.
//! 7. Readers hold it while they copy, and the queue's for a pop only.
//!
//! # Why nothing is lost
//!
//! - A caller changes the state and pushes what belongs to the change in one critical section. The
//!   owner reads the word and takes the list in one critical section too, applies the list, and
//!   makes its own change only from the word it read. So bytes and targets are there before
//!   the state that uses them is acted on, and a change in between sends the owner back.
//! - A caller pushes before it sets QUEUED; the owner clears QUEUED before it takes. If the caller
//!   finds QUEUED set, the look that is under way comes after the push.
//! - CLOSED is set inside the lock of the list: a caller gets in before and is applied, or
//!   comes later and is refused.
//! - A waiter leaves its waker, sets WAITERS, and looks at the credit once more; the owner changes
//!   the credit and looks at WAITERS. Whoever wants to wake but finds the lock held leaves it to
//!   the holder, who looks again after unlocking, in both cases with a read-modify-write of the
//!   word, so that one of the two sees the other. Waiting readers are woken in the same way.
//! - No waker runs, no value of the application is dropped and nothing is logged inside a lock. Log
//!   lines of two threads may therefore swap; each names both its states.

mod cell;
mod credit;
mod inbound;
mod mutant;
mod task_waker;

pub use self::{
    cell::{
        Advance, AsyncCell, Attribute, CallError, CellLimits, Direction, Doorbell, Look, Operation,
        Took,
    },
    credit::WriteRefused,
    inbound::{Pushed, TrailerField},
};
