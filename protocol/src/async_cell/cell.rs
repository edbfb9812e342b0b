//! The cell itself: a call from any thread, and the owner's step. It stands beside the table in
//! the folder's map, which says who may touch which field.

use std::{
    any::Any,
    collections::BTreeMap,
    fmt,
    sync::{Arc, OnceLock},
    task::Waker,
};

use ringcat_engine::{
    canary::{self, Canary},
    current::{Current, ExchangeName},
    interleave::{Point, interleave},
    observe::{Observation, observe},
    sync::{AtomicU64, Mutex, MutexGuard, Ordering, PoisonError, TryLockError},
};

use super::{inbound::Inbound, mutant::step};
use crate::{
    async_state_machine::{AsyncState, Effects, Event, Flag, IllegalState, Side, Word},
    exchange_key::ExchangeKey,
    http11::head::Head,
};

/// The way to the owner of an exchange.
pub trait Doorbell: Send + Sync {
    /// Posts "look at this exchange" to the owner's inbox, or to its own queue when the calling
    /// thread is the owner. Never waits and never runs the exchange.
    fn look(&self, key: ExchangeKey);
}

/// What a call leaves for the owner. Never empty of meaning for the order: operations are applied
/// in call order across all threads.
pub trait Operation: Send {
    /// How many bytes of the response's credit the operation holds until
    /// [`AsyncCell::release_credit`] gives them back; 0 for all but writes.
    fn credit_bytes(&self) -> usize;

    /// Whether it changes status or headers, which is refused once the response is committed.
    fn changes_head(&self) -> bool {
        false
    }

    /// Whether it commits the response: a flush.
    fn commits(&self) -> bool {
        false
    }
}

/// A value of the application under a name.
pub type Attribute = Arc<dyn Any + Send + Sync>;

/// The bounds of a cell, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellLimits {
    /// From so many bytes in flight on, writers wait; also the mark of the body bytes that wait
    /// for a reader. Default 64 KiB.
    pub high_water_bytes: u32,
    /// From so many bytes in flight on, a write fails while the owner is inside a callback of
    /// the exchange, when waiting could be for ever. Default 16 MiB.
    pub backlog_bytes_max: u32,
}

impl CellLimits {
    /// The owner is asked to look when more than so much has gathered: an eighth of the mark.
    const fn gather_bytes(self) -> usize {
        (self.high_water_bytes as usize).div_ceil(8)
    }
}

impl Default for CellLimits {
    fn default() -> Self {
        Self { high_water_bytes: 64 << 10, backlog_bytes_max: 16 << 20 }
    }
}

/// When a call asks the owner to look. A transition that wakes asks in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// In any case.
    Always,
    /// When more than an eighth of [`CellLimits::high_water_bytes`] has gathered since the owner
    /// took the list.
    WhenGathered,
    /// Not for this call.
    Never,
}

/// A call that had no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallError {
    /// The state forbids it.
    IllegalState(IllegalState),
    /// The exchange is over.
    Closed,
    /// The head can no longer change, the response is committed.
    Committed,
    /// Sending has failed; only writes and flushes get this.
    Io,
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::IllegalState(illegal) => illegal.fmt(f),
            Self::Closed => f.write_str("the exchange is over"),
            Self::Committed => f.write_str("the response is committed"),
            Self::Io => f.write_str("the response can no longer be sent"),
        }
    }
}

impl std::error::Error for CallError {}

/// What the owner found when it looked.
#[derive(Debug, PartialEq, Eq)]
pub enum Took<O> {
    /// A caller is inside. A look is posted; the owner goes on with other work.
    Contended,
    /// Everything up to now.
    Taken {
        /// The word that goes with the list: the owner's next transition starts from it.
        word: Word,
        /// The operations since the last look, in call order.
        operations: Vec<O>,
    },
}

