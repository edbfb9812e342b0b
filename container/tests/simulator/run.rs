//! What everybody in a run shares: the plans by number, what is known of each request, the
//! checkers. It lives on the thread of the run, since servlets cannot hold it.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    rc::Rc,
    time::Duration,
};

use ringcat::AsyncContext;
use ringcat_engine::{observe::Observation, sim::world, timestamp::Timestamp};

use crate::{
    checkers::{Checkers, End, Seen},
    plan::{Kind, Plan},
};

/// What is known of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub(crate) plan: Plan,
    /// A fault hit its application code.
    pub(crate) has_failed: bool,
    /// Its round timed out.
    pub(crate) has_timed_out: bool,
    /// The target of a dispatch was entered: between two rounds another may begin.
    pub(crate) is_dispatched: bool,
    /// `on_error` ran, the last time in this round.
    pub(crate) has_erred: bool,
    pub(crate) erred_round: u32,
    /// `on_complete` ran.
    pub(crate) is_completed: bool,
    pub(crate) completed_at: Option<Moment>,
    /// When the servlet that began the round returned, after its start.
    pub(crate) parked_after: Option<Duration>,
    /// When the round of a future began.
    pub(crate) future_since: Option<Moment>,
    /// Its error page dispatched it.
    pub(crate) is_sent_on_by_page: bool,
    /// A thread left an attribute for the target of its dispatch.
    pub(crate) has_left_note: bool,
    /// The client ended its sending side, or reset the connection.
    pub(crate) half_closed_at: Option<Moment>,
    pub(crate) reset_at: Option<Moment>,
    /// The oldest request of its connection that is not answered, since then.
    pub(crate) first_since: Option<Moment>,
    /// The client has the whole answer.
    pub(crate) is_answered: bool,
    /// The client gave up, or something happened to its connection.
    pub(crate) is_excused: bool,
    /// Bytes of the answer's content that the client took.
    pub(crate) received_bytes: usize,
    /// Bytes that the connection holds on the way to the client.
    pub(crate) window_bytes: usize,
    pub(crate) round: u32,
    /// When the last of its callbacks ended.
    pub(crate) quiet_since: Option<Moment>,
    /// Callbacks of its application that began, and that run.
    pub(crate) callbacks_begun: u32,
    pub(crate) callbacks_running: u32,
}

impl Record {
    /// Whether the answer may be an error report by now: what else is written is dropped then, and
    /// the connection may close.
    pub(crate) fn may_be_in_error(&self) -> bool {
        let end = self.plan.end;
        let is_failing = (end.may_fail() || end.fails_after_start()) && self.round > 0;
        let has_failed = self.has_failed || self.has_timed_out || self.has_erred;
        has_failed || is_failing || self.may_be_refused()
    }

    /// Whether a full pool may have refused the servlet, or the target of a dispatch.
    pub(crate) fn may_be_refused(&self) -> bool {
        let plan = &self.plan;
        plan.kind == Kind::Blocking || plan.is_open_to_dispatches() && self.round > 0
    }
}

/// The shared part of a run.
#[derive(Default)]
pub(crate) struct Run {
    records: RefCell<Vec<Record>>,
    /// Parked requests that a callback of another one may complete.
    peers: RefCell<Vec<(u64, AsyncContext)>>,
    /// Contexts of impolite requests that have not ended.
    contexts: RefCell<BTreeMap<u64, AsyncContext>>,
    checkers: RefCell<Checkers>,
    /// The server accepts no more.
    is_draining: Cell<bool>,
    /// The cores have ended.
    is_over: Cell<bool>,
    /// Clients of this run are slow readers.
    is_reading_slow: Cell<bool>,
    /// Parked requests are completed many at a time.
    is_flood: Cell<bool>,
}

thread_local! {
    static RUN: RefCell<Option<Rc<Run>>> = const { RefCell::new(None) };
}

/// The present run.
pub(crate) fn run() -> Rc<Run> {
    RUN.with_borrow(Option::clone).expect("only inside a run")
}

/// Begins a run on this thread.
pub(crate) fn begin() -> Rc<Run> {
    let run = Rc::new(Run::default());
    RUN.set(Some(Rc::clone(&run)));
    let observer = Rc::clone(&run);
    world::set_observer(move |observation| observer.observe(observation));
    run
}

