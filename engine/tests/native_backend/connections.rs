//! One connection's life: ends, resets, big sends, closes, brakes, watches, stale names.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, TcpStream},
    sync::mpsc::{self, Receiver, Sender},
    time::Duration,
};

use bytes::Bytes;
use ringcat_engine::{
    backend::{Command, Departure, Errno, Event, SendNow},
    buffer::{Chunk, Chunks},
    key::ConnKey,
    native::options::{NativeOptions, RecvMode},
};
use socket2::SockRef;

use crate::harness::{Counts, Server, Turn, next, pattern};

/// An event without what cannot leave the core.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    Accepted(ConnKey),
    Received(ConnKey, Vec<u8>),
    Eof(ConnKey),
    RecvFailed(ConnKey, Errno),
    Sent(ConnKey, usize),
    SendFailed(ConnKey),
    PeerGone(ConnKey, Departure),
    Closed(ConnKey),
    Woken,
}

impl Seen {
    fn of(event: &Event) -> Option<Self> {
        Some(match event {
            Event::Accepted { conn, .. } => Self::Accepted(*conn),
            Event::Received(conn, lease) => Self::Received(*conn, lease.to_vec()),
            Event::Eof(conn) => Self::Eof(*conn),
            Event::RecvFailed(conn, errno) => Self::RecvFailed(*conn, *errno),
            Event::Sent(conn, chunks) => Self::Sent(*conn, chunks.len_bytes()),
            Event::SendFailed(conn, _) => Self::SendFailed(*conn),
            Event::PeerGone(conn, how) => Self::PeerGone(*conn, *how),
            Event::Closed(conn) => Self::Closed(*conn),
            Event::Woken => Self::Woken,
            _ => return None,
        })
    }
}

/// A core that reports what it sees and does what the test's thread commands.
fn reporting(options: NativeOptions) -> (Server, Receiver<Seen>) {
    reacting(options, |_, _, _| {})
}

/// The same with a reaction on the core.
fn reacting(
    options: NativeOptions,
    mut react: impl FnMut(&mut Turn<'_>, &Event, &Sender<Seen>) + Send + 'static,
) -> (Server, Receiver<Seen>) {
    let (sender, receiver) = mpsc::channel();
    let server = Server::start(options, move || {
        move |turn: &mut Turn<'_>, event: Event| {
            react(turn, &event, &sender);
            if let Some(seen) = Seen::of(&event)
                && seen != Seen::Woken
            {
                sender.send(seen).unwrap();
            }
        }
    });
    (server, receiver)
}

fn accepted(events: &Receiver<Seen>) -> ConnKey {
    match next(events) {
        Seen::Accepted(conn) => conn,
        other => panic!("{other:?} before Accepted"),
    }
}

fn modes() -> [NativeOptions; 2] {
    [RecvMode::Multi, RecvMode::Single]
        .map(|recv_mode| NativeOptions { recv_mode, ..NativeOptions::default() })
}

fn one(bytes: &[u8]) -> Chunks {
    Chunks::One(Chunk::Owned(bytes.to_vec()))
}

/// Ends the connection with a reset.
fn reset(stream: TcpStream) {
    SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
}

