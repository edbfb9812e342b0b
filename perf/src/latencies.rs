//! Latencies in a histogram, and the percentiles of it as fields of a line, which is how they come
//! from the client's process.

use std::fmt;

use hdrhistogram::Histogram;

use crate::{Outcome, step_process::Reply};

/// Latencies up to a minute, three digits kept.
#[derive(Debug)]
pub(crate) struct Latencies(Histogram<u64>);

/// What is told of latencies, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Percentiles {
    /// How many there are.
    pub(crate) count: u64,
    /// Half of them are shorter.
    pub(crate) p50_nanos: u64,
    /// 90 of 100 are shorter.
    pub(crate) p90_nanos: u64,
    /// 99 of 100 are shorter.
    pub(crate) p99_nanos: u64,
    /// 999 of 1,000 are shorter.
    pub(crate) p999_nanos: u64,
    /// The longest.
    pub(crate) max_nanos: u64,
}

/// Longer ones count as this.
const LATENCY_NANOS_MAX: u64 = 60_000_000_000;

impl Latencies {
    /// None yet.
    pub(crate) fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, LATENCY_NANOS_MAX, 3);
        Self(histogram.expect("the bounds and three digits are in the histogram's range"))
    }

    /// Adds one.
    pub(crate) fn record(&mut self, nanos: u64) {
        self.0.saturating_record(nanos);
    }

    /// What is told of them.
    pub(crate) fn percentiles(&self) -> Percentiles {
        let at = |quantile| self.0.value_at_quantile(quantile);
        Percentiles {
            count: self.0.len(),
            p50_nanos: at(0.5),
            p90_nanos: at(0.9),
            p99_nanos: at(0.99),
            p999_nanos: at(0.999),
            max_nanos: self.0.max(),
        }
    }
}

impl Percentiles {
    /// Reads the fields that [`Percentiles::to_fields`] wrote.
    ///
    /// # Errors
    /// One is missing.
    pub(crate) fn from_reply(reply: &Reply) -> Outcome<Self> {
        Ok(Self {
            count: reply.number("count")?,
            p50_nanos: reply.number("p50")?,
            p90_nanos: reply.number("p90")?,
            p99_nanos: reply.number("p99")?,
            p999_nanos: reply.number("p999")?,
            max_nanos: reply.number("max")?,
        })
    }

    /// Them as fields of a line.
    pub(crate) fn to_fields(self) -> String {
        let Self { count, p50_nanos, p90_nanos, p99_nanos, p999_nanos, max_nanos } = self;
        format!(
            "count={count} p50={p50_nanos} p90={p90_nanos} p99={p99_nanos} p999={p999_nanos} \
             max={max_nanos}"
        )
    }
}

impl fmt::Display for Percentiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = |nanos: u64| nanos as f64 / 1e3;
        write!(
            f,
            "p50 {:.0} us, p90 {:.0} us, p99 {:.0} us, p99.9 {:.0} us, max {:.0} us of {}",
            micros(self.p50_nanos),
            micros(self.p90_nanos),
            micros(self.p99_nanos),
            micros(self.p999_nanos),
            micros(self.max_nanos),
            self.count
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_go_through_a_line_and_back() {
        let mut latencies = Latencies::new();
        (1..=1000).for_each(|micros| latencies.record(micros * 1000));
        let percentiles = latencies.percentiles();
        let reply = Reply::new(format!("done trickle {}", percentiles.to_fields()));
        assert_eq!(Percentiles::from_reply(&reply).unwrap(), percentiles);
        let is_near = |nanos: u64, micros: u64| nanos.abs_diff(micros * 1000) <= micros * 2;
        assert!(is_near(percentiles.p50_nanos, 500), "{percentiles:?}");
        assert!(is_near(percentiles.p999_nanos, 999), "{percentiles:?}");
        assert!(is_near(percentiles.max_nanos, 1000), "{percentiles:?}");
        assert_eq!(percentiles.count, 1000);
    }

    #[test]
    fn too_long_counts_as_the_longest() {
        let mut latencies = Latencies::new();
        latencies.record(u64::MAX);
        assert!(latencies.percentiles().max_nanos >= LATENCY_NANOS_MAX);
    }
}
