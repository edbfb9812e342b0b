//! The native backend: io_uring, driven directly.

pub(crate) mod buffer_ring;
