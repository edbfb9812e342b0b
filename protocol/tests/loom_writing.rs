//! Loom models of writing from another thread: a write listener that is owed its call, and writers
//! that wait while the exchange fails or ends. Run as `loom_cell`.
#![cfg(loom)]
#![allow(clippy::unwrap_used, reason = "a test")]

mod modelled_cell;

use std::{
    sync::Arc as StdArc,
    task::{Poll, Waker},
};

use loom::{sync::Arc, thread};
use modelled_cell::{Bell, Cell, Op, cell, close, full_cell, model};
use ringcat_protocol::{
    async_cell::{Look, Operation, Took, WriteRefused},
    async_state_machine::{AsyncState, Flag},
};

/// `AsyncResponse::is_ready`.
fn is_ready(cell: &Cell) -> bool {
    let word = cell.word();
    if !word.has(Flag::WriteListened) || !word.state().keeps_listeners() {
        return true;
    }
    if !word.has(Flag::WriteOwed) && cell.in_flight_bytes() == 0 {
        return true;
    }
    cell.set_flag(Flag::WriteOwed);
    cell.post_look();
    false
}

/// `AsyncResponse::set_write_listener`.
fn set_write_listener(cell: &Cell) {
    cell.call(None, Some(Op::Listener), Look::Never).unwrap();
    cell.set_flag(Flag::WriteListened);
    cell.set_flag(Flag::WriteOwed);
    cell.post_look();
}

/// The owner of a response with a write listener.
struct Sender {
    cell: Arc<Cell>,
    bell: StdArc<Bell>,
    looks_taken: usize,
    has_listener: bool,
    /// Bytes in the out-queue.
    queued_bytes: usize,
    /// Calls of `on_write_possible`.
    calls: usize,
}

impl Sender {
    fn new(cell: &Arc<Cell>, bell: &StdArc<Bell>) -> Self {
        let has_listener = cell.word().has(Flag::WriteListened);
        let (cell, bell) = (cell.clone(), bell.clone());
        Self { cell, bell, looks_taken: 0, has_listener, queued_bytes: 0, calls: 0 }
    }

    /// One event: operations first, then `look_for_room` and the write step.
    fn process(&mut self) {
        self.cell.begin_look();
        let Took::Taken { operations, .. } = self.cell.take() else { return };
        for operation in operations {
            self.has_listener |= operation == Op::Listener;
            self.queued_bytes += operation.credit_bytes();
        }
        let word = self.cell.word();
        let is_owed = word.has(Flag::WriteOwed) && word.state().keeps_listeners();
        if self.has_listener && is_owed && self.queued_bytes == 0 {
            self.cell.clear_flag(Flag::WriteOwed);
            self.calls += 1;
        }
    }

    /// The kernel has taken the out-queue.
    fn sent(&mut self) {
        self.cell.release_credit(std::mem::take(&mut self.queued_bytes));
        self.process();
    }

    fn answer_look(&mut self) {
        if self.looks_taken < self.bell.rung() {
            self.looks_taken += 1;
            self.process();
        }
    }

    fn answer_looks(&mut self) {
        while self.looks_taken < self.bell.rung() {
            self.answer_look();
        }
    }
}

// Excluded: the thread finds bytes unsent and leaves the promise after the owner, whose last bytes
// have left just now, had looked for one: `on_write_possible` never comes. Or a thread that was
// told "ready" is called all the same.
#[test]
fn is_ready_against_the_last_bytes_that_leave() {
    model(|| {
        let (cell, bell) = cell(AsyncState::Started);
        cell.set_flag(Flag::WriteListened);
        cell.try_write(Op::Write(1)).unwrap();
        let mut sender = Sender::new(&cell, &bell);
        sender.process();
        assert_eq!(sender.queued_bytes, 1);
        let writer = thread::spawn({
            let cell = cell.clone();
            move || is_ready(&cell)
        });
        sender.sent();
        sender.answer_look();
        let is_ready = writer.join().unwrap();
        sender.answer_looks();
        assert_eq!(sender.calls, usize::from(!is_ready));
        assert!(!cell.word().has(Flag::WriteOwed));
    });
}

