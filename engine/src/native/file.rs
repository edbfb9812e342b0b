//! File operations in flight: each owns its descriptor and buffer until its completion.

use std::os::fd::{AsRawFd, OwnedFd};

use super::{
    operation::Operation,
    user_data::{Kind, UserData},
};
use crate::{
    backend::{Errno, Event, FileDirection, FileRequest},
    slab::SlabKey,
};

/// A file operation. The kernel reads or writes the buffer's heap memory, which stays where it is
/// when this value moves.
#[derive(Debug)]
pub(crate) struct FileOperation {
    token: u64,
    fd: OwnedFd,
    offset: u64,
    direction: FileDirection,
    buffer: Vec<u8>,
}

impl FileOperation {
    /// The operation that a request asks for.
    pub(crate) fn new(request: FileRequest) -> Self {
        let FileRequest { token, fd, offset, direction, mut buffer } = request;
        if direction == FileDirection::Read {
            buffer.clear();
        }
        Self { token, fd, offset, direction, buffer }
    }

    /// The submission.
    ///
    /// # Safety
    /// `self` must not be dropped or changed before the operation's last completion.
    pub(crate) unsafe fn operation(&mut self, key: SlabKey) -> Operation {
        let name = UserData { kind: Kind::File, slot: key.slot, stamp: key.stamp };
        let fd = self.fd.as_raw_fd();
        match self.direction {
            FileDirection::Read => {
                let len = self.buffer.capacity().min(FILE_BYTES_MAX) as u32;
                let bytes = self.buffer.as_mut_ptr();
                // SAFETY: `bytes` has room for `capacity` bytes and belongs to `self`, which the
                // caller keeps, untouched, until the last completion.
                unsafe { Operation::read(fd, bytes, len, self.offset, name) }
            }
            FileDirection::Write => {
                let len = self.buffer.len().min(FILE_BYTES_MAX) as u32;
                // SAFETY: the bytes belong to `self`, which the caller keeps, unchanged, until
                // the last completion.
                unsafe { Operation::write(fd, self.buffer.as_ptr(), len, self.offset, name) }
            }
        }
    }

    /// The event for the operation's completion with `result`. Closes the descriptor.
    pub(crate) fn into_event(mut self, result: i32) -> Event {
        let result = usize::try_from(result).map_err(|_| Errno(-result));
        if let (FileDirection::Read, Ok(len)) = (self.direction, result) {
            assert!(len <= self.buffer.capacity(), "the kernel reads no more than asked");
            // SAFETY: the kernel wrote the first `len` bytes of the buffer, which has room for
            // them, and the operation has ended.
            unsafe { self.buffer.set_len(len) };
        }
        Event::FileDone { token: self.token, result, buffer: self.buffer }
    }
}

/// Bytes of one operation; its result is an `i32`.
const FILE_BYTES_MAX: usize = 1 << 30;
