//! Content both ways: its framing, its limits, what has none, and 100-continue.

use ringcat_protocol::http11::options::Http11Options;

use crate::{Site, adapter::BODY_BYTES_MAX, answer, get};

const CONTINUE: &str = "HTTP/1.1 100 Continue\r\n\r\n";

fn post(path: &str, fields: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: a\r\n{fields}\r\n")
}

#[test]
fn content_of_unknown_length_is_chunked() {
    let mut site = Site::new();
    let conn = site.get("/chunked");
    let expected = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
                    4\r\none,\r\n3\r\ntwo\r\n0\r\n\r\n";
    assert_eq!(site.driver.text(conn), expected);
    site.driver.receive(conn, get("/hello"));
    assert_eq!(site.driver.text(conn), format!("{expected}{}", answer("hello")));
    site.finish(&[conn]);
}

#[test]
fn http_1_0_gets_unknown_length_until_the_connection_closes() {
    let mut site = Site::new();
    let conn = site.driver.connect();
    let keep = "GET /hello HTTP/1.0\r\nConnection: keep-alive\r\n\r\n";
    site.driver.receive(conn, keep);
    assert!(!site.driver.conn(conn).is_closed);
    assert!(site.driver.text(conn).contains("Connection: keep-alive\r\n"));
    let before = site.driver.text(conn).len();
    site.driver.receive(conn, keep.replace("/hello", "/chunked"));
    let text = site.driver.text(conn)[before..].to_owned();
    assert!(text.ends_with("\r\n\r\none,two") && !text.contains("chunked"), "{text}");
    assert!(site.driver.conn(conn).is_closed);
    let plain = site.driver.connect();
    site.driver.receive(plain, "GET /hello HTTP/1.0\r\n\r\n");
    assert!(site.driver.text(plain).ends_with("\r\n\r\nhello"));
    assert!(site.driver.conn(plain).is_closed, "HTTP/1.0 closes unless asked not to");
    site.finish(&[conn, plain]);
}

