//! What connections and parked requests cost the server in memory: its resident memory before
//! them, with open connections, with idle ones, and with a parked request on each; then all are
//! answered, each exactly once.

use std::{
    env,
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use clap::{Args, value_parser};

use crate::{
    Outcome, answer,
    cpu_time::CpuTime,
    machine,
    parked_client::{self, ClientOptions, Step},
    release::Release,
    resident_memory::ResidentMemory,
    server::{Server, WITH_ALL_FILES},
    server_counters,
    socket_queues::SocketQueues,
    table::Table,
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

/// What `perf parked` takes.
#[derive(Args, Debug)]
pub(crate) struct ParkedOptions {
    /// Connections, each with one parked request
    // Each takes a port of loopback.
    #[arg(long, default_value_t = 10_000, value_parser = value_parser!(u32).range(1..=25_000))]
    connections: u32,
    /// What to ask for: an asynchronous answer `done`, late enough for all requests to be parked
    #[arg(long, default_value = "/delay/5000")]
    path: String,
    /// What is answered at once
    #[arg(long, default_value = "/hello")]
    quick_path: String,
    /// CPU of the server
    #[arg(long, default_value_t = 0)]
    server_cpu: usize,
    /// CPU of the client
    #[arg(long, default_value_t = 1)]
    load_cpu: usize,
    /// Take the program that is in target/release as it is
    #[arg(long)]
    no_build: bool,
}

/// Builds, measures, prints.
///
/// # Errors
/// A program is missing or failed, the file limit is too low, a request was not answered exactly
/// once, or requests were answered before the memory with all of them parked was known.
pub(crate) fn run(options: &ParkedOptions) -> Outcome<()> {
    check_file_limit(options.connections as usize + FILES_BESIDES)?;
    let release = Release::find()?;
    if !options.no_build {
        release.build()?;
    }
    print!("{}", machine::describe());
    let cpu = options.server_cpu.to_string();
    let arguments = ["--cores", "1", "--cpus", &cpu, "--examples-at", "/", "--log", "warn"];
    let server = Server::start(&release.ringcat(), options.server_cpu, &arguments)?;
    let head_len_bytes = warm_up(&server, options)?;
    println!("requests  {head_len_bytes} bytes of head\n");
    let client = Client::start(options, &server)?;
    let mut test = Test { server, client, phases: Vec::new() };
    let answering = test.go_through(options.connections)?;
    print!("{}", table(&test.phases, options.connections));
    println!(
        "\nall {} parked requests answered once; from the first request to the last answer {:.2} s",
        options.connections,
        answering.as_secs_f64()
    );
    let answered = test.stop()?;
    let expected = WARM_UP_COUNT + 2 * u64::from(options.connections);
    if answered != expected {
        return Err(format!("ringcat counted {answered} answers, the client {expected}").into());
    }
    println!("counters: ringcat answered {answered}, as many as the client received");
    Ok(())
}

/// A running test.
struct Test {
    server: Server,
    client: Client,
    phases: Vec<Phase>,
}

/// The server's memory at rest.
struct Phase {
    name: &'static str,
    memory: ResidentMemory,
}

impl Test {
    /// The phases in order; gives the time from the first parked request to the last answer.
    fn go_through(&mut self, connections: u32) -> Outcome<Duration> {
        self.measure("started")?;
        self.client.take(Step::Connect)?;
        self.measure("connected")?;
        self.client.take(Step::Exchange)?;
        self.measure("idle")?;
        let start = Instant::now();
        self.client.take(Step::Park)?;
        self.measure("parked")?;
        let queues = SocketQueues::of_port(self.server.address().port())?;
        if queues.unread_by_client_bytes > 0 || queues.established_count < u64::from(connections) {
            return Err(
                "requests were answered before all were parked: the path must take longer, \
                        or fewer connections"
                    .into(),
            );
        }
        self.client.take(Step::Collect)?;
        let answering = start.elapsed();
        self.measure("answered")?;
        Ok(answering)
    }

    fn measure(&mut self, name: &'static str) -> Outcome<()> {
        await_rest(&self.server)?;
        let memory = ResidentMemory::of_process(self.server.pid())?;
        println!("{name}: {} KiB", memory.rss_kib);
        self.phases.push(Phase { name, memory });
        Ok(())
    }

    /// Ends both; gives the number of requests that the server answered.
    fn stop(self) -> Outcome<u64> {
        self.client.stop()?;
        let (status, output) = self.server.stop()?;
        if !status.success() {
            return Err(format!("ringcat ended with {status}").into());
        }
        let answered = server_counters::answered_count(&output);
        answered.ok_or_else(|| format!("ringcat printed no counter of requests: {output:?}").into())
    }
}

/// Waits until the server has accepted and received all there is, and uses no CPU time.
fn await_rest(server: &Server) -> Outcome<()> {
    let deadline = Instant::now() + REST_MAX;
    loop {
        let before = CpuTime::of_process(server.pid())?;
        thread::sleep(REST);
        let queues = SocketQueues::of_port(server.address().port())?;
        let has_all = queues.unaccepted_count == 0 && queues.unread_by_server_bytes == 0;
        if has_all && CpuTime::of_process(server.pid())? == before {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(format!("the server does not come to rest: {queues:?}").into());
        }
    }
}

/// One connection, many requests; gives the length of the head that parks.
fn warm_up(server: &Server, options: &ParkedOptions) -> Outcome<usize> {
    let host = server.address().to_string();
    let head = answer::request_head(&options.quick_path, &host, PADDING_BYTES);
    let stream = TcpStream::connect(server.address())?;
    stream.set_nodelay(true)?;
    let mut connection = BufReader::new(stream);
    for _ in 0..WARM_UP_COUNT {
        let answer = answer::exchange(&mut connection, &head)?;
        if answer.status != 200 {
            return Err(format!("{} is answered {}", options.quick_path, answer.status).into());
        }
    }
    Ok(answer::request_head(&options.path, &host, PADDING_BYTES).len())
}

/// The client's process.
struct Client {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Client {
    fn start(options: &ParkedOptions, server: &Server) -> Outcome<Self> {
        let client = ClientOptions {
            address: server.address(),
            connections: options.connections as usize,
            quick_path: options.quick_path.clone(),
            path: options.path.clone(),
            padding_bytes: PADDING_BYTES,
        };
        let mut child = Command::new("taskset")
            .args(["-c", &options.load_cpu.to_string(), "sh", "-c", WITH_ALL_FILES, "sh"])
            .arg(env::current_exe()?)
            .args(client.to_arguments())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = child.stdin.take().expect("a pipe was asked for");
        let output = BufReader::new(child.stdout.take().expect("a pipe was asked for"));
        Ok(Self { child, input, output })
    }

    fn take(&mut self, step: Step) -> Outcome<()> {
        writeln!(self.input, "{step}").map_err(|error| format!("the client is gone: {error}"))?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        if line.trim_end() != parked_client::done_line(step) {
            return Err(format!("client: {}", line.trim_end()).into());
        }
        Ok(())
    }

    fn stop(self) -> Outcome<()> {
        let Self { mut child, input, output } = self;
        // The end of its input is its end.
        drop((input, output));
        let status = child.wait()?;
        if !status.success() {
            return Err(format!("the client ended with {status}").into());
        }
        Ok(())
    }
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
        let bytes_since = |earlier: &Phase| {
            let kib = phase.memory.rss_kib as f64 - earlier.memory.rss_kib as f64;
            format!("{:.0}", kib * 1024.0 / f64::from(connections))
        };
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
