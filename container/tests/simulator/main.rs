//! The simulator: the whole server (cores, protocol, container, an application) in one thread,
//! with clients, foreign threads and faults, all moved by one seed. See the module `sim` of the
//! engine for how it works, and `checkers` for what it holds.
//!
//! ```text
//! cargo sim                      what the tests run: regressions, some seeds in order
//! cargo sim --seconds 180        fresh seeds for so long
//! cargo sim --seed 7 [--trace]   one run again
//! cargo sim --canary LostWake    seeds until a defect on purpose is found
//! ```

mod answer;
mod application;
mod checkers;
mod client;
mod coverage;
mod foreign;
mod futures;
mod places;
mod plan;
mod run;
mod scenario;
mod upstream;
mod writing;

use std::{process::ExitCode, time::Duration};

use clap::Parser;
use ringcat_engine::{
    canary::Canary,
    sim::{fault::Fault, world},
    timestamp::Clock,
};

use crate::{
    coverage::Coverage,
    scenario::{Played, Scenario},
};

/// A tenth more runs than with the system's: contents and stacks come and go all the time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Runs the whole server in one thread, with every fault, from seeds.
#[derive(Debug, Parser)]
struct Options {
    /// One run: the one of this seed.
    #[arg(long)]
    seed: Option<u64>,
    /// Fresh seeds, for so many seconds.
    #[arg(long)]
    seconds: Option<u64>,
    /// So many runs, of seeds from `--from` on.
    #[arg(long)]
    runs: Option<u64>,
    /// The first seed of `--runs` and `--seconds`; for the latter the time of day decides if it is
    /// not given.
    #[arg(long)]
    from: Option<u64>,
    /// A defect on purpose; `all` for each in turn. Fails if it is not found.
    #[arg(long)]
    canary: Option<String>,
    /// Print all that happens.
    #[arg(long)]
    trace: bool,
    /// Overrides what the seed draws.
    #[arg(long)]
    cores: Option<u16>,
    /// Overrides what the seed draws.
    #[arg(long)]
    clients: Option<u64>,
    /// Overrides what the seed draws.
    #[arg(long)]
    requests: Option<u64>,
    /// Switches a kind of fault off; may be given more than once.
    #[arg(long)]
    without: Vec<String>,
}

/// Seeds that found something. What they do changes with the load, so each also stands for the
/// number of a place to look again.
const REGRESSIONS: &[u64] = &[
    // A dispatch to a blocking target that the full pool refused: no `on_complete`.
    1, // A dispatch decided between two looks of the owner: its target was not entered.
    2, // A second failure of one round, in the target of a dispatch: no `on_complete`.
    6,
    // An answer that a thread had put in error was written to after a worker gave it back.
    78, // A cell that could not be closed twice in a row: the answer never ended.
    127,
    // An error page that failed let a write listener write into the response.
    1754044439743744,
    // Content whose rest waited for room of its reader, behind it the end of the stream.
    1754044634992756,
    // A cut ended a request whose answer was out: in a round, and while a worker had it.
    1754046086395615,
    1754048730901870,
];

/// Runs of seeds in order, in the tests.
const TEST_RUNS: u64 = 40;

/// The first of them.
const TEST_SEED: u64 = 1000;

/// How long a canary may live.
const CANARY_MAX: Duration = Duration::from_secs(60);

/// Runs that a failure is made smaller with, at most.
const SHRINK_RUNS_MAX: u32 = 200;

