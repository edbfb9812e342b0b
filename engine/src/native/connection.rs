//! A connection's slot, and the pure functions that say what to submit next for it.
//!
//! A slot counts the operations of its connection that are in flight, and is freed only when the
//! connection is closing and none is left. So no completion can reach a later use of the slot; the
//! stamp in every key is the second net.
//!
//! Nothing that the kernel reads or writes lies inside a slot: bytes, vectors and addresses have
//! their own allocations, which the slot owns until the operation's completion.
//!
//! There are no watermarks here: the core above copies received bytes out at once and brakes with
//! `Demand(false)`, so the number of unread bytes is its knowledge and not the backend's.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use socket2::SockAddr;

use super::send::Sending;
use crate::{
    backend::Departure,
    canary::{self, Canary},
    key::ListenerId,
};

/// What the backend knows of a connection.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Its descriptor; given away with the close operation.
    pub(crate) fd: Option<OwnedFd>,
    /// Who accepted it; `None` for an outgoing one.
    pub(crate) listener: Option<ListenerId>,
    /// The receiving side.
    pub(crate) receive: Receive,
    /// The watch for the peer's departure.
    pub(crate) watch: Watch,
    /// The send in flight.
    pub(crate) sending: Option<Sending>,
    /// The sending side.
    pub(crate) write: WriteSide,
    /// Set from `Command::Close` on: nothing but `Closed` reaches the handler any more.
    pub(crate) is_closing: bool,
    /// Operations in flight.
    pub(crate) in_flight: u32,
    /// The connect in flight.
    pub(crate) connecting: Option<Box<Connecting>>,
}

/// A connect in flight: the kernel reads the address until its completion.
#[derive(Debug)]
pub(crate) struct Connecting {
    /// Comes back with the answer.
    pub(crate) token: u64,
    /// Where to.
    pub(crate) address: SockAddr,
    /// Nobody waits for it any more.
    pub(crate) is_cancelled: bool,
}

/// The sending side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteSide {
    /// Bytes can be sent.
    Open,
    /// To be ended when the send in flight is out.
    Ending,
    /// A FIN was sent.
    Ended,
}

impl Connection {
    /// A fresh connection: nothing demanded, nothing in flight.
    pub(crate) fn new(fd: OwnedFd, listener: Option<ListenerId>) -> Self {
        Self {
            fd: Some(fd),
            listener,
            receive: Receive::default(),
            watch: Watch::default(),
            sending: None,
            write: WriteSide::Open,
            is_closing: false,
            in_flight: 0,
            connecting: None,
        }
    }

    /// The descriptor of a connection that is not closing.
    #[inline]
    pub(crate) fn raw_fd(&self) -> RawFd {
        self.fd.as_ref().expect("the descriptor is given away only when closing").as_raw_fd()
    }

    /// Whether the slot can be freed.
    #[inline]
    pub(crate) fn is_done(&self) -> bool {
        self.is_closing && self.in_flight == 0
    }
}

/// An operation that stays armed until it is cancelled or ends by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Arming {
    /// Not in flight.
    #[default]
    Idle,
    /// In flight.
    Armed,
    /// In flight, and so is its cancellation.
    Cancelling,
}

/// What to submit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing.
    Stay,
    /// The operation.
    Arm,
    /// Its cancellation.
    Cancel,
}

impl Arming {
    /// What to submit so that the operation is in flight exactly if it is wanted. A cancelled one
    /// is awaited, also if it is wanted again: two in flight would reorder what they bring.
    #[inline]
    pub(crate) fn step(self, is_wanted: bool) -> Step {
        match (self, is_wanted) {
            (Self::Idle, true) => Step::Arm,
            (Self::Armed, false) => Step::Cancel,
            (Self::Idle, false) | (Self::Armed, true) | (Self::Cancelling, _) => Step::Stay,
        }
    }

    /// The state after a step was submitted.
    #[inline]
    pub(crate) fn after(self, step: Step) -> Self {
        match step {
            Step::Stay => self,
            Step::Arm => Self::Armed,
            Step::Cancel => Self::Cancelling,
        }
    }

    /// The state after a cancellation completed with `result`. A cancellation that found nothing
    /// (it came between two rounds of a multishot operation) leaves the operation armed.
    pub(crate) fn after_cancellation(self, result: i32) -> Self {
        match self {
            Self::Cancelling if result < 0 => Self::Armed,
            Self::Idle | Self::Armed | Self::Cancelling => self,
        }
    }
}

