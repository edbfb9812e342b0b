//! An eventfd: how another thread ends the wait of a core.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

/// An eventfd that is only written: the core's ring polls it and never reads it.
#[derive(Debug)]
pub struct EventFd {
    fd: OwnedFd,
}

impl EventFd {
    /// Opens an eventfd, closed on exec and non-blocking.
    ///
    /// # Errors
    /// No descriptor or no memory is left.
    pub fn new() -> io::Result<Self> {
        // SAFETY: the call takes no pointer.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just made this descriptor, and nobody else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { fd })
    }

    /// Wakes whoever polls it. From any thread.
    pub fn wake(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: the kernel reads the eight bytes of `one` during the call.
        let written = unsafe { libc::write(self.fd.as_raw_fd(), one.as_ptr().cast(), one.len()) };
        debug_assert_eq!(written, 8, "an eventfd takes every write until 2^64 - 2");
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
