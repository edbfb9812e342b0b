//! Paged, stamped slots: the place of everything that a core keeps by key (connections, sockets,
//! processors, timers, futures).
//!
//! - An entry never moves: pages are boxed and only added or freed whole.
//! - Memory follows the work: a page whose last entry leaves is freed. One empty page is kept, so
//!   that a single entry that comes and goes does not allocate each time.
//! - A key is a slot and a stamp. A slot is used again soon, a stamp is not, so a key of an earlier
//!   use of its slot reaches nobody. Stamps come from one counter of the slab and not from the
//!   slots, therefore a freed page takes no history with it.
//! - The lowest free slot is used first, so that the work gathers in few pages.
//!
//! Owned by one thread; knows nothing of what it stores.

use std::fmt;

use crate::canary::{self, Canary};

/// The name of an entry: where it is, and which use of that slot it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SlabKey {
    /// Index of the slot.
    pub slot: u32,
    /// Distinguishes the uses of one slot; never 0.
    pub stamp: u32,
}

impl fmt::Debug for SlabKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.slot, self.stamp)
    }
}

/// Paged, stamped slots.
///
/// Insert, look-up and removal take constant time but for an insert's look for the first page with
/// room, which reads one word for every 4096 full slots. A page holds 64 entries; each costs eight
/// bytes beside its value (the stamp, and whether it is in use).
pub struct Slab<T> {
    /// The last page is never empty.
    pages: Vec<Page<T>>,
    /// A bit for each page: whether it has a free slot. Bits past the last page are clear.
    has_room: Vec<u64>,
    /// Words of `has_room` before this one are zero.
    room_hint: usize,
    /// The entries of one empty page, kept for the next page.
    spare: Option<Box<[Entry<T>]>>,
    len: usize,
    last_stamp: u32,
    stamp_mask: u32,
}

/// 64 slots.
struct Page<T> {
    /// A bit for each slot: whether it is in use.
    occupied: u64,
    /// 64 entries, or none while no slot is in use.
    entries: Box<[Entry<T>]>,
}

/// Not an `Option` beside a stamp: as one enum, tag and stamp share a word.
enum Entry<T> {
    Vacant,
    Occupied { stamp: u32, value: T },
}

impl<T> Slab<T> {
    /// Slots of a page.
    pub const PAGE_SLOTS: usize = 64;

    /// An empty slab with 32-bit stamps. Allocates nothing.
    pub const fn new() -> Self {
        Self::with_stamp_mask(u32::MAX)
    }

    /// An empty slab whose stamps fit in `mask`, for keys that travel where 32 bits have no room.
    /// A stamp comes again after `mask` further inserts.
    ///
    /// # Panics
    /// If `mask` is not a run of one bits from the lowest bit on.
    pub const fn with_stamp_mask(mask: u32) -> Self {
        assert!(mask != 0 && mask & mask.wrapping_add(1) == 0, "a stamp mask is 2^n - 1");
        Self {
            pages: Vec::new(),
            has_room: Vec::new(),
            room_hint: 0,
            spare: None,
            len: 0,
            last_stamp: 0,
            stamp_mask: mask,
        }
    }

    /// Stores `value` in the lowest free slot.
    ///
    /// # Panics
    /// If all 2^32 slots are in use.
    pub fn insert(&mut self, value: T) -> SlabKey {
        self.insert_with(|_| value)
    }

    /// Stores what `make` returns for the key that the entry gets. If `make` panics, nothing is
    /// stored.
    ///
    /// # Panics
    /// If all 2^32 slots are in use.
    pub fn insert_with(&mut self, make: impl FnOnce(SlabKey) -> T) -> SlabKey {
        let page_index = self.first_page_with_room();
        let occupied = self.pages.get(page_index).map_or(0, |page| page.occupied);
        let entry_index = occupied.trailing_ones() as usize;
        let slot = u32::try_from(page_index * Self::PAGE_SLOTS + entry_index)
            .expect("memory for 2^32 entries ends before their numbers do");
        let stamp = self.next_stamp();
        let key = SlabKey { slot, stamp };
        let value = make(key);

        if page_index == self.pages.len() {
            self.pages.push(Page { occupied: 0, entries: Box::default() });
            self.has_room.resize(page_index / 64 + 1, 0);
        }
        let page = &mut self.pages[page_index];
        if page.entries.is_empty() {
            page.entries = self.spare.take().unwrap_or_else(Page::vacant_entries);
        }
        page.entries[entry_index] = Entry::Occupied { stamp, value };
        page.occupied |= 1 << entry_index;
        let is_full = page.occupied == u64::MAX;
        self.set_has_room(page_index, !is_full);
        self.len += 1;
        key
    }

