//! Loom models of reading on another thread: who waits, a read listener that is owed its call, the
//! end of the content that is told once nobody is at work with it. Run as `loom_cell`.
#![cfg(loom)]
#![allow(clippy::unwrap_used, reason = "a test")]

mod modelled_cell;

use std::{
    io::{self, ErrorKind},
    sync::Arc as StdArc,
    task::{Poll, Waker},
};

use loom::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};
use modelled_cell::{Bell, Cell, Op, close, model, model_within, reading_cell};
use ringcat_protocol::{
    async_cell::{Direction, Look, Took},
    async_state_machine::Flag,
};

const ERRNO: i32 = 74;

/// What a thread is told that asks whether it can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    Ready,
    /// A call of the listener is promised.
    Owed,
    /// Everything was read.
    Consumed,
}

/// `is_input_ready`, its two ways to say no told apart.
fn ask(cell: &Cell) -> Ask {
    if cell.is_inbound_consumed() {
        Ask::Consumed
    } else if cell.is_ready_or_owed(Direction::Read) {
        Ask::Ready
    } else {
        Ask::Owed
    }
}

/// `AsyncRequest::leave_bytes`.
fn leave_bytes(cell: &Cell) {
    let was_inside = cell.clear_flag(Flag::ReaderInside).has(Flag::ReaderInside);
    if was_inside && cell.is_inbound_consumed() {
        cell.post_look();
    }
}

/// `AsyncRequest::read` with a read listener.
fn read(cell: &Cell) -> io::Result<usize> {
    cell.set_flag(Flag::ReaderInside);
    cell.set_flag(Flag::InboundWanted);
    let read = cell.try_read(&mut [0; 4]);
    if !matches!(read, Ok(1..)) {
        leave_bytes(cell);
    }
    read
}

/// What comes behind the content.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Finished,
    Failed,
}

/// The owner of a request with a body.
struct Receiver {
    cell: Arc<Cell>,
    bell: StdArc<Bell>,
    looks_taken: usize,
    /// Decoded and not moved yet; what else arrives is moved when it fits below the mark.
    available: Vec<&'static [u8]>,
    end: Option<End>,
    is_ended: bool,
    /// Callbacks that the cell said are owed.
    owed: usize,
    /// Calls of `on_all_data_read`.
    ends_told: usize,
}

impl Receiver {
    fn new(cell: &Arc<Cell>, bell: &StdArc<Bell>) -> Self {
        Self {
            cell: cell.clone(),
            bell: bell.clone(),
            looks_taken: 0,
            available: Vec::new(),
            end: None,
            is_ended: false,
            owed: 0,
            ends_told: 0,
        }
    }

    /// `fill_inbound`; bytes that meet a reader inside come with the look that was posted.
    fn fill_inbound(&mut self) {
        while let Some(bytes) = self.available.first() {
            let Some(pushed) = self.cell.push_inbound(bytes) else { return };
            self.available.remove(0);
            self.owed += usize::from(pushed.is_owed);
        }
        if self.is_ended {
            return;
        }
        let is_owed = match self.end {
            None => return,
            Some(End::Finished) => self.cell.finish_inbound(),
            Some(End::Failed) => self.cell.fail_inbound(ERRNO),
        };
        self.is_ended = true;
        self.owed += usize::from(is_owed);
    }

    /// One event: the content, then the operations, then the read step, where `on_end` stands for
    /// `on_all_data_read`.
    fn process(&mut self, on_end: impl Fn()) {
        self.cell.begin_look();
        self.fill_inbound();
        let Took::Taken { .. } = self.cell.take() else { return };
        if self.cell.is_inbound_done() && self.ends_told == 0 {
            self.ends_told += 1;
            on_end();
        }
    }

    /// As [`Owner::answer_look`](modelled_cell::Owner::answer_look).
    fn answer_look(&mut self, on_end: impl Fn()) {
        if self.looks_taken < self.bell.rung() {
            self.looks_taken += 1;
            self.process(on_end);
        }
    }

    fn answer_looks(&mut self, on_end: impl Fn()) {
        while self.looks_taken < self.bell.rung() {
            self.answer_look(&on_end);
        }
    }
}

