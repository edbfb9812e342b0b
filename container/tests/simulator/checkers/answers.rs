//! Every request has exactly one answer, or a reason why not: the client gave up, the server was
//! cut, the application failed in the middle.

use super::{Checker, End, Seen, Verdict, entry};
use crate::run::run;

#[derive(Default)]
pub(super) struct Answers {
    requests: Vec<Request>,
}

#[derive(Clone, Default)]
struct Request {
    was_asked: bool,
    answers: u32,
    is_given_up: bool,
}

impl Checker for Answers {
    fn name(&self) -> &'static str {
        "answers"
    }

    fn see(&mut self, seen: &Seen) -> Verdict {
        match seen {
            Seen::Asked { number } => entry(&mut self.requests, *number).was_asked = true,
            Seen::Answered { number, .. } => {
                let request = entry(&mut self.requests, *number);
                request.answers += 1;
                if request.answers > 1 || request.is_given_up || !request.was_asked {
                    return Err(format!("request {number} is answered once too often"));
                }
            }
            Seen::Unanswered { number, why, is_excused } => {
                entry(&mut self.requests, *number).is_given_up = true;
                if !is_excused {
                    let record = run().record(*number);
                    return Err(format!("request {number} has no answer: {why}; {record:?}"));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn at_end(&mut self, _end: &End) -> Verdict {
        let is_open =
            |request: &Request| request.was_asked && request.answers == 0 && !request.is_given_up;
        match self.requests.iter().position(is_open) {
            Some(number) => Err(format!("nothing became of request {number}")),
            None => Ok(()),
        }
    }
}
