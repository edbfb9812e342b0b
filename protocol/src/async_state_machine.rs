//! The state machine of asynchronous requests: thirteen states, the events that move between
//! them, and one pure total function that says what happens. It owns nothing, locks nothing and
//! calls nobody: whoever holds the [`Word`] (the owner's processor, or an
//! [`AsyncCell`](crate::async_cell::AsyncCell) that several threads share) applies the function
//! and acts on the [`Effects`]. Stands for Tomcat's `AsyncStateMachine`, with these differences:
//! an error before the starting callback ended is handled and not a dropped connection, marks
//! belong to a round and not to the whole request, and a read or write notification that lost
//! against `complete()` or `dispatch()` is refused and not illegal.

use std::fmt;

pub use crate::async_word::{Flag, Word};

/// Where a request stands between `start_async` and the end of its response. The numbers are the
/// four low bits of a [`Word`].
///
/// ```text
///               async_start           post_process            operation
///   DISPATCHED ------------> STARTING ------------> STARTED <------------> READ_WRITE_OP
///       ^                     |    |                 |   |   post_process    |      |
///       |            complete |    | complete        |   |          complete |      | complete
///       |            (request)|    | (other) timeout |   | complete (request)|      | (other)
///       |                     v    v                 v   |                   v      v
///       |         MUST_COMPLETE  COMPLETE_   TIMING_OUT  |           COMPLETING  COMPLETE_
///       |                     |  PENDING             |   |                       PENDING
///       |                     |    | post_process    |   |
///       |                     |    v        complete v   v
///       +---------------------+------------------ COMPLETING
///         post_process, output drained: on_complete
///
///   STARTING --error--> MUST_ERROR --post_process--> ERROR <--error-- every other state
///                        | complete                    | complete
///                        v                             v
///                  MUST_COMPLETE                  COMPLETING
/// ```
///
/// Wherever `complete` leads to MUST_COMPLETE, COMPLETE_PENDING or COMPLETING, `dispatch` leads to
/// MUST_DISPATCH, DISPATCH_PENDING or DISPATCHING, once a round. From the first two
/// `post_process` leads to DISPATCHING. MUST_DISPATCH and DISPATCHING become DISPATCHED just before
/// the target is entered; DISPATCHING without a target ends as COMPLETING does.
///
/// The whole table. `-` is illegal, `=` unchanged, `W` wakes the owner, `L` is
/// [`Outcome::Long`], `E` is [`Outcome::AsyncEnd`], "end" is on_complete, then DISPATCHED, `E`.
///
/// | state | async_start | complete (request) | complete (other) | dispatched |
/// |---|---|---|---|---|
/// | DISPATCHED | STARTING | - | - | - |
/// | STARTING | - | MUST_COMPLETE | COMPLETE_PENDING | - |
/// | STARTED | - | COMPLETING W | COMPLETING W | - |
/// | MUST_COMPLETE | - | - | - | - |
/// | COMPLETE_PENDING | - | - | - | - |
/// | COMPLETING | - | - | - | - |
/// | TIMING_OUT | - | COMPLETING | COMPLETING | - |
/// | MUST_DISPATCH | - | - | - | DISPATCHED |
/// | DISPATCH_PENDING | - | - | - | - |
/// | DISPATCHING | - | - | - | DISPATCHED |
/// | READ_WRITE_OP | - | COMPLETING | COMPLETE_PENDING | - |
/// | MUST_ERROR | - | MUST_COMPLETE | MUST_COMPLETE | - |
/// | ERROR | - | COMPLETING | COMPLETING | - |
///
/// | state | post_process | same, write pending | timeout | error | operation | run |
/// |---|---|---|---|---|---|---|
/// | DISPATCHED | - | - | = no fire | ERROR | - | - |
/// | STARTING | STARTED L | STARTED L | - | MUST_ERROR | - | ok |
/// | STARTED | = L | = L | TIMING_OUT fire | ERROR | READ_WRITE_OP | ok |
/// | MUST_COMPLETE | end | = L | - | ERROR | - | - |
/// | COMPLETE_PENDING | COMPLETING E | COMPLETING E | - | ERROR | - | - |
/// | COMPLETING | end | = L | = no fire | ERROR | = refused | - |
/// | TIMING_OUT | - | - | - | ERROR | - | - |
/// | MUST_DISPATCH | DISPATCHING E | DISPATCHING E | - | ERROR | - | - |
/// | DISPATCH_PENDING | DISPATCHING E | DISPATCHING E | - | ERROR | - | - |
/// | DISPATCHING | end | = L | = no fire | ERROR | = refused | - |
/// | READ_WRITE_OP | STARTED L | STARTED L | - | ERROR | - | ok |
/// | MUST_ERROR | ERROR, error handling | ERROR, error handling | - | ERROR | - | - |
/// | ERROR | - | - | - | = | - | - |
///
/// - "Write pending" counts only while I/O is allowed: on a connection that is marked closed the
///   end comes at once.
/// - An error sets [`Flag::ErrorMarked`], except from STARTING (so that MUST_ERROR can become
///   ERROR). Further errors of the round change nothing; only STARTING goes to MUST_ERROR all
///   the same.
/// - `recycle` leads from everywhere to DISPATCHED and forgets the flags; the round stays.
/// - With [`Flag::DispatchUsed`] every dispatch is illegal, with [`Flag::OthersBarred`] complete
///   and dispatch from the side other are, with [`Flag::Closed`] everything is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum AsyncState {
    /// An ordinary request, not asynchronous; also between two rounds.
    Dispatched,
    /// `start_async` was called, the owner has not left the callback yet.
    Starting,
    /// Parked, or about to be: nobody works on the request inside the container.
    Started,
    /// `complete()` from the request side before the callback ended.
    MustComplete,
    /// `complete()` from elsewhere before the callback ended.
    CompletePending,
    /// Completion is decided, the finishing is not done.
    Completing,
    /// The `on_timeout` listeners are running.
    TimingOut,
    /// `dispatch()` from the request side before the callback ended.
    MustDispatch,
    /// `dispatch()` from elsewhere before the callback ended.
    DispatchPending,
    /// A dispatch is decided, its target is not entered.
    Dispatching,
    /// A read or write callback is running.
    ReadWriteOp,
    /// An error before the starting callback ended.
    MustError,
    /// Error handling (`on_error`, error page) is running.
    Error,
}

