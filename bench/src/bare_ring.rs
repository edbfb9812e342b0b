//! The bare ring: the least that a server on the engine's native backend can do. It counts the
//! heads that arrive and sends as many copies of one fixed response. No parsing, no limits, no
//! timeouts: what ringcat costs more than this is the cost of being a server.

use bytes::Bytes;
use ringcat_engine::{
    backend::{Command, Commands, CoreHandler, Event},
    buffer::{Chunk, Chunks},
    key::ConnKey,
    timestamp::Timestamp,
};

use crate::head_ends::{HeadEndFinder, HeadEnds};

/// The response that the bare ring sends unless another is given: shaped as the server's answer to
/// `GET /hello`.
pub const HELLO: &[u8] = b"HTTP/1.1 200 OK\r\n\
    Content-Type: text/plain;charset=UTF-8\r\n\
    Content-Length: 12\r\n\
    Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n\
    \r\n\
    hello, wire\n";

/// Responses that one send carries at most; the rest follows when it is done.
const BURST_MAX: usize = 256;

/// Answers every request head with the same bytes. One per core, on its thread.
#[derive(Debug)]
pub struct BareRing {
    /// [`BURST_MAX`] responses in a row; a send is a piece of it, so sending copies nothing.
    responses: Bytes,
    response_len_bytes: usize,
    finder: HeadEndFinder,
    /// By slot of the key. A slot is used again only after its `Closed`.
    connections: Vec<Connection>,
}

/// What is known of a connection.
#[derive(Clone, Copy, Debug, Default)]
struct Connection {
    head_ends: HeadEnds,
    /// Responses that no send carries yet.
    owed_count: u64,
    is_sending: bool,
    /// The peer sends nothing more.
    has_ended: bool,
}

impl BareRing {
    /// Answers with `response`. The memory of the prepared sends, 256 responses, lives as long as
    /// the process: a static slice needs no reference count on the way to the kernel.
    ///
    /// # Panics
    /// If `response` is empty.
    pub fn new(response: &[u8]) -> Self {
        assert!(!response.is_empty(), "a send carries bytes");
        Self {
            responses: Bytes::from_static(response.repeat(BURST_MAX).leak()),
            response_len_bytes: response.len(),
            finder: HeadEndFinder::new(),
            connections: Vec::new(),
        }
    }

    fn on_accepted(&mut self, conn: ConnKey, commands: &mut Commands) {
        let index = conn.slot as usize;
        if self.connections.len() <= index {
            self.connections.resize_with(index + 1, Connection::default);
        }
        self.connections[index] = Connection::default();
        commands.push(Command::Demand(conn, true));
    }

    fn on_received(&mut self, conn: ConnKey, bytes: &[u8], commands: &mut Commands) {
        let connection = &mut self.connections[conn.slot as usize];
        connection.owed_count += connection.head_ends.count(&self.finder, bytes);
        self.go_on(conn, commands);
    }

    /// Sends what is owed, or closes when nothing is owed and nothing more comes.
    fn go_on(&mut self, conn: ConnKey, commands: &mut Commands) {
        let connection = &mut self.connections[conn.slot as usize];
        if connection.is_sending {
            return;
        }
        if connection.owed_count > 0 {
            let count = connection.owed_count.min(BURST_MAX as u64);
            connection.owed_count -= count;
            connection.is_sending = true;
            let len_bytes = count as usize * self.response_len_bytes;
            let chunk = Chunk::Shared(self.responses.slice(..len_bytes));
            commands.push(Command::Send(conn, Chunks::One(chunk)));
        } else if connection.has_ended {
            commands.push(Command::Close(conn));
        }
    }
}

