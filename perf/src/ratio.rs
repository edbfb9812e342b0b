//! The server against the bare ring: same CPU, same load, same response, in rounds that alternate
//! so that both see the same neighbours. The ratios of a round are what counts.

use std::{
    fs,
    io::BufReader,
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use clap::{Args, value_parser};

use crate::{
    Outcome,
    answer::{self, Answer},
    cpu_time::CpuTime,
    machine,
    release::Release,
    server::Server,
    server_counters,
    spread::Spread,
    table::Table,
    wrk::{self, Load},
};

/// How long an unmeasured run before the first round takes.
const WARM_UP_SECONDS: u32 = 1;
/// Wait for the sample answer.
const SAMPLE_MAX: Duration = Duration::from_secs(10);
/// Below this share of its CPU the server waits for load, and requests per second compare loads.
const SATURATED: f64 = 0.95;

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
    pair.warm_up()?;
    let mut rounds = Vec::new();
    for number in 1..=options.rounds {
        let round = pair.measure_round(number, options.seconds)?;
        println!("round {number} of {}: {}", options.rounds, round.summary());
        rounds.push(round);
    }
    let counters = pair.stop()?;
    println!("\n{}\n{counters}", table(&rounds));
    if let Some(note) = saturation_note(&rounds) {
        println!("{note}");
    }
    Ok(())
}

/// Both servers and the load.
struct Pair {
    bare: Contender,
    ringcat: Contender,
    load: Load,
    answer_len_bytes: usize,
}

/// A server and what was asked of it.
struct Contender {
    server: Server,
    /// Answers that clients have counted.
    answered_count: u64,
    /// Answers that may have been sent and not counted.
    slack_count: u64,
}

impl Pair {
    fn start(options: &RatioOptions, release: &Release) -> Outcome<Self> {
        let cpu = options.server_cpu.to_string();
        let arguments = ["--cores", "1", "--cpus", &cpu, "--examples-at", "/", "--log", "warn"];
        let ringcat = Server::start(&release.ringcat(), options.server_cpu, &arguments)?;
        let answer = sample(ringcat.address(), &options.path)?;
        if answer.status != 200 {
            return Err(format!("{} is answered {}", options.path, answer.status).into());
        }
        let file = release.answer_file();
        fs::write(&file, &answer.raw)?;
        let file = file.to_string_lossy();
        let arguments = ["--cpu", &cpu, "--response", &file];
        let bare = Server::start(&release.bare_ring(), options.server_cpu, &arguments)?;
        if sample(bare.address(), &options.path)? != answer {
            return Err("the bare ring's answer is not the server's".into());
        }
        println!("answer    {} bytes:", answer.raw.len());
        println!("{}\n", String::from_utf8_lossy(&answer.raw).trim_end());
        Ok(Self {
            bare: Contender { server: bare, answered_count: 1, slack_count: 0 },
            ringcat: Contender { server: ringcat, answered_count: 1, slack_count: 0 },
            load: Load {
                cpu: options.load_cpu,
                connection_count: options.connections,
                pipeline_depth: options.pipeline,
                path: options.path.clone(),
            },
            answer_len_bytes: answer.raw.len(),
        })
    }

    fn warm_up(&mut self) -> Outcome<()> {
        self.bare.measure(&self.load, WARM_UP_SECONDS, self.answer_len_bytes)?;
        self.ringcat.measure(&self.load, WARM_UP_SECONDS, self.answer_len_bytes)?;
        Ok(())
    }

    fn measure_round(&mut self, number: u32, seconds: u32) -> Outcome<Round> {
        let Self { bare, ringcat, load, answer_len_bytes } = self;
        if number % 2 == 1 {
            let bare = bare.measure(load, seconds, *answer_len_bytes)?;
            let ringcat = ringcat.measure(load, seconds, *answer_len_bytes)?;
            return Ok(Round { bare, ringcat });
        }
        let ringcat = ringcat.measure(load, seconds, *answer_len_bytes)?;
        let bare = bare.measure(load, seconds, *answer_len_bytes)?;
        Ok(Round { bare, ringcat })
    }

    /// Ends both, and compares the server's counters with what the clients counted.
    fn stop(self) -> Outcome<String> {
        self.bare.server.stop()?;
        let Contender { server, answered_count, slack_count } = self.ringcat;
        let (status, output) = server.stop()?;
        if !status.success() {
            return Err(format!("ringcat ended with {status}").into());
        }
        check_counters(&output, answered_count, slack_count)
    }
}

impl Contender {
    fn measure(&mut self, load: &Load, seconds: u32, len_bytes: usize) -> Outcome<Measurement> {
        let before = CpuTime::of_process(self.server.pid())?;
        let summary = load.run(self.server.address(), seconds)?;
        let cpu = CpuTime::of_process(self.server.pid())?.since(before);
        summary.check(len_bytes, load.in_flight_max())?;
        self.answered_count += summary.request_count;
        self.slack_count += load.in_flight_max();
        Ok(Measurement {
            requests_per_second: summary.requests_per_second(),
            cpu_micros_per_request: cpu.as_secs_f64() * 1e6 / summary.request_count as f64,
            busy: cpu.as_secs_f64() / summary.duration.as_secs_f64(),
        })
    }
}

/// One server in one round.
#[derive(Clone, Copy, Debug)]
struct Measurement {
    requests_per_second: f64,
    cpu_micros_per_request: f64,
    /// CPU time over time; 1 is a full CPU.
    busy: f64,
}

/// Both servers, one after the other.
#[derive(Clone, Copy, Debug)]
struct Round {
    bare: Measurement,
    ringcat: Measurement,
}

