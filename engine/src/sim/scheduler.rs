//! The actors of a run and who goes next. An actor is a fiber: a function on a stack of its own
//! that is left where it waits and resumed there. Who goes next is drawn from those that can; when
//! none can, the clock moves on to whoever waits for it.

use std::{
    any::Any,
    cell::{Cell, RefCell},
    cmp::Reverse,
    collections::BinaryHeap,
    panic::{AssertUnwindSafe, catch_unwind},
    ptr::NonNull,
    rc::Rc,
    time::Duration,
};

use corosensei::{Coroutine, CoroutineResult, Yielder, stack::DefaultStack};

use super::{
    fault::Fault,
    world::{self, World},
};
use crate::{current::Current, local::services::LocalServices, timestamp::Timestamp};

type Fiber = Coroutine<(), (), (), DefaultStack>;

/// The name of an actor; one that has ended is nobody's any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ActorId {
    slot: u32,
    stamp: u32,
}

/// Bytes of an actor's stack; only touched pages cost memory.
const STACK_BYTES: usize = 512 * 1024;

/// How far the clock moves at a step, at most.
const STEP_NANOS_MAX: u64 = 2000;

pub(crate) struct Scheduler {
    actors: Vec<Actor>,
    free: Vec<u32>,
    /// Who can go on, in no order.
    ready: Vec<u32>,
    /// Who waits for the clock, and which wait of theirs it is.
    timers: BinaryHeap<Reverse<(Timestamp, u64, u32, u32)>>,
    timer_count: u64,
    started: u32,
    alive: usize,
    steps: u64,
    steps_max: u64,
    is_stopped: bool,
}

struct Actor {
    name: &'static str,
    number: u32,
    stamp: u32,
    is_core: bool,
    fiber: Option<Fiber>,
    yielder: Option<NonNull<Yielder<(), ()>>>,
    /// Who this actor is to the product while it runs.
    current: Current,
    services: Option<Rc<LocalServices>>,
    state: State,
    /// An unpark that no park has answered.
    has_token: bool,
    stalled_nanos: u64,
    /// Counts waits, so that the timer of an earlier one is known.
    waits: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Ready,
    Parked,
    /// Does not run although it could.
    Stalled,
    Ended,
}

/// Who runs now.
#[derive(Clone, Copy)]
struct Running {
    id: ActorId,
    name: (&'static str, u32),
    yielder: Option<NonNull<Yielder<(), ()>>>,
}

thread_local! {
    static RUNNING: Cell<Option<Running>> = const { Cell::new(None) };
    /// Stacks of actors that have ended, for those of later runs too: to map one costs more than
    /// an exchange.
    static STACKS: RefCell<Vec<DefaultStack>> = const { RefCell::new(Vec::new()) };
}

pub(crate) fn is_running() -> bool {
    RUNNING.get().is_some()
}

pub(crate) fn running() -> Option<ActorId> {
    RUNNING.get().map(|running| running.id)
}

pub(crate) fn running_name() -> (&'static str, u32) {
    RUNNING.get().map_or(("world", 0), |running| running.name)
}

impl Scheduler {
    pub(crate) fn new(steps_max: u64) -> Self {
        Self {
            actors: Vec::new(),
            free: Vec::new(),
            ready: Vec::new(),
            timers: BinaryHeap::new(),
            timer_count: 0,
            started: 0,
            alive: 0,
            steps: 0,
            steps_max,
            is_stopped: false,
        }
    }

