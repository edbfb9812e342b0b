//! What parked requests cost: the server's memory before them, with open connections, with idle
//! ones, and with a parked request on each; how late an answer comes when a foreign thread
//! completes one now and then; how often a burst of completions wakes the core; and how long it
//! takes to complete all of them, from one foreign thread and from four. Each is answered exactly
//! once.

use std::{
    io::BufReader,
    net::{SocketAddr, TcpStream},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use clap::{Args, value_parser};

use crate::{
    Outcome, answer,
    cpu_time::CpuTime,
    kernel_memory::KernelMemory,
    latencies::Percentiles,
    machine,
    parked_client::ClientOptions,
    resident_memory::ResidentMemory,
    server_counters,
    socket_queues::SocketQueues,
    spread::Spread,
    step_process::StepProcess,
    table::Table,
    test_server::{PLAIN_PATH, TestServerOptions},
};

/// Requests before the first measurement: they touch each receive buffer of a core once, so that
/// buffers count as the core's memory, not as the connections'.
const WARM_UP_COUNT: u64 = 2048;
/// Open files that server and client have besides their connections.
const FILES_BESIDES: usize = 64;
/// The field `X-Padding: …` that brings a head to about 500 bytes.
const PADDING_BYTES: usize = 440;
/// How long the server may take to come to rest.
const REST_MAX: Duration = Duration::from_secs(30);
/// Without a clock tick of CPU time for this long, the server rests.
const REST: Duration = Duration::from_millis(100);

/// Process memory of a parked request with its connection, at most, in bytes: the target.
const PARKED_BYTES_MAX: f64 = 2048.0;
/// 99 of 100 answers come within this, in nanoseconds: the target.
const P99_NANOS_MAX: u64 = 1_000_000;
/// Threads that complete all requests, in this order.
const THREAD_COUNTS: [u32; 2] = [1, 4];

/// What `perf parked` takes.
#[derive(Args, Debug)]
pub(crate) struct ParkedOptions {
    /// Connections, each with one parked request
    // Each takes a port of loopback.
    #[arg(long, default_value_t = 10_000, value_parser = value_parser!(u32).range(1..=25_000))]
    connections: u32,
    /// Completions a second while latency is measured
    #[arg(long, default_value_t = 200, value_parser = value_parser!(u32).range(1..=10_000))]
    rate: u32,
    /// How long latency is measured, in seconds
    #[arg(long, default_value_t = 10, value_parser = value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// Completions in a burst
    #[arg(long, default_value_t = 100, value_parser = value_parser!(u32).range(1..=25_000))]
    burst: u32,
    /// Bursts; all together complete no more than there are connections
    #[arg(long, default_value_t = 20, value_parser = value_parser!(u32).range(1..=1000))]
    bursts: u32,
    /// CPU of the server's core
    #[arg(long, default_value_t = 0)]
    server_cpu: usize,
    /// CPU of the foreign threads
    #[arg(long, default_value_t = 1)]
    foreign_cpu: usize,
    /// CPU of the client
    #[arg(long, default_value_t = 1)]
    load_cpu: usize,
}

/// Measures and prints.
///
/// # Errors
/// A process failed, the file limit is too low, or a request was not answered exactly once.
pub(crate) fn run(options: &ParkedOptions) -> Outcome<()> {
    check_file_limit(options.connections as usize + FILES_BESIDES)?;
    if options.burst.saturating_mul(options.bursts) > options.connections {
        return Err("the bursts complete more requests than there are connections".into());
    }
    print!("{}", machine::describe());
    if cfg!(debug_assertions) {
        println!("note: the server is this program, which was built without --release");
    }
    let mut test = Test::start(options)?;
    test.park_all()?;
    print!("{}", table(&test.phases, options.connections));
    if let (Some(before), Some(now)) = (&test.kernel_memory, KernelMemory::now()) {
        let text = now.describe_since(before, options.connections);
        println!("kernel, both ends of a connection: {text}");
    }
    let latencies = test.trickle(options)?;
    let wakes = test.bursts(options)?;
    for thread_count in THREAD_COUNTS {
        test.complete_all(thread_count)?;
    }
    test.measure("answered")?;
    print_targets(&test.phases, options.connections, latencies, wakes);
    test.stop()
}

/// A running test.
struct Test {
    server: StepProcess,
    address: SocketAddr,
    client: StepProcess,
    connections: u32,
    phases: Vec<Phase>,
    kernel_memory: Option<KernelMemory>,
    /// Requests that were answered.
    answered_count: u64,
}

/// The server's memory at rest.
struct Phase {
    name: &'static str,
    memory: ResidentMemory,
}

impl Test {
    fn start(options: &ParkedOptions) -> Outcome<Self> {
        let ParkedOptions { connections, server_cpu, foreign_cpu, .. } = *options;
        let places = connections as usize;
        let server_options = TestServerOptions::new(server_cpu, foreign_cpu, places);
        let (cpus, arguments) = (server_options.cpus(), server_options.to_arguments());
        let mut server = StepProcess::start("server", &cpus, &arguments)?;
        let address = server.reply("listen")?.text("address")?.parse()?;
        let client_options =
            ClientOptions { address, connections: places, padding_bytes: PADDING_BYTES };
        warm_up(&client_options)?;
        println!("requests  {} bytes of head\n", client_options.parking_head(0).len());
        let cpu = options.load_cpu.to_string();
        let client = StepProcess::start("client", &cpu, &client_options.to_arguments())?;
        Ok(Self {
            server,
            address,
            client,
            connections,
            phases: Vec::new(),
            kernel_memory: None,
            answered_count: WARM_UP_COUNT,
        })
    }

    /// Measures the memory until all requests are parked.
    fn park_all(&mut self) -> Outcome<()> {
        self.measure("started")?;
        self.kernel_memory = KernelMemory::now();
        self.client.ask("connect")?;
        self.measure("connected")?;
        self.client.ask("exchange")?;
        self.answered_count += u64::from(self.connections);
        self.measure("idle")?;
        self.client.ask("park")?;
        self.measure("parked")?;
        self.check_parked()
    }

    fn check_parked(&mut self) -> Outcome<()> {
        await_rest(self.server.pid(), self.address)?;
        let parked = self.server.ask("count")?.number("parked")?;
        if parked != u64::from(self.connections) {
            return Err(format!("{parked} of {} requests are parked", self.connections).into());
        }
        Ok(())
    }

    /// Completes one request after the other, and parks each again.
    fn trickle(&mut self, options: &ParkedOptions) -> Outcome<Percentiles> {
        let count = options.rate.saturating_mul(options.seconds);
        let before = self.wakes()?;
        self.client.tell(&format!("follow {count}"))?;
        let trickled = self.server.ask(&format!("trickle {} {count}", options.rate))?;
        let lateness = Percentiles::from_reply(&trickled)?;
        let latencies = Percentiles::from_reply(&self.client.reply("follow")?)?;
        self.check_parked()?;
        let ParkedOptions { rate, connections, .. } = options;
        let wakes = self.wakes()? - before;
        println!(
            "\nlight load: {rate} completions a second among {connections} parked, {wakes} wakes"
        );
        println!("  from complete() to the last byte at the client: {latencies}");
        println!("  how late sleeps of the completing thread end:   {lateness}\n");
        self.answered_count += u64::from(count);
        Ok(latencies)
    }

    /// Completes bursts; gives the wakes of each.
    fn bursts(&mut self, options: &ParkedOptions) -> Outcome<Spread> {
        let ParkedOptions { burst, bursts, .. } = options;
        let reply = self.server.ask(&format!("bursts {burst} {bursts}"))?;
        let wakes: Result<Vec<f64>, _> = reply.text("wakes")?.split(',').map(str::parse).collect();
        let spread = Spread::of(wakes?).ok_or("there was no burst")?;
        self.client.ask(&format!("follow {}", burst * bursts))?;
        self.check_parked()?;
        println!(
            "{bursts} bursts of {burst} completions: wakes of each median {}, min {}, max {}",
            spread.median, spread.min, spread.max
        );
        self.answered_count += u64::from(burst * bursts);
        Ok(spread)
    }

    /// Completes all requests from so many foreign threads, and parks them again before if need be.
    fn complete_all(&mut self, thread_count: u32) -> Outcome<()> {
        if self.server.ask("count")?.number("parked")? == 0 {
            self.client.ask("park")?;
        }
        self.check_parked()?;
        let before = self.wakes()?;
        self.client.tell("collect")?;
        let called = self.server.ask(&format!("complete {thread_count}"))?.number("nanos")?;
        let received = self.client.reply("collect")?.number("nanos")?;
        self.client.ask("silence")?;
        let wakes = self.wakes()? - before;
        println!(
            "all {} from {thread_count} foreign thread(s): {:.1} ms for the calls, {:.1} ms until \
             the client has the last byte, {} wakes",
            self.connections,
            called as f64 / 1e6,
            received as f64 / 1e6,
            wakes
        );
        self.answered_count += u64::from(self.connections);
        Ok(())
    }

    fn wakes(&mut self) -> Outcome<u64> {
        self.server.ask("wakes")?.number("wakes")
    }

    fn measure(&mut self, name: &'static str) -> Outcome<()> {
        await_rest(self.server.pid(), self.address)?;
        let memory = ResidentMemory::of_process(self.server.pid())?;
        self.phases.push(Phase { name, memory });
        Ok(())
    }

    /// Ends both, and compares what they counted.
    fn stop(self) -> Outcome<()> {
        let Self { server, client, answered_count: expected, .. } = self;
        client.stop()?;
        let output = server.stop()?;
        let answered = server_counters::answered_count(&output)
            .ok_or_else(|| format!("the server printed no counter of requests: {output:?}"))?;
        if answered != expected {
            return Err(format!("the server counted {answered} answers, not {expected}").into());
        }
        println!("counters: the server answered {answered}, as many as the client received");
        Ok(())
    }
}

/// Says of each target whether it holds here.
fn print_targets(phases: &[Phase], connections: u32, latencies: Percentiles, wakes: Spread) {
    let named = |name| phases.iter().find(|phase| phase.name == name);
    let bytes = match (named("started"), named("parked")) {
        (Some(started), Some(parked)) => bytes_between(started, parked, connections),
        _ => f64::NAN,
    };
    let verdict = |is_met: bool| if is_met { "holds" } else { "missed" };
    println!(
        "\ntarget: process memory of a parked request with its connection, {PARKED_BYTES_MAX} \
         bytes: {bytes:.0}, {}",
        verdict(bytes <= PARKED_BYTES_MAX)
    );
    println!(
        "target: p99 from complete() to the last byte under {} us: {:.0} us, {}",
        P99_NANOS_MAX / 1000,
        latencies.p99_nanos as f64 / 1e3,
        verdict(latencies.p99_nanos < P99_NANOS_MAX)
    );
    println!(
        "target: one wake a burst: {} to {}, {}",
        wakes.min,
        wakes.max,
        verdict(wakes.min >= 1.0 && wakes.max <= 1.0)
    );
}

/// Resident memory of each connection that came with `later`, in bytes.
fn bytes_between(earlier: &Phase, later: &Phase, connections: u32) -> f64 {
    let kib = later.memory.rss_kib as f64 - earlier.memory.rss_kib as f64;
    kib * 1024.0 / f64::from(connections)
}

/// Waits until the server has accepted and received all there is, and uses no CPU time.
fn await_rest(pid: u32, address: SocketAddr) -> Outcome<()> {
    let deadline = Instant::now() + REST_MAX;
    loop {
        let before = CpuTime::of_process(pid)?;
        thread::sleep(REST);
        let queues = SocketQueues::of_port(address.port())?;
        let has_all = queues.unaccepted_count == 0 && queues.unread_by_server_bytes == 0;
        if has_all && CpuTime::of_process(pid)? == before {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(format!("the server does not come to rest: {queues:?}").into());
        }
    }
}

/// One connection, many requests.
fn warm_up(client: &ClientOptions) -> Outcome<()> {
    let head = client.head(PLAIN_PATH);
    let stream = TcpStream::connect(client.address)?;
    stream.set_nodelay(true)?;
    let mut connection = BufReader::new(stream);
    for _ in 0..WARM_UP_COUNT {
        let answer = answer::exchange(&mut connection, &head)?;
        if answer.status != 200 {
            return Err(format!("{PLAIN_PATH} is answered {}", answer.status).into());
        }
    }
    Ok(())
}

fn table(phases: &[Phase], connections: u32) -> Table {
    let mut table = Table::new(&[
        "phase",
        "RSS KiB",
        "PSS KiB",
        "bytes/connection since the phase before",
        "since started",
    ]);
    for (index, phase) in phases.iter().enumerate() {
        let bytes_since =
            |earlier: &Phase| format!("{:.0}", bytes_between(earlier, phase, connections));
        let since = match index.checked_sub(1) {
            Some(before) => [bytes_since(&phases[before]), bytes_since(&phases[0])],
            None => [String::new(), String::new()],
        };
        let [before, first] = since;
        table.push(vec![
            phase.name.to_owned(),
            phase.memory.rss_kib.to_string(),
            phase.memory.pss_kib.to_string(),
            before,
            first,
        ]);
    }
    table
}

/// Makes sure that server and client may open so many files once each has raised its limit.
fn check_file_limit(needed: usize) -> Outcome<()> {
    let output = Command::new("sh").args(["-c", "ulimit -H -n"]).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    match parse_file_limit(&text) {
        Some(limit) if limit < needed => Err(format!(
            "{needed} open files are needed and the hard limit is {limit}: raise it (as root, \
             prlimit --nofile={needed} --pid $$), or take fewer --connections"
        )
        .into()),
        Some(_) => Ok(()),
        None => Err(format!("not a file limit: {text:?}").into()),
    }
}

fn parse_file_limit(text: &str) -> Option<usize> {
    match text.trim() {
        "unlimited" => Some(usize::MAX),
        number => number.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_shows_bytes_for_each_connection() {
        let phase = |name, rss_kib| Phase {
            name,
            memory: ResidentMemory { rss_kib, pss_kib: rss_kib - 100 },
        };
        let phases = [phase("started", 4000), phase("idle", 4500), phase("parked", 5500)];
        let text = table(&phases, 500).to_string();
        let rows: Vec<Vec<&str>> =
            text.lines().skip(1).map(|line| line.split_ascii_whitespace().collect()).collect();
        assert_eq!(rows[0], ["started", "4000", "3900"]);
        assert_eq!(rows[1], ["idle", "4500", "4400", "1024", "1024"]);
        assert_eq!(rows[2], ["parked", "5500", "5400", "2048", "3072"]);
    }

    #[test]
    fn parses_file_limits() {
        assert_eq!(parse_file_limit("20000\n"), Some(20_000));
        assert_eq!(parse_file_limit("unlimited\n"), Some(usize::MAX));
        assert_eq!(parse_file_limit(""), None);
        check_file_limit(1).unwrap();
    }
}
