//! What the container asks of the protocol: typed asks, answered by the hook that the processor
//! lends with a call. The container never touches a processor's internals. Stands for Tomcat's
//! `ActionCode` and `ActionHook`.

use std::{fmt, net::SocketAddr, rc::Rc};

use bytes::Bytes;
use ringcat_engine::{
    backend::Errno,
    sync::Arc,
    timestamp::{Clock, Timestamp},
};

use crate::{
    async_cell::{AsyncCell, Operation},
    request::Request,
    response::Response,
};

/// An ask.
#[derive(Debug)]
pub enum ActionCode<'a> {
    /// Fix the response's head and queue it. `is_complete`: the buffer holds the whole content,
    /// so its length is known.
    Commit {
        /// The response.
        response: &'a mut Response,
        /// Whether nothing follows what is in the buffer.
        is_complete: bool,
    },
    /// Queue content bytes behind what was queued before.
    Write(&'a [u8]),
    /// Queue content bytes without copying them.
    WriteShared(Bytes),
    /// Put what is queued on its way now, as far as the connection takes it without waiting.
    Flush,
    /// End the content.
    Close,
    /// Give the response up: it must not look complete. The connection closes.
    CloseNow,
    /// Send `100 Continue`, once, if the client waits for it.
    Ack,
}

/// Why an ask failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActionError {
    /// The connection failed.
    Io(Errno),
    /// More is queued than a servlet that cannot wait may queue.
    Backlog {
        /// Bytes that are queued.
        queued_bytes: usize,
        /// The limit that was passed (`response_backlog_max`).
        limit_bytes: usize,
    },
}

impl fmt::Display for ActionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(errno) => write!(f, "the connection failed: {errno:?}"),
            Self::Backlog { queued_bytes, limit_bytes } => write!(
                f,
                "{queued_bytes} bytes of the response are queued and the client does not read \
                 them (response_backlog_max {limit_bytes}); stream it with an AsyncContext, whose \
                 writes wait for credit"
            ),
        }
    }
}

impl std::error::Error for ActionError {}

/// Answers the asks of one call. Lives on the core; the calls of one core share one hook.
pub trait ActionHook<O: Operation> {
    /// Does what `code` asks for.
    ///
    /// # Errors
    /// See [`ActionError`].
    fn action(&self, code: ActionCode<'_>) -> Result<(), ActionError>;

    /// Sends what is queued as far as the connection takes it without waiting, and answers whether
    /// all of it has left.
    ///
    /// # Errors
    /// The connection failed.
    fn drain_output(&self) -> Result<bool, ActionError>;

    /// The cell of the exchange, made now if there is none yet.
    fn async_cell(&self, request: &mut Request) -> Arc<AsyncCell<O>>;

    /// The cell of the exchange, if it has one.
    fn existing_cell(&self) -> Option<Arc<AsyncCell<O>>>;

    /// Makes the request independent of the turn, for a future that takes it with it: its head is
    /// a copy of its own, and its content comes through the cell's queue from now on.
    fn detach(&self, request: &mut Request) -> Arc<AsyncCell<O>>;

    /// The core's clock.
    fn clock(&self) -> Clock;

    /// Operations of other threads were taken off the list, and hold this much credit.
    fn note_applied(&self, credit_bytes: usize);

    /// Leaves an operation that concerns more than the response for the end of the call.
    fn defer(&self, operation: O);

    /// What was deferred in this call so far, in order; the caller applies it.
    fn take_deferred(&self) -> Vec<O>;

    /// Whether the response's content has ended.
    fn is_output_closed(&self) -> bool;

    /// Our end's address.
    fn local_address(&self) -> Option<SocketAddr>;
}

/// The way from a request or response back to the protocol: on its core the hook, elsewhere the
/// cell's operation list.
pub enum Hook<O: Operation> {
    /// The owner is the core.
    Core(Rc<dyn ActionHook<O>>),
    /// The owner is a worker thread, which may wait.
    Worker {
        /// The exchange's cell.
        cell: Arc<AsyncCell<O>>,
        /// The core's clock.
        clock: Clock,
    },
    /// The owner is a future on the core. Its steps go through the cell too, so that they keep
    /// their place among those of others; nothing waits but by being awaited.
    Future {
        /// The exchange's cell.
        cell: Arc<AsyncCell<O>>,
        /// The core's clock.
        clock: Clock,
    },
}

impl<O: Operation> Clone for Hook<O> {
    fn clone(&self) -> Self {
        match self {
            Self::Core(hook) => Self::Core(Rc::clone(hook)),
            Self::Worker { cell, clock } => Self::Worker { cell: Arc::clone(cell), clock: *clock },
            Self::Future { cell, clock } => Self::Future { cell: Arc::clone(cell), clock: *clock },
        }
    }
}

impl<O: Operation> Hook<O> {
    /// The cell of the exchange, if it has one.
    pub fn existing_cell(&self) -> Option<Arc<AsyncCell<O>>> {
        match self {
            Self::Core(hook) => hook.existing_cell(),
            Self::Worker { cell, .. } | Self::Future { cell, .. } => Some(Arc::clone(cell)),
        }
    }

    /// The cell of the exchange, made now if there is none yet.
    pub fn async_cell(&self, request: &mut Request) -> Arc<AsyncCell<O>> {
        match self {
            Self::Core(hook) => hook.async_cell(request),
            Self::Worker { cell, .. } | Self::Future { cell, .. } => Arc::clone(cell),
        }
    }

    /// The time, read anew.
    pub fn now(&self) -> Timestamp {
        self.clock().now()
    }

    /// The core's clock.
    pub fn clock(&self) -> Clock {
        match self {
            Self::Core(hook) => hook.clock(),
            Self::Worker { clock, .. } | Self::Future { clock, .. } => *clock,
        }
    }
}
