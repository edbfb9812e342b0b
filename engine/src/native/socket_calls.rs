//! System calls on sockets that do not go through the ring: those whose answer is needed at once,
//! and those that the ring would hand to a helper thread.

use std::{
    io,
    net::{Shutdown, SocketAddr},
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
};

use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::backend::{Errno, SendNow};

/// Sends what the kernel takes at once.
pub(crate) fn send_now(fd: RawFd, bytes: &[u8]) -> SendNow {
    loop {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the kernel reads `bytes` during the call.
        let sent = unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), flags) };
        if let Ok(sent) = usize::try_from(sent) {
            return SendNow::Sent(sent);
        }
        match last_errno() {
            libc::EAGAIN => return SendNow::WouldBlock,
            libc::EINTR => {}
            errno => return SendNow::Failed(Errno(errno)),
        }
    }
}

/// Whether the socket holds bytes that were not received.
pub(crate) fn is_unread(fd: RawFd) -> bool {
    let mut count: libc::c_int = 0;
    // SAFETY: the kernel writes the `int` that the request says, during the call.
    let answer = unsafe { libc::ioctl(fd, libc::FIONREAD, &raw mut count) };
    answer == 0 && count > 0
}

/// The events of poll(2) that a socket always reports: errors and hang-ups.
pub(crate) fn pending_events(fd: RawFd) -> i32 {
    let mut asked = libc::pollfd { fd, events: 0, revents: 0 };
    // SAFETY: the kernel reads and writes the one `pollfd` during the call, which does not wait.
    let count = unsafe { libc::poll(&raw mut asked, 1, 0) };
    if count > 0 { i32::from(asked.revents) } else { 0 }
}

/// Accepts a connection if one waits.
///
/// # Errors
/// `EAGAIN` if none waits, on a non-blocking listener; else as accept(2).
pub(crate) fn accept_now(listener: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    // SAFETY: null pointers are allowed where the peer's address is not wanted.
    let fd = unsafe {
        libc::accept4(
            listener.as_raw_fd(),
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            libc::SOCK_CLOEXEC,
        )
    };
    if fd < 0 {
        return Err(Errno(last_errno()));
    }
    // SAFETY: the kernel just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Whether calls on the socket return instead of waiting. The ring needs sockets that wait: it
/// takes a non-blocking one at its word and completes with `EAGAIN`.
///
/// # Errors
/// None on an open socket.
pub(crate) fn set_waits(socket: BorrowedFd<'_>, waits: Waits) -> io::Result<()> {
    SockRef::from(&socket).set_nonblocking(waits == Waits::Never)
}

/// Whether a call on a socket waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
    /// It fails with `EAGAIN` instead.
    Never,
    /// Until it can succeed.
    Always,
}

/// A socket that can be connected to `address`.
pub(crate) fn stream_socket(address: SocketAddr) -> io::Result<OwnedFd> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_tcp_nodelay(true)?;
    Ok(socket.into())
}

/// Ends directions of a connection. Through the ring it would take a helper thread: the kernel
/// never runs a shutdown operation in the submitting call.
pub(crate) fn shut_down(socket: BorrowedFd<'_>, how: Shutdown) {
    if let Err(error) = SockRef::from(&socket).shutdown(how) {
        // A reset took the connection before us, and there is nothing left to end.
        debug_assert_eq!(error.raw_os_error(), Some(libc::ENOTCONN), "{error}");
    }
}

/// The other end's address; `None` if the connection is gone.
pub(crate) fn peer_address(socket: &impl AsFd) -> Option<SocketAddr> {
    SockRef::from(socket).peer_addr().ok()?.as_socket()
}

/// Our end's address; `None` if the connection is gone.
pub(crate) fn local_address(socket: &impl AsFd) -> Option<SocketAddr> {
    SockRef::from(socket).local_addr().ok()?.as_socket()
}

fn last_errno() -> i32 {
    io::Error::last_os_error().raw_os_error().expect("the last error of the system has a number")
}
