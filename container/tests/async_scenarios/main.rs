//! Plays the scenarios of asynchronous requests against the running container, over a socket: an
//! interpreter of a closed grammar, for which every scenario is data. Each run is a process of its
//! own, so that server, journal and log are fresh.
//!
//! ```text
//! cargo test -p ringcat --test async_scenarios                   all of them
//! cargo test -p ringcat --test async_scenarios -- ID... --show   some, with their traces
//! ASYNC_SCENARIOS=FILE cargo test -p ringcat --test async_scenarios
//! ```
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test program: its clients and workers are threads with clocks"
)]

mod application;
mod callbacks;
mod client;
mod expectation;
mod grammar;
mod journal;
mod log;
mod machine;
mod run;
mod scenario;
mod server;
mod state;

use std::{
    fs,
    io::Read as _,
    path::PathBuf,
    process::{Child, Command, ExitCode, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use clap::Parser;
use ringcat_engine::canary::{self, Canary};
use serde_json::Value;

use scenario::{Kind, Scenario};

/// Plays scenarios of asynchronous requests.
#[derive(Parser)]
struct Options {
    /// Only those of these ids, or of groups of them: `nb-read` plays `nb-read-...`.
    ids: Vec<String>,
    /// Show what happened in those that fail.
    #[arg(long)]
    show: bool,
    /// Processes at the same time: two for each CPU, so that those that measure time are not late.
    #[arg(long)]
    jobs: Option<usize>,
    /// Play one run in this process: place of the scenario, and of its variant.
    #[arg(long, hide = true, num_args = 2)]
    play: Option<Vec<usize>>,
    /// The defect of the machine that the run in this process has.
    #[arg(long, hide = true)]
    mutant: Option<String>,
    /// What cargo hands to every test program.
    #[arg(long, hide = true)]
    nocapture: bool,
}

/// A run takes this long at most.
const RUN_MAX: Duration = Duration::from_secs(90);

fn file() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/async_scenarios");
    std::env::var_os("ASYNC_SCENARIOS")
        .map_or_else(|| here.join("async_scenarios.json"), PathBuf::from)
}

fn values() -> Result<Vec<Value>, String> {
    let file = file();
    let text = fs::read(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    let value = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
    grammar::list(value)
}

fn main() -> ExitCode {
    let options = Options::parse();
    let values = match values() {
        Ok(values) => values,
        Err(fault) => {
            println!("the scenarios cannot be read: {fault}");
            return ExitCode::FAILURE;
        }
    };
    match options.play.as_deref() {
        Some([place, variant]) => {
            if let Some(mutant) = &options.mutant {
                canary::choose(mutants().find(|own| name(*own) == *mutant).expect("a mutant"));
            }
            play(values, *place, *variant)
        }
        _ => play_all(&options, values),
    }
}

/// The machines with a defect on purpose, on each of which a scenario has to fail.
fn mutants() -> impl Iterator<Item = Canary> {
    Canary::OF_THE_MACHINE.iter().copied()
}

fn name(mutant: Canary) -> String {
    format!("{mutant:?}")
}

/// One run, in this process.
fn play(mut values: Vec<Value>, place: usize, variant: usize) -> ExitCode {
    let Ok(Scenario { variants, kind, .. }) = Scenario::parse(values.swap_remove(place)) else {
        return ExitCode::FAILURE;
    };
    let Kind::Served { setup, client, expectation } = kind else { return ExitCode::FAILURE };
    let variant = variants.into_iter().nth(variant).unwrap_or_default();
    let (faults, pages) = run::play(setup, &client, &expectation, variant);
    for fault in &faults {
        println!("{fault}");
    }
    if let Some((begun, _)) = pages.trace.first().filter(|_| !faults.is_empty()) {
        for (at, entry) in &pages.trace {
            println!("| {:8.3} ms  {entry}", at.duration_since(*begun).as_secs_f64() * 1000.0);
        }
        for warning in &pages.warnings {
            println!("| log: {warning}");
        }
    }
    // Without a drain: nothing of this process is needed any more.
    std::process::exit(i32::from(!faults.is_empty()));
}

/// One run that is to be made.
struct Job {
    id: String,
    place: usize,
    variant: usize,
}

fn play_all(options: &Options, values: Vec<Value>) -> ExitCode {
    let is_chosen = |id: &str| {
        options.ids.is_empty() || options.ids.iter().any(|own| id == own || id.starts_with(&**own))
    };
    let (mut jobs, mut failures, mut java_only) = (Vec::new(), Vec::new(), 0);
    let mut chosen = Vec::new();
    for (place, value) in values.into_iter().enumerate() {
        let id = Scenario::id_of(&value);
        if !is_chosen(&id) {
            continue;
        }
        if chosen.contains(&id) {
            failures.push((id.clone(), "the id is used twice".to_owned()));
        }
        chosen.push(id.clone());
        match Scenario::parse(value) {
            Err(fault) => failures.push((id, fault)),
            Ok(Scenario { kind: Kind::JavaOnly, .. }) => java_only += 1,
            Ok(Scenario { kind: Kind::Machine(machine), .. }) => {
                failures.extend(machine.check().into_iter().map(|fault| (id.clone(), fault)));
            }
            Ok(scenario) => {
                for variant in 0..scenario.variants.len().max(1) {
                    for _ in 0..scenario.rounds {
                        jobs.push(Job { id: id.clone(), place, variant });
                    }
                }
            }
        }
    }
    failures.extend(play_jobs(options, &jobs, None));
    failures.sort();
    failures.dedup_by(|later, first| later.0 == first.0);
    for (id, fault) in &failures {
        let lines = fault.lines().filter(|line| options.show || !line.starts_with('|'));
        println!("{id}: {}", lines.collect::<Vec<_>>().join("\n    "));
    }
    let passed = chosen.len() - java_only - failures.len();
    println!("{java_only} not for this language");
    let mut is_good = failures.is_empty();
    if options.ids.is_empty() && is_good {
        for mutant in mutants() {
            let found = play_jobs(options, &jobs, Some(mutant));
            match found.first() {
                Some((id, _)) => println!("mutant {mutant:?}: found by {id}"),
                None => println!("mutant {mutant:?}: NOT FOUND"),
            }
            is_good &= !found.is_empty();
        }
    }
    println!("{passed} passed, {} failed", failures.len());
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Plays runs, some at a time, and answers what failed. Of a mutant one failure is enough.
fn play_jobs(options: &Options, jobs: &[Job], mutant: Option<Canary>) -> Vec<(String, String)> {
    let failures = Mutex::new(Vec::new());
    let next = AtomicUsize::new(0);
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..options.jobs.unwrap_or(2 * cpus).max(1) {
            scope.spawn(|| {
                while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(fault) = play_apart(job, mutant) {
                        failures.lock().unwrap().push((job.id.clone(), fault));
                    }
                    if mutant.is_some() && !failures.lock().unwrap().is_empty() {
                        break;
                    }
                }
            });
        }
    });
    failures.into_inner().unwrap()
}

/// Plays one run in a process of its own.
fn play_apart(job: &Job, mutant: Option<Canary>) -> Result<(), String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let places = [job.place.to_string(), job.variant.to_string()];
    let mut command = Command::new(program);
    if let Some(mutant) = mutant {
        command.args(["--mutant", &name(mutant)]);
    }
    let child =
        command.arg("--play").args(places).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut child = child.map_err(|error| error.to_string())?;
    let mut output = child.stdout.take().expect("it is piped");
    let text = thread::spawn(move || {
        let mut text = String::new();
        output.read_to_string(&mut text).map(|_| text)
    });
    let is_good = wait(&mut child)?;
    let text = text.join().map_err(|_| "its output is lost".to_owned())?;
    match is_good {
        true => Ok(()),
        false => Err(text.map_err(|error| error.to_string())?),
    }
}

fn wait(child: &mut Child) -> Result<bool, String> {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
            return Ok(status.success());
        }
        if begun.elapsed() > RUN_MAX {
            drop(child.kill());
            return Err(format!("it did not end within {RUN_MAX:?}"));
        }
        thread::sleep(Duration::from_millis(5));
    }
}
