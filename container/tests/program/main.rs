//! The server program as its users meet it: a process with options, a line when it listens, log
//! lines, signals, an exit status.
#![allow(clippy::unwrap_used, reason = "a test")]
#![allow(clippy::disallowed_methods, reason = "clients are threads, and time is what they measure")]

mod articles;
mod live;
mod options;
mod process;
mod stopping;
#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "each program of tests uses its part")]
mod support;
