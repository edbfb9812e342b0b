//! A process that runs out of descriptors. In a binary of its own with one test, since the limit
//! is the process's.

#![allow(clippy::unwrap_used, reason = "a test")]
#![allow(dead_code, reason = "the harness serves more tests than this one")]

#[path = "native_backend/harness.rs"]
mod harness;

use std::{
    net::TcpStream,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    time::{Duration, Instant},
};

use harness::{Server, Turn, next};
use ringcat_engine::{
    backend::{Command, Event},
    native::options::NativeOptions,
};

#[test]
fn accepting_pauses_without_descriptors_and_goes_on_after_a_close() {
    let (sender, accepted) = mpsc::channel();
    let (closed_sender, closed) = mpsc::channel();
    let turns = Arc::new(AtomicU64::new(0));
    let core_turns = Arc::clone(&turns);
    let server = Server::start(NativeOptions::default(), move || {
        move |_: &mut Turn<'_>, event: Event| match event {
            // One a turn, and a turn is an enter.
            Event::Timeout => drop(core_turns.fetch_add(1, Ordering::Relaxed)),
            Event::Accepted { conn, .. } => sender.send(conn).unwrap(),
            Event::Closed(conn) => closed_sender.send(conn).unwrap(),
            _ => {}
        }
    });
    let first = server.connect();
    let conn = next(&accepted);
    let second = server.connect();
    let second_conn = next(&accepted);
    // The clients take all descriptors of this process, and none is left to accept with. What is
    // closed after the pause was asked for says that the acceptor is at rest.
    server.command(Command::PauseAccept);
    server.command(Command::Close(second_conn));
    assert_eq!(next(&closed), second_conn);
    drop(second);
    let limit = libc::rlimit { rlim_cur: highest_descriptor() + 5, rlim_max: hard_limit() };
    // SAFETY: the kernel reads the `rlimit` during the call.
    let answer = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
    let clients: Vec<TcpStream> =
        std::iter::from_fn(|| TcpStream::connect(server.address).ok()).collect();
    assert!(clients.len() >= 3, "{} clients", clients.len());
    let start = (Instant::now(), turns.load(Ordering::Relaxed));
    server.command(Command::ResumeAccept);
    // Nothing can be accepted now. A loop that armed the accept again at once would fail hundreds
    // of thousands of times a second; this one tries every 100 ms.
    assert_eq!(accepted.recv_timeout(Duration::from_millis(300)), Err(RecvTimeoutError::Timeout));
    let (elapsed, turns) = (start.0.elapsed(), turns.load(Ordering::Relaxed) - start.1);
    assert!(turns >= 1, "the core did not try");
    assert!(u128::from(turns) <= 20 + elapsed.as_millis() / 10, "{turns} turns in {elapsed:?}");
    // Each descriptor that is given back lets one client in, at once or after the pause.
    server.command(Command::Close(conn));
    for _ in &clients {
        let conn = next(&accepted);
        server.command(Command::Close(conn));
    }
    drop(first);
    let counts = server.stop();
    assert!(counts.accept_pauses > 0, "{counts:?}");
    // One a pause: three in the wait above, and each close may let an accept fail once more.
    let errors_max = 20 + 2 * clients.len() as u64 + elapsed.as_millis() as u64 / 50;
    assert!(counts.accept_errors <= errors_max, "{counts:?}, at most {errors_max} expected");
}

/// The highest number in use: the limit is on numbers, not on their count.
fn highest_descriptor() -> u64 {
    let names = std::fs::read_dir("/proc/self/fd").unwrap();
    let number = |name: std::ffi::OsString| name.to_str().unwrap().parse().unwrap();
    names.map(|entry| number(entry.unwrap().file_name())).max().unwrap()
}

fn hard_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes the `rlimit` during the call.
    let answer = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    assert_eq!(answer, 0);
    limit.rlim_max
}
