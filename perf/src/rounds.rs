//! What an asynchronous round costs: a request that begins one and completes it, next to one that
//! answers the same at once, on one server and in windows that alternate.

use clap::{Args, value_parser};

use crate::{
    Outcome,
    contest::{self, Contender, Contest},
    machine,
    step_process::StepProcess,
    test_server::{PLAIN_PATH, ROUND_PATH, TestServerOptions},
    wrk::{self, Load},
};

/// What `perf rounds` takes.
#[derive(Args, Debug)]
pub(crate) struct RoundsOptions {
    /// Length of a window in seconds
    #[arg(long, default_value_t = 3, value_parser = value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// Rounds of measurements; each has a window of both kinds
    #[arg(long, default_value_t = 6, value_parser = value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Connections of the load
    #[arg(long, default_value_t = 64, value_parser = value_parser!(u32).range(1..=10_000))]
    connections: u32,
    /// Requests that a connection sends at once
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u32).range(1..=256))]
    pipeline: u32,
    /// CPU of the server
    #[arg(long, default_value_t = 0)]
    server_cpu: usize,
    /// CPU of wrk
    #[arg(long, default_value_t = 1)]
    load_cpu: usize,
}

/// Measures and prints.
///
/// # Errors
/// wrk is missing or failed, an answer was wrong, or the server's counters disagree with those of
/// wrk.
pub(crate) fn run(options: &RoundsOptions) -> Outcome<()> {
    wrk::require()?;
    print!("{}", machine::describe());
    if cfg!(debug_assertions) {
        println!("note: the server is this program, which was built without --release");
    }
    let cpu = options.server_cpu;
    let server = TestServerOptions::new(cpu, cpu, 1);
    let mut server = StepProcess::start("server", &server.cpus(), &server.to_arguments())?;
    let address = server.reply("listen")?.text("address")?.parse()?;
    let contender = |name, path: &str| -> Outcome<Contender> {
        let load = Load {
            cpu: options.load_cpu,
            connection_count: options.connections,
            pipeline_depth: options.pipeline,
            path: path.to_owned(),
        };
        let sample = contest::sample(address, path)?;
        Ok(Contender::new(name, (server.pid(), address), load, &sample))
    };
    let mut contest =
        Contest { base: contender("plain", PLAIN_PATH)?, rival: contender("round", ROUND_PATH)? };
    let (base, rival) = (contest.base.answer_len_bytes, contest.rival.answer_len_bytes);
    println!("answers   {base} bytes plain, {rival} bytes of a round\n");
    let passes = contest.measure(options.rounds, options.seconds)?;
    contest.print(&passes);
    let output = server.stop()?;
    println!("{}", contest::check_counters(&output, &[&contest.base, &contest.rival])?);
    Ok(())
}
