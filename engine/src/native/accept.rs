//! The acceptors of a core: one multishot accept a listener. They pause when descriptors, memory
//! or places for connections are short; clients then wait in the listener's backlog.

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
    time::Duration,
};

use super::{
    backend::NativeBackend,
    connection::{Arming, Connection, Step},
    listen::Listener,
    operation::Operation,
    options::NativeOptions,
    ring::Completion,
    socket_calls::{self, Waits},
    user_data::{Kind, UserData},
};
use crate::{
    backend::{CoreHandler, Errno, Event},
    key::{ConnKey, ListenerId},
    timestamp::Timestamp,
};

/// The acceptors of a core.
#[derive(Debug)]
pub(super) struct Acceptors {
    acceptors: Vec<Acceptor>,
    /// Accepted, but the handler does not know yet: the turn's burst was used up, or all places
    /// were taken.
    fresh: VecDeque<Fresh>,
    /// By the handler.
    pub(super) is_paused: bool,
    /// For good: what waits in the backlogs is still accepted.
    pub(super) is_stopping: bool,
    /// The system was short of something; when to try again, unless a connection closes before.
    retry_at: Option<Timestamp>,
    /// Connections given to the handler in this turn.
    taken: usize,
    burst: usize,
    connections_max: usize,
    next_log: Timestamp,
}

#[derive(Debug)]
struct Acceptor {
    /// `None` after it stopped.
    fd: Option<OwnedFd>,
    id: ListenerId,
    arming: Arming,
}

#[derive(Debug)]
struct Fresh {
    listener: ListenerId,
    fd: OwnedFd,
}

/// What a failed accept leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Remedy {
    /// The connection is gone, the listener is well: go on.
    GoOn,
    /// Something is short: wait for a close, or a while.
    Pause,
    /// The listener is broken.
    Stop,
}

/// The remedy for an accept's errno.
fn remedy(errno: i32) -> Remedy {
    match errno {
        libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS => Remedy::Pause,
        libc::ECONNABORTED | libc::EINTR => Remedy::GoOn,
        // Errors of the new connection that accept(2) passes on, and a firewall's veto.
        libc::ENETDOWN
        | libc::EPROTO
        | libc::ENOPROTOOPT
        | libc::EHOSTDOWN
        | libc::ENONET
        | libc::EHOSTUNREACH
        | libc::EOPNOTSUPP
        | libc::ENETUNREACH
        | libc::EPERM
        | libc::ETIMEDOUT => Remedy::GoOn,
        // EBADF, EINVAL, ENOTSOCK and whatever else would fail again at once, for ever.
        _ => Remedy::Stop,
    }
}

impl Acceptors {
    /// Acceptors for the listeners, none armed yet.
    ///
    /// # Errors
    /// A descriptor is not a socket.
    pub(super) fn new(listeners: Vec<Listener>, options: &NativeOptions) -> io::Result<Self> {
        let mut acceptors = Vec::with_capacity(listeners.len());
        for Listener { fd, id, local_addr: _ } in listeners {
            socket_calls::set_waits(fd.as_fd(), Waits::Always)?;
            acceptors.push(Acceptor { fd: Some(fd), id, arming: Arming::Idle });
        }
        Ok(Self {
            acceptors,
            fresh: VecDeque::new(),
            is_paused: false,
            is_stopping: false,
            retry_at: None,
            taken: 0,
            burst: options.accept_burst,
            connections_max: options.connections_max,
            next_log: Timestamp::ZERO,
        })
    }

    /// A turn begins.
    pub(super) fn begin_turn(&mut self, now: Timestamp) {
        self.taken = 0;
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
        }
    }

    /// A connection closed, so what was short may be there again.
    pub(super) fn on_closed(&mut self) {
        self.retry_at = None;
    }

    /// When the loop must come back for a paused accept.
    pub(super) fn next_deadline(&self) -> Option<Timestamp> {
        self.retry_at
    }

    /// Whether the next turn has something to do here without any completion.
    pub(super) fn has_work(&self, live: usize) -> bool {
        let has_room = live < self.connections_max;
        let has_fresh = !self.fresh.is_empty() && !self.is_held();
        let is_draining = self.is_stopping
            && self.retry_at.is_none()
            && self.acceptors.iter().any(|a| a.fd.is_some() && a.arming == Arming::Idle);
        has_room && (has_fresh || is_draining)
    }

    /// Whether the handler wants to see no connection now.
    fn is_held(&self) -> bool {
        self.is_paused && !self.is_stopping
    }

    fn can_take(&self, live: usize) -> bool {
        !self.is_held() && self.taken < self.burst && live < self.connections_max
    }

    fn wants_more(&self, live: usize) -> bool {
        !self.is_paused
            && !self.is_stopping
            && self.retry_at.is_none()
            && live < self.connections_max
            && self.fresh.len() < self.burst
    }

    fn pause(&mut self, now: Timestamp, errno: i32) {
        self.retry_at = Some(now + PAUSE);
        if now >= self.next_log {
            self.next_log = now + LOG_INTERVAL;
            let reason = Errno(errno);
            tracing::warn!(?reason, "accepting is put off until a connection closes");
        }
    }
}

