//! Responses written by foreign threads: everything arrives in order and intact, and a slow client
//! holds its writer and nobody else.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use ringcat::{AsyncContext, Context, ErrorKind};

use crate::{
    simulated::{Client, TestServer, await_rest, builder, simulated, spawn},
    support::{channel, handing_over, take},
};

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
    let response = context.response().unwrap();
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
    let contents = [0, 1].map(|round| Arc::new(noise(round, 10 * 1024 * 1024)));
    simulated(move || {
        let (servlet, contexts) = handing_over();
        let server = TestServer::start(Context::new("").servlet("/", servlet));
        let mut client = server.client();
        for content in &contents {
            client.ask("GET /");
            let context = take(&contexts);
            let source = Arc::clone(content);
            let writer = spawn(move || write_all(&context, &source, &AtomicUsize::new(0)));
            let answer = client.answer();
            assert!(answer.is_whole);
            assert_eq!(answer.body.len(), content.len());
            assert!(answer.body == **content);
            writer.join();
        }
    });
}

#[test]
fn a_slow_client_holds_its_writer_and_nobody_else() {
    let content = Arc::new(noise(3, 16 * 1024 * 1024));
    simulated(move || {
        let (servlet, contexts) = handing_over();
        let context =
            Context::new("").servlet("/", servlet).get("/fine", |_, res| res.write("fine"));
        let server = TestServer::start(context);
        let mut client = server.client();
        client.ask("GET /");
        let context = take(&contexts);
        // While the servlet runs, a write does not wait: past the backlog it would be refused.
        server.await_parked(1);
        let written = Arc::new(AtomicUsize::new(0));
        let (source, counted) = (Arc::clone(&content), Arc::clone(&written));
        let writer = spawn(move || write_all(&context, &source, &counted));
        let seen = await_rest(|| written.load(Ordering::Relaxed));
        // The window of the connection, the credit, and the piece that waits.
        assert!(seen < 512 * 1024, "{seen} bytes were taken for a client that reads nothing");
        assert!(!writer.is_finished());
        server.get("/fine").expect(200, "fine");
        let answer = client.answer();
        assert!(answer.is_whole && answer.body == *content);
        writer.join();
    });
}

#[test]
fn a_try_is_refused_where_a_write_would_wait() {
    simulated(|| {
        let (servlet, contexts) = handing_over();
        let server = TestServer::start(Context::new("").servlet("/", servlet));
        let mut client = server.client();
        client.ask("GET /");
        let context = take(&contexts);
        server.await_parked(1);
        let response = context.response().unwrap();
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
    });
}

#[test]
fn a_writer_that_waits_hears_when_its_client_leaves() {
    simulated(|| {
        let (servlet, contexts) = handing_over();
        let server = TestServer::start(Context::new("").servlet("/", servlet));
        let mut client = server.client();
        client.ask("GET /");
        let context = take(&contexts);
        server.await_parked(1);
        let (begun, has_begun) = channel();
        let writer = spawn(move || {
            loop {
                if let Err(error) =
                    context.response().and_then(|response| response.write(vec![b'x'; 64 * 1024]))
                {
                    return error.kind();
                }
                // Nobody listens any more after the first.
                begun.send(());
            }
        });
        take(&has_begun);
        client.reset();
        let kind = writer.join();
        assert!(matches!(kind, ErrorKind::Io | ErrorKind::IllegalState), "{kind:?}");
    });
}

#[test]
fn many_writers_on_two_cores_do_not_mix() {
    simulated(|| {
        let (servlet, contexts) = handing_over();
        let server = TestServer::of(builder(Context::new("").servlet("/*", servlet)).cores(2));
        let clients: Vec<_> = (0..16_u64)
            .map(|number| {
                spawn(move || {
                    let answer = Client::connect().get(&format!("/{number}"));
                    assert!(answer.is_whole);
                    assert!(answer.body == noise(number, 300_000));
                })
            })
            .collect();
        let writers: Vec<_> = (0..16)
            .map(|_| {
                let context = take(&contexts);
                spawn(move || {
                    let target = context.request().unwrap().target().into_owned();
                    let number = target[1..].parse().unwrap();
                    write_all(&context, &noise(number, 300_000), &AtomicUsize::new(0));
                })
            })
            .collect();
        for thread in writers.into_iter().chain(clients) {
            thread.join();
        }
        assert_eq!(server.stop().statuses[1], 16);
    });
}
