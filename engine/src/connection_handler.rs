//! The trait of the layer above the engine, and the words the two speak: socket events go into
//! `process`, socket states come out. Stands for Tomcat's `AbstractEndpoint.Handler`.

use crate::{core_context::CoreContext, key::ConnKey};

/// What a connection has to be looked at for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketEvent {
    /// Bytes arrived, or the end of the stream did; also the plain wake of a parked exchange.
    OpenRead,
    /// The out-queue drained while the handler had asked for room.
    OpenWrite,
    /// The deadline of an asynchronous exchange passed.
    Timeout,
    /// The connection failed; the socket says how ([`crate::socket::Socket::failure`]).
    Error,
}

/// What becomes of a connection after it was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketState {
    /// The exchange ended with keep-alive: wait for the next request.
    Open,
    /// Close the connection once its output is sent.
    Closed,
    /// The exchange goes on: parked, or its head or body is incomplete.
    Long,
    /// Internal to the process loop: go round once more.
    AsyncEnd,
    /// Somebody else holds the exchange (a worker thread); whoever resumes it says so.
    Suspended,
}

/// Handles the connections of one core. Built on its core's thread and never leaves it.
pub trait ConnectionHandler: Sized {
    /// What other threads post to this core.
    type Message: Send + 'static;

    /// Looks at a connection. `process` never nests: what it causes for other exchanges is posted.
    fn process(
        &mut self,
        cx: &mut CoreContext<Self::Message>,
        conn: ConnKey,
        event: SocketEvent,
    ) -> SocketState;

    /// A message of another thread, or of this core to itself.
    fn on_message(&mut self, cx: &mut CoreContext<Self::Message>, message: Self::Message);

    /// The deadline of an exchange passed; `exchange` is the number given with
    /// [`CoreContext::arm_exchange`].
    fn on_exchange_deadline(&mut self, cx: &mut CoreContext<Self::Message>, exchange: u64);

    /// Bytes of the connection's out-queue left.
    fn on_sent(&mut self, cx: &mut CoreContext<Self::Message>, conn: ConnKey);

    /// The peer ended its sending side, of which [`Socket`](crate::socket::Socket) tells too.
    /// Answers are still delivered. With read interest `process` is called next.
    fn on_peer_closed(&mut self, cx: &mut CoreContext<Self::Message>, conn: ConnKey);

    /// The connection is closed and `cx` does not know it any more; `attachment` was its.
    fn on_closed(&mut self, cx: &mut CoreContext<Self::Message>, attachment: u64);

    /// The drain limit passed: end what is still parked, through its listeners.
    fn on_drain_limit(&mut self, cx: &mut CoreContext<Self::Message>);
}