/// A thread asks and reads until it is told to wait, while content and its end come. Every promise
/// is kept once, and a read after "ready" has something to say.
fn check_listener_path(end: End) {
    model_within(2, move || {
        let (cell, bell) = reading_cell();
        let reader = thread::spawn({
            let cell = cell.clone();
            move || {
                for _ in 0..3 {
                    leave_bytes(&cell);
                    let answer = ask(&cell);
                    if answer != Ask::Ready {
                        return answer;
                    }
                    match read(&cell) {
                        Ok(0) => return Ask::Consumed,
                        Ok(_) => {}
                        Err(error) => {
                            assert_eq!(error.raw_os_error(), Some(ERRNO));
                            return Ask::Ready;
                        }
                    }
                }
                Ask::Ready
            }
        });
        let mut receiver = Receiver::new(&cell, &bell);
        receiver.available.push(b"a");
        receiver.process(|| ());
        receiver.end = Some(end);
        receiver.process(|| ());
        let answer = reader.join().unwrap();
        leave_bytes(&cell);
        receiver.process(|| ());
        receiver.answer_looks(|| ());
        assert_eq!(receiver.owed, usize::from(answer == Ask::Owed));
        assert!(cell.word().has(Flag::ReadReady) && !cell.word().has(Flag::ReadOwed));
        if answer == Ask::Consumed {
            assert_eq!(receiver.ends_told, 1);
        }
    });
}

// Excluded: "not ready, a call is owed" misses the bytes or the end that come just then, and the
// call never comes; or it is owed twice; or "ready" is followed by a read that finds nothing.
#[test]
fn readiness_against_bytes_and_the_end() {
    check_listener_path(End::Finished);
}

// Excluded: the same with a connection or a body that fails behind the bytes.
#[test]
fn readiness_against_bytes_and_a_failure() {
    check_listener_path(End::Failed);
}

// Excluded: a reader that finds the queue empty takes READY away for a moment although the end is
// there; whoever asks in this moment is promised a call that the owner will never owe.
#[test]
fn a_second_thread_that_asks_against_a_failure() {
    model_within(3, || {
        let (cell, bell) = reading_cell();
        let reader = thread::spawn({
            let cell = cell.clone();
            move || drop(cell.try_read(&mut [0; 4]))
        });
        let asker = thread::spawn({
            let cell = cell.clone();
            move || ask(&cell)
        });
        let mut receiver = Receiver::new(&cell, &bell);
        receiver.end = Some(End::Failed);
        receiver.process(|| ());
        reader.join().unwrap();
        let answer = asker.join().unwrap();
        receiver.answer_looks(|| ());
        assert_eq!(receiver.owed, usize::from(answer == Ask::Owed));
        assert!(cell.word().has(Flag::ReadReady) && !cell.word().has(Flag::ReadOwed));
    });
}

// Excluded: the owner sees the last bytes gone and nobody at work while the thread that took them
// has not asked again: the end is told too early. Or the thread is through and the owner, which
// had looked before, is not told: the end is never told.
#[test]
fn the_end_of_the_content_against_a_reader_at_work() {
    model_within(2, || {
        let (cell, bell) = reading_cell();
        // Bytes that the thread is through with.
        let through = Arc::new(AtomicUsize::new(0));
        let reader = thread::spawn({
            let (cell, through) = (cell.clone(), through.clone());
            move || {
                while let Ok(bytes @ 1..) = read(&cell) {
                    through.fetch_add(bytes, Ordering::AcqRel);
                }
            }
        });
        let mut receiver = Receiver::new(&cell, &bell);
        let on_end = || assert_eq!(through.load(Ordering::Acquire), 1);
        receiver.available.push(b"a");
        receiver.end = Some(End::Finished);
        receiver.process(on_end);
        receiver.answer_look(on_end);
        reader.join().unwrap();
        receiver.answer_looks(on_end);
        // The thread came too early and waits for the listener, which reads the rest.
        if let Ok(bytes @ 1..) = read(&cell) {
            through.fetch_add(bytes, Ordering::AcqRel);
            assert_eq!(receiver.ends_told, 0);
            leave_bytes(&cell);
        }
        receiver.answer_looks(on_end);
        assert_eq!(receiver.ends_told, 1);
    });
}

// Excluded: the thread is through with its bytes before the end of the content is known, and each
// of the two leaves it to the other to tell the listener of it.
#[test]
fn the_end_of_the_content_against_a_reader_that_leaves() {
    model(|| {
        let (cell, bell) = reading_cell();
        assert!(cell.push_inbound(b"a").is_some());
        assert_eq!(read(&cell).unwrap(), 1);
        let mut receiver = Receiver::new(&cell, &bell);
        // The room that was made: that look is not the one in question.
        receiver.answer_looks(|| ());
        let reader = thread::spawn({
            let cell = cell.clone();
            move || leave_bytes(&cell)
        });
        receiver.end = Some(End::Finished);
        receiver.process(|| ());
        reader.join().unwrap();
        receiver.answer_looks(|| ());
        assert_eq!(receiver.ends_told, 1);
    });
}

