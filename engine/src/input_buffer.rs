//! Bytes that a connection received and nobody consumed yet. In the turn that brought them they
//! are read where the kernel put them; what is left when the turn's work on the connection is
//! over is copied, so that the buffer goes back at once and an idle connection owns none.

use crate::{
    buffer::Lease,
    canary::{self, Canary},
};

/// Unconsumed input of one connection.
#[derive(Debug, Default)]
pub struct InputBuffer {
    lease: Option<Lease>,
    rest: Vec<u8>,
    consumed: usize,
}

impl InputBuffer {
    /// The unconsumed bytes.
    pub fn bytes(&self) -> &[u8] {
        match &self.lease {
            Some(lease) => &lease[self.consumed..],
            None => &self.rest[self.consumed..],
        }
    }

    /// Whether everything was consumed.
    pub fn is_empty(&self) -> bool {
        self.bytes().is_empty()
    }

    /// Marks the first `count` bytes as consumed.
    pub fn consume(&mut self, count: usize) {
        assert!(count <= self.bytes().len(), "more consumed than there was");
        self.consumed += count;
    }

    /// Takes received bytes in, behind what is still unconsumed.
    pub(crate) fn receive(&mut self, lease: Lease) {
        self.settle();
        if self.rest.is_empty() {
            self.lease = Some(lease);
        } else {
            self.rest.extend_from_slice(&lease);
        }
    }

    /// Copies what is left of a lease and gives the lease back; frees the copy when it is empty.
    pub(crate) fn settle(&mut self) {
        if let Some(lease) = self.lease.take() {
            self.rest = lease[self.consumed..].to_vec();
            if canary::has(Canary::LeaseReturnedEarly) {
                // What the kernel filled the buffer with meanwhile.
                self.rest.fill(0xdd);
            }
        } else if self.consumed > 0 {
            self.rest.drain(..self.consumed);
            if self.rest.is_empty() {
                self.rest = Vec::new();
            }
        }
        self.consumed = 0;
    }

    /// Drops everything.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unconsumed_bytes_stay_in_order_over_turns() {
        let mut input = InputBuffer::default();
        input.receive(Lease::from_vec(b"abcdef".to_vec()));
        input.consume(4);
        assert_eq!(input.bytes(), b"ef");
        input.settle();
        assert_eq!(input.bytes(), b"ef");
        input.receive(Lease::from_vec(b"gh".to_vec()));
        assert_eq!(input.bytes(), b"efgh");
        input.consume(3);
        input.receive(Lease::from_vec(b"ij".to_vec()));
        assert_eq!(input.bytes(), b"hij");
        input.consume(3);
        input.settle();
        assert!(input.is_empty());
        assert_eq!(input.rest.capacity(), 0, "an idle connection owns no buffer");
    }
}
