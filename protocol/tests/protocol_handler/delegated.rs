//! Blocking servlets on a worker thread: the body goes there, its operations come back in order,
//! and the core finishes when the worker gives the exchange back.

use std::time::Duration;

use ringcat_engine::core_context::CoreTimeouts;
use ringcat_protocol::{
    async_cell::Look,
    async_state_machine::{AsyncState, Event},
    http11::options::Http11Options,
};

use crate::{Site, adapter::Job, answer, elsewhere, get};

const LONG: Option<Duration> = Some(Duration::from_secs(60));

fn post(length: usize) -> String {
    format!("POST /delegate HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n")
}

/// Reads until the end, in small pieces.
fn read_all(job: &Job) -> std::io::Result<Vec<u8>> {
    let (mut body, mut buffer) = (Vec::new(), [0; 700]);
    loop {
        match job.handle.0.read_blocking(&mut buffer, LONG)? {
            0 => return Ok(body),
            count => body.extend_from_slice(&buffer[..count]),
        }
    }
}

#[test]
fn a_worker_answers_and_gives_the_exchange_back() {
    let mut site = Site::new();
    let conn = site.get("/delegate");
    let job = site.stage.job();
    elsewhere(|| {
        assert_eq!(read_all(&job).unwrap(), b"");
        for word in ["one ", "two ", "three"] {
            job.handle.write(word).unwrap();
        }
        job.finish();
    });
    assert_eq!(site.driver.text(conn), "");
    site.driver.settle();
    assert_eq!(site.driver.text(conn), answer("one two three"));
    assert_eq!(site.stage.count("resume"), 1);
    site.driver.receive(conn, get("/hello"));
    assert!(site.driver.text(conn).ends_with(&answer("hello")));
    site.finish(&[conn]);
}

#[test]
fn a_flush_goes_out_while_the_worker_works_on() {
    let mut site = Site::new();
    let conn = site.get("/delegate");
    let job = site.stage.job();
    elsewhere(|| {
        job.handle.write("early").unwrap();
        job.handle.flush().unwrap();
    });
    site.driver.settle();
    assert!(site.driver.text(conn).ends_with("5\r\nearly\r\n"), "{}", site.driver.text(conn));
    elsewhere(|| {
        job.handle.write("late").unwrap();
        job.finish();
    });
    site.driver.settle();
    assert!(site.driver.text(conn).ends_with("5\r\nearly\r\n4\r\nlate\r\n0\r\n\r\n"));
    site.finish(&[conn]);
}

#[test]
fn body_bytes_reach_the_worker_in_order_and_bounded() {
    let mut site = Site::new();
    let conn = site.driver.connect();
    let body: Vec<u8> = (0..200_000_u32).flat_map(u32::to_le_bytes).collect();
    site.driver.receive(conn, post(body.len()));
    let job = site.stage.job();
    site.driver.receive(conn, &body[..100_000]);
    assert!(job.handle.0.inbound_len() <= 64 * 1024, "the worker's queue is bounded");
    assert!(!site.driver.conn(conn).is_demanded || !site.driver.conn(conn).is_watched);
    let mut received = 100_000;
    let (mut read, mut buffer) = (Vec::new(), vec![0; 10_000]);
    while read.len() < body.len() {
        match job.handle.0.try_read(&mut buffer) {
            Ok(count) => read.extend_from_slice(&buffer[..count]),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
        }
        site.driver.settle();
        if site.driver.conn(conn).is_demanded && received < body.len() {
            let end = body.len().min(received + 30_000);
            site.driver.receive(conn, &body[received..end]);
            received = end;
        }
    }
    assert!(read == body, "the same bytes");
    assert_eq!(job.handle.0.try_read(&mut buffer).unwrap(), 0, "the end");
    job.finish();
    site.driver.settle();
    assert_eq!(site.driver.text(conn), answer(""));
    site.finish(&[conn]);
}

#[test]
fn a_waiting_worker_is_woken_by_the_body() {
    let mut site = Site::new();
    let conn = site.driver.connect();
    let chunked = "POST /delegate HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    site.driver.receive(conn, chunked);
    let job = site.stage.job();
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let body = read_all(&job).unwrap();
            job.handle.write(body).unwrap();
            job.finish();
        });
        for piece in ["3\r\nab", "c\r\n", "2\r\nde\r\n0\r\n", "\r\n"] {
            site.driver.receive(conn, piece);
        }
        worker.join().unwrap();
    });
    site.driver.settle();
    assert_eq!(site.driver.text(conn), answer("abcde"));
    site.finish(&[conn]);
}

#[test]
fn what_the_worker_did_not_read_is_swallowed() {
    let mut site = Site::new();
    let conn = site.driver.connect();
    site.driver.receive(conn, post(6) + "ab");
    site.stage.job().finish();
    site.driver.settle();
    assert_eq!(site.driver.text(conn), answer(""));
    site.driver.receive(conn, format!("cdef{}", get("/hello")));
    assert_eq!(site.driver.text(conn), format!("{}{}", answer(""), answer("hello")));
    site.finish(&[conn]);
}

