//! A core that sends back what it receives.

use std::{
    collections::HashMap,
    io::{Read, Write},
    net::{Shutdown, TcpStream},
};

use ringcat_engine::{
    backend::{Command, Event},
    buffer::{Chunk, Chunks},
    key::ConnKey,
    native::options::{NativeOptions, RecvMode},
};

use crate::harness::{Server, Turn, pattern};

#[derive(Default)]
struct Echo {
    waiting: Vec<u8>,
    is_sending: bool,
    is_ended: bool,
}

impl Echo {
    fn next(&mut self, conn: ConnKey, turn: &mut Turn<'_>) {
        if self.is_sending {
            return;
        }
        if !self.waiting.is_empty() {
            self.is_sending = true;
            let bytes = std::mem::take(&mut self.waiting);
            turn.push(Command::Send(conn, Chunks::One(Chunk::Owned(bytes))));
        } else if self.is_ended {
            turn.push(Command::Close(conn));
        }
    }
}

/// A handler that echoes.
pub(crate) fn echo() -> impl FnMut(&mut Turn<'_>, Event) {
    let mut connections: HashMap<ConnKey, Echo> = HashMap::new();
    move |turn, event| match event {
        Event::Accepted { conn, .. } => {
            assert!(connections.insert(conn, Echo::default()).is_none());
            turn.push(Command::Demand(conn, true));
        }
        Event::Received(conn, lease) => {
            let connection = connections.get_mut(&conn).unwrap();
            connection.waiting.extend_from_slice(&lease);
            connection.next(conn, turn);
        }
        Event::Sent(conn, _) => {
            let connection = connections.get_mut(&conn).unwrap();
            connection.is_sending = false;
            connection.next(conn, turn);
        }
        Event::Eof(conn) => {
            let connection = connections.get_mut(&conn).unwrap();
            connection.is_ended = true;
            connection.next(conn, turn);
        }
        Event::RecvFailed(conn, _) | Event::SendFailed(conn, _) => {
            turn.push(Command::Close(conn));
        }
        Event::Closed(conn) => assert!(connections.remove(&conn).is_some()),
        _ => {}
    }
}

/// Sends `bytes` in pieces from one thread, reads the echo in another, to the end of the stream.
fn exchange(stream: &TcpStream, bytes: &[u8], piece: usize) -> Vec<u8> {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut stream = stream;
            bytes.chunks(piece).for_each(|piece| stream.write_all(piece).unwrap());
            stream.shutdown(Shutdown::Write).unwrap();
        });
        let mut back = Vec::new();
        let mut stream = stream;
        stream.read_to_end(&mut back).unwrap();
        back
    })
}

fn check_echo(options: NativeOptions, connections: usize, len: usize) -> crate::harness::Counts {
    let server = Server::start(options, echo);
    // All are there before the first byte, so that they compete for the buffers.
    let streams: Vec<_> = (0..connections).map(|_| server.connect()).collect();
    std::thread::scope(|scope| {
        for (index, stream) in streams.iter().enumerate() {
            scope.spawn(move || {
                let bytes = pattern(len + index, index as u32);
                let back = exchange(stream, &bytes, 1 + 97 * (index % 31));
                assert!(back == bytes, "connection {index}: {} of {}", back.len(), bytes.len());
            });
        }
    });
    server.stop()
}

fn modes() -> [NativeOptions; 2] {
    [RecvMode::Multi, RecvMode::Single]
        .map(|recv_mode| NativeOptions { recv_mode, ..NativeOptions::default() })
}

#[test]
fn many_connections_with_partial_reads() {
    for options in modes() {
        check_echo(options, 40, 20_000);
    }
}

#[test]
fn two_tiny_buffers_lose_nothing() {
    for options in modes() {
        let options = NativeOptions { recv_bufs: Some(2), recv_buf_bytes: 64, ..options };
        let counts = check_echo(options, 60, 8_000);
        assert!(counts.no_buffers > 0, "two buffers were enough: {counts:?}");
    }
}

#[test]
fn small_queues_lose_nothing() {
    for options in modes() {
        let options = NativeOptions {
            sq_entries: 2,
            cq_entries: 4,
            recv_bufs: Some(64),
            recv_buf_bytes: 128,
            ..options
        };
        let counts = check_echo(options, 60, 8_000);
        assert!(counts.overflows > 0, "four places were enough: {counts:?}");
    }
}

#[test]
fn a_burst_of_one_still_accepts_everybody() {
    let options = NativeOptions { accept_burst: 1, connections_max: 2, ..NativeOptions::default() };
    let server = Server::start(options, echo);
    let streams: Vec<_> = (0..20).map(|_| server.connect()).collect();
    for (index, stream) in streams.into_iter().enumerate() {
        let bytes = pattern(100, index as u32);
        assert_eq!(exchange(&stream, &bytes, 100), bytes);
    }
    server.stop();
}
