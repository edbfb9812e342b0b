//! Runs the body of a test in a few simulations: one in which nothing goes wrong, and others that
//! are as bad as a kernel may be to a server without breaking anything for its clients.

use std::rc::Rc;

use ringcat_engine::sim::{
    fault::{Fault, FaultPlan},
    world::{SimOptions, simulate},
};

use super::actors::run_body;

/// Simulations of a test, unless the environment says `RINGCAT_TEST_SEEDS`.
const SEEDS: u64 = 4;

/// What a client does not notice, time apart.
const HARMLESS: [Fault; 11] = [
    Fault::ShortReceive,
    Fault::ShortSend,
    Fault::LateCompletion,
    Fault::LateWake,
    Fault::EarlyWake,
    Fault::ManyWakes,
    Fault::ShotEnds,
    Fault::CancelTooLate,
    Fault::CancelMisses,
    Fault::LateWorker,
    Fault::LateClose,
];

/// Runs `body` as the first actor of a simulation, for each of a few seeds.
pub(crate) fn simulated(body: impl Fn() + 'static) {
    run(harmless(), body);
}

/// As [`simulated`], for a test that asserts what one kind of fault would make otherwise.
pub(crate) fn simulated_without(fault: Fault, body: impl Fn() + 'static) {
    run(harmless().with(fault, 0), body);
}

fn harmless() -> FaultPlan {
    let usual = FaultPlan::usual();
    let add = |plan: FaultPlan, fault| plan.with(fault, usual.weight(fault));
    HARMLESS.into_iter().fold(FaultPlan::none(), add)
}

fn run(faults: FaultPlan, body: impl Fn() + 'static) {
    let body = Rc::new(body);
    let seeds = std::env::var("RINGCAT_TEST_SEEDS").map_or(SEEDS, |count| count.parse().unwrap());
    for seed in 0..seeds {
        let options = if seed == 0 {
            SimOptions { interleave_chance: 8, ..SimOptions::new(seed) }
        } else {
            let interleave_chance = [64, 160, 96][(seed % 3) as usize];
            SimOptions { faults: faults.clone(), interleave_chance, ..SimOptions::new(seed) }
        };
        let body = Rc::clone(&body);
        let outcome = simulate(&options, move || run_body(&*body));
        if let Some(failure) = outcome.failure {
            panic!("seed {seed}: {failure}");
        }
    }
}