#[test]
fn pipelined_requests_wait_for_the_worker() {
    let mut site = Site::new();
    let conn = site.driver.connect();
    site.driver.receive(conn, get("/delegate") + &get("/delegate") + &get("/hello"));
    for content in ["first", "second"] {
        assert_eq!(site.stage.jobs.lock().unwrap().len(), 1, "one at a time");
        let job = site.stage.job();
        job.handle.write(content).unwrap();
        job.finish();
        site.driver.settle();
    }
    let expected = [answer("first"), answer("second"), answer("hello")].concat();
    assert_eq!(site.driver.text(conn), expected);
    site.finish(&[conn]);
}

#[test]
fn a_worker_learns_that_the_body_was_cut_or_is_late() {
    for is_late in [false, true] {
        let mut site = Site::new();
        let conn = site.driver.connect();
        site.driver.receive(conn, post(6) + "ab");
        let job = site.stage.job();
        if is_late {
            site.driver.advance(CoreTimeouts::default().body + Duration::from_millis(4));
        } else {
            site.driver.end(conn);
        }
        let error = read_all(&job).unwrap_err();
        let expected = if is_late { libc_etimedout() } else { libc_econnreset() };
        assert_eq!(error.raw_os_error(), Some(expected));
        job.handle.write("sorry").unwrap();
        job.finish();
        site.driver.settle();
        assert!(site.driver.text(conn).ends_with("sorry"), "{}", site.driver.text(conn));
        assert!(site.driver.conn(conn).is_closed);
        site.finish(&[conn]);
    }
}

fn libc_etimedout() -> i32 {
    ringcat_engine::backend::Errno::ETIMEDOUT.0
}

fn libc_econnreset() -> i32 {
    ringcat_engine::backend::Errno::ECONNRESET.0
}

#[test]
fn a_reset_waits_for_the_worker_to_let_go() {
    let mut site = Site::new();
    let conn = site.driver.connect();
    site.driver.receive(conn, post(6) + "ab");
    let job = site.stage.job();
    site.driver.reset(conn);
    assert!(!site.driver.conn(conn).is_closed, "the worker has the exchange");
    assert!(read_all(&job).is_err());
    assert!(job.handle.write("nobody reads this").is_err());
    job.finish();
    site.driver.settle();
    assert!(site.driver.conn(conn).is_closed);
    assert_eq!(site.driver.text(conn), "");
    assert_eq!(site.counters.aborts.get(), 1);
    site.finish(&[conn]);
}

#[test]
fn a_worker_may_leave_an_asynchronous_exchange_behind() {
    let mut site = Site::new();
    let conn = site.get("/delegate");
    let job = site.stage.job();
    let handle = job.handle.clone();
    elsewhere(|| {
        handle.0.call(Some(Event::AsyncStart), None, Look::Never).unwrap();
        handle.write("begun ").unwrap();
        job.finish();
    });
    site.driver.settle();
    assert_eq!(handle.0.word().state(), AsyncState::Started);
    elsewhere(|| {
        handle.write("ended").unwrap();
        handle.complete().unwrap();
    });
    site.driver.settle();
    assert_eq!(site.driver.text(conn), answer("begun ended"));
    assert_eq!(site.stage.count("on_complete"), 1);
    site.finish(&[conn]);
}

#[test]
fn an_asynchronous_exchange_of_a_worker_may_end_before_it_comes_back() {
    let mut site = Site::new();
    let conn = site.get("/delegate");
    let job = site.stage.job();
    let handle = job.handle.clone();
    elsewhere(|| {
        handle.0.call(Some(Event::AsyncStart), None, Look::Never).unwrap();
        handle.write("all").unwrap();
        handle.complete().unwrap();
    });
    site.driver.settle();
    assert_eq!(site.stage.count("on_complete"), 0, "the worker still has the exchange");
    job.finish();
    site.driver.settle();
    assert_eq!(site.driver.text(conn), answer("all"));
    assert_eq!(site.stage.count("on_complete"), 1);
    site.finish(&[conn]);
}

#[test]
fn an_asynchronous_exchange_learns_what_happened_while_the_worker_had_it() {
    let mut site = Site::new();
    let conn = site.get("/delegate");
    let job = site.stage.job();
    site.driver.reset(conn);
    job.handle.0.call(Some(Event::AsyncStart), None, Look::Never).unwrap();
    job.finish();
    site.driver.settle();
    assert_eq!(site.stage.count("on_error connection"), 1, "{:?}", site.stage.journal());
    assert!(site.driver.conn(conn).is_closed);
    site.finish(&[conn]);
}

#[test]
fn a_worker_reads_on_however_little_may_wait_for_a_listener() {
    let options = Http11Options { body_high_water_bytes: 4, ..Http11Options::default() };
    let mut site = Site::with(options);
    let conn = site.driver.connect();
    site.driver.receive(conn, post(11) + "abcdefghijk");
    let job = site.stage.job();
    let (mut read, mut buffer) = (Vec::new(), [0; 100]);
    while let Ok(count @ 1..) = job.handle.0.try_read(&mut buffer) {
        read.extend_from_slice(&buffer[..count]);
        site.driver.settle();
    }
    assert_eq!(read, b"abcdefghijk");
    job.finish();
    site.driver.settle();
    site.finish(&[conn]);
}
