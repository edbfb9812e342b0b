//! The signals that end the process. A program without a test harness: a harness has threads of
//! its own, which would take a signal that is sent to the process.

use std::{
    fs::File,
    io::{self, Write},
    os::{fd::OwnedFd, unix::net::UnixStream},
    thread,
};

use ringcat_engine::signals::{Signal, Signals};

fn main() {
    // A lost signal must end the test, not hang it.
    // SAFETY: alarm(2) takes a number.
    unsafe { libc::alarm(30) };
    // Rust's start-up ignores SIGPIPE already; undone, so that `block` has to do it.
    // SAFETY: SIG_DFL is no function that could do harm.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };

    let signals = Signals::block().expect("the signals can be blocked");
    from_another_thread(&signals, Signal::Terminate);
    from_another_thread(&signals, Signal::Interrupt);
    both_wait_for_their_turn(&signals);
    a_peer_that_left_is_an_errno();
}

fn send_to_process(signal: Signal) {
    // SAFETY: kill(2) and getpid(2) take no pointers.
    let pid = unsafe { libc::getpid() };
    // SAFETY: as above.
    let failed = unsafe { libc::kill(pid, signal.number()) };
    assert_eq!(failed, 0);
}

/// The other thread stands for a core: it inherits the mask, so the signal goes to the waiter.
fn from_another_thread(signals: &Signals, signal: Signal) {
    let core = thread::spawn(move || send_to_process(signal));
    assert_eq!(signals.wait(), signal);
    core.join().expect("the sender does not panic");
}

fn both_wait_for_their_turn(signals: &Signals) {
    send_to_process(Signal::Interrupt);
    send_to_process(Signal::Terminate);
    let mut numbers = [signals.wait().number(), signals.wait().number()];
    numbers.sort_unstable();
    assert_eq!(numbers, [libc::SIGINT, libc::SIGTERM]);
}

fn a_peer_that_left_is_an_errno() {
    let (ours, theirs) = UnixStream::pair().expect("a socket pair can be made");
    drop(theirs);
    // `UnixStream` sends with MSG_NOSIGNAL; write(2), which a file uses, knows no such flag.
    let mut file = File::from(OwnedFd::from(ours));
    let error = file.write(b"x").expect_err("nobody reads");
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
}
