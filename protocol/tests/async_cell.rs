//! The cell as its callers and its owner use it, without races; those are in `loom_cell.rs`.
#![allow(clippy::disallowed_methods, reason = "foreign threads are what is tested")]
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test")]

use std::{
    fmt,
    io::ErrorKind,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Poll, Wake, Waker},
    thread,
    time::Duration,
};

use ringcat_engine::{
    current::{Current, ExchangeName},
    key::CoreId,
};
use ringcat_protocol::{
    async_cell::{
        Advance, AsyncCell, CallError, CellLimits, Direction, Doorbell, Look, Operation, Pushed,
        Took, WriteRefused,
    },
    async_state_machine::{AsyncState, Event, Flag, IllegalState, Outcome, Side},
    exchange_key::ExchangeKey,
    http11::head::Head,
};

/// What a caller leaves: bytes, a flush, a status, the target of a dispatch.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Op {
    Write(usize),
    Flush,
    Status(u16),
    Target(&'static str),
}

impl Operation for Op {
    fn credit_bytes(&self) -> usize {
        match self {
            Self::Write(bytes) => *bytes,
            Self::Flush | Self::Status(_) | Self::Target(_) => 0,
        }
    }

    fn changes_head(&self) -> bool {
        matches!(self, Self::Status(_))
    }

    fn commits(&self) -> bool {
        matches!(self, Self::Flush)
    }
}

#[derive(Default)]
struct Bell {
    looks: Mutex<Vec<ExchangeKey>>,
}

impl Bell {
    fn looks(&self) -> usize {
        self.looks.lock().unwrap().len()
    }
}

impl Doorbell for Bell {
    fn look(&self, key: ExchangeKey) {
        self.looks.lock().unwrap().push(key);
    }
}

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

type Cell = AsyncCell<Op>;

const KEY: ExchangeKey = ExchangeKey { slot: 3, stamp: 9 };
const LIMITS: CellLimits = CellLimits { high_water_bytes: 100, backlog_bytes_max: 200 };
const DRAINED: Event = Event::PostProcess { drained: true, io_allowed: true };

fn name(key: ExchangeKey) -> ExchangeName {
    ExchangeName { core: CoreId(2), key: key.to_u64() }
}

fn cell() -> (Arc<Cell>, Arc<Bell>) {
    let bell = Arc::new(Bell::default());
    (Arc::new(AsyncCell::new(name(KEY), KEY, bell.clone(), LIMITS)), bell)
}

/// A cell that is parked in its first round.
fn parked() -> (Arc<Cell>, Arc<Bell>) {
    let (cell, bell) = cell();
    cell.advance(cell.word(), Event::AsyncStart).unwrap();
    cell.advance(cell.word(), DRAINED).unwrap();
    (cell, bell)
}

fn take<O: Operation + fmt::Debug>(cell: &AsyncCell<O>) -> Vec<O> {
    match cell.take() {
        Took::Taken { operations, .. } => operations,
        Took::Contended => panic!("nobody is inside"),
    }
}

/// Spins until another thread waits for credit.
fn until_a_writer_waits(cell: &Cell) {
    while !cell.word().has(Flag::Waiters) {
        thread::yield_now();
    }
}

#[test]
fn operations_come_in_call_order_with_the_state_that_goes_with_them() {
    let (cell, bell) = parked();
    cell.call(None, Some(Op::Status(404)), Look::Never).unwrap();
    cell.try_write(Op::Write(5)).unwrap();
    assert_eq!(bell.looks(), 0);
    let event = Event::Dispatch(Side::Other);
    let effects = cell.call(Some(event), Some(Op::Target("/b")), Look::Never).unwrap();
    assert!(effects.wake);
    assert_eq!(*bell.looks.lock().unwrap(), [KEY]);
    let Took::Taken { word, operations } = cell.take() else { panic!("nobody is inside") };
    assert_eq!(word.state(), AsyncState::Dispatching);
    assert_eq!(operations, [Op::Status(404), Op::Write(5), Op::Target("/b")]);
    assert_eq!(take(&cell), []);
}

#[test]
fn looks_merge_until_the_owner_takes() {
    let (cell, bell) = parked();
    for _ in 0..3 {
        cell.call(None, Some(Op::Flush), Look::Always).unwrap();
    }
    assert_eq!(bell.looks(), 1);
    take(&cell);
    cell.call(None, Some(Op::Flush), Look::Always).unwrap();
    assert_eq!(bell.looks(), 2);
}

