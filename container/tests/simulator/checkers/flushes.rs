//! What a thread flushed arrives soon, although the request goes on; and once it was flushed, the
//! head can no longer change.

use super::{Checker, Seen, Verdict, entry, promptness::SOON};
use crate::run::{Moment, run};

#[derive(Default)]
pub(super) struct Flushes {
    /// Bytes of the content that were flushed, and when.
    flushed: Vec<Option<(usize, Moment)>>,
}

impl Checker for Flushes {
    fn name(&self) -> &'static str {
        "flushes"
    }

    fn see(&mut self, seen: &Seen) -> Verdict {
        match seen {
            Seen::Flushed { number, end, may_change_head } => {
                if *may_change_head {
                    return Err(format!("the head of request {number} changes after its flush"));
                }
                // It may have arrived before the caller could say so.
                if run().record(*number).received_bytes < *end {
                    entry(&mut self.flushed, *number).get_or_insert((*end, Moment::now()));
                }
            }
            Seen::Downloaded { number, offset, bytes } => {
                let Some((end, at)) = *entry(&mut self.flushed, *number) else { return Ok(()) };
                if offset + bytes.len() < end {
                    return Ok(());
                }
                *entry(&mut self.flushed, *number) = None;
                let record = run().record(*number);
                // A client that reads slowly, or waits for others first, is late by itself.
                let Some(first) = record.first_since.filter(|_| !run().is_reading_slow()) else {
                    return Ok(());
                };
                let took = at.max(first).elapsed();
                if took > SOON && !record.is_excused {
                    return Err(format!("what request {number} flushed took {took:?}"));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