    pub(crate) fn spawn(
        &mut self,
        name: &'static str,
        is_core: bool,
        f: impl FnOnce() + 'static,
    ) -> ActorId {
        let stack = STACKS.with_borrow_mut(Vec::pop).unwrap_or_else(|| {
            DefaultStack::new(STACK_BYTES).expect("there is memory for the stack of an actor")
        });
        let fiber = Coroutine::with_stack(stack, move |yielder: &Yielder<(), ()>, ()| {
            let mut running = RUNNING.get().expect("resumed by the scheduler");
            running.yielder = Some(NonNull::from(yielder));
            RUNNING.set(Some(running));
            f();
        });
        self.started += 1;
        let number = self.started;
        let actor = Actor {
            name,
            number,
            stamp: number,
            is_core,
            fiber: Some(fiber),
            yielder: None,
            current: Current::default(),
            services: None,
            state: State::Ready,
            has_token: false,
            stalled_nanos: 0,
            waits: 0,
        };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.actors[slot as usize] = actor;
                slot
            }
            None => {
                self.actors.push(actor);
                u32::try_from(self.actors.len() - 1).expect("few actors")
            }
        };
        self.alive += 1;
        self.ready.push(slot);
        ActorId { slot, stamp: number }
    }

    pub(crate) fn alive(&self) -> usize {
        self.alive
    }

    pub(crate) fn stop(&mut self) {
        self.is_stopped = true;
    }

    pub(crate) fn unpark(&mut self, id: ActorId) {
        let Some(actor) = self.actors.get_mut(id.slot as usize) else { return };
        if actor.stamp != id.stamp {
            return;
        }
        match actor.state {
            State::Parked => {
                actor.state = State::Ready;
                self.ready.push(id.slot);
            }
            State::Ready | State::Stalled => actor.has_token = true,
            State::Ended => {}
        }
    }

    fn actor(&mut self, id: ActorId) -> &mut Actor {
        &mut self.actors[id.slot as usize]
    }

    fn set_timer(&mut self, slot: u32, at: Timestamp) {
        self.timer_count += 1;
        let waits = self.actors[slot as usize].waits;
        self.timers.push(Reverse((at, self.timer_count, slot, waits)));
    }

    /// Makes ready whoever waited for the time that it is now.
    fn wake_due(&mut self, now: Timestamp) {
        while let Some(Reverse((at, _, slot, waits))) = self.timers.peek().copied()
            && at <= now
        {
            self.timers.pop();
            let actor = &mut self.actors[slot as usize];
            let is_waiting = matches!(actor.state, State::Parked | State::Stalled);
            if is_waiting && actor.waits == waits {
                // Lost once it is over: until then nobody knows.
                if actor.state == State::Stalled {
                    world::lose(actor.stalled_nanos);
                }
                actor.state = State::Ready;
                self.ready.push(slot);
            }
        }
    }

    /// When the next actor waits for the clock.
    fn next_timer(&mut self) -> Option<Timestamp> {
        while let Some(Reverse((at, _, slot, waits))) = self.timers.peek().copied() {
            let actor = &self.actors[slot as usize];
            let is_waiting = matches!(actor.state, State::Parked | State::Stalled);
            if is_waiting && actor.waits == waits {
                return Some(at);
            }
            self.timers.pop();
        }
        None
    }

    fn ended(&mut self, slot: u32, fiber: Option<Fiber>) {
        let actor = &mut self.actors[slot as usize];
        actor.state = State::Ended;
        actor.stamp = 0;
        if let Some(fiber) = fiber {
            STACKS.with_borrow_mut(|stacks| stacks.push(fiber.into_stack()));
        }
        self.alive -= 1;
        self.free.push(slot);
    }

    fn left_behind(&self) -> String {
        let mut names = String::new();
        for actor in self.actors.iter().filter(|actor| actor.state != State::Ended) {
            names.push_str(&format!(" {}-{} ({:?})", actor.name, actor.number, actor.state));
        }
        names
    }
}

/// Moves actors until `main` has ended or the run failed. Answers the steps.
pub(crate) fn drive(world: &Rc<World>, main: ActorId) -> u64 {
    while !world.scheduler.borrow().is_stopped {
        if world.scheduler.borrow_mut().actor(main).stamp != main.stamp {
            let scheduler = world.scheduler.borrow();
            if scheduler.alive > 0 {
                let left = scheduler.left_behind();
                drop(scheduler);
                world::fail(format!("actors are left behind:{left}"));
            }
            break;
        }
        let Some(slot) = next(world) else { break };
        resume(world, slot);
    }
    let mut scheduler = world.scheduler.borrow_mut();
    if world::has_failed() {
        // See `simulate`: suspended frames of a failed run are not unwound.
        for actor in &mut scheduler.actors {
            std::mem::forget(actor.fiber.take());
        }
    }
    scheduler.steps
}

