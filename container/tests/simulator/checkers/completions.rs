//! `on_complete` comes exactly once for each request that was asynchronous, and `on_all_data_read`
//! at most once.

use super::{Checker, End, Seen, Verdict, entry};
use crate::run::run;

#[derive(Default)]
pub(super) struct Completions {
    requests: Vec<(u32, u32)>,
}

impl Checker for Completions {
    fn name(&self) -> &'static str {
        "completions"
    }

    fn see(&mut self, seen: &Seen) -> Verdict {
        match seen {
            Seen::Completed { number, .. } => {
                let (completions, _) = entry(&mut self.requests, *number);
                *completions += 1;
                if *completions > 1 {
                    return Err(format!("request {number} was completed twice"));
                }
            }
            Seen::AllDataRead { number } => {
                let (_, ends) = entry(&mut self.requests, *number);
                *ends += 1;
                if *ends > 1 {
                    return Err(format!("request {number} had on_all_data_read twice"));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn at_end(&mut self, end: &End) -> Verdict {
        // A cut lets go of connections without a word to their requests.
        if end.is_cut {
            return Ok(());
        }
        let run = run();
        for number in 0..run.requests() {
            let record = run.record(number);
            let completions = entry(&mut self.requests, number).0;
            if record.round > 0 && completions == 0 {
                return Err(format!("request {number} was never completed: {record:?}"));
            }
        }
        Ok(())
    }
}