fn end_of_stream(mut stream: &TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn the_end_of_stream_comes_after_the_data_and_the_answer_still_leaves() {
    for options in modes() {
        let (server, events) = reporting(options);
        let mut stream = server.connect();
        let conn = accepted(&events);
        stream.write_all(b"last words").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        // Data and end are both there before the first receive.
        server.command(Command::Demand(conn, true));
        assert_eq!(next(&events), Seen::Received(conn, b"last words".to_vec()));
        assert_eq!(next(&events), Seen::Eof(conn));
        server.command(Command::Send(conn, one(b"answer")));
        assert_eq!(next(&events), Seen::Sent(conn, 6));
        server.command(Command::Close(conn));
        assert_eq!(next(&events), Seen::Closed(conn));
        assert_eq!(end_of_stream(&stream), b"answer");
        server.stop();
    }
}

#[test]
fn a_reset_fails_the_receive_after_the_data() {
    for options in modes() {
        let (server, events) = reporting(options);
        let stream = server.connect();
        let conn = accepted(&events);
        server.command(Command::Demand(conn, true));
        reset(stream);
        assert_eq!(next(&events), Seen::RecvFailed(conn, Errno(libc::ECONNRESET)));
        server.command(Command::Send(conn, one(b"too late")));
        assert_eq!(next(&events), Seen::SendFailed(conn));
        server.command(Command::Close(conn));
        assert_eq!(next(&events), Seen::Closed(conn));
        server.stop();
    }
}

#[test]
fn a_big_send_to_a_slow_reader_arrives_whole_with_one_sent() {
    let bytes = pattern(8 << 20, 1);
    let parts: Vec<Chunk> = bytes
        .chunks(bytes.len() / 13)
        .map(|part| Chunk::Shared(Bytes::copy_from_slice(part)))
        .collect();
    assert!(parts.len() > 2 && parts.len() <= Chunks::COUNT_MAX);
    for chunks in [one(&bytes), Chunks::Many(parts)] {
        let (server, events) = reporting(NativeOptions::default());
        let stream = server.connect();
        SockRef::from(&stream).set_recv_buffer_size(16 * 1024).unwrap();
        let conn = accepted(&events);
        server.command(Command::Send(conn, chunks));
        let mut back = vec![0; bytes.len()];
        for piece in back.chunks_mut(10_007) {
            (&stream).read_exact(piece).unwrap();
        }
        assert!(back == bytes, "the bytes differ");
        assert_eq!(next(&events), Seen::Sent(conn, bytes.len()));
        server.command(Command::Close(conn));
        assert_eq!(next(&events), Seen::Closed(conn));
        assert_eq!(end_of_stream(&stream), b"");
        server.stop();
    }
}

#[test]
fn an_end_of_the_write_side_waits_for_the_send_under_way() {
    let bytes = pattern(4 << 20, 2);
    let (server, events) = reporting(NativeOptions::default());
    let mut stream = server.connect();
    let conn = accepted(&events);
    server.command(Command::Demand(conn, true));
    server.command(Command::Send(conn, one(&bytes)));
    server.command(Command::ShutdownWrite(conn));
    assert!(end_of_stream(&stream) == bytes);
    assert_eq!(next(&events), Seen::Sent(conn, bytes.len()));
    // The other direction goes on.
    stream.write_all(b"still here").unwrap();
    assert_eq!(next(&events), Seen::Received(conn, b"still here".to_vec()));
    drop(stream);
    assert_eq!(next(&events), Seen::Eof(conn));
    server.stop();
}

#[test]
fn a_close_with_an_armed_receive_sends_a_fin_and_closed_is_last() {
    for options in modes() {
        let (server, events) = reporting(options);
        let stream = server.connect();
        let conn = accepted(&events);
        server.command(Command::Demand(conn, true));
        server.command(Command::Watch(conn));
        server.command(Command::Close(conn));
        assert_eq!(end_of_stream(&stream), b"");
        assert_eq!(next(&events), Seen::Closed(conn));
        server.command(Command::Close(conn));
        drop(stream);
        server.stop();
        assert_eq!(events.iter().next(), None, "an event after Closed");
    }
}

#[test]
fn a_close_cuts_off_a_send_that_nobody_reads_and_nothing_but_closed_follows() {
    let (server, events) = reporting(NativeOptions::default());
    let stream = server.connect();
    let conn = accepted(&events);
    let bytes = pattern(32 << 20, 3);
    server.command(Command::Send(conn, one(&bytes)));
    // Some of it is under way.
    (&stream).read_exact(&mut [0; 1]).unwrap();
    server.command(Command::Close(conn));
    assert_eq!(next(&events), Seen::Closed(conn));
    server.stop();
}

#[test]
fn no_event_follows_a_close_within_one_batch() {
    let (server, events) = reacting(NativeOptions::default(), |turn, event, _| match event {
        Event::Accepted { conn, .. } => turn.push(Command::Demand(*conn, true)),
        Event::Received(conn, _) => turn.push(Command::Close(*conn)),
        _ => {}
    });
    for _ in 0..200 {
        let mut stream = server.connect();
        let conn = accepted(&events);
        // More than one buffer: several completions of one batch.
        let _ = stream.write_all(&[7; 100_000]);
        let _ = stream.shutdown(Shutdown::Write);
        assert!(matches!(next(&events), Seen::Received(c, _) if c == conn));
        assert_eq!(next(&events), Seen::Closed(conn));
    }
    server.stop();
}

#[test]
fn a_braked_stream_loses_and_reorders_nothing() {
    for options in modes() {
        // Few buffers, so that one turn brings no more than 128 KiB and the brake bites often.
        let options = NativeOptions { recv_bufs: Some(32), recv_buf_bytes: 4096, ..options };
        let (counts, brakes) = check_brake(options.clone());
        assert!(brakes >= 100, "{brakes} brakes");
        if options.recv_mode == RecvMode::Multi {
            assert!(counts.cancels >= 20, "{counts:?}");
        }
    }
}

/// Brakes after each 64 KiB of a full-speed stream, goes on three turns later.
fn check_brake(options: NativeOptions) -> (Counts, usize) {
    const LEN: usize = 16 << 20;
    let (done, received) = mpsc::channel();
    let server = Server::start(options, move || {
        let (mut bytes, mut since_brake, mut brakes) = (Vec::new(), 0, 0);
        let mut braked: Option<(ConnKey, u32)> = None;
        move |turn: &mut Turn<'_>, event: Event| match event {
            Event::Accepted { conn, .. } => turn.push(Command::Demand(conn, true)),
            Event::Received(conn, lease) => {
                bytes.extend_from_slice(&lease);
                since_brake += lease.len();
                if since_brake >= 64 * 1024 && braked.is_none() {
                    (since_brake, braked, brakes) = (0, Some((conn, 3)), brakes + 1);
                    turn.push(Command::Demand(conn, false));
                }
            }
            Event::Timeout => {
                *turn.is_busy = braked.is_some();
                match &mut braked {
                    Some((conn, 0)) => {
                        turn.push(Command::Demand(*conn, true));
                        braked = None;
                    }
                    Some((_, turns)) => *turns -= 1,
                    None => {}
                }
            }
            Event::Eof(_) => done.send((std::mem::take(&mut bytes), brakes)).unwrap(),
            _ => {}
        }
    });
    let mut stream = server.connect();
    let sent = pattern(LEN, 4);
    stream.write_all(&sent).unwrap();
    drop(stream);
    let (bytes, brakes) = next(&received);
    assert!(bytes == sent, "{} of {LEN} bytes, or in another order", bytes.len());
    (server.stop(), brakes)
}

