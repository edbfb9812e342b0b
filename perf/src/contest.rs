//! Two loads on servers of one core, in passes that alternate so that both see the same neighbours.
//! The ratios of a pass are what counts.

use std::{
    io::BufReader,
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use crate::{
    Outcome,
    answer::{self, Answer},
    cpu_time::CpuTime,
    server_counters,
    spread::Spread,
    table::Table,
    wrk::Load,
};

/// How long an unmeasured run before the first pass takes.
const WARM_UP_SECONDS: u32 = 1;
/// Wait for the sample answer.
const SAMPLE_MAX: Duration = Duration::from_secs(10);
/// Below this share of its CPU the server waits for load, and requests per second compare loads.
const SATURATED: f64 = 0.95;

/// A load on a server, and what was asked of it. One server may have both of a contest.
#[derive(Debug)]
pub(crate) struct Contender {
    /// What tables call it.
    pub(crate) name: &'static str,
    /// The server's process.
    pub(crate) pid: u32,
    /// Where it listens.
    pub(crate) address: SocketAddr,
    /// What is asked of it.
    pub(crate) load: Load,
    /// How long the answer is.
    pub(crate) answer_len_bytes: usize,
    /// Answers that clients have counted.
    pub(crate) answered_count: u64,
    /// Answers that may have been sent and not counted.
    pub(crate) slack_count: u64,
}

/// Two contenders.
#[derive(Debug)]
pub(crate) struct Contest {
    /// What is measured against.
    pub(crate) base: Contender,
    /// What is measured.
    pub(crate) rival: Contender,
}

impl Contender {
    /// A contender whose answer was asked for once, before this.
    pub(crate) fn new(
        name: &'static str,
        (pid, address): (u32, SocketAddr),
        load: Load,
        sample: &Answer,
    ) -> Self {
        let answer_len_bytes = sample.raw.len();
        Self { name, pid, address, load, answer_len_bytes, answered_count: 1, slack_count: 0 }
    }

    fn measure(&mut self, seconds: u32) -> Outcome<Measurement> {
        let before = CpuTime::of_process(self.pid)?;
        let summary = self.load.run(self.address, seconds)?;
        let cpu = CpuTime::of_process(self.pid)?.since(before);
        summary.check(self.answer_len_bytes, self.load.in_flight_max())?;
        self.answered_count += summary.request_count;
        self.slack_count += self.load.in_flight_max();
        Ok(Measurement {
            requests_per_second: summary.requests_per_second(),
            cpu_micros_per_request: cpu.as_secs_f64() * 1e6 / summary.request_count as f64,
            busy: cpu.as_secs_f64() / summary.duration.as_secs_f64(),
        })
    }
}

impl Contest {
    /// Measures so many passes of so many seconds for each, and prints each pass.
    ///
    /// # Errors
    /// A load failed, or an answer was wrong.
    pub(crate) fn measure(&mut self, passes: u32, seconds: u32) -> Outcome<Vec<Pass>> {
        self.base.measure(WARM_UP_SECONDS)?;
        self.rival.measure(WARM_UP_SECONDS)?;
        let mut measured = Vec::new();
        for number in 1..=passes {
            let pass = self.measure_pass(number, seconds)?;
            let (base, rival) = (self.base.name, self.rival.name);
            println!("round {number} of {passes}: {}", pass.summary(base, rival));
            measured.push(pass);
        }
        Ok(measured)
    }

    /// The passes with their spread, and a warning if the load did not fill the server's CPU.
    pub(crate) fn print(&self, passes: &[Pass]) {
        let names = [self.base.name, self.rival.name];
        println!("\n{}", table(names, passes));
        if let Some(note) = saturation_note(names, passes) {
            println!("{note}");
        }
    }

    fn measure_pass(&mut self, number: u32, seconds: u32) -> Outcome<Pass> {
        let Self { base, rival } = self;
        if number % 2 == 1 {
            let base = base.measure(seconds)?;
            return Ok(Pass { base, rival: rival.measure(seconds)? });
        }
        let rival = rival.measure(seconds)?;
        Ok(Pass { base: base.measure(seconds)?, rival })
    }
}

/// One load for one window.
#[derive(Clone, Copy, Debug)]
struct Measurement {
    requests_per_second: f64,
    cpu_micros_per_request: f64,
    /// CPU time over time; 1 is a full CPU.
    busy: f64,
}

/// Both loads, one after the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pass {
    base: Measurement,
    rival: Measurement,
}

impl Pass {
    fn rate_ratio(&self) -> f64 {
        self.rival.requests_per_second / self.base.requests_per_second
    }

    fn cpu_ratio(&self) -> f64 {
        self.rival.cpu_micros_per_request / self.base.cpu_micros_per_request
    }

    fn summary(&self, base: &str, rival: &str) -> String {
        format!(
            "{base} {:.0} req/s, {:.2} us; {rival} {:.0} req/s, {:.2} us",
            self.base.requests_per_second,
            self.base.cpu_micros_per_request,
            self.rival.requests_per_second,
            self.rival.cpu_micros_per_request
        )
    }
}

