//! The engine of ringcat: pinned core threads, each with its own io_uring, sockets, timers and
//! inbox. It moves bytes and keeps time; it does not know HTTP.
//!
//! A map of the crate:
//!
//! | module | what it is |
//! |---|---|
//! | [`backend`] | the event/command interface between a loop that owns a ring and a core |
//! | [`native`] | the backend that drives io_uring directly |
//! | [`core_thread`] | `Core`: acceptor, poller, socket slab, deadlines, message delivery |
//! | [`engine`] | starts and stops the cores of a server |
//! | [`connection_handler`] | the trait of the layer above, its socket events and socket states |
//! | [`socket`] | one entry a connection: input, out-queue, interest, deadlines |
//! | [`timer_wheel`] | every deadline of a core, O(1) arm and cancel |
//! | [`inbox`] | the only door for other threads, and its wake |
//! | [`slab`] | paged, stamped slots |
//! | [`worker_pool`] | bounded threads for code that blocks |
//! | [`parker`] | a thread that is not a core's waits until it is told to go on |
//! | [`cpus`] | which CPUs there are, lists of them, pinning |
//! | [`signals`] | the signals that end the process, waited for by one thread |
//! | [`local`] | what a core offers to futures that run on it: tasks, timers, TCP streams |
//! | [`current`] | who is running on this thread |
//! | `sim` | the simulator: a backend without a kernel, actors, faults (feature `sim`) |
//! | [`interleave`], [`observe`], [`canary`] | the simulator's hooks; nothing without it |

pub mod backend;
pub mod buffer;
pub mod canary;
pub mod connection_handler;
pub mod core_context;
pub mod core_counters;
pub mod core_thread;
pub mod cpus;
pub mod current;
pub mod engine;
pub mod event_fd;
pub mod few;
pub mod inbox;
pub mod input_buffer;
pub mod interleave;
pub mod key;
pub mod local;
pub mod native;
pub mod observe;
pub mod out_queue;
pub mod parker;
pub mod peer_address;
pub mod signals;
#[cfg(all(feature = "sim", not(loom)))]
pub mod sim;
pub mod slab;
pub mod socket;
pub mod sync;
pub mod timer_wheel;
pub mod timestamp;
pub mod worker_pool;