#[test]
fn an_answer_without_content_has_none() {
    let mut site = Site::new();
    let conn = site.driver.connect();
    site.driver.receive(conn, "HEAD /hello HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(site.driver.text(conn), "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n");
    for path in ["/204", "/304"] {
        let before = site.driver.text(conn).len();
        site.driver.receive(conn, get(path));
        let text = site.driver.text(conn)[before..].to_owned();
        assert!(text.starts_with(&format!("HTTP/1.1 {} ", &path[1..])), "{text}");
        assert!(text.ends_with("\r\n\r\n") && !text.contains("not sent"), "{text}");
        assert!(!text.contains("Transfer-Encoding"), "{text}");
    }
    site.driver.receive(conn, get("/hello"));
    assert!(site.driver.text(conn).ends_with(&answer("hello")));
    site.finish(&[conn]);
}

#[test]
fn one_100_continue_comes_before_the_content_is_sent() {
    let mut site = Site::new();
    let conn = site.driver.connect();
    let fields = "Content-Length: 3\r\nExpect: 100-continue\r\n";
    site.driver.receive(conn, post("/echo", fields));
    assert_eq!(site.driver.text(conn), CONTINUE);
    site.driver.receive(conn, "a");
    site.driver.receive(conn, "bc");
    assert_eq!(site.driver.text(conn), format!("{CONTINUE}{}", answer("abc")));
    site.driver.receive(conn, get("/hello"));
    assert!(site.driver.text(conn).ends_with(&answer("hello")));
    site.finish(&[conn]);
}

#[test]
fn an_answer_before_the_expected_content_closes_the_connection() {
    for path in ["/reject", "/ignore"] {
        let mut site = Site::new();
        let conn = site.driver.connect();
        site.driver.receive(conn, post(path, "Content-Length: 3\r\nExpect: 100-continue\r\n"));
        let text = site.driver.text(conn);
        assert!(!text.contains("100 Continue"), "{text}");
        assert!(text.contains("Connection: close\r\n"), "the client is told: {text}");
        assert!(site.driver.conn(conn).is_shut_down);
        site.finish(&[conn]);
    }
}

#[test]
fn a_body_past_the_limit_of_its_plan_is_413() {
    let max = usize::try_from(BODY_BYTES_MAX).unwrap();
    let chunked = |size: usize| {
        let head = post("/echo", "Transfer-Encoding: chunked\r\n");
        format!("{head}{size:x}\r\n{}\r\n0\r\n\r\n", "a".repeat(size))
    };
    let length =
        |size: usize| post("/echo", &format!("Content-Length: {size}\r\n")) + &"a".repeat(size);
    for request in [chunked(max), length(max)] {
        let mut site = Site::new();
        let conn = site.driver.connect();
        site.driver.receive(conn, request);
        assert_eq!(site.driver.text(conn), answer(&"a".repeat(max)));
        site.finish(&[conn]);
    }
    let expecting = post("/echo", "Content-Length: 65\r\nExpect: 100-continue\r\n");
    for request in [chunked(max + 1), length(max + 1), expecting] {
        let mut site = Site::new();
        let conn = site.driver.connect();
        site.driver.receive(conn, request);
        let text = site.driver.text(conn);
        assert!(text.starts_with("HTTP/1.1 413 "), "{text}");
        assert!(text.contains("Connection: close\r\n"), "{text}");
        assert!(site.driver.conn(conn).is_shut_down && !site.driver.conn(conn).is_closed);
        assert_eq!(site.stage.count("run /echo"), 0);
        site.finish(&[conn]);
    }
}

#[test]
fn a_body_that_nobody_read_is_swallowed_within_bounds() {
    let options = Http11Options { swallow_bytes_max: 10, ..Http11Options::default() };
    let mut site = Site::with(options);
    let conn = site.driver.connect();
    site.driver.receive(conn, post("/ignore", "Content-Length: 10\r\n") + "12345");
    assert_eq!(site.driver.text(conn), answer("ignored"), "the answer does not wait");
    site.driver.receive(conn, format!("67890{}", get("/hello")));
    assert_eq!(site.driver.text(conn), format!("{}{}", answer("ignored"), answer("hello")));
    site.driver.receive(conn, post("/ignore", "Content-Length: 11\r\n") + "12345678901");
    assert!(site.driver.conn(conn).is_shut_down, "past the bound the connection closes");
    site.finish(&[conn]);
}

#[test]
fn a_read_listener_gets_content_as_it_comes() {
    let mut site = Site::new();
    let conn = site.driver.connect();
    site.driver.receive(conn, post("/stream", "Content-Length: 6\r\n"));
    for piece in ["ab", "cd"] {
        site.driver.receive(conn, piece);
        assert_eq!(site.driver.text(conn), "", "the answer is still being gathered");
    }
    site.driver.receive(conn, format!("ef{}", get("/hello")));
    assert_eq!(site.driver.text(conn), format!("{}{}", answer("abcdef"), answer("hello")));
    assert_eq!(site.stage.count("all read"), 1);
    assert_eq!(site.stage.count("on_complete"), 1);
    site.finish(&[conn]);
}

#[test]
fn a_read_listener_gets_all_that_was_received_however_little_may_wait() {
    let options = Http11Options { body_high_water_bytes: 4, ..Http11Options::default() };
    for first in ["", "ab", "abcdefghij", "abcdefghijk"] {
        let mut site = Site::with(options);
        let conn = site.driver.connect();
        site.driver.receive(conn, post("/stream", "Content-Length: 11\r\n") + first);
        site.driver.receive(conn, &"abcdefghijk"[first.len()..]);
        assert_eq!(site.driver.text(conn), answer("abcdefghijk"), "{first:?} came with the head");
        site.finish(&[conn]);
    }
}

#[test]
fn a_listener_that_takes_nothing_is_not_called_for_ever() {
    let mut site = Site::new();
    let conn = site.driver.connect();
    site.driver.receive(conn, post("/deaf", "Content-Length: 2\r\n") + "ab");
    site.stage.handle().complete().unwrap();
    site.driver.settle();
    assert_eq!(site.driver.text(conn), answer(""));
    site.finish(&[conn]);
}

#[test]
fn broken_content_reaches_the_listener_as_an_error() {
    let mut site = Site::new();
    let conn = site.driver.connect();
    site.driver.receive(conn, post("/stream", "Transfer-Encoding: chunked\r\n"));
    site.driver.receive(conn, "2\r\nab\r\nnonsense\r\n");
    assert_eq!(site.stage.count("on_error body"), 1, "{:?}", site.stage.journal());
    assert_eq!(site.stage.count("on_complete"), 1);
    assert!(site.driver.conn(conn).is_shut_down);
    site.finish(&[conn]);
}
