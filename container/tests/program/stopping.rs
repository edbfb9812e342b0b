//! How the program ends: nothing that was accepted is lost, and the counters add up.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
};

use crate::{process::Process, support::Client};

/// Requests on one connection until the server closes it; answers must be whole.
fn ask_until_closed(
    address: SocketAddr,
    answered: &Arc<AtomicU64>,
    stopped: &Arc<AtomicBool>,
) -> JoinHandle<()> {
    let (answered, stopped) = (Arc::clone(answered), Arc::clone(stopped));
    thread::spawn(move || {
        let mut client = Client::connect(address);
        loop {
            if !client.try_send("GET /examples/hello HTTP/1.1\r\nHost: a\r\n\r\n") {
                break;
            }
            let Some(answer) = client.answer_or_end() else { break };
            assert_eq!((answer.status, answer.is_whole), (200, true));
            answered.fetch_add(1, Ordering::Relaxed);
            if answer.field("Connection") == Some("close") {
                assert!(stopped.load(Ordering::Relaxed), "closed before the server was stopped");
                return;
            }
        }
        panic!("a request that the server had accepted was lost");
    })
}

#[test]
fn a_signal_under_load_loses_no_request() {
    for signal in ["TERM", "INT"] {
        let process = Process::start(&["--cores", "2"]);
        let (answered, stopped) = (Arc::default(), Arc::default());
        let clients: Vec<_> =
            (0..16).map(|_| ask_until_closed(process.address(), &answered, &stopped)).collect();
        while answered.load(Ordering::Relaxed) < 2000 {
            thread::yield_now();
        }
        stopped.store(true, Ordering::Relaxed);
        process.signal(signal);
        clients.into_iter().for_each(|client| client.join().unwrap());
        let ended = process.ended();
        assert_eq!(ended.status.code(), Some(0), "{:?}", ended.log);
        assert_eq!(ended.counter("answered"), answered.load(Ordering::Relaxed));
    }
}

#[test]
fn parked_requests_are_answered_before_the_end() {
    let process = Process::start(&["--drain-timeout", "20s"]);
    let mut clients: Vec<Client> = (0..50).map(|_| process.client()).collect();
    for client in &mut clients {
        client.ask("GET /examples/delay/1000");
    }
    // A second request on a connection of its own is answered: all the others are parked by then,
    // or on their way in.
    process.client().get("/examples/hello").expect(200, "hello, wire\n");
    process.signal("TERM");
    for mut client in clients {
        let answer = client.answer();
        assert_eq!((answer.status, answer.field("Connection")), (200, Some("close")));
    }
    let ended = process.ended();
    assert_eq!((ended.status.code(), ended.counter("answered")), (Some(0), 51));
}

#[test]
fn what_is_parked_at_the_drain_limit_is_timed_out() {
    let process = Process::start(&["--drain-timeout", "300ms", "--async-timeout", "0"]);
    let mut client = process.client();
    client.ask("GET /examples/delay/600000");
    process.client().get("/examples/hello").expect(200, "hello, wire\n");
    process.signal("TERM");
    assert_eq!(client.answer().status, 500);
    let ended = process.ended();
    assert_eq!(ended.status.code(), Some(0), "{:?}", ended.log);
}

#[test]
fn a_second_signal_ends_the_process_at_once() {
    let process = Process::start(&["--drain-timeout", "10m"]);
    let mut client = process.client();
    client.ask("GET /examples/delay/600000");
    process.client().get("/examples/hello").expect(200, "hello, wire\n");
    process.signal("TERM");
    process.wait_for("draining");
    process.signal("INT");
    assert_eq!(process.ended().status.code(), Some(128 + 2));
}

#[test]
fn two_thousand_parked_requests_are_each_answered_once() {
    const COUNT: usize = 2000;
    let process = Process::start(&[]);
    let mut clients: Vec<Client> = (0..COUNT).map(|_| process.client()).collect();
    for client in &mut clients {
        client.ask("GET /examples/delay/1500");
    }
    for client in &mut clients {
        client.answer().expect(200, "done\n");
    }
    // Nothing else comes: the next answer is that of the next request.
    for client in clients.iter_mut().step_by(50) {
        client.get("/examples/hello").expect(200, "hello, wire\n");
    }
    drop(clients);
    let ended = process.stop();
    let expected = (COUNT + COUNT / 50) as u64;
    assert_eq!((ended.status.code(), ended.counter("answered")), (Some(0), expected));
}