#[test]
fn a_watch_sees_fin_and_reset() {
    let (server, events) = reporting(NativeOptions::default());
    let stream = server.connect();
    let conn = accepted(&events);
    server.command(Command::Watch(conn));
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(next(&events), Seen::PeerGone(conn, Departure::EndOfStream));
    // Watched again, only the reset is news: other clients come in without another word of it.
    server.command(Command::Watch(conn));
    for _ in 0..3 {
        let _client = server.connect();
        accepted(&events);
    }
    reset(stream);
    assert_eq!(next(&events), Seen::PeerGone(conn, Departure::Reset));
    server.command(Command::Close(conn));
    assert_eq!(next(&events), Seen::Closed(conn));

    let stream = server.connect();
    let conn = accepted(&events);
    server.command(Command::Watch(conn));
    reset(stream);
    assert_eq!(next(&events), Seen::PeerGone(conn, Departure::Reset));
    server.stop();
}

#[test]
fn a_close_ends_every_kind_of_watch() {
    let (server, events) = reporting(NativeOptions::default());
    let stream = server.connect();
    let conn = accepted(&events);
    server.command(Command::Demand(conn, true));
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(next(&events), Seen::Eof(conn));
    // The end is known, so this one goes on over hang-ups.
    server.command(Command::Watch(conn));
    server.command(Command::ShutdownWrite(conn));
    assert_eq!(end_of_stream(&stream), b"");
    server.command(Command::Close(conn));
    assert_eq!(next(&events), Seen::Closed(conn));
    server.stop();
}

