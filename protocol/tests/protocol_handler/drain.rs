//! A core that is told to stop: idle connections end, what runs is answered, what is parked ends
//! through its timeout at the limit.

use std::time::Duration;

use ringcat_engine::core_context::{CoreMessage, CoreTimeouts};

use crate::{Site, get};

const TICK: Duration = Duration::from_millis(4);

fn drain(site: &mut Site) {
    site.driver.post(CoreMessage::Drain);
    site.driver.settle();
}

#[test]
fn idle_connections_end_after_a_short_while() {
    let mut site = Site::new();
    let (idle, silent) = (site.get("/hello"), site.driver.connect());
    drain(&mut site);
    assert!(!site.driver.conn(idle).is_closed, "a request may be on its way");
    site.driver.advance(CoreTimeouts::default().drain_idle + TICK);
    assert!(site.driver.conn(idle).is_closed && site.driver.conn(silent).is_closed);
    assert!(site.driver.is_stopped);
    site.finish(&[idle, silent]);
}

#[test]
fn a_request_that_was_on_its_way_is_answered_and_told() {
    let mut site = Site::new();
    let (idle, begun) = (site.get("/hello"), site.driver.connect());
    site.driver.receive(begun, "GET /hello HTTP/1.1\r\n");
    drain(&mut site);
    site.driver.receive(idle, get("/hello"));
    site.driver.receive(begun, "Host: a\r\n\r\n");
    for conn in [idle, begun] {
        let text = site.driver.text(conn);
        assert!(text.contains("Connection: close\r\n") && text.ends_with("hello"), "{text}");
        assert!(site.driver.conn(conn).is_closed);
    }
    assert!(site.driver.is_stopped);
    site.finish(&[idle, begun]);
}

#[test]
fn a_parked_request_that_completes_in_time_is_answered() {
    let mut site = Site::new();
    let conn = site.get("/park");
    drain(&mut site);
    assert!(!site.driver.conn(conn).is_closed && !site.driver.is_stopped);
    site.stage.handle().write("in time").unwrap();
    site.stage.handle().complete().unwrap();
    site.driver.settle();
    assert!(site.driver.text(conn).ends_with("in time"));
    assert!(site.driver.conn(conn).is_closed && site.driver.is_stopped);
    site.finish(&[conn]);
}

#[test]
fn the_limit_times_out_what_is_parked() {
    let mut site = Site::new();
    let conns = [site.get("/park"), site.get("/park"), site.get("/park")];
    site.stage.handle().set_timeout_millis(0);
    drain(&mut site);
    site.driver.post(CoreMessage::DrainLimit);
    site.driver.settle();
    assert_eq!(site.stage.count("on_timeout"), 3);
    assert_eq!(site.stage.count("on_complete"), 3);
    for conn in conns {
        assert!(site.driver.text(conn).ends_with("timeout"), "{}", site.driver.text(conn));
        assert!(site.driver.conn(conn).is_closed);
    }
    assert!(site.driver.is_stopped);
    site.driver.advance(CoreTimeouts::default().drain_cut + TICK);
    site.finish(&conns);
}

#[test]
fn what_is_open_after_the_limit_is_cut() {
    let mut site = Site::new();
    let conn = site.get("/delegate");
    drain(&mut site);
    site.driver.post(CoreMessage::DrainLimit);
    site.driver.settle();
    assert!(!site.driver.is_stopped);
    site.driver.advance(CoreTimeouts::default().drain_cut + TICK);
    assert!(site.driver.is_stopped);
    assert_eq!(site.driver.seat.counters.connections_cut.get(), 1);
    assert!(!site.driver.conn(conn).is_closed, "the loop closes what is left");
}
