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
//!
//! # Who touches what
//!
//! | field | who reads | who writes | ordering, and why |
//! |---|---|---|---|
//! | `word` | anybody | anybody | compare-and-swap or read-modify-write, AcqRel: a state is seen with all that was done before it |
//! | `ops` | its lock holder | callers push, the owner empties | callers lock; the owner only tries, so that it never waits for a thread that was preempted |
//! | `in_flight` | anybody | callers add inside `ops`, the owner subtracts | read-modify-write on both sides: whoever comes second sees the other, so no waiter is missed |
//! | `timeout`, `start` | anybody | anybody; the owner | Release and Acquire: the look that follows finds the value |
//! | `attributes` | its lock holder | anybody | a lock of its own, held for a map operation; the owner may wait for it |
//! | `head` | anybody | the owner, once | `OnceLock` |
//! | `inbound` queue | its lock holder | the owner pushes, a reader takes | the reader locks for a push or pop and copies outside; the owner only tries |
//! | `inbound` end | anybody | the owner, once | Release after the last push, Acquire before the queue is found empty |
//! | `inbound` front | its lock holder | readers | a lock of their own, held while they copy; the owner stays out of it |
//! | the rest | anybody | nobody while shared | fixed by `new` and `reset` |
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
//! - A waiter puts its waker in the list, sets WAITERS, and looks at the credit once more; the owner
//!   changes the credit and looks at WAITERS. Whoever wants to wake but finds the list locked leaves
//!   it to the holder, who looks again after unlocking, in both cases with a read-modify-write
//!   of the word, so that one of the two sees the other.
//! - No waker runs, no value of the application is dropped and nothing is logged inside a lock. Log
//!   lines of two threads may therefore swap; each names both its states.

mod cell;
mod credit;
mod inbound;

pub use self::{
    cell::{
        Advance, AsyncCell, Attribute, CallError, CellLimits, Direction, Doorbell, Look, Operation,
        Took,
    },
    credit::WriteRefused,
    inbound::Pushed,
};
