//! The interface between what moves bytes and what handles them: a [`Backend`] owns the loop and
//! calls a [`CoreHandler`] with events; the handler answers with [`Commands`].
//!
//! A turn of the loop: enter → completions → [`CoreHandler::run_ready`] (inbox, own posts,
//! futures) → [`Event::Timeout`] (the wheel) → commands → enter. Commands run after the batch
//! that caused them, in their order; those of `run_ready` and of timers before the next enter.
//!
//! The order of the events of one connection: `Received`* then `Eof` or `RecvFailed`; `Sent`* or
//! `SendFailed`; the two directions unordered to each other; `Closed` last, and always. After
//! [`Command::Close`] no event of the connection but `Closed` reaches the handler.

use std::{fmt, io, net::SocketAddr, os::fd::OwnedFd, rc::Rc};

use crate::{
    buffer::{Chunks, Lease},
    key::{ConnKey, ListenerId},
    timestamp::{Clock, Timestamp},
};

/// What happened.
#[derive(Debug)]
pub enum Event {
    /// A listener accepted a connection. Nothing is received before `Command::Demand`.
    Accepted {
        /// The new connection.
        conn: ConnKey,
        /// The listener that accepted it.
        listener: ListenerId,
        /// The other end.
        peer: SocketAddr,
    },
    /// Bytes arrived. Data may still come after `Demand(conn, false)`.
    Received(ConnKey, Lease),
    /// The peer ended its sending side. Nothing is received any more.
    Eof(ConnKey),
    /// Receiving failed with this errno (`ECONNRESET` for a reset). Nothing more is received.
    RecvFailed(ConnKey, Errno),
    /// All bytes of the send went to the kernel; the chunks come back.
    Sent(ConnKey, Chunks),
    /// The send failed with this errno; how much of it left is not known. The chunks are gone.
    SendFailed(ConnKey, Errno),
    /// An outgoing connection stands.
    Connected {
        /// The connection.
        conn: ConnKey,
        /// The token of the [`ConnectRequest`].
        token: u64,
    },
    /// An outgoing connection failed.
    ConnectFailed {
        /// The token of the [`ConnectRequest`].
        token: u64,
        /// Why.
        errno: Errno,
    },
    /// A watched connection's peer left.
    PeerGone(ConnKey, Departure),
    /// A file operation ended.
    FileDone {
        /// The token of the [`FileRequest`].
        token: u64,
        /// Bytes moved, or why not.
        result: Result<usize, Errno>,
        /// The buffer that the request brought.
        buffer: Vec<u8>,
    },
    /// A connection left this core by [`Command::Handoff`]; post the stream to the other core.
    /// Ends the connection's name in place of `Closed`.
    Detached(ConnKey, Stream),
    /// The connection is closed and its key dead. The last event of a connection.
    Closed(ConnKey),
    /// A listener gave up: its accept ended after [`Command::StopAccept`], or failed for good.
    AcceptStopped(ListenerId, Option<Errno>),
    /// Another thread woke the core.
    Woken,
    /// The turn's input is handled: look at the wheel. Comes once every turn.
    Timeout,
}

/// How a watched peer left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// It ended its sending side (FIN).
    EndOfStream,
    /// It reset the connection, or the connection failed.
    Reset,
}

/// What the handler asks for.
#[derive(Debug)]
pub enum Command {
    /// Whether bytes are wanted. A new connection starts with `false`.
    Demand(ConnKey, bool),
    /// Watch for the peer's departure while nothing is demanded ([`Event::PeerGone`]). Ends with
    /// the event, or with the next `Demand(conn, true)`.
    Watch(ConnKey),
    /// Send; the handler has at most one send of a connection under way.
    Send(ConnKey, Chunks),
    /// End the sending side (FIN) after what was sent.
    ShutdownWrite(ConnKey),
    /// Close now; a send under way is cut off.
    Close(ConnKey),
    /// Connect to an address.
    Connect(ConnectRequest),
    /// Give up a connect that is under way: no event comes of it, unless one is there already.
    CancelConnect {
        /// The token of the [`ConnectRequest`].
        token: u64,
    },
    /// Read or write a file.
    File(FileRequest),
    /// Accept nothing until [`Command::ResumeAccept`]; clients wait in the backlog.
    PauseAccept,
    /// Accept again.
    ResumeAccept,
    /// Accept what waits in the backlog, then close the listeners for good.
    StopAccept,
    /// Give a connection away before its first `Demand`; see [`Event::Detached`].
    Handoff(ConnKey),
    /// Take over a connection that another core gave away; answered by [`Event::Accepted`].
    Adopt(Stream),
    /// Leave the loop. Connections that are still open are closed without further events.
    Stop,
}

