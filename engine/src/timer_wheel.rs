//! Every deadline of a core: a hierarchical, hashed timer wheel.
//!
//! # Resolution
//! A tick is [`TICK`], 4 ms. A timer fires on the first tick boundary at or after its deadline:
//! never early, and late by less than one tick, plus what the caller is late with
//! [`TimerWheel::expire`]. A deadline that has passed when it is set fires on the next boundary;
//! that way a callback that sets one for "now" again and again cannot hold the core. Within one
//! tick the order is free.
//!
//! # Levels
//! Six levels of 64 slots. A slot of level `l` is 64^l ticks wide:
//!
//! | level | slot | reach |
//! |---|---|---|
//! | 0 | 4 ms | 256 ms |
//! | 1 | 256 ms | 16 s |
//! | 2 | 16 s | 17 min |
//! | 3 | 17 min | 18 h |
//! | 4 | 18 h | 49 days |
//! | 5 | 49 days | 8.5 years |
//!
//! A tick belongs to the level of the highest base-64 digit in which it differs from the wheel's
//! present tick. So everything on a level comes before everything on the levels above, and the
//! next slot to open is the first occupied one of the lowest occupied level. When a slot of a
//! higher level opens, its timers are linked anew, lower. The last level turns round; a timer
//! beyond its reach is put into the farthest slot and linked anew from there.
//!
//! # Re-arming
//! Idle timeouts move with every byte, nearly always to later. [`TimerWheel::rearm`] to a later
//! deadline only stores it; when the slot opens in which the timer still is, the timer finds that
//! its time has not come and links itself anew.
//!
//! Owned by one thread. Reads no clock: the caller brings the time.

use std::time::Duration;

use crate::{
    canary::{self, Canary},
    slab::{Slab, SlabKey},
    timestamp::Timestamp,
};

/// The resolution of all timers.
pub const TICK: Duration = Duration::from_millis(4);

/// The name of a timer from its insert until it fires or is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimerId(SlabKey);

/// All deadlines of a core; see the file's head. `K` is what a timer carries.
///
/// Insert, re-arm and remove take constant time; [`TimerWheel::next_deadline`] takes one look a
/// level. A timer costs one entry of a [`Slab`]: 40 bytes beside its `K`.
#[derive(Debug)]
pub struct TimerWheel<K> {
    nodes: Slab<Node<K>>,
    /// The tick up to which slots were opened.
    now_tick: u64,
    /// The first node of each list: the slots level by level, then [`DUE`].
    heads: [u32; LIST_COUNT],
    /// A bit for each slot of a level: whether its list has nodes.
    occupied: [u64; LEVEL_COUNT],
}

#[derive(Debug)]
struct Node<K> {
    /// When to fire. May be later than `tick`, never earlier.
    deadline: Timestamp,
    /// What the node is linked under: its slot opens at this tick or, on a level above 0, before.
    /// 0 in the list of due nodes, so that no deadline is earlier.
    tick: u64,
    /// Neighbours in the list, or [`NONE`].
    prev: u32,
    next: u32,
    /// Index into `heads`.
    list: u16,
    key: K,
}

impl<K: Copy> TimerWheel<K> {
    /// An empty wheel that stands at `now`.
    pub const fn new(now: Timestamp) -> Self {
        Self {
            nodes: Slab::new(),
            now_tick: tick_at(now),
            heads: [NONE; LIST_COUNT],
            occupied: [0; LEVEL_COUNT],
        }
    }

    /// Sets a timer. [`Timestamp::NEVER`] is a deadline like any other, which does not come.
    pub fn insert(&mut self, deadline: Timestamp, key: K) -> TimerId {
        let node = Node { deadline, tick: 0, prev: NONE, next: NONE, list: DUE, key };
        let id = self.nodes.insert(node);
        self.link(id.slot);
        TimerId(id)
    }

    /// Moves a timer's deadline. To a later one it costs a store.
    ///
    /// # Panics
    /// If the timer has fired or was removed.
    pub fn rearm(&mut self, id: TimerId, deadline: Timestamp) {
        let node = self.nodes.get_mut(id.0).expect(STALE);
        node.deadline = deadline;
        if tick_of(deadline) < node.tick {
            self.unlink(id.0.slot);
            self.link(id.0.slot);
        }
    }

