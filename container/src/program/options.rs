//! The command line.

use std::{str::FromStr, time::Duration};

use clap::Parser;
use ringcat::AccessLogTarget;
use ringcat_engine::cpus::CpuSet;

/// A servlet container on thread-per-core io_uring rings.
#[derive(Debug, Parser)]
#[command(name = "ringcat", version, max_term_width = 100)]
pub(crate) struct Options {
    /// Where to listen; port 0 picks one.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:8080")]
    pub(crate) listen: String,

    /// How many cores to start. Default: one for each CPU that the affinity mask and the CPU quota
    /// allow.
    #[arg(long, value_name = "N")]
    pub(crate) cores: Option<usize>,

    /// The CPUs to pin cores to, one core each, like 0,2-3. Default: the first ones allowed.
    #[arg(long, value_name = "LIST")]
    pub(crate) cpus: Option<CpuSet>,

    /// How long an asynchronous request may take unless its servlet says otherwise, like 30s,
    /// 500ms or 2m; 0 means for ever.
    #[arg(long, value_name = "TIME", default_value = "30s")]
    pub(crate) async_timeout: Period,

    /// How long a drain waits for parked requests before it times them out.
    #[arg(long, value_name = "TIME", default_value = "30s")]
    pub(crate) drain_timeout: Period,

    /// Threads for blocking servlets, at most.
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub(crate) workers: usize,

    /// Where the examples are; "none" leaves them out.
    #[arg(long, value_name = "PATH", default_value = "/examples")]
    pub(crate) examples_at: ExamplesAt,

    /// Write a line for each request to this file; "-" is standard output. Off by default.
    #[arg(long, value_name = "FILE")]
    pub(crate) access_log: Option<String>,

    /// What to log to standard error: error, warn, info, debug or trace, also by module
    /// (state=trace,info).
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub(crate) log: LogFilter,
}

impl Options {
    pub(crate) fn access_log_target(&self) -> Option<AccessLogTarget> {
        self.access_log.as_deref().map(|file| match file {
            "-" => AccessLogTarget::Stdout,
            file => AccessLogTarget::File(file.into()),
        })
    }
}

/// A time of the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Period(pub(crate) Duration);

impl FromStr for Period {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let wrong = || format!("{text:?} is no time; write it like 30s, 500ms or 2m");
        let number: u64 = digits.parse().map_err(|_| wrong())?;
        let milliseconds = match &text[digits.len()..] {
            "ms" => number,
            "s" | "" => number.saturating_mul(1000),
            "m" => number.saturating_mul(60_000),
            _ => return Err(wrong()),
        };
        Ok(Self(Duration::from_millis(milliseconds)))
    }
}

/// Where the examples are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ExamplesAt {
    /// Nowhere.
    Nowhere,
    /// At this context path; empty for the root.
    Path(String),
}

impl FromStr for ExamplesAt {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self::Nowhere),
            "/" => Ok(Self::Path(String::new())),
            path if path.starts_with('/') && !path.ends_with('/') => Ok(Self::Path(path.into())),
            _ => Err(format!(
                "{text:?} is no context path; write it like /examples, / for the root, or none"
            )),
        }
    }
}

/// A checked log filter.
#[derive(Clone, Debug)]
pub(crate) struct LogFilter(pub(crate) String);

impl FromStr for LogFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        tracing_subscriber::EnvFilter::builder().parse(text).map(|_| Self(text.to_owned())).map_err(
            |error| format!("{error}; write error, warn, info, debug, trace, or state=trace,info"),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        let millis = |text: &str| text.parse::<Period>().map(|period| period.0.as_millis());
        assert_eq!(millis("30s"), Ok(30_000));
        assert_eq!(millis("500ms"), Ok(500));
        assert_eq!(millis("2m"), Ok(120_000));
        assert_eq!(millis("7"), Ok(7000));
        for wrong in ["", "s", "-1s", "1h", "1.5s", "ten"] {
            assert!(millis(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_place_of_the_examples_is_a_context_path() {
        assert_eq!("none".parse(), Ok(ExamplesAt::Nowhere));
        assert_eq!("/".parse(), Ok(ExamplesAt::Path(String::new())));
        assert_eq!("/x/y".parse(), Ok(ExamplesAt::Path("/x/y".to_owned())));
        for wrong in ["", "x", "/x/"] {
            assert!(wrong.parse::<ExamplesAt>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_command_line_is_sound() {
        use clap::CommandFactory as _;
        Options::command().debug_assert();
    }
}
