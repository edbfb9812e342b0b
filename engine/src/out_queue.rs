//! What a connection still has to send: finished chunks, and a tail that small responses are
//! encoded into as long as it is not on its way. The queue owns the order; the ring carries one
//! send of it at a time.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::{
    backend::{Errno, Io, SendNow},
    buffer::{Chunk, Chunks},
    key::ConnKey,
};

/// Output of one connection, in order.
#[derive(Debug, Default)]
pub struct OutQueue {
    /// Apart, since most responses need no more than the tail, and every connection has a queue.
    #[expect(
        clippy::box_collection,
        reason = "an absent queue takes 8 bytes of every connection, an empty one 32"
    )]
    chunks: Option<Box<VecDeque<Chunk>>>,
    tail: Vec<u8>,
    queued_bytes: usize,
    in_flight_bytes: usize,
    sent_at_once_bytes: u64,
}

/// A chunk of this size and more is sent in pieces. A send shows only its end, so that a reader
/// must take a piece, or two, within the write timeout: with 60 s about 2 KB a second.
const PIECE_BYTES_MAX: usize = 64 * 1024;

/// Bytes a buffer for small responses starts with.
const TAIL_BYTES: usize = 4096;

impl OutQueue {
    /// The buffer that the next bytes are appended to.
    pub fn tail(&mut self) -> &mut Vec<u8> {
        if self.tail.capacity() == 0 {
            self.tail.reserve(TAIL_BYTES);
        }
        &mut self.tail
    }

    /// Offers a recycled buffer as tail, if there is none.
    pub(crate) fn offer_tail(&mut self, pool: &mut BufferPool) {
        if self.tail.capacity() == 0
            && let Some(buffer) = pool.take()
        {
            self.tail = buffer;
        }
    }

    /// Gives a tail that nothing was encoded into back: a connection that waits owns no buffer.
    pub(crate) fn return_tail(&mut self, pool: &mut BufferPool) {
        if self.tail.is_empty() && self.tail.capacity() > 0 {
            pool.recycle(Chunk::Owned(std::mem::take(&mut self.tail)));
        }
    }

    /// Appends bytes that are shared with the application, without a copy.
    pub fn push_shared(&mut self, mut bytes: Bytes) {
        self.seal_tail();
        self.queued_bytes += bytes.len();
        while bytes.len() > PIECE_BYTES_MAX {
            self.chunks_mut().push_back(Chunk::Shared(bytes.split_to(PIECE_BYTES_MAX)));
        }
        if !bytes.is_empty() {
            self.chunks_mut().push_back(Chunk::Shared(bytes));
        }
    }

    /// Bytes not sent yet, those under way included.
    pub fn len_bytes(&self) -> usize {
        self.queued_bytes + self.tail.len() + self.in_flight_bytes
    }

    /// Whether everything was sent.
    pub fn is_empty(&self) -> bool {
        self.len_bytes() == 0
    }

    /// Whether the ring carries a send of this queue.
    pub fn is_in_flight(&self) -> bool {
        self.in_flight_bytes > 0
    }

    /// Takes what the next send carries; `None` if one is under way or nothing waits.
    pub(crate) fn take_send(&mut self) -> Option<Chunks> {
        if self.is_in_flight() {
            return None;
        }
        if !self.has_chunks() && !self.tail.is_empty() && self.tail.len() <= PIECE_BYTES_MAX {
            self.in_flight_bytes = self.tail.len();
            return Some(Chunks::One(Chunk::Owned(std::mem::take(&mut self.tail))));
        }
        self.seal_tail();
        let first = self.pop_chunk()?;
        let chunks = if !self.has_chunks() {
            Chunks::One(first)
        } else {
            let mut many = vec![first];
            let mut bytes = many[0].len();
            while many.len() < Chunks::COUNT_MAX
                && bytes < PIECE_BYTES_MAX
                && let Some(next) = self.pop_chunk()
            {
                bytes += next.len();
                many.push(next);
            }
            Chunks::Many(many)
        };
        self.in_flight_bytes = chunks.len_bytes();
        self.queued_bytes -= self.in_flight_bytes;
        Some(chunks)
    }