impl NativeBackend {
    /// An accept operation of the listener in slot `index` brought something.
    pub(super) fn on_accept<H: CoreHandler>(
        &mut self,
        index: u32,
        completion: Completion,
        handler: &mut H,
    ) {
        let acceptor = &mut self.acceptors.acceptors[index as usize];
        let listener = acceptor.id;
        if !completion.has_more() {
            acceptor.arming = Arming::Idle;
        }
        match take_accepted(completion) {
            Ok(fd) => {
                self.acceptors.fresh.push_back(Fresh { listener, fd });
                self.deliver_fresh(handler);
            }
            Err(errno) => self.on_accept_error(index as usize, errno, handler),
        }
    }

    /// A cancellation of the listener's accept completed.
    pub(super) fn on_accept_cancel(&mut self, index: u32, result: i32) {
        let acceptor = &mut self.acceptors.acceptors[index as usize];
        acceptor.arming = acceptor.arming.after_cancellation(result);
    }

    /// Hands over what was accepted before, and empties the backlogs of listeners that stop.
    pub(super) fn run_acceptors<H: CoreHandler>(&mut self, handler: &mut H) {
        self.deliver_fresh(handler);
        if !self.acceptors.is_stopping {
            return;
        }
        for index in 0..self.acceptors.acceptors.len() {
            let acceptor = &self.acceptors.acceptors[index];
            if acceptor.fd.is_some() && acceptor.arming == Arming::Idle {
                self.drain_backlog(index, handler);
            }
        }
    }

    /// Submits accepts and their cancellations as the turn left things.
    pub(super) fn step_acceptors(&mut self) {
        let live = self.sockets.accepted_len();
        let is_wanted = self.acceptors.wants_more(live);
        for (acceptor, index) in self.acceptors.acceptors.iter_mut().zip(0u32..) {
            let Some(fd) = &acceptor.fd else { continue };
            let name = UserData::of_index(Kind::Accept, index);
            let step = acceptor.arming.step(is_wanted);
            acceptor.arming = acceptor.arming.after(step);
            match step {
                Step::Stay => {}
                Step::Arm => self.ring.push(Operation::accept_multi(fd.as_raw_fd(), name)),
                Step::Cancel => {
                    let cancel = UserData::of_index(Kind::AcceptCancel, index);
                    self.stats.cancels.add(1);
                    self.ring.push(Operation::cancel(name, cancel));
                }
            }
        }
    }

    fn on_accept_error<H: CoreHandler>(&mut self, index: usize, errno: i32, handler: &mut H) {
        if errno == libc::ECANCELED {
            return;
        }
        self.stats.accept_errors.add(1);
        match remedy(errno) {
            Remedy::GoOn => {}
            Remedy::Pause => {
                self.stats.accept_pauses.add(1);
                self.acceptors.pause(self.now, errno);
            }
            Remedy::Stop => self.stop_acceptor(index, Some(Errno(errno)), handler),
        }
    }

    fn deliver_fresh<H: CoreHandler>(&mut self, handler: &mut H) {
        while !self.is_stopped {
            let live = self.sockets.accepted_len();
            if !self.acceptors.can_take(live) {
                return;
            }
            let Some(Fresh { listener, fd }) = self.acceptors.fresh.pop_front() else { return };
            self.acceptors.taken += 1;
            // Without an address the peer has reset the connection already.
            let Some(peer) = socket_calls::peer_address(&fd) else { continue };
            self.stats.accepts.add(1);
            let conn = self.insert(Connection::new(fd, Some(listener)));
            self.deliver(Event::Accepted { conn, listener, peer }, handler);
        }
    }

