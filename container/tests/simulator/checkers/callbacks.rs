//! No callback of a request runs while another of the same request does.

use super::{Checker, End, Seen, Verdict, entry};

#[derive(Default)]
pub(super) struct Callbacks {
    depth: Vec<u32>,
}

impl Checker for Callbacks {
    fn name(&self) -> &'static str {
        "callbacks"
    }

    fn see(&mut self, seen: &Seen) -> Verdict {
        match seen {
            Seen::CallbackBegan { number } => {
                let depth = entry(&mut self.depth, *number);
                *depth += 1;
                if *depth > 1 {
                    return Err(format!("two callbacks of request {number} run at a time"));
                }
            }
            Seen::CallbackEnded { number } => *entry(&mut self.depth, *number) -= 1,
            _ => {}
        }
        Ok(())
    }

    fn at_end(&mut self, _end: &End) -> Verdict {
        match self.depth.iter().position(|depth| *depth > 0) {
            Some(number) => Err(format!("a callback of request {number} never ended")),
            None => Ok(()),
        }
    }
}
