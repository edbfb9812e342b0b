//! Scenarios of the bare state machine: one event on a state, or events in order.

use ringcat_protocol::async_state_machine::{
    AsyncState, Effects, Event, Flag, Outcome, Side, Word, transition,
};
use serde_json::Value;

use crate::grammar::{Fault, Fields, list, text};

/// What a machine is to do.
pub(crate) struct Machine {
    state: AsyncState,
    /// Names and values of the questions about the state.
    flags: Vec<(String, bool)>,
    transitions: Vec<Transition>,
    sequences: Vec<Sequence>,
}

struct Transition {
    event: Event,
    already_processed: bool,
    /// None: illegal.
    to: Option<AsyncState>,
    /// `LONG`, `ASYNC_END` or `ERROR_HANDLING`; or, as text, what the operation answers.
    returns: Option<Value>,
    fires_on_complete: bool,
    wake: Option<bool>,
    fire_on_timeout: Option<bool>,
    post_error_event: Option<bool>,
    in_progress: i64,
    generation: i64,
    clears_listeners: bool,
    submits: bool,
}

struct Sequence {
    events: Vec<Event>,
    state: AsyncState,
    in_progress: Option<i64>,
    generation: Option<i64>,
}

fn state(name: &str) -> Result<AsyncState, Fault> {
    let state = AsyncState::ALL.into_iter().find(|state| state.name() == name);
    state.ok_or_else(|| format!("unknown state {name:?}"))
}

fn side(name: Option<&str>) -> Result<Side, Fault> {
    match name {
        Some("request") | None => Ok(Side::Request),
        Some("other") => Ok(Side::Other),
        Some(name) => Err(format!("unknown side {name:?}")),
    }
}

fn event(name: &str, by: Option<&str>, drained: bool, io_allowed: bool) -> Result<Event, Fault> {
    Ok(match name {
        "async_start" => Event::AsyncStart,
        "post_process" => Event::PostProcess { drained, io_allowed },
        "complete" => Event::Complete(side(by)?),
        "dispatch" => Event::Dispatch(side(by)?),
        "dispatched" => Event::Dispatched,
        "timeout" => Event::Timeout,
        "error" => Event::Error(side(by)?),
        "operation" => Event::Operation,
        "run" => Event::Run,
        "recycle" => Event::Recycle,
        other => return Err(format!("unknown event {other:?}")),
    })
}

impl Machine {
    pub(crate) fn parse(setup: Value, expect: Value) -> Result<Self, Fault> {
        let mut setup = Fields::of("setup", setup)?;
        let state = state(&setup.text("state")?)?;
        setup.finish()?;
        let mut expect = Fields::of("expect", expect)?;
        let flags = expect.members("flags")?.into_iter().map(|(name, value)| {
            let value = value.as_bool().ok_or_else(|| format!("flags.{name}: {value}"))?;
            match &*name {
                "async" | "started" | "completing" | "dispatching" => Ok((name, value)),
                _ => Err(format!("unknown flag {name:?}")),
            }
        });
        let flags = flags.collect::<Result<_, Fault>>()?;
        let transitions = expect.list("transitions")?.into_iter().map(Transition::parse);
        let transitions = transitions.collect::<Result<_, _>>()?;
        let sequences = expect.list("sequences")?.into_iter().map(Sequence::parse);
        let sequences = sequences.collect::<Result<_, _>>()?;
        expect.finish()?;
        Ok(Self { state, flags, transitions, sequences })
    }

    /// What does not hold.
    pub(crate) fn check(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        for (name, expected) in &self.flags {
            let found = match &**name {
                "async" => self.state.is_async(),
                "started" => self.state.is_started(),
                "completing" => self.state.is_completing(),
                _ => self.state.is_dispatching(),
            };
            if found != *expected {
                faults.push(format!("{} in {}: {found}", name, self.state));
            }
        }
        faults.extend(self.transitions.iter().filter_map(|step| step.check(self.state).err()));
        faults.extend(self.sequences.iter().filter_map(|steps| steps.check(self.state).err()));
        faults
    }
}

