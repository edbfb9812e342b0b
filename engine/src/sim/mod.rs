//! The simulator's part of the engine: a whole server in one thread, moved by one seed.
//!
//! Everything that runs is an *actor* on a stack of its own (a fiber): the cores with their
//! unchanged loops above [`backend::SimBackend`], worker jobs, foreign threads, clients. Exactly
//! one runs at a time. It gives way where it waits (for bytes, a lock, a wake, the clock) and in
//! the windows that [`interleave`](crate::interleave::interleave) names; who goes on then, and
//! which faults hit, is drawn from the seed. Nothing reads a clock or randomness of the system,
//! so a run is a function of its seed and the build.
//!
//! | module | what it is |
//! |---|---|
//! | [`world`] | one run: clock, seed, failure, and the entry [`simulate`](world::simulate) |
//! | `scheduler` | the actors and who goes next |
//! | [`fault`] | what may go wrong, and how often |
//! | [`trace`] | what happened, for the eye and for comparing two runs |
//! | [`network`] | connections in memory: a server end, a client end, bytes between |
//! | [`upstream`] | servers that the cores connect to |
//! | [`backend`] | the loop of a core, and what a core may ask in the middle of a callback |
//! | `connection` | one connection's simulated operations in flight |
//! | [`engine`] | starts, drains and awaits simulated cores |
//! | [`pool`] | a worker pool whose threads are actors |
//! | [`sync`] | locks and threads of actors |
//!
//! The hooks above the backend are few: [`interleave`](crate::interleave),
//! [`observe`](crate::observe), [`canary`](crate::canary), [`sync`](crate::sync), the clock, and
//! the swap of [`Current`](crate::current::Current). Without the feature `sim` they are nothing.

pub mod backend;
pub(crate) mod connection;
pub mod engine;
pub mod fault;
pub mod network;
pub mod pool;
mod scheduler;
pub mod sync;
pub mod trace;
pub mod upstream;
pub mod world;