/// Ends it. Handles that it kept go with it.
pub(crate) fn end() {
    world::clear_observer();
    drop(RUN.take());
}

impl Run {
    pub(crate) fn add(&self, plan: Plan, window_bytes: usize) -> u64 {
        let mut records = self.records.borrow_mut();
        records.push(Record {
            plan,
            has_failed: false,
            has_timed_out: false,
            is_dispatched: false,
            has_erred: false,
            erred_round: 0,
            is_completed: false,
            completed_at: None,
            parked_after: None,
            future_since: None,
            is_sent_on_by_page: false,
            has_left_note: false,
            half_closed_at: None,
            reset_at: None,
            first_since: None,
            is_answered: false,
            is_excused: false,
            received_bytes: 0,
            window_bytes,
            round: 0,
            quiet_since: None,
            callbacks_begun: 0,
            callbacks_running: 0,
        });
        records.len() as u64 - 1
    }

    pub(crate) fn requests(&self) -> u64 {
        self.records.borrow().len() as u64
    }

    /// What is known of a request.
    pub(crate) fn record(&self, number: u64) -> Record {
        self.records.borrow()[number as usize]
    }

    pub(crate) fn plan(&self, number: u64) -> Plan {
        self.records.borrow()[number as usize].plan
    }

    pub(crate) fn change<R>(&self, number: u64, change: impl FnOnce(&mut Record) -> R) -> R {
        change(&mut self.records.borrow_mut()[number as usize])
    }

    pub(crate) fn set_draining(&self) {
        self.is_draining.set(true);
    }

    pub(crate) fn set_over(&self) {
        self.is_over.set(true);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.get()
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.is_draining.get()
    }

    pub(crate) fn set_reading_slow(&self, is_slow: bool) {
        self.is_reading_slow.set(is_slow);
    }

    pub(crate) fn is_reading_slow(&self) -> bool {
        self.is_reading_slow.get()
    }

    pub(crate) fn set_flood(&self) {
        self.is_flood.set(true);
    }

    pub(crate) fn is_flood(&self) -> bool {
        self.is_flood.get()
    }

    pub(crate) fn leave_to_peers(&self, number: u64, context: AsyncContext) {
        self.peers.borrow_mut().push((number, context));
    }

    pub(crate) fn take_peer(&self) -> Option<(u64, AsyncContext)> {
        self.peers.borrow_mut().pop()
    }

    pub(crate) fn keep_context(&self, number: u64, context: AsyncContext) {
        self.contexts.borrow_mut().insert(number, context);
    }

    pub(crate) fn context(&self, number: u64) -> Option<AsyncContext> {
        self.contexts.borrow().get(&number).cloned()
    }

    pub(crate) fn forget_context(&self, number: u64) {
        let context = self.contexts.borrow_mut().remove(&number);
        drop(context);
    }

    pub(crate) fn forget_peers(&self) {
        let peers = self.peers.take();
        drop(peers);
    }

    /// Something happened that checkers want to know.
    pub(crate) fn see(&self, seen: &Seen) {
        if let Err(what) = self.checkers.borrow_mut().see(seen) {
            world::fail(what);
        }
    }

    fn observe(&self, observation: &Observation) {
        if let Err(what) = self.checkers.borrow_mut().observe(observation) {
            world::fail(what);
        }
    }

    /// The run is over.
    pub(crate) fn check_end(&self, end: &End) {
        if let Err(what) = self.checkers.borrow_mut().at_end(end) {
            world::fail(what);
        }
    }

    /// How often each state met each event.
    pub(crate) fn cells(&self) -> Vec<u64> {
        self.checkers.borrow().cells()
    }
}

/// A moment, to be told later how long ago it was.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    at: Timestamp,
    lost: Duration,
}

impl Moment {
    pub(crate) fn now() -> Self {
        Self { at: now(), lost: world::lost_time() }
    }

    /// Time since, without what the run took away from its cores.
    pub(crate) fn elapsed(self) -> Duration {
        let lost = world::lost_time().saturating_sub(self.lost);
        now().saturating_since(self.at).saturating_sub(lost)
    }

    /// The later one.
    pub(crate) fn max(self, other: Self) -> Self {
        if other.at > self.at { other } else { self }
    }
}

/// The time of the run.
pub(crate) fn now() -> Timestamp {
    ringcat_engine::timestamp::Clock::system().now()
}
