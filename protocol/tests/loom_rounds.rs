//! Loom models of how a round begins and ends while other threads take part: `start_async` by a
//! handle against the end of `service`, and a client that ends its stream. Run as `loom_cell`.
#![cfg(loom)]
#![allow(clippy::unwrap_used, reason = "a test")]

mod modelled_cell;

use loom::{sync::Arc, thread};
use modelled_cell::{Cell, DRAINED, Op, Owner, cell, close, model, model_within};
use ringcat_protocol::{
    async_cell::{Advance, CallError, Look, Took},
    async_state_machine::{AsyncState, Event, Flag, Side},
};

const TIMEOUT_MILLIS: i64 = 30;

/// `AsyncHandle::start_async`.
fn start_by_handle(cell: &Cell) -> Result<(), CallError> {
    cell.call(Some(Event::AsyncStart), Some(Op::RoundBegan), Look::Never)?;
    cell.set_timeout_millis(TIMEOUT_MILLIS);
    cell.post_look();
    Ok(())
}

/// The owner after `service`, as the container does it; answers whether it finished the request.
fn after_service(owner: &mut Owner) -> bool {
    owner.cell.leave_callback();
    let is_barred = owner.cell.bar_start();
    if is_barred {
        // Not asynchronous: what is in the list still counts, then the request is over.
        owner.applied.extend(close(&owner.cell));
    } else {
        owner.run();
    }
    is_barred
}

// Excluded: the round begins although the owner finishes the request, so that nobody ends it; or
// the start is refused although the owner parks. Or the owner parks without having heard of the
// round, or with its timer set to the time before.
#[test]
fn a_start_by_a_handle_against_the_end_of_service() {
    model(|| {
        let (cell, bell) = cell(AsyncState::Dispatched);
        cell.enter_callback();
        let starter = thread::spawn({
            let cell = cell.clone();
            move || start_by_handle(&cell)
        });
        let mut owner = Owner::new(&cell, &bell);
        let is_finished = after_service(&mut owner);
        let started = starter.join().unwrap();
        let timeout_millis = cell.timeout_millis();
        if is_finished {
            assert!(matches!(started, Err(CallError::IllegalState(_) | CallError::Closed)));
            assert!(owner.applied.is_empty());
            assert!(cell.word().has(Flag::Closed));
            return;
        }
        started.unwrap();
        assert!(owner.looks_taken < bell.rung(), "a look is due that sets the timer");
        owner.answer_looks();
        assert_eq!(timeout_millis, TIMEOUT_MILLIS);
        assert_eq!((cell.word().state(), cell.word().round()), (AsyncState::Started, 1));
        assert_eq!(owner.applied, [Op::RoundBegan]);
    });
}

// Excluded: as above, and the end of a round that began just so is lost: it was completed before
// the owner had left the callback, or while it parks.
#[test]
fn a_round_of_a_handle_that_is_completed_at_once() {
    model(|| {
        let (cell, bell) = cell(AsyncState::Dispatched);
        cell.enter_callback();
        let starter = thread::spawn({
            let cell = cell.clone();
            move || {
                let is_started = start_by_handle(&cell).is_ok();
                if is_started {
                    cell.try_write(Op::Write(1)).unwrap();
                    cell.call(Some(Event::Complete(Side::Other)), None, Look::Always).unwrap();
                }
                is_started
            }
        });
        let mut owner = Owner::new(&cell, &bell);
        let is_finished = after_service(&mut owner);
        let is_started = starter.join().unwrap();
        assert!(is_started != is_finished);
        if is_started {
            owner.answer_looks();
            assert_eq!(owner.applied, [Op::RoundBegan, Op::Write(1)]);
        }
        assert_eq!(cell.word().state(), AsyncState::Dispatched);
        assert_eq!(owner.ends, usize::from(is_started));
    });
}

// Excluded: of two handles both are told that they began the round, or none is while the owner
// parks.
#[test]
fn two_handles_against_the_end_of_service() {
    model_within(3, || {
        let (cell, bell) = cell(AsyncState::Dispatched);
        let starters = [0, 1].map(|_| {
            let cell = cell.clone();
            thread::spawn(move || start_by_handle(&cell).is_ok())
        });
        let mut owner = Owner::new(&cell, &bell);
        let is_finished = after_service(&mut owner);
        let started = starters.map(|starter| usize::from(starter.join().unwrap()));
        assert_eq!(started.iter().sum::<usize>(), usize::from(!is_finished));
        owner.answer_looks();
        assert_eq!(owner.applied.len(), usize::from(!is_finished));
    });
}