#[test]
fn writes_ask_for_a_look_when_enough_has_gathered() {
    let (cell, bell) = parked();
    cell.try_write(Op::Write(13)).unwrap();
    assert_eq!(bell.looks(), 0);
    cell.try_write(Op::Write(1)).unwrap();
    assert_eq!(bell.looks(), 1);
    take(&cell);
    cell.call(None, Some(Op::Write(13)), Look::WhenGathered).unwrap();
    assert_eq!(bell.looks(), 1);
}

#[test]
fn a_write_at_the_mark_asks_for_a_look_however_little_has_gathered() {
    let (cell, bell) = parked();
    cell.try_write(Op::Write(95)).unwrap();
    take(&cell);
    assert_eq!(bell.looks(), 1);
    cell.try_write(Op::Write(5)).unwrap();
    assert_eq!(bell.looks(), 2);
}

#[test]
fn a_refused_event_pushes_nothing() {
    let (cell, bell) = cell();
    let event = Event::Complete(Side::Other);
    let refused = cell.call(Some(event), Some(Op::Flush), Look::Always);
    let illegal = IllegalState { state: AsyncState::Dispatched, event };
    assert_eq!(refused, Err(CallError::IllegalState(illegal)));
    assert_eq!((take(&cell), bell.looks()), (vec![], 0));
    assert!(!cell.word().has(Flag::Committed));
}

#[test]
fn a_committed_head_cannot_change() {
    let (cell, _bell) = parked();
    cell.call(None, Some(Op::Flush), Look::Always).unwrap();
    assert!(cell.word().has(Flag::Committed));
    // With an event: neither half happens.
    let refused = cell.call(Some(Event::Complete(Side::Other)), Some(Op::Status(500)), Look::Never);
    assert_eq!(refused, Err(CallError::Committed));
    assert_eq!((take(&cell), cell.word().state()), (vec![Op::Flush], AsyncState::Started));
}

#[test]
fn after_an_io_error_only_output_fails() {
    let (cell, _bell) = parked();
    cell.set_flag(Flag::IoError);
    for op in [Op::Write(1), Op::Flush] {
        assert_eq!(cell.call(None, Some(op), Look::Never), Err(CallError::Io));
    }
    assert_eq!(cell.try_write(Op::Write(1)), Err(WriteRefused::Io(Op::Write(1))));
    assert_eq!(cell.in_flight_bytes(), 0);
    cell.call(Some(Event::Complete(Side::Other)), Some(Op::Status(1)), Look::Never).unwrap();
}

#[test]
fn the_side_is_that_of_the_exchange_and_not_of_the_core() {
    let (cell, _bell) = cell();
    assert_eq!(cell.side(), Side::Other);
    assert_eq!(Current::in_exchange(name(KEY), || cell.side()), Side::Request);
    let neighbour = name(ExchangeKey { slot: 4, stamp: 9 });
    assert_eq!(Current::in_exchange(neighbour, || cell.side()), Side::Other);
}

#[test]
fn an_owner_that_was_overtaken_starts_again() {
    let (cell, _bell) = parked();
    let Took::Taken { word, .. } = cell.take() else { panic!("nobody is inside") };
    cell.call(Some(Event::Complete(Side::Other)), None, Look::Never).unwrap();
    assert_eq!(cell.advance(word, Event::Timeout), Err(Advance::Changed(cell.word())));
    let late = cell.advance(cell.word(), Event::Timeout).unwrap();
    assert!(!late.fire_on_timeout);
    let end = cell.advance(cell.word(), DRAINED).unwrap();
    assert_eq!((end.on_complete, end.outcome), (true, Some(Outcome::AsyncEnd)));
    let illegal = IllegalState { state: AsyncState::Dispatched, event: DRAINED };
    assert_eq!(cell.advance(cell.word(), DRAINED), Err(Advance::Illegal(illegal)));
}

/// An operation whose size is asked for inside the lock, where it plays the owner.
#[derive(Debug)]
struct Intruder {
    cell: Arc<AsyncCell<Intruder>>,
    found: Arc<Mutex<Vec<bool>>>,
}

impl Operation for Intruder {
    fn credit_bytes(&self) -> usize {
        let is_contended = matches!(self.cell.take(), Took::Contended);
        self.found.lock().unwrap().extend([is_contended, self.cell.close().is_none()]);
        0
    }
}

