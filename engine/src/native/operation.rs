//! Submission entries. An [`Operation`] is safe to push because the promise about its memory is
//! made where it is built: constructors without pointers are safe, those with pointers are not.

use std::os::fd::RawFd;

use io_uring::{
    opcode, squeue,
    types::{CancelBuilder, Fd},
};

use super::user_data::{Kind, UserData};

/// An entry whose memory, if it names any, stays until its last completion.
#[derive(Clone, Debug)]
pub(crate) struct Operation(squeue::Entry);

impl Operation {
    /// The entry.
    pub(crate) fn entry(&self) -> &squeue::Entry {
        &self.0
    }

    /// Does nothing; completes at once.
    pub(crate) fn nop() -> Self {
        Self(opcode::Nop::new().build()).named(UserData::of_index(Kind::Nop, 0))
    }

    /// Accepts until it is cancelled. Accepted descriptors are closed on exec.
    pub(crate) fn accept_multi(fd: RawFd, name: UserData) -> Self {
        Self(opcode::AcceptMulti::new(Fd(fd)).flags(libc::SOCK_CLOEXEC).build()).named(name)
    }

    /// Receives into buffers of the ring's buffer group until it is cancelled.
    #[inline]
    pub(crate) fn recv_multi(fd: RawFd, name: UserData) -> Self {
        Self(opcode::RecvMulti::new(Fd(fd), BUFFER_GROUP).build()).named(name)
    }

    /// Receives once into a buffer of the ring's buffer group.
    #[inline]
    pub(crate) fn recv_once(fd: RawFd, name: UserData, first: First) -> Self {
        let ioprio = match first {
            First::Receive => 0,
            First::Poll => IORING_RECVSEND_POLL_FIRST,
        };
        // A null pointer and length 0: the kernel takes address and length from the buffer.
        let entry = opcode::Recv::new(Fd(fd), std::ptr::null_mut(), 0)
            .buf_group(BUFFER_GROUP)
            .ioprio(ioprio)
            .build()
            .flags(squeue::Flags::BUFFER_SELECT);
        Self(entry).named(name)
    }

    /// Polls once for `events` of poll(2).
    pub(crate) fn poll_once(fd: RawFd, events: i32, name: UserData) -> Self {
        Self(opcode::PollAdd::new(Fd(fd), events as u32).build()).named(name)
    }

    /// Polls for `events` of poll(2) until it is cancelled.
    pub(crate) fn poll_multi(fd: RawFd, events: i32, name: UserData) -> Self {
        Self(opcode::PollAdd::new(Fd(fd), events as u32).multi(true).build()).named(name)
    }

    /// Cancels the operation called `target`.
    pub(crate) fn cancel(target: UserData, name: UserData) -> Self {
        Self(opcode::AsyncCancel::new(target.pack()).build()).named(name)
    }

    /// Cancels all operations of the ring.
    pub(crate) fn cancel_all() -> Self {
        let entry = opcode::AsyncCancel2::new(CancelBuilder::any().all()).build();
        Self(entry).named(UserData::of_index(Kind::CancelAll, 0))
    }

    /// Closes a descriptor, which the caller gives up.
    pub(crate) fn close(fd: RawFd, name: UserData) -> Self {
        Self(opcode::Close::new(Fd(fd)).build()).named(name)
    }

    /// Sends bytes; waits until the kernel has taken all.
    ///
    /// # Safety
    /// `bytes` must be readable for `len` bytes and unchanged until the operation's last
    /// completion, also if the connection is closed or the operation cancelled.
    #[inline]
    pub(crate) unsafe fn send(fd: RawFd, bytes: *const u8, len: u32, name: UserData) -> Self {
        debug_assert!(!bytes.is_null());
        Self(opcode::Send::new(Fd(fd), bytes, len).flags(SEND_FLAGS).build()).named(name)
    }

    /// Sends what a message header names; waits until the kernel has taken all.
    ///
    /// # Safety
    /// The header, its vectors and their bytes must be readable and unchanged until the
    /// operation's last completion.
    pub(crate) unsafe fn send_message(
        fd: RawFd,
        header: *const libc::msghdr,
        name: UserData,
    ) -> Self {
        debug_assert!(!header.is_null());
        Self(opcode::SendMsg::new(Fd(fd), header).flags(SEND_FLAGS as u32).build()).named(name)
    }

    /// Connects a socket.
    ///
    /// # Safety
    /// `address` must be readable for `len` bytes and unchanged until the operation's last
    /// completion.
    pub(crate) unsafe fn connect(
        fd: RawFd,
        address: *const libc::sockaddr,
        len: libc::socklen_t,
        name: UserData,
    ) -> Self {
        debug_assert!(!address.is_null());
        Self(opcode::Connect::new(Fd(fd), address, len).build()).named(name)
    }

    /// Reads from a file.
    ///
    /// # Safety
    /// `bytes` must be writable for `len` bytes and touched by nobody else until the operation's
    /// last completion.
    pub(crate) unsafe fn read(
        fd: RawFd,
        bytes: *mut u8,
        len: u32,
        offset: u64,
        name: UserData,
    ) -> Self {
        debug_assert!(!bytes.is_null());
        Self(opcode::Read::new(Fd(fd), bytes, len).offset(offset).build()).named(name)
    }

    /// Writes to a file.
    ///
    /// # Safety
    /// `bytes` must be readable for `len` bytes and unchanged until the operation's last
    /// completion.
    pub(crate) unsafe fn write(
        fd: RawFd,
        bytes: *const u8,
        len: u32,
        offset: u64,
        name: UserData,
    ) -> Self {
        debug_assert!(!bytes.is_null());
        Self(opcode::Write::new(Fd(fd), bytes, len).offset(offset).build()).named(name)
    }

    #[inline]
    fn named(self, name: UserData) -> Self {
        Self(self.0.user_data(name.pack()))
    }
}

/// What a receive does first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum First {
    /// Try: bytes are likely to be there.
    Receive,
    /// Poll: the socket was empty a moment ago, and a try would be wasted.
    Poll,
}

/// The one buffer group of a ring.
pub(crate) const BUFFER_GROUP: u16 = 0;

/// A reset peer is an error and not a signal; a short send is the kernel's to continue.
const SEND_FLAGS: i32 = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;

/// `IORING_RECVSEND_POLL_FIRST` of the kernel's interface.
const IORING_RECVSEND_POLL_FIRST: u16 = 1;