#[test]
fn demand_ends_a_watch() {
    for options in modes() {
        let (server, events) = reporting(options);
        let mut stream = server.connect();
        let conn = accepted(&events);
        // Wanted again while its cancellation is under way, and given up again.
        for _ in 0..3 {
            server.command(Command::Watch(conn));
            server.command(Command::Demand(conn, true));
        }
        stream.write_all(b"x").unwrap();
        assert_eq!(next(&events), Seen::Received(conn, b"x".to_vec()));
        drop(stream);
        assert_eq!(next(&events), Seen::Eof(conn));
        server.command(Command::Close(conn));
        assert_eq!(next(&events), Seen::Closed(conn));
        server.stop();
    }
}

#[test]
fn commands_for_a_dead_name_reach_nobody() {
    let (server, events) = reporting(NativeOptions::default());
    let first = server.connect();
    let dead = accepted(&events);
    server.command(Command::Close(dead));
    assert_eq!(next(&events), Seen::Closed(dead));
    drop(first);
    let mut second = server.connect();
    let conn = accepted(&events);
    assert_eq!(conn.slot, dead.slot, "the slot is used again, or this test shows nothing");
    assert_ne!(conn.stamp, dead.stamp);
    server.command(Command::Demand(dead, true));
    server.command(Command::Send(dead, one(b"for the dead")));
    server.command(Command::Watch(dead));
    server.command(Command::ShutdownWrite(dead));
    server.command(Command::Handoff(dead));
    server.command(Command::Close(dead));
    server.command(Command::Demand(conn, true));
    second.write_all(b"hello").unwrap();
    assert_eq!(next(&events), Seen::Received(conn, b"hello".to_vec()));
    server.command(Command::Send(conn, one(b"for the living")));
    assert_eq!(next(&events), Seen::Sent(conn, 14));
    server.command(Command::Close(conn));
    assert_eq!(end_of_stream(&second), b"for the living");
    server.stop();
}

#[test]
fn calls_that_cannot_wait() {
    let (answers, received) = mpsc::channel();
    let (server, events) = reacting(NativeOptions::default(), move |turn, event, _| {
        let io = turn.io;
        match event {
            Event::Accepted { conn, .. } => turn.push(Command::Watch(*conn)),
            // The end of the stream: what the client sent before lies in the kernel.
            Event::PeerGone(conn, _) => {
                let before = io.unread(*conn);
                let filled = std::iter::from_fn(|| match io.send_now(*conn, &[1; 65_536]) {
                    SendNow::Sent(count) => Some(count),
                    SendNow::WouldBlock => None,
                    SendNow::Failed(errno) => panic!("{errno:?}"),
                });
                let sent: usize = filled.sum();
                let dead = ConnKey { stamp: conn.stamp + 1, ..*conn };
                assert_eq!(io.send_now(dead, b"x"), SendNow::Failed(Errno(libc::EBADF)));
                assert!(!io.unread(dead));
                assert!(io.now() >= turn.now);
                answers.send((before, sent, io.local_address(*conn))).unwrap();
                turn.push(Command::Demand(*conn, true));
            }
            Event::Eof(conn) => {
                assert!(!io.unread(*conn));
                turn.push(Command::Close(*conn));
            }
            _ => {}
        }
    });
    let mut stream = server.connect();
    stream.write_all(b"unread").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let (unread, sent, local) = next(&received);
    assert!(unread);
    assert_eq!(local, Some(server.address));
    assert_eq!(end_of_stream(&stream).len(), sent);
    let conn = accepted(&events);
    assert_eq!(next(&events), Seen::PeerGone(conn, Departure::EndOfStream));
    assert_eq!(next(&events), Seen::Received(conn, b"unread".to_vec()));
    server.stop();
}

#[test]
fn stop_closes_what_is_open() {
    for options in modes() {
        let (server, events) = reporting(options);
        let stream = server.connect();
        let conn = accepted(&events);
        server.command(Command::Demand(conn, true));
        server.command(Command::Send(conn, one(&pattern(1 << 20, 5))));
        let address = server.address;
        server.stop();
        let mut bytes = Vec::new();
        let ended = (&stream).read_to_end(&mut bytes);
        assert!(!matches!(ended, Err(e) if e.kind() == io::ErrorKind::WouldBlock), "still open");
        let refused = TcpStream::connect(address).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }
}
