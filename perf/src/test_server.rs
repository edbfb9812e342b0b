//! The server of `perf parked` and `perf rounds`, in a process of its own: the library with
//! servlets that park, begin and end a round, or answer at once; and foreign threads, which its
//! steps set to work.

use std::{
    io::{self, Write},
    sync::Arc,
    time::Duration,
};

use clap::Args;
use ringcat::{Connector, Context, HttpServlet, Methods, Request, Response, RunningServer, Server};

use crate::{
    Outcome,
    parking_lot::{self, ParkingLot, visit_order},
    step_process,
};

/// Answers at once.
pub(crate) const PLAIN_PATH: &str = "/plain";
/// Answers the same, and begins and ends an asynchronous round.
pub(crate) const ROUND_PATH: &str = "/round";
/// Parks; a number follows.
pub(crate) const PARK_PATH: &str = "/park/";

/// Longer than any test, and a timeout: the timer of a parked request is part of what it costs.
const ASYNC_TIMEOUT: Duration = Duration::from_secs(3600);

/// What the server needs to know.
#[derive(Args, Clone, Debug)]
pub(crate) struct TestServerOptions {
    /// CPU of the core
    #[arg(long)]
    cpu: usize,
    /// CPU of foreign threads
    #[arg(long)]
    foreign_cpu: usize,
    /// Requests that can be parked
    #[arg(long)]
    places: usize,
}

impl TestServerOptions {
    /// A server on a CPU, and its foreign threads on another or the same one.
    pub(crate) fn new(cpu: usize, foreign_cpu: usize, places: usize) -> Self {
        Self { cpu, foreign_cpu, places }
    }

    /// The command line that these options are read from.
    pub(crate) fn to_arguments(&self) -> Vec<String> {
        vec![
            "test-server".to_owned(),
            format!("--cpu={}", self.cpu),
            format!("--foreign-cpu={}", self.foreign_cpu),
            format!("--places={}", self.places),
        ]
    }

    /// The CPUs that the process needs, as a list.
    pub(crate) fn cpus(&self) -> String {
        format!("{},{}", self.cpu, self.foreign_cpu)
    }
}

/// Serves until its input ends, then prints what was counted.
///
/// # Errors
/// The server did not start, or a step failed.
pub(crate) fn run(options: &TestServerOptions) -> Outcome<()> {
    let lot = Arc::new(ParkingLot::new(options.places));
    let context = Context::new("")
        .get(PLAIN_PATH, |_req, res| res.write("done\n"))
        .servlet(ROUND_PATH, Round)
        .servlet(&format!("{PARK_PATH}*"), Park { lot: Arc::clone(&lot) });
    let server = Server::builder()
        .connector(Connector::http("127.0.0.1:0").async_timeout(ASYNC_TIMEOUT))
        .cpus(vec![options.cpu])
        .context(context)
        .start()?;
    println!("done listen address={}", server.local_addr());
    io::stdout().flush()?;
    let mut steps = Steps {
        server,
        lot,
        options: options.clone(),
        order: Box::new(visit_order(options.places)),
    };
    step_process::take_steps(|name, argument| steps.take(name, argument))?;
    println!("{}", steps.server.stop());
    Ok(())
}

struct Steps {
    server: RunningServer,
    lot: Arc<ParkingLot>,
    options: TestServerOptions,
    order: Box<dyn Iterator<Item = usize> + Send>,
}

impl Steps {
    fn take(&mut self, name: &str, argument: &str) -> Outcome<String> {
        let mut numbers = argument.split_ascii_whitespace().map(str::parse::<u32>);
        let mut number = || numbers.next().ok_or_else(|| format!("{name}: a number is missing"));
        let cpu = self.options.foreign_cpu;
        match name {
            "count" => Ok(format!("parked={}", self.lot.parked_count())),
            "wakes" => Ok(format!("wakes={}", self.server.report().wakes)),
            "trickle" => {
                let (rate, count) = (number()??, number()??);
                let numbers = self.order.by_ref().take(count as usize);
                let lateness = parking_lot::trickle(&self.lot, numbers, rate, cpu)?;
                Ok(lateness.percentiles().to_fields())
            }
            "bursts" => {
                let (size, count) = (number()?? as usize, number()?? as usize);
                let contexts = self.lot.take(self.order.by_ref().take(size * count))?;
                let wake_count = || self.server.report().wakes;
                let wakes = parking_lot::bursts(&contexts, size, cpu, wake_count)?;
                let wakes: Vec<String> = wakes.iter().map(u64::to_string).collect();
                Ok(format!("wakes={}", wakes.join(",")))
            }
            "complete" => {
                let contexts = self.lot.take(0..self.options.places)?;
                let taken = parking_lot::complete_all(&contexts, number()?? as usize, cpu)?;
                Ok(format!("nanos={}", taken.as_nanos()))
            }
            _ => Err(format!("{name:?} is no step").into()),
        }
    }
}

/// Parks the request at the place that its path names.
struct Park {
    lot: Arc<ParkingLot>,
}

impl HttpServlet for Park {
    fn methods(&self) -> Methods {
        Methods::GET
    }

    fn async_supported(&self) -> bool {
        true
    }

    fn do_get(&self, req: &mut Request, _res: &mut Response) -> ringcat::Result<()> {
        let path = req.path_info().unwrap_or_default();
        let number = path.trim_start_matches('/').parse();
        let context = req.start_async()?;
        match number {
            Ok(number) if self.lot.park(number, context) => Ok(()),
            _ => Err(ringcat::Error::protocol_violation(400, "there is no such place")),
        }
    }
}

/// Begins a round and ends it, on its core, before it returns.
struct Round;

impl HttpServlet for Round {
    fn methods(&self) -> Methods {
        Methods::GET
    }

    fn async_supported(&self) -> bool {
        true
    }

    fn do_get(&self, req: &mut Request, res: &mut Response) -> ringcat::Result<()> {
        res.write("done\n")?;
        req.start_async()?.complete()
    }
}