impl CoreHandler for BareRing {
    fn on(&mut self, _now: Timestamp, event: Event, commands: &mut Commands) {
        match event {
            Event::Accepted { conn, .. } => self.on_accepted(conn, commands),
            Event::Received(conn, bytes) => self.on_received(conn, &bytes, commands),
            Event::Sent(conn, _) => {
                self.connections[conn.slot as usize].is_sending = false;
                self.go_on(conn, commands);
            }
            Event::Eof(conn) => {
                self.connections[conn.slot as usize].has_ended = true;
                self.go_on(conn, commands);
            }
            Event::RecvFailed(conn, _) | Event::SendFailed(conn, _) => {
                commands.push(Command::Close(conn));
            }
            // Without its listener the program has nothing to do.
            Event::AcceptStopped(..) => commands.push(Command::Stop),
            // The slot is reset when it is used again.
            Event::Closed(_) | Event::Woken | Event::Timeout => {}
            // Answers to commands that are never given.
            Event::Connected { .. }
            | Event::ConnectFailed { .. }
            | Event::PeerGone(..)
            | Event::FileDone { .. }
            | Event::Detached(..) => {}
        }
    }

    fn run_ready(&mut self, _now: Timestamp, _commands: &mut Commands) -> bool {
        false
    }

    fn next_deadline(&self) -> Option<Timestamp> {
        None
    }

    fn may_sleep(&mut self) -> bool {
        true
    }

    fn awake(&mut self) {}
}

#[cfg(test)]
mod tests {
    use ringcat_engine::{backend::Errno, buffer::Lease};

    use super::*;

    const CONN: ConnKey = ConnKey { slot: 1, stamp: 7 };
    const HEAD: &[u8] = b"GET / HTTP/1.1\r\n\r\n";

    /// The commands that an event causes, as text: sends by their responses.
    fn deliver(ring: &mut BareRing, event: Event) -> Vec<String> {
        let mut commands = Commands::default();
        ring.on(Timestamp::ZERO, event, &mut commands);
        let text = |command| match command {
            Command::Send(CONN, chunks) => format!("send {}", chunks.len_bytes() / HELLO.len()),
            Command::Demand(CONN, true) => "demand".to_owned(),
            Command::Close(CONN) => "close".to_owned(),
            other => panic!("{other:?}"),
        };
        commands.drain().map(text).collect()
    }

    fn accepted() -> BareRing {
        let mut ring = BareRing::new(HELLO);
        let listener = ringcat_engine::key::ListenerId(0);
        let peer = ([127, 0, 0, 1], 1).into();
        assert_eq!(deliver(&mut ring, Event::Accepted { conn: CONN, listener, peer }), ["demand"]);
        ring
    }

    fn received(heads: usize) -> Event {
        Event::Received(CONN, Lease::from_vec(HEAD.repeat(heads)))
    }

    fn sent() -> Event {
        Event::Sent(CONN, Chunks::Many(Vec::new()))
    }

    #[test]
    fn one_send_answers_what_arrived_and_the_next_waits_for_it() {
        let mut ring = accepted();
        assert_eq!(deliver(&mut ring, received(3)), ["send 3"]);
        assert!(deliver(&mut ring, received(2)).is_empty(), "a send is under way");
        assert_eq!(deliver(&mut ring, sent()), ["send 2"]);
        assert!(deliver(&mut ring, sent()).is_empty());
        assert_eq!(deliver(&mut ring, received(BURST_MAX + 1)), [format!("send {BURST_MAX}")]);
        assert_eq!(deliver(&mut ring, sent()), ["send 1"]);
    }

    #[test]
    fn closes_when_the_peer_ended_and_all_is_answered() {
        let mut ring = accepted();
        assert_eq!(deliver(&mut ring, Event::Eof(CONN)), ["close"]);
        let mut ring = accepted();
        assert_eq!(deliver(&mut ring, received(1)), ["send 1"]);
        assert!(deliver(&mut ring, Event::Eof(CONN)).is_empty());
        assert_eq!(deliver(&mut ring, sent()), ["close"]);
        let mut ring = accepted();
        assert_eq!(deliver(&mut ring, Event::RecvFailed(CONN, Errno::ECONNRESET)), ["close"]);
    }

    #[test]
    fn the_default_response_announces_its_length() {
        let text = std::str::from_utf8(HELLO).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
    }
}
