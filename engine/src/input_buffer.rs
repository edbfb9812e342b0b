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
    held: Held,
    consumed: usize,
}

/// Where the bytes are, those included that were consumed in this turn.
#[derive(Debug, Default)]
enum Held {
    #[default]
    None,
    Lease(Lease),
    Copy(Vec<u8>),
}

impl InputBuffer {
    /// The unconsumed bytes.
    pub fn bytes(&self) -> &[u8] {
        match &self.held {
            Held::None => &[],
            Held::Lease(lease) => &lease[self.consumed..],
            Held::Copy(rest) => &rest[self.consumed..],
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
        match &mut self.held {
            Held::Copy(rest) => rest.extend_from_slice(&lease),
            Held::None | Held::Lease(_) => self.held = Held::Lease(lease),
        }
    }

    /// Copies what is left of a lease and gives the lease back; frees the copy when it is empty.
    pub(crate) fn settle(&mut self) {
        let consumed = std::mem::take(&mut self.consumed);
        match &mut self.held {
            Held::None => {}
            Held::Lease(lease) if consumed == lease.len() => self.held = Held::None,
            Held::Lease(lease) => {
                let mut rest = lease[consumed..].to_vec();
                if canary::has(Canary::LeaseReturnedEarly) {
                    // What the kernel filled the buffer with meanwhile.
                    rest.fill(0xdd);
                }
                self.held = Held::Copy(rest);
            }
            Held::Copy(rest) if consumed == rest.len() => self.held = Held::None,
            Held::Copy(rest) => drop(rest.drain(..consumed)),
        }
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
        assert!(matches!(input.held, Held::None), "an idle connection owns no buffer");
    }
}