/// An owner's transition that did not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advance {
    /// Somebody changed the word since it was read; it is this now. The owner takes the list again
    /// before it acts on it, since the operations of the change come with it.
    Changed(Word),
    /// The state forbids it.
    Illegal(IllegalState),
}

/// A side of the non-blocking I/O of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The request's body.
    Read,
    /// The response.
    Write,
}

impl Direction {
    const fn flags(self) -> (Flag, Flag) {
        match self {
            Self::Read => (Flag::ReadReady, Flag::ReadOwed),
            Self::Write => (Flag::WriteReady, Flag::WriteOwed),
        }
    }
}

/// The part of an exchange that other threads may touch, behind an `Arc` that every handle of
/// the exchange holds. `Send` and `Sync`; each method says if it is the owner's.
pub struct AsyncCell<O: Operation> {
    pub(super) word: AtomicU64,
    pub(super) in_flight: AtomicU64,
    timeout: AtomicU64,
    start: AtomicU64,
    name: ExchangeName,
    doorbell: Arc<dyn Doorbell>,
    pub(super) limits: CellLimits,
    pub(super) ops: Mutex<Ops<O>>,
    attributes: Mutex<Option<Box<Attributes>>>,
    head: OnceLock<Arc<Head>>,
    pub(super) inbound: OnceLock<Box<Inbound>>,
}

type Attributes = BTreeMap<Box<str>, Attribute>;

/// What the lock of a cell guards. That the cell is closed is the flag CLOSED, set inside too.
pub(super) struct Ops<O> {
    list: Vec<O>,
    /// Boxed, since few responses are ever waited for and 10,000 may be parked.
    pub(super) waiters: Option<Box<Waiters>>,
    /// Credit bytes in `list`.
    gathered_bytes: usize,
}

/// Who waits for credit, and who for the client's departure.
#[derive(Default)]
pub(super) struct Waiters {
    pub(super) others: Vec<Waker>,
    /// The request's own future.
    pub(super) own: Vec<Waker>,
    /// Who waits for the client's departure.
    pub(super) watchers: Vec<Waker>,
}

impl Waiters {
    pub(super) fn is_empty(&self) -> bool {
        self.others.is_empty() && self.own.is_empty() && self.watchers.is_empty()
    }
}

impl<O> Ops<O> {
    const fn new() -> Self {
        Self { list: Vec::new(), waiters: None, gathered_bytes: 0 }
    }
}

impl<O: Operation> AsyncCell<O> {
    /// The cell of one exchange, in state DISPATCHED.
    ///
    /// # Panics
    /// If `name` is not that of `key`: its number must be [`ExchangeKey::to_u64`].
    pub fn new(
        name: ExchangeName,
        key: ExchangeKey,
        doorbell: Arc<dyn Doorbell>,
        limits: CellLimits,
    ) -> Self {
        assert_eq!(name.key, key.to_u64(), "name and key of two exchanges");
        Self {
            word: AtomicU64::new(Word::NEW.to_bits()),
            in_flight: AtomicU64::new(0),
            timeout: AtomicU64::new(0),
            start: AtomicU64::new(0),
            name,
            doorbell,
            limits,
            ops: Mutex::new(Ops::new()),
            attributes: Mutex::new(None),
            head: OnceLock::new(),
            inbound: OnceLock::new(),
        }
    }