    /// Takes the entry of `key` out; `None` if it is not (or no more) there.
    pub fn remove(&mut self, key: SlabKey) -> Option<T> {
        let (page_index, entry_index) = Self::split(key.slot);
        let page = self.pages.get_mut(page_index)?;
        let entry = page.entries.get_mut(entry_index)?;
        if entry.as_ref(key.slot)?.0 != key {
            return None;
        }
        let value = std::mem::replace(entry, Entry::Vacant).into_value()?;
        page.occupied &= !(1 << entry_index);
        self.len -= 1;
        if page.occupied == 0 {
            let entries = std::mem::take(&mut page.entries);
            self.spare.get_or_insert(entries);
        }
        self.set_has_room(page_index, true);
        self.drop_empty_tail();
        Some(value)
    }

    /// The entry of `key`; `None` if it is not (or no more) there.
    pub fn get_mut(&mut self, key: SlabKey) -> Option<&mut T> {
        let (found, value) = self.get_slot_mut(key.slot)?;
        (found == key || canary::has(Canary::MissingStampCheck)).then_some(value)
    }

    /// The entry in `slot`, whichever use of the slot it is, with its key.
    pub fn get_slot_mut(&mut self, slot: u32) -> Option<(SlabKey, &mut T)> {
        let (page_index, entry_index) = Self::split(slot);
        let entry = self.pages.get_mut(page_index)?.entries.get_mut(entry_index)?;
        match entry {
            Entry::Vacant => None,
            Entry::Occupied { stamp, value } => Some((SlabKey { slot, stamp: *stamp }, value)),
        }
    }

    /// The entry of `key`; `None` if it is not (or no more) there.
    pub fn get(&self, key: SlabKey) -> Option<&T> {
        let (found, value) = self.get_slot(key.slot)?;
        (found == key || canary::has(Canary::MissingStampCheck)).then_some(value)
    }

    /// The entry in `slot`, whichever use of the slot it is, with its key.
    pub fn get_slot(&self, slot: u32) -> Option<(SlabKey, &T)> {
        let (page_index, entry_index) = Self::split(slot);
        self.pages.get(page_index)?.entries.get(entry_index)?.as_ref(slot)
    }

    /// Entries in the slab.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no entry.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Pages that hold memory now, the kept empty one included.
    pub fn page_count(&self) -> usize {
        let in_use = self.pages.iter().filter(|page| page.occupied != 0).count();
        in_use + usize::from(self.spare.is_some())
    }

    /// All entries with their keys, by slot.
    pub fn iter(&self) -> impl Iterator<Item = (SlabKey, &T)> {
        self.pages.iter().zip(0u32..).flat_map(|(page, page_index)| {
            let slots = page_index * Self::PAGE_SLOTS as u32..;
            page.entries.iter().zip(slots).filter_map(|(entry, slot)| entry.as_ref(slot))
        })
    }

    /// The keys of all entries, by slot: for loops that change the slab on the way.
    pub fn keys(&self) -> Vec<SlabKey> {
        self.iter().map(|(key, _)| key).collect()
    }

