//! A request as the protocol layer sees it: head, target, body bytes, what the connection said.
//! Plain data and `Send`; it belongs to whoever owns the exchange. Stands for Tomcat's
//! `org.apache.coyote.Request`.

use std::{net::SocketAddr, sync::Arc};

use ringcat_engine::{
    key::ListenerId, peer_address::PeerAddress, socket::Failure, timestamp::Timestamp,
};

use crate::{
    http11::{
        framing::{BodyLength, Framing},
        head::{Head, Span},
        target::{Target, TargetForm},
    },
    protocol_error::ProtocolError,
};

/// A request.
#[derive(Debug)]
pub struct Request {
    /// Start line and header fields.
    pub head: RequestHead,
    /// The parsed request target; ranges into [`Head::target`].
    pub target: Target,
    /// How the message is framed and what its connection options say.
    pub framing: Framing,
    /// The other end.
    pub peer: PeerAddress,
    /// The listener that accepted the connection.
    pub listener: ListenerId,
    /// When the first byte of the head was seen.
    pub started: Timestamp,
    /// Content, as far as it was decoded.
    pub body: RequestBody,
    /// How the connection failed, once it did.
    pub failure: Option<Failure>,
    body_end: Option<Box<BodyEnd>>,
    /// Whether a read listener is set, so that arriving content is an event.
    pub has_read_listener: bool,
    /// Whether the read listener was promised a call, and what it waits for is there.
    pub is_read_due: bool,
    /// Whether content goes to the cell's queue, where any thread reads it.
    pub uses_inbound: bool,
    /// Whether the exchange, once asynchronous, ends when the peer ends its stream.
    pub ends_on_peer_close: bool,
}

/// How the content ended, where there is more to say than that it did. Apart, since parked requests
/// seldom have it.
#[derive(Debug, Default)]
struct BodyEnd {
    trailers: Vec<(Vec<u8>, Vec<u8>)>,
    error: Option<ProtocolError>,
}

impl Request {
    pub(crate) fn new(peer: SocketAddr, listener: ListenerId) -> Self {
        Self {
            head: RequestHead::default(),
            target: NO_TARGET,
            framing: NO_FRAMING,
            peer: peer.into(),
            listener,
            started: Timestamp::ZERO,
            body: RequestBody::default(),
            failure: None,
            body_end: None,
            has_read_listener: false,
            is_read_due: false,
            uses_inbound: false,
            ends_on_peer_close: false,
        }
    }

    /// A request with this one's head and nothing of its content, for who looks at it while a
    /// future has the request itself.
    #[must_use]
    pub fn copy_of_head(&mut self) -> Self {
        let shared = Some(self.head.share());
        Self {
            head: RequestHead { lent: None, shared },
            target: self.target,
            framing: self.framing,
            started: self.started,
            uses_inbound: true,
            ends_on_peer_close: self.ends_on_peer_close,
            ..Self::new(self.peer.into(), self.listener)
        }
    }

    /// The request target's path, undecoded; `/` where an absolute target has none.
    pub fn raw_path(&self) -> &[u8] {
        self.target.path(self.head.get().target())
    }

    /// The query string, undecoded, without the question mark.
    pub fn raw_query(&self) -> Option<&[u8]> {
        self.target.query.map(|query| query.of(self.head.get().target()))
    }

    /// The declared length of the content; `None` for chunked content, `Some(0)` for none.
    pub fn content_length(&self) -> Option<u64> {
        match self.framing.body {
            BodyLength::None => Some(0),
            BodyLength::Length(length) => Some(length),
            BodyLength::Chunked => None,
        }
    }

    /// Trailer fields, names in lower case; there when the body is finished.
    pub fn trailers(&self) -> &[(Vec<u8>, Vec<u8>)] {
        self.body_end.as_ref().map_or(&[], |end| &end.trailers)
    }

    /// The trailer fields came.
    pub fn set_trailers(&mut self, trailers: Vec<(Vec<u8>, Vec<u8>)>) {
        if !trailers.is_empty() {
            self.body_end.get_or_insert_default().trailers = trailers;
        }
    }

    /// What the peer did wrong inside the body, once it did.
    pub fn body_error(&self) -> Option<ProtocolError> {
        self.body_end.as_ref().and_then(|end| end.error)
    }

    pub(crate) fn set_body_error(&mut self, error: ProtocolError) {
        self.body_end.get_or_insert_default().error = Some(error);
    }

    /// Whether the method is HEAD, whose answer has no content.
    pub fn is_head(&self) -> bool {
        self.head.get().method() == b"HEAD"
    }

