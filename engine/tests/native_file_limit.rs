//! A process that runs out of descriptors. In a binary of its own with one test, since the limit
//! is the process's.

#![allow(clippy::unwrap_used, reason = "a test")]
#![allow(dead_code, reason = "the harness serves more tests than this one")]

#[path = "native_backend/harness.rs"]
mod harness;

use std::{net::TcpStream, sync::mpsc};

use harness::{Server, Turn, next};
use ringcat_engine::{
    backend::{Command, Event},
    native::options::NativeOptions,
};

#[test]
fn accepting_pauses_without_descriptors_and_goes_on_after_a_close() {
    let (sender, accepted) = mpsc::channel();
    let (closed_sender, closed) = mpsc::channel();
    let server = Server::start(NativeOptions::default(), move || {
        move |_: &mut Turn<'_>, event: Event| match event {
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
    server.command(Command::ResumeAccept);
    // Each descriptor that is given back lets one client in, at once or after the pause.
    server.command(Command::Close(conn));
    for _ in &clients {
        let conn = next(&accepted);
        server.command(Command::Close(conn));
    }
    drop(first);
    let counts = server.stop();
    assert!(counts.accept_pauses > 0, "{counts:?}");
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
