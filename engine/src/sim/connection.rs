//! One connection's simulated operations in flight, and their completions. What a completion
//! means is decided by the native backend's own pure functions ([`Receive`], [`Watch`],
//! [`Sending`]); this file only stands for the kernel that completes them.

use std::{cell::Cell, rc::Rc, time::Duration};

use super::{
    fault::Fault,
    network::Link,
    world::{self, hits},
};
use crate::{
    backend::SendNow,
    buffer::Chunks,
    native::{
        connection::{Arming, Receive, Shots, Step, Watch, WriteSide},
        send::Sending,
    },
    timestamp::Timestamp,
};

/// Bytes of a receive buffer.
const BUFFER_BYTES: usize = 16 * 1024;

/// A connection as the simulated backend knows it.
pub(crate) struct SimConnection {
    pub(crate) link: Rc<Link>,
    pub(crate) receive: Receive,
    pub(crate) watch: Watch,
    pub(crate) sending: Option<Sending>,
    pub(crate) write: WriteSide,
    pub(crate) is_closing: bool,
    /// A close that is not reported before.
    pub(crate) close_due: Timestamp,
    /// The departure that a watch which goes on has reported.
    seen_events: i32,
}

/// A completion as the kernel gives it.
#[derive(Debug)]
pub(crate) struct Completed {
    pub(crate) result: i32,
    pub(crate) has_more: bool,
    /// Received bytes.
    pub(crate) bytes: Vec<u8>,
    pub(crate) is_nonempty: bool,
}

impl Completed {
    fn ended(result: i32) -> Self {
        Self { result, has_more: false, bytes: Vec::new(), is_nonempty: false }
    }
}

impl SimConnection {
    pub(crate) fn new(link: Rc<Link>) -> Self {
        Self {
            link,
            receive: Receive::default(),
            watch: Watch::default(),
            sending: None,
            write: WriteSide::Open,
            is_closing: false,
            close_due: Timestamp::ZERO,
            seen_events: 0,
        }
    }

    /// Submits what the receiving side needs now.
    pub(crate) fn step_receive(&mut self, shots: Shots) {
        let step = self.receive.step(shots, self.is_closing);
        self.receive.arming = self.receive.arming.after(step);
    }

    /// Submits what the watch needs now.
    pub(crate) fn step_watch(&mut self) {
        let step = self.watch.step(self.is_closing);
        self.watch.arming = self.watch.arming.after(step);
        if step == Step::Arm {
            self.seen_events = 0;
        }
    }

    /// Whether the kernel has something for an operation that is in flight.
    pub(crate) fn is_completable(&self) -> bool {
        let receives = self.receive.arming != Arming::Idle
            && (self.receive.arming == Arming::Cancelling || self.has_input());
        let watches = match self.watch.arming {
            Arming::Idle => false,
            Arming::Armed => self.departure_events() & !self.seen_events != 0,
            Arming::Cancelling => true,
        };
        let sends =
            self.sending.is_some() && (self.link.is_broken() || self.link.down.borrow().room() > 0);
        receives || watches || sends || self.is_closing || self.receive.is_starved
    }

    fn has_input(&self) -> bool {
        let up = self.link.up.borrow();
        !up.bytes.is_empty() || up.is_ended || self.link.is_reset_by_client.get()
    }

    /// The next completion of the receive in flight, if there is one.
    pub(crate) fn complete_receive(&mut self, shots: Shots) -> Option<Completed> {
        match self.receive.arming {
            Arming::Idle => return None,
            Arming::Armed if !self.has_input() => return None,
            Arming::Cancelling if !self.has_input() || !hits(Fault::CancelTooLate) => {
                return Some(Completed::ended(-libc::ECANCELED));
            }
            Arming::Armed | Arming::Cancelling => {}
        }
        if self.link.is_reset_by_client.get() {
            return Some(Completed::ended(-libc::ECONNRESET));
        }
        let mut up = self.link.up.borrow_mut();
        if up.bytes.is_empty() {
            return Some(Completed::ended(0));
        }
        if hits(Fault::NoBuffers) {
            return Some(Completed::ended(-libc::ENOBUFS));
        }
        let most = up.bytes.len().min(BUFFER_BYTES);
        let count = if hits(Fault::ShortReceive) { world::draw_len(1, most) } else { most };
        let mut bytes = Vec::with_capacity(count);
        up.take(count, &mut bytes);
        let is_nonempty = !up.bytes.is_empty() || up.is_ended;
        drop(up);
        world::record("server receives", count as u64, u64::from(self.link.peer.port()));
        // A client that waited for room may go on.
        self.link.touch_client();
        let has_more = shots == Shots::Multi && !hits(Fault::ShotEnds);
        let result = i32::try_from(count).expect("a buffer is small");
        Some(Completed { result, has_more, bytes, is_nonempty })
    }

    /// The completion of a cancellation: 0 or `ENOENT`, while one is in flight.
    pub(crate) fn complete_receive_cancel(&mut self) {
        if self.receive.arming == Arming::Cancelling {
            self.receive.arming = self.receive.arming.after_cancellation(-libc::ENOENT);
        }
    }