    /// Makes the cell that of another exchange of the same core. The exclusive borrow, from
    /// `Arc::get_mut`, proves that no handle of the last one is left; otherwise that cell stays
    /// closed for ever. The round goes on counting. What the last exchange left in it is dropped
    /// here, so the owner takes the [attributes](Self::take_attributes) out first.
    ///
    /// # Panics
    /// As [`AsyncCell::new`].
    pub fn reset(&mut self, name: ExchangeName, key: ExchangeKey) {
        assert_eq!(name.key, key.to_u64(), "name and key of two exchanges");
        let recycled = self.word().recycled().to_bits();
        let Self {
            word,
            in_flight,
            timeout,
            start,
            name: own_name,
            doorbell: _,
            limits: _,
            ops,
            attributes,
            head,
            inbound,
        } = self;
        *word = AtomicU64::new(recycled);
        for number in [in_flight, timeout, start] {
            *number = AtomicU64::new(0);
        }
        *own_name = name;
        *ops.get_mut().unwrap_or_else(PoisonError::into_inner) = Ops::new();
        *attributes.get_mut().unwrap_or_else(PoisonError::into_inner) = None;
        *head = OnceLock::new();
        *inbound = OnceLock::new();
    }

    /// The name of the exchange in the whole process.
    pub fn name(&self) -> ExchangeName {
        self.name
    }

    /// The key of the exchange on its core.
    pub fn key(&self) -> ExchangeKey {
        ExchangeKey::from_u64(self.name.key)
    }

    /// The side of the calling thread: the request's if it runs a callback of this exchange.
    pub fn side(&self) -> Side {
        if Current::get().exchange == Some(self.name) { Side::Request } else { Side::Other }
    }

    /// State, round and flags now. For an answer only: by the time it is read it may have changed.
    pub fn word(&self) -> Word {
        Word::from_bits(self.word.load(Ordering::Acquire))
    }

    /// A call from any thread: an event, an operation, or both as one step.
    ///
    /// # Errors
    /// [`CallError`]; then nothing was changed or pushed, and the operation is dropped.
    pub fn call(
        &self,
        event: Option<Event>,
        operation: Option<O>,
        look: Look,
    ) -> Result<Effects, CallError> {
        let mut ops = self.lock();
        interleave(Point::CellLocked);
        self.check_operation(operation.as_ref())?;
        let (words, effects) = match event {
            Some(event) => {
                let (words, effects) = self.apply(event).map_err(CallError::IllegalState)?;
                interleave(Point::CellTransitioned);
                (Some(words), effects)
            }
            None => (None, Effects::NONE),
        };
        if canary::has(Canary::PushedAfterTransition) && event.is_some() {
            drop(ops);
            interleave(Point::CellUnlocked);
            ops = self.lock();
        }
        let has_gathered = operation.is_some_and(|operation| self.push(&mut ops, operation));
        let has_waiters = self.word().has(Flag::Waiters);
        drop(ops);
        if let Some((from, to)) = words {
            log_change(from, to);
        }
        if has_waiters {
            self.wake_due_waiters();
        }
        interleave(Point::CellUnlocked);
        let is_asked_for = match look {
            Look::Always => true,
            Look::WhenGathered => has_gathered,
            Look::Never => false,
        };
        if is_asked_for || effects.wake || effects.post_error_event {
            self.post_look();
        }
        Ok(effects)
    }

    /// Asks the owner to look, unless a look is under way already. Any thread.
    pub fn post_look(&self) {
        if !self.set_bits(Flag::Queued).has(Flag::Queued) {
            self.doorbell.look(self.key());
        }
    }

    /// The look that led here is over: one that is asked for from now on is posted. The owner's,
    /// before it reads what another thread writes and then asks for a look; what it read earlier
    /// may be old, and that thread, finding QUEUED set, would ask nobody.
    pub fn begin_look(&self) {
        if self.word().has(Flag::Queued) {
            self.clear_flag(Flag::Queued);
        }
    }