    /// Asserts that bitmaps, counts and entries agree.
    ///
    /// # Panics
    /// If they do not: an error in this file.
    pub fn check_invariants(&self) {
        let mut len = 0;
        for (page_index, page) in self.pages.iter().enumerate() {
            let bits = page.entries.iter().enumerate().fold(0u64, |bits, (index, entry)| {
                bits | u64::from(entry.as_ref(0).is_some()) << index
            });
            assert_eq!(bits, page.occupied, "the bitmap of page {page_index}");
            assert_eq!(page.entries.is_empty(), bits == 0, "an empty page holds memory");
            let has_room = self.has_room[page_index / 64] >> (page_index % 64) & 1 == 1;
            assert_eq!(has_room, bits != u64::MAX, "the room of page {page_index}");
            len += bits.count_ones() as usize;
        }
        assert_eq!(len, self.len, "the count of entries");
        assert!(self.pages.last().is_none_or(|page| page.occupied != 0), "an empty last page");
        assert_eq!(self.has_room.len(), self.pages.len().div_ceil(64), "words of the bitmap");
        let past = self.pages.len() % 64;
        assert!(
            past == 0 || self.has_room[self.pages.len() / 64] >> past == 0,
            "bits past the end"
        );
        let before_hint = &self.has_room[..self.room_hint.min(self.has_room.len())];
        assert!(before_hint.iter().all(|word| *word == 0), "room before the hint");
        let spare = self.spare.as_deref().unwrap_or_default();
        assert!(spare.iter().all(|entry| entry.as_ref(0).is_none()), "the kept page is empty");
    }

    /// The lowest page with a free slot; the number of pages if a page must be added.
    fn first_page_with_room(&mut self) -> usize {
        while let Some(word) = self.has_room.get(self.room_hint) {
            if *word != 0 {
                return self.room_hint * 64 + word.trailing_zeros() as usize;
            }
            self.room_hint += 1;
        }
        self.pages.len()
    }

    fn set_has_room(&mut self, page_index: usize, has_room: bool) {
        let (word, bit) = (page_index / 64, 1 << (page_index % 64));
        if has_room {
            self.has_room[word] |= bit;
            self.room_hint = self.room_hint.min(word);
        } else {
            self.has_room[word] &= !bit;
        }
    }

    /// Forgets pages at the end that hold nothing. Each was added by an insert, which pays for it.
    fn drop_empty_tail(&mut self) {
        while self.pages.last().is_some_and(|page| page.occupied == 0) {
            self.pages.pop();
            let page_index = self.pages.len();
            self.has_room[page_index / 64] &= !(1 << (page_index % 64));
            self.has_room.truncate(page_index.div_ceil(64));
        }
    }

    /// 0 is left out, so that a key of zeros names nothing.
    fn next_stamp(&mut self) -> u32 {
        self.last_stamp = self.last_stamp.wrapping_add(1) & self.stamp_mask;
        if self.last_stamp == 0 {
            self.last_stamp = 1;
        }
        self.last_stamp
    }

    const fn split(slot: u32) -> (usize, usize) {
        let slot = slot as usize;
        (slot / Self::PAGE_SLOTS, slot % Self::PAGE_SLOTS)
    }
}

impl<T> Page<T> {
    /// Built on the heap: 64 entries may be too many bytes for the stack.
    fn vacant_entries() -> Box<[Entry<T>]> {
        (0..Slab::<T>::PAGE_SLOTS).map(|_| Entry::Vacant).collect()
    }
}

impl<T> Entry<T> {
    /// The value, and the key of the entry if it lies in `slot`.
    fn as_ref(&self, slot: u32) -> Option<(SlabKey, &T)> {
        match self {
            Self::Vacant => None,
            Self::Occupied { stamp, value } => Some((SlabKey { slot, stamp: *stamp }, value)),
        }
    }

