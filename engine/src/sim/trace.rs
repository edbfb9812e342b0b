//! What happened in a run: every record goes into a digest, so that two runs can be compared; the
//! last ones are kept for the report of a failure; and on request all are kept as text.

use std::{collections::VecDeque, fmt::Write as _};

/// Records kept for the report of a failure.
const TAIL_MAX: usize = 80;

/// The trace of one run.
#[derive(Debug, Default)]
pub struct Trace {
    digest: u64,
    count: u64,
    tail: VecDeque<Record>,
    text: Option<String>,
}

#[derive(Clone, Copy, Debug)]
struct Record {
    nanos: u64,
    actor: (&'static str, u32),
    what: &'static str,
    a: u64,
    b: u64,
}

impl Record {
    fn write(&self, text: &mut String) {
        let Self { nanos, actor: (name, number), what, a, b } = self;
        let micros = *nanos as f64 / 1000.0;
        // Writing to a string does not fail.
        let _ = writeln!(text, "{micros:>14.3} us  {name}-{number}: {what} {a} {b}");
    }
}

impl Trace {
    /// An empty trace; with `is_whole` it keeps every record as text.
    pub(crate) fn new(is_whole: bool) -> Self {
        Self { text: is_whole.then(String::new), ..Self::default() }
    }

    pub(crate) fn record(
        &mut self,
        nanos: u64,
        actor: (&'static str, u32),
        what: &'static str,
        (a, b): (u64, u64),
    ) {
        let record = Record { nanos, actor, what, a, b };
        for number in [nanos, u64::from(actor.1), what.len() as u64, a, b] {
            self.digest = (self.digest.rotate_left(5) ^ number).wrapping_mul(MULTIPLIER);
        }
        self.count += 1;
        if let Some(text) = &mut self.text {
            record.write(text);
        }
        if self.tail.len() == TAIL_MAX {
            self.tail.pop_front();
        }
        self.tail.push_back(record);
    }

    /// One number for all that happened.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// How much happened.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The last records, one a line.
    pub fn tail(&self) -> String {
        let mut text = String::new();
        self.tail.iter().for_each(|record| record.write(&mut text));
        text
    }

    /// All records, one a line, if they were kept.
    pub fn text(&self) -> Option<&str> {
        self.text.as_deref()
    }
}

/// An odd number without pattern, as multiplicative hashes use.
const MULTIPLIER: u64 = 0x517c_c1b7_2722_0a95;