    /// Makes the request ready for the next one; the head's storage is lent and goes back first.
    pub(crate) fn recycle(&mut self) {
        let Self {
            head,
            target,
            framing,
            peer: _,
            listener: _,
            started,
            body,
            failure,
            body_end,
            has_read_listener,
            is_read_due,
            uses_inbound,
            ends_on_peer_close,
        } = self;
        head.recycle();
        *target = NO_TARGET;
        *framing = NO_FRAMING;
        *started = Timestamp::ZERO;
        body.recycle();
        *failure = None;
        *body_end = None;
        *has_read_listener = false;
        *is_read_due = false;
        *uses_inbound = false;
        *ends_on_peer_close = false;
    }
}

const NO_TARGET: Target = Target {
    form: TargetForm::Origin,
    path: Span { start: 0, len: 0 },
    query: None,
    authority: None,
    scheme: None,
};

const NO_FRAMING: Framing =
    Framing { body: BodyLength::None, keep_alive: false, expects_continue: false, server: None };

/// A head in storage that the core lends for a turn, or in an exact copy that other threads share.
/// Two pointers: a parked request has none of the storage.
#[derive(Debug, Default)]
pub struct RequestHead {
    lent: Option<Box<Head>>,
    shared: Option<Arc<Head>>,
}

/// What there is before anything of a head came.
static NO_HEAD: Head = Head::new();

impl RequestHead {
    /// The head.
    pub fn get(&self) -> &Head {
        self.shared.as_deref().or(self.lent.as_deref()).unwrap_or(&NO_HEAD)
    }

    /// An exact copy that outlives the turn, made once.
    pub fn share(&mut self) -> Arc<Head> {
        let lent = self.lent.as_deref().unwrap_or(&NO_HEAD);
        Arc::clone(self.shared.get_or_insert_with(|| Arc::new(lent.to_compact())))
    }

    pub(crate) fn lent_mut(&mut self) -> &mut Head {
        self.lent.get_or_insert_default()
    }

    /// Takes storage on loan from the core.
    pub(crate) fn lend(&mut self, storage: Option<Box<Head>>) {
        self.lent = storage;
    }

    /// Gives the core its storage back; with `keep` the head stays readable as an exact copy.
    pub(crate) fn give_back(&mut self, keep: bool) -> Option<Box<Head>> {
        if keep {
            self.share();
        }
        self.lent.take()
    }

    /// Gives the core its storage back; a head that is not complete yet goes on in an exact copy.
    pub(crate) fn keep_partial(&mut self) -> Option<Box<Head>> {
        let exact = self.lent.as_ref().map(|lent| Box::new(lent.to_exact()));
        std::mem::replace(&mut self.lent, exact)
    }

    fn recycle(&mut self) {
        if let Some(lent) = &mut self.lent {
            lent.clear();
        }
        self.shared = None;
    }
}

// Every parked request has one.
const _: () = assert!(size_of::<Request>() <= 168);

/// Decoded content that waits for its reader.
#[derive(Debug, Default)]
pub struct RequestBody {
    bytes: Vec<u8>,
    position: usize,
    is_finished: bool,
}

/// The answer of [`RequestBody::read`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyRead {
    /// This many bytes were read.
    Bytes(usize),
    /// The content is over.
    End,
    /// Nothing is there yet.
    NotReady,
}

impl RequestBody {
    /// Reads what is there into `buffer`, never waiting.
    pub fn read(&mut self, buffer: &mut [u8]) -> BodyRead {
        let waiting = &self.bytes[self.position..];
        if waiting.is_empty() {
            return if self.is_finished { BodyRead::End } else { BodyRead::NotReady };
        }
        let count = waiting.len().min(buffer.len());
        buffer[..count].copy_from_slice(&waiting[..count]);
        self.position += count;
        if self.position == self.bytes.len() {
            self.bytes.clear();
            self.position = 0;
        }
        BodyRead::Bytes(count)
    }

    /// Bytes that can be read at once.
    pub fn len_available(&self) -> usize {
        self.bytes.len() - self.position
    }

    /// Whether all content was received, read or not.
    pub fn is_finished(&self) -> bool {
        self.is_finished
    }

    /// Whether all content was received and read.
    pub fn is_consumed(&self) -> bool {
        self.is_finished && self.len_available() == 0
    }

    /// Takes all that is there.
    pub fn take_available(&mut self) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.drain(..std::mem::take(&mut self.position));
        bytes
    }

    /// What can be read at once.
    pub(crate) fn available(&self) -> &[u8] {
        &self.bytes[self.position..]
    }

    /// All that was there has been taken.
    pub(crate) fn clear_available(&mut self) {
        self.bytes.clear();
        self.position = 0;
    }

    pub(crate) fn sink(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// All content was received.
    pub fn finish(&mut self) {
        self.is_finished = true;
    }

    fn recycle(&mut self) {
        *self = Self::default();
    }
}
