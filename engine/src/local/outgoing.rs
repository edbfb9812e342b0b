//! Outgoing connections of a core: what was asked of the backend for each, what came of it, and
//! who waits. A stream that its future dropped is closed here; no event of it reaches anybody.

use std::{
    cell::RefCell,
    collections::HashMap,
    io,
    net::SocketAddr,
    task::{Context, Poll, Waker},
};

use super::services::LocalServices;
use crate::{
    backend::{Command, ConnectRequest, Errno},
    buffer::{Chunk, Chunks},
    canary::{self, Canary},
    key::ConnKey,
    slab::{Slab, SlabKey},
};

/// Bytes that wait for a future to read them before the peer is held back, and bytes that wait to
/// be sent before a future is.
const HIGH_WATER_BYTES: usize = 64 * 1024;

/// Where receiving goes on.
const LOW_WATER_BYTES: usize = HIGH_WATER_BYTES / 2;

/// The outgoing connections of a core.
#[derive(Default)]
pub(super) struct Outgoing(RefCell<Inner>);

#[derive(Default)]
struct Inner {
    streams: Slab<Stream>,
    /// By connection, from its start to its `Closed`; no stream once that was dropped.
    by_conn: HashMap<ConnKey, Option<SlabKey>>,
    /// Streams that have something to send, each once.
    dirty: Vec<SlabKey>,
}

struct Stream {
    state: State,
    peer: SocketAddr,
    input: Vec<u8>,
    /// Bytes of `input` that were read.
    read_bytes: usize,
    is_demanded: bool,
    end: Option<End>,
    reader: Option<Waker>,
    output: Vec<u8>,
    /// A send is under way, with so many bytes.
    sending_bytes: usize,
    is_dirty: bool,
    shutdown: Shutdown,
    failure: Option<Errno>,
    writer: Option<Waker>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Connecting,
    Open(ConnKey),
    Refused(Errno),
}

/// How the peer's sending side ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    OfStream,
    Failed(Errno),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shutdown {
    No,
    /// Once all is sent.
    Asked,
    Done,
}

impl Stream {
    fn queued_bytes(&self) -> usize {
        self.output.len() + self.sending_bytes
    }

    fn wake_reader(&mut self) -> Option<Waker> {
        self.reader.take()
    }
}

impl Outgoing {
    pub(super) fn len(&self) -> usize {
        let inner = self.0.borrow();
        let connecting = |(_, stream): &(SlabKey, &Stream)| stream.state == State::Connecting;
        inner.by_conn.len() + inner.streams.iter().filter(connecting).count()
    }

    pub(super) fn stream_count(&self) -> usize {
        self.0.borrow().streams.len()
    }

    /// Sends what was written meanwhile: one send a connection under way, so what a future writes
    /// in small pieces leaves together.
    pub(super) fn flush(&self, commands: &RefCell<Vec<Command>>) {
        let inner = &mut *self.0.borrow_mut();
        while let Some(key) = inner.dirty.pop() {
            let Some(stream) = inner.streams.get_mut(key) else { continue };
            stream.is_dirty = false;
            let State::Open(conn) = stream.state else { continue };
            if stream.sending_bytes > 0 || stream.failure.is_some() {
                continue;
            }
            if !stream.output.is_empty() {
                let bytes = std::mem::take(&mut stream.output);
                stream.sending_bytes = bytes.len();
                let chunks = Chunks::One(Chunk::Owned(bytes));
                commands.borrow_mut().push(Command::Send(conn, chunks));
            } else if stream.shutdown == Shutdown::Asked {
                stream.shutdown = Shutdown::Done;
                commands.borrow_mut().push(Command::ShutdownWrite(conn));
            }
        }
    }

    pub(super) fn close_all(&self, commands: &RefCell<Vec<Command>>) {
        let keys = self.0.borrow().streams.keys();
        keys.into_iter().for_each(|key| self.drop_stream(key, commands));
    }

    fn connect(&self, peer: SocketAddr, commands: &RefCell<Vec<Command>>) -> SlabKey {
        let key = self.0.borrow_mut().streams.insert(Stream {
            state: State::Connecting,
            peer,
            input: Vec::new(),
            read_bytes: 0,
            is_demanded: false,
            end: None,
            reader: None,
            output: Vec::new(),
            sending_bytes: 0,
            is_dirty: false,
            shutdown: Shutdown::No,
            failure: None,
            writer: None,
        });
        let request = ConnectRequest { token: token_of(key), address: peer };
        commands.borrow_mut().push(Command::Connect(request));
        key
    }

