//! The wheel against a sorted map, and the promises of its documentation one by one.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::{collections::BTreeMap, time::Duration};

use proptest::prelude::*;
use ringcat_engine::{
    timer_wheel::{TICK, TimerId, TimerWheel},
    timestamp::Timestamp,
};

const SECOND: Duration = Duration::from_secs(1);
const LEVEL_COUNT: usize = 6;
const TICK_NANOS: u64 = TICK.as_nanos() as u64;
const DAY: Duration = Duration::from_secs(24 * 3600);

fn at_millis(millis: u64) -> Timestamp {
    Timestamp::ZERO + Duration::from_millis(millis)
}

/// Expires until nothing is due, and returns what fired.
fn expire_all<K: Copy>(wheel: &mut TimerWheel<K>, now: Timestamp) -> Vec<K> {
    let fired = std::iter::from_fn(|| wheel.expire(now).map(|(_, key)| key)).collect();
    wheel.check_invariants();
    fired
}

/// Sleeps from wake to wake until something fires; returns when and what, and how many wakes it
/// took.
fn run_to_first<K: Copy>(wheel: &mut TimerWheel<K>) -> (Timestamp, Vec<K>, usize) {
    for wakes in 1..100 {
        let now = wheel.next_deadline().expect("a timer is set");
        let fired = expire_all(wheel, now);
        if !fired.is_empty() {
            return (now, fired, wakes);
        }
        assert!(wheel.next_deadline() > Some(now), "the wheel spins at {now:?}");
    }
    panic!("nothing fired in 100 wakes");
}

#[derive(Clone, Debug)]
enum Op {
    /// This long after the present.
    Insert(Duration),
    /// At a moment, which may have passed.
    InsertAt(Timestamp),
    /// The timer of this rank, to this long after the present.
    Rearm(usize, Duration),
    Remove(usize),
    Advance(Duration),
    /// As the core does: to the next deadline.
    AdvanceToNext,
    /// Takes out at most this many, as a caller with a budget does.
    AdvanceAndTake(Duration, usize),
}

/// Durations of every level and beyond the last, often on a tick's border.
fn duration() -> impl Strategy<Value = Duration> {
    let nanos = (0u32..58, any::<u64>()).prop_map(|(bits, random)| random & ((1 << bits) - 1));
    let ticks = (0u32..40, any::<u64>())
        .prop_map(|(bits, random)| (random & ((1 << bits) - 1)).saturating_mul(TICK_NANOS));
    prop_oneof![3 => nanos, 2 => ticks].prop_map(Duration::from_nanos)
}

fn op() -> impl Strategy<Value = Op> {
    let never = Duration::from_nanos(u64::MAX);
    prop_oneof![
        6 => duration().prop_map(Op::Insert),
        1 => Just(Op::Insert(never)),
        1 => duration().prop_map(|nanos| Op::InsertAt(Timestamp::ZERO + nanos)),
        4 => (any::<usize>(), duration()).prop_map(|(rank, to)| Op::Rearm(rank, to)),
        1 => any::<usize>().prop_map(move |rank| Op::Rearm(rank, never)),
        2 => any::<usize>().prop_map(Op::Remove),
        4 => duration().prop_map(Op::Advance),
        4 => Just(Op::AdvanceToNext),
        2 => (duration(), 0usize..3).prop_map(|(by, count)| Op::AdvanceAndTake(by, count)),
    ]
}

struct Model {
    wheel: TimerWheel<u64>,
    now: Timestamp,
    /// Key to timer, deadline, and the moment from which the promise counts: the later of deadline
    /// and the time of setting.
    live: BTreeMap<u64, (TimerId, Timestamp, Timestamp)>,
    next_key: u64,
}

