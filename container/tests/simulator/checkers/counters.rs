//! What the server counts adds up with what clients saw: connections accepted and closed, and
//! responses by class. The server may count more than clients saw, where a connection broke
//! before the answer arrived, and never less.

use super::{Checker, End, Seen, Verdict};

#[derive(Default)]
pub(super) struct Counters {
    by_class: [u64; 5],
    unanswered: u64,
}

impl Checker for Counters {
    fn name(&self) -> &'static str {
        "counters"
    }

    fn see(&mut self, seen: &Seen) -> Verdict {
        match seen {
            Seen::Answered { status, .. } => self.by_class[usize::from(status / 100 - 1)] += 1,
            Seen::Unanswered { .. } => self.unanswered += 1,
            _ => {}
        }
        Ok(())
    }

    fn at_end(&mut self, end: &End) -> Verdict {
        let report = &end.report;
        let gone = report.connections_closed + report.connections_cut;
        if report.connections_accepted != gone {
            return Err(format!(
                "{} connections accepted, {gone} gone",
                report.connections_accepted
            ));
        }
        if report.connections_accepted > end.connects {
            return Err(format!(
                "{} connections accepted, {} clients connected",
                report.connections_accepted, end.connects
            ));
        }
        let seen: u64 = self.by_class.iter().sum();
        let classes = self.by_class.iter().zip(&report.statuses);
        let is_less = classes.clone().any(|(seen, counted)| counted < seen);
        if is_less || report.answered > seen + self.unanswered + report.refused {
            return Err(format!(
                "clients saw {:?} by class and {} times nothing, the server counted {:?} and \
                 refused {}",
                self.by_class, self.unanswered, report.statuses, report.refused
            ));
        }
        Ok(())
    }
}