impl AsyncState {
    /// Every state, in the order of its number.
    pub const ALL: [Self; 13] = [
        Self::Dispatched,
        Self::Starting,
        Self::Started,
        Self::MustComplete,
        Self::CompletePending,
        Self::Completing,
        Self::TimingOut,
        Self::MustDispatch,
        Self::DispatchPending,
        Self::Dispatching,
        Self::ReadWriteOp,
        Self::MustError,
        Self::Error,
    ];

    /// Whether the request is in asynchronous mode.
    pub const fn is_async(self) -> bool {
        !matches!(self, Self::Dispatched)
    }

    /// What `isAsyncStarted` answers: it stays true after `complete()` or `dispatch()` until the
    /// starting callback ended (Servlet section 9.7).
    pub const fn is_started(self) -> bool {
        !matches!(self, Self::Dispatched | Self::Completing | Self::Dispatching)
    }

    /// Whether the owner may finish the response.
    pub const fn is_completing(self) -> bool {
        matches!(self, Self::MustComplete | Self::Completing)
    }

    /// Whether the owner may enter the target of a dispatch.
    pub const fn is_dispatching(self) -> bool {
        matches!(self, Self::MustDispatch | Self::Dispatching)
    }

    /// Whether read and write listeners serve the request: a decided end, or an error, takes them
    /// away, one that waits for the callback to return not yet.
    pub const fn keeps_listeners(self) -> bool {
        matches!(
            self,
            Self::Starting
                | Self::Started
                | Self::ReadWriteOp
                | Self::CompletePending
                | Self::DispatchPending
                | Self::TimingOut
        )
    }

    /// The name that logs and scenarios use, `MUST_COMPLETE` for [`AsyncState::MustComplete`].
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dispatched => "DISPATCHED",
            Self::Starting => "STARTING",
            Self::Started => "STARTED",
            Self::MustComplete => "MUST_COMPLETE",
            Self::CompletePending => "COMPLETE_PENDING",
            Self::Completing => "COMPLETING",
            Self::TimingOut => "TIMING_OUT",
            Self::MustDispatch => "MUST_DISPATCH",
            Self::DispatchPending => "DISPATCH_PENDING",
            Self::Dispatching => "DISPATCHING",
            Self::ReadWriteOp => "READ_WRITE_OP",
            Self::MustError => "MUST_ERROR",
            Self::Error => "ERROR",
        }
    }
}

