//! Runs wrk, one thread on a CPU of its own, and reads the summary that `lua/load.lua` prints.

use std::{net::SocketAddr, process::Command, time::Duration};

use crate::Outcome;

/// The script, found where this program was built.
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/lua/load.lua");

/// What the script's line begins with.
const LINE_PREFIX: &str = "load: ";

/// A load.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    /// The CPU that wrk runs on.
    pub(crate) cpu: usize,
    /// Connections, each with one burst under way.
    pub(crate) connection_count: u32,
    /// Requests in a burst; 1 is no pipelining.
    pub(crate) pipeline_depth: u32,
    /// The target of the requests.
    pub(crate) path: String,
}

/// What wrk counted in one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Summary {
    /// How long it ran.
    pub(crate) duration: Duration,
    /// Complete answers.
    pub(crate) request_count: u64,
    /// Bytes received.
    pub(crate) received_bytes: u64,
    /// Connections that failed, reads, writes, time-outs, and answers of status 400 and above.
    pub(crate) errors: Errors,
}

/// What went wrong, by wrk's kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Errors {
    connect: u64,
    read: u64,
    write: u64,
    timeout: u64,
    status: u64,
}

/// Whether wrk and taskset are there.
///
/// # Errors
/// One is missing; the text says what to install.
pub(crate) fn require() -> Outcome<()> {
    for (program, package) in [("wrk", "wrk"), ("taskset", "util-linux")] {
        if Command::new(program).arg("--version").output().is_err() {
            return Err(format!("{program} is missing: apt-get install {package}").into());
        }
    }
    Ok(())
}

impl Load {
    /// Runs the load for whole seconds.
    ///
    /// # Errors
    /// wrk failed, or its output is not what the script prints.
    pub(crate) fn run(&self, address: SocketAddr, seconds: u32) -> Outcome<Summary> {
        let output = Command::new("taskset")
            .args(["-c", &self.cpu.to_string(), "wrk", "-t1"])
            .arg(format!("-c{}", self.connection_count))
            .arg(format!("-d{seconds}s"))
            .args(["-s", SCRIPT])
            .arg(format!("http://{address}{}", self.path))
            .env("PIPELINE_DEPTH", self.pipeline_depth.to_string())
            .output()
            .map_err(|error| format!("cannot run taskset: {error}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let summary = Summary::parse(&text).filter(|_| output.status.success());
        summary.ok_or_else(|| {
            let errors = String::from_utf8_lossy(&output.stderr);
            format!("wrk failed ({}): {text}{errors}", output.status).into()
        })
    }

    /// Requests that may be under way when a run ends: answered, but not counted by wrk.
    pub(crate) fn in_flight_max(&self) -> u64 {
        u64::from(self.connection_count) * u64::from(self.pipeline_depth)
    }
}

impl Summary {
    fn parse(output: &str) -> Option<Self> {
        let line = output.lines().find_map(|line| line.strip_prefix(LINE_PREFIX))?;
        let number = |name: &str| -> Option<u64> {
            let mut fields = line.split_ascii_whitespace();
            fields.find_map(|field| field.strip_prefix(name)?.strip_prefix('='))?.parse().ok()
        };
        Some(Self {
            duration: Duration::from_micros(number("duration_us")?),
            request_count: number("requests")?,
            received_bytes: number("bytes")?,
            errors: Errors {
                connect: number("connect")?,
                read: number("read")?,
                write: number("write")?,
                timeout: number("timeout")?,
                status: number("status")?,
            },
        })
    }

    /// Whether all answers were the expected one, as far as wrk's numbers tell: no errors, and as
    /// many bytes as so many answers have, with at most `in_flight_max` more.
    ///
    /// # Errors
    /// They were not; the text says how.
    pub(crate) fn check(&self, answer_len_bytes: usize, in_flight_max: u64) -> Outcome<()> {
        if self.errors != Errors::default() {
            return Err(format!("errors under load: {:?}", self.errors).into());
        }
        if self.request_count == 0 {
            return Err("no request was answered".into());
        }
        let len = answer_len_bytes as u64;
        let expected = self.request_count * len;
        if !(expected..=expected + in_flight_max * len).contains(&self.received_bytes) {
            return Err(format!(
                "{} answers of {len} bytes are {expected} bytes, but {} came: not all were the \
                 expected answer",
                self.request_count, self.received_bytes
            )
            .into());
        }
        Ok(())
    }

    /// Answers a second.
    pub(crate) fn requests_per_second(&self) -> f64 {
        self.request_count as f64 / self.duration.as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "Running 1s test @ http://127.0.0.1:8080/hello\n  \
        1 threads and 64 connections\n  Thread Stats   Avg      Stdev     Max   +/- Stdev\n    \
        Latency   329.53us  113.10us   2.51ms   94.00%\n  1000 requests in 1.00s, 1.00MB read\n\
        Requests/sec: 1000.00\nload: duration_us=2000000 requests=1000 bytes=148000 connect=0 \
        read=0 write=0 status=0 timeout=0\n";

    #[test]
    fn parses_the_scripts_line() {
        let summary = Summary::parse(OUTPUT).unwrap();
        assert_eq!(summary.duration, Duration::from_secs(2));
        assert_eq!((summary.request_count, summary.received_bytes), (1000, 148_000));
        assert_eq!(summary.errors, Errors::default());
        assert!((summary.requests_per_second() - 500.0).abs() < 1e-9);
        assert_eq!(Summary::parse("unable to connect to 127.0.0.1:1\n"), None);
        assert_eq!(Summary::parse(&OUTPUT.replace("timeout=", "late=")), None);
    }

    #[test]
    fn errors_and_other_answers_are_refused() {
        let check = |from: &str, to: &str, expected: Option<&str>| {
            let summary = Summary::parse(&OUTPUT.replace(from, to)).unwrap();
            let error = summary.check(148, 64).err().map(|error| error.to_string());
            match (expected, error) {
                (None, None) => {}
                (Some(expected), Some(error)) if error.contains(expected) => {}
                (_, error) => panic!("{to}: {error:?}"),
            }
        };
        check("", "", None);
        check("bytes=148000", "bytes=157472", None);
        check("bytes=148000", "bytes=157473", Some("expected answer"));
        check("bytes=148000", "bytes=147999", Some("expected answer"));
        check("read=0", "read=1", Some("read: 1"));
        check("status=0", "status=9", Some("status: 9"));
        check("timeout=0", "timeout=2", Some("timeout: 2"));
        check("requests=1000", "requests=0", Some("no request"));
    }
}
