//! Exchanges that wait for somebody: other threads, their timeout, the peer.

use std::{sync::atomic::Ordering, time::Duration};

use ringcat_engine::{
    backend::{Departure, Event},
    core_context::CoreMessage,
};
use ringcat_protocol::{
    async_cell::{CallError, WriteRefused},
    async_state_machine::{AsyncState, Flag},
    message::Message,
};

use crate::{ASYNC_TIMEOUT, Site, answer, elsewhere, get};

const MILLI: Duration = Duration::from_millis(1);
const TICK: Duration = Duration::from_millis(4);

#[test]
fn another_thread_completes_a_parked_request() {
    let mut site = Site::new();
    let conn = site.get("/park");
    assert_eq!(site.driver.text(conn), "");
    let handle = site.stage.handle();
    assert_eq!(handle.0.word().state(), AsyncState::Started);
    elsewhere(|| {
        handle.write("one ").unwrap();
        handle.write("two").unwrap();
        handle.complete().unwrap();
        let again = handle.complete().unwrap_err();
        assert!(matches!(again, CallError::IllegalState(_)), "{again:?}");
    });
    assert_eq!(site.driver.text(conn), "", "the owner does the work, in its own time");
    site.driver.settle();
    assert_eq!(site.driver.text(conn), answer("one two"));
    assert_eq!(site.stage.count("on_complete"), 1);
    assert_eq!(handle.complete(), Err(CallError::Closed));
    assert!(matches!(handle.write("late"), Err(WriteRefused::Closed(_))));
    site.finish(&[conn]);
}

#[test]
fn a_request_may_complete_before_its_callback_ends() {
    let mut site = Site::new();
    let conn = site.get("/complete");
    assert_eq!(site.driver.text(conn), answer("at once"));
    assert_eq!(site.stage.count("on_complete"), 1);
    site.driver.receive(conn, get("/hello"));
    assert!(site.driver.text(conn).ends_with(&answer("hello")));
    site.finish(&[conn]);
}

#[test]
fn on_complete_runs_once_also_when_it_changes_the_word() {
    let mut site = Site::new();
    site.stage.flushes_at_the_end.store(true, Ordering::Relaxed);
    let conn = site.get("/park");
    site.stage.handle().complete().unwrap();
    site.driver.settle();
    assert_eq!(site.stage.count("on_complete"), 1, "{:?}", site.stage.journal());
    assert!(site.driver.text(conn).ends_with("0\r\n\r\n"), "{}", site.driver.text(conn));
    site.finish(&[conn]);
}

#[test]
fn bytes_that_arrive_while_parked_are_kept_and_served_in_order() {
    let mut site = Site::new();
    let conn = site.get("/park");
    assert!(site.driver.conn(conn).is_demanded, "armed until the first data");
    let (first, rest) = ("GET /hello HTTP/1.1\r\nHost: a\r\n\r\nGET /ig", "nore HTTP/1.1\r\n");
    site.driver.receive(conn, first);
    assert!(!site.driver.conn(conn).is_demanded && site.driver.conn(conn).is_watched);
    site.driver.receive(conn, rest);
    assert_eq!(site.driver.text(conn), "");
    site.stage.handle().complete().unwrap();
    site.driver.settle();
    assert_eq!(site.driver.text(conn), format!("{}{}", answer(""), answer("hello")));
    assert!(site.driver.conn(conn).is_demanded && !site.driver.conn(conn).is_watched);
    site.driver.receive(conn, "Host: a\r\n\r\n");
    assert!(site.driver.text(conn).ends_with(&answer("ignored")));
    site.finish(&[conn]);
}

#[test]
fn empty_lines_behind_a_parked_request_do_not_stop_the_next_one() {
    let mut site = Site::new();
    let conn = site.get("/park");
    site.driver.receive(conn, "\r\n");
    site.stage.handle().complete().unwrap();
    site.driver.settle();
    assert!(site.driver.conn(conn).is_demanded);
    site.driver.receive(conn, get("/hello"));
    assert!(site.driver.text(conn).ends_with(&answer("hello")));
    site.finish(&[conn]);
}

#[test]
fn a_timeout_is_never_early_and_at_most_a_tick_late() {
    for offset in 0..4 {
        let mut site = Site::new();
        site.driver.advance(MILLI * offset);
        let conn = site.get("/park");
        site.driver.advance(ASYNC_TIMEOUT - Duration::from_nanos(1));
        assert_eq!(site.stage.count("on_timeout"), 0, "early");
        site.driver.advance(TICK + Duration::from_nanos(1));
        assert_eq!(site.stage.count("on_timeout"), 1, "late");
        assert!(site.driver.text(conn).starts_with("HTTP/1.1 500 "));
        assert!(site.driver.text(conn).ends_with("timeout"));
        assert_eq!(site.stage.count("on_complete"), 1);
        assert_eq!(site.counters.timeouts.get(), 1);
        site.finish(&[conn]);
    }
}