    /// Takes a timer out, and gives back what it carried.
    ///
    /// # Panics
    /// If the timer has fired or was removed.
    pub fn remove(&mut self, id: TimerId) -> K {
        assert!(self.nodes.get(id.0).is_some(), "{STALE}");
        self.unlink(id.0.slot);
        self.nodes.remove(id.0).expect(STALE).key
    }

    /// Takes out one timer whose deadline has come by `now`; `None` if there is no further one.
    /// Between two calls the wheel may be used freely. `now` never goes back.
    ///
    /// The caller calls until `None`, or comes back soon: [`TimerWheel::next_deadline`] stays in
    /// the past while timers are due.
    pub fn expire(&mut self, now: Timestamp) -> Option<(TimerId, K)> {
        let now_tick = tick_at(now) + u64::from(canary::has(Canary::TimerEarly));
        loop {
            // The slab has no slot `NONE`, so an empty list ends the loop.
            while let Some((key, node)) = self.nodes.get_slot(self.heads[usize::from(DUE)]) {
                let is_due = tick_of(node.deadline) <= self.now_tick;
                self.unlink(key.slot);
                if is_due {
                    let node = self.nodes.remove(key).expect("it was there above");
                    return Some((TimerId(key), node.key));
                }
                self.link(key.slot);
            }
            match self.next_slot() {
                Some(slot) if slot.opens_at_tick <= now_tick => self.open(slot),
                Some(_) | None => {
                    self.now_tick = self.now_tick.max(now_tick);
                    return None;
                }
            }
        }
    }

    /// When to call [`TimerWheel::expire`] next; `None` while no timer is set.
    ///
    /// Not later than one tick after the earliest deadline. It may be earlier than that: when a
    /// slot of a higher level opens, or where a timer was re-armed to later. Expiring at that
    /// time fires nothing then, but moves this time on.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        if self.heads[usize::from(DUE)] != NONE {
            return Some(start_of(self.now_tick));
        }
        self.next_slot().map(|slot| start_of(slot.opens_at_tick))
    }

    /// Timers that are set.
    pub const fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether no timer is set.
    pub const fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Asserts that lists, bitmaps and deadlines agree. Walks over all timers.
    ///
    /// # Panics
    /// If they do not: an error in this file.
    pub fn check_invariants(&self) {
        self.nodes.check_invariants();
        let mut linked = 0;
        for (head, list) in self.heads.iter().zip(0u16..) {
            let mut prev = NONE;
            let mut index = *head;
            while index != NONE {
                let node = self.node(index);
                assert_eq!((node.list, node.prev), (list, prev), "the links of node {index}");
                self.check_place(node);
                linked += 1;
                prev = index;
                index = node.next;
            }
            if list != DUE {
                let slot = Slot::of_list(list);
                let is_occupied = self.occupied[slot.level] >> slot.index & 1 == 1;
                assert_eq!(is_occupied, *head != NONE, "the bit of {slot:?}");
            }
        }
        assert_eq!(linked, self.nodes.len(), "nodes in lists");
    }

    fn check_place(&self, node: &Node<K>) {
        assert!(tick_of(node.deadline) >= node.tick || node.tick == self.now_tick + 1);
        if node.list == DUE {
            assert_eq!(node.tick, 0, "a due node waits for no tick");
            return;
        }
        let slot = Slot::of_list(node.list);
        let opens_at_tick = node.tick >> slot.shift() << slot.shift();
        assert_eq!(slot.index as u64, node.tick >> slot.shift() & 63, "the slot of a tick");
        assert_eq!(self.opens_at_tick(slot), opens_at_tick, "the turn of a tick");
        assert!(opens_at_tick > self.now_tick, "a slot was not opened");
    }

    /// Puts a node that is in no list where its deadline belongs.
    fn link(&mut self, index: u32) {
        let earliest = self.now_tick + 1;
        let mut tick = tick_of(self.node(index).deadline).max(earliest);
        let level = ((self.now_tick ^ tick | 63).ilog2() / 6).min(LEVEL_LAST as u32) as usize;
        let shift = level * 6;
        if level == LEVEL_LAST {
            let farthest = (self.now_tick >> shift) + 63;
            tick = tick.min(farthest << shift);
        }
        let slot = Slot { level, index: (tick >> shift & 63) as usize };
        self.push(index, tick, slot.list());
        self.occupied[level] |= 1 << slot.index;
    }

    /// Puts a node that is in no list first in `list`.
    fn push(&mut self, index: u32, tick: u64, list: u16) {
        let head = std::mem::replace(&mut self.heads[usize::from(list)], index);
        let node = self.node_mut(index);
        (node.tick, node.list, node.prev, node.next) = (tick, list, NONE, head);
        if head != NONE {
            self.node_mut(head).prev = index;
        }
    }

    fn unlink(&mut self, index: u32) {
        let &Node { prev, next, list, .. } = self.node(index);
        if next != NONE {
            self.node_mut(next).prev = prev;
        }
        if prev != NONE {
            self.node_mut(prev).next = next;
            return;
        }
        self.heads[usize::from(list)] = next;
        if next == NONE && list != DUE {
            let slot = Slot::of_list(list);
            self.occupied[slot.level] &= !(1 << slot.index);
        }
    }

    /// Moves the wheel to the start of `slot`, and its nodes to where they belong from there.
    fn open(&mut self, slot: NextSlot) {
        self.now_tick = slot.opens_at_tick;
        let Slot { level, index } = slot.slot;
        self.occupied[level] &= !(1 << index);
        let list = usize::from(slot.slot.list());
        let mut index = std::mem::replace(&mut self.heads[list], NONE);
        while index != NONE {
            let node = self.node(index);
            let (next, tick) = (node.next, tick_of(node.deadline));
            if tick <= self.now_tick {
                self.push(index, 0, DUE);
            } else {
                self.link(index);
            }
            index = next;
        }
    }

    /// The slot that opens next.
    fn next_slot(&self) -> Option<NextSlot> {
        let level = self.occupied.iter().position(|bits| *bits != 0)?;
        let here = (self.now_tick >> (level * 6) & 63) as u32;
        let ahead = self.occupied[level].rotate_right(here).trailing_zeros();
        let slot = Slot { level, index: ((here + ahead) & 63) as usize };
        Some(NextSlot { slot, opens_at_tick: self.opens_at_tick(slot) })
    }

    /// The next time at which `slot` opens: each slot is ahead of the wheel, by less than a turn.
    fn opens_at_tick(&self, slot: Slot) -> u64 {
        let here = self.now_tick >> slot.shift();
        let ahead = (slot.index as u64).wrapping_sub(here) & 63;
        (here + ahead) << slot.shift()
    }

    fn node(&self, index: u32) -> &Node<K> {
        self.nodes.get_slot(index).expect("links name live nodes").1
    }

    fn node_mut(&mut self, index: u32) -> &mut Node<K> {
        self.nodes.get_slot_mut(index).expect("links name live nodes").1
    }
}

