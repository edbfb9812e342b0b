//! The provided-buffer ring: memory that the kernel fills with received bytes, and the leases
//! under which the handler reads it.
//!
//! One mapping holds the ring of entries (16 bytes each, from a page border) and then the buffers.
//! A buffer is at each moment in one hand: the kernel's, from the publication of its entry to the
//! completion that names it, or a [`RingLease`]'s. The mapping outlives both: leases share it by
//! reference count, and the backend keeps its share until no receive is in flight.

use std::{
    cell::Cell,
    fmt, io,
    ops::Deref,
    ptr::NonNull,
    rc::Rc,
    slice,
    sync::atomic::{AtomicU16, Ordering},
};

use io_uring::{Submitter, types::BufRingEntry};

use super::operation::BUFFER_GROUP;

/// The buffers of a ring.
pub(crate) struct BufferRing {
    mapping: Mapping,
    buffers_offset_bytes: usize,
    buffer_bytes: usize,
    /// A power of two.
    count: u16,
    /// Where the next entry goes; entries before it are written.
    tail: Cell<u16>,
    /// The tail that the kernel sees.
    published: Cell<u16>,
    /// Buffers that leases hold.
    leased: Cell<u16>,
}

impl BufferRing {
    /// Maps `count` buffers of `buffer_bytes` and fills the ring with all of them.
    ///
    /// # Errors
    /// No memory.
    pub(crate) fn new(count: u16, buffer_bytes: u32) -> io::Result<Rc<Self>> {
        assert!(count.is_power_of_two() && count <= 1 << 15, "the kernel's limits");
        let buffer_bytes = buffer_bytes as usize;
        let entries_bytes = usize::from(count) * size_of::<BufRingEntry>();
        // Buffers begin at a page border: none shares a cache line with the entries.
        let buffers_offset_bytes = entries_bytes.next_multiple_of(PAGE_BYTES);
        let len_bytes = buffers_offset_bytes + usize::from(count) * buffer_bytes;
        let ring = Self {
            mapping: Mapping::new(len_bytes)?,
            buffers_offset_bytes,
            buffer_bytes,
            count,
            tail: Cell::new(0),
            published: Cell::new(0),
            leased: Cell::new(0),
        };
        for buffer in 0..count {
            ring.append(buffer);
        }
        ring.publish();
        Ok(Rc::new(ring))
    }

    /// Hands the ring to the kernel as the group of all receives.
    ///
    /// # Errors
    /// The kernel has no buffer rings (before 5.19) or no memory.
    ///
    /// # Safety
    /// `self` must stay until the io_uring behind `submitter` has no receive in flight and is
    /// closed.
    pub(crate) unsafe fn register(&self, submitter: &Submitter<'_>) -> io::Result<()> {
        let address = self.mapping.start.as_ptr() as u64;
        // SAFETY: the mapping starts at a page border, holds `count` entries and stays mapped as
        // long as `self`, which the caller keeps until the kernel is done with it.
        unsafe { submitter.register_buf_ring_with_flags(address, self.count, BUFFER_GROUP, 0) }
    }

    /// A lease of `len` bytes of a buffer that a completion named.
    #[inline]
    pub(crate) fn lease(self: &Rc<Self>, buffer: u16, len: usize) -> RingLease {
        assert!(buffer < self.count, "the kernel names buffers that it was given");
        assert!(len <= self.buffer_bytes, "the kernel fills no more than a buffer");
        assert!(self.leased.get() < self.count, "a buffer is leased once");
        self.leased.set(self.leased.get() + 1);
        RingLease { ring: Rc::clone(self), buffer, len: len as u32 }
    }

    /// Buffers that no lease holds: the kernel has them, or has filled them and the completion is
    /// on its way, or gets them with the next [`BufferRing::publish`].
    #[inline]
    pub(crate) fn at_home(&self) -> usize {
        usize::from(self.count - self.leased.get())
    }

    /// Lets the kernel see the buffers that came back. Once a turn: each publication takes the
    /// tail's cache line.
    #[inline]
    pub(crate) fn publish(&self) {
        let tail = self.tail.get();
        if self.published.replace(tail) != tail {
            self.shared_tail().store(tail, Ordering::Release);
        }
    }

    /// Writes the entry of `buffer` at the tail. The kernel sees it after the publication.
    #[inline]
    fn append(&self, buffer: u16) {
        let tail = self.tail.get();
        let index = usize::from(tail & (self.count - 1));
        let entries = self.mapping.start.cast::<BufRingEntry>();
        // SAFETY: `index` is below `count`, and the mapping begins with `count` entries.
        let entry = unsafe { entries.add(index) };
        // SAFETY: the entry lies in the mapping, aligned, and is initialised, as mapped memory is
        // zero. The kernel reads entries before the published tail only, and at most `count` are
        // there at once, so it does not read this one. The tail itself lies in the reserved field
        // of entry 0; the setters write single fields and leave that one alone.
        let entry = unsafe { &mut *entry.as_ptr() };
        entry.set_addr(self.buffer_start(buffer).as_ptr() as u64);
        entry.set_len(self.buffer_bytes as u32);
        entry.set_bid(buffer);
        self.tail.set(tail.wrapping_add(1));
    }