    /// A send came back whole; its buffers go to the pool.
    pub(crate) fn on_sent(&mut self, chunks: Chunks, pool: &mut BufferPool) {
        assert!(self.in_flight_bytes == chunks.len_bytes(), "a send of another queue came back");
        self.in_flight_bytes = 0;
        match chunks {
            Chunks::One(chunk) => pool.recycle(chunk),
            Chunks::Many(chunks) => chunks.into_iter().for_each(|chunk| pool.recycle(chunk)),
        }
    }

    /// Gives up everything that is not under way.
    pub fn discard(&mut self) {
        self.chunks = None;
        self.tail = Vec::new();
        self.queued_bytes = 0;
    }

    /// Sends at once what the kernel takes, without waiting. Nothing is sent while the ring
    /// carries a send of this connection, since the order would be lost.
    ///
    /// # Errors
    /// The connection failed.
    pub fn send_now(&mut self, io: &dyn Io, conn: ConnKey) -> Result<(), Errno> {
        if self.is_in_flight() {
            return Ok(());
        }
        self.seal_tail();
        while let Some(chunk) = self.chunks.as_mut().and_then(|chunks| chunks.front_mut()) {
            let count = match io.send_now(conn, chunk) {
                SendNow::Sent(count) => count,
                SendNow::WouldBlock => return Ok(()),
                SendNow::Failed(errno) => return Err(errno),
            };
            self.queued_bytes -= count;
            self.sent_at_once_bytes += count as u64;
            if count == chunk.len() {
                let sent = self.pop_chunk();
                self.keep_as_tail(sent);
                continue;
            }
            match chunk {
                Chunk::Owned(bytes) => drop(bytes.drain(..count)),
                Chunk::Shared(bytes) => drop(bytes.split_to(count)),
            }
        }
        Ok(())
    }

    /// Bytes that left without the ring since this was asked last.
    pub(crate) fn take_sent_at_once(&mut self) -> u64 {
        std::mem::take(&mut self.sent_at_once_bytes)
    }

    /// The buffer of what was sent at once is the next tail, so that answers that leave this way
    /// cost no allocation either.
    fn keep_as_tail(&mut self, sent: Option<Chunk>) {
        if let Some(Chunk::Owned(mut buffer)) = sent
            && self.tail.capacity() == 0
            && buffer.capacity() <= POOL_BUFFER_BYTES_MAX
        {
            buffer.clear();
            self.tail = buffer;
        }
    }

    fn chunks_mut(&mut self) -> &mut VecDeque<Chunk> {
        self.chunks.get_or_insert_default()
    }

    fn has_chunks(&self) -> bool {
        self.chunks.as_ref().is_some_and(|chunks| !chunks.is_empty())
    }

    fn pop_chunk(&mut self) -> Option<Chunk> {
        self.chunks.as_mut().and_then(|chunks| chunks.pop_front())
    }

    fn seal_tail(&mut self) {
        if self.tail.is_empty() {
            return;
        }
        let tail = std::mem::take(&mut self.tail);
        if tail.len() > PIECE_BYTES_MAX {
            self.push_shared(Bytes::from(tail));
        } else {
            self.queued_bytes += tail.len();
            self.chunks_mut().push_back(Chunk::Owned(tail));
        }
    }
}

/// Empty send buffers of a core, for reuse.
#[derive(Debug, Default)]
pub(crate) struct BufferPool {
    buffers: Vec<Vec<u8>>,
}

/// Buffers that a pool keeps at most; more means that a burst is over.
const POOL_COUNT_MAX: usize = 64;

/// A buffer larger than this is freed instead of kept.
const POOL_BUFFER_BYTES_MAX: usize = 64 * 1024;