    /// The owner's step, first half: everything that callers left up to now, with the word that
    /// goes with it. The owner applies the operations in order, then changes the state from
    /// that word by [`AsyncCell::advance`].
    pub fn take(&self) -> Took<O> {
        if !canary::has(Canary::QueuedClearedLate) {
            self.begin_look();
        }
        let Some(mut ops) = self.try_lock() else {
            if !canary::has(Canary::LookLostWhenLocked) {
                self.post_look();
            }
            return Took::Contended;
        };
        let word = self.word();
        let mut operations = std::mem::take(&mut ops.list);
        ops.gathered_bytes = 0;
        drop(ops);
        if canary::has(Canary::QueuedClearedLate) {
            interleave(Point::OwnerTook);
            self.clear_flag(Flag::Queued);
        }
        if canary::has(Canary::OperationsReversed) {
            operations.reverse();
        }
        if word.has(Flag::Waiters) {
            self.wake_due_waiters();
        }
        interleave(Point::OwnerTook);
        Took::Taken { word, operations }
    }

    /// The operations of calls that have returned, for an owner inside a callback whose own next
    /// step must come behind them. It cannot come back for them later, as [`AsyncCell::take`]
    /// lets it, so it waits for a caller that is inside: for a push, never for application code.
    pub fn take_before_own_step(&self) -> Vec<O> {
        let mut ops = self.lock();
        let operations = std::mem::take(&mut ops.list);
        ops.gathered_bytes = 0;
        drop(ops);
        if self.word().has(Flag::Waiters) {
            self.wake_due_waiters();
        }
        operations
    }

    /// The owner's step, second half: its own transition, from the word that came with the list.
    /// On_complete listeners run before, the effects being known from
    /// [`transition`](crate::async_state_machine::transition).
    ///
    /// # Errors
    /// [`Advance`]; the word is unchanged then.
    pub fn advance(&self, from: Word, event: Event) -> Result<Effects, Advance> {
        let (to, effects) = step(from, event).map_err(|illegal| {
            self.observe_transition(from, None, event);
            Advance::Illegal(illegal)
        })?;
        interleave(Point::OwnerAdvances);
        self.swap(from, to).map_err(Advance::Changed)?;
        self.observe_transition(from, Some(to), event);
        log_change(from, to);
        Ok(effects)
    }

    /// Sets a flag and answers the word before. Any thread; [`Flag::Busy`], [`Flag::IoError`] and
    /// [`Flag::PeerClosed`] are the owner's and let those who wait go on. [`Flag::Closed`] is set
    /// by [`AsyncCell::close`] only.
    pub fn set_flag(&self, flag: Flag) -> Word {
        debug_assert!(!matches!(flag, Flag::Closed | Flag::Queued | Flag::Waiters));
        let before = self.set_bits(flag);
        if before.has(Flag::Waiters) {
            self.wake_due_waiters();
        }
        before
    }

    /// Clears a flag and answers the word before. Any thread.
    pub fn clear_flag(&self, flag: Flag) -> Word {
        Word::from_bits(self.word.fetch_and(!flag.bit(), Ordering::AcqRel))
    }

    /// The owner enters a callback of this exchange: nobody may wait for the owner from now on.
    pub fn enter_callback(&self) {
        self.set_flag(Flag::Busy);
    }

    /// The owner left the callback.
    pub fn leave_callback(&self) {
        self.clear_flag(Flag::Busy);
    }

    /// Answers whether the side is ready, and if not notes in the same step that a callback is
    /// owed. Any thread.
    pub fn is_ready_or_owed(&self, direction: Direction) -> bool {
        let (ready, owed) = direction.flags();
        let before = self.update(|word| if word.has(ready) { word } else { word.with(owed) });
        before.has(ready)
    }

    /// Makes the side ready and answers whether a callback was owed; it no longer is. The owner's.
    pub fn make_ready(&self, direction: Direction) -> bool {
        let (ready, owed) = direction.flags();
        self.update(|word| word.with(ready).without(owed)).has(owed)
    }

    /// Makes `start_async` illegal for other threads too, unless the request is asynchronous;
    /// answers whether it did. The owner's.
    pub fn bar_start(&self) -> bool {
        let is_plain = |word: Word| word.state() == AsyncState::Dispatched;
        let bar = |word: Word| if is_plain(word) { word.with(Flag::StartBarred) } else { word };
        is_plain(self.update(bar))
    }