    #[inline]
    fn buffer_start(&self, buffer: u16) -> NonNull<u8> {
        let offset = self.buffers_offset_bytes + usize::from(buffer) * self.buffer_bytes;
        // SAFETY: `buffer` is below `count`, so the buffer lies in the mapping.
        unsafe { self.mapping.start.add(offset) }
    }

    #[inline]
    fn shared_tail(&self) -> &AtomicU16 {
        let entries = self.mapping.start.cast::<BufRingEntry>();
        // SAFETY: the pointer is that of the first entry, which is initialised.
        let tail = unsafe { BufRingEntry::tail(entries.as_ptr()) };
        // SAFETY: the field is two bytes, aligned, and mapped as long as `self`; this thread
        // accesses it here only, and the kernel reads it.
        unsafe { AtomicU16::from_ptr(tail.cast_mut()) }
    }
}

/// Received bytes in a buffer of the ring. Gives the buffer back when dropped; the kernel has it
/// again after the next enter.
pub(crate) struct RingLease {
    ring: Rc<BufferRing>,
    buffer: u16,
    len: u32,
}

impl Deref for RingLease {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        let start = self.ring.buffer_start(self.buffer);
        // SAFETY: the buffer lies in the mapping, which this lease keeps; the kernel wrote `len`
        // bytes before it posted the completion, and does not touch them until the lease's drop
        // has put the buffer back. Mapped memory is initialised.
        unsafe { slice::from_raw_parts(start.as_ptr(), self.len as usize) }
    }
}

impl fmt::Debug for RingLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "buffer {} with {} bytes", self.buffer, self.len)
    }
}

impl Drop for RingLease {
    #[inline]
    fn drop(&mut self) {
        let leased = self.ring.leased.get();
        assert!(leased > 0, "a lease was counted");
        self.ring.leased.set(leased - 1);
        self.ring.append(self.buffer);
    }
}

/// Anonymous memory of its own, zeroed, from a page border.
struct Mapping {
    start: NonNull<u8>,
    len_bytes: usize,
}

impl Mapping {
    fn new(len_bytes: usize) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: without a wished address the kernel picks one that nothing uses.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), len_bytes, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).expect("mmap gives no null page unasked");
        let mapping = Self { start, len_bytes };
        // A forked child must not share pages that the kernel writes: after copy-on-write the
        // parent could be left with a page that the kernel's pins do not mean.
        // SAFETY: the range is this mapping.
        let advised =
            unsafe { libc::madvise(start.as_ptr().cast(), len_bytes, libc::MADV_DONTFORK) };
        if advised < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(mapping)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is this mapping, and whoever could reach it is gone: the mapping lives
        // in a `BufferRing` that all leases share.
        let unmapped = unsafe { libc::munmap(self.start.as_ptr().cast(), self.len_bytes) };
        debug_assert_eq!(unmapped, 0, "munmap of a mapping of ours");
    }
}

/// The buffers begin at a multiple of this.
const PAGE_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_lease_puts_its_buffer_back_but_the_kernel_sees_it_after_publication() {
        let ring = BufferRing::new(4, 64).unwrap();
        assert_eq!((ring.at_home(), ring.tail.get(), ring.published.get()), (4, 4, 4));
        let leases = [ring.lease(2, 10), ring.lease(0, 64)];
        assert_eq!(ring.at_home(), 2);
        assert_eq!((leases[0].len(), leases[1].len()), (10, 64));
        drop(leases);
        assert_eq!((ring.at_home(), ring.tail.get(), ring.published.get()), (4, 6, 4));
        assert_eq!(ring.shared_tail().load(Ordering::Acquire), 4);
        ring.publish();
        assert_eq!(ring.shared_tail().load(Ordering::Acquire), 6);
    }

    #[test]
    fn the_tail_survives_entry_0_being_written_again() {
        let ring = BufferRing::new(2, 16).unwrap();
        for _ in 0..100_000 {
            drop(ring.lease(1, 1));
            ring.publish();
            assert_eq!(ring.shared_tail().load(Ordering::Acquire), ring.tail.get());
        }
    }

    #[test]
    fn a_lease_outlives_the_backends_share() {
        let ring = BufferRing::new(2, 16).unwrap();
        let lease = ring.lease(1, 3);
        drop(ring);
        assert_eq!(&*lease, [0, 0, 0]);
    }
}
