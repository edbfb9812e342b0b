//! The native backend: io_uring, driven directly.
//!
//! | module | what it is |
//! |---|---|
//! | [`options`] | the knobs |
//! | [`probe`] | what this host's io_uring can do, or one line that says why not |
//! | [`listen`] | listening sockets, one a core and address |
//! | [`backend`] | [`NativeBackend`](backend::NativeBackend): the loop, dispatch of completions |
//! | `execute` | what the handler's commands do |
//! | `accept` | the acceptors of a core: arm, pause, drain |
//! | `dispatch` | what completions of connections and files mean |
//! | `connection` | a connection's slot and its pure next-step functions |
//! | `send`, `file` | operations that own memory which the kernel reads or writes |
//! | `sockets` | what backend and handler share: connections, clock; the [`Io`] of a handler |
//! | `ring` | the queues: push, enter, reap |
//! | `operation` | submission entries with the memory rules in their constructors |
//! | `buffer_ring` | the provided buffers and the leases of them |
//! | `user_data` | the name of an operation in 64 bits |
//! | `socket_calls` | the few system calls on sockets that do not go through the ring |
//! | [`stats`] | counters of a core |
//!
//! [`Io`]: crate::backend::Io

mod accept;
pub mod backend;
pub(crate) mod buffer_ring;
pub(crate) mod connection;
mod dispatch;
mod execute;
mod file;
pub mod listen;
mod operation;
pub mod options;
pub mod probe;
mod ring;
pub(crate) mod send;
mod socket_calls;
pub(crate) mod sockets;
pub mod stats;
mod user_data;