#[test]
fn an_owner_that_meets_a_caller_comes_back() {
    let bell = Arc::new(Bell::default());
    let cell = Arc::new(AsyncCell::new(name(KEY), KEY, bell.clone(), LIMITS));
    let found = Arc::new(Mutex::new(Vec::new()));
    let op = Intruder { cell: cell.clone(), found: found.clone() };
    cell.call(None, Some(op), Look::Never).unwrap();
    let found = found.lock().unwrap();
    assert!(!found.is_empty() && found.iter().all(|was_refused| *was_refused));
    // One for each attempt: the look that led to an attempt is over when it is made, and without
    // another one nobody would come back after the second.
    assert_eq!(bell.looks(), found.len());
    assert_eq!(take(&cell).len(), 1);
}

#[test]
fn close_ends_every_kind_of_call() {
    let (cell, bell) = parked();
    cell.try_write(Op::Write(7)).unwrap();
    assert_eq!(cell.close(), Some(vec![Op::Write(7)]));
    assert!(cell.word().has(Flag::Closed));
    assert_eq!(cell.call(None, Some(Op::Flush), Look::Always), Err(CallError::Closed));
    let complete = Some(Event::Complete(Side::Request));
    assert_eq!(cell.call(complete, None, Look::Always), Err(CallError::Closed));
    assert_eq!(cell.try_write(Op::Write(1)), Err(WriteRefused::Closed(Op::Write(1))));
    assert_eq!(cell.try_read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionAborted);
    assert_eq!((cell.close(), bell.looks()), (Some(vec![]), 0));
}

#[test]
fn credit_is_taken_by_the_write_and_given_back_by_the_owner() {
    let (cell, _bell) = parked();
    cell.try_write(Op::Write(99)).unwrap();
    // Any credit admits a write of any size.
    cell.try_write(Op::Write(50)).unwrap();
    assert_eq!(cell.try_write(Op::Write(1)), Err(WriteRefused::WouldBlock(Op::Write(1))));
    assert_eq!(take(&cell).len(), 2);
    assert_eq!(cell.in_flight_bytes(), 149, "applied is not sent");
    cell.release_credit(49);
    assert!(cell.try_write(Op::Write(1)).is_err());
    cell.release_credit(1);
    cell.try_write(Op::Write(1)).unwrap();
    assert_eq!(cell.in_flight_bytes(), 100);
}

#[test]
#[should_panic(expected = "credit of 2 bytes comes back, 1 are out")]
fn more_credit_than_was_taken() {
    let (cell, _bell) = parked();
    cell.try_write(Op::Write(1)).unwrap();
    cell.release_credit(2);
}

#[test]
fn during_a_callback_writers_never_wait() {
    let (cell, _bell) = parked();
    cell.try_write(Op::Write(150)).unwrap();
    cell.enter_callback();
    cell.try_write(Op::Write(50)).unwrap();
    assert_eq!(cell.try_write(Op::Write(1)), Err(WriteRefused::Backlog(Op::Write(1))));
    cell.leave_callback();
    assert_eq!(cell.try_write(Op::Write(1)), Err(WriteRefused::WouldBlock(Op::Write(1))));
}

#[test]
fn on_a_core_a_write_never_waits() {
    let (cell, _bell) = parked();
    cell.try_write(Op::Write(100)).unwrap();
    let core = Current { core: Some(CoreId(0)), ..Current::default() };
    let refused = core.scope(|| cell.write_blocking(Op::Write(1), None));
    assert_eq!(refused, Err(WriteRefused::WouldBlock(Op::Write(1))));
    let read = core.scope(|| cell.read_blocking(&mut [0], None));
    assert_eq!(read.unwrap_err().kind(), ErrorKind::WouldBlock);
}

/// A waiting writer, what the owner does, and how the write ends.
fn check_wait(owner: impl FnOnce(&Cell), expected: Result<(), WriteRefused<Op>>) {
    let (cell, _bell) = parked();
    cell.try_write(Op::Write(100)).unwrap();
    let writer = thread::spawn({
        let cell = cell.clone();
        move || cell.write_blocking(Op::Write(1), None)
    });
    until_a_writer_waits(&cell);
    owner(&cell);
    assert_eq!(writer.join().unwrap(), expected);
    assert!(!cell.word().has(Flag::Waiters));
}

