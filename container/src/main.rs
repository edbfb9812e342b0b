//! The server program: `ringcat` alone serves a welcome page and the examples.
#![forbid(unsafe_code)]

mod program;

use std::process::ExitCode;

use clap::Parser;
use program::{examples, log_sink, options::Options, welcome};
use ringcat::{
    AccessLog, AccessLogFormat, Connector, Error, Result, RunningServer, Server, ShutdownSignals,
};

fn main() -> ExitCode {
    let options = Options::parse();
    log_sink::install(&options.log);
    match serve(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ringcat: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(options: &Options) -> Result<()> {
    let signals = ShutdownSignals::block()?;
    let server = start(options)?;
    let addresses = server.local_addrs().iter().map(ToString::to_string).collect::<Vec<_>>();
    let cpus = server.pinned_cpus();
    let cores = if cpus.len() == 1 { "core on CPU" } else { "cores on CPUs" };
    let cpu_list = cpus.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    println!(
        "ringcat listens on http://{}, {} {cores} {cpu_list}, backend native io_uring",
        addresses.join(", http://"),
        cpus.len(),
    );
    let report = server.run_until(signals);
    println!("{report}");
    Ok(())
}

fn start(options: &Options) -> Result<RunningServer> {
    let connector = Connector::http(options.listen.clone())
        .async_timeout(options.async_timeout.0)
        .allowed_trailer("*");
    let mut server = Server::builder()
        .connector(connector)
        .worker_threads(options.workers)
        .drain_timeout(options.drain_timeout.0);
    if let Some(cores) = options.cores {
        server = server.cores(cores);
    }
    if let Some(cpus) = &options.cpus {
        server = server.cpus(cpus.ids().to_vec());
    }
    if let Some(target) = options.access_log_target() {
        let log = AccessLog::start(target, AccessLogFormat::Timed)
            .map_err(|error| Error::from(format!("--access-log: {error}")))?;
        server = server.access_log(log);
    }
    for context in examples::contexts(&options.examples_at, welcome::page) {
        server = server.context(context);
    }
    server.start()
}
