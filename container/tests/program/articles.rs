//! The examples of the articles on asynchronous servlets: answers, threads, changes of state.

use std::{thread, time::Instant};

use crate::{process::Process, support::PATIENCE};

/// The states of the log in order, from the first on.
fn states(process: &Process) -> Vec<String> {
    let mut states = Vec::new();
    for line in process.log() {
        let Some((_, change)) = line.split_once("state: Changing async state from [") else {
            continue;
        };
        let (from, to) = change.trim_end_matches(']').split_once("] to [").unwrap();
        if states.is_empty() {
            states.push(from.to_owned());
        }
        states.push(to.to_owned());
    }
    states
}

/// Waits until the log, which comes on its own way, shows these states.
fn expect_states(process: &Process, expected: &[&str]) {
    let begun = Instant::now();
    while states(process) != expected {
        assert!(begun.elapsed() < PATIENCE, "{:?}, not {expected:?}", states(process));
        thread::yield_now();
    }
}

fn check(target: &str, status: u16, body: &str, expected: &[&str]) {
    let process = Process::start(&["--cores", "1", "--log", "trace"]);
    let answer = process.client().get(target);
    assert_eq!((answer.status, answer.is_whole), (status, true), "{target}");
    assert!(answer.text().contains(body), "{target}: {}", answer.text());
    expect_states(&process, expected);
    assert_eq!(process.stop().status.code(), Some(0));
}

#[test]
fn complete_from_an_own_thread() {
    check(
        "/examples/async?mode=complete",
        200,
        "completed by own-thread-1\n",
        &["DISPATCHED", "STARTING", "STARTED", "COMPLETING", "DISPATCHED"],
    );
}

#[test]
fn dispatch_from_an_own_thread() {
    check(
        "/examples/async?mode=dispatch",
        200,
        "dispatched back, result=42\n",
        &["DISPATCHED", "STARTING", "STARTED", "DISPATCHING", "DISPATCHED"],
    );
}

#[test]
fn a_timeout_that_its_listener_handles() {
    check(
        "/examples/timeout?handle=complete",
        200,
        "timed out, handled in onTimeout()\n",
        &["DISPATCHED", "STARTING", "STARTED", "TIMING_OUT", "COMPLETING", "DISPATCHED"],
    );
}

#[test]
fn a_timeout_that_nobody_handles_and_the_late_complete() {
    let process = Process::start(&["--cores", "1", "--log", "trace"]);
    let answer = process.client().get("/examples/timeout?handle=none");
    assert_eq!((answer.status, answer.is_whole), (500, true));
    let expected =
        ["DISPATCHED", "STARTING", "STARTED", "TIMING_OUT", "ERROR", "COMPLETING", "DISPATCHED"];
    expect_states(&process, &expected);
    let late = process.wait_for("is too late");
    assert!(late.starts_with("[own-thread-1] "), "{late}");
    assert_eq!(states(&process), expected, "the late call changes nothing");
    process.stop();
}

#[test]
fn every_change_is_logged_by_its_thread() {
    let process = Process::start(&["--cores", "1", "--log", "trace"]);
    process
        .client()
        .get("/examples/async?mode=complete")
        .expect(200, "completed by own-thread-1\n");
    process
        .wait_for("[http-uring-core-0] state: Changing async state from [STARTING] to [STARTED]");
    process.wait_for("[own-thread-1] state: Changing async state from [STARTED] to [COMPLETING]");
    process.wait_for("[http-uring-core-0] async: onComplete()");
    process.stop();
}

#[test]
fn async_without_support_is_500_and_names_the_servlet() {
    let process = Process::start(&[]);
    assert_eq!(process.client().get("/examples/noasync").status, 500);
    let line = process.wait_for("do not support async");
    assert!(line.contains("WARN") && line.contains("servlet noasync"), "{line}");
    process.stop();
}

#[test]
fn content_in_three_pieces_is_three_calls() {
    let process = Process::start(&[]);
    let mut client = process.client();
    client.ask_with("POST /examples/upload", &["Content-Length: 15"], "");
    for (call, piece) in ["aaaaa", "bbbbb", "ccccc"].into_iter().enumerate() {
        client.send(piece);
        process.wait_for(&format!("onDataAvailable() call {}: 5 bytes", call + 1));
    }
    client.answer().expect(200, "read 15 bytes\n");
    process.wait_for("onAllDataRead(): 15 bytes in 3 calls");
    process.stop();
}

/// Seconds that each of three requests at once takes, in order.
fn three_at_once(process: &Process, target: &'static str) -> Vec<f64> {
    let address = process.address();
    let clients: Vec<_> = (1..=3)
        .map(|number| {
            thread::spawn(move || {
                let begun = Instant::now();
                let mut client = crate::support::Client::connect(address);
                assert_eq!(client.get(&format!("{target}?n={number}")).status, 200);
                begun.elapsed().as_secs_f64()
            })
        })
        .collect();
    let mut seconds: Vec<f64> = clients.into_iter().map(|c| c.join().unwrap()).collect();
    seconds.sort_by(f64::total_cmp);
    seconds
}

#[test]
fn one_core_sleeps_one_after_the_other_and_parks_all_at_once() {
    let process = Process::start(&["--cores", "1"]);
    let check = |target, expected: [f64; 3]| {
        let seconds = three_at_once(&process, target);
        for (seconds, least) in seconds.iter().zip(expected) {
            // The three do not begin at the same moment, so the last may wait a little less.
            let bounds = least - 0.2..least + 1.5;
            assert!(bounds.contains(seconds), "{target}: {seconds} s, not {least}");
        }
    };
    check("/examples/sync", [2.0, 4.0, 6.0]);
    check("/examples/sync-blocking", [2.0, 2.0, 2.0]);
    check("/examples/async-slow", [2.0, 2.0, 2.0]);
    process.stop();
}