    /// Accepts what waits for a listener whose accept operation has ended, then closes it.
    fn drain_backlog<H: CoreHandler>(&mut self, index: usize, handler: &mut H) {
        while !self.is_stopped && self.acceptors.retry_at.is_none() {
            let live = self.sockets.accepted_len();
            if !self.acceptors.fresh.is_empty() || !self.acceptors.can_take(live) {
                return;
            }
            let acceptor = &self.acceptors.acceptors[index];
            let Some(fd) = &acceptor.fd else { return };
            let listener = acceptor.id;
            let accepted = match socket_calls::set_waits(fd.as_fd(), Waits::Never) {
                Ok(()) => socket_calls::accept_now(fd.as_fd()),
                Err(error) => Err(Errno(error.raw_os_error().unwrap_or(libc::EINVAL))),
            };
            match accepted {
                Ok(fd) => {
                    self.acceptors.fresh.push_back(Fresh { listener, fd });
                    self.deliver_fresh(handler);
                }
                Err(Errno(libc::EAGAIN)) => self.stop_acceptor(index, None, handler),
                Err(Errno(errno)) => self.on_accept_error(index, errno, handler),
            }
        }
    }

    fn stop_acceptor<H: CoreHandler>(
        &mut self,
        index: usize,
        errno: Option<Errno>,
        handler: &mut H,
    ) {
        let acceptor = &mut self.acceptors.acceptors[index];
        assert_eq!(acceptor.arming, Arming::Idle, "its port would stay bound");
        let id = acceptor.id;
        acceptor.fd = None;
        self.deliver(Event::AcceptStopped(id, errno), handler);
    }

    /// Gives a connection a slot and a name.
    pub(super) fn insert(&mut self, connection: Connection) -> ConnKey {
        let key = self.sockets.connections.borrow_mut().insert(connection);
        ConnKey { slot: key.slot, stamp: key.stamp }
    }
}

/// The descriptor that an accept brought, or its errno.
pub(super) fn take_accepted(completion: Completion) -> Result<OwnedFd, i32> {
    if completion.result < 0 {
        return Err(-completion.result);
    }
    // SAFETY: the result of an accept is a descriptor that the kernel made for us, and each
    // completion is taken once.
    Ok(unsafe { OwnedFd::from_raw_fd(completion.result) })
}

/// How long accepting is put off when something is short and no connection closes.
const PAUSE: Duration = Duration::from_millis(100);

/// At most one log line in this time.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn acceptors() -> Acceptors {
        let options =
            NativeOptions { accept_burst: 2, connections_max: 3, ..NativeOptions::default() };
        Acceptors::new(Vec::new(), &options).unwrap()
    }

    #[test]
    fn shortage_pauses_and_a_broken_listener_stops() {
        for errno in [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ENOBUFS] {
            assert_eq!(remedy(errno), Remedy::Pause);
        }
        for errno in [libc::ECONNABORTED, libc::EINTR, libc::EPROTO] {
            assert_eq!(remedy(errno), Remedy::GoOn);
        }
        for errno in [libc::EBADF, libc::EINVAL, libc::ENOTSOCK] {
            assert_eq!(remedy(errno), Remedy::Stop);
        }
    }

    #[test]
    fn a_pause_ends_with_a_close_or_after_100_ms() {
        let mut acceptors = acceptors();
        let start = Timestamp::from_nanos(1_000_000_000);
        acceptors.pause(start, libc::EMFILE);
        assert!(!acceptors.wants_more(0));
        assert_eq!(acceptors.next_deadline(), Some(start + PAUSE));
        acceptors.begin_turn(start + PAUSE / 2);
        assert!(!acceptors.wants_more(0));
        acceptors.begin_turn(start + PAUSE);
        assert!(acceptors.wants_more(0));
        acceptors.pause(start, libc::EMFILE);
        acceptors.on_closed();
        assert!(acceptors.wants_more(0));
    }

    #[test]
    fn a_full_core_takes_and_wants_no_more() {
        let mut acceptors = acceptors();
        assert!(acceptors.can_take(2) && acceptors.wants_more(2));
        assert!(!acceptors.can_take(3) && !acceptors.wants_more(3));
        acceptors.taken = 2;
        assert!(!acceptors.can_take(0), "the burst is used up");
        acceptors.begin_turn(Timestamp::ZERO);
        assert!(acceptors.can_take(0));
        acceptors.is_paused = true;
        assert!(!acceptors.can_take(0) && !acceptors.wants_more(0));
        acceptors.is_stopping = true;
        assert!(acceptors.can_take(0), "the backlog is served at the end");
    }
}
