//! What tests of a whole server share: a raw client, a server in this process, servlets made of
//! closures, a journal of what happened, and ways to wait. The client and the server here are on
//! sockets of the kernel; `simulated` has those of the simulator, and all else serves both.

mod answer;
mod channel;
mod client;
mod journal;
mod servlets;
mod signal;
mod socket;

use std::time::Duration;

use ringcat_engine::{sync::thread, timestamp::Clock};

#[allow(unused_imports, reason = "each program of tests uses its part")]
pub(crate) use self::{
    answer::{Answer, request},
    channel::{Receiver, Waiting, channel, take},
    client::{Conversation, Stream},
    journal::{Journal, Noting, Reaction},
    servlets::{blocking, handing_over, parking, streaming},
    signal::{Signal, Yield, block_on},
    socket::{Client, TestServer, builder},
};

/// For anything that a healthy server does at once. A test that waits this long has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Waits for something that no event tells of.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let clock = Clock::system();
    let begun = clock.now();
    while !is_so() {
        assert!(clock.now().saturating_since(begun) < PATIENCE, "waited in vain: {what}");
        // A moment of its own clock, so that a simulated wait moves that on.
        thread::park_timeout(Duration::from_micros(100));
    }
}
