//! One run of the simulator: its clock, its seed, its faults, what was seen and what failed. The
//! free functions are what actors call; outside a run they do nothing or panic, as each says.

use std::{
    cell::{Cell, RefCell},
    fmt,
    panic::Location,
    rc::Rc,
    time::Duration,
};

use fastrand::Rng;

pub use super::scheduler::ActorId;
use super::{
    fault::{Fault, FaultPlan},
    network::Network,
    scheduler::Scheduler,
    trace::Trace,
    upstream::Upstreams,
};
use crate::{canary::Canary, interleave::Point, observe::Observation, timestamp::Timestamp};

/// What a run is made of.
#[derive(Clone, Debug)]
pub struct SimOptions {
    /// Everything that is drawn comes from it.
    pub seed: u64,
    /// What goes wrong how often.
    pub faults: FaultPlan,
    /// The chance in 256 that others run in a window of [`interleave`](crate::interleave).
    pub interleave_chance: u8,
    /// Steps of actors after which a run is stuck in a circle.
    pub steps_max: u64,
    /// Keep every record of the trace as text.
    pub keeps_trace: bool,
    /// The deliberate defect of this run.
    pub canary: Option<Canary>,
}

impl SimOptions {
    /// A run without faults, of moderate length.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            faults: FaultPlan::none(),
            interleave_chance: 64,
            steps_max: 20_000_000,
            keeps_trace: false,
            canary: None,
        }
    }
}

/// How a run ended.
#[derive(Debug)]
pub struct Outcome {
    /// What was wrong; `None` if nothing.
    pub failure: Option<String>,
    /// What happened.
    pub trace: Trace,
    /// How often each kind of fault hit, in the order of [`Fault::ALL`].
    pub fault_hits: Vec<u64>,
    /// How often others ran in each window, in the order of [`Point::ALL`].
    pub point_hits: Vec<u64>,
    /// Steps of actors.
    pub steps: u64,
    /// How long the run took on its own clock.
    pub elapsed: Duration,
}

/// Told of what the product says about itself.
type Observer = Box<dyn FnMut(&Observation)>;

/// One run. Reached through the free functions by whoever runs in it.
pub(crate) struct World {
    pub(crate) rng: RefCell<Rng>,
    pub(crate) network: Network,
    pub(crate) upstreams: Upstreams,
    pub(crate) scheduler: RefCell<Scheduler>,
    faults: RefCell<FaultPlan>,
    fault_hits: RefCell<Vec<u64>>,
    point_hits: RefCell<Vec<u64>>,
    interleave_chance: u8,
    trace: RefCell<Trace>,
    failure: RefCell<Option<String>>,
    observer: RefCell<Option<Observer>>,
    /// Time that passed although somebody could have gone on: leaps of the clock, stalls.
    lost_nanos: Cell<u64>,
}

thread_local! {
    static WORLD: RefCell<Option<Rc<World>>> = const { RefCell::new(None) };
    static NOW: Cell<Option<Timestamp>> = const { Cell::new(None) };
    static PANIC_PLACE: Cell<Option<String>> = const { Cell::new(None) };
    static CANARY: Cell<Option<Canary>> = const { Cell::new(None) };
}

/// Where the clock stands when a run begins: not at zero, which means "not yet" here and there.
const BEGIN: Timestamp = Timestamp::from_nanos(1_000_000_000);

