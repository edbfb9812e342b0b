//! `bare-ring`: the baseline of load tests. One core of the engine's native backend that answers
//! each request head with the same bytes. SIGTERM and SIGINT end it at once.

#![forbid(unsafe_code)]

use std::{
    error::Error,
    fs,
    io::{self, Write},
    net::SocketAddr,
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
};

use clap::Parser;
use ringcat_bench::bare_ring::{BareRing, HELLO};
use ringcat_engine::{
    backend::Backend,
    cpus,
    event_fd::EventFd,
    native::{backend::NativeBackend, listen, options::NativeOptions, probe},
};

/// Answers every HTTP request head with the same bytes, on one core of the engine.
#[derive(Debug, Parser)]
#[command(name = "bare-ring")]
struct Options {
    /// Where to listen; port 0 picks one
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:8081")]
    listen: SocketAddr,
    /// CPU to pin the core to [default: not pinned]
    #[arg(long, value_name = "N")]
    cpu: Option<usize>,
    /// File with the response to send, head and content [default: the answer to /hello]
    #[arg(long, value_name = "FILE")]
    response: Option<PathBuf>,
}

fn main() -> ExitCode {
    match serve(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bare-ring: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(options: &Options) -> Result<(), Box<dyn Error>> {
    let mut ring = BareRing::new(&read_response(options)?);
    if let Some(cpu) = options.cpu
        && !cpus::pin_current_thread(cpu)
    {
        return Err(format!("cannot run on CPU {cpu}: not in this process's mask").into());
    }
    let native = NativeOptions::default();
    let capabilities = probe::probe(&native).map_err(|refusal| refusal.to_string())?;
    let listeners = listen::bind(&[options.listen], 1, native.backlog)?;
    let listeners = listeners.into_iter().next().expect("listeners of one core were asked for");
    let address = listeners[0].local_addr;
    let backend =
        NativeBackend::open(&capabilities, &native, listeners, Arc::new(EventFd::new()?))?;
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "listening on {address}")?;
    stdout.flush()?;
    drop(stdout);
    backend.run(&mut ring)?;
    Err(format!("the listener on {address} failed").into())
}

fn read_response(options: &Options) -> Result<Vec<u8>, Box<dyn Error>> {
    let Some(path) = &options.response else { return Ok(HELLO.to_vec()) };
    let response =
        fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    if response.is_empty() {
        return Err(format!("{} is empty: no response to send", path.display()).into());
    }
    Ok(response)
}
