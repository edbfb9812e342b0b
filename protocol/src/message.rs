//! What is posted to a core about its exchanges.

use std::sync::atomic::{AtomicBool, Ordering};

use ringcat_engine::{
    core_context::CoreMessage, current::Current, inbox::Inbox, key::CoreId, sync::Arc,
};

use crate::{adapter::Returned, async_cell::Doorbell, exchange_key::ExchangeKey};

/// A message about an exchange.
#[derive(Debug)]
pub enum Message<N> {
    /// Look at the exchange's cell: somebody changed its state or added operations.
    Look(ExchangeKey),
    /// The core to itself: the exchange's connection had its share of a turn, and goes on now.
    GoOn(ExchangeKey),
    /// The core to itself: what a callback of the exchange asked of others was posted before this,
    /// and its own end comes now.
    Settle(ExchangeKey),
    /// Parked exchanges of a group time out: their application stops.
    TimeOutGroup(u16),
    /// A worker thread gives an exchange back.
    Resume(ExchangeKey, Returned<N>),
}

/// A core's inbox as the door that cells post their looks through.
#[derive(Debug)]
pub struct InboxDoorbell<N: Send> {
    core: CoreId,
    inbox: Arc<Inbox<CoreMessage<Message<N>>>>,
    /// Whether a callback on this core asked for a look at another exchange of it. The core alone
    /// writes and reads it.
    has_own_post: AtomicBool,
}

impl<N: Send> InboxDoorbell<N> {
    /// The door of `core`.
    pub fn new(core: CoreId, inbox: Arc<Inbox<CoreMessage<Message<N>>>>) -> Self {
        Self { core, inbox, has_own_post: AtomicBool::new(false) }
    }

    /// Whether a callback on this core asked for a look at another exchange of it since this was
    /// asked last.
    pub fn take_own_post(&self) -> bool {
        let has_own_post = self.has_own_post.load(Ordering::Relaxed);
        if has_own_post {
            self.has_own_post.store(false, Ordering::Relaxed);
        }
        has_own_post
    }
}

impl<N: Send> Doorbell for InboxDoorbell<N> {
    fn look(&self, key: ExchangeKey) {
        let current = Current::get();
        let is_other = current.exchange.is_some_and(|own| own.key != key.to_u64());
        if current.core == Some(self.core) && is_other {
            self.has_own_post.store(true, Ordering::Relaxed);
        }
        self.inbox.post(CoreMessage::Handler(Message::Look(key)));
    }
}
