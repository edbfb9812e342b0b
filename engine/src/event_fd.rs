//! The kernel's event counter: how another thread ends the wait of a core.
//!
//! The core has a multishot poll on the descriptor in its ring and never reads it: each write is
//! an event of its own. The counter then only grows; its limit of 2^64 - 2 is out of reach.

use std::{
    fs::File,
    io::{self, Write},
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
};

use crate::inbox::Wake;

/// An eventfd, close-on-exec and non-blocking. Any thread may wake through it.
#[derive(Debug)]
pub struct EventFd {
    /// Not an `OwnedFd`, since a file can be written without `unsafe`.
    file: File,
}

impl EventFd {
    /// Opens a counter at zero.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE` and `ENOMEM` of eventfd(2).
    pub fn new() -> io::Result<Self> {
        // SAFETY: eventfd(2) takes two numbers and no pointer.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just opened `fd` for this call, so nobody else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { file: File::from(fd) })
    }

    /// Adds one to the counter: whoever polls the descriptor gets an event. Never waits.
    ///
    /// # Panics
    /// If the descriptor is not the eventfd that was opened, which only a stray close(2)
    /// elsewhere in the process can bring about.
    pub fn wake(&self) {
        loop {
            match (&self.file).write(&1u64.to_ne_bytes()) {
                Ok(_) => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The counter is at its limit, so an event is pending already.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => panic!("eventfd {}: {error}", self.file.as_raw_fd()),
            }
        }
    }
}

impl Wake for crate::sync::Arc<EventFd> {
    fn wake(&self) {
        EventFd::wake(self);
    }
}

impl Wake for EventFd {
    fn wake(&self) {
        Self::wake(self);
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl AsRawFd for EventFd {
    fn as_raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::io::Read;

    use super::*;

    fn read_count(event: &EventFd) -> io::Result<u64> {
        let mut count = [0; 8];
        (&event.file).read_exact(&mut count)?;
        Ok(u64::from_ne_bytes(count))
    }

    #[test]
    fn a_wake_from_another_thread_is_counted() {
        let event = EventFd::new().unwrap();
        assert_eq!(read_count(&event).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        std::thread::scope(|scope| {
            scope.spawn(|| event.wake());
            event.wake();
        });
        assert_eq!(read_count(&event).unwrap(), 2);
    }

    #[test]
    fn a_full_counter_does_not_block_the_waker() {
        let event = EventFd::new().unwrap();
        (&event.file).write_all(&(u64::MAX - 1).to_ne_bytes()).unwrap();
        event.wake();
        assert_eq!(read_count(&event).unwrap(), u64::MAX - 1);
    }

    #[test]
    fn a_child_process_does_not_inherit_it() {
        let event = EventFd::new().unwrap();
        // SAFETY: F_GETFD takes a descriptor, which `event` holds open, and no pointer.
        let flags = unsafe { libc::fcntl(event.as_raw_fd(), libc::F_GETFD) };
        assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
    }
}