    fn drop_stream(&self, key: SlabKey, commands: &RefCell<Vec<Command>>) {
        let mut inner = self.0.borrow_mut();
        let Some(stream) = inner.streams.remove(key) else { return };
        match stream.state {
            State::Connecting => {
                let token = token_of(key);
                commands.borrow_mut().push(Command::CancelConnect { token });
            }
            State::Open(conn) => {
                if let Some(owner) = inner.by_conn.get_mut(&conn) {
                    *owner = None;
                    if !canary::has(Canary::StreamNotClosed) {
                        commands.borrow_mut().push(Command::Close(conn));
                    }
                }
            }
            State::Refused(_) => {}
        }
        drop(inner);
        // Their wakers may belong to what is being dropped: outside the borrow.
        drop(stream);
    }

    /// Runs `f` on the stream of a connection, and wakes whom it answers; the stream's key.
    fn with_conn(
        &self,
        conn: ConnKey,
        f: impl FnOnce(&mut Stream) -> Option<Waker>,
    ) -> Option<SlabKey> {
        let mut inner = self.0.borrow_mut();
        let key = inner.by_conn.get(&conn).copied()??;
        let waker = inner.streams.get_mut(key).and_then(f);
        // Outside the borrow: a waker may drop what it was the last to hold.
        drop(inner);
        if let Some(waker) = waker {
            waker.wake();
        }
        Some(key)
    }

    fn mark_dirty(&self, key: SlabKey) {
        let inner = &mut *self.0.borrow_mut();
        if let Some(stream) = inner.streams.get_mut(key)
            && !std::mem::replace(&mut stream.is_dirty, true)
        {
            inner.dirty.push(key);
        }
    }
}