/// An owner whose client may end its stream.
struct Watcher {
    owner: Owner,
    /// How often the client was taken for gone.
    departures: usize,
}

impl Watcher {
    /// `look_for_departure` and the dispatch of the error: what was called before is applied, then
    /// `on_error` runs and the owner completes, unless somebody has decided the end already.
    fn look_for_departure(&mut self) {
        let cell = self.owner.cell.clone();
        let word = cell.word();
        let is_left = word.has(Flag::PeerClosed) && word.has(Flag::EndsOnPeerClose);
        if !is_left || !word.state().is_async() || self.departures > 0 {
            return;
        }
        let mut word = loop {
            match cell.take() {
                Took::Taken { word, operations } => {
                    self.owner.applied.extend(operations);
                    break word;
                }
                Took::Contended => thread::yield_now(),
            }
        };
        self.departures += 1;
        while let Err(Advance::Changed(now)) = cell.advance(word, Event::Error(Side::Request)) {
            word = now;
        }
        cell.set_flag(Flag::OthersBarred);
        let completed = cell.call(Some(Event::Complete(Side::Request)), None, Look::Never);
        // Or a listener or another thread did, between the error and the bar.
        assert!(completed.is_ok() || cell.word().state() == AsyncState::Completing);
    }

    fn answer_look(&mut self) {
        if self.owner.looks_taken < self.owner.bell.rung() {
            self.look_for_departure();
            self.owner.answer_look();
        }
    }

    fn answer_looks(&mut self) {
        while self.owner.looks_taken < self.owner.bell.rung() {
            self.answer_look();
        }
    }
}

// Excluded: the request ends twice, with the end of its client and with complete(), or not at all,
// each having left it to the other; or without the bytes of a complete() that was told "done".
#[test]
fn a_client_that_leaves_against_complete() {
    model_within(3, || {
        let (cell, bell) = cell(AsyncState::Started);
        cell.set_flag(Flag::EndsOnPeerClose);
        let caller = thread::spawn({
            let cell = cell.clone();
            move || {
                let completed =
                    cell.call(Some(Event::Complete(Side::Other)), Some(Op::Write(1)), Look::Always);
                completed.is_ok()
            }
        });
        let mut watcher = Watcher { owner: Owner::new(&cell, &bell), departures: 0 };
        // `on_peer_closed`
        let before = cell.set_flag(Flag::PeerClosed);
        if before.state().is_async() && before.has(Flag::EndsOnPeerClose) {
            watcher.look_for_departure();
            watcher.owner.run();
        }
        watcher.answer_look();
        let is_completed = caller.join().unwrap();
        watcher.answer_looks();
        let Watcher { mut owner, departures } = watcher;
        if cell.word().state() == AsyncState::Completing {
            owner.step(DRAINED);
        }
        assert_eq!((cell.word().state(), owner.ends), (AsyncState::Dispatched, 1));
        assert_eq!(departures, 1);
        assert_eq!(owner.applied.len(), usize::from(is_completed));
        // For the application, also when the request is over: PEER_CLOSED stays.
        assert!(cell.word().has(Flag::PeerClosed));
    });
}

// Excluded: the worker of a blocking servlet asks for the end with the client after the owner has
// looked at the wish, and the owner looks at the end of the stream before it came: neither of the
// two sees the other, and the request stays open for ever.
#[test]
fn a_client_that_leaves_against_the_wish_to_end_with_it() {
    model(|| {
        let (cell, bell) = cell(AsyncState::Dispatched);
        let worker = thread::spawn({
            let cell: Arc<Cell> = cell.clone();
            move || {
                cell.set_flag(Flag::EndsOnPeerClose);
                cell.call(Some(Event::AsyncStart), None, Look::Never).unwrap();
                // Stands for the message that brings the request back.
                cell.post_look();
            }
        });
        let mut watcher = Watcher { owner: Owner::new(&cell, &bell), departures: 0 };
        let before = cell.set_flag(Flag::PeerClosed);
        if watcher.owner.looks_taken < bell.rung() {
            watcher.answer_look();
        }
        // While the worker has the request its state is not the core's to act on.
        assert!(!before.has(Flag::PeerClosed));
        worker.join().unwrap();
        watcher.answer_looks();
        assert_eq!(watcher.departures, 1);
    });
}
