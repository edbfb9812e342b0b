//! The server against the bare ring: same CPU, same load, same response.

use std::fs;

use clap::{Args, value_parser};

use crate::{
    Outcome,
    contest::{self, Contender, Contest},
    machine,
    release::Release,
    server::Server,
    wrk::{self, Load},
};

/// What `perf ratio` takes.
#[derive(Args, Debug)]
pub(crate) struct RatioOptions {
    /// Length of a measurement in seconds
    #[arg(long, default_value_t = 3, value_parser = value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// Rounds; each measures both servers once
    #[arg(long, default_value_t = 6, value_parser = value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Connections of the load
    #[arg(long, default_value_t = 64, value_parser = value_parser!(u32).range(1..=10_000))]
    connections: u32,
    /// Requests that a connection sends at once
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u32).range(1..=256))]
    pipeline: u32,
    /// CPU of the servers; only one of them is under load at a time
    #[arg(long, default_value_t = 0)]
    server_cpu: usize,
    /// CPU of wrk
    #[arg(long, default_value_t = 1)]
    load_cpu: usize,
    /// What to ask the server for; the bare ring sends the same bytes
    #[arg(long, default_value = "/hello")]
    path: String,
    /// Take the programs that are in target/release as they are
    #[arg(long)]
    no_build: bool,
}

/// Builds, measures, prints.
///
/// # Errors
/// A program is missing or failed, an answer was wrong, or the server's counters disagree with
/// those of wrk.
pub(crate) fn run(options: &RatioOptions) -> Outcome<()> {
    wrk::require()?;
    let release = Release::find()?;
    if !options.no_build {
        release.build()?;
    }
    print!("{}", machine::describe());
    let mut pair = Pair::start(options, &release)?;
    let passes = pair.contest.measure(options.rounds, options.seconds)?;
    pair.contest.print(&passes);
    println!("{}", pair.stop()?);
    Ok(())
}

/// Both servers and the load.
struct Pair {
    bare: Server,
    ringcat: Server,
    contest: Contest,
}

impl Pair {
    fn start(options: &RatioOptions, release: &Release) -> Outcome<Self> {
        let cpu = options.server_cpu.to_string();
        let arguments = ["--cores", "1", "--cpus", &cpu, "--examples-at", "/", "--log", "warn"];
        let ringcat = Server::start(&release.ringcat(), options.server_cpu, &arguments)?;
        let answer = contest::sample(ringcat.address(), &options.path)?;
        let file = release.answer_file();
        fs::write(&file, &answer.raw)?;
        let file = file.to_string_lossy();
        let arguments = ["--cpu", &cpu, "--response", &file];
        let bare = Server::start(&release.bare_ring(), options.server_cpu, &arguments)?;
        if contest::sample(bare.address(), &options.path)? != answer {
            return Err("the bare ring's answer is not the server's".into());
        }
        println!("answer    {} bytes:", answer.raw.len());
        println!("{}\n", String::from_utf8_lossy(&answer.raw).trim_end());
        let load = Load {
            cpu: options.load_cpu,
            connection_count: options.connections,
            pipeline_depth: options.pipeline,
            path: options.path.clone(),
        };
        let contender = |name, server: &Server| {
            Contender::new(name, (server.pid(), server.address()), load.clone(), &answer)
        };
        let contest =
            Contest { base: contender("bare", &bare), rival: contender("ringcat", &ringcat) };
        Ok(Self { bare, ringcat, contest })
    }

    /// Ends both, and compares the server's counters with what the clients counted.
    fn stop(self) -> Outcome<String> {
        self.bare.stop()?;
        let (status, output) = self.ringcat.stop()?;
        if !status.success() {
            return Err(format!("ringcat ended with {status}").into());
        }
        contest::check_counters(&output, &[&self.contest.rival])
    }
}
