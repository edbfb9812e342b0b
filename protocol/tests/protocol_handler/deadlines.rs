//! What a client gets that keeps the server waiting, and that input which waits in the kernel
//! counts as sent in time.

use std::time::Duration;

use ringcat_engine::{
    backend::{Errno, Event},
    core_context::CoreTimeouts,
};

use ringcat_protocol::http11::options::Http11Options;

use crate::{Site, answer, get};

const MILLI: Duration = Duration::from_millis(1);
/// A deadline passes at most so much late.
const TICK: Duration = Duration::from_millis(4);

#[test]
fn a_head_that_does_not_arrive_is_408() {
    let mut site = Site::new();
    let conn = site.driver.connect();
    let timeout = CoreTimeouts::default().head;
    site.driver.receive(conn, "GET /hello HTTP/1.1\r\n");
    site.driver.advance(timeout - MILLI);
    // More of the head does not move the deadline.
    site.driver.receive(conn, "Host: a\r\n");
    assert_eq!(site.driver.text(conn), "");
    site.driver.advance(MILLI + TICK);
    let text = site.driver.text(conn);
    assert!(text.starts_with("HTTP/1.1 408 ") && text.contains("Connection: close\r\n"), "{text}");
    site.finish(&[conn]);
}

#[test]
fn silence_inside_a_body_is_408() {
    let mut site = Site::new();
    let conn = site.driver.connect();
    let timeout = CoreTimeouts::default().body;
    site.driver.receive(conn, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n");
    site.driver.advance(timeout - MILLI);
    assert_eq!(site.driver.text(conn), "");
    site.driver.advance(MILLI + TICK);
    assert!(site.driver.text(conn).starts_with("HTTP/1.1 408 "));
    assert_eq!(site.stage.count("run /echo"), 0);
    assert_eq!(site.driver.seat.counters.deadlines.body.get(), 1);
    site.finish(&[conn]);
}

/// A core that asks for a byte a second: what the test adapter collects is small.
fn patient_site() -> Site {
    let timeouts = CoreTimeouts { body_rate_min: 1, ..CoreTimeouts::default() };
    Site::with_timeouts(Http11Options::default(), timeouts)
}

const SIXTY_BYTES: &str = "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 60\r\n\r\n";

#[test]
fn a_body_that_comes_at_the_minimum_rate_is_taken() {
    let mut site = patient_site();
    let conn = site.driver.connect();
    site.driver.receive(conn, SIXTY_BYTES);
    for _ in 0..60 {
        assert_eq!(site.driver.text(conn), "");
        site.driver.advance(Duration::from_secs(1));
        site.driver.receive(conn, "x");
    }
    assert!(site.driver.text(conn).starts_with("HTTP/1.1 200 "));
    site.finish(&[conn]);
}

#[test]
fn a_body_that_trickles_is_408() {
    let mut site = patient_site();
    let conn = site.driver.connect();
    site.driver.receive(conn, SIXTY_BYTES);
    // Never silent for long, but each four seconds buy one: 20 s of patience last for 26.
    for _ in 0..6 {
        site.driver.advance(Duration::from_secs(4));
        assert_eq!(site.driver.text(conn), "");
        site.driver.receive(conn, "x");
    }
    site.driver.advance(Duration::from_secs(2) - MILLI);
    assert_eq!(site.driver.text(conn), "");
    site.driver.advance(MILLI + TICK);
    assert!(site.driver.text(conn).starts_with("HTTP/1.1 408 "));
    site.finish(&[conn]);
}

#[test]
fn a_large_piece_of_a_body_buys_no_more_than_the_whole_patience() {
    let mut site = patient_site();
    let conn = site.driver.connect();
    site.driver.receive(conn, SIXTY_BYTES);
    site.driver.advance(Duration::from_secs(5));
    site.driver.receive(conn, "x".repeat(50));
    site.driver.advance(CoreTimeouts::default().body - MILLI);
    assert_eq!(site.driver.text(conn), "");
    site.driver.advance(MILLI + TICK);
    assert!(site.driver.text(conn).starts_with("HTTP/1.1 408 "));
    site.finish(&[conn]);
}

#[test]
fn without_a_minimum_rate_each_byte_buys_the_whole_patience() {
    let timeouts = CoreTimeouts { body_rate_min: 0, ..CoreTimeouts::default() };
    let mut site = Site::with_timeouts(Http11Options::default(), timeouts);
    let conn = site.driver.connect();
    site.driver.receive(conn, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n");
    for octet in ["a", "b", "c"] {
        site.driver.advance(timeouts.body - MILLI);
        assert_eq!(site.driver.text(conn), "");
        site.driver.receive(conn, octet);
    }
    assert!(site.driver.text(conn).starts_with("HTTP/1.1 200 "));
    site.finish(&[conn]);
}

#[test]
fn silence_inside_a_body_reaches_its_listener() {
    let mut site = Site::new();
    let conn = site.driver.connect();
    site.driver.receive(conn, "POST /stream HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n");
    let handle = site.stage.handle();
    handle.set_timeout_millis(0);
    site.driver.settle();
    site.driver.advance(CoreTimeouts::default().body + TICK);
    assert_eq!(site.stage.count("on_error connection"), 1, "{:?}", site.stage.journal());
    assert_eq!(site.stage.count("on_complete"), 1);
    site.finish(&[conn]);
}

#[test]
fn what_other_threads_do_does_not_move_the_deadline_of_a_body() {
    for path in ["/stream", "/delegate"] {
        let mut site = Site::new();
        let conn = site.driver.connect();
        let head = format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n");
        site.driver.receive(conn, head);
        let job = site.stage.jobs.lock().unwrap().pop();
        let handle = job.as_ref().map_or_else(|| site.stage.handle(), |job| job.handle.clone());
        handle.set_timeout_millis(0);
        for _ in 0..4 {
            site.driver.settle();
            site.driver.advance(CoreTimeouts::default().body / 4);
            handle.0.post_look();
        }
        site.driver.advance(TICK);
        assert_eq!(site.driver.seat.counters.connections_failed.get(), 1, "{path}");
        if let Some(job) = job {
            job.finish();
            site.driver.settle();
        }
        site.finish(&[conn]);
    }
}

#[test]
fn input_that_waits_in_the_kernel_puts_a_deadline_off() {
    let requests = [
        ("GET /hello HTTP/1.1\r\n", "Host: a\r\n\r\n", "hello"),
        ("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\na", "bc", "abc"),
    ];
    for (begun, rest, content) in requests {
        let mut site = Site::new();
        let conn = site.driver.connect();
        site.driver.receive(conn, begun);
        site.driver.set_unread(conn, true);
        site.driver.advance(Duration::from_secs(21));
        assert_eq!(site.driver.text(conn), "", "it is read before it is judged");
        site.driver.set_unread(conn, false);
        site.driver.receive(conn, rest);
        assert_eq!(site.driver.text(conn), answer(content));
        site.finish(&[conn]);
    }
}

#[test]
fn connections_without_a_request_close_silently() {
    let mut site = Site::new();
    let timeouts = CoreTimeouts::default();
    let silent = site.driver.connect();
    site.driver.advance(timeouts.connection - MILLI);
    assert!(!site.driver.conn(silent).is_closed);
    site.driver.advance(MILLI + TICK);
    assert!(site.driver.conn(silent).is_closed);
    let idle = site.get("/hello");
    site.driver.advance(timeouts.keep_alive - MILLI);
    assert!(!site.driver.conn(idle).is_closed);
    site.driver.advance(MILLI + TICK);
    assert!(site.driver.conn(idle).is_closed);
    assert_eq!(site.driver.text(idle), answer("hello"));
    site.finish(&[silent, idle]);
}

#[test]
fn a_peer_that_takes_no_output_is_given_up() {
    let mut site = Site::new();
    let conn = site.driver.connect();
    site.driver.hold_sends(conn);
    site.driver.receive(conn, get("/large").repeat(9));
    site.driver.advance(CoreTimeouts::default().write - MILLI);
    assert!(!site.driver.conn(conn).is_closed);
    site.driver.advance(MILLI + TICK);
    assert!(site.driver.conn(conn).is_closed);
    site.finish(&[conn]);
}

#[test]
fn a_lingering_client_has_its_time() {
    let mut site = Site::new();
    let conn = site.driver.connect();
    site.driver.receive(conn, "nonsense\r\n\r\n");
    site.driver.advance(CoreTimeouts::default().linger - MILLI);
    assert!(!site.driver.conn(conn).is_closed);
    site.driver.advance(MILLI + TICK);
    assert!(site.driver.conn(conn).is_closed);
    site.finish(&[conn]);
}

#[test]
fn a_client_that_still_receives_its_answer_is_not_idle() {
    let mut site = Site::new();
    let conn = site.driver.connect();
    site.driver.hold_sends(conn);
    site.driver.receive(conn, get("/large").repeat(3));
    let keep_alive = CoreTimeouts::default().keep_alive;
    site.driver.advance(keep_alive / 2);
    assert!(site.driver.release_send(conn) > 0);
    site.driver.advance(keep_alive / 2 + TICK);
    site.driver.receive(conn, get("/hello"));
    while site.driver.release_send(conn) > 0 {}
    assert!(site.driver.text(conn).ends_with(&answer("hello")), "the connection is kept");
    assert!(!site.driver.conn(conn).is_closed);
    site.driver.advance(keep_alive + TICK);
    assert!(site.driver.conn(conn).is_closed);
    site.finish(&[conn]);
}

#[test]
fn a_worker_is_told_once_that_its_body_is_late() {
    let mut site = Site::new();
    let conn = site.driver.connect();
    site.driver.receive(conn, "POST /delegate HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n");
    let job = site.stage.job();
    for _ in 0..3 {
        site.driver.advance(CoreTimeouts::default().body + TICK);
        job.handle.0.post_look();
        site.driver.settle();
    }
    assert_eq!(site.driver.seat.counters.connections_failed.get(), 1);
    job.finish();
    site.driver.settle();
    site.finish(&[conn]);
}

#[test]
fn a_late_body_does_not_revive_a_connection_whose_output_failed() {
    let mut site = Site::new();
    let conn = site.driver.connect();
    site.driver.hold_sends(conn);
    site.driver.kernel.room.set(0);
    site.driver.receive(conn, "POST /delegate HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n");
    let job = site.stage.job();
    job.handle.write("not taken").unwrap();
    job.handle.flush().unwrap();
    site.driver.settle();
    site.driver.deliver(Event::SendFailed(conn, Errno::EPIPE));
    site.driver.advance(CoreTimeouts::default().body + TICK);
    assert_eq!(site.driver.seat.counters.connections_failed.get(), 1);
    job.finish();
    site.driver.settle();
    assert!(site.driver.conn(conn).is_closed, "nothing can be sent any more");
    site.finish(&[conn]);
}
