//! What a simulated request asks for. The client draws a plan and sends its number; the servlet
//! looks the plan up and follows it; both sides know what the answer must be.

use std::time::Duration;

use ringcat_engine::sim::world::{chance, draw};

/// Which servlet is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Called when the content is complete.
    Plain,
    /// Starts async.
    Async,
    /// Runs on a worker thread.
    Blocking,
    /// Reads its content by a read listener.
    Reader,
    /// Is an `async fn`.
    Future,
    /// Nothing is mapped there.
    Missing,
}

impl Kind {
    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Plain => "/plain",
            Self::Async => "/async",
            Self::Blocking => "/blocking",
            Self::Reader => "/reader",
            Self::Future => "/future",
            Self::Missing => "/missing",
        }
    }
}

/// How an asynchronous request ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// `complete()` inside the servlet.
    Inside,
    /// A foreign thread writes and completes.
    Foreign,
    /// The same without delay, while the servlet is still inside.
    EagerForeign,
    /// A foreign thread dispatches to another servlet.
    ForeignDispatch,
    /// The same without delay, while the servlet is still inside.
    EagerDispatch,
    /// `dispatch()` inside the servlet.
    DispatchInside,
    /// Several rounds: dispatched to itself, then completed.
    Rounds,
    /// A callback of another request completes it.
    Peer,
    /// A write listener writes as the connection takes it, then completes.
    WriteListener,
    /// A foreign thread starts async, writes and completes, if the servlet has not returned yet.
    Handle,
    /// A task of the worker pool.
    PoolTask,
    /// Nobody ends it.
    TimeoutUnhandled,
    /// A listener completes at the timeout.
    TimeoutCompletes,
    /// A listener dispatches at the timeout.
    TimeoutDispatches,
    /// A foreign thread and the timeout race.
    TimeoutRace,
    /// A foreign thread that dispatches and the timeout race.
    TimeoutDispatchRace,
    /// The servlet fails after the start; nobody ends it.
    FailsAfterStart,
    /// The servlet fails after the start; a listener completes.
    FailsAndCompletes,
    /// The servlet fails after the start; a listener dispatches.
    FailsAndDispatches,
    /// The target of a dispatch fails.
    TargetFails,
}

impl End {
    const ALL: [Self; 20] = [
        Self::Inside,
        Self::Foreign,
        Self::EagerForeign,
        Self::ForeignDispatch,
        Self::EagerDispatch,
        Self::DispatchInside,
        Self::Rounds,
        Self::Peer,
        Self::WriteListener,
        Self::Handle,
        Self::PoolTask,
        Self::TimeoutUnhandled,
        Self::TimeoutCompletes,
        Self::TimeoutDispatches,
        Self::TimeoutRace,
        Self::TimeoutDispatchRace,
        Self::FailsAfterStart,
        Self::FailsAndCompletes,
        Self::FailsAndDispatches,
        Self::TargetFails,
    ];

    /// Whether the request is answered with an error report, or may be.
    pub(crate) fn may_fail(self) -> bool {
        matches!(
            self,
            Self::TimeoutUnhandled
                | Self::TimeoutRace
                | Self::TimeoutDispatchRace
                | Self::FailsAfterStart
                | Self::TargetFails
        )
    }

    /// Whether the round is to time out, or may.
    pub(crate) fn is_timed(self) -> bool {
        matches!(
            self,
            Self::TimeoutUnhandled
                | Self::TimeoutCompletes
                | Self::TimeoutDispatches
                | Self::TimeoutRace
                | Self::TimeoutDispatchRace
        )
    }

    /// Whether the servlet fails once it has started async.
    pub(crate) fn fails_after_start(self) -> bool {
        matches!(self, Self::FailsAfterStart | Self::FailsAndCompletes | Self::FailsAndDispatches)
    }

    /// Whether the answer may be without content, or with a part of it, and be right.
    pub(crate) fn may_be_short(self) -> bool {
        matches!(self, Self::TimeoutRace | Self::Peer | Self::Handle) || self.fails_after_start()
    }