#[test]
fn what_ends_a_wait() {
    check_wait(|cell| cell.release_credit(1), Ok(()));
    check_wait(Cell::enter_callback, Ok(()));
    let fail = |cell: &Cell| {
        cell.set_flag(Flag::IoError);
    };
    check_wait(fail, Err(WriteRefused::Io(Op::Write(1))));
    check_wait(|cell| drop(cell.close()), Err(WriteRefused::Closed(Op::Write(1))));
}

#[test]
fn a_wait_has_a_timeout_and_leaves_nothing_behind() {
    let (cell, _bell) = parked();
    cell.try_write(Op::Write(100)).unwrap();
    let refused = cell.write_blocking(Op::Write(1), Some(Duration::from_millis(1)));
    assert_eq!(refused, Err(WriteRefused::TimedOut(Op::Write(1))));
    assert!(!cell.word().has(Flag::Waiters));
    assert_eq!(cell.in_flight_bytes(), 100);
}

#[test]
fn a_polled_write_wakes_once() {
    let (cell, _bell) = parked();
    cell.try_write(Op::Write(100)).unwrap();
    let wakes = Arc::new(Wakes::default());
    let waker = Waker::from(wakes.clone());
    let mut op = Some(Op::Write(1));
    assert_eq!(cell.poll_write(&mut op, &waker), Poll::Pending);
    assert_eq!(cell.poll_write(&mut op, &waker), Poll::Pending);
    cell.release_credit(1);
    assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
    assert_eq!(cell.poll_write(&mut op, &waker), Poll::Ready(Ok(())));
    assert_eq!(op, None);
    cell.release_credit(50);
    assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
}

#[test]
fn readiness_and_the_owed_callback() {
    let (cell, _bell) = parked();
    assert!(!cell.make_ready(Direction::Write));
    assert!(cell.is_ready_or_owed(Direction::Write));
    assert!(!cell.word().has(Flag::WriteOwed));
    cell.clear_flag(Flag::WriteReady);
    assert!(!cell.is_ready_or_owed(Direction::Write));
    assert!(!cell.is_ready_or_owed(Direction::Write));
    assert!(cell.make_ready(Direction::Write));
    assert!(!cell.make_ready(Direction::Write), "one callback for one answer");
}