/// Events of the backend for connections that are not those of clients.
impl LocalServices {
    pub(crate) fn connected(&self, conn: ConnKey, token: u64) {
        let key = key_of(token);
        let mut inner = self.outgoing.0.borrow_mut();
        let waker = match inner.streams.get_mut(key) {
            Some(stream) => {
                stream.state = State::Open(conn);
                stream.is_demanded = true;
                let waker = stream.wake_reader();
                inner.by_conn.insert(conn, Some(key));
                self.commands.borrow_mut().push(Command::Demand(conn, true));
                waker
            }
            // Its future went while it was on its way.
            None => {
                inner.by_conn.insert(conn, None);
                self.commands.borrow_mut().push(Command::Close(conn));
                None
            }
        };
        drop(inner);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(crate) fn connect_failed(&self, token: u64, errno: Errno) {
        let mut inner = self.outgoing.0.borrow_mut();
        let waker = inner.streams.get_mut(key_of(token)).and_then(|stream| {
            stream.state = State::Refused(errno);
            stream.wake_reader()
        });
        drop(inner);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(crate) fn received(&self, conn: ConnKey, bytes: &[u8]) {
        let commands = &self.commands;
        self.outgoing.with_conn(conn, |stream| {
            // What was read goes, or a reader that never catches up would keep it all.
            stream.input.drain(..std::mem::take(&mut stream.read_bytes));
            stream.input.extend_from_slice(bytes);
            let waiting = stream.input.len() - stream.read_bytes;
            if waiting >= HIGH_WATER_BYTES && std::mem::take(&mut stream.is_demanded) {
                commands.borrow_mut().push(Command::Demand(conn, false));
            }
            stream.wake_reader()
        });
    }

    pub(crate) fn receiving_ended(&self, conn: ConnKey, failure: Option<Errno>) {
        self.outgoing.with_conn(conn, |stream| {
            stream.end = Some(failure.map_or(End::OfStream, End::Failed));
            stream.wake_reader()
        });
    }

    pub(crate) fn sent(&self, conn: ConnKey) {
        let key = self.outgoing.with_conn(conn, |stream| {
            stream.sending_bytes = 0;
            stream.writer.take()
        });
        if let Some(key) = key {
            self.outgoing.mark_dirty(key);
        }
    }

    pub(crate) fn sending_failed(&self, conn: ConnKey, errno: Errno) {
        self.outgoing.with_conn(conn, |stream| {
            stream.sending_bytes = 0;
            stream.output = Vec::new();
            stream.failure = Some(errno);
            stream.writer.take()
        });
    }

    pub(crate) fn outgoing_closed(&self, conn: ConnKey) {
        self.outgoing.0.borrow_mut().by_conn.remove(&conn);
    }
}

/// What [`TcpStream`](super::tcp_stream::TcpStream) asks for.
impl LocalServices {
    pub(super) fn connect(&self, peer: SocketAddr) -> SlabKey {
        self.outgoing.connect(peer, &self.commands)
    }

    pub(super) fn poll_connected(&self, key: SlabKey, cx: &Context<'_>) -> Poll<io::Result<()>> {
        // Dropped behind the borrow: its drop may be that of another stream.
        let _old: Option<Waker>;
        let mut inner = self.outgoing.0.borrow_mut();
        let Some(stream) = inner.streams.get_mut(key) else { return Poll::Ready(Err(gone())) };
        match stream.state {
            State::Connecting => {
                _old = stream.reader.replace(cx.waker().clone());
                Poll::Pending
            }
            State::Open(_) => Poll::Ready(Ok(())),
            State::Refused(errno) => Poll::Ready(Err(errno.into())),
        }
    }

    pub(super) fn poll_read(
        &self,
        key: SlabKey,
        cx: &Context<'_>,
        copy: &mut dyn FnMut(&[u8]) -> usize,
    ) -> Poll<io::Result<usize>> {
        // Dropped behind the borrow: its drop may be that of another stream.
        let _old: Option<Waker>;
        let mut inner = self.outgoing.0.borrow_mut();
        let Some(stream) = inner.streams.get_mut(key) else { return Poll::Ready(Err(gone())) };
        let waiting = &stream.input[stream.read_bytes..];
        if !waiting.is_empty() {
            let count = copy(waiting);
            stream.read_bytes += count;
            let left = stream.input.len() - stream.read_bytes;
            if left == 0 {
                // A connection that waits owns no buffer.
                stream.input = Vec::new();
                stream.read_bytes = 0;
            }
            if let State::Open(conn) = stream.state
                && left < LOW_WATER_BYTES
                && stream.end.is_none()
                && !std::mem::replace(&mut stream.is_demanded, true)
            {
                self.commands.borrow_mut().push(Command::Demand(conn, true));
            }
            return Poll::Ready(Ok(count));
        }
        match stream.end {
            Some(End::OfStream) => Poll::Ready(Ok(0)),
            Some(End::Failed(errno)) => Poll::Ready(Err(errno.into())),
            None => {
                _old = stream.reader.replace(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    pub(super) fn poll_write(
        &self,
        key: SlabKey,
        cx: &Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        // Dropped behind the borrow: its drop may be that of another stream.
        let _old: Option<Waker>;
        let mut inner = self.outgoing.0.borrow_mut();
        let Some(stream) = inner.streams.get_mut(key) else { return Poll::Ready(Err(gone())) };
        if let Some(errno) = stream.failure {
            return Poll::Ready(Err(errno.into()));
        }
        if stream.shutdown != Shutdown::No {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let room = HIGH_WATER_BYTES.saturating_sub(stream.queued_bytes());
        if room == 0 {
            _old = stream.writer.replace(cx.waker().clone());
            return Poll::Pending;
        }
        let count = bytes.len().min(room);
        stream.output.extend_from_slice(&bytes[..count]);
        drop(inner);
        self.outgoing.mark_dirty(key);
        Poll::Ready(Ok(count))
    }

    /// Ready when all that was written is with the kernel.
    pub(super) fn poll_flush(&self, key: SlabKey, cx: &Context<'_>) -> Poll<io::Result<()>> {
        // Dropped behind the borrow: its drop may be that of another stream.
        let _old: Option<Waker>;
        let mut inner = self.outgoing.0.borrow_mut();
        let Some(stream) = inner.streams.get_mut(key) else { return Poll::Ready(Err(gone())) };
        if let Some(errno) = stream.failure {
            return Poll::Ready(Err(errno.into()));
        }
        if stream.queued_bytes() > 0 {
            _old = stream.writer.replace(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }

    /// Ends the sending side behind what was written; ready when that is with the kernel.
    pub(super) fn poll_shutdown(&self, key: SlabKey, cx: &Context<'_>) -> Poll<io::Result<()>> {
        {
            let mut inner = self.outgoing.0.borrow_mut();
            let Some(stream) = inner.streams.get_mut(key) else { return Poll::Ready(Err(gone())) };
            if stream.shutdown == Shutdown::No {
                stream.shutdown = Shutdown::Asked;
            }
        }
        self.outgoing.mark_dirty(key);
        self.poll_flush(key, cx)
    }

    pub(super) fn peer_of(&self, key: SlabKey) -> Option<SocketAddr> {
        self.outgoing.0.borrow().streams.get(key).map(|stream| stream.peer)
    }

    pub(super) fn drop_stream(&self, key: SlabKey) {
        self.outgoing.drop_stream(key, &self.commands);
    }
}

/// A stream whose core has ended.
fn gone() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the core of the connection has ended")
}

fn token_of(key: SlabKey) -> u64 {
    u64::from(key.stamp) << 32 | u64::from(key.slot)
}

fn key_of(token: u64) -> SlabKey {
    SlabKey { slot: token as u32, stamp: (token >> 32) as u32 }
}