/// Runs `main` as the first actor until it ends. All other actors must have ended by then.
///
/// # Panics
/// If the calling thread runs a simulation already.
pub fn simulate(options: &SimOptions, main: impl FnOnce() + 'static) -> Outcome {
    let world = Rc::new(World {
        rng: RefCell::new(Rng::with_seed(options.seed)),
        network: Network::default(),
        upstreams: Upstreams::default(),
        scheduler: RefCell::new(Scheduler::new(options.steps_max)),
        faults: RefCell::new(options.faults.clone()),
        fault_hits: RefCell::new(vec![0; Fault::ALL.len()]),
        point_hits: RefCell::new(vec![0; Point::ALL.len()]),
        interleave_chance: options.interleave_chance,
        trace: RefCell::new(Trace::new(options.keeps_trace)),
        failure: RefCell::new(None),
        observer: RefCell::new(None),
        lost_nanos: Cell::new(0),
    });
    let before = WORLD.replace(Some(Rc::clone(&world)));
    assert!(before.is_none(), "simulations do not nest");
    NOW.set(Some(BEGIN));
    CANARY.set(options.canary);
    let main = spawn("main", main);
    let steps = super::scheduler::drive(&world, main);
    let now = NOW.replace(None).unwrap_or(BEGIN);
    CANARY.set(None);
    WORLD.replace(None);
    // Fibers that are left have frames of a failed run on them; unwinding those runs code that
    // expects a simulation. They leak, and with them what they own.
    let failure = world.failure.borrow_mut().take();
    if failure.is_some() {
        std::mem::forget(Rc::clone(&world));
    }
    Outcome {
        failure,
        trace: world.trace.take(),
        fault_hits: world.fault_hits.take(),
        point_hits: world.point_hits.take(),
        steps,
        elapsed: now.saturating_since(BEGIN),
    }
}

/// Whether the caller is an actor.
pub fn is_inside() -> bool {
    super::scheduler::is_running()
}

/// The calling actor.
pub fn running() -> Option<ActorId> {
    super::scheduler::running()
}

/// The time of the run on this thread, if one is on.
pub(crate) fn now() -> Option<Timestamp> {
    NOW.get()
}

pub(crate) fn set_now(now: Timestamp) {
    NOW.set(Some(now));
}

/// Where an actor panics, for the report; to be called from a panic hook.
pub fn record_panic(place: &Location<'_>) {
    PANIC_PLACE.set(Some(format!("{}:{}", place.file(), place.line())));
}

pub(crate) fn panic_place() -> String {
    PANIC_PLACE.take().unwrap_or_default()
}

/// Whether the run has this defect.
pub(crate) fn has_canary(canary: Canary) -> bool {
    CANARY.get() == Some(canary)
}

/// Starts an actor.
///
/// # Panics
/// Outside a run, or if there is no memory for its stack.
pub fn spawn(name: &'static str, f: impl FnOnce() + 'static) -> ActorId {
    world().scheduler.borrow_mut().spawn(name, false, f)
}

/// Starts the loop of a core; it may be stalled.
pub(crate) fn spawn_core(f: impl FnOnce() + 'static) -> ActorId {
    world().scheduler.borrow_mut().spawn("core", true, f)
}

/// Waits until somebody calls [`unpark`], or until `deadline`. A call that came before counts.
///
/// # Panics
/// Outside an actor.
pub fn park(deadline: Option<Timestamp>) {
    super::scheduler::park(&world(), deadline);
}

/// Ends the present or next wait of an actor. One that has ended is left alone.
pub fn unpark(actor: ActorId) {
    if let Some(world) = try_world() {
        world.scheduler.borrow_mut().unpark(actor);
    }
}

/// Lets so much time pass.
pub fn sleep(duration: Duration) {
    let deadline = NOW.get().unwrap_or_default() + duration;
    while NOW.get().is_some_and(|now| now < deadline) {
        park(Some(deadline));
    }
}

/// Actors that have not ended, the calling one apart.
pub fn others() -> usize {
    world().scheduler.borrow().alive() - usize::from(is_inside())
}

/// Lets others run; the caller goes on some time later.
pub fn give_way(why: &'static str) {
    let world = world();
    // An actor that unwinds must not be left, since the count of panics belongs to the thread; and
    // what it waits for would never come.
    if std::thread::panicking() {
        eprintln!("an actor {why} while it panics: {}", panic_place());
        std::process::abort();
    }
    super::scheduler::give_way(&world);
}