#[test]
fn a_timeout_can_be_moved_both_ways() {
    let mut site = Site::new();
    let (earlier, later) = (site.get("/park"), site.get("/park"));
    let handles = site.stage.handles.lock().unwrap().clone();
    elsewhere(|| {
        handles[0].set_timeout_millis(100);
        handles[1].set_timeout_millis(900);
    });
    site.driver.settle();
    site.driver.advance(Duration::from_millis(100) + TICK);
    assert!(site.driver.text(earlier).ends_with("timeout"));
    site.driver.advance(Duration::from_millis(900 - 100 - 5));
    assert_eq!(site.driver.text(later), "");
    site.driver.advance(MILLI + TICK);
    assert!(site.driver.text(later).ends_with("timeout"));
    site.finish(&[earlier, later]);
}

#[test]
fn a_timeout_of_zero_never_comes() {
    let mut site = Site::new();
    let conn = site.get("/park");
    site.stage.handle().set_timeout_millis(0);
    site.driver.settle();
    site.driver.advance(Duration::from_secs(3600));
    assert_eq!(site.driver.core.timer_count(), 0, "nothing is left to wait for");
    assert_eq!(site.driver.text(conn), "");
    site.stage.handle().complete().unwrap();
    site.driver.settle();
    assert_eq!(site.driver.text(conn), answer(""));
    site.finish(&[conn]);
}

#[test]
fn a_stale_key_reaches_nobody() {
    let mut site = Site::new();
    let conn = site.get("/park");
    let old = site.stage.handle();
    let key = old.0.key();
    old.complete().unwrap();
    site.driver.settle();
    site.driver.receive(conn, get("/park"));
    let new = site.stage.handle();
    assert_eq!(new.0.key().slot, key.slot, "the slot is used again");
    assert_ne!(new.0.key().stamp, key.stamp);
    let looked = site.counters.parked.get();
    site.driver.post(CoreMessage::Handler(Message::Look(key)));
    site.driver.settle();
    assert_eq!(site.counters.parked.get(), looked, "nobody was looked at");
    assert_eq!(old.complete(), Err(CallError::Closed));
    assert_eq!(new.0.word().state(), AsyncState::Started);
    new.complete().unwrap();
    site.driver.settle();
    assert_eq!(site.driver.text(conn), answer("").repeat(2));
    site.finish(&[conn]);
}

#[test]
fn a_dispatch_runs_its_target_and_may_start_anew() {
    let mut site = Site::new();
    let conn = site.get("/park");
    let handle = site.stage.handle();
    elsewhere(|| {
        handle.write("before ").unwrap();
        handle.dispatch("/park").unwrap();
    });
    site.driver.settle();
    assert_eq!(site.stage.count("run /park"), 2);
    assert_eq!(site.stage.count("on_complete"), 0, "the second round goes on");
    site.stage.handle().dispatch("/hello").unwrap();
    site.driver.settle();
    assert_eq!(site.driver.text(conn), answer("before hello"));
    site.finish(&[conn]);
}

#[test]
fn a_reset_that_no_event_tells_is_noticed_within_a_second() {
    let mut site = Site::new();
    let conn = site.get("/park");
    let handle = site.stage.handle();
    site.driver.reset_silently(conn);
    site.driver.skip(Duration::from_millis(300));
    site.driver.turn();
    assert_eq!(site.stage.count("on_error connection"), 1, "{:?}", site.stage.journal());
    assert_eq!(handle.complete(), Err(CallError::Closed));
    site.finish(&[conn]);
}

#[test]
fn a_reset_while_parked_is_an_error_and_the_end() {
    let mut site = Site::new();
    let conn = site.get("/park");
    site.driver.receive(conn, "GET /next");
    let handle = site.stage.handle();
    site.driver.reset(conn);
    assert_eq!(site.stage.count("on_error connection"), 1, "{:?}", site.stage.journal());
    assert_eq!(site.stage.count("on_complete"), 1);
    assert_eq!(handle.complete(), Err(CallError::Closed));
    assert!(site.driver.conn(conn).is_closed);
    assert_eq!(site.driver.text(conn), "");
    site.finish(&[conn]);
}

