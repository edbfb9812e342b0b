//! Loom models of the cell: each is two or three threads and one window, with the race that it
//! excludes. Run with `RUSTFLAGS="--cfg loom" cargo test -p ringcat-protocol --release --test
//! loom_cell --target-dir target/loom`.
#![cfg(loom)]
#![allow(clippy::unwrap_used, reason = "a test")]

mod modelled_cell;

use std::{
    sync::Arc as StdArc,
    task::{Poll, Waker},
};

use loom::thread;
use modelled_cell::{Bell, Cell, Op, Owner, cell, full_cell, model, reading_cell};
use ringcat_protocol::{
    async_cell::{CallError, Direction, Look, Took, WriteRefused},
    async_state_machine::{AsyncState, Event, Flag, Side},
};

// Excluded: complete() changes the state before its bytes are in the list, and the owner, leaving
// the callback, ends the response without them; or the owner parks just before complete(), and
// neither of the two thinks of a look.
#[test]
fn write_and_complete_against_the_end_of_the_callback() {
    model(|| {
        let (cell, bell) = cell(AsyncState::Starting);
        let caller = thread::spawn({
            let cell = cell.clone();
            move || {
                cell.call(None, Some(Op::Write(1)), Look::WhenGathered).unwrap();
                cell.call(Some(Event::Complete(Side::Other)), None, Look::Never).unwrap();
            }
        });
        let mut owner = Owner::new(&cell, &bell);
        owner.run();
        owner.answer_look();
        caller.join().unwrap();
        owner.answer_looks();
        assert_eq!(cell.word().state(), AsyncState::Dispatched);
        assert_eq!(owner.applied, [Op::Write(1)]);
    });
}

// Excluded: both callers of complete() are told that they did it, or none.
#[test]
fn one_complete_wins() {
    model(|| {
        let (cell, bell) = cell(AsyncState::Started);
        let complete =
            |cell: &Cell| cell.call(Some(Event::Complete(Side::Other)), None, Look::Never);
        let other = thread::spawn({
            let cell = cell.clone();
            move || complete(&cell).is_ok()
        });
        let here = complete(&cell).is_ok();
        let there = other.join().unwrap();
        assert!(here != there);
        assert_eq!((cell.word().state(), bell.rung()), (AsyncState::Completing, 1));
    });
}

// Excluded: the timeout fires although complete() was first, or complete() wakes an owner that is
// running the timeout's listeners, or neither happens.
#[test]
fn complete_against_timeout() {
    model(|| {
        let (cell, bell) = cell(AsyncState::Started);
        let caller = thread::spawn({
            let cell = cell.clone();
            move || cell.call(Some(Event::Complete(Side::Other)), None, Look::Never).unwrap()
        });
        let mut owner = Owner::new(&cell, &bell);
        let fired = owner.step(Event::Timeout).is_some_and(|effects| effects.fire_on_timeout);
        let wakes = caller.join().unwrap().wake;
        assert!(fired != wakes);
        assert_eq!(cell.word().state(), AsyncState::Completing);
        owner.answer_looks();
        // Or the owner is still in the listeners, and finds COMPLETING after them.
        let ended = if wakes { AsyncState::Dispatched } else { AsyncState::Completing };
        assert_eq!(cell.word().state(), ended);
    });
}

// Excluded: the owner acts on DISPATCHING and the target is not in the list yet.
#[test]
fn dispatch_against_timeout() {
    model(|| {
        let (cell, bell) = cell(AsyncState::Started);
        let mut caller = Some(thread::spawn({
            let cell = cell.clone();
            move || {
                cell.call(Some(Event::Dispatch(Side::Other)), Some(Op::Target), Look::Never)
                    .unwrap()
            }
        }));
        let mut owner = Owner::new(&cell, &bell);
        let mut is_entered = false;
        // Twice while the caller runs, once afterwards.
        for round in 0..3 {
            if round == 2 {
                caller.take().unwrap().join().unwrap();
            }
            let Took::Taken { word, operations } = cell.take() else { continue };
            owner.applied.extend(operations);
            if word.state() == AsyncState::Dispatching {
                assert_eq!(owner.applied, [Op::Target]);
                // Or the caller's QUEUED came in between.
                is_entered = cell.advance(word, Event::Dispatched).is_ok();
                if is_entered {
                    break;
                }
            } else if cell.advance(word, Event::Timeout).is_ok() {
                // The listeners run. The caller's dispatch is legal in them too, and wakes nobody.
                if let Some(caller) = caller.take() {
                    assert!(!caller.join().unwrap().wake);
                }
                assert_eq!(cell.word().state(), AsyncState::Dispatching);
                return;
            }
        }
        assert!(is_entered);
    });
}

