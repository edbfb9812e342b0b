//! What a processor works with for the length of one event: its core, what the processors of the
//! core share, and the names of its connection and of itself.

use ringcat_engine::{core_context::CoreContext, current::ExchangeName, key::ConnKey};

use crate::{
    adapter::Adapter, exchange_key::ExchangeKey, message::Message, protocol_handler::Shared,
};

/// The connection's core, as a processor sees it.
pub(crate) type Cx<A> = CoreContext<Message<<A as Adapter>::Note>>;

/// One event's surroundings.
pub(crate) struct Turn<'a, A: Adapter> {
    pub(crate) shared: &'a mut Shared<A>,
    pub(crate) cx: &'a mut Cx<A>,
    pub(crate) conn: ConnKey,
    pub(crate) key: ExchangeKey,
}

impl<A: Adapter> Turn<'_, A> {
    /// The exchange's name, for whoever runs its code.
    pub(super) fn name(&self) -> ExchangeName {
        ExchangeName { core: self.cx.id(), key: self.key.to_u64() }
    }

    /// Whether the peer is known to have ended its sending side, or is gone.
    pub(super) fn is_peer_closed(&self) -> bool {
        self.cx.socket(self.conn).is_none_or(|socket| socket.is_peer_closed())
    }

    /// Whether all that the peer sent was received, or the connection is gone.
    pub(super) fn is_eof(&self) -> bool {
        self.cx.socket(self.conn).is_none_or(|socket| socket.is_eof())
    }
}