    /// Ends the exchange for all other threads, after on_complete or when the server stops: later
    /// calls are refused, waiting threads go on. Answers what was still in the list, for the owner
    /// to apply or discard; none if a caller was inside: a look is posted, and the owner
    /// tries again then.
    pub fn close(&self) -> Option<Vec<O>> {
        self.begin_look();
        let Some(mut ops) = self.try_lock() else {
            self.post_look();
            return None;
        };
        if !canary::has(Canary::ClosedNotSet) {
            self.update(|word| word.with(Flag::Closed).without(Flag::Waiters));
        }
        let left = std::mem::replace(&mut *ops, Ops::new());
        drop(ops);
        if let Some(waiters) = left.waiters {
            let Waiters { others, own, watchers } = *waiters;
            others.into_iter().chain(own).chain(watchers).for_each(Waker::wake);
        }
        self.wake_readers();
        Some(left.list)
    }

    /// The timeout of a round in milliseconds; 0 or less is none. Any thread.
    pub fn timeout_millis(&self) -> i64 {
        self.timeout.load(Ordering::Acquire).cast_signed()
    }

    /// Changes the timeout and answers the last one. The caller asks the owner to look, so that
    /// it sets its timer. Any thread.
    pub fn set_timeout_millis(&self, millis: i64) -> i64 {
        self.timeout.swap(millis.cast_unsigned(), Ordering::AcqRel).cast_signed()
    }

    /// When the round began, in nanoseconds of the core's clock.
    pub fn start_nanos(&self) -> u64 {
        self.start.load(Ordering::Acquire)
    }

    /// Sets when the round began. Whoever starts the round.
    pub fn set_start_nanos(&self, nanos: u64) {
        self.start.store(nanos, Ordering::Release);
    }

    /// Stores a value under a name and answers the last one, whose drop is the caller's. Any
    /// thread.
    pub fn set_attribute(&self, name: &str, value: Attribute) -> Option<Attribute> {
        let mut attributes = self.lock_attributes();
        attributes.get_or_insert_default().insert(name.into(), value)
    }

    /// The value under a name. Any thread.
    pub fn attribute(&self, name: &str) -> Option<Attribute> {
        self.lock_attributes().as_ref()?.get(name).cloned()
    }

    /// Takes the value under a name away; its drop is the caller's. Any thread.
    pub fn remove_attribute(&self, name: &str) -> Option<Attribute> {
        self.lock_attributes().as_mut()?.remove(name)
    }

    /// The names of all attributes, sorted. Any thread.
    pub fn attribute_names(&self) -> Vec<Box<str>> {
        self.lock_attributes().as_ref().map_or(Vec::new(), |all| all.keys().cloned().collect())
    }

    /// Takes all attributes away, so that the owner drops the application's values where a panic
    /// is caught.
    pub fn take_attributes(&self) -> BTreeMap<Box<str>, Attribute> {
        self.lock_attributes().take().map_or(BTreeMap::new(), |all| *all)
    }

    /// The copy of the request's head for other threads, once there is one. Any thread.
    pub fn head(&self) -> Option<&Arc<Head>> {
        self.head.get()
    }

