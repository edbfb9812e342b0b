//! One entry a connection: its input, out-queue, interest and deadlines. Stands for Tomcat's
//! `SocketWrapperBase`.

use std::net::SocketAddr;

use crate::{
    backend::Errno,
    input_buffer::InputBuffer,
    key::{ConnKey, ListenerId},
    out_queue::OutQueue,
    peer_address::PeerAddress,
    timer_wheel::TimerId,
    timestamp::Timestamp,
};

/// A connection as its core sees it.
#[derive(Debug)]
pub struct Socket {
    pub(crate) key: ConnKey,
    pub(crate) listener: ListenerId,
    pub(crate) peer: PeerAddress,
    /// Received and not consumed.
    pub input: InputBuffer,
    /// Queued and not sent.
    pub out: OutQueue,
    /// The layer above's name for what belongs to the connection.
    pub attachment: Option<u64>,
    /// Whether the handler wants [`SocketEvent::OpenWrite`](crate::connection_handler::SocketEvent)
    /// when the out-queue has drained.
    pub write_interest: bool,
    /// Requests begun on this connection.
    pub request_count: u32,
    pub(crate) read_interest: bool,
    pub(crate) is_demanded: bool,
    pub(crate) is_watched: bool,
    pub(crate) is_eof: bool,
    pub(crate) is_peer_closed: bool,
    pub(crate) failure: Option<Failure>,
    pub(crate) phase: Phase,
    pub(crate) read_deadline: Option<(Timestamp, ReadDeadline)>,
    pub(crate) write_deadline: Option<Timestamp>,
    pub(crate) timer: Option<TimerId>,
}

/// Why a connection failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The system reported an error; a reset is `ECONNRESET`.
    System(Errno),
    /// A deadline of the receiving side passed.
    ReadTimeout(ReadDeadline),
    /// The peer took no output for the write timeout.
    WriteTimeout,
}

/// What a connection is waiting to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadDeadline {
    /// The first byte of a connection's first request.
    First,
    /// The first byte of the next request.
    KeepAlive,
    /// The rest of a head.
    Head,
    /// More of a body.
    Body,
    /// The peer's end of stream after an early answer.
    Linger,
}

/// Where a connection is between accept and close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Serving.
    Open,
    /// Closes once its output is sent; `linger`: input may still come and must be read first,
    /// since closing with unread input resets the connection and can destroy the response.
    Draining { linger: bool },
    /// Our side ended; what the peer still sends is read and dropped, this many bytes so far.
    Lingering { discarded_bytes: u32 },
    /// `Close` was asked for; only `Closed` comes.
    Closing,
}

impl Socket {
    pub(crate) fn new(key: ConnKey, listener: ListenerId, peer: SocketAddr) -> Self {
        Self {
            key,
            listener,
            peer: peer.into(),
            input: InputBuffer::default(),
            out: OutQueue::default(),
            attachment: None,
            write_interest: false,
            request_count: 0,
            read_interest: true,
            is_demanded: false,
            is_watched: false,
            is_eof: false,
            is_peer_closed: false,
            failure: None,
            phase: Phase::Open,
            read_deadline: None,
            write_deadline: None,
            timer: None,
        }
    }

    /// The other end.
    pub fn peer(&self) -> SocketAddr {
        self.peer.into()
    }

    /// The listener that accepted the connection.
    pub fn listener(&self) -> ListenerId {
        self.listener
    }

    /// Whether the peer is known to have ended its sending side; bytes from before may still be
    /// waiting in the system.
    pub fn is_peer_closed(&self) -> bool {
        self.is_peer_closed
    }

    /// Whether all was received that the peer sent before it ended its sending side.
    pub fn is_eof(&self) -> bool {
        self.is_eof
    }

    /// Why the connection failed, if it did. Nothing can be sent any more.
    pub fn failure(&self) -> Option<Failure> {
        self.failure
    }

    /// What the connection is waiting to receive, if that has a deadline.
    pub fn awaited(&self) -> Option<ReadDeadline> {
        self.read_deadline.map(|(_, kind)| kind)
    }

    /// Whether the connection still serves: it is neither failed nor on its way to be closed.
    pub fn is_open(&self) -> bool {
        self.phase == Phase::Open && self.failure.is_none()
    }

    /// The earliest deadline of the connection.
    pub(crate) fn earliest_deadline(&self) -> Option<Timestamp> {
        let read = self.read_deadline.map(|(deadline, _)| deadline);
        match (read, self.write_deadline) {
            (Some(read), Some(write)) => Some(read.min(write)),
            (read, write) => read.or(write),
        }
    }
}

// A parked request's budget is 2 KiB, 256 bytes of it the socket entry.
const _: () = assert!(size_of::<Socket>() <= 216);
