//! A send in flight: it owns the bytes, and for a gathering send the vectors, until the kernel is
//! done with them.

use std::{fmt, os::fd::RawFd, ptr};

use super::{operation::Operation, user_data::UserData};
use crate::{
    buffer::Chunks,
    canary::{self, Canary},
};

/// A send of a connection. The bytes are heap memory of the chunks: they stay where they are when
/// this value moves.
#[derive(Debug)]
pub(crate) struct Sending {
    chunks: Chunks,
    sent_bytes: usize,
    gather: Option<Box<Gather>>,
}

/// What a completion means for a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// All bytes are with the kernel.
    Done,
    /// The rest is to be sent.
    Short,
    /// It failed with this errno.
    Failed(i32),
}

impl Sending {
    /// A send of which nothing is out.
    pub(crate) fn new(chunks: Chunks) -> Self {
        Self { chunks, sent_bytes: 0, gather: None }
    }

    /// The operation that sends what is left. `pool` lends the memory of a gathering send.
    ///
    /// # Safety
    /// `self` must not be dropped, nor changed but by [`Sending::on_completion`], before the
    /// operation's last completion.
    #[inline]
    pub(crate) unsafe fn operation(
        &mut self,
        fd: RawFd,
        name: UserData,
        pool: &mut GatherPool,
    ) -> Operation {
        if let Chunks::One(chunk) = &self.chunks {
            let rest = &chunk[self.sent_bytes..];
            let len = rest.len().min(SEND_BYTES_MAX) as u32;
            // SAFETY: the bytes are the chunk's heap memory; `self` owns the chunk, and the caller
            // keeps `self` until the last completion. Nothing here hands out the chunk mutably.
            return unsafe { Operation::send(fd, rest.as_ptr(), len, name) };
        }
        let gather = self.gather.get_or_insert_with(|| pool.take());
        let header = gather.fill(&self.chunks, self.sent_bytes);
        // SAFETY: header and vectors are in the box that `self` owns, the bytes in the chunks that
        // `self` owns; the caller keeps `self` until the last completion.
        unsafe { Operation::send_message(fd, header, name) }
    }

    /// Takes a completion's result in.
    #[inline]
    pub(crate) fn on_completion(&mut self, result: i32) -> Progress {
        let Ok(sent_bytes) = usize::try_from(result) else {
            // A signal before the first byte: nothing is out.
            return if result == -libc::EINTR {
                Progress::Short
            } else {
                Progress::Failed(-result)
            };
        };
        self.sent_bytes += sent_bytes;
        let total_bytes = self.chunks.len_bytes();
        assert!(self.sent_bytes <= total_bytes, "the kernel sends no more than given");
        match (self.sent_bytes == total_bytes, sent_bytes) {
            (true, _) => Progress::Done,
            // No kernel takes nothing of something; sending again for ever would hide it.
            (false, 0) => Progress::Failed(libc::EPIPE),
            (false, _) if canary::has(Canary::ShortSendTakenForWhole) => Progress::Done,
            (false, _) => Progress::Short,
        }
    }

    /// Bytes that are not out yet.
    #[cfg(all(feature = "sim", not(loom)))]
    pub(crate) fn left_bytes(&self) -> usize {
        self.chunks.len_bytes() - self.sent_bytes
    }

    /// What is not out yet, in order.
    #[cfg(all(feature = "sim", not(loom)))]
    pub(crate) fn rest(&self) -> impl Iterator<Item = &[u8]> {
        let mut skip_bytes = self.sent_bytes;
        self.chunks.as_slice().iter().map(move |chunk| {
            let skipped = skip_bytes.min(chunk.len());
            skip_bytes -= skipped;
            &chunk[skipped..]
        })
    }

    /// The chunks of a send that used no vectors of the kernel's.
    #[cfg(all(feature = "sim", not(loom)))]
    pub(crate) fn into_whole_chunks(self) -> Chunks {
        self.chunks
    }

    /// The chunks, after the last completion.
    pub(crate) fn into_chunks(self, pool: &mut GatherPool) -> Chunks {
        if let Some(gather) = self.gather {
            pool.put(gather);
        }
        self.chunks
    }
}

/// Vectors and header of a gathering send. Always boxed: the header points to the vectors.
struct Gather {
    vectors: [libc::iovec; Chunks::COUNT_MAX],
    header: libc::msghdr,
}

impl Gather {
    fn new() -> Box<Self> {
        let vector = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
        let header = libc::msghdr {
            msg_name: ptr::null_mut(),
            msg_namelen: 0,
            msg_iov: ptr::null_mut(),
            msg_iovlen: 0,
            msg_control: ptr::null_mut(),
            msg_controllen: 0,
            msg_flags: 0,
        };
        Box::new(Self { vectors: [vector; Chunks::COUNT_MAX], header })
    }