    fn into_value(self) -> Option<T> {
        match self {
            Self::Vacant => None,
            Self::Occupied { value, .. } => Some(value),
        }
    }
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: fmt::Debug> fmt::Debug for Slab<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

const _: () = assert!(size_of::<Entry<u64>>() == 16);
// The occupied slots of a page are the bits of one word.
const _: () = assert!(Slab::<()>::PAGE_SLOTS == u64::BITS as usize);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Op {
        Insert,
        InsertMany(usize),
        /// Of the live entry with this rank, by slot.
        Remove(usize),
        RemoveRange(usize, usize),
        /// Look up a key that was removed.
        UseStale(usize),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            4 => Just(Op::Insert),
            1 => (1usize..200).prop_map(Op::InsertMany),
            4 => any::<usize>().prop_map(Op::Remove),
            1 => (any::<usize>(), 1usize..300).prop_map(|(from, n)| Op::RemoveRange(from, n)),
            2 => any::<usize>().prop_map(Op::UseStale),
        ]
    }

    #[derive(Default)]
    struct Model {
        slab: Slab<u64>,
        live: HashMap<SlabKey, u64>,
        dead: Vec<SlabKey>,
        next_value: u64,
    }

    impl Model {
        fn apply(&mut self, op: &Op) {
            match *op {
                Op::Insert => self.insert(),
                Op::InsertMany(count) => (0..count).for_each(|_| self.insert()),
                Op::Remove(rank) => self.remove_range(rank, 1),
                Op::RemoveRange(from, count) => self.remove_range(from, count),
                Op::UseStale(index) => self.use_stale(index),
            }
        }

        fn insert(&mut self) {
            let value = self.next_value;
            self.next_value += 1;
            let lowest_free = (0u32..).find(|slot| self.slab.get_slot(*slot).is_none()).unwrap();
            let key = self.slab.insert(value);
            assert_eq!(key.slot, lowest_free);
            assert!(self.live.insert(key, value).is_none());
        }

        fn remove_range(&mut self, from: usize, count: usize) {
            let keys = self.slab.keys();
            for key in keys.iter().skip(from % keys.len().max(1)).take(count) {
                assert_eq!(self.slab.remove(*key), self.live.remove(key));
                self.dead.push(*key);
            }
        }

        fn use_stale(&mut self, index: usize) {
            if let Some(key) = self.dead.get(index % self.dead.len().max(1)) {
                assert_eq!(self.slab.get(*key), None);
                assert_eq!(self.slab.get_mut(*key), None);
                assert_eq!(self.slab.remove(*key), None);
            }
        }

        fn check(&mut self) {
            self.slab.check_invariants();
            assert_eq!(self.slab.len(), self.live.len());
            assert_eq!(self.slab.is_empty(), self.live.is_empty());
            assert_eq!(self.slab.iter().count(), self.live.len());
            for (key, value) in &mut self.live {
                assert_eq!(self.slab.get(*key), Some(&*value));
                assert_eq!(self.slab.get_slot(key.slot), Some((*key, &*value)));
                assert_eq!(self.slab.get_mut(*key), Some(&mut *value));
                assert_eq!(self.slab.get_slot_mut(key.slot), Some((*key, &mut *value)));
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn behaves_like_a_map(ops in prop::collection::vec(op(), 0..80)) {
            let mut model = Model::default();
            for op in &ops {
                model.apply(op);
                model.check();
            }
        }
    }

    #[test]
    fn memory_follows_the_entries() {
        let mut slab = Slab::new();
        let keys: Vec<_> = (0..10_000).map(|n| slab.insert(n)).collect();
        assert_eq!(slab.page_count(), 10_000usize.div_ceil(64));
        let (kept, gone) = keys.split_at(100);
        for key in gone.iter().chain(&kept[..64]) {
            assert!(slab.remove(*key).is_some());
        }
        slab.check_invariants();
        assert_eq!(slab.page_count(), 2, "the page of 36 entries and the kept one");
        assert_eq!(slab.insert(0).slot, 0, "the lowest slot is used first");
    }

    #[test]
    fn an_entry_does_not_move() {
        let mut slab = Slab::new();
        let key = slab.insert(7u64);
        let address = std::ptr::from_ref(slab.get(key).unwrap());
        for n in 0..5000 {
            slab.insert(n);
        }
        assert!(std::ptr::eq(address, slab.get(key).unwrap()));
    }

    #[test]
    fn stamps_fit_the_mask_and_are_never_zero() {
        let mut slab = Slab::with_stamp_mask(3);
        let mut stamps = Vec::new();
        for _ in 0..7 {
            let key = slab.insert_with(|key| key.stamp);
            assert_eq!(slab.remove(key), Some(key.stamp));
            stamps.push(key.stamp);
        }
        assert_eq!(stamps, [1, 2, 3, 1, 2, 3, 1]);
    }

    #[test]
    fn a_panic_while_an_entry_is_made_stores_nothing() {
        let mut slab = Slab::new();
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            slab.insert_with(|_| -> u8 { std::panic::resume_unwind(Box::new(())) })
        }));
        assert!(caught.is_err());
        slab.check_invariants();
        assert!(slab.is_empty());
    }
}
