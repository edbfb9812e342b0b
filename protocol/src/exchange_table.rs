//! The exchanges of a core: a stamped slab of processors, the waiting set, and the one place that
//! knows which connection carries which exchange. HTTP/1.1 has one exchange a connection; a
//! protocol with streams has many.

use ringcat_engine::{
    canary::{self, Canary},
    core_context::CoreContext,
    key::ConnKey,
    slab::{Slab, SlabKey},
    timer_wheel::TimerId,
    timestamp::Timestamp,
};

use crate::{
    exchange_key::ExchangeKey,
    waiting_set::{Place, WaitingSet},
};

/// The exchanges of a core. `P` is what runs one: a processor.
#[derive(Debug)]
pub struct ExchangeTable<P> {
    slots: Slab<Slot<P>>,
    waiting: WaitingSet,
}

#[derive(Debug)]
struct Slot<P> {
    conn: ConnKey,
    processor: Option<P>,
    place: Option<Place>,
    timer: Option<TimerId>,
}

impl<P> Default for ExchangeTable<P> {
    fn default() -> Self {
        Self { slots: Slab::new(), waiting: WaitingSet::default() }
    }
}

impl<P> ExchangeTable<P> {
    /// Makes an entry for a new exchange on `conn`.
    pub fn open(&mut self, conn: ConnKey, processor: P) -> ExchangeKey {
        let slot = Slot { conn, processor: Some(processor), place: None, timer: None };
        let SlabKey { slot, stamp } = self.slots.insert(slot);
        ExchangeKey { slot, stamp }
    }

    /// The connection that carries an exchange; `None` if the exchange is over.
    pub fn connection(&self, key: ExchangeKey) -> Option<ConnKey> {
        self.slots.get(slab_key(key)).map(|slot| slot.conn)
    }

    /// Detaches the processor for the length of a process call; `None` if the exchange is over,
    /// or its processor is at work already.
    pub fn detach(&mut self, key: ExchangeKey) -> Option<P> {
        self.slots.get_mut(slab_key(key))?.processor.take()
    }

    /// Puts a processor back where [`ExchangeTable::detach`] took it.
    ///
    /// # Panics
    /// The exchange is over; whoever detached a processor keeps its entry open.
    pub fn attach(&mut self, key: ExchangeKey, processor: P) {
        let slot = self.slots.get_mut(slab_key(key)).expect("the entry of a detached processor");
        slot.processor = Some(processor);
    }

    /// A look at a processor that is not detached.
    pub fn processor_mut(&mut self, key: ExchangeKey) -> Option<&mut P> {
        self.slots.get_mut(slab_key(key))?.processor.as_mut()
    }

    /// The processors that are not detached.
    pub fn processors(&self) -> impl Iterator<Item = &P> {
        self.slots.iter().filter_map(|(_, slot)| slot.processor.as_ref())
    }

    /// Puts the exchange into the waiting set, with its deadline.
    pub fn park<M: Send>(
        &mut self,
        cx: &mut CoreContext<M>,
        key: ExchangeKey,
        deadline: Option<Timestamp>,
    ) {
        let Some(slot) = self.slots.get_mut(slab_key(key)) else { return };
        assert!(slot.place.is_none() && slot.timer.is_none(), "parked twice");
        slot.place = Some(self.waiting.insert(key));
        cx.release_timer(slot.conn);
        slot.timer = deadline.map(|deadline| cx.arm_exchange(key.to_u64(), deadline));
    }

    /// Takes the exchange out of the waiting set, its timer off the wheel.
    pub fn unpark<M: Send>(&mut self, cx: &mut CoreContext<M>, key: ExchangeKey) {
        let Some(slot) = self.slots.get_mut(slab_key(key)) else { return };
        if let Some(timer) = slot.timer.take()
            && !canary::has(Canary::TimerLeftBehind)
        {
            cx.disarm_exchange(timer);
        }
        let Some(place) = slot.place.take() else { return };
        if let Some(moved) = self.waiting.remove(key, place)
            && let Some(slot) = self.slots.get_mut(slab_key(moved))
        {
            slot.place = Some(place);
        }
    }

    /// The timer of a parked exchange fired and is off the wheel; `false` if the exchange is not
    /// parked, so that the timer is nobody's.
    pub fn timer_fired(&mut self, key: ExchangeKey) -> bool {
        match self.slots.get_mut(slab_key(key)) {
            Some(slot) => slot.timer.take().is_some() && slot.place.is_some(),
            None => false,
        }
    }

    /// Frees the entry; the key is dead from now on.
    pub fn close<M: Send>(&mut self, cx: &mut CoreContext<M>, key: ExchangeKey) {
        self.unpark(cx, key);
        self.slots.remove(slab_key(key));
    }

    /// The parked exchanges.
    pub fn parked(&self) -> &[ExchangeKey] {
        self.waiting.keys()
    }

    /// Exchanges under way, parked ones included.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether no exchange is under way.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }
}

fn slab_key(key: ExchangeKey) -> SlabKey {
    SlabKey { slot: key.slot, stamp: key.stamp }
}
