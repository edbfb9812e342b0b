//! Requests one after the other on a connection: order, pipelining, fairness, every cut.

use crate::{Site, answer, get};

#[test]
fn keep_alive_serves_one_request_after_the_other() {
    let mut site = Site::new();
    let conn = site.get("/hello");
    assert_eq!(site.driver.text(conn), answer("hello"));
    assert_eq!(site.driver.core.handler().exchange_count(), 0, "an idle connection has none");
    site.driver.receive(conn, get("/hello"));
    assert_eq!(site.driver.text(conn), answer("hello").repeat(2));
    assert!(!site.driver.conn(conn).is_closed);
    assert_eq!(site.driver.core.handler().pooled_count(), 1, "one processor, used twice");
    site.finish(&[conn]);
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let mut site = Site::new();
    let conn = site.driver.connect();
    let echo = "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc";
    site.driver.receive(conn, format!("{}{echo}{}", get("/hello"), get("/ignore")));
    let expected = format!("{}{}{}", answer("hello"), answer("abc"), answer("ignored"));
    assert_eq!(site.driver.text(conn), expected);
    site.finish(&[conn]);
}

#[test]
fn a_thousand_pipelined_requests_let_others_have_their_turn() {
    let mut site = Site::new();
    let (greedy, modest) = (site.driver.connect(), site.driver.connect());
    let count = |site: &Site, conn| site.driver.text(conn).matches("hello").count();
    site.driver.deliver(received(greedy, &get("/hello").repeat(1000)));
    assert_eq!(count(&site, greedy), 32, "what one turn answers");
    site.driver.deliver(received(modest, &get("/hello")));
    assert_eq!(count(&site, modest), 1, "others come in between");
    site.driver.settle();
    assert_eq!(site.driver.text(greedy), answer("hello").repeat(1000));
    assert_eq!(site.counters.answered(), 1001);
    site.finish(&[greedy, modest]);
}

#[test]
fn a_client_that_reads_no_answers_is_not_served_on() {
    let mut site = Site::new();
    let conn = site.driver.connect();
    site.driver.hold_sends(conn);
    site.driver.receive(conn, get("/large").repeat(20));
    let served = site.stage.count("run /large");
    assert!((3..=4).contains(&served), "{served} answers of 100 kB wait to be read");
    for _ in 0..200 {
        site.driver.release_send(conn);
    }
    assert_eq!(site.stage.count("run /large"), 20);
    assert_eq!(site.driver.text(conn).matches("200 OK").count(), 20);
    site.finish(&[conn]);
}

#[test]
fn the_bytes_of_the_answers_do_not_depend_on_how_the_requests_were_cut() {
    let stream = [
        "\r\n\r\n",
        "POST /echo HTTP/1.1\r\nHost: a\r\nX-One: 1\r\nContent-Length: 5\r\n\r\nabcde",
        "\r\nPOST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
        "3;x=y\r\nfgh\r\n1\r\ni\r\n0\r\nTrailer: t\r\n\r\n",
        "POST /stream HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\njklm",
        "POST /ignore HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nnopq",
        "HEAD /hello HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /hello HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    ]
    .concat();
    let whole = cut_at(&stream, &[]);
    assert_eq!(whole.matches("HTTP/1.1 200 OK").count(), 6, "{whole}");
    for position in 1..stream.len() {
        assert_eq!(cut_at(&stream, &[position]), whole, "cut at {position}");
    }
    let every: Vec<usize> = (1..stream.len()).collect();
    assert_eq!(cut_at(&stream, &every), whole, "octet by octet");
}

/// The answers to a stream that arrives in pieces. Between two pieces another connection is
/// served, which uses the storage that the core lends.
fn cut_at(stream: &str, positions: &[usize]) -> String {
    let mut site = Site::new();
    let (conn, other) = (site.driver.connect(), site.driver.connect());
    let mut start = 0;
    for &end in positions.iter().chain([&stream.len()]) {
        site.driver.receive(conn, &stream[start..end]);
        site.driver.receive(other, "GET /hello HTTP/1.1\r\nHost: another\r\nX: y\r\n\r\n");
        start = end;
    }
    assert!(site.driver.conn(conn).is_closed, "the last request asks for it");
    let text = site.driver.text(conn);
    site.finish(&[conn, other]);
    text
}

#[test]
fn empty_lines_wait_for_their_request() {
    let mut site = Site::new();
    let conn = site.driver.connect();
    for piece in ["\r\n", "\r", "\n"] {
        site.driver.receive(conn, piece);
    }
    assert!(site.driver.conn(conn).is_demanded);
    site.driver.receive(conn, get("/hello") + "\r\n");
    assert_eq!(site.driver.text(conn), answer("hello"));
    site.finish(&[conn]);
}

#[test]
fn many_connections_keep_few_processors() {
    let mut site = Site::new();
    let conns: Vec<_> = (0..100).map(|_| site.get("/park")).collect();
    assert_eq!(site.driver.core.handler().exchange_count(), 100);
    let handles = std::mem::take(&mut *site.stage.handles.lock().unwrap());
    for handle in &handles {
        handle.complete().unwrap();
    }
    site.driver.settle();
    assert_eq!(site.driver.core.handler().exchange_count(), 0);
    assert_eq!(site.driver.core.handler().pooled_count(), 64);
    site.finish(&conns);
}

pub(crate) fn received(
    conn: ringcat_engine::key::ConnKey,
    bytes: &str,
) -> ringcat_engine::backend::Event {
    let lease = ringcat_engine::buffer::Lease::from_vec(bytes.as_bytes().to_vec());
    ringcat_engine::backend::Event::Received(conn, lease)
}