/// A column of the table: whose it is, its header, its value in a pass, and its decimals.
type Column = (Option<usize>, &'static str, fn(&Pass) -> f64, usize);

const COLUMNS: [Column; 8] = [
    (Some(0), "req/s", |pass| pass.base.requests_per_second, 0),
    (Some(1), "req/s", |pass| pass.rival.requests_per_second, 0),
    (None, "ratio", Pass::rate_ratio, 3),
    (Some(0), "us/req", |pass| pass.base.cpu_micros_per_request, 3),
    (Some(1), "us/req", |pass| pass.rival.cpu_micros_per_request, 3),
    (None, "ratio", Pass::cpu_ratio, 3),
    (Some(0), "busy", |pass| pass.base.busy, 2),
    (Some(1), "busy", |pass| pass.rival.busy, 2),
];

fn table(names: [&str; 2], passes: &[Pass]) -> Table {
    let headers = COLUMNS.map(|(whose, header, ..)| match whose {
        Some(index) => format!("{} {header}", names[index]),
        None => header.to_owned(),
    });
    let headers: Vec<&str> =
        std::iter::once("round").chain(headers.iter().map(String::as_str)).collect();
    let mut table = Table::new(&headers);
    let mut push = |name: String, value: &dyn Fn(&Column) -> f64| {
        let cells = COLUMNS.iter().map(|column| format!("{:.*}", column.3, value(column)));
        table.push(std::iter::once(name).chain(cells).collect());
    };
    for (index, pass) in passes.iter().enumerate() {
        push((index + 1).to_string(), &|column| (column.2)(pass));
    }
    let spread = |column: &Column| {
        Spread::of(passes.iter().map(column.2)).expect("there is at least one pass")
    };
    push("median".to_owned(), &|column| spread(column).median);
    push("min".to_owned(), &|column| spread(column).min);
    push("max".to_owned(), &|column| spread(column).max);
    table
}

/// Warns when the load did not fill the server's CPU.
fn saturation_note(names: [&str; 2], passes: &[Pass]) -> Option<String> {
    let busy = |value: fn(&Pass) -> f64| Spread::of(passes.iter().map(value));
    let base = busy(|pass| pass.base.busy)?.median;
    let rival = busy(|pass| pass.rival.busy)?.median;
    if base.min(rival) >= SATURATED {
        return None;
    }
    Some(format!(
        "note: {:.0} % ({}) and {:.0} % ({}) of the server's CPU were used; below {:.0} % the load \
         is the limit, so compare CPU time per request, not requests per second",
        base * 100.0,
        names[0],
        rival * 100.0,
        names[1],
        SATURATED * 100.0
    ))
}

/// Compares what a server says that it answered with what its clients counted.
///
/// # Errors
/// They disagree, or the server said nothing.
pub(crate) fn check_counters(output: &str, contenders: &[&Contender]) -> Outcome<String> {
    let counted: u64 = contenders.iter().map(|contender| contender.answered_count).sum();
    let slack: u64 = contenders.iter().map(|contender| contender.slack_count).sum();
    let answered = server_counters::answered_count(output)
        .ok_or_else(|| format!("the server printed no counter of requests: {output:?}"))?;
    let text = format!(
        "counters: ringcat answered {answered}, the clients counted {counted} and had up to \
         {slack} more under way"
    );
    if !(counted..=counted + slack).contains(&answered) {
        return Err(format!("{text}: they disagree").into());
    }
    Ok(text)
}

/// Asks a server once.
///
/// # Errors
/// It does not answer.
pub(crate) fn sample(address: SocketAddr, path: &str) -> Outcome<Answer> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(SAMPLE_MAX))?;
    let head = answer::request_head(path, &address.to_string(), 0);
    let answer = answer::exchange(&mut BufReader::new(stream), &head)?;
    if answer.status != 200 {
        return Err(format!("{path} is answered {}", answer.status).into());
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pass(base: f64, rival: f64, busy: f64) -> Pass {
        let measurement = |requests_per_second: f64| Measurement {
            requests_per_second,
            cpu_micros_per_request: 1e6 / requests_per_second,
            busy,
        };
        Pass { base: measurement(base), rival: measurement(rival) }
    }

    #[test]
    fn the_table_has_the_passes_and_their_spread() {
        let passes = [pass(100_000.0, 80_000.0, 1.0), pass(100_000.0, 50_000.0, 1.0)];
        let text = table(["bare", "ringcat"], &passes).to_string();
        let row = |name: &str| -> Vec<String> {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_ascii_whitespace().map(str::to_owned).collect()
        };
        assert_eq!(row("round")[1..6], ["bare", "req/s", "ringcat", "req/s", "ratio"]);
        assert_eq!(row("1")[..7], ["1", "100000", "80000", "0.800", "10.000", "12.500", "1.250"]);
        assert_eq!(row("median")[1..4], ["100000", "65000", "0.650"]);
        assert_eq!(row("min")[3], "0.500");
        assert_eq!(row("max")[6], "2.000");
        assert_eq!(text.lines().count(), 6);
    }

    #[test]
    fn an_idle_server_is_noted() {
        let names = ["plain", "round"];
        assert_eq!(saturation_note(names, &[pass(1.0, 1.0, 0.99)]), None);
        let note = saturation_note(names, &[pass(1.0, 1.0, 0.5)]).unwrap();
        assert!(note.contains("50 % (plain)"), "{note}");
    }

    #[test]
    fn counters_agree_within_what_was_under_way() {
        let load =
            Load { cpu: 0, connection_count: 8, pipeline_depth: 1, path: "/plain".to_owned() };
        let sample = Answer { status: 200, content: Vec::new(), raw: Vec::new() };
        let address = "127.0.0.1:80".parse().unwrap();
        let mut contender = Contender::new("plain", (1, address), load, &sample);
        (contender.answered_count, contender.slack_count) = (50, 4);
        let check = |answered: u64, is_right: bool| {
            let output = format!("requests: {answered} answered (2xx 1)\n");
            let checked = check_counters(&output, &[&contender, &contender]);
            assert_eq!(checked.is_ok(), is_right, "{answered}");
        };
        check(99, false);
        check(100, true);
        check(108, true);
        check(109, false);
        assert!(check_counters("", &[&contender]).is_err(), "no counter is no agreement");
    }
}