impl Transition {
    fn parse(value: Value) -> Result<Self, Fault> {
        let mut fields = Fields::of("transition", value)?;
        let (name, by) = (fields.text("event")?, fields.opt_text("side")?);
        let (pending, is_forbidden) = (fields.flag("pending")?, fields.flag("io_forbidden")?);
        let event = event(&name, by.as_deref(), !pending, !is_forbidden)?;
        let to = fields.opt_text("to")?.map(|name| state(&name)).transpose()?;
        if fields.flag("illegal")? == to.is_some() {
            return Err("a transition leads to a state, or is illegal".to_owned());
        }
        let fires = fields.opt_text("fires")?;
        if fires.as_deref().is_some_and(|fires| fires != "onComplete") {
            return Err(format!("fires: {fires:?}"));
        }
        let mut opt_flag = |key: &str| fields.take(key).and_then(|value| value.as_bool());
        let wake = opt_flag("wake");
        let fire_on_timeout = opt_flag("fire_onTimeout");
        let post_error_event = opt_flag("post_error_event");
        let transition = Self {
            event,
            already_processed: fields.flag("already_processed")?,
            to,
            returns: fields.take("returns"),
            fires_on_complete: fires.is_some(),
            wake,
            fire_on_timeout,
            post_error_event,
            in_progress: fields.opt_int("in_progress")?.unwrap_or(0),
            generation: fields.opt_int("generation")?.unwrap_or(0),
            clears_listeners: fields.flag("clears_nb_listeners")?,
            submits: fields.flag("submits")?,
        };
        fields.ignore(&["divergence", "reference", "note"]);
        fields.finish()?;
        Ok(transition)
    }

    fn check(&self, from: AsyncState) -> Result<(), Fault> {
        let mut word = Word::NEW.with_state(from);
        if self.already_processed {
            word = word.with(Flag::ErrorMarked);
        }
        let place = format!("{from}, {:?}", self.event);
        let (to, effects) = match (transition(word, self.event), self.to) {
            (Err(_), None) => return Ok(()),
            (Err(_), Some(to)) => return Err(format!("{place}: illegal, not {to}")),
            (Ok((to, _)), None) => return Err(format!("{place}: {}, not illegal", to.state())),
            (Ok((to, effects)), Some(expected)) if to.state() == expected => (to, effects),
            (Ok((to, _)), Some(expected)) => {
                return Err(format!("{place}: {}, not {expected}", to.state()));
            }
        };
        let generation = i64::from(to.round()) - i64::from(word.round());
        let mut checks = vec![
            ("on_complete", effects.on_complete == self.fires_on_complete),
            ("in_progress", i64::from(effects.in_progress) == self.in_progress),
            ("generation", generation == self.generation),
            ("clears_listeners", self.clears_listeners == effects.clears_listeners),
            ("submits", effects.submits == self.submits),
        ];
        let optional = [
            ("wake", self.wake, effects.wake),
            ("fire_on_timeout", self.fire_on_timeout, effects.fire_on_timeout),
            ("post_error_event", self.post_error_event, effects.post_error_event),
        ];
        for (name, expected, found) in optional {
            checks.push((name, expected.is_none_or(|expected| expected == found)));
        }
        if let Some(returns) = &self.returns {
            checks.push(("returns", is_answer(returns, effects)));
        }
        match checks.iter().find(|(_, holds)| !holds) {
            Some((name, _)) => Err(format!("{place}: {name}: {effects:?}")),
            None => Ok(()),
        }
    }
}

fn is_answer(returns: &Value, effects: Effects) -> bool {
    match returns {
        Value::Bool(is_done) => *is_done != effects.refused,
        Value::String(name) => match &**name {
            "LONG" => effects.outcome == Some(Outcome::Long),
            "ASYNC_END" => effects.outcome == Some(Outcome::AsyncEnd),
            "ERROR_HANDLING" => effects.outcome == Some(Outcome::ErrorHandling),
            _ => false,
        },
        _ => false,
    }
}

impl Sequence {
    fn parse(value: Value) -> Result<Self, Fault> {
        let mut fields = Fields::of("sequence", value)?;
        let events = fields.list("events")?.into_iter().map(|step| {
            let step = list(step)?.into_iter().map(text).collect::<Result<Vec<_>, _>>()?;
            match &*step {
                [name] => event(name, None, true, true),
                [name, by] => event(name, Some(by), true, true),
                _ => Err(format!("no event: {step:?}")),
            }
        });
        let sequence = Self {
            events: events.collect::<Result<_, Fault>>()?,
            state: state(&fields.text("state")?)?,
            in_progress: fields.opt_int("in_progress")?,
            generation: fields.opt_int("generation")?,
        };
        fields.finish()?;
        Ok(sequence)
    }

    fn check(&self, from: AsyncState) -> Result<(), Fault> {
        let mut word = Word::NEW.with_state(from);
        let mut in_progress = 0;
        for event in &self.events {
            let (to, effects) = transition(word, *event)
                .map_err(|illegal| format!("{:?}: {illegal}", self.events))?;
            word = to;
            in_progress += i64::from(effects.in_progress);
        }
        let is_right = word.state() == self.state
            && self.in_progress.is_none_or(|expected| expected == in_progress)
            && self.generation.is_none_or(|expected| expected == i64::from(word.round()));
        match is_right {
            true => Ok(()),
            false => Err(format!("{:?} led to {word:?}, in progress {in_progress}", self.events)),
        }
    }
}