    /// Names the bytes of `chunks` after the first `skip_bytes`, as many chunks as fit.
    fn fill(&mut self, chunks: &Chunks, mut skip_bytes: usize) -> *const libc::msghdr {
        let mut room_bytes = SEND_BYTES_MAX;
        let mut count = 0;
        for chunk in chunks.as_slice() {
            let skipped = skip_bytes.min(chunk.len());
            skip_bytes -= skipped;
            let rest = &chunk[skipped..];
            if rest.is_empty() {
                continue;
            }
            if count == self.vectors.len() || room_bytes == 0 {
                break;
            }
            let len = rest.len().min(room_bytes);
            room_bytes -= len;
            // The kernel only reads; the interface has one vector type for both directions.
            self.vectors[count] =
                libc::iovec { iov_base: rest.as_ptr().cast_mut().cast(), iov_len: len };
            count += 1;
        }
        self.header.msg_iov = self.vectors.as_mut_ptr();
        self.header.msg_iovlen = count as _;
        &raw const self.header
    }
}

impl fmt::Debug for Gather {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} vectors", self.header.msg_iovlen)
    }
}

/// Memory of gathering sends that ended, for the next ones.
#[derive(Debug, Default)]
#[expect(clippy::vec_box, reason = "a gather stays where it is while the kernel reads it")]
pub(crate) struct GatherPool(Vec<Box<Gather>>);

impl GatherPool {
    fn take(&mut self) -> Box<Gather> {
        self.0.pop().unwrap_or_else(Gather::new)
    }

    fn put(&mut self, gather: Box<Gather>) {
        if self.0.len() < POOLED_MAX {
            self.0.push(gather);
        }
    }
}

/// Bytes of one operation: its result is an `i32`, and the kernel cuts off just below 2^31.
const SEND_BYTES_MAX: usize = 1 << 30;

/// Gathers kept for reuse, 320 bytes each.
const POOLED_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::buffer::Chunk;

    fn many(parts: &[&'static [u8]]) -> Chunks {
        Chunks::Many(parts.iter().map(|part| Chunk::Shared(Bytes::from_static(part))).collect())
    }

    fn lengths(gather: &Gather) -> Vec<usize> {
        gather.vectors[..gather.header.msg_iovlen].iter().map(|vector| vector.iov_len).collect()
    }

    #[test]
    fn a_gather_goes_on_behind_what_was_sent() {
        let chunks = many(&[b"abc", b"", b"defg", b"h"]);
        let check = |skip_bytes, expected: &[usize], first: Option<u8>| {
            let mut gather = Gather::new();
            let header = gather.fill(&chunks, skip_bytes);
            assert!(!header.is_null());
            assert_eq!(lengths(&gather), expected, "after {skip_bytes}");
            if let Some(first) = first {
                let base = gather.vectors[0].iov_base.cast::<u8>();
                // SAFETY: the vector names a byte of a chunk that lives.
                assert_eq!(unsafe { base.read() }, first);
            }
        };
        check(0, &[3, 4, 1], Some(b'a'));
        check(2, &[1, 4, 1], Some(b'c'));
        check(3, &[4, 1], Some(b'd'));
        check(5, &[2, 1], Some(b'f'));
        check(8, &[], None);
    }

    #[test]
    fn more_chunks_than_vectors_take_several_operations() {
        let chunks = many(&[b"ab".as_slice(); 20]);
        let mut gather = Gather::new();
        gather.fill(&chunks, 0);
        assert_eq!(lengths(&gather), [2; 16]);
        gather.fill(&chunks, 32);
        assert_eq!(lengths(&gather), [2; 4]);
    }

    #[test]
    fn short_and_failed_sends() {
        let mut sending = Sending::new(many(&[b"abc", b"de"]));
        assert_eq!(sending.on_completion(2), Progress::Short);
        assert_eq!(sending.on_completion(-libc::EINTR), Progress::Short);
        assert_eq!(sending.on_completion(3), Progress::Done);
        let mut sending = Sending::new(many(&[b"abc"]));
        assert_eq!(sending.on_completion(0), Progress::Failed(libc::EPIPE));
        assert_eq!(sending.on_completion(-libc::ECONNRESET), Progress::Failed(libc::ECONNRESET));
        let mut sending = Sending::new(many(&[]));
        assert_eq!(sending.on_completion(0), Progress::Done);
    }
}