/// A slot of the wheel.
#[derive(Clone, Copy, Debug)]
struct Slot {
    level: usize,
    index: usize,
}

/// An occupied slot and when it opens.
struct NextSlot {
    slot: Slot,
    opens_at_tick: u64,
}

impl Slot {
    const fn of_list(list: u16) -> Self {
        Self { level: list as usize / SLOT_COUNT, index: list as usize % SLOT_COUNT }
    }

    const fn list(self) -> u16 {
        (self.level * SLOT_COUNT + self.index) as u16
    }

    /// The bits of a tick below this slot's width.
    const fn shift(self) -> usize {
        self.level * 6
    }
}

const LEVEL_COUNT: usize = 6;
const LEVEL_LAST: usize = LEVEL_COUNT - 1;
const SLOT_COUNT: usize = 64;
const LIST_COUNT: usize = LEVEL_COUNT * SLOT_COUNT + 1;
/// The list of the nodes whose slot has opened and that have not fired yet.
const DUE: u16 = (LIST_COUNT - 1) as u16;
/// No node.
const NONE: u32 = u32::MAX;
const TICK_NANOS: u64 = TICK.as_nanos() as u64;
const STALE: &str = "a timer id is used after its timer fired or was removed";

/// The tick on which a deadline fires: rounded up, so never early.
const fn tick_of(deadline: Timestamp) -> u64 {
    deadline.as_nanos().div_ceil(TICK_NANOS)
}

/// The tick that has begun by `now`: rounded down, so never early.
const fn tick_at(now: Timestamp) -> u64 {
    now.as_nanos() / TICK_NANOS
}

const fn start_of(tick: u64) -> Timestamp {
    Timestamp::from_nanos(tick.saturating_mul(TICK_NANOS))
}