/// Who goes next, after the clock moved; `None` if the run cannot go on.
fn next(world: &World) -> Option<u32> {
    let leaps = world::hits(Fault::ClockLeap);
    let mut rng = world.rng.borrow_mut();
    let mut scheduler = world.scheduler.borrow_mut();
    scheduler.steps += 1;
    if scheduler.steps > scheduler.steps_max {
        drop(scheduler);
        drop(rng);
        world::fail("the run does not end: too many steps");
        return None;
    }
    let mut now = world::now().unwrap_or_default();
    now = now + Duration::from_nanos(rng.u64(..STEP_NANOS_MAX));
    if leaps {
        let nanos = rng.u64(..100_000_000);
        now = now + Duration::from_nanos(nanos);
        world::lose(nanos);
    }
    scheduler.wake_due(now);
    while scheduler.ready.is_empty() {
        let Some(at) = scheduler.next_timer() else {
            let left = scheduler.left_behind();
            drop(scheduler);
            drop(rng);
            world::fail(format!("nobody can go on, a wake was lost:{left}"));
            return None;
        };
        now = now.max(at + Duration::from_nanos(rng.u64(..STEP_NANOS_MAX)));
        scheduler.wake_due(now);
    }
    world::set_now(now);
    let index = rng.usize(..scheduler.ready.len());
    let slot = scheduler.ready.swap_remove(index);
    if !scheduler.actors[slot as usize].is_core {
        return Some(slot);
    }
    drop(scheduler);
    drop(rng);
    if world::hits(Fault::CoreStall) {
        let nanos = world.rng.borrow_mut().u64(..50_000_000);
        let mut scheduler = world.scheduler.borrow_mut();
        let actor = &mut scheduler.actors[slot as usize];
        actor.state = State::Stalled;
        actor.stalled_nanos = nanos;
        actor.waits = actor.waits.wrapping_add(1);
        scheduler.set_timer(slot, now + Duration::from_nanos(nanos));
        drop(scheduler);
        return next(world);
    }
    Some(slot)
}

fn resume(world: &World, slot: u32) {
    let mut scheduler = world.scheduler.borrow_mut();
    let actor = &mut scheduler.actors[slot as usize];
    let Some(mut fiber) = actor.fiber.take() else { return };
    let running = Running {
        id: ActorId { slot, stamp: actor.stamp },
        name: (actor.name, actor.number),
        yielder: actor.yielder,
    };
    let (current, services) = (actor.current, actor.services.take());
    drop(scheduler);
    RUNNING.set(Some(running));
    let outer = current.swap_in(services);
    let result = catch_unwind(AssertUnwindSafe(|| fiber.resume(())));
    let (current, services) = outer.0.swap_in(outer.1);
    let running = RUNNING.take().expect("set above");
    let mut scheduler = world.scheduler.borrow_mut();
    match result {
        Ok(CoroutineResult::Yield(())) => {
            let actor = &mut scheduler.actors[slot as usize];
            actor.fiber = Some(fiber);
            actor.yielder = running.yielder;
            actor.current = current;
            actor.services = services;
        }
        Ok(CoroutineResult::Return(())) => scheduler.ended(slot, Some(fiber)),
        Err(panic) => {
            scheduler.ended(slot, None);
            drop(scheduler);
            let (name, number) = running.name;
            let (text, place) = (panic_text(&*panic), world::panic_place());
            world::fail(format!("{name}-{number} panicked at {place}: {text}"));
        }
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (None, Some(text)) => text,
        (None, None) => "without a text",
    }
}

/// Leaves the running actor; it is resumed here.
fn suspend() {
    let running = RUNNING.get().expect("only an actor can be left");
    let yielder = running.yielder.expect("an actor that runs has begun");
    // SAFETY: the pointer was made from the reference that this very fiber was started with
    // (`resume` sets `RUNNING` to the fiber that it resumes), which is valid as long as the fiber
    // has not returned; it runs right now.
    unsafe { yielder.as_ref() }.suspend(());
}

pub(crate) fn give_way(world: &World) {
    let id = running().expect("only an actor gives way");
    {
        let mut scheduler = world.scheduler.borrow_mut();
        scheduler.actor(id).state = State::Ready;
        scheduler.ready.push(id.slot);
    }
    suspend();
}

pub(crate) fn park(world: &World, deadline: Option<Timestamp>) {
    let id = running().expect("only an actor waits");
    {
        let mut scheduler = world.scheduler.borrow_mut();
        let actor = scheduler.actor(id);
        if std::mem::take(&mut actor.has_token) {
            return;
        }
        actor.state = State::Parked;
        actor.waits = actor.waits.wrapping_add(1);
        if let Some(deadline) = deadline.filter(|deadline| *deadline != Timestamp::NEVER) {
            scheduler.set_timer(id.slot, deadline);
        }
    }
    suspend();
}