    /// Whether no other answer than an error report is right.
    pub(crate) fn must_fail(self) -> bool {
        matches!(self, Self::TimeoutUnhandled | Self::FailsAfterStart | Self::TargetFails)
    }
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) kind: Kind,
    pub(crate) end: End,
    /// Content of the request; 0 for GET.
    pub(crate) upload_bytes: usize,
    pub(crate) is_upload_chunked: bool,
    /// Content of the answer.
    pub(crate) answer_bytes: usize,
    /// In how many writes.
    pub(crate) pieces: usize,
    pub(crate) flushes: bool,
    pub(crate) announces_length: bool,
    pub(crate) delay: Duration,
    pub(crate) timeout: Duration,
    /// The timeout is set by another thread, some time after the start.
    pub(crate) sets_timeout_late: bool,
    /// More threads try to end the request.
    pub(crate) has_rivals: bool,
    /// Callbacks make calls that are illegal there, and have threads make some.
    pub(crate) is_impolite: bool,
    /// A forward leads to its servlet.
    pub(crate) is_forwarded: bool,
    /// A part of its answer is included.
    pub(crate) includes: bool,
    /// Its error page may end it.
    pub(crate) is_open_to_pages: bool,
    /// A thread keeps its handle and uses it after the end.
    pub(crate) stays_stale: bool,
    /// Writers use the form that never waits.
    pub(crate) tries: bool,
    pub(crate) is_head: bool,
    /// The answer has a field that not every answer has.
    pub(crate) has_extra: bool,
    /// The client says that this is the last request of its connection.
    pub(crate) closes: bool,
    /// The client sends the content when it is told to go on.
    pub(crate) expects_continue: bool,
}

/// How much of the load is asynchronous, of 256.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mix {
    pub(crate) async_chance: u8,
    pub(crate) blocking_chance: u8,
    pub(crate) reader_chance: u8,
    pub(crate) future_chance: u8,
    pub(crate) large_chance: u8,
}

impl Plan {
    pub(crate) fn draw(mix: Mix) -> Self {
        let kind = if chance(mix.async_chance) {
            Kind::Async
        } else if chance(mix.blocking_chance) {
            Kind::Blocking
        } else if chance(mix.reader_chance) {
            Kind::Reader
        } else if chance(mix.future_chance) {
            Kind::Future
        } else if chance(2) {
            Kind::Missing
        } else {
            Kind::Plain
        };
        let end = match End::ALL[draw(0, End::ALL.len() as u64 - 1) as usize] {
            // What a future does not do.
            End::Rounds | End::Handle | End::WriteListener if kind == Kind::Future => End::Inside,
            end => end,
        };
        let size = |large_max: u64| match () {
            () if chance(mix.large_chance) => draw(0, large_max),
            () if chance(24) => draw(0, 20_000),
            () => draw(0, 400),
        };
        let wants_upload = kind == Kind::Reader || chance(40);
        let upload_bytes = if wants_upload { size(200_000) as usize } else { 0 };
        let micros = match () {
            // Longer than the server needs to learn what a client did.
            () if chance(4) => draw(1_500_000, 4_000_000),
            () if chance(128) => draw(0, 200),
            () => draw(0, 30_000),
        };
        Self {
            kind,
            end,
            upload_bytes,
            is_upload_chunked: chance(128),
            // What a thread writes is what waits for credit.
            answer_bytes: if matches!(end, End::Foreign | End::EagerForeign | End::WriteListener)
                && chance(14)
            {
                draw(60_000, 250_000) as usize
            } else {
                size(400_000) as usize
            },
            pieces: draw(1, 6) as usize,
            flushes: chance(64),
            announces_length: chance(64),
            delay: Duration::from_micros(micros),
            timeout: Duration::from_micros(draw(1, 40_000)),
            sets_timeout_late: end.is_timed() && chance(64),
            // A rival that comes late would end a later round than it means to.
            has_rivals: end != End::Rounds && chance(64),
            is_impolite: end != End::Rounds && chance(48),
            is_forwarded: matches!(kind, Kind::Plain | Kind::Async | Kind::Future) && chance(16),
            includes: kind == Kind::Plain && chance(24),
            is_open_to_pages: chance(128),
            stays_stale: chance(32),
            tries: chance(64),
            is_head: kind == Kind::Plain && upload_bytes == 0 && chance(8),
            has_extra: chance(64),
            closes: false,
            expects_continue: false,
        }
    }

