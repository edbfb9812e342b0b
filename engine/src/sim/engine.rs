//! Starts, drains and awaits the cores of a simulated server: what [`Engine`](crate::engine) does
//! with threads and rings, with actors.

use std::{cell::RefCell, collections::VecDeque, rc::Rc, time::Duration};

use super::{
    backend::SimBackend,
    fault::Fault,
    world::{self, ActorId, hits},
};
use crate::{
    backend::{Backend, Io},
    connection_handler::ConnectionHandler,
    core_context::{CoreMessage, CoreSeat, CoreTimeouts},
    core_thread::Core,
    current::Current,
    inbox::{Inbox, Wake},
    key::CoreId,
    sync::Arc,
};

/// What a simulated engine is made of.
#[derive(Clone, Copy, Debug)]
pub struct SimEngineOptions {
    /// Cores to start.
    pub core_count: u16,
    /// Timeouts of connections.
    pub timeouts: CoreTimeouts,
    /// Connections of one core, at most.
    pub connections_max: usize,
}

/// Wakes a simulated core, at once or late.
struct SimWake(CoreId);

impl Wake for SimWake {
    fn wake(&self) {
        let core = self.0;
        if hits(Fault::LateWake) {
            let nanos = world::draw(1, 2_000_000);
            world::spawn("late wake", move || {
                world::sleep(Duration::from_nanos(nanos));
                ring(core);
            });
        } else {
            ring(core);
        }
    }
}

fn ring(core: CoreId) {
    let port = world::world().network.port(core);
    port.is_woken.set(true);
    port.ring();
}

/// What is left of a core when its loop has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreEnd {
    /// The core.
    pub core: CoreId,
    /// Connections that were not closed.
    pub sockets: usize,
    /// Timers that were set.
    pub timers: usize,
    /// Tasks, timers and streams that futures had.
    pub held: usize,
    /// Whether messages lay in the inbox.
    pub has_messages: bool,
}

/// Simulated cores.
pub struct SimEngine<M: Send + 'static> {
    seats: Vec<CoreSeat<M>>,
    ends: Rc<RefCell<Ends>>,
}

#[derive(Default)]
struct Ends {
    cores: VecDeque<CoreEnd>,
    waiting: Option<ActorId>,
}

impl<M: Send + 'static> SimEngine<M> {
    /// Starts the cores; `factory` makes the handler of each, `on_end` sees it after its loop.
    ///
    /// # Panics
    /// Outside a simulation.
    pub fn start<H, F, E>(options: SimEngineOptions, factory: F, on_end: E) -> Self
    where
        H: ConnectionHandler<Message = M>,
        F: Fn(&CoreSeat<M>, Rc<dyn Io>) -> H + 'static,
        E: Fn(CoreId, &H) + 'static,
    {
        let factory = Rc::new(factory);
        let on_end = Rc::new(on_end);
        let ends = Rc::new(RefCell::new(Ends::default()));
        let mut seats = Vec::new();
        for number in 0..options.core_count {
            let id = CoreId(number);
            let seat = CoreSeat {
                id,
                inbox: Arc::new(Inbox::new(Box::new(SimWake(id)))),
                counters: Arc::default(),
            };
            seats.push(seat.clone());
            // Listens before anybody can ask whether it does.
            world::world().network.port(id).is_listening.set(true);
            let (factory, on_end, ends) =
                (Rc::clone(&factory), Rc::clone(&on_end), Rc::clone(&ends));
            world::spawn_core(move || {
                let current = Current { core: Some(id), ..Current::default() };
                let end = current.scope(|| run_core(&seat, options, &*factory, &*on_end));
                let mut ends = ends.borrow_mut();
                ends.cores.push_back(end);
                if let Some(waiting) = ends.waiting {
                    world::unpark(waiting);
                }
            });
        }
        Self { seats, ends }
    }

    /// The doors to the cores and what they count.
    pub fn seats(&self) -> &[CoreSeat<M>] {
        &self.seats
    }

    /// Begins the drain.
    pub fn drain(&self) {
        self.seats.iter().for_each(|seat| seat.inbox.post(CoreMessage::Drain));
    }

    /// The drain limit passed.
    pub fn end_drain(&self) {
        self.seats.iter().for_each(|seat| seat.inbox.post(CoreMessage::DrainLimit));
    }

    /// Waits until all cores have ended; `None` if they have not within `limit`.
    pub fn wait(&self, limit: Duration) -> Option<Vec<CoreEnd>> {
        let deadline = world::now().unwrap_or_default() + limit;
        loop {
            {
                let mut ends = self.ends.borrow_mut();
                if ends.cores.len() == self.seats.len() {
                    return Some(ends.cores.iter().copied().collect());
                }
                ends.waiting = world::running();
            }
            if world::now().unwrap_or_default() >= deadline {
                return None;
            }
            world::park(Some(deadline));
        }
    }
}

fn run_core<H: ConnectionHandler>(
    seat: &CoreSeat<H::Message>,
    options: SimEngineOptions,
    factory: impl Fn(&CoreSeat<H::Message>, Rc<dyn Io>) -> H,
    on_end: impl Fn(CoreId, &H),
) -> CoreEnd {
    let backend = SimBackend::open(seat.id, options.connections_max);
    let io = backend.io();
    let handler = factory(seat, Rc::clone(&io));
    let mut core = Core::new(seat, io, options.timeouts, 1, handler);
    let services = Rc::clone(core.services());
    services.scope(|| backend.run(&mut core)).expect("a simulated loop does not fail");
    on_end(seat.id, core.handler());
    CoreEnd {
        core: seat.id,
        sockets: core.socket_count(),
        timers: core.timer_count(),
        held: core.services().held_count(),
        has_messages: !seat.inbox.is_empty(),
    }
}