fn main() -> ExitCode {
    let options = Options::parse();
    // A panic of an actor is a finding with a text; what it needs besides is the place.
    std::panic::set_hook(Box::new(|info| {
        if let Some(place) = info.location() {
            world::record_panic(place);
        }
    }));
    let is_good = match (&options.canary, options.seed, options.seconds, options.runs) {
        (Some(name), ..) => run_canaries(&options, name),
        (None, Some(seed), ..) => replay(&options, seed),
        (None, None, Some(seconds), _) => {
            run_for(&options, Duration::from_secs(seconds), u64::MAX, true)
        }
        (None, None, None, Some(runs)) => run_for(&options, Duration::MAX, runs, false),
        (None, None, None, None) => run_tests(&options),
    };
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What `cargo test` runs.
fn run_tests(options: &Options) -> bool {
    let repeats = is_deterministic(REGRESSIONS[0]);
    let regressions = REGRESSIONS.iter().all(|seed| {
        let scenario = options.cut(Scenario::draw(*seed));
        report(options, &scenario, &scenario.play(None, false))
    });
    let in_order = run_for(options, Duration::MAX, TEST_RUNS, false);
    let results = [repeats, regressions, in_order];
    let passed = results.iter().filter(|is_good| **is_good).count();
    println!("simulator: {passed} passed, {} failed", results.len() - passed);
    passed == results.len()
}

/// Two runs of one seed, byte for byte.
fn is_deterministic(seed: u64) -> bool {
    let scenario = Scenario::draw(seed);
    let traces = [(); 2].map(|()| scenario.play(None, true).outcome.trace);
    let is_same = traces[0].text() == traces[1].text();
    let count = traces[0].count();
    println!("determinism: two traces of {count} records are the same: {is_same}");
    if !is_same {
        let lines = traces.each_ref().map(|trace| trace.text().unwrap_or("").lines());
        let [first, second] = lines;
        let difference = first.zip(second).find(|(first, second)| first != second);
        println!("the first difference: {difference:?}");
    }
    is_same
}

fn replay(options: &Options, seed: u64) -> bool {
    let scenario = options.cut(Scenario::draw(seed));
    println!("{scenario:?}");
    let played = scenario.play(None, options.trace);
    if let Some(text) = played.outcome.trace.text() {
        print!("{text}");
    }
    println!(
        "{} requests, {} steps, {} records, digest {:016x}, {:?} simulated",
        played.requests,
        played.outcome.steps,
        played.outcome.trace.count(),
        played.outcome.trace.digest(),
        played.outcome.elapsed
    );
    report(options, &scenario, &played)
}

/// Seeds in order until the time is over or one fails.
fn run_for(options: &Options, limit: Duration, runs: u64, must_cover: bool) -> bool {
    // Outside of a run this is the system's.
    let clock = Clock::system();
    let first = match (options.from, limit) {
        (Some(first), _) => first,
        (None, Duration::MAX) => TEST_SEED,
        (None, _) => clock.unix_time().as_nanos() as u64 >> 10,
    };
    let begun = clock.now();
    let elapsed = || clock.now().saturating_since(begun);
    let mut coverage = Coverage::default();
    let mut requests = 0;
    let mut done = 0;
    while done < runs && elapsed() < limit {
        let scenario = options.cut(Scenario::draw(first.wrapping_add(done)));
        let played = scenario.play(None, false);
        coverage.add(&played);
        requests += played.requests;
        done += 1;
        if !report(options, &scenario, &played) {
            return false;
        }
    }
    let seconds = elapsed().as_secs_f64();
    println!(
        "{done} runs from seed {first}: {requests} exchanges in {seconds:.1} s, {:.0} a second",
        requests as f64 / seconds
    );
    if must_cover {
        print!("{coverage}");
        return coverage.is_full();
    }
    true
}

/// Defects on purpose, each with seeds until it is found.
fn run_canaries(options: &Options, name: &str) -> bool {
    let chosen: Vec<Canary> = Canary::ALL
        .iter()
        .copied()
        .filter(|canary| name == "all" || format!("{canary:?}") == name)
        .collect();
    if chosen.is_empty() {
        println!("no canary is named {name:?}; there are {:?}", Canary::ALL);
        return false;
    }
    let mut is_good = true;
    for canary in chosen {
        let clock = Clock::system();
        let begun = clock.now();
        let elapsed = || clock.now().saturating_since(begun);
        let mut seed = options.from.unwrap_or(1);
        let found = loop {
            let played = options.cut(Scenario::draw(seed)).play(Some(canary), options.trace);
            if let Some(failure) = played.outcome.failure {
                break Some(failure);
            }
            if elapsed() > CANARY_MAX {
                break None;
            }
            seed += 1;
        };
        let took = elapsed().as_secs_f64();
        match found {
            Some(failure) => {
                let line = failure.lines().next().unwrap_or("");
                println!("canary {canary:?}: found by seed {seed} in {took:.2} s: {line}");
            }
            None => {
                println!("canary {canary:?}: NOT FOUND in {took:.0} s, {seed} seeds");
                is_good = false;
            }
        }
    }
    is_good
}

/// Says what is wrong and how to see it again; whether nothing is.
fn report(options: &Options, scenario: &Scenario, played: &Played) -> bool {
    let Some(failure) = &played.outcome.failure else { return true };
    println!("seed {} FAILED: {failure}", scenario.seed);
    let (small, failure, played) = shrink(scenario, failure.clone());
    let played = played.as_ref();
    if let Some(played) = played {
        print!("the last events:\n{}", played.outcome.trace.tail());
    }
    println!("made smaller: {failure}");
    println!("again: cargo sim {}{}", small.replay(), if options.trace { "" } else { " --trace" });
    false
}

/// Whether two failures are of one kind: the words before the first number are the same.
fn is_alike(one: &str, other: &str) -> bool {
    let kind =
        |text: &str| text.split(|c: char| c.is_ascii_digit()).next().unwrap_or("").to_owned();
    kind(one) == kind(other)
}

/// The smallest run found that fails too.
fn shrink(scenario: &Scenario, failure: String) -> (Scenario, String, Option<Played>) {
    let mut best = (scenario.clone(), failure, None);
    let mut runs = 0;
    loop {
        let mut is_smaller = false;
        for smaller in best.0.smaller() {
            runs += 1;
            if runs > SHRINK_RUNS_MAX {
                return best;
            }
            let played = smaller.play(None, false);
            if let Some(failure) = played.outcome.failure.clone()
                && is_alike(&failure, &best.1)
            {
                best = (smaller, failure, Some(played));
                is_smaller = true;
                break;
            }
        }
        if !is_smaller {
            return best;
        }
    }
}

impl Options {
    /// What the command line overrides.
    fn cut(&self, scenario: Scenario) -> Scenario {
        let mut scenario = scenario;
        scenario.cores = self.cores.unwrap_or(scenario.cores);
        scenario.clients = self.clients.unwrap_or(scenario.clients);
        scenario.requests = self.requests.unwrap_or(scenario.requests);
        for name in &self.without {
            match Fault::ALL.iter().find(|fault| fault.name() == name) {
                Some(fault) => scenario.faults = scenario.faults.clone().with(*fault, 0),
                None => println!("no fault is named {name:?}"),
            }
        }
        scenario
    }
}