impl Model {
    fn new(now: Timestamp) -> Self {
        Self { wheel: TimerWheel::new(now), now, live: BTreeMap::new(), next_key: 0 }
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Insert(after) => self.insert(self.now + after),
            Op::InsertAt(deadline) => self.insert(deadline),
            Op::Rearm(rank, after) => {
                let deadline = self.now + after;
                if let Some(key) = self.key_of_rank(rank) {
                    let (id, old, due) = self.live[&key];
                    self.wheel.rearm(id, deadline);
                    let due = if deadline == old { due } else { deadline.max(self.now) };
                    self.live.insert(key, (id, deadline, due));
                }
            }
            Op::Remove(rank) => {
                if let Some(key) = self.key_of_rank(rank) {
                    let (id, ..) = self.live.remove(&key).unwrap();
                    assert_eq!(self.wheel.remove(id), key);
                }
            }
            Op::Advance(by) => self.advance(self.now + by, usize::MAX),
            Op::AdvanceAndTake(by, count) => self.advance(self.now + by, count),
            Op::AdvanceToNext => {
                let Some(next) = self.wheel.next_deadline() else { return };
                if next == Timestamp::NEVER {
                    return;
                }
                let fired_before = self.live.len();
                self.advance(next.max(self.now), usize::MAX);
                let progress = self.live.len() < fired_before;
                let later = self.wheel.next_deadline().is_none_or(|then| then > self.now);
                assert!(progress || later, "a wake at {next:?} changed nothing");
            }
        }
    }

    fn insert(&mut self, deadline: Timestamp) {
        let key = self.next_key;
        self.next_key += 1;
        let id = self.wheel.insert(deadline, key);
        self.live.insert(key, (id, deadline, deadline.max(self.now)));
    }

    fn advance(&mut self, to: Timestamp, count_max: usize) {
        // A clock stops before "never": no deadline lies behind it.
        self.now = to.min(Timestamp::NEVER - 100 * 365 * DAY);
        for _ in 0..count_max {
            let Some((id, key)) = self.wheel.expire(self.now) else {
                let late = self.live.values().find(|(_, _, due)| *due + TICK <= self.now);
                assert!(late.is_none(), "{late:?} is late at {:?}", self.now);
                return;
            };
            let (expected, deadline, _) = self.live.remove(&key).expect("a timer fires once");
            assert_eq!(id, expected);
            assert!(deadline <= self.now, "{deadline:?} fired early, at {:?}", self.now);
        }
    }

    fn key_of_rank(&self, rank: usize) -> Option<u64> {
        self.live.keys().nth(rank % self.live.len().max(1)).copied()
    }

    fn check(&self) {
        self.wheel.check_invariants();
        assert_eq!(self.wheel.len(), self.live.len());
        assert_eq!(self.wheel.is_empty(), self.live.is_empty());
        let earliest = self.live.values().map(|(_, _, due)| *due).min();
        match (earliest, self.wheel.next_deadline()) {
            (None, next) => assert_eq!(next, None),
            (Some(due), Some(next)) => assert!(next <= due + TICK, "{due:?} sleeps till {next:?}"),
            (Some(due), None) => panic!("{due:?} is forgotten"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn behaves_like_a_sorted_map(
        start in duration(),
        ops in prop::collection::vec(op(), 0..120),
    ) {
        let mut model = Model::new(Timestamp::ZERO + start);
        for op in &ops {
            model.apply(op);
            model.check();
        }
    }
}

#[test]
fn a_timer_fires_on_the_first_boundary_after_its_deadline() {
    let mut wheel = TimerWheel::new(Timestamp::ZERO);
    wheel.insert(at_millis(9), 'a');
    wheel.insert(at_millis(12), 'b');
    wheel.insert(at_millis(13), 'c');
    assert_eq!(wheel.next_deadline(), Some(at_millis(12)));
    assert_eq!(expire_all(&mut wheel, at_millis(11)), []);
    let mut fired = expire_all(&mut wheel, at_millis(12));
    fired.sort_unstable();
    assert_eq!(fired, ['a', 'b']);
    assert_eq!(wheel.next_deadline(), Some(at_millis(16)));
    assert_eq!(expire_all(&mut wheel, at_millis(16)), ['c']);
    assert_eq!(wheel.next_deadline(), None);
}

#[test]
fn every_level_fires_in_time_and_after_few_wakes() {
    for exponent in 0..8 {
        let deadline = Timestamp::ZERO + TICK * 3 * 64u32.pow(exponent.min(4));
        let deadline = if exponent > 4 { deadline + exponent * 300 * DAY } else { deadline };
        let mut wheel = TimerWheel::new(Timestamp::ZERO);
        wheel.insert(deadline, exponent);
        let (now, fired, wakes) = run_to_first(&mut wheel);
        assert_eq!((now, fired), (deadline, vec![exponent]));
        assert!(wakes <= LEVEL_COUNT, "{wakes} wakes for {deadline:?}");
    }
}

#[test]
fn a_deadline_beyond_the_last_level_is_linked_again() {
    let deadline = Timestamp::ZERO + 365 * 30 * DAY;
    let mut wheel = TimerWheel::new(Timestamp::ZERO + SECOND);
    wheel.insert(deadline, ());
    wheel.insert(Timestamp::NEVER, ());
    let (now, fired, _) = run_to_first(&mut wheel);
    assert_eq!((now, fired.len()), (deadline, 1));
    assert_eq!(wheel.len(), 1, "never does not come");
}

#[test]
fn a_later_deadline_leaves_the_node_where_it_is() {
    let mut wheel = TimerWheel::new(Timestamp::ZERO);
    let id = wheel.insert(at_millis(8), ());
    wheel.rearm(id, at_millis(800));
    assert_eq!(wheel.next_deadline(), Some(at_millis(8)), "the wake of the old time stays");
    let (now, _, wakes) = run_to_first(&mut wheel);
    assert_eq!((now, wakes), (at_millis(800), 3));
}

#[test]
fn an_earlier_deadline_counts_at_once() {
    let mut wheel = TimerWheel::new(Timestamp::ZERO);
    let id = wheel.insert(Timestamp::NEVER, ());
    wheel.rearm(id, at_millis(20));
    assert_eq!(wheel.next_deadline(), Some(at_millis(20)));
    assert_eq!(wheel.expire(at_millis(20)), Some((id, ())));
}

#[test]
fn due_timers_can_be_moved_and_removed_between_two_calls() {
    let mut wheel = TimerWheel::new(Timestamp::ZERO);
    let mut ids: Vec<_> = (0..4).map(|key| wheel.insert(at_millis(4), key)).collect();
    let (first, _) = wheel.expire(at_millis(4)).unwrap();
    ids.retain(|id| *id != first);
    let removed = wheel.remove(ids[0]);
    wheel.rearm(ids[1], at_millis(8));
    wheel.rearm(ids[2], at_millis(1));
    wheel.check_invariants();
    assert_eq!(wheel.next_deadline(), Some(at_millis(4)), "one is due still");
    let fired = expire_all(&mut wheel, at_millis(4));
    assert_eq!(fired.len(), 1);
    assert_ne!(fired[0], removed);
    assert_eq!(wheel.next_deadline(), Some(at_millis(8)));
}

#[test]
fn a_callback_that_sets_a_passed_deadline_does_not_hold_the_core() {
    let mut wheel = TimerWheel::new(Timestamp::ZERO);
    let now = at_millis(1000);
    wheel.insert(at_millis(4), ());
    let mut fired = 0;
    while wheel.expire(now).is_some() {
        wheel.insert(now, ());
        fired += 1;
        assert!(fired < 10);
    }
    assert_eq!(wheel.next_deadline(), Some(now + TICK));
}

#[test]
#[should_panic(expected = "timer id")]
fn a_stale_id_is_refused_although_its_slot_is_in_use() {
    let mut wheel = TimerWheel::new(Timestamp::ZERO);
    let stale = wheel.insert(at_millis(4), ());
    wheel.remove(stale);
    wheel.insert(at_millis(4), ());
    wheel.rearm(stale, at_millis(8));
}

#[test]
#[should_panic(expected = "timer id")]
fn a_timer_that_fired_cannot_be_removed() {
    let mut wheel = TimerWheel::new(Timestamp::ZERO);
    let id = wheel.insert(at_millis(4), ());
    assert!(wheel.expire(at_millis(4)).is_some());
    wheel.remove(id);
}
