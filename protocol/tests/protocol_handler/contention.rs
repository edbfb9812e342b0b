//! A foreign thread is inside the list of an exchange when the core looks. The core goes on with
//! other work and loses nothing: neither the event, nor the order, nor the end.

use std::sync::{Arc, Mutex};

use ringcat_engine::{
    backend::{Errno, Event},
    core_context::CoreMessage,
};
use ringcat_protocol::async_cell::CallError;

use crate::{ASYNC_TIMEOUT, Inside, Site, answer, get};

#[test]
fn an_end_that_meets_a_caller_comes_with_the_next_look() {
    let mut site = Site::new();
    let conn = site.get("/park");
    let handle = site.stage.handle();
    handle.write("whole").unwrap();
    handle.complete().unwrap();
    let inside = Inside::enter(&handle);
    site.driver.turn();
    assert_eq!(site.driver.text(conn), "");
    let other = site.driver.connect();
    site.driver.deliver(crate::requests::received(other, &get("/hello")));
    assert_eq!(site.driver.text(other), answer("hello"), "the core does not wait");
    inside.leave();
    site.driver.settle();
    assert_eq!(site.driver.text(conn), answer("whole"));
    assert_eq!(site.stage.count("on_complete"), 1);
    site.finish(&[conn, other]);
}

#[test]
fn the_second_round_that_meets_a_caller_is_not_lost() {
    let mut site = Site::new();
    // The caller comes between the two rounds: on_complete lets it in.
    let conn = site.get("/park");
    let handle = site.stage.handle();
    let inside = Arc::new(Mutex::new(None));
    let (slot, held) = (Arc::clone(&inside), handle.clone());
    site.stage.at_the_end(move || *slot.lock().unwrap() = Some(Inside::enter(&held)));
    handle.write("whole").unwrap();
    handle.complete().unwrap();
    site.driver.turn();
    assert_eq!(site.stage.count("on_complete"), 1);
    inside.lock().unwrap().take().unwrap().leave();
    site.driver.settle();
    assert_eq!(site.driver.text(conn), answer("whole"));
    assert_eq!(site.stage.count("on_complete"), 1);
    assert_eq!(handle.complete(), Err(CallError::Closed));
    site.finish(&[conn]);
}

#[test]
fn a_timeout_that_meets_a_caller_comes_with_the_next_look() {
    let mut site = Site::new();
    let conn = site.get("/park");
    let inside = Inside::enter(&site.stage.handle());
    site.driver.skip(ASYNC_TIMEOUT * 2);
    site.driver.turn();
    assert_eq!(site.stage.count("on_timeout"), 0);
    inside.leave();
    site.driver.settle();
    assert_eq!(site.stage.count("on_timeout"), 1);
    assert!(site.driver.text(conn).ends_with("timeout"));
    site.finish(&[conn]);
}

#[test]
fn a_reset_that_meets_a_caller_is_still_an_error() {
    let mut site = Site::new();
    let conn = site.get("/park");
    let handle = site.stage.handle();
    let inside = Inside::enter(&handle);
    site.driver.deliver(Event::RecvFailed(conn, Errno::ECONNRESET));
    assert_eq!(site.stage.count("on_error connection"), 0);
    inside.leave();
    site.driver.settle();
    assert_eq!(site.stage.count("on_error connection"), 1, "{:?}", site.stage.journal());
    assert_eq!(site.stage.count("on_complete"), 1);
    assert!(site.driver.conn(conn).is_closed);
    site.finish(&[conn]);
}

#[test]
fn a_drain_limit_that_meets_a_caller_times_out_later() {
    let mut site = Site::new();
    let conn = site.get("/park");
    let handle = site.stage.handle();
    handle.set_timeout_millis(0);
    site.driver.settle();
    let inside = Inside::enter(&handle);
    site.driver.post(CoreMessage::DrainLimit);
    site.driver.turn();
    inside.leave();
    site.driver.settle();
    assert_eq!(site.stage.count("on_timeout"), 1, "{:?}", site.stage.journal());
    site.driver.advance(std::time::Duration::from_secs(2));
    site.finish(&[conn]);
}

#[test]
fn a_worker_that_lets_go_while_another_thread_calls_loses_no_bytes() {
    let mut site = Site::new();
    let conn = site.get("/delegate");
    let job = site.stage.job();
    let handle = job.handle.clone();
    handle.write("whole").unwrap();
    let inside = Inside::enter(&handle);
    job.finish();
    site.driver.turn();
    assert_eq!(site.stage.count("resume"), 0, "what was written comes before");
    inside.leave();
    site.driver.settle();
    assert_eq!(site.driver.text(conn), answer("whole"));
    assert_eq!(site.stage.count("resume"), 1);
    site.finish(&[conn]);
}

#[test]
fn a_cell_that_a_caller_holds_at_the_end_is_closed_later() {
    let mut site = Site::new();
    let conn = site.get("/park");
    let handle = site.stage.handle();
    let inside = Arc::new(Mutex::new(None));
    let (slot, held) = (Arc::clone(&inside), handle.clone());
    site.stage.at_the_log(move || *slot.lock().unwrap() = Some(Inside::enter(&held)));
    handle.complete().unwrap();
    site.driver.turn();
    assert_eq!(site.driver.text(conn), answer(""), "the answer does not wait");
    inside.lock().unwrap().take().unwrap().leave();
    site.driver.settle();
    assert_eq!(handle.complete(), Err(CallError::Closed));
    assert_eq!(site.stage.count("on_complete"), 1);
    site.finish(&[conn]);
}

#[test]
fn a_read_listener_that_starts_under_a_caller_gets_its_data() {
    let mut site = Site::new();
    let conn = site.driver.connect();
    let inside = Arc::new(Mutex::new(None));
    let slot = Arc::clone(&inside);
    site.stage.at_the_start(move |handle| *slot.lock().unwrap() = Some(Inside::enter(handle)));
    let request = "POST /stream HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc";
    site.driver.deliver(crate::requests::received(conn, request));
    inside.lock().unwrap().take().unwrap().leave();
    site.driver.settle();
    assert_eq!(site.driver.text(conn), answer("abc"), "{:?}", site.stage.journal());
    site.finish(&[conn]);
}