    /// Stores the head, unless an earlier round of the exchange did: it never changes. The
    /// owner's.
    pub fn set_head(&self, head: impl FnOnce() -> Arc<Head>) {
        self.head.get_or_init(head);
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Ops<O>> {
        self.ops.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, Ops<O>>> {
        match self.ops.try_lock() {
            Ok(ops) => Some(ops),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Pushes inside the lock; true when it is time for the owner to look.
    pub(super) fn push(&self, ops: &mut Ops<O>, operation: O) -> bool {
        let bytes = operation.credit_bytes();
        if operation.commits() {
            self.set_bits(Flag::Committed);
        }
        ops.list.push(operation);
        ops.gathered_bytes += bytes;
        let before = self.in_flight.fetch_add(bytes as u64, Ordering::AcqRel);
        // Past the mark the next writer waits for what lies in the list.
        ops.gathered_bytes > self.limits.gather_bytes()
            || before + bytes as u64 >= u64::from(self.limits.high_water_bytes)
    }

    pub(super) fn set_bits(&self, flag: Flag) -> Word {
        Word::from_bits(self.word.fetch_or(flag.bit(), Ordering::AcqRel))
    }

    /// Refuses a call before it changed anything. Inside the lock.
    fn check_operation(&self, operation: Option<&O>) -> Result<(), CallError> {
        let word = self.word();
        if word.has(Flag::Closed) {
            return Err(CallError::Closed);
        }
        let Some(operation) = operation else { return Ok(()) };
        if word.has(Flag::IoError) && (operation.commits() || operation.credit_bytes() > 0) {
            return Err(CallError::Io);
        }
        if word.has(Flag::Committed) && operation.changes_head() {
            return Err(CallError::Committed);
        }
        Ok(())
    }

    /// Applies an event to whatever the word is. Inside the lock.
    fn apply(&self, event: Event) -> Result<((Word, Word), Effects), IllegalState> {
        let mut from = self.word();
        loop {
            let (to, effects) = match step(from, event) {
                Ok(step) => step,
                Err(_) if self.completes_twice(from, event) => (from, Effects::NONE),
                Err(illegal) => {
                    self.observe_transition(from, None, event);
                    return Err(illegal);
                }
            };
            match self.swap(from, to) {
                Ok(()) => {
                    self.observe_transition(from, Some(to), event);
                    return Ok(((from, to), effects));
                }
                Err(changed) => from = changed,
            }
        }
    }

    fn observe_transition(&self, from: Word, to: Option<Word>, event: Event) {
        observe(&Observation::Transition {
            exchange: self.name,
            from: from.to_bits(),
            to: to.map(Word::to_bits),
            event: event.kind(),
        });
    }

    /// The defect of a machine that takes a second `complete()`.
    fn completes_twice(&self, word: Word, event: Event) -> bool {
        canary::has(Canary::DoubleCompletion)
            && !word.has(Flag::Closed)
            && word.state() == AsyncState::Completing
            && matches!(event, Event::Complete(_))
    }

    /// Changes the word by a function and answers the word before.
    pub(super) fn update(&self, change: impl Fn(Word) -> Word) -> Word {
        let mut from = self.word();
        loop {
            match self.swap(from, change(from)) {
                Ok(()) => return from,
                Err(changed) => from = changed,
            }
        }
    }

    fn swap(&self, from: Word, to: Word) -> Result<(), Word> {
        self.word
            .compare_exchange(from.to_bits(), to.to_bits(), Ordering::AcqRel, Ordering::Acquire)
            .map(drop)
            .map_err(Word::from_bits)
    }

    fn lock_attributes(&self) -> MutexGuard<'_, Option<Box<Attributes>>> {
        self.attributes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<O: Operation> fmt::Debug for AsyncCell<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncCell")
            .field("key", &self.key())
            .field("word", &self.word())
            .field("in_flight", &self.in_flight_bytes())
            .finish_non_exhaustive()
    }
}

/// One line a change of state. The log adds thread and time.
fn log_change(from: Word, to: Word) {
    if from.state() != to.state() {
        tracing::trace!(
            target: "state",
            "state: Changing async state from [{}] to [{}]",
            from.state(),
            to.state()
        );
    }
}

/// What a parked request may hold in its cell, without the counts of the `Arc`.
#[cfg(all(target_pointer_width = "64", not(loom)))]
const _: () = {
    struct Any;
    impl Operation for Any {
        fn credit_bytes(&self) -> usize {
            0
        }
    }
    assert!(size_of::<AsyncCell<Any>>() <= 192, "the cell is over its budget");
};