#[test]
fn credit_comes_back_when_bytes_leave_and_not_before() {
    let mut site = Site::new();
    let conn = site.get("/park");
    site.driver.hold_sends(conn);
    let handle = site.stage.handle();
    let piece = || vec![b'x'; 16 * 1024];
    for _ in 0..4 {
        handle.write(piece()).unwrap();
    }
    assert!(matches!(handle.write(piece()), Err(WriteRefused::WouldBlock(_))), "64 KiB are out");
    site.driver.settle();
    let refused = elsewhere(|| handle.write(piece()));
    assert!(matches!(refused, Err(WriteRefused::WouldBlock(_))), "applied is not sent");
    let sent = site.driver.release_send(conn);
    assert!(sent > 0);
    handle.write(piece()).unwrap();
    handle.complete().unwrap();
    site.driver.settle();
    while site.driver.release_send(conn) > 0 {}
    assert_eq!(site.driver.text(conn).matches('x').count(), 5 * 16 * 1024);
    site.finish(&[conn]);
}

#[test]
fn credit_of_bytes_that_a_flush_sent_comes_back() {
    let mut site = Site::new();
    let conn = site.get("/backlog");
    assert_eq!(site.driver.text(conn).matches('b').count(), 70_000, "sent inside the callback");
    let handle = site.stage.handle();
    assert_eq!(handle.0.in_flight_bytes(), 0);
    handle.write("more").unwrap();
    handle.complete().unwrap();
    site.driver.settle();
    assert!(site.driver.text(conn).ends_with("4\r\nmore\r\n0\r\n\r\n"));
    site.finish(&[conn]);
}

#[test]
fn credit_of_bytes_that_nobody_gets_comes_back() {
    let mut site = Site::new();
    let conn = site.driver.connect();
    site.driver.receive(conn, "HEAD /park HTTP/1.1\r\nHost: a\r\n\r\n");
    let handle = site.stage.handle();
    for _ in 0..4 {
        handle.write(vec![b'x'; 70_000]).unwrap();
        site.driver.settle();
    }
    handle.complete().unwrap();
    site.driver.settle();
    assert!(!site.driver.text(conn).contains('x'), "{}", site.driver.text(conn));
    site.finish(&[conn]);
}

#[test]
fn writes_fail_while_the_loss_of_the_connection_is_handled() {
    let mut site = Site::new();
    let conn = site.get("/park");
    let handle = site.stage.handle();
    let (result, slot) = std::sync::mpsc::channel();
    site.stage.at_the_end(move || result.send(elsewhere(|| handle.write("late"))).unwrap());
    site.driver.reset(conn);
    assert!(matches!(slot.recv().unwrap(), Err(WriteRefused::Io(_))));
    site.finish(&[conn]);
}

#[test]
fn a_writer_learns_that_the_connection_failed() {
    let mut site = Site::new();
    let conn = site.get("/park");
    site.driver.hold_sends(conn);
    let handle = site.stage.handle();
    for _ in 0..8 {
        if handle.write(vec![b'x'; 16 * 1024]).is_ok() {
            site.driver.settle();
        }
    }
    let writer = handle.clone();
    std::thread::scope(|scope| {
        let blocked = scope.spawn(move || {
            let operation = crate::adapter::Op::Write(bytes::Bytes::from_static(b"y"));
            writer.0.write_blocking(operation, Some(Duration::from_secs(60)))
        });
        site.driver.reset(conn);
        let result = blocked.join().unwrap();
        assert!(matches!(result, Err(WriteRefused::Io(_) | WriteRefused::Closed(_))), "{result:?}");
    });
    site.finish(&[conn]);
}

#[test]
fn a_client_that_half_closed_is_still_watched_for_a_reset() {
    for is_suspended in [false, true] {
        let mut site = Site::new();
        let conn = site.get("/park");
        if is_suspended {
            site.driver.receive(conn, "GET");
            site.driver.deliver(Event::PeerGone(conn, Departure::EndOfStream));
        } else {
            site.driver.end(conn);
        }
        assert!(site.stage.handle().0.word().has(Flag::PeerClosed));
        assert!(site.driver.conn(conn).is_watched, "{is_suspended}");
        site.driver.deliver(Event::PeerGone(conn, Departure::Reset));
        site.driver.settle();
        assert_eq!(site.stage.count("on_error connection"), 1);
        assert!(site.driver.conn(conn).is_closed);
        site.finish(&[conn]);
    }
}

#[test]
fn a_request_of_a_client_that_has_left_already_knows() {
    let mut site = Site::new();
    let conn = site.driver.connect();
    site.driver.receive(conn, get("/park").repeat(2));
    site.driver.end(conn);
    let first = site.stage.handle();
    first.complete().unwrap();
    site.driver.settle();
    let second = site.stage.handle();
    assert_ne!(second.0.word().round(), 0);
    assert_eq!(second.0.word().state(), AsyncState::Started);
    assert!(second.0.word().has(Flag::PeerClosed));
    second.complete().unwrap();
    site.driver.settle();
    assert_eq!(site.driver.text(conn), answer("").repeat(2));
    site.finish(&[conn]);
}