impl fmt::Display for AsyncState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// From where a call comes, compared by request and not by core: a callback of one request that
/// completes another one on the same core is on the side other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The owner is inside a callback of this very request.
    Request,
    /// Every other caller.
    Other,
}

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// `start_async()`: a new round begins.
    AsyncStart,
    /// `complete()`.
    Complete(Side),
    /// `dispatch()`, its target being known to be good.
    Dispatch(Side),
    /// The owner is about to enter the target of a dispatch.
    Dispatched,
    /// The owner left a callback and decides how to go on.
    PostProcess {
        /// Whether all output of the response has left for the kernel.
        drained: bool,
        /// Whether the connection may still be used; false once it is marked closed.
        io_allowed: bool,
    },
    /// The round's time is over.
    Timeout,
    /// Something failed: a callback, or the connection.
    Error(Side),
    /// The connection became readable or writable, for a listener.
    Operation,
    /// `AsyncContext.start(task)`.
    Run,
    /// The request ends and its storage is reused.
    Recycle,
}

impl Event {
    /// How many kinds there are, sides and drained or not told apart.
    pub const KINDS: usize = 14;

    /// The number of its kind, for tables and [`observe`](ringcat_engine::observe): in the order
    /// of the declaration, the request side before the other, drained before not.
    pub const fn kind(self) -> u8 {
        match self {
            Self::AsyncStart => 0,
            Self::Complete(Side::Request) => 1,
            Self::Complete(Side::Other) => 2,
            Self::Dispatch(Side::Request) => 3,
            Self::Dispatch(Side::Other) => 4,
            Self::Dispatched => 5,
            Self::PostProcess { drained, io_allowed } => {
                if drained || !io_allowed {
                    6
                } else {
                    7
                }
            }
            Self::Timeout => 8,
            Self::Error(Side::Request) => 9,
            Self::Error(Side::Other) => 10,
            Self::Operation => 11,
            Self::Run => 12,
            Self::Recycle => 13,
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AsyncStart => "start_async",
            Self::Complete(Side::Request) => "complete",
            Self::Complete(Side::Other) => "complete from outside of the request's callbacks",
            Self::Dispatch(Side::Request) => "dispatch",
            Self::Dispatch(Side::Other) => "dispatch from outside of the request's callbacks",
            Self::Dispatched => "entering a dispatch target",
            Self::PostProcess { .. } => "post-processing",
            Self::Timeout => "timeout",
            Self::Error(Side::Request) => "error",
            Self::Error(Side::Other) => "error from outside of the request's callbacks",
            Self::Operation => "read or write notification",
            Self::Run => "start",
            Self::Recycle => "recycle",
        })
    }
}

/// How the owner goes on after `post_process`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The exchange stays: it parks, or waits until its output has drained.
    Long,
    /// The owner goes round once more.
    AsyncEnd,
    /// The owner runs the error handling of this round now.
    ErrorHandling,
}

/// What whoever applied an event has to do besides storing the new word. A new round shows in the
/// words themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// Post "look at this exchange" to the owner.
    pub wake: bool,
    /// Run the `on_timeout` listeners.
    pub fire_on_timeout: bool,
    /// Run the `on_complete` listeners; they run before the new state is stored.
    pub on_complete: bool,
    /// The change of the context's count of requests in progress: -1, 0 or 1.
    pub in_progress: i8,
    /// Forget the read and the write listener.
    pub clears_listeners: bool,
    /// Post an ERROR event to the owner, since the error came from elsewhere.
    pub post_error_event: bool,
    /// Hand the task to the container's pool.
    pub submits: bool,
    /// The notification lost against `complete()` or `dispatch()`: notify nobody.
    pub refused: bool,
    /// How the owner goes on; `post_process` alone sets it.
    pub outcome: Option<Outcome>,
}

