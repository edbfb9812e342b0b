//! How connections end: half close, end of stream in the middle, malformed messages, resets.

use ringcat_engine::core_context::CoreTimeouts;
use ringcat_protocol::http11::options::Http11Options;

use crate::{Site, answer, get};

#[test]
fn a_half_closed_client_gets_its_answer() {
    let mut site = Site::new();
    let conn = site.driver.connect();
    site.driver.hold_sends(conn);
    site.driver.receive(conn, get("/hello"));
    site.driver.end(conn);
    assert!(!site.driver.conn(conn).is_closed, "the answer is still on its way");
    site.driver.release_send(conn);
    assert_eq!(site.driver.text(conn), answer("hello"));
    assert!(site.driver.conn(conn).is_closed);
    site.finish(&[conn]);
}

#[test]
fn a_client_that_half_closes_while_parked_gets_its_answer() {
    let mut site = Site::new();
    let conn = site.get("/park");
    site.driver.end(conn);
    assert!(!site.driver.conn(conn).is_closed);
    let handle = site.stage.handle();
    handle.write("late").unwrap();
    handle.complete().unwrap();
    site.driver.settle();
    assert_eq!(site.driver.text(conn), answer("late"));
    assert!(site.driver.conn(conn).is_closed);
    site.finish(&[conn]);
}

#[test]
fn an_end_inside_a_head_closes_without_an_answer() {
    for begun in ["", "\r\n", "GET", "GET / HTTP/1.1\r\nHost: a\r\n"] {
        let mut site = Site::new();
        let conn = site.driver.connect();
        if !begun.is_empty() {
            site.driver.receive(conn, begun);
        }
        site.driver.end(conn);
        assert_eq!(site.driver.text(conn), "", "{begun:?}");
        assert!(site.driver.conn(conn).is_closed, "{begun:?}");
        site.finish(&[conn]);
    }
}

#[test]
fn an_end_inside_a_body_is_400() {
    let mut site = Site::new();
    let conn = site.driver.connect();
    site.driver.receive(conn, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\na");
    site.driver.end(conn);
    assert!(site.driver.text(conn).starts_with("HTTP/1.1 400 "), "{}", site.driver.text(conn));
    assert!(site.driver.conn(conn).is_closed);
    assert_eq!(site.stage.count("run /echo"), 0);
    site.finish(&[conn]);
}

#[test]
fn an_end_inside_a_body_reaches_its_listener() {
    let mut site = Site::new();
    let conn = site.driver.connect();
    site.driver.receive(conn, "POST /stream HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\na");
    site.driver.end(conn);
    assert_eq!(site.stage.count("on_error body"), 1, "{:?}", site.stage.journal());
    assert_eq!(site.stage.count("on_complete"), 1);
    assert!(site.driver.conn(conn).is_closed);
    site.finish(&[conn]);
}

#[test]
fn a_malformed_head_is_400_and_what_follows_is_never_parsed() {
    let mut site = Site::new();
    let conn = site.driver.connect();
    site.driver.receive(conn, format!("GET / HTTP/1.1\nHost: a\n\n{}", get("/hello")));
    let text = site.driver.text(conn);
    assert!(text.starts_with("HTTP/1.1 400 ") && text.contains("Connection: close\r\n"), "{text}");
    assert!(site.driver.conn(conn).is_shut_down, "our side ends");
    assert!(!site.driver.conn(conn).is_closed, "the peer's bytes are read first");
    site.driver.receive(conn, get("/hello"));
    site.driver.end(conn);
    assert_eq!(site.driver.text(conn), text);
    assert_eq!(site.stage.count("run /hello"), 0);
    assert_eq!(site.counters.refused.get(), 1);
    site.finish(&[conn]);
}

#[test]
fn a_lingering_client_that_sends_for_ever_is_cut_off() {
    let mut site = Site::new();
    let conn = site.driver.connect();
    site.driver.receive(conn, "nonsense\r\n\r\n");
    for _ in 0..40 {
        if !site.driver.conn(conn).is_closed {
            site.driver.receive(conn, vec![b'x'; 64 * 1024]);
        }
    }
    assert!(site.driver.conn(conn).is_closed);
    site.finish(&[conn]);
}

#[test]
fn input_behind_a_last_answer_is_read_before_the_close() {
    let mut site = Site::new();
    let conn = site.driver.connect();
    let last = "GET /hello HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    site.driver.receive(conn, format!("{last}{}", get("/hello")));
    assert_eq!(site.stage.count("run /hello"), 1);
    assert!(site.driver.conn(conn).is_shut_down && !site.driver.conn(conn).is_closed);
    site.finish(&[conn]);
}

#[test]
fn a_reset_under_an_answer_closes_at_once() {
    let mut site = Site::new();
    let conn = site.driver.connect();
    site.driver.hold_sends(conn);
    site.driver.receive(conn, get("/large").repeat(9));
    site.driver.reset(conn);
    assert!(site.driver.conn(conn).is_closed);
    site.finish(&[conn]);
}

#[test]
fn a_client_that_lingers_after_its_answer_left_is_cut_off_in_time() {
    let mut site = Site::with(Http11Options { swallow_bytes_max: 1, ..Http11Options::default() });
    let conn = site.driver.connect();
    site.driver.receive(conn, "POST /ignore HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n");
    assert_eq!(site.driver.text(conn), answer("ignored"));
    site.driver.receive(conn, "more");
    assert!(site.driver.conn(conn).is_shut_down && !site.driver.conn(conn).is_closed);
    site.driver.advance(CoreTimeouts::default().linger * 2);
    assert!(site.driver.conn(conn).is_closed, "nobody waits for ever");
    site.finish(&[conn]);
}
