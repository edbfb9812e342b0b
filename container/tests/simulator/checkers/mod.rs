//! The invariants of a server, each owned by a checker: a type in a file of its own. A checker is
//! told of what the product says about itself (observations), of what applications and clients
//! saw, and of the end; it answers with what is wrong.
//!
//! | checker | invariant |
//! |---|---|
//! | [`answers`] | every request has exactly one answer, or a reason why not |
//! | [`order`] | pipelined requests are answered in their order |
//! | [`tags`] | no byte of one content is seen in another |
//! | [`states`] | every change of state is in the table |
//! | [`completions`] | `on_complete` and `on_all_data_read` come exactly once |
//! | [`callbacks`] | no callback runs while another of the same request does |
//! | [`timeouts`] | a timeout is never early, and at most a tick late of its core's clock |
//! | [`stale`] | a handle of a request that has ended never acts |
//! | [`endings`] | a round is ended by one call and no more |
//! | [`flushes`] | what a thread flushed arrives soon, and fixes the head |
//! | [`departures`] | a request learns within a second what its client did |
//! | [`promptness`] | what another thread decides is seen soon, not with the next timer |
//! | [`budget`] | a turn stays within its work budget, and gives every lease back |
//! | [`credit`] | a response has no more bytes under way than its credit |
//! | [`drain`] | a drain ends within its limit |
//! | [`emptiness`] | nothing is left of a core when it has ended |
//! | [`counters`] | what the server counts adds up with what clients saw |

mod answers;
mod budget;
mod callbacks;
mod completions;
mod counters;
mod credit;
mod departures;
mod drain;
mod emptiness;
mod endings;
mod flushes;
mod order;
mod promptness;
mod stale;
mod states;
mod tags;
mod timeouts;

use std::time::Duration;

use ringcat::ServerReport;
use ringcat_engine::{observe::Observation, sim::engine::CoreEnd};

use crate::run::Moment;

/// What applications and clients saw.
#[derive(Debug)]
pub(crate) enum Seen<'a> {
    /// A client put a request on its way.
    Asked { number: u64 },
    /// A callback of the application began.
    CallbackBegan { number: u64 },
    /// It ended.
    CallbackEnded { number: u64 },
    /// A listener was told of the end.
    Completed { number: u64, is_peer_closed: bool },
    /// A read listener was told that it has all.
    AllDataRead { number: u64 },
    /// A listener was told of a timeout, so long after the round's start; `own` leaves out what
    /// the run took away from its cores.
    TimedOut { number: u64, after: Duration, own: Duration, timeout: Duration },
    /// A call ended the present round of a request.
    EndDecided { number: u64, round: u32 },
    /// A call on a request that has ended; whether it said that it had an effect.
    StaleCall { number: u64, has_acted: bool, call: &'static str },
    /// A servlet took content of a request.
    Uploaded { number: u64, offset: usize, bytes: &'a [u8] },
    /// A client took content of an answer.
    Downloaded { number: u64, offset: usize, bytes: &'a [u8] },
    /// A thread flushed what it wrote so far; whether the head could still be changed then.
    Flushed { number: u64, end: usize, may_change_head: bool },
    /// A write of a thread came to an end, whichever.
    WriteEnded { number: u64, begun: Moment },
    /// A write was accepted; so much is under way now at most, and may be.
    Written { number: u64, under_way: usize, bound: usize },
    /// An answer is whole; `named` is the request that it says it answers.
    Answered { number: u64, named: Option<u64>, status: u16 },
    /// A client has no whole answer to a request.
    Unanswered { number: u64, why: &'a str, is_excused: bool },
}

/// How a run ended.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) cores: Vec<CoreEnd>,
    /// Exchanges that a core knew when it ended.
    pub(crate) exchanges: usize,
    pub(crate) report: ServerReport,
    /// From the drain limit to the end of the last core.
    pub(crate) drained_after_limit: Option<Duration>,
    pub(crate) drain_cut: Duration,
    pub(crate) is_cut: bool,
    /// Clients that connected.
    pub(crate) connects: u64,
}

pub(crate) use states::EVENTS;

/// What is wrong.
pub(crate) type Verdict = Result<(), String>;

/// Owns one invariant.
pub(crate) trait Checker {
    /// Its name in reports.
    fn name(&self) -> &'static str;

    /// What applications and clients saw.
    fn see(&mut self, _seen: &Seen) -> Verdict {
        Ok(())
    }

    /// What the product says about itself.
    fn observe(&mut self, _observation: &Observation) -> Verdict {
        Ok(())
    }

    /// The run is over.
    fn at_end(&mut self, _end: &End) -> Verdict {
        Ok(())
    }
}

/// All checkers of a run.
pub(crate) struct Checkers {
    seers: Vec<Box<dyn Checker>>,
    observers: Vec<Box<dyn Checker>>,
    states: states::States,
}

impl Default for Checkers {
    fn default() -> Self {
        Self {
            seers: vec![
                Box::<answers::Answers>::default(),
                Box::<order::Order>::default(),
                Box::<tags::Tags>::default(),
                Box::<completions::Completions>::default(),
                Box::<callbacks::Callbacks>::default(),
                Box::<stale::Stale>::default(),
                Box::<endings::Endings>::default(),
                Box::<flushes::Flushes>::default(),
                Box::<departures::Departures>::default(),
                Box::<promptness::Promptness>::default(),
                Box::<credit::Credit>::default(),
                Box::<drain::Drain>::default(),
                Box::<emptiness::Emptiness>::default(),
                Box::<counters::Counters>::default(),
            ],
            observers: vec![Box::<timeouts::Timeouts>::default(), Box::<budget::Budget>::default()],
            states: states::States::default(),
        }
    }
}

impl Checkers {
    pub(crate) fn see(&mut self, seen: &Seen) -> Verdict {
        for checker in self.seers.iter_mut().chain(&mut self.observers) {
            checker.see(seen).map_err(|what| format!("{}: {what}", checker.name()))?;
        }
        Ok(())
    }

    pub(crate) fn observe(&mut self, observation: &Observation) -> Verdict {
        self.states.observe(observation).map_err(|what| format!("states: {what}"))?;
        for checker in &mut self.observers {
            checker.observe(observation).map_err(|what| format!("{}: {what}", checker.name()))?;
        }
        Ok(())
    }

    pub(crate) fn at_end(&mut self, end: &End) -> Verdict {
        for checker in self.seers.iter_mut().chain(&mut self.observers) {
            checker.at_end(end).map_err(|what| format!("{}: {what}", checker.name()))?;
        }
        Ok(())
    }

    pub(crate) fn cells(&self) -> Vec<u64> {
        self.states.cells()
    }
}

/// Grows `list` so that it has an entry for `number`.
fn entry<T: Default + Clone>(list: &mut Vec<T>, number: u64) -> &mut T {
    let index = number as usize;
    if list.len() <= index {
        list.resize(index + 1, T::default());
    }
    &mut list[index]
}
