//! The whole server, driven by clients that know the wire: each module is one idea, each test has
//! a server of its own. Most run in the simulator; what is the kernel's is in `kernel`.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests fail by panics, and their clients and workers are threads with clocks"
)]

#[path = "../support/simulated/mod.rs"]
mod simulated;
#[path = "../support/mod.rs"]
mod support;

mod async_edges;
mod async_errors;
mod async_io;
mod async_life;
mod async_servlets;
mod async_timeouts;
mod bodies;
mod dispatches;
mod drain;
mod errors;
mod filters;
mod foreign_writes;
mod kernel;
mod limits;
mod mapping;
mod pipelining;
mod read_listeners;
mod responses;
mod servlets;
mod workers;
