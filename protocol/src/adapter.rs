//! The container as the protocol sees it. Stands for Tomcat's `Adapter`.

use std::task::Poll;

use ringcat_engine::{
    connection_handler::SocketEvent, core_context::CoreMessage, current::ExchangeName,
    inbox::Inbox, sync::Arc,
};

use crate::{
    action_code::Hook,
    async_cell::{AsyncCell, Operation},
    exchange::Exchange,
    exchange_key::ExchangeKey,
    message::Message,
    protocol_error::ProtocolError,
    request::Request,
    response::Response,
};

/// Runs applications. One a core; called on the core's thread only.
///
/// Every call takes the exchange by value and gives it back; the adapter catches the panics of
/// application code, so an exchange always comes back.
pub trait Adapter: Sized + 'static {
    /// The container's part of an exchange.
    type Note: Default + Send + 'static;
    /// What other threads ask of an exchange.
    type Operation: Operation + 'static;

    /// The head is complete: decides what happens with the request, body unread.
    fn post_parse(&self, call: Call<Self>) -> (Exchange<Self::Note>, Plan);

    /// Runs the request. If it is not asynchronous afterwards, the response is finished.
    fn service(&self, call: Call<Self>) -> Serviced<Self::Note>;

    /// The exchange is back from a future that ran it: the future has ended, which ends the round
    /// that was begun for it, or was dropped, because somebody else ended the round.
    fn end_task(&self, call: Call<Self>, end: TaskEnd) -> Exchange<Self::Note>;

    /// Something happened to an asynchronous request: a wake, room, a timeout, an error; or its
    /// second round, to finish the response. Tomcat's `asyncDispatch`.
    fn async_dispatch(&self, call: Call<Self>, event: SocketEvent) -> Dispatched<Self::Note>;

    /// Runs the request on a worker thread, or answers at once if none will take it.
    fn delegate(
        &self,
        delegation: Delegation<Self>,
        hook: Hook<Self::Operation>,
    ) -> Serviced<Self::Note>;

    /// A worker thread gave the exchange back after `service` of a blocking servlet.
    fn resume(&self, call: Call<Self>) -> Exchange<Self::Note>;

    /// The end of an asynchronous request, before its state becomes DISPATCHED: runs the
    /// `on_complete` of its listeners.
    fn on_complete(&self, call: Call<Self>) -> Exchange<Self::Note>;

    /// Applies operations of other threads, in order, while the core owns the exchange.
    fn apply(&self, call: Call<Self>, operations: Vec<Self::Operation>) -> Exchange<Self::Note>;

    /// Applies operations while a worker owns request and note. What needs those is left in
    /// `deferred`, in order, for [`Adapter::apply`] after the exchange came back.
    fn apply_delegated(
        &self,
        response: Box<Response>,
        hook: Hook<Self::Operation>,
        operations: Vec<Self::Operation>,
        deferred: &mut Vec<Self::Operation>,
    ) -> Box<Response>;

    /// A request that the protocol refuses: answers with the error report; no servlet sees it.
    fn refuse(&self, call: Call<Self>, error: ProtocolError) -> Exchange<Self::Note>;

    /// The response is finished or given up: the request's one line in the access log.
    fn log(&self, exchange: &mut Exchange<Self::Note>);

    /// The group that an exchange belongs to, of which all are ended together.
    fn group(&self, note: &Self::Note) -> Option<u16>;

    /// Drops operations that came too late to be applied, where a panic of their values is caught.
    fn discard(&self, operations: Vec<Self::Operation>);

    /// Makes the note ready for the next exchange, every field of it.
    fn recycle(&self, note: &mut Self::Note);
}

/// A call: the exchange, and the way back to the protocol.
pub struct Call<A: Adapter> {
    /// The exchange.
    pub exchange: Exchange<A::Note>,
    /// Answers the container's asks.
    pub hook: Hook<A::Operation>,
    /// The exchange's name, for whoever runs its code.
    pub name: ExchangeName,
}

/// What [`Adapter::post_parse`] decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Call `service` when the body is complete: the servlet reads without waiting.
    WhenBodyComplete {
        /// Content bytes that are taken at most; more is 413.
        body_bytes_max: u64,
    },
    /// Call `service` now; the servlet, or its future, takes the body as it comes.
    AtEndOfHead,
    /// Call `service` now, on a worker thread, for the servlet may block.
    Delegate,
    /// The answer does not need the body: call `service` now and leave the body unread.
    WithoutBody,
}

/// What became of a [`Adapter::service`] call.
pub enum Serviced<N> {
    /// The call is over, and the exchange back.
    Returned(Exchange<N>),
    /// A worker thread has request and note; the response stays with the core.
    Delegated(Box<Response>),
    /// A future on this core has request and note, in a round that was begun for it.
    Pending(Pending<N>),
}

/// An exchange that a future on its core runs.
pub struct Pending<N> {
    /// Stays with the processor.
    pub response: Box<Response>,
    /// Has the rest.
    pub task: Box<dyn LocalTask<N>>,
}

/// A future that owns the request and the container's note of an exchange. It writes to the
/// exchange's cell, as another thread does; its core polls and drops it, inside a callback of the
/// exchange.
pub trait LocalTask<N> {
    /// Goes on; ready when the exchange can be taken back. Not to be polled after that. Its waker
    /// is [`AsyncCell::task_waker`].
    fn poll(&mut self) -> Poll<()>;

    /// Drops what still runs, where its panic is caught, and gives the parts back.
    fn take_back(self: Box<Self>) -> Returned<N>;

    /// As [`Adapter::group`].
    fn group(&self) -> Option<u16>;
}

/// How a future that ran an exchange came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskEnd {
    /// It was ready.
    Ready,
    /// It was dropped before.
    Dropped,
}

/// What became of a [`Adapter::async_dispatch`] call.
pub struct Dispatched<N> {
    /// The exchange, or the future that has it now. Never delegated.
    pub serviced: Serviced<N>,
    /// Whether the connection can go on.
    pub is_connection_usable: bool,
    /// Whether a blocking servlet is the target of the dispatch: the exchange goes to
    /// [`Adapter::delegate`] next.
    pub is_for_worker: bool,
}

/// The parts of an exchange that a worker thread gives back.
#[derive(Debug)]
pub struct Returned<N> {
    /// The request.
    pub request: Box<Request>,
    /// The container's note.
    pub note: Box<N>,
}

/// What the adapter needs to run a blocking servlet on a worker thread.
pub struct Delegation<A: Adapter> {
    /// The exchange; `request` and `note` go to the worker, `response` stays.
    pub exchange: Exchange<A::Note>,
    /// The cell that the worker's response writes to, and its reads read from.
    pub cell: Arc<AsyncCell<A::Operation>>,
    /// Gives the parts back; the worker calls it last.
    pub resume: ResumeHandle<A::Note>,
    /// The exchange's name, for whoever runs its code.
    pub name: ExchangeName,
}

/// Gives an exchange back to its core, from any thread.
pub struct ResumeHandle<N: Send> {
    pub(crate) key: ExchangeKey,
    pub(crate) inbox: Arc<Inbox<CoreMessage<Message<N>>>>,
}

impl<N: Send> ResumeHandle<N> {
    /// Gives the parts back.
    pub fn resume(self, returned: Returned<N>) {
        self.inbox.post(CoreMessage::Handler(Message::Resume(self.key, returned)));
    }
}