/// A reader that waits while something happens to its exchange: it is woken, or does not wait.
fn check_waiting_reader(
    happen: impl Fn(&Cell) + Send + Sync + 'static,
    is_answer: fn(io::Result<usize>) -> bool,
) {
    model(move || {
        let (cell, _bell) = reading_cell();
        let woken = StdArc::new(Bell::default());
        let waker = Waker::from(woken.clone());
        let reader = thread::spawn({
            let (cell, waker) = (cell.clone(), waker.clone());
            move || cell.poll_read(&mut [0; 4], &waker)
        });
        happen(&cell);
        match reader.join().unwrap() {
            Poll::Pending => assert_eq!(woken.rung(), 1),
            Poll::Ready(answer) => assert!(is_answer(answer)),
        }
        let Poll::Ready(again) = cell.poll_read(&mut [0; 4], &waker) else { panic!("it waits") };
        assert!(is_answer(again));
    });
}

// Excluded: the reader finds nothing, the exchange ends and nobody is there to be woken, the reader
// leaves its waker.
#[test]
fn a_polled_read_against_close() {
    check_waiting_reader(
        |cell| {
            close(cell);
        },
        |answer| answer.unwrap_err().kind() == ErrorKind::ConnectionAborted,
    );
}

// Excluded: the same with a connection or a body that fails.
#[test]
fn a_polled_read_against_a_failure() {
    check_waiting_reader(
        |cell| {
            cell.set_flag(Flag::IoError);
            cell.fail_inbound(ERRNO);
        },
        |answer| answer.unwrap_err().raw_os_error() == Some(ERRNO),
    );
}

// Excluded: the same with the end of the content.
#[test]
fn a_polled_read_against_the_end() {
    check_waiting_reader(
        |cell| {
            cell.finish_inbound();
        },
        |answer| answer.unwrap() == 0,
    );
}

/// To wake a reader the owner finds the queue locked by a second thread that only looks in.
fn check_reader_inside(happen: impl Fn(&Cell) + Send + Sync + 'static) {
    model(move || {
        let (cell, _bell) = reading_cell();
        let woken = StdArc::new(Bell::default());
        assert!(cell.poll_read(&mut [0; 4], &Waker::from(woken.clone())).is_pending());
        let second = thread::spawn({
            let cell = cell.clone();
            move || drop(cell.try_read(&mut [0; 4]))
        });
        happen(&cell);
        second.join().unwrap();
        assert_eq!(woken.rung(), 1);
    });
}

// Excluded: that thread wakes nobody since it looked before the failure.
#[test]
fn a_second_reader_wakes_for_an_owner_whose_connection_failed() {
    check_reader_inside(|cell| {
        cell.fail_inbound(ERRNO);
    });
}

// Excluded: the same with the end of the exchange.
#[test]
fn a_second_reader_wakes_for_an_owner_that_closes() {
    check_reader_inside(|cell| {
        close(cell);
    });
}

// Excluded: the thread asks for the content while a look of its own is being answered: it finds
// QUEUED set and posts no other, but the owner has looked for readers already, clears QUEUED and
// parks. The thread waits for ever for bytes that lie there.
#[test]
fn a_reader_that_comes_while_a_look_is_answered() {
    model(|| {
        let (cell, bell) = reading_cell();
        let woken = StdArc::new(Bell::default());
        let reader = thread::spawn({
            let (cell, waker) = (cell.clone(), Waker::from(woken.clone()));
            move || {
                cell.call(None, Some(Op::Target), Look::Always).unwrap();
                cell.set_flag(Flag::InboundWanted);
                cell.post_look();
                cell.poll_read(&mut [0; 4], &waker).is_pending()
            }
        });
        let mut looks_taken = 0;
        let mut is_moved = false;
        // `dispatch_event`: the content, then the operations.
        let mut answer_look = || {
            if looks_taken == bell.rung() {
                return false;
            }
            looks_taken += 1;
            cell.begin_look();
            if cell.word().has(Flag::InboundWanted) && !is_moved {
                is_moved = cell.push_inbound(b"a").is_some();
            }
            drop(cell.take());
            true
        };
        answer_look();
        let is_pending = reader.join().unwrap();
        while answer_look() {}
        assert!(!is_pending || woken.rung() == 1);
    });
}

// Excluded: the same with a thread that made room for what waits in the socket.
#[test]
fn room_for_content_while_a_look_is_answered() {
    model(|| {
        let (cell, bell) = reading_cell();
        assert!(cell.push_inbound(b"ab").is_some());
        let reader = thread::spawn({
            let cell = cell.clone();
            move || {
                cell.call(None, Some(Op::Target), Look::Always).unwrap();
                cell.try_read(&mut [0; 4]).unwrap()
            }
        });
        let mut looks_taken = 0;
        let mut is_moved = false;
        let mut answer_look = || {
            if looks_taken == bell.rung() {
                return false;
            }
            looks_taken += 1;
            cell.begin_look();
            // `receive_body`: nothing is decoded while the mark is reached.
            if cell.inbound_len() < 2 && !is_moved {
                is_moved = cell.push_inbound(b"c").is_some();
            }
            drop(cell.take());
            true
        };
        answer_look();
        reader.join().unwrap();
        while answer_look() {}
        assert!(is_moved);
    });
}