// Excluded: as above, with bytes that the thread itself wrote and that nobody was asked to send.
#[test]
fn a_write_and_is_ready_against_the_owner() {
    model(|| {
        let (cell, bell) = cell(AsyncState::Started);
        cell.set_flag(Flag::WriteListened);
        let writer = thread::spawn({
            let cell = cell.clone();
            move || {
                cell.try_write(Op::Write(1)).unwrap();
                is_ready(&cell)
            }
        });
        let mut sender = Sender::new(&cell, &bell);
        sender.process();
        if sender.queued_bytes > 0 {
            sender.sent();
        }
        let is_ready = writer.join().unwrap();
        sender.answer_looks();
        if sender.queued_bytes > 0 {
            sender.sent();
        }
        assert_eq!(sender.calls, usize::from(!is_ready));
    });
}

// Excluded: the first call of a listener that another thread sets is lost, since the owner sees
// that one is owed before it has the listener, or has the listener before a call is owed.
#[test]
fn a_write_listener_against_the_owner() {
    model(|| {
        let (cell, bell) = cell(AsyncState::Started);
        let setter = thread::spawn({
            let cell = cell.clone();
            move || set_write_listener(&cell)
        });
        let mut sender = Sender::new(&cell, &bell);
        sender.process();
        sender.answer_look();
        setter.join().unwrap();
        sender.answer_looks();
        assert_eq!(sender.calls, 1);
    });
}

// Excluded: the thread that set the listener asks at once and is told "ready" before the first
// call, or "not ready" after it, and no call follows.
#[test]
fn a_new_write_listener_and_is_ready_against_the_owner() {
    model(|| {
        let (cell, bell) = cell(AsyncState::Started);
        let setter = thread::spawn({
            let cell = cell.clone();
            move || {
                set_write_listener(&cell);
                is_ready(&cell)
            }
        });
        let mut sender = Sender::new(&cell, &bell);
        sender.process();
        sender.answer_look();
        let is_ready = setter.join().unwrap();
        sender.answer_looks();
        // Not ready: one call kept both promises, or each had its own.
        let calls_max = if is_ready { 1 } else { 2 };
        assert!((1..=calls_max).contains(&sender.calls));
        assert!(!cell.word().has(Flag::WriteOwed));
    });
}

/// A writer that waits at the mark while something happens to its exchange; how it is refused
/// if it does not wait, or once it has been woken.
fn check_waiting_writer(
    happen: impl Fn(&Cell) + Send + Sync + 'static,
    refused: fn(Op) -> WriteRefused<Op>,
) {
    model(move || {
        let (cell, _bell) = full_cell();
        let woken = StdArc::new(Bell::default());
        let waker = Waker::from(woken.clone());
        let writer = thread::spawn({
            let (cell, waker) = (cell.clone(), waker.clone());
            move || cell.poll_write(&mut Some(Op::Write(1)), &waker)
        });
        happen(&cell);
        match writer.join().unwrap() {
            Poll::Pending => assert_eq!(woken.rung(), 1),
            ready => assert_eq!(ready, Poll::Ready(Err(refused(Op::Write(1))))),
        }
        let again = cell.poll_write(&mut Some(Op::Write(1)), &waker);
        assert_eq!(again, Poll::Ready(Err(refused(Op::Write(1)))));
        assert!(!cell.word().has(Flag::Waiters));
    });
}

// Excluded: the writer finds the exchange in order, it ends and nobody is there to be woken, the
// writer leaves its waker.
#[test]
fn a_polled_write_against_close() {
    check_waiting_writer(
        |cell| {
            close(cell);
        },
        WriteRefused::Closed,
    );
}

// Excluded: the same with a connection that fails.
#[test]
fn a_polled_write_against_a_failed_connection() {
    let fail = |cell: &Cell| {
        cell.set_flag(Flag::IoError);
    };
    check_waiting_writer(fail, WriteRefused::Io);
}

// Excluded: to wake a writer of a failed connection the owner finds the list locked by a second
// writer, and that one wakes nobody since it looked before the failure.
#[test]
fn a_second_writer_wakes_for_an_owner_whose_connection_failed() {
    model(|| {
        let (cell, _bell) = full_cell();
        let woken = StdArc::new(Bell::default());
        let waker = Waker::from(woken.clone());
        assert!(cell.poll_write(&mut Some(Op::Write(1)), &waker).is_pending());
        let second = thread::spawn({
            let cell = cell.clone();
            move || cell.try_write(Op::Write(1)).unwrap_err()
        });
        cell.set_flag(Flag::IoError);
        let refused = second.join().unwrap();
        assert!(matches!(refused, WriteRefused::WouldBlock(_) | WriteRefused::Io(_)));
        assert_eq!(woken.rung(), 1);
        assert!(!cell.word().has(Flag::Waiters));
    });
}
