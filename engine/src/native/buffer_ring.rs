//! The provided-buffer ring.

/// A received buffer.
#[derive(Debug)]
pub(crate) struct RingLease;

impl std::ops::Deref for RingLease {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &[]
    }
}