    /// What the client asks for.
    pub(crate) fn target(&self, number: u64) -> String {
        let forward = if self.is_forwarded { "/forward" } else { "" };
        format!("{forward}{}/{number}", self.kind.path())
    }

    pub(crate) fn is_post(&self) -> bool {
        self.upload_bytes > 0
    }

    /// Whether a target of a dispatch answers.
    pub(crate) fn dispatches(&self) -> bool {
        matches!(
            self.end,
            End::ForeignDispatch
                | End::EagerDispatch
                | End::DispatchInside
                | End::TimeoutDispatches
                | End::TimeoutDispatchRace
                | End::FailsAndDispatches
                | End::TargetFails
        )
    }

    /// Whether nobody but the target of a dispatch writes the answer, so that anybody may dispatch.
    pub(crate) fn is_open_to_dispatches(&self) -> bool {
        self.dispatches() || matches!(self.end, End::TimeoutUnhandled | End::FailsAfterStart)
    }

    /// Whether others may end the request before its own part has written all.
    pub(crate) fn may_be_cut(&self) -> bool {
        self.has_rivals || self.is_impolite
    }

    /// Bytes of one write.
    pub(crate) fn piece_bytes(&self) -> usize {
        self.answer_bytes.div_ceil(self.pieces).max(1)
    }
}

/// The byte that belongs at a place of a content, so that bytes of another request, or of another
/// place, are seen.
pub(crate) fn tag(number: u64, is_upload: bool, offset: usize) -> u8 {
    tag_word(number, is_upload, offset / 8).to_le_bytes()[offset % 8]
}

fn tag_word(number: u64, is_upload: bool, index: usize) -> u64 {
    let mixed = (number * 2 + u64::from(is_upload)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let word = mixed ^ (index as u64).wrapping_mul(0xff51_afd7_ed55_8ccd);
    word ^ word >> 29
}

/// A content from `start` on.
pub(crate) fn tagged(number: u64, is_upload: bool, start: usize, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len + 16);
    extend_tagged(&mut bytes, number, is_upload, start, len);
    bytes
}

/// Appends a content from `start` on.
pub(crate) fn extend_tagged(
    out: &mut Vec<u8>,
    number: u64,
    is_upload: bool,
    start: usize,
    len: usize,
) {
    let end = start + len;
    let lead_end = start.next_multiple_of(8).min(end);
    out.extend((start..lead_end).map(|offset| tag(number, is_upload, offset)));
    // Whole words, and what is too much of the last one goes.
    let whole = out.len() + (end - lead_end);
    for index in lead_end / 8..end.div_ceil(8) {
        out.extend_from_slice(&tag_word(number, is_upload, index).to_le_bytes());
    }
    out.truncate(whole);
}

/// The first place where bytes are not what belongs there.
pub(crate) fn find_strange(
    number: u64,
    is_upload: bool,
    offset: usize,
    bytes: &[u8],
) -> Option<usize> {
    // Whole words where that is possible: all bytes of all runs come by here.
    let lead = (8 - offset % 8) % 8;
    let (lead, words) = bytes.split_at(lead.min(bytes.len()));
    let is_own = |(index, byte): (usize, &u8)| *byte == tag(number, is_upload, offset + index);
    let first = (offset + lead.len()) / 8;
    let (words, tail) = words.as_chunks::<8>();
    let is_fine = lead.iter().enumerate().all(is_own)
        && words.iter().enumerate().all(|(index, word)| {
            u64::from_le_bytes(*word) == tag_word(number, is_upload, first + index)
        })
        && tail.iter().enumerate().all(|(index, byte)| {
            *byte == tag(number, is_upload, (first + words.len()) * 8 + index)
        });
    if is_fine {
        return None;
    }
    bytes.iter().enumerate().position(|place| !is_own(place)).map(|at| offset + at)
}
