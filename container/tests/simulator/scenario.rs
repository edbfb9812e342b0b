//! One run: what is drawn from its seed before it begins, and how it goes from the start of the
//! server to the checks of its end.

use std::{cell::Cell, rc::Rc, sync::Arc, time::Duration};

use fastrand::Rng;
use ringcat::{Connector, Server};
use ringcat_engine::{
    canary::Canary,
    core_context::CoreTimeouts,
    sim::{
        engine::{SimEngine, SimEngineOptions},
        fault::{Fault, FaultPlan},
        network,
        pool::SimPool,
        world::{self, Outcome, SimOptions, hits, simulate},
    },
};

use crate::{
    application,
    checkers::End,
    client::{Load, run_client},
    foreign::run_flood,
    places,
    plan::Mix,
    run::{self, Moment},
};

/// What a run is made of; a function of its seed unless something was cut from it.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) seed: u64,
    pub(crate) cores: u16,
    pub(crate) clients: u64,
    /// Requests of all clients together.
    pub(crate) requests: u64,
    pub(crate) faults: FaultPlan,
    interleave_chance: u8,
    mix: Mix,
    /// Parked requests are completed many at a time.
    is_flood: bool,
    /// How long an early drain may take.
    drain_limit: Duration,
}

/// What a run showed.
pub(crate) struct Played {
    pub(crate) outcome: Outcome,
    pub(crate) requests: u64,
    /// How often each state met each event.
    pub(crate) cells: Vec<u64>,
}

