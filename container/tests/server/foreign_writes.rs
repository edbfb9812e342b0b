//! Responses written by foreign threads: everything arrives in order and intact, and a slow client
//! holds its writer and nobody else.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use ringcat::{AsyncContext, Context, ErrorKind};
use sha2::{Digest, Sha256};

use crate::support::{Client, TestServer, builder, handing_over, take};

/// Bytes that repeat nowhere near, from a generator with a known state.
fn noise(mut state: u64, bytes: usize) -> Vec<u8> {
    (0..bytes)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state.to_be_bytes()[0]
        })
        .collect()
}

/// Writes in pieces of uneven size, then completes.
fn write_all(context: &AsyncContext, content: &[u8], written: &AtomicUsize) {
    let response = context.response();
    let (mut rest, mut size) = (content, 1);
    while !rest.is_empty() {
        let (piece, tail) = rest.split_at(size.min(rest.len()));
        response.write(piece).unwrap();
        written.fetch_add(piece.len(), Ordering::Relaxed);
        rest = tail;
        size = size * 7 % 100_003 + 1;
    }
    context.complete().unwrap();
}

#[test]
fn ten_megabytes_arrive_intact() {
    let (servlet, contexts) = handing_over();
    let server = TestServer::start(Context::new("").servlet("/", servlet));
    let mut client = server.client();
    for round in 0..2 {
        client.ask("GET /");
        let context = take(&contexts);
        let content = Arc::new(noise(round, 10 * 1024 * 1024));
        let source = Arc::clone(&content);
        let writer = thread::spawn(move || write_all(&context, &source, &AtomicUsize::new(0)));
        let answer = client.answer();
        assert!(answer.is_whole);
        assert_eq!(answer.body.len(), content.len());
        assert_eq!(Sha256::digest(&answer.body), Sha256::digest(&*content));
        writer.join().unwrap();
    }
}

#[test]
fn a_slow_client_holds_its_writer_and_nobody_else() {
    let (servlet, contexts) = handing_over();
    let context = Context::new("").servlet("/", servlet).get("/fine", |_, res| res.write("fine"));
    let server = TestServer::start(context);
    let mut client = Client::connect_narrow(server.address());
    client.ask("GET /");
    let context = take(&contexts);
    // While the servlet runs, a write does not wait: past the backlog it would be refused.
    server.await_parked(1);
    let content = Arc::new(noise(3, 48 * 1024 * 1024));
    let written = Arc::new(AtomicUsize::new(0));
    let (source, counted) = (Arc::clone(&content), Arc::clone(&written));
    let writer = thread::spawn(move || write_all(&context, &source, &counted));
    let (mut seen, mut since) = (0, Instant::now());
    while seen == 0 || since.elapsed() < Duration::from_millis(300) {
        let now = written.load(Ordering::Relaxed);
        if now != seen {
            (seen, since) = (now, Instant::now());
        }
        thread::yield_now();
    }
    assert!(seen < content.len() / 2, "{seen} bytes were taken for a client that reads nothing");
    assert!(!writer.is_finished());
    server.get("/fine").expect(200, "fine");
    let answer = client.answer();
    assert_eq!(Sha256::digest(&answer.body), Sha256::digest(&*content));
    writer.join().unwrap();
}

#[test]
fn a_try_is_refused_where_a_write_would_wait() {
    let (servlet, contexts) = handing_over();
    let server = TestServer::start(Context::new("").servlet("/", servlet));
    let mut client = Client::connect_narrow(server.address());
    client.ask("GET /");
    let context = take(&contexts);
    server.await_parked(1);
    let response = context.response();
    let mut count = 0;
    let refused = loop {
        match response.try_write(vec![b'x'; 256 * 1024]) {
            Ok(()) => count += 1,
            Err(error) => break error,
        }
        assert!(count < 1000, "a client that reads nothing was sent everything");
    };
    assert_eq!(refused.kind(), ErrorKind::WouldBlock);
    context.complete().unwrap();
    let answer = client.answer();
    assert!(answer.is_whole);
    assert_eq!(answer.body.len(), count * 256 * 1024);
}

#[test]
fn a_writer_that_waits_hears_when_its_client_leaves() {
    let (servlet, contexts) = handing_over();
    let server = TestServer::start(Context::new("").servlet("/", servlet));
    let mut client = Client::connect_narrow(server.address());
    client.ask("GET /");
    let context = take(&contexts);
    server.await_parked(1);
    let (begun, has_begun) = std::sync::mpsc::channel();
    let writer = thread::spawn(move || {
        loop {
            if let Err(error) = context.response().write(vec![b'x'; 64 * 1024]) {
                return error.kind();
            }
            // Nobody listens any more after the first.
            begun.send(()).ok();
        }
    });
    take(&has_begun);
    client.reset();
    let kind = writer.join().unwrap();
    assert!(matches!(kind, ErrorKind::Io | ErrorKind::IllegalState), "{kind:?}");
}

#[test]
fn many_writers_on_two_cores_do_not_mix() {
    let (servlet, contexts) = handing_over();
    let server = TestServer::of(builder(Context::new("").servlet("/*", servlet)).cores(2));
    let address = server.address();
    let clients: Vec<_> = (0..16_u64)
        .map(|number| {
            thread::spawn(move || {
                let answer = Client::connect(address).get(&format!("/{number}"));
                assert!(answer.is_whole);
                assert_eq!(Sha256::digest(&answer.body), Sha256::digest(noise(number, 300_000)));
            })
        })
        .collect();
    let writers: Vec<_> = (0..16)
        .map(|_| {
            let context = take(&contexts);
            thread::spawn(move || {
                let target = context.request().unwrap().target().into_owned();
                let number = target[1..].parse().unwrap();
                write_all(&context, &noise(number, 300_000), &AtomicUsize::new(0));
            })
        })
        .collect();
    for thread in writers.into_iter().chain(clients) {
        thread.join().unwrap();
    }
    assert_eq!(server.stop().statuses[1], 16);
}