// Excluded: an operation of a caller that was told "done" lies in the list of a closed exchange.
#[test]
fn close_against_late_calls() {
    model(|| {
        let (cell, _bell) = cell(AsyncState::Started);
        let caller = thread::spawn({
            let cell = cell.clone();
            move || {
                let results = [
                    cell.call(None, Some(Op::Target), Look::Never).is_ok(),
                    cell.try_write(Op::Write(1)).is_ok(),
                ];
                results.into_iter().filter(|is_done| *is_done).count()
            }
        });
        let mut left = cell.close();
        let done = caller.join().unwrap();
        if left.is_none() {
            left = cell.close();
        }
        assert_eq!(left.unwrap().len(), done);
        assert_eq!(cell.call(None, Some(Op::Target), Look::Never), Err(CallError::Closed));
        assert_eq!(cell.try_write(Op::Write(1)), Err(WriteRefused::Closed(Op::Write(1))));
    });
}

// Excluded: the owner clears QUEUED, finds the list locked by a call that asks for no look, and
// goes away with the look that the call before had asked for.
#[test]
fn a_look_that_meets_a_held_lock() {
    model(|| {
        let (cell, bell) = cell(AsyncState::Started);
        let caller = thread::spawn({
            let cell = cell.clone();
            move || {
                cell.call(None, Some(Op::Write(1)), Look::Always).unwrap();
                cell.call(None, Some(Op::Target), Look::Never).unwrap();
            }
        });
        let mut owner = Owner::new(&cell, &bell);
        owner.answer_look();
        caller.join().unwrap();
        owner.answer_looks();
        assert_eq!(owner.applied.first(), Some(&Op::Write(1)));
    });
}

// Excluded: the writer sees no credit, the owner gives it back and sees no waiter, the writer
// waits for ever. Loom reports the deadlock.
#[test]
fn a_waiting_writer_against_credit() {
    model(|| {
        let (cell, _bell) = full_cell();
        let writer = thread::spawn({
            let cell = cell.clone();
            move || cell.write_blocking(Op::Write(1), None).unwrap()
        });
        cell.release_credit(2);
        writer.join().unwrap();
        assert_eq!(cell.in_flight_bytes(), 1);
    });
}

// Excluded: as above, with the end of the exchange in the place of credit.
#[test]
fn a_waiting_writer_against_close() {
    model(|| {
        let (cell, _bell) = full_cell();
        let writer = thread::spawn({
            let cell = cell.clone();
            move || cell.write_blocking(Op::Write(1), None).unwrap_err()
        });
        while cell.close().is_none() {
            thread::yield_now();
        }
        assert_eq!(writer.join().unwrap(), WriteRefused::Closed(Op::Write(1)));
    });
}

// Excluded: the owner enters a callback that waits for a writer; to wake it, it finds the list
// locked by a third thread, and that thread wakes nobody since it looked before BUSY was set.
#[test]
fn the_holder_of_the_lock_wakes_for_the_owner() {
    model(|| {
        let (cell, _bell) = full_cell();
        let woken = StdArc::new(Bell::default());
        let waker = Waker::from(woken.clone());
        assert!(cell.poll_write(&mut Some(Op::Write(1)), &waker).is_pending());
        let third = thread::spawn({
            let cell = cell.clone();
            move || cell.call(None, Some(Op::Target), Look::Never).unwrap()
        });
        cell.enter_callback();
        third.join().unwrap();
        assert_eq!(woken.rung(), 1);
        assert!(!cell.word().has(Flag::Waiters));
    });
}