impl Effects {
    /// No effect.
    pub const NONE: Self = Self {
        wake: false,
        fire_on_timeout: false,
        on_complete: false,
        in_progress: 0,
        clears_listeners: false,
        post_error_event: false,
        submits: false,
        refused: false,
        outcome: None,
    };

    const CLEARS: Self = Self { clears_listeners: true, ..Self::NONE };
    const LONG: Self = Self { outcome: Some(Outcome::Long), ..Self::NONE };
    const ASYNC_END: Self = Self { outcome: Some(Outcome::AsyncEnd), ..Self::NONE };
}

/// An event that the state forbids. The word it was tried on is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IllegalState {
    /// The state that met the event.
    pub state: AsyncState,
    /// The event.
    pub event: Event,
}

impl fmt::Display for IllegalState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is illegal in asynchronous state {}", self.event, self.state)
    }
}

impl std::error::Error for IllegalState {}

/// Applies an event to a word: the new word and what is to be done, by the table above
/// [`AsyncState`]. Pure and total; the caller stores the word.
///
/// # Errors
/// [`IllegalState`] where the table says so, and where [`Flag::Closed`], [`Flag::DispatchUsed`] or
/// [`Flag::OthersBarred`] forbids the event.
pub const fn transition(word: Word, event: Event) -> Result<(Word, Effects), IllegalState> {
    let step = if word.has(Flag::Closed) {
        None
    } else {
        match event {
            Event::AsyncStart => async_start(word),
            Event::Complete(side) => complete(word, side),
            Event::Dispatch(side) => dispatch(word, side),
            Event::Dispatched => dispatched(word),
            Event::PostProcess { drained, io_allowed } => {
                post_process(word, drained || !io_allowed)
            }
            Event::Timeout => timeout(word),
            Event::Error(side) => Some(error(word, side)),
            Event::Operation => operation(word),
            Event::Run => run(word),
            Event::Recycle => Some((word.recycled(), Effects::NONE)),
        }
    };
    match step {
        Some(step) => Ok(step),
        None => Err(IllegalState { state: word.state(), event }),
    }
}

/// A new word with its effects; none where the event is illegal.
type Step = Option<(Word, Effects)>;

const fn async_start(word: Word) -> Step {
    if word.state().is_async() || word.has(Flag::StartBarred) {
        return None;
    }
    let effects = Effects { in_progress: 1, ..Effects::NONE };
    Some((word.next_round().with_state(AsyncState::Starting), effects))
}

/// When the owner may act on `complete()` or `dispatch()`.
enum Decision {
    /// At once.
    Now,
    /// When the callback that decided it has ended.
    Must,
    /// When the callback has ended during which someone else decided it.
    Pending,
}

/// What `complete` and `dispatch` have in common; none where they are illegal.
const fn decide(word: Word, side: Side) -> Option<(Decision, Effects)> {
    use AsyncState as S;
    if matches!(side, Side::Other) && word.has(Flag::OthersBarred) {
        return None;
    }
    Some(match (word.state(), side) {
        (S::Starting, Side::Request) => (Decision::Must, Effects::CLEARS),
        // The callback may be using its listeners: post_process clears them.
        (S::Starting | S::ReadWriteOp, Side::Other) => (Decision::Pending, Effects::NONE),
        (S::ReadWriteOp, Side::Request) => (Decision::Now, Effects::CLEARS),
        (S::Started, _) => (Decision::Now, Effects { wake: true, ..Effects::CLEARS }),
        (S::MustError, _) => (Decision::Must, Effects::CLEARS),
        (S::TimingOut | S::Error, _) => (Decision::Now, Effects::CLEARS),
        (
            S::Dispatched
            | S::MustComplete
            | S::CompletePending
            | S::Completing
            | S::MustDispatch
            | S::DispatchPending
            | S::Dispatching,
            _,
        ) => return None,
    })
}

const fn complete(word: Word, side: Side) -> Step {
    let Some((decision, effects)) = decide(word, side) else { return None };
    let to = match decision {
        Decision::Now => AsyncState::Completing,
        Decision::Must => AsyncState::MustComplete,
        Decision::Pending => AsyncState::CompletePending,
    };
    Some((word.with_state(to), effects))
}