/// Others may run here.
pub(crate) fn interleave(point: Point) {
    if !is_inside() || std::thread::panicking() {
        return;
    }
    let is_hit = with_world(|world| {
        let is_hit = world.rng.borrow_mut().u8(..) < world.interleave_chance;
        world.point_hits.borrow_mut()[point as usize] += u64::from(is_hit);
        is_hit
    });
    if is_hit == Some(true) {
        super::scheduler::give_way(&world());
    }
}

/// Whether a kind of fault hits now.
pub fn hits(fault: Fault) -> bool {
    let is_hit = with_world(|world| {
        let is_hit = world.faults.borrow().hits(fault, &mut world.rng.borrow_mut());
        world.fault_hits.borrow_mut()[fault as usize] += u64::from(is_hit);
        is_hit
    });
    let is_hit = is_hit == Some(true);
    if is_hit {
        record("fault", fault as u64, 0);
    }
    is_hit
}

/// Time that passed so far although somebody could have gone on: leaps of the clock, stalled
/// cores. Whoever asserts that something happens soon allows for it.
pub fn lost_time() -> Duration {
    Duration::from_nanos(try_world().map_or(0, |world| world.lost_nanos.get()))
}

pub(crate) fn lose(nanos: u64) {
    let world = world();
    world.lost_nanos.set(world.lost_nanos.get() + nanos);
}

/// Replaces what goes wrong from now on.
pub fn set_faults(faults: FaultPlan) {
    *world().faults.borrow_mut() = faults;
}

/// A number from `low` up to `high`, both included.
pub fn draw(low: u64, high: u64) -> u64 {
    with_world(|world| world.rng.borrow_mut().u64(low..=high)).expect(OUTSIDE)
}

/// A length from `low` up to `high`, both included.
pub fn draw_len(low: usize, high: usize) -> usize {
    with_world(|world| world.rng.borrow_mut().usize(low..=high)).expect(OUTSIDE)
}

/// Whether something with this chance in 256 happens.
pub fn chance(of_256: u8) -> bool {
    with_world(|world| world.rng.borrow_mut().u8(..) < of_256).expect(OUTSIDE)
}

/// Notes what happens.
pub fn record(what: &'static str, a: u64, b: u64) {
    let actor = super::scheduler::running_name();
    let nanos = NOW.get().unwrap_or_default().as_nanos();
    with_world(|world| world.trace.borrow_mut().record(nanos, actor, what, (a, b)));
}

/// Says that something is wrong; the run ends when the caller gives way. The first counts.
pub fn fail(what: impl fmt::Display) {
    let Some(world) = try_world() else { return };
    world.failure.borrow_mut().get_or_insert_with(|| what.to_string());
    world.scheduler.borrow_mut().stop();
}

pub(crate) fn has_failed() -> bool {
    try_world().is_some_and(|world| world.failure.borrow().is_some())
}

/// Has `observer` told of what the product says about itself. It must not give way.
pub fn set_observer(observer: impl FnMut(&Observation) + 'static) {
    *world().observer.borrow_mut() = Some(Box::new(observer));
}

/// No observer from now on, so that what it holds goes.
pub fn clear_observer() {
    drop(world().observer.borrow_mut().take());
}

pub(crate) fn observe(observation: &Observation) {
    if let Observation::Transition { exchange, from, to, event } = *observation {
        // In decimal: the state before, the event, the state after (99 for refused).
        let to = to.map_or(99, |to| to & 15);
        record("state", exchange.key, (from & 15) * 10_000 + u64::from(event) * 100 + to);
    }
    with_world(|world| {
        if let Some(observer) = &mut *world.observer.borrow_mut() {
            observer(observation);
        }
    });
}

pub(crate) fn world() -> Rc<World> {
    try_world().expect(OUTSIDE)
}

fn try_world() -> Option<Rc<World>> {
    WORLD.with_borrow(Option::clone)
}

/// Runs `f` on the run of this thread, without a count of references: for what is done often.
fn with_world<R>(f: impl FnOnce(&World) -> R) -> Option<R> {
    WORLD.with_borrow(|world| world.as_deref().map(f))
}

const OUTSIDE: &str = "only inside a simulation";