/// Whether receive operations end by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shots {
    /// They go on until cancelled.
    Multi,
    /// They end with the first bytes.
    Single,
}

/// The receiving side of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Receive {
    /// The operation.
    pub(crate) arming: Arming,
    /// Whether the handler wants bytes.
    pub(crate) is_demanded: bool,
    /// Nothing more comes: end of stream or an error.
    pub(crate) is_ended: bool,
    /// No buffer was there; on the list of those who wait for one.
    pub(crate) is_starved: bool,
    /// The last receive emptied the socket.
    pub(crate) is_drained: bool,
}

impl Receive {
    /// What to submit.
    #[inline]
    pub(crate) fn step(&self, shots: Shots, is_closing: bool) -> Step {
        let mut is_wanted = self.is_demanded && !self.is_ended && !self.is_starved && !is_closing;
        // Once it has brought bytes it is never armed again.
        is_wanted &= !(self.is_drained && canary::has(Canary::ReceiveNotRearmed));
        match (self.arming.step(is_wanted), shots) {
            // The close ends the operation by itself.
            (Step::Cancel, _) if is_closing => Step::Stay,
            // At most one buffer more comes, and idle it holds none: not worth a cancellation.
            (Step::Cancel, Shots::Single) => Step::Stay,
            (step, Shots::Multi | Shots::Single) => step,
        }
    }
}

/// What a completion of a receive brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Brought {
    /// Bytes.
    Bytes,
    /// The end of the stream.
    EndOfStream,
    /// An error with this errno.
    Error(i32),
    /// Nothing that the handler must know.
    Nothing,
}

impl Receive {
    /// Takes a completion in. Whatever the result, one without more to come ends the operation.
    #[inline]
    pub(crate) fn on_completion(
        &mut self,
        result: i32,
        has_more: bool,
        is_nonempty: bool,
    ) -> Brought {
        if !has_more {
            self.arming = Arming::Idle;
        }
        self.is_drained = result > 0 && !is_nonempty;
        match result {
            1.. => Brought::Bytes,
            0 => {
                self.is_ended = true;
                Brought::EndOfStream
            }
            _ if result == -libc::ENOBUFS => {
                self.is_starved = true;
                Brought::Nothing
            }
            // Cancelled by us, or cut short by a signal before the first byte.
            _ if result == -libc::ECANCELED || result == -libc::EINTR => Brought::Nothing,
            _ => {
                self.is_ended = true;
                Brought::Error(-result)
            }
        }
    }
}

/// The watch for the peer's departure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Watch {
    /// The poll operation.
    pub(crate) arming: Arming,
    /// Whether the handler wants to know.
    pub(crate) is_wanted: bool,
    /// The handler knows that the peer ended its side: only a reset is news.
    pub(crate) is_end_known: bool,
}

impl Watch {
    /// What to submit. Unlike a receive, a watch may outlast the end of both directions, so a close
    /// must cancel it.
    pub(crate) fn step(&self, is_closing: bool) -> Step {
        self.arming.step(self.is_wanted && !is_closing)
    }

    /// Whether the handler wants to hear of a departure. It knows of an end of stream already if
    /// it was told once.
    pub(crate) fn is_news(&self, how: Departure) -> bool {
        self.is_wanted && !(self.is_end_known && how == Departure::EndOfStream)
    }
}

