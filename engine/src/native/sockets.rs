//! What the backend and its handler share: the connections, for the calls that cannot wait for a
//! command, and the clock.

use std::{
    cell::{Cell, RefCell},
    net::SocketAddr,
    os::fd::{AsRawFd, OwnedFd},
};

use super::{
    connection::{Connection, departure},
    socket_calls,
};
use crate::{
    backend::{Departure, Errno, Io, SendNow},
    key::ConnKey,
    slab::{Slab, SlabKey},
    timestamp::{Clock, Timestamp},
};

/// The connections of a core and its clock. No borrow of the connections is held while the handler
/// runs.
pub(crate) struct Sockets {
    /// One slot a connection.
    pub(crate) connections: RefCell<Slab<Connection>>,
    /// Those that were not accepted, but made or are being made.
    pub(crate) outgoing: Cell<usize>,
    /// The last reap left completions behind: any connection may have input that is not
    /// delivered.
    pub(crate) has_unreaped: Cell<bool>,
    clock: Clock,
}

impl Sockets {
    /// No connections yet.
    pub(crate) fn new() -> Self {
        Self {
            connections: RefCell::new(Slab::with_stamp_mask(ConnKey::STAMP_MASK)),
            outgoing: Cell::new(0),
            has_unreaped: Cell::new(false),
            clock: Clock::system(),
        }
    }

    /// Connections of clients, which have a limit.
    pub(crate) fn accepted_len(&self) -> usize {
        self.connections.borrow().len() - self.outgoing.get()
    }

    /// Frees the slot of a connection that has ended.
    pub(crate) fn remove(&self, conn: ConnKey) -> Option<Connection> {
        let removed = self.connections.borrow_mut().remove(slab_key(conn))?;
        if removed.listener.is_none() {
            self.outgoing.set(self.outgoing.get() - 1);
        }
        Some(removed)
    }

    /// The time. The one place of this backend that reads the clock.
    pub(crate) fn time(&self) -> Timestamp {
        self.clock.now()
    }

    /// Runs `f` on a connection that is not closing.
    fn open<R>(&self, conn: ConnKey, f: impl FnOnce(&OwnedFd, &Connection) -> R) -> Option<R> {
        let connections = self.connections.borrow();
        let connection = connections.get(slab_key(conn))?;
        connection.fd.as_ref().map(|fd| f(fd, connection))
    }
}

impl Io for Sockets {
    fn send_now(&self, conn: ConnKey, bytes: &[u8]) -> SendNow {
        self.open(conn, |fd, connection| {
            assert!(connection.sending.is_none(), "send_now beside a send would reorder bytes");
            socket_calls::send_now(fd.as_raw_fd(), bytes)
        })
        .unwrap_or(SendNow::Failed(Errno(libc::EBADF)))
    }

    fn unread(&self, conn: ConnKey) -> bool {
        self.open(conn, |fd, _| self.has_unreaped.get() || socket_calls::is_unread(fd.as_raw_fd()))
            .unwrap_or(false)
    }

    fn is_reset(&self, conn: ConnKey) -> bool {
        let asked = self.open(conn, |fd, connection| {
            let events = socket_calls::pending_events(fd.as_raw_fd());
            events != 0 && departure(events, connection.write) == Departure::Reset
        });
        asked.unwrap_or(false)
    }

    fn clock(&self) -> Clock {
        self.clock
    }

    fn local_address(&self, conn: ConnKey) -> Option<SocketAddr> {
        self.open(conn, |fd, _| socket_calls::local_address(fd)).flatten()
    }
}

/// A connection's name in the slab.
#[inline]
pub(crate) fn slab_key(conn: ConnKey) -> SlabKey {
    SlabKey { slot: conn.slot, stamp: conn.stamp }
}
