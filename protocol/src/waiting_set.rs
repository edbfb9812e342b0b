//! The exchanges that are parked on a core. Enter and leave in O(1); walked only when the server
//! drains. Stands for Tomcat's `waitingProcessors`.

use crate::exchange_key::ExchangeKey;

/// Keys of parked exchanges, in no order.
#[derive(Debug, Default)]
pub struct WaitingSet {
    keys: Vec<ExchangeKey>,
}

/// Where an exchange stands in the set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place(u32);

impl WaitingSet {
    /// Puts an exchange in.
    pub fn insert(&mut self, key: ExchangeKey) -> Place {
        self.keys.push(key);
        Place(u32::try_from(self.keys.len() - 1).expect("slots are counted in 32 bits"))
    }

    /// Takes the exchange at `place` out. The one that moves into its place is returned, and must
    /// be told.
    ///
    /// # Panics
    /// `key` is not at `place`: the bookkeeping of the caller is broken.
    pub fn remove(&mut self, key: ExchangeKey, place: Place) -> Option<ExchangeKey> {
        let removed = self.keys.swap_remove(place.0 as usize);
        assert!(removed == key, "another exchange stands in this place");
        self.keys.get(place.0 as usize).copied()
    }

    /// The parked exchanges.
    pub fn keys(&self) -> &[ExchangeKey] {
        &self.keys
    }
}