const fn dispatch(word: Word, side: Side) -> Step {
    if word.has(Flag::DispatchUsed) {
        return None;
    }
    let Some((decision, effects)) = decide(word, side) else { return None };
    let to = match decision {
        Decision::Now => AsyncState::Dispatching,
        Decision::Must => AsyncState::MustDispatch,
        Decision::Pending => AsyncState::DispatchPending,
    };
    Some((word.with_state(to).with(Flag::DispatchUsed), effects))
}

const fn dispatched(word: Word) -> Step {
    if !word.state().is_dispatching() {
        return None;
    }
    let effects = Effects { in_progress: -1, ..Effects::NONE };
    Some((word.with_state(AsyncState::Dispatched), effects))
}

/// `may_end`: all output has drained, or will never be, the connection being closed.
const fn post_process(word: Word, may_end: bool) -> Step {
    use AsyncState as S;
    let (to, effects) = match word.state() {
        S::Starting | S::Started | S::ReadWriteOp => (S::Started, Effects::LONG),
        S::MustComplete | S::Completing | S::Dispatching => {
            if may_end {
                let end = Effects { on_complete: true, in_progress: -1, ..Effects::ASYNC_END };
                (S::Dispatched, end)
            } else {
                (word.state(), Effects::LONG)
            }
        }
        S::CompletePending => {
            (S::Completing, Effects { clears_listeners: true, ..Effects::ASYNC_END })
        }
        S::DispatchPending => {
            (S::Dispatching, Effects { clears_listeners: true, ..Effects::ASYNC_END })
        }
        S::MustDispatch => (S::Dispatching, Effects::ASYNC_END),
        S::MustError => {
            let handling = Effects { outcome: Some(Outcome::ErrorHandling), ..Effects::NONE };
            (S::Error, handling)
        }
        S::Dispatched | S::TimingOut | S::Error => return None,
    };
    Some((word.with_state(to), effects))
}

const fn timeout(word: Word) -> Step {
    use AsyncState as S;
    match word.state() {
        S::Started => {
            let fire = Effects { fire_on_timeout: true, ..Effects::NONE };
            Some((word.with_state(S::TimingOut), fire))
        }
        // The application was faster.
        S::Completing | S::Dispatching | S::Dispatched => Some((word, Effects::NONE)),
        S::Starting
        | S::MustComplete
        | S::CompletePending
        | S::TimingOut
        | S::MustDispatch
        | S::DispatchPending
        | S::ReadWriteOp
        | S::MustError
        | S::Error => None,
    }
}

const fn error(word: Word, side: Side) -> (Word, Effects) {
    use AsyncState as S;
    let effects = Effects { post_error_event: matches!(side, Side::Other), ..Effects::CLEARS };
    match word.state() {
        // No mark here: the callback goes on, and what it ends with must still become ERROR.
        S::Starting => (word.with_state(S::MustError).with(Flag::FailedBeforeExit), effects),
        state => {
            if word.has(Flag::ErrorMarked) {
                return (word, Effects::CLEARS);
            }
            // The target of a dispatch failed after its round had left the count.
            let in_progress = !state.is_async() as i8;
            let to = word.with_state(S::Error).with(Flag::ErrorMarked);
            (to, Effects { in_progress, ..effects })
        }
    }
}

const fn operation(word: Word) -> Step {
    use AsyncState as S;
    match word.state() {
        S::Started => Some((word.with_state(S::ReadWriteOp), Effects::NONE)),
        S::Completing | S::Dispatching => Some((word, Effects { refused: true, ..Effects::NONE })),
        S::Dispatched
        | S::Starting
        | S::MustComplete
        | S::CompletePending
        | S::TimingOut
        | S::MustDispatch
        | S::DispatchPending
        | S::ReadWriteOp
        | S::MustError
        | S::Error => None,
    }
}

const fn run(word: Word) -> Step {
    use AsyncState as S;
    match word.state() {
        S::Starting | S::Started | S::ReadWriteOp => {
            Some((word, Effects { submits: true, ..Effects::NONE }))
        }
        S::Dispatched
        | S::MustComplete
        | S::CompletePending
        | S::Completing
        | S::TimingOut
        | S::MustDispatch
        | S::DispatchPending
        | S::Dispatching
        | S::MustError
        | S::Error => None,
    }
}