impl Round {
    fn rate_ratio(&self) -> f64 {
        self.ringcat.requests_per_second / self.bare.requests_per_second
    }

    fn cpu_ratio(&self) -> f64 {
        self.ringcat.cpu_micros_per_request / self.bare.cpu_micros_per_request
    }

    fn summary(&self) -> String {
        format!(
            "bare {:.0} req/s, {:.2} us; ringcat {:.0} req/s, {:.2} us",
            self.bare.requests_per_second,
            self.bare.cpu_micros_per_request,
            self.ringcat.requests_per_second,
            self.ringcat.cpu_micros_per_request
        )
    }
}

/// A column of the table: its header, its value in a round, and its decimals.
type Column = (&'static str, fn(&Round) -> f64, usize);

const COLUMNS: [Column; 8] = [
    ("bare req/s", |round| round.bare.requests_per_second, 0),
    ("ringcat req/s", |round| round.ringcat.requests_per_second, 0),
    ("ratio", Round::rate_ratio, 3),
    ("bare us/req", |round| round.bare.cpu_micros_per_request, 3),
    ("ringcat us/req", |round| round.ringcat.cpu_micros_per_request, 3),
    ("ratio", Round::cpu_ratio, 3),
    ("bare busy", |round| round.bare.busy, 2),
    ("ringcat busy", |round| round.ringcat.busy, 2),
];

fn table(rounds: &[Round]) -> Table {
    let mut headers = vec!["round"];
    headers.extend(COLUMNS.iter().map(|(header, ..)| *header));
    let mut table = Table::new(&headers);
    let mut push = |name: String, value: &dyn Fn(&Column) -> f64| {
        let cells = COLUMNS.iter().map(|column| format!("{:.*}", column.2, value(column)));
        table.push(std::iter::once(name).chain(cells).collect());
    };
    for (index, round) in rounds.iter().enumerate() {
        push((index + 1).to_string(), &|column| (column.1)(round));
    }
    let spread = |column: &Column| {
        Spread::of(rounds.iter().map(column.1)).expect("there is at least one round")
    };
    push("median".to_owned(), &|column| spread(column).median);
    push("min".to_owned(), &|column| spread(column).min);
    push("max".to_owned(), &|column| spread(column).max);
    table
}

/// Warns when the load did not fill the server's CPU.
fn saturation_note(rounds: &[Round]) -> Option<String> {
    let busy = |value: fn(&Round) -> f64| Spread::of(rounds.iter().map(value));
    let bare = busy(|round| round.bare.busy)?.median;
    let ringcat = busy(|round| round.ringcat.busy)?.median;
    if bare.min(ringcat) >= SATURATED {
        return None;
    }
    Some(format!(
        "note: the servers used {:.0} % (bare) and {:.0} % (ringcat) of their CPU; below {:.0} % \
         the load is the limit, so compare CPU time per request, not requests per second",
        bare * 100.0,
        ringcat * 100.0,
        SATURATED * 100.0
    ))
}

fn check_counters(output: &str, counted: u64, slack: u64) -> Outcome<String> {
    let answered = server_counters::answered_count(output)
        .ok_or_else(|| format!("ringcat printed no counter of requests: {output:?}"))?;
    let text = format!(
        "counters: ringcat answered {answered}, the clients counted {counted} and had up to \
         {slack} more under way"
    );
    if !(counted..=counted + slack).contains(&answered) {
        return Err(format!("{text}: they disagree").into());
    }
    Ok(text)
}

fn sample(address: SocketAddr, path: &str) -> Outcome<Answer> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(SAMPLE_MAX))?;
    let head = answer::request_head(path, &address.to_string(), 0);
    Ok(answer::exchange(&mut BufReader::new(stream), &head)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(bare: f64, ringcat: f64, busy: f64) -> Round {
        let measurement = |requests_per_second: f64| Measurement {
            requests_per_second,
            cpu_micros_per_request: 1e6 / requests_per_second,
            busy,
        };
        Round { bare: measurement(bare), ringcat: measurement(ringcat) }
    }

    #[test]
    fn the_table_has_the_rounds_and_their_spread() {
        let rounds = [round(100_000.0, 80_000.0, 1.0), round(100_000.0, 50_000.0, 1.0)];
        let text = table(&rounds).to_string();
        let row = |name: &str| -> Vec<String> {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_ascii_whitespace().map(str::to_owned).collect()
        };
        assert_eq!(row("1")[..7], ["1", "100000", "80000", "0.800", "10.000", "12.500", "1.250"]);
        assert_eq!(row("median")[1..4], ["100000", "65000", "0.650"]);
        assert_eq!(row("min")[3], "0.500");
        assert_eq!(row("max")[6], "2.000");
        assert_eq!(text.lines().count(), 6);
    }

    #[test]
    fn an_idle_server_is_noted() {
        assert_eq!(saturation_note(&[round(1.0, 1.0, 0.99)]), None);
        let note = saturation_note(&[round(1.0, 1.0, 0.5)]).unwrap();
        assert!(note.contains("50 %"), "{note}");
    }

    #[test]
    fn counters_agree_within_what_was_under_way() {
        let check = |answered: u64, is_right: bool| {
            let output = format!("requests: {answered} answered (2xx 1)\n");
            assert_eq!(check_counters(&output, 100, 8).is_ok(), is_right, "{answered}");
        };
        check(99, false);
        check(100, true);
        check(108, true);
        check(109, false);
        assert!(check_counters("", 0, 0).is_err(), "no counter is no agreement");
    }
}