/// A connection between two cores.
#[derive(Debug)]
pub struct Stream {
    /// Its descriptor.
    pub fd: OwnedFd,
    /// The listener that accepted it.
    pub listener: ListenerId,
    /// The other end.
    pub peer: SocketAddr,
}

/// Asks for an outgoing connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnectRequest {
    /// Comes back with the answer.
    pub token: u64,
    /// Where to.
    pub address: SocketAddr,
}

/// Asks for a file operation; the buffer is the operation's until [`Event::FileDone`].
#[derive(Debug)]
pub struct FileRequest {
    /// Comes back with the answer.
    pub token: u64,
    /// The file.
    pub fd: OwnedFd,
    /// Where in the file, in bytes.
    pub offset: u64,
    /// Read into the buffer's capacity or write its bytes.
    pub direction: FileDirection,
    /// The bytes.
    pub buffer: Vec<u8>,
}

/// Which way a file operation goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileDirection {
    /// From the file.
    Read,
    /// To the file.
    Write,
}

/// Commands of a batch, in the order in which they run.
#[derive(Debug, Default)]
pub struct Commands {
    queue: Vec<Command>,
}

impl Commands {
    /// Queues a command.
    pub fn push(&mut self, command: Command) {
        self.queue.push(command);
    }

    /// Whether none is queued.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Takes all queued commands in order, and leaves the memory.
    pub fn drain(&mut self) -> std::vec::Drain<'_, Command> {
        self.queue.drain(..)
    }
}

/// An error number of the system, as the kernel gave it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

impl Errno {
    /// The peer reset the connection.
    pub const ECONNRESET: Self = Self(libc::ECONNRESET);
    /// Nobody reads what is sent any more.
    pub const EPIPE: Self = Self(libc::EPIPE);
    /// A deadline passed.
    pub const ETIMEDOUT: Self = Self(libc::ETIMEDOUT);
    /// The message is malformed.
    pub const EBADMSG: Self = Self(libc::EBADMSG);
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "errno {} ({})", self.0, io::Error::from_raw_os_error(self.0))
    }
}

impl From<Errno> for io::Error {
    fn from(errno: Errno) -> Self {
        Self::from_raw_os_error(errno.0)
    }
}

/// What a backend's loop calls: the core. All calls come from the core's thread.
pub trait CoreHandler {
    /// Something happened. `now` was read once for the turn.
    fn on(&mut self, now: Timestamp, event: Event, commands: &mut Commands);

    /// Runs inbox, own posts and ready futures within a budget; `true` if work is left, so that
    /// the loop must not wait.
    fn run_ready(&mut self, now: Timestamp, commands: &mut Commands) -> bool;

    /// When the loop must call with [`Event::Timeout`] at the latest.
    fn next_deadline(&self) -> Option<Timestamp>;

    /// Announces that the loop will wait; `false` if something came in, so it must not. After
    /// `true` every post wakes the loop until [`CoreHandler::awake`].
    fn may_sleep(&mut self) -> bool;

    /// The loop came back from its wait.
    fn awake(&mut self);
}

/// What a core may ask of its backend in the middle of a callback.
pub trait Io {
    /// Sends what the kernel takes at once, without waiting. Only while no [`Command::Send`] of
    /// the connection is under way or queued.
    fn send_now(&self, conn: ConnKey, bytes: &[u8]) -> SendNow;

    /// Whether the kernel holds input of the connection that was not received yet.
    fn unread(&self, conn: ConnKey) -> bool;

    /// Whether the peer has reset the connection, asked of the kernel, whatever events came.
    fn is_reset(&self, _conn: ConnKey) -> bool {
        false
    }

    /// The backend's clock, for this and other threads.
    fn clock(&self) -> Clock;

    /// The time, read anew.
    fn now(&self) -> Timestamp {
        self.clock().now()
    }

    /// The address of our end, asked of the kernel.
    fn local_address(&self, conn: ConnKey) -> Option<SocketAddr>;
}

/// The answer of [`Io::send_now`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendNow {
    /// The kernel took this many bytes; fewer than given means that its buffer is full.
    Sent(usize),
    /// The kernel's buffer is full.
    WouldBlock,
    /// The connection failed.
    Failed(Errno),
}

/// A loop that moves bytes and drives one core.
pub trait Backend {
    /// Its name in logs and settings.
    fn name(&self) -> &'static str;

    /// What the core may ask in the middle of a callback.
    fn io(&self) -> Rc<dyn Io>;

    /// Runs the loop on the calling thread until the handler asks it to stop.
    ///
    /// # Errors
    /// The ring failed in a way that no connection can survive (a lost completion).
    fn run<H: CoreHandler>(self, handler: &mut H) -> io::Result<()>;
}
