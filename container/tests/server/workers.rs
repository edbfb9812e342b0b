//! Blocking servlets: where they run, how many at once, how they wait for content and for clients
//! that do not read, and what happens when the pool is full.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use ringcat::{Context, ErrorKind};
use ringcat_engine::sim::fault::Fault;

use crate::{
    simulated::{Barrier, TestServer, await_rest, simulated, simulated_without},
    support::{Journal, blocking, channel, take, wait_until},
};

#[test]
fn three_at_once_share_one_core() {
    simulated(|| {
        let barrier = Arc::new(Barrier::new(3));
        let context = Context::new("")
            .servlet(
                "/meet",
                blocking(move |_req, res| {
                    barrier.wait();
                    res.write("met")
                }),
            )
            .get("/fine", |_req, res| res.write("fine"));
        let server = TestServer::start(context);
        let mut first = server.client();
        let mut second = server.client();
        first.ask("GET /meet");
        second.ask("GET /meet");
        // Two wait for the third, and the core does not.
        server.get("/fine").expect(200, "fine");
        server.get("/meet").expect(200, "met");
        first.answer().expect(200, "met");
        second.answer().expect(200, "met");
    });
}

#[test]
fn a_read_waits_for_the_client() {
    // What the servlet notes is a piece of the client's, whole.
    simulated_without(Fault::ShortReceive, || {
        let journal = Journal::default();
        let seen = journal.clone();
        let context = Context::new("").servlet(
            "/",
            blocking(move |req, res| {
                let mut piece = [0; 64];
                loop {
                    let count = req.read(&mut piece)?;
                    if count == 0 {
                        break;
                    }
                    let text = String::from_utf8_lossy(&piece[..count]).into_owned();
                    seen.note(format!("read {text}"));
                    res.write(text)?;
                }
                assert!(req.is_finished());
                Ok(())
            }),
        );
        let server = TestServer::start(context);
        let mut client = server.client();
        client.ask_with("POST /", &["Content-Length: 9"], "");
        for piece in ["one", "two", "six"] {
            client.send(piece);
            journal.wait_for(&format!("read {piece}"));
        }
        client.answer().expect(200, "onetwosix");
        client.send("POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
        client.send("4\r\nfour\r\n");
        journal.wait_for("read four");
        client.send("0\r\n\r\n").answer().expect(200, "four");
        let long = "0123456789".repeat(100_000);
        client.ask_with("POST /", &[], &long).answer().expect(200, &long);
    });
}

#[test]
fn the_end_of_the_content_brings_the_trailers() {
    simulated(|| {
        let context = Context::new("").servlet(
            "/",
            blocking(|req, res| {
                assert!(req.trailers().count() == 0, "they come after the content");
                let content = req.read_to_end()?;
                res.write(format!("{} {:?}", content.len(), req.trailer("X-Sum")))
            }),
        );
        let server = TestServer::start(context);
        let mut client = server.client();
        client.send(
            "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n\
             1\r\na\r\n0\r\nX-Sum: 7\r\n\r\n",
        );
        client.answer().expect(200, "1 Some(\"7\")");
        client.ask_with("POST /", &[], "ab").answer().expect(200, "2 None");
    });
}

#[test]
fn broken_content_is_the_client_s_error() {
    simulated(|| {
        let context = Context::new("").servlet(
            "/",
            blocking(|req, _res| {
                let error = req.read_to_end().unwrap_err();
                assert_eq!(error.kind(), ErrorKind::ProtocolViolation);
                Err(error)
            }),
        );
        let server = TestServer::start(context);
        let mut client = server.client();
        client.send("POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
        client.send("1\r\na\r\nno size\r\n").answer().expect_report(400);
        client.expect_close();
    });
}

#[test]
fn content_that_a_worker_leaves_is_swallowed() {
    simulated(|| {
        let context = Context::new("").servlet(
            "/",
            blocking(|req, res| {
                let mut piece = [0; 2];
                let count = req.read(&mut piece)?;
                res.write(&piece[..count])
            }),
        );
        let server = TestServer::start(context);
        let mut client = server.client();
        for _ in 0..10 {
            let head = ["Content-Length: 8"];
            let mut answer = client.ask_with("POST /", &head, "").send("ab").answer().text();
            answer.truncate(1);
            assert_eq!(answer, "a");
            client.send("cdefgh");
        }
        client.ask_with("POST /", &[], &"y".repeat(300_000)).answer().expect(200, "yy");
        client.get("/").expect(200, "");
    });
}

#[test]
fn a_read_fails_when_the_client_leaves() {
    // What the servlet notes is a piece of the client's, whole.
    simulated_without(Fault::ShortReceive, || {
        for resets in [true, false] {
            let (sender, kinds) = channel();
            let journal = Journal::default();
            let seen = journal.clone();
            let context = Context::new("").servlet(
                "/",
                blocking(move |req, _res| {
                    let mut piece = [0; 4];
                    req.read(&mut piece)?;
                    seen.note("read");
                    let error = req.read(&mut piece).unwrap_err();
                    sender.send(error.kind());
                    Err(error)
                }),
            );
            let server = TestServer::start(context);
            let mut client = server.client();
            client.ask_with("POST /", &["Content-Length: 10"], "").send("half");
            journal.wait_for("read");
            if resets {
                client.reset();
            } else {
                client.shutdown_write();
            }
            assert_eq!(take(&kinds), ErrorKind::Io, "resets: {resets}");
            assert_eq!(server.stop().statuses[1], 0);
        }
    });
}

#[test]
fn a_write_fails_when_the_client_leaves() {
    simulated(|| {
        let (sender, kinds) = channel();
        let context = Context::new("").servlet(
            "/",
            blocking(move |_req, res| {
                let error = loop {
                    if let Err(error) = res.write(vec![b'x'; 16 * 1024]).and_then(|()| res.flush())
                    {
                        break error;
                    }
                };
                sender.send(error.kind());
                Err(error)
            }),
        );
        let server = TestServer::start(context);
        let mut client = server.client();
        client.ask("GET /");
        client.receive_until("xxxx");
        client.reset();
        assert_eq!(take(&kinds), ErrorKind::Io);
        let report = server.stop();
        assert_eq!((report.aborted, report.connections_closed), (1, 1));
    });
}

#[test]
fn a_flush_reaches_the_client_while_the_servlet_works_on() {
    simulated(|| {
        let (go_on, wait) = channel::<()>();
        let context = Context::new("").servlet(
            "/",
            blocking(move |_req, res| {
                res.write("first")?;
                res.flush()?;
                take(&wait);
                res.write("second")
            }),
        );
        let server = TestServer::start(context);
        let mut client = server.client();
        client.ask("GET /");
        client.receive_until("first");
        go_on.send(());
        client.receive_until("second");
        client.receive_until("\r\n0\r\n\r\n");
    });
}

#[test]
fn a_write_waits_for_a_client_that_does_not_read() {
    simulated(|| {
        const PIECE: usize = 64 * 1024;
        const COUNT: usize = 256;
        let written = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&written);
        let context = Context::new("").servlet(
            "/",
            blocking(move |_req, res| {
                for number in 0..COUNT {
                    res.write(vec![u8::try_from(number % 251).unwrap(); PIECE])?;
                    counted.fetch_add(PIECE, Ordering::Relaxed);
                }
                Ok(())
            }),
        );
        let server = TestServer::start(context);
        let mut client = server.client();
        client.ask("GET /");
        wait_until("the writer has begun", || written.load(Ordering::Relaxed) > 0);
        let seen = await_rest(|| written.load(Ordering::Relaxed));
        // The window of the connection, the credit, and the piece that waits.
        assert!(seen < 512 * 1024, "{seen} bytes were taken for a client that reads nothing");
        let answer = client.answer();
        assert_eq!((answer.is_whole, answer.body.len()), (true, PIECE * COUNT));
        let is_intact = answer
            .body
            .chunks(PIECE)
            .enumerate()
            .all(|(number, piece)| piece.iter().all(|byte| usize::from(*byte) == number % 251));
        assert!(is_intact, "pieces came in another order");
    });
}