// Excluded: the same with credit that comes back while a second writer registers.
#[test]
fn a_registering_writer_wakes_for_the_owner() {
    model(|| {
        let (cell, _bell) = full_cell();
        let wokens = [StdArc::new(Bell::default()), StdArc::new(Bell::default())];
        let waker = Waker::from(wokens[0].clone());
        assert!(cell.poll_write(&mut Some(Op::Write(1)), &waker).is_pending());
        let second = thread::spawn({
            let (cell, waker) = (cell.clone(), Waker::from(wokens[1].clone()));
            move || cell.poll_write(&mut Some(Op::Write(1)), &waker).is_pending()
        });
        cell.release_credit(2);
        let is_pending = second.join().unwrap();
        assert_eq!(wokens[0].rung(), 1);
        assert!(!is_pending || wokens[1].rung() == 1);
    });
}

// Excluded: the reader sees an empty queue, the owner pushes and sees no reader.
#[test]
fn a_waiting_reader_against_bytes() {
    model(|| {
        let (cell, _bell) = reading_cell();
        let reader = thread::spawn({
            let cell = cell.clone();
            move || {
                let mut buf = [0; 4];
                cell.read_blocking(&mut buf, None).map(|bytes| buf[..bytes].to_vec()).unwrap()
            }
        });
        while cell.push_inbound(b"ab").is_none() {
            thread::yield_now();
        }
        assert_eq!(reader.join().unwrap(), b"ab");
        assert_eq!(cell.inbound_len(), 0);
    });
}

// Excluded: the reader registers after the owner looked for readers to tell of the end; the owner
// finds the queue locked and leaves.
#[test]
fn a_waiting_reader_against_the_end() {
    model(|| {
        let (cell, _bell) = reading_cell();
        let reader = thread::spawn({
            let cell = cell.clone();
            move || cell.read_blocking(&mut [0; 4], None).unwrap()
        });
        cell.finish_inbound();
        assert_eq!(reader.join().unwrap(), 0);
        assert!(cell.word().has(Flag::ReadReady));
    });
}

// Excluded: as above, with the end of the exchange in the place of the end of the body.
#[test]
fn a_waiting_reader_against_close() {
    model(|| {
        let (cell, _bell) = reading_cell();
        let reader = thread::spawn({
            let cell = cell.clone();
            move || cell.read_blocking(&mut [0; 4], None).unwrap_err().kind()
        });
        while cell.close().is_none() {
            thread::yield_now();
        }
        assert_eq!(reader.join().unwrap(), std::io::ErrorKind::ConnectionAborted);
    });
}

// Excluded: "not ready, a callback is owed" and "bytes are here" miss each other, so that the
// callback never comes; or READY stays set with nothing there, so that a read would wait.
#[test]
fn readiness_against_bytes() {
    model(|| {
        let (cell, _bell) = reading_cell();
        let reader = thread::spawn({
            let cell = cell.clone();
            move || {
                let is_ready = cell.is_ready_or_owed(Direction::Read);
                let bytes = cell.try_read(&mut [0; 4]);
                if is_ready {
                    assert_eq!(bytes.unwrap(), 1);
                }
                is_ready
            }
        });
        let mut pushed = cell.push_inbound(b"a");
        let is_ready = reader.join().unwrap();
        if pushed.is_none() {
            pushed = cell.push_inbound(b"a");
        }
        assert!(is_ready != pushed.unwrap().is_owed);
        assert_eq!(cell.word().has(Flag::ReadReady), cell.inbound_len() > 0);
    });
}

// Excluded: a waker that is registered twice, or one that stays after its write went through.
#[test]
fn a_polled_write_ends_with_its_waker() {
    model(|| {
        let (cell, _bell) = full_cell();
        let woken = StdArc::new(Bell::default());
        let waker = Waker::from(woken.clone());
        let writer = thread::spawn({
            let (cell, waker) = (cell.clone(), waker.clone());
            move || {
                let mut op = Some(Op::Write(1));
                let first = cell.poll_write(&mut op, &waker);
                matches!(first, Poll::Ready(Ok(())))
            }
        });
        cell.set_flag(Flag::IoError);
        let is_written = writer.join().unwrap();
        assert!(!is_written);
        assert!(woken.rung() <= 1);
        assert!(!cell.word().has(Flag::Waiters));
    });
}
