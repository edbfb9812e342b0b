//! What is posted to a core about its exchanges.

use ringcat_engine::{core_context::CoreMessage, inbox::Inbox};

use crate::{adapter::Returned, async_cell::Doorbell, exchange_key::ExchangeKey};

/// A message about an exchange.
#[derive(Debug)]
pub enum Message<N> {
    /// Look at the exchange's cell: somebody changed its state or added operations.
    Look(ExchangeKey),
    /// The core to itself: the exchange's connection had its share of a turn, and goes on now.
    GoOn(ExchangeKey),
    /// Parked exchanges of a group time out: their application stops.
    TimeOutGroup(u16),
    /// A worker thread gives an exchange back.
    Resume(ExchangeKey, Returned<N>),
}

/// A core's inbox as the door that cells post their looks through.
#[derive(Debug)]
pub struct InboxDoorbell<N: Send>(pub ringcat_engine::sync::Arc<Inbox<CoreMessage<Message<N>>>>);

impl<N: Send> Doorbell for InboxDoorbell<N> {
    fn look(&self, key: ExchangeKey) {
        self.0.post(CoreMessage::Handler(Message::Look(key)));
    }
}
