//! The support for tests that run in the simulator: what `support` has for sockets of the kernel,
//! under the same names, and what stands in for threads and their clock. Such a test waits in no
//! other way than these modules offer, since all its threads are actors of one.

mod actors;
mod run;
mod server;

pub(crate) use self::{
    actors::{Barrier, await_rest, expect_elapsed, now, sleep, spawn},
    run::{simulated, simulated_without},
    server::{Builder, Client, TestServer, await_refusal, builder, builder_at, is_refused},
};