impl BufferPool {
    /// Buffers that wait for a use.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn len(&self) -> usize {
        self.buffers.len()
    }

    fn take(&mut self) -> Option<Vec<u8>> {
        self.buffers.pop()
    }

    fn recycle(&mut self, chunk: Chunk) {
        if let Chunk::Owned(mut buffer) = chunk
            && self.buffers.len() < POOL_COUNT_MAX
            && buffer.capacity() <= POOL_BUFFER_BYTES_MAX
        {
            buffer.clear();
            self.buffers.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, net::SocketAddr};

    use super::*;
    use crate::timestamp::Clock;

    const CONN: ConnKey = ConnKey { slot: 0, stamp: 1 };

    fn bytes_of(chunks: &Chunks) -> Vec<u8> {
        chunks.as_slice().iter().flat_map(|chunk| chunk.to_vec()).collect()
    }

    /// A kernel that takes `room` bytes in all.
    struct Kernel {
        room: RefCell<usize>,
        got: RefCell<Vec<u8>>,
    }

    impl Io for Kernel {
        fn send_now(&self, _conn: ConnKey, bytes: &[u8]) -> SendNow {
            let mut room = self.room.borrow_mut();
            let count = bytes.len().min(*room);
            if count == 0 {
                return SendNow::WouldBlock;
            }
            *room -= count;
            self.got.borrow_mut().extend_from_slice(&bytes[..count]);
            SendNow::Sent(count)
        }

        fn unread(&self, _conn: ConnKey) -> bool {
            false
        }

        fn clock(&self) -> Clock {
            Clock::system()
        }

        fn local_address(&self, _conn: ConnKey) -> Option<SocketAddr> {
            None
        }
    }

    #[test]
    fn order_is_kept_over_tail_and_shared_chunks() {
        let mut out = OutQueue::default();
        out.tail().extend_from_slice(b"one ");
        out.push_shared(Bytes::from_static(b"two "));
        out.tail().extend_from_slice(b"three");
        assert_eq!(out.len_bytes(), 13);
        let chunks = out.take_send().unwrap();
        assert_eq!(bytes_of(&chunks), b"one two three");
        assert!(out.take_send().is_none(), "one send at a time");
        out.tail().extend_from_slice(b"!");
        let mut pool = BufferPool::default();
        out.on_sent(chunks, &mut pool);
        assert_eq!(pool.buffers.len(), 2);
        assert_eq!(bytes_of(&out.take_send().unwrap()), b"!");
    }

    #[test]
    fn a_large_body_leaves_in_pieces() {
        let mut out = OutQueue::default();
        out.tail().extend_from_slice(&vec![7; PIECE_BYTES_MAX * 3]);
        let mut pool = BufferPool::default();
        let mut total = 0;
        while let Some(chunks) = out.take_send() {
            assert!(chunks.len_bytes() <= 2 * PIECE_BYTES_MAX);
            total += chunks.len_bytes();
            out.on_sent(chunks, &mut pool);
        }
        assert_eq!(total, PIECE_BYTES_MAX * 3);
        assert!(out.is_empty());
    }

    #[test]
    fn send_now_takes_what_fits_and_keeps_the_rest_in_order() {
        let mut out = OutQueue::default();
        out.tail().extend_from_slice(b"hello ");
        out.push_shared(Bytes::from_static(b"world"));
        let kernel = Kernel { room: RefCell::new(8), got: RefCell::default() };
        out.send_now(&kernel, CONN).unwrap();
        assert_eq!(*kernel.got.borrow(), b"hello wo");
        assert_eq!(out.len_bytes(), 3);
        assert_eq!(bytes_of(&out.take_send().unwrap()), b"rld");
    }

    #[test]
    fn what_was_sent_at_once_leaves_its_buffer() {
        let mut out = OutQueue::default();
        let kernel = Kernel { room: RefCell::new(100), got: RefCell::default() };
        out.tail().extend_from_slice(b"answer");
        let memory = out.tail().as_ptr();
        out.send_now(&kernel, CONN).unwrap();
        assert!(out.is_empty() && out.tail().is_empty());
        assert_eq!(out.tail().as_ptr(), memory);
    }
}