#[test]
fn body_bytes_arrive_as_they_were_pushed() {
    let (cell, _bell) = parked();
    assert_eq!(cell.try_read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert!(!cell.is_ready_or_owed(Direction::Read));
    let large = vec![b'x'; 1000];
    assert_eq!(cell.push_inbound(b"ab"), Some(Pushed { queued_bytes: 2, is_owed: true }));
    assert_eq!(cell.push_inbound(&large), Some(Pushed { queued_bytes: 1002, is_owed: false }));
    assert_eq!(cell.push_inbound(b"yz"), Some(Pushed { queued_bytes: 1004, is_owed: false }));
    let mut all = Vec::new();
    while cell.word().has(Flag::ReadReady) {
        let mut buf = [0; 7];
        let bytes = cell.try_read(&mut buf).unwrap();
        all.extend_from_slice(&buf[..bytes]);
    }
    assert_eq!(all, [&b"ab"[..], &large, b"yz"].concat());
    assert_eq!(cell.inbound_len(), 0);
    assert_eq!(cell.try_read(&mut []).unwrap(), 0);
    assert_eq!(cell.try_read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn the_end_comes_after_the_bytes_and_stays() {
    let (cell, _bell) = parked();
    cell.push_inbound(b"ab").unwrap();
    assert!(!cell.finish_inbound());
    let mut buf = [0; 4];
    assert_eq!(cell.try_read(&mut buf).unwrap(), 2);
    assert_eq!(cell.try_read(&mut buf).unwrap(), 0);
    assert_eq!(cell.try_read(&mut buf).unwrap(), 0);
    assert!(cell.word().has(Flag::ReadReady));
}

#[test]
fn a_failure_comes_after_the_bytes() {
    const ECONNRESET: i32 = 104;
    let (cell, _bell) = parked();
    cell.push_inbound(b"a").unwrap();
    cell.fail_inbound(ECONNRESET);
    assert_eq!(cell.try_read(&mut [0; 4]).unwrap(), 1);
    let error = cell.try_read(&mut [0; 4]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(ECONNRESET));
}

#[test]
fn a_reader_that_comes_below_half_of_the_mark_asks_for_a_look() {
    let (cell, bell) = parked();
    cell.push_inbound(&[1; 100]).unwrap();
    cell.try_read(&mut [0; 50]).unwrap();
    assert_eq!(bell.looks(), 0);
    cell.try_read(&mut [0; 1]).unwrap();
    assert_eq!(bell.looks(), 1);
    take(&cell);
    cell.try_read(&mut [0; 10]).unwrap();
    assert_eq!(bell.looks(), 1);
}

/// A reader that waits, or is about to, what the owner does, and how the read ends.
fn check_read(owner: impl FnOnce(&Cell), expected: Result<usize, ErrorKind>) {
    let (cell, _bell) = parked();
    let reader = thread::spawn({
        let cell = cell.clone();
        move || cell.read_blocking(&mut [0; 4], None).map_err(|error| error.kind())
    });
    owner(&cell);
    assert_eq!(reader.join().unwrap(), expected);
}

#[test]
fn what_ends_a_waiting_read() {
    let push = |cell: &Cell| {
        while cell.push_inbound(b"abc").is_none() {
            thread::yield_now();
        }
    };
    check_read(push, Ok(3));
    let finish = |cell: &Cell| {
        cell.finish_inbound();
    };
    let fail = |cell: &Cell| {
        cell.fail_inbound(104);
    };
    check_read(finish, Ok(0));
    check_read(fail, Err(ErrorKind::ConnectionReset));
    check_read(|cell| drop(cell.close().unwrap()), Err(ErrorKind::ConnectionAborted));
    let (cell, _bell) = parked();
    let timed_out = cell.read_blocking(&mut [0], Some(Duration::from_millis(1)));
    assert_eq!(timed_out.unwrap_err().kind(), ErrorKind::TimedOut);
}

#[test]
fn values_that_any_thread_may_ask_for() {
    let (cell, _bell) = cell();
    assert_eq!(cell.set_timeout_millis(30_000), 0);
    assert_eq!(cell.set_timeout_millis(-1), 30_000);
    assert_eq!(cell.timeout_millis(), -1);
    cell.set_start_nanos(5);
    assert_eq!(cell.start_nanos(), 5);
    assert!(cell.head().is_none());
    let head = Arc::new(Head::new());
    cell.set_head(|| Arc::clone(&head));
    cell.set_head(|| panic!("the head is written once"));
    assert!(Arc::ptr_eq(cell.head().unwrap(), &head));
    assert!(cell.attribute("a").is_none() && cell.attribute_names().is_empty());
    assert!(cell.set_attribute("b", Arc::new(1)).is_none());
    assert!(cell.set_attribute("a", Arc::new(2)).is_none());
    let last = cell.set_attribute("a", Arc::new(3)).unwrap();
    assert_eq!(last.downcast_ref(), Some(&2));
    assert_eq!(cell.attribute("a").unwrap().downcast_ref(), Some(&3));
    assert_eq!(cell.attribute_names(), ["a".into(), "b".into()] as [Box<str>; 2]);
    assert!(cell.remove_attribute("a").is_some() && cell.remove_attribute("a").is_none());
    assert_eq!(cell.take_attributes().len(), 1);
    assert!(cell.attribute("b").is_none());
}

#[test]
fn a_cell_is_reused_when_no_handle_is_left() {
    let (mut cell, bell) = parked();
    cell.try_write(Op::Write(100)).unwrap();
    cell.push_inbound(b"a").unwrap();
    cell.set_attribute("a", Arc::new(1));
    cell.set_head(|| Arc::new(Head::new()));
    cell.set_timeout_millis(1);
    cell.close().unwrap();
    let handle = cell.clone();
    assert!(Arc::get_mut(&mut cell).is_none());
    drop(handle);
    let next = ExchangeKey { slot: 3, stamp: 10 };
    Arc::get_mut(&mut cell).unwrap().reset(name(next), next);
    assert_eq!((cell.key(), cell.name()), (next, name(next)));
    let word = cell.word();
    assert_eq!((word.state(), word.round()), (AsyncState::Dispatched, 1));
    assert!(!word.has(Flag::Closed) && !word.has(Flag::Queued));
    assert_eq!((cell.in_flight_bytes(), cell.inbound_len(), cell.timeout_millis()), (0, 0, 0));
    assert!(cell.head().is_none() && cell.attribute_names().is_empty());
    assert_eq!(take(&cell), []);
    cell.post_look();
    assert_eq!(bell.looks.lock().unwrap().last(), Some(&next));
}
