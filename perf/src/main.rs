//! `perf`: load tests of ringcat on one machine. It starts the server and its baseline, drives
//! load against them from another process, and prints ratios, which mean more than absolute
//! numbers on a machine that others share.
//!
//! | module | what it is |
//! |---|---|
//! | [`ratio`] | the server against the bare ring, in alternating rounds under wrk |
//! | [`parked`] | what connections and parked requests cost the server in memory |
//! | [`parked_client`] | the other end of those connections, in a process of its own |
//! | [`server`] | starts and ends a server under test |
//! | [`server_counters`] | what the server says that it answered |
//! | [`wrk`] | runs wrk and reads its summary |
//! | [`answer`] | reads one HTTP response |
//! | [`cpu_time`], [`resident_memory`], [`socket_queues`] | what /proc says |
//! | [`spread`], [`table`] | median, minimum and maximum; columns of text |
//! | [`release`], [`machine`] | the programs under test; what they ran on |

#![forbid(unsafe_code)]

mod answer;
mod cpu_time;
mod machine;
mod parked;
mod parked_client;
mod ratio;
mod release;
mod resident_memory;
mod server;
mod server_counters;
mod socket_queues;
mod spread;
mod table;
mod wrk;

use std::{error::Error, process::ExitCode};

use clap::{Parser, Subcommand};

/// What a step of a load test gives; the error is one line for the person at the terminal.
pub(crate) type Outcome<T> = Result<T, Box<dyn Error>>;

/// Load tests of ringcat.
#[derive(Debug, Parser)]
#[command(name = "perf")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Compares requests per second and CPU time per request with the bare ring
    Ratio(ratio::RatioOptions),
    /// Measures the server's memory with many connections and many parked requests
    Parked(parked::ParkedOptions),
    /// The client of `parked`; it is started by it
    #[command(hide = true)]
    ParkedClient(parked_client::ClientOptions),
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Ratio(options) => ratio::run(&options),
        Command::Parked(options) => parked::run(&options),
        Command::ParkedClient(options) => parked_client::run(&options),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("perf: {error}");
            ExitCode::FAILURE
        }
    }
}
