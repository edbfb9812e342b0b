//! `perf`: load tests of ringcat on one machine. It starts the server and its baseline, drives
//! load against them from another process, and prints ratios, which mean more than absolute
//! numbers on a machine that others share.
//!
//! | module | what it is |
//! |---|---|
//! | [`ratio`] | the server against the bare ring |
//! | [`rounds`] | an asynchronous round against a plain request |
//! | [`contest`] | two loads under wrk in alternating windows, and their ratios |
//! | [`parked`] | what parked requests cost in memory and time |
//! | [`parked_client`] | the other end of their connections, in a process of its own |
//! | [`test_server`], [`parking_lot`] | the library with servlets to measure, in a process of its own; the threads that complete |
//! | [`step_process`] | starts such a process, and tells it what to do |
//! | [`server`] | starts and ends a program under test |
//! | [`server_counters`] | what the server says that it answered |
//! | [`wrk`] | runs wrk and reads its summary |
//! | [`answer`] | reads one HTTP response |
//! | [`cpu_time`], [`resident_memory`], [`kernel_memory`], [`socket_queues`] | what /proc says |
//! | [`monotonic`], [`latencies`] | the clock of all processes; a histogram |
//! | [`spread`], [`table`] | median, minimum and maximum; columns of text |
//! | [`release`], [`machine`] | the programs under test; what they ran on |

#![forbid(unsafe_code)]

mod answer;
mod contest;
mod cpu_time;
mod kernel_memory;
mod latencies;
mod machine;
mod monotonic;
mod parked;
mod parked_client;
mod parking_lot;
mod ratio;
mod release;
mod resident_memory;
mod rounds;
mod server;
mod server_counters;
mod socket_queues;
mod spread;
mod step_process;
mod table;
mod test_server;
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
    /// Measures what many parked requests cost in memory, and how fast they are completed
    Parked(parked::ParkedOptions),
    /// Compares an asynchronous round with a plain request
    Rounds(rounds::RoundsOptions),
    /// The client of `parked`; it is started by it
    #[command(hide = true)]
    ParkedClient(parked_client::ClientOptions),
    /// The server of `parked` and `rounds`; it is started by them
    #[command(hide = true)]
    TestServer(test_server::TestServerOptions),
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Ratio(options) => ratio::run(&options),
        Command::Parked(options) => parked::run(&options),
        Command::Rounds(options) => rounds::run(&options),
        Command::ParkedClient(options) => parked_client::run(&options),
        Command::TestServer(options) => test_server::run(&options),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("perf: {error}");
            ExitCode::FAILURE
        }
    }
}
