//! Loom models of the inbox: the orders of two producers and an owner that sleeps, up to
//! [`PREEMPTIONS_MAX`] preemptions each (without that bound they are too many). Run with
//! `RUSTFLAGS="--cfg loom" cargo test -p ringcat-engine --release --test loom_inbox`.
//!
//! What they exclude, each tried by hand:
//!
//! - `prepare_sleep` without its second look: a producer pushes and swaps `asleep` (to `false`,
//!   it was `false`) between the owner's last take and its announcement. Nobody wakes the owner,
//!   and loom reports a deadlock in `no_wake_is_lost`.
//! - `asleep` announced with a store in place of the swap: the same deadlock.
//! - `Relaxed` for the push or for the take: the content of a message is read without having been
//!   handed over, which loom reports as a causality violation.
#![cfg(loom)]

use loom::{
    cell::Cell,
    sync::{Arc, Notify},
    thread,
};
use ringcat_engine::inbox::{Inbox, Wake};

/// The eventfd: a wake before the wait ends the wait too.
struct Bell(Arc<Notify>);

impl Wake for Bell {
    fn wake(&self) {
        self.0.notify();
    }
}

/// Content that loom watches: a read that no synchronisation orders after the write fails.
struct Message {
    producer: usize,
    number: Cell<usize>,
}

impl Message {
    fn new(producer: usize, number: usize) -> Self {
        let message = Self { producer, number: Cell::new(usize::MAX) };
        message.number.set(number);
        message
    }
}

/// Takes until every producer's count of messages is there, sleeping in between as a core does.
fn receive_all(inbox: &Inbox<Message>, bell: &Notify, expected: &[usize]) {
    let mut received = vec![0; expected.len()];
    while received != expected {
        for message in inbox.take() {
            let next = &mut received[message.producer];
            assert_eq!(message.number.get(), *next, "in order, none lost, none twice");
            *next += 1;
        }
        if received != expected && inbox.prepare_sleep() {
            bell.wait();
            inbox.awake();
        }
    }
    assert!(inbox.is_empty());
}

/// Involuntary switches between threads in one execution. The lost wake needs one.
const PREEMPTIONS_MAX: usize = 3;

fn model(counts: &'static [usize]) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS_MAX);
    builder.check(move || {
        let bell = Arc::new(Notify::new());
        let inbox = Arc::new(Inbox::new(Box::new(Bell(Arc::clone(&bell)))));
        let producers: Vec<_> = (0..counts.len())
            .map(|producer| {
                let inbox = Arc::clone(&inbox);
                thread::spawn(move || {
                    for number in 0..counts[producer] {
                        inbox.post(Message::new(producer, number));
                    }
                })
            })
            .collect();
        receive_all(&inbox, &bell, counts);
        for producer in producers {
            producer.join().expect("producers do not panic");
        }
        let posts: usize = counts.iter().sum();
        assert!(inbox.wake_count() <= posts as u64);
    });
}

#[test]
fn no_wake_is_lost() {
    model(&[1, 1]);
}

#[test]
fn one_producer_keeps_its_order() {
    model(&[3]);
}

#[test]
fn two_producers_keep_their_orders() {
    model(&[2, 1]);
}

#[test]
fn an_inbox_that_ends_drops_its_messages() {
    loom::model(|| {
        let bell = Arc::new(Notify::new());
        let inbox = Arc::new(Inbox::new(Box::new(Bell(bell))));
        let witness = Arc::new(());
        let producer = {
            let (inbox, message) = (Arc::clone(&inbox), Arc::clone(&witness));
            thread::spawn(move || inbox.post(message))
        };
        let taken = inbox.take().count();
        drop(inbox);
        producer.join().expect("the producer does not panic");
        assert!(taken <= 1);
        // Loom fails the model by itself if a message, an `Arc` of its own, leaks.
        assert_eq!(Arc::strong_count(&witness), 1);
    });
}