/// How the peer left, by the events of a poll. A hang-up means that both directions ended; if our
/// side did not end its own, a reset did.
pub(crate) fn departure(events: i32, write: WriteSide) -> Departure {
    let has = |event: libc::c_short| events & i32::from(event) != 0;
    if has(libc::POLLERR) || has(libc::POLLHUP) && write != WriteSide::Ended {
        Departure::Reset
    } else {
        Departure::EndOfStream
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_is_in_flight_exactly_if_wanted_and_never_twice() {
        let check = |arming: Arming, is_wanted, expected: Step, after: Arming| {
            let step = arming.step(is_wanted);
            assert_eq!((step, arming.after(step)), (expected, after), "{arming:?} {is_wanted}");
        };
        check(Arming::Idle, true, Step::Arm, Arming::Armed);
        check(Arming::Idle, false, Step::Stay, Arming::Idle);
        check(Arming::Armed, true, Step::Stay, Arming::Armed);
        check(Arming::Armed, false, Step::Cancel, Arming::Cancelling);
        check(Arming::Cancelling, true, Step::Stay, Arming::Cancelling);
        check(Arming::Cancelling, false, Step::Stay, Arming::Cancelling);
    }

    #[test]
    fn a_cancellation_that_found_nothing_is_tried_again() {
        assert_eq!(Arming::Cancelling.after_cancellation(-libc::ENOENT), Arming::Armed);
        assert_eq!(Arming::Cancelling.after_cancellation(0), Arming::Cancelling);
        assert_eq!(Arming::Idle.after_cancellation(-libc::ENOENT), Arming::Idle);
        assert_eq!(Arming::Armed.after_cancellation(-libc::ENOENT), Arming::Armed);
    }

    #[test]
    fn a_receive_is_armed_only_if_bytes_are_wanted_and_can_come() {
        let demanded = Receive { is_demanded: true, ..Receive::default() };
        let armed = Receive { arming: Arming::Armed, ..demanded };
        let check = |receive: Receive, shots, is_closing, expected| {
            assert_eq!(receive.step(shots, is_closing), expected, "{receive:?} {shots:?}");
        };
        for shots in [Shots::Multi, Shots::Single] {
            check(Receive::default(), shots, false, Step::Stay);
            check(demanded, shots, false, Step::Arm);
            check(demanded, shots, true, Step::Stay);
            check(armed, shots, false, Step::Stay);
            check(armed, shots, true, Step::Stay);
            check(Receive { is_ended: true, ..demanded }, shots, false, Step::Stay);
            check(Receive { is_starved: true, ..demanded }, shots, false, Step::Stay);
        }
        let unwanted = Receive { is_demanded: false, ..armed };
        check(unwanted, Shots::Multi, false, Step::Cancel);
        check(unwanted, Shots::Single, false, Step::Stay);
        check(unwanted, Shots::Multi, true, Step::Stay);
    }

    #[test]
    fn every_final_completion_of_a_receive_ends_the_operation() {
        let check = |result, expected, is_ended, is_starved| {
            for has_more in [true, false] {
                let mut receive = Receive { arming: Arming::Armed, ..Receive::default() };
                assert_eq!(receive.on_completion(result, has_more, false), expected);
                let arming = if has_more { Arming::Armed } else { Arming::Idle };
                assert_eq!(receive.arming, arming, "{result} {has_more}");
                assert_eq!((receive.is_ended, receive.is_starved), (is_ended, is_starved));
                assert_eq!(receive.is_drained, result > 0);
            }
        };
        check(7, Brought::Bytes, false, false);
        check(0, Brought::EndOfStream, true, false);
        check(-libc::ENOBUFS, Brought::Nothing, false, true);
        check(-libc::ECANCELED, Brought::Nothing, false, false);
        check(-libc::EINTR, Brought::Nothing, false, false);
        check(-libc::ECONNRESET, Brought::Error(libc::ECONNRESET), true, false);
    }

    #[test]
    fn a_hang_up_that_we_did_not_take_part_in_is_a_reset() {
        let (end, hang_up) = (i32::from(libc::POLLRDHUP), i32::from(libc::POLLHUP));
        let error = i32::from(libc::POLLERR);
        let check = |events, write, expected| assert_eq!(departure(events, write), expected);
        check(end, WriteSide::Open, Departure::EndOfStream);
        check(end, WriteSide::Ended, Departure::EndOfStream);
        check(end | hang_up, WriteSide::Open, Departure::Reset);
        check(end | hang_up, WriteSide::Ended, Departure::EndOfStream);
        check(end | hang_up | error, WriteSide::Ended, Departure::Reset);
    }

    #[test]
    fn after_the_end_of_stream_only_a_reset_is_news() {
        let check = |is_wanted, is_end_known, how, expected| {
            let watch = Watch { is_wanted, is_end_known, ..Watch::default() };
            assert_eq!(watch.is_news(how), expected, "{watch:?} {how:?}");
        };
        for how in [Departure::EndOfStream, Departure::Reset] {
            check(true, false, how, true);
            check(false, false, how, false);
            check(false, true, how, false);
        }
        check(true, true, Departure::EndOfStream, false);
        check(true, true, Departure::Reset, true);
    }

    const _: () = assert!(size_of::<Connection>() <= 120, "an idle connection stays small");
}