impl Scenario {
    pub(crate) fn draw(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed ^ 0x5eed);
        let faults = FaultPlan::swarm(&mut rng);
        let is_flood = rng.u8(..50) == 0;
        let some = |rng: &mut Rng| if rng.bool() { rng.u8(..255) } else { rng.u8(..40) };
        Self {
            seed,
            cores: if is_flood { 1 } else { rng.u16(1..=4) },
            clients: if is_flood { rng.u64(400..=700) } else { rng.u64(1..=40) },
            requests: rng.u64(50..=3000),
            is_flood,
            drain_limit: Duration::from_millis([10, 400, 200_000][rng.usize(..3)]),
            faults,
            interleave_chance: [0, 8, 64, 160][rng.usize(..4)],
            mix: Mix {
                async_chance: if is_flood { 255 } else { some(&mut rng) },
                blocking_chance: rng.u8(..60),
                reader_chance: rng.u8(..60),
                future_chance: rng.u8(..80),
                large_chance: [0, 0, 2, 6][rng.usize(..4)],
            },
        }
    }

    /// Runs it to its end, or to what is wrong.
    pub(crate) fn play(&self, canary: Option<Canary>, keeps_trace: bool) -> Played {
        let options = SimOptions {
            faults: self.faults.clone(),
            interleave_chance: self.interleave_chance,
            keeps_trace,
            canary,
            ..SimOptions::new(self.seed)
        };
        let scenario = self.clone();
        let requests = Rc::new(Cell::new(0));
        let cells = Rc::new(Cell::new(Vec::new()));
        let (seen_requests, seen_cells) = (Rc::clone(&requests), Rc::clone(&cells));
        let outcome = simulate(&options, move || {
            let run = run::begin();
            let is_slow = |fault| scenario.faults.weight(fault) > 0;
            let slow = [Fault::ClientSlow, Fault::NarrowWindow, Fault::ClientSilent];
            run.set_reading_slow(slow.into_iter().any(is_slow));
            if scenario.is_flood {
                run.set_flood();
            }
            scenario.live();
            seen_requests.set(run.requests());
            seen_cells.set(run.cells());
            run::end();
        });
        Played { outcome, requests: requests.get(), cells: cells.take() }
    }

    fn live(&self) {
        let service = Server::builder()
            .connector(Connector::http("127.0.0.1:80"))
            .context(application::context())
            .context(places::other_context())
            .assemble(Arc::new(SimPool))
            .expect("the application of the simulator is well made");
        let service = Rc::new(service);
        let timeouts = CoreTimeouts::default();
        let options =
            SimEngineOptions { core_count: self.cores, timeouts, connections_max: 10_000 };
        let exchanges = Rc::new(Cell::new(0));
        let (core_service, left) = (Rc::clone(&service), Rc::clone(&exchanges));
        let engine = SimEngine::start(
            options,
            move |seat, io| core_service.core_handler(seat, io),
            move |_, handler| left.set(left.get() + handler.exchange_count()),
        );
        crate::upstream::spawn();
        let running = self.start_clients();
        let mut drain_limit = Duration::from_secs(200);
        if self.is_flood {
            let running = Rc::clone(&running);
            world::spawn("flood", move || run_flood(|| running.get() == 0));
        }
        if hits(Fault::EarlyDrain) {
            drain_limit = self.drain_limit;
            world::sleep(Duration::from_micros(world::draw(0, 200_000)));
        } else {
            while running.get() > 0 {
                world::park(None);
            }
        }
        let run = run::run();
        run.set_draining();
        if !self.is_flood {
            run.forget_peers();
        }
        engine.drain();
        let mut drained_after_limit = None;
        let cores = engine.wait(drain_limit).or_else(|| {
            let begun = Moment::now();
            engine.end_drain();
            let cores = engine.wait(Duration::from_secs(30));
            drained_after_limit = Some(begun.elapsed());
            cores
        });
        let Some(cores) = cores else {
            world::fail("the cores do not end");
            return;
        };
        run.set_over();
        // Who still holds a handle finds it closed.
        while world::others() > 0 {
            world::sleep(Duration::from_millis(10));
        }
        run.forget_peers();
        let report = service.report(engine.seats());
        run.check_end(&End {
            cores,
            exchanges: exchanges.get(),
            report,
            drained_after_limit,
            drain_cut: timeouts.drain_cut,
            is_cut: report.connections_cut > 0,
            connects: network::connects(),
        });
        service.destroy();
    }

    fn start_clients(&self) -> Rc<Cell<u64>> {
        let running = Rc::new(Cell::new(self.clients));
        let main = world::running().expect("the first actor");
        for _ in 0..self.clients {
            let load = Load { requests: self.requests.div_ceil(self.clients), mix: self.mix };
            let running = Rc::clone(&running);
            world::spawn("client", move || {
                run_client(load);
                running.set(running.get() - 1);
                if running.get() == 0 {
                    world::unpark(main);
                }
            });
        }
        running
    }

    /// Smaller runs that may show the same.
    pub(crate) fn smaller(&self) -> Vec<Self> {
        let mut smaller = Vec::new();
        if self.cores > 1 {
            smaller.push(Self { cores: 1, ..self.clone() });
        }
        if self.clients > 1 {
            smaller.push(Self { clients: 1, ..self.clone() });
            smaller.push(Self { clients: self.clients.div_ceil(2), ..self.clone() });
        }
        if self.requests > 1 {
            smaller.push(Self { requests: self.requests / 8 + 1, ..self.clone() });
            smaller.push(Self { requests: self.requests.div_ceil(2), ..self.clone() });
        }
        for fault in Fault::ALL {
            if self.faults.weight(*fault) > 0 {
                let faults = self.faults.clone().with(*fault, 0);
                smaller.push(Self { faults, ..self.clone() });
            }
        }
        smaller.retain(|smaller| {
            smaller.cores < self.cores
                || smaller.clients < self.clients
                || smaller.requests < self.requests
                || smaller.faults != self.faults
        });
        smaller
    }

    /// The options of the command line that make this of what its seed draws.
    pub(crate) fn replay(&self) -> String {
        let drawn = Self::draw(self.seed);
        let mut text = format!("--seed {}", self.seed);
        let numbers = [
            ("cores", u64::from(drawn.cores), u64::from(self.cores)),
            ("clients", drawn.clients, self.clients),
            ("requests", drawn.requests, self.requests),
        ];
        for (name, drawn, present) in numbers {
            if drawn != present {
                text.push_str(&format!(" --{name} {present}"));
            }
        }
        for fault in Fault::ALL {
            if drawn.faults.weight(*fault) > 0 && self.faults.weight(*fault) == 0 {
                text.push_str(&format!(" --without {}", fault.name()));
            }
        }
        text
    }
}
