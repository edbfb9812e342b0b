//! Bytes on their way in and out: leases of received bytes, chunks of bytes to send.

use std::ops::Deref;

use bytes::Bytes;

use crate::native::buffer_ring::RingLease;

/// Received bytes, lent by the backend. Dropping the lease gives its buffer back.
///
/// A lease never leaves its core (`!Send`) and goes back in the turn that brought it; what must
/// live longer is copied. That bounds the buffers a core needs by what one turn brings, not by
/// the number of its connections.
#[derive(Debug)]
pub struct Lease(Source);

#[derive(Debug)]
enum Source {
    Ring(RingLease),
    Heap(Vec<u8>),
    #[cfg(all(feature = "sim", not(loom)))]
    Sim(crate::sim::connection::SimLease),
}

impl Lease {
    /// A lease of heap bytes, for backends without a buffer ring.
    pub fn from_vec(bytes: Vec<u8>) -> Self {
        Self(Source::Heap(bytes))
    }

    /// A lease of a simulated buffer.
    #[cfg(all(feature = "sim", not(loom)))]
    pub(crate) fn from_sim(lease: crate::sim::connection::SimLease) -> Self {
        Self(Source::Sim(lease))
    }

    /// A lease of a buffer that the kernel filled.
    pub(crate) fn from_ring(lease: RingLease) -> Self {
        Self(Source::Ring(lease))
    }
}

impl Deref for Lease {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Source::Ring(lease) => lease,
            Source::Heap(bytes) => bytes,
            #[cfg(all(feature = "sim", not(loom)))]
            Source::Sim(lease) => lease.bytes(),
        }
    }
}

/// A piece of output. The operation that sends it owns it until its last completion.
#[derive(Debug)]
pub enum Chunk {
    /// Bytes of a buffer that comes back for reuse with [`Event::Sent`](crate::backend::Event).
    Owned(Vec<u8>),
    /// Bytes shared with the application.
    Shared(Bytes),
}

impl Deref for Chunk {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Owned(bytes) => bytes,
            Self::Shared(bytes) => bytes,
        }
    }
}

/// What one send carries: one chunk, or up to [`Chunks::COUNT_MAX`] of them in order.
#[derive(Debug)]
pub enum Chunks {
    /// The usual case: a head with a small body, or several small responses, in one buffer.
    One(Chunk),
    /// A gathering send.
    Many(Vec<Chunk>),
}

impl Chunks {
    /// Chunks that one send takes at most.
    pub const COUNT_MAX: usize = 16;

    /// The chunks in order.
    pub fn as_slice(&self) -> &[Chunk] {
        match self {
            Self::One(chunk) => std::slice::from_ref(chunk),
            Self::Many(chunks) => chunks,
        }
    }

    /// Bytes in all.
    pub fn len_bytes(&self) -> usize {
        self.as_slice().iter().map(|chunk| chunk.len()).sum()
    }
}