    /// The departure events of a poll.
    fn departure_events(&self) -> i32 {
        let link = &self.link;
        if link.is_reset_by_client.get() {
            return i32::from(libc::POLLERR | libc::POLLHUP | libc::POLLRDHUP);
        }
        let mut events = 0;
        if link.up.borrow().is_ended {
            events |= i32::from(libc::POLLRDHUP);
            if self.write == WriteSide::Ended {
                events |= i32::from(libc::POLLHUP);
            }
        }
        events
    }

    /// Whether a poll shows a departure, and its events.
    pub(crate) fn poll(&self) -> i32 {
        self.departure_events()
    }

    /// The next completion of the watch in flight, if there is one.
    pub(crate) fn complete_watch(&mut self) -> Option<Completed> {
        let events = self.departure_events();
        let is_news = events & !self.seen_events != 0;
        match self.watch.arming {
            Arming::Idle => None,
            Arming::Armed if !is_news => None,
            Arming::Cancelling if !is_news || !hits(Fault::CancelTooLate) => {
                Some(Completed::ended(-libc::ECANCELED))
            }
            Arming::Armed | Arming::Cancelling => {
                self.seen_events |= events;
                // A watch that knows of the end of stream is a multishot poll.
                let has_more = self.watch.is_end_known && !hits(Fault::ShotEnds);
                Some(Completed { has_more, ..Completed::ended(events) })
            }
        }
    }

    /// The next completion of the send in flight, if there is one.
    pub(crate) fn complete_send(&mut self) -> Option<i32> {
        let sending = self.sending.as_ref()?;
        if self.link.is_broken() {
            let errno =
                if self.link.is_reset_by_client.get() { libc::ECONNRESET } else { libc::EPIPE };
            return Some(-errno);
        }
        let mut down = self.link.down.borrow_mut();
        let room = down.room();
        if room == 0 {
            return None;
        }
        let most = room.min(sending.left_bytes());
        let mut count = if hits(Fault::ShortSend) { world::draw_len(1, most) } else { most };
        let result = i32::try_from(count).expect("a window is small");
        for part in sending.rest() {
            let taken = part.len().min(count);
            down.bytes.extend(&part[..taken]);
            count -= taken;
        }
        drop(down);
        self.link.touch_client();
        Some(result)
    }

    /// Sends at once what there is room for.
    pub(crate) fn send_now(&self, bytes: &[u8]) -> SendNow {
        assert!(self.sending.is_none(), "send_now beside a send would reorder bytes");
        if self.link.is_broken() {
            return SendNow::Failed(crate::backend::Errno::ECONNRESET);
        }
        let mut down = self.link.down.borrow_mut();
        let most = down.room().min(bytes.len());
        if most == 0 {
            return SendNow::WouldBlock;
        }
        let count = if hits(Fault::ShortSend) { world::draw_len(1, most) } else { most };
        down.bytes.extend(&bytes[..count]);
        drop(down);
        self.link.touch_client();
        SendNow::Sent(count)
    }

    /// Ends the sending side.
    pub(crate) fn end_write_side(&mut self) {
        self.write = WriteSide::Ended;
        world::record("server ends its side", 0, u64::from(self.link.peer.port()));
        self.link.down.borrow_mut().is_ended = true;
        self.link.touch_client();
    }

    /// Begins to close: what is in flight ends, and the client learns of it.
    pub(crate) fn close(&mut self, now: Timestamp) {
        self.is_closing = true;
        let late = if hits(Fault::LateClose) { world::draw(1, 5_000_000) } else { 0 };
        self.close_due = now + Duration::from_nanos(late);
        let unread = self.link.up.borrow().bytes.len() as u64;
        world::record("server closes", unread, u64::from(self.link.peer.port()));
        close_link(&self.link);
    }

    /// The chunks of a send that came to its end.
    pub(crate) fn take_sent(&mut self) -> Option<Chunks> {
        self.sending.take().map(Sending::into_whole_chunks)
    }
}

/// A receive buffer of a core; its drop gives it back.
#[derive(Debug)]
pub(crate) struct SimLease {
    bytes: Vec<u8>,
    lent: Rc<Cell<usize>>,
}

impl SimLease {
    pub(crate) fn new(bytes: Vec<u8>, lent: &Rc<Cell<usize>>) -> Self {
        lent.set(lent.get() + 1);
        Self { bytes, lent: Rc::clone(lent) }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for SimLease {
    fn drop(&mut self) {
        self.lent.set(self.lent.get() - 1);
    }
}

/// The server's end is gone. With unread input the client is reset.
pub(crate) fn close_link(link: &Link) {
    link.is_server_gone.set(true);
    let is_unread = !link.up.borrow().bytes.is_empty();
    let mut down = link.down.borrow_mut();
    down.is_ended = true;
    if is_unread {
        link.is_reset_by_server.set(true);
        if hits(Fault::CloseResets) {
            down.bytes.clear();
        }
    }
    drop(down);
    link.touch_client();
}
