//! What a scenario expects, and whether it holds.

use std::{collections::BTreeMap, time::Duration};

use serde_json::Value;

use crate::{
    client::Answer,
    grammar::{Fault, Fields, list, text},
    journal::Pages,
};

/// What is to hold.
pub(crate) struct Expectation {
    pub(crate) responses: Vec<Response>,
    all_responses: Option<(usize, Status, Body)>,
    ignore: Vec<String>,
    states: Option<Vec<String>>,
    trace: Option<Trace>,
    exactly_once: Vec<String>,
    never: Vec<String>,
    counts: Vec<(String, usize)>,
    at_least: Vec<(String, usize)>,
    sums: Vec<(Vec<String>, usize)>,
    same_count: Vec<(String, String)>,
    counters: Vec<(String, i64)>,
    counter_difference: Vec<(String, String, i64)>,
    timing: Vec<Timing>,
    access_log_ms: Option<(i64, i64)>,
    log_warning: Vec<String>,
}

/// What is expected of one response.
pub(crate) struct Response {
    status: Status,
    body: Option<Body>,
    headers: Vec<(String, String)>,
    /// Whether the connection serves a further request, where that is asked.
    pub(crate) keeps_alive: Option<bool>,
}

/// The statuses that are right; none: the stream ended.
struct Status(Vec<Option<u16>>);

enum Body {
    Whole(String),
    Truncated(String),
    Length(usize),
    ErrorPage {
        status: u16,
        contains: Vec<String>,
        length: Option<usize>,
        ends_with: Option<String>,
    },
    Nothing,
    OneOf(Vec<Body>),
}

struct Trace {
    kind: TraceKind,
    entries: Vec<Vec<String>>,
    /// Each is one of some entries, whose place is free.
    free: Vec<Vec<String>>,
}

#[derive(PartialEq)]
enum TraceKind {
    Complete,
    Subsequences,
}

struct Timing {
    from: String,
    to: String,
    min: i64,
    max: i64,
}

fn int(value: &Value) -> Result<i64, Fault> {
    value.as_i64().ok_or_else(|| format!("no number: {value}"))
}

fn size(value: &Value) -> Result<usize, Fault> {
    usize::try_from(int(value)?).map_err(|error| error.to_string())
}

fn pair(value: Value) -> Result<(Value, Value), Fault> {
    let mut values = list(value)?.into_iter();
    match (values.next(), values.next(), values.next()) {
        (Some(first), Some(second), None) => Ok((first, second)),
        _ => Err("two values are wanted".to_owned()),
    }
}

fn each<T>(values: Vec<Value>, parse: impl Fn(Value) -> Result<T, Fault>) -> Result<Vec<T>, Fault> {
    values.into_iter().map(parse).collect()
}

fn counts(members: Vec<(String, Value)>) -> Result<Vec<(String, usize)>, Fault> {
    members.into_iter().map(|(name, value)| Ok((name, size(&value)?))).collect()
}

impl Expectation {
    pub(crate) fn parse(value: Value) -> Result<Self, Fault> {
        let mut fields = Fields::of("expect", value)?;
        let states = fields.take("states").map(|states| each(list(states)?, text)).transpose()?;
        let access_log_ms = fields.take("access_log_ms").map(|limits| {
            let (min, max) = pair(limits)?;
            Ok::<_, Fault>((int(&min)?, int(&max)?))
        });
        let expectation = Self {
            responses: each(fields.list("responses")?, Response::parse)?,
            all_responses: fields.take("all_responses").map(all_responses).transpose()?,
            ignore: fields.texts("ignore")?,
            states,
            trace: fields.take("trace").map(Trace::parse).transpose()?,
            exactly_once: fields.texts("exactly_once")?,
            never: fields.texts("never")?,
            counts: counts(fields.members("counts")?)?,
            at_least: counts(fields.members("at_least")?)?,
            sums: each(fields.list("sums")?, |value| {
                let (names, sum) = pair(value)?;
                Ok((each(list(names)?, text)?, size(&sum)?))
            })?,
            same_count: each(fields.list("same_count")?, |value| {
                let (first, second) = pair(value)?;
                Ok((text(first)?, text(second)?))
            })?,
            counters: fields
                .members("counters")?
                .into_iter()
                .map(|(name, value)| Ok((name, int(&value)?)))
                .collect::<Result<_, Fault>>()?,
            counter_difference: each(fields.list("counter_difference")?, |value| {
                match &*list(value)? {
                    [Value::String(first), Value::String(second), most] => {
                        Ok((first.clone(), second.clone(), int(most)?))
                    }
                    other => Err(format!("counter_difference: {other:?}")),
                }
            })?,
            timing: each(fields.list("timing")?, Timing::parse)?,
            access_log_ms: access_log_ms.transpose()?,
            log_warning: fields.texts("log_warning")?,
        };
        fields.finish()?;
        Ok(expectation)
    }

    /// What does not hold.
    pub(crate) fn judge(&self, pages: &Pages, answers: &[Answer]) -> Vec<Fault> {
        let mut faults = Vec::new();
        self.judge_answers(answers, &mut faults);
        let entries: Vec<&str> = pages.trace.iter().map(|(_, entry)| &**entry).collect();
        let is_kept = |entry: &&&str| !self.ignore.iter().any(|ignored| ignored == **entry);
        let kept: Vec<&str> = entries.iter().filter(is_kept).copied().collect();
        if let Some(expected) = &self.states {
            let found = states(&kept);
            if found != *expected {
                faults.push(format!("the states are {found:?}, not {expected:?}"));
            }
        }
        if let Some(trace) = &self.trace {
            faults.extend(trace.judge(&kept).err());
        }
        let mut found = BTreeMap::<&str, usize>::new();
        for entry in entries {
            *found.entry(entry).or_default() += 1;
        }
        let count = |name: &str| found.get(name).copied().unwrap_or(0);
        let once = self.exactly_once.iter().map(|name| (name, 1));
        let never = self.never.iter().map(|name| (name, 0));
        let counted = self.counts.iter().map(|(name, expected)| (name, *expected));
        for (name, expected) in once.chain(never).chain(counted) {
            if count(name) != expected {
                faults.push(format!("{name}: {} times, not {expected}", count(name)));
            }
        }
        for (name, least) in &self.at_least {
            if count(name) < *least {
                faults.push(format!("{name}: {} times, not at least {least}", count(name)));
            }
        }
        for (names, expected) in &self.sums {
            let sum: usize = names.iter().map(|name| count(name)).sum();
            if sum != *expected {
                faults.push(format!("{names:?} came {sum} times in all, not {expected}"));
            }
        }
        for (first, second) in &self.same_count {
            if count(first) != count(second) {
                faults.push(format!("{first} and {second} did not come as often"));
            }
        }
        let counter = |name: &String| pages.counters.get(name).copied().unwrap_or(0);
        for (name, expected) in &self.counters {
            if counter(name) != *expected {
                faults.push(format!("counter {name} is {}, not {expected}", counter(name)));
            }
        }
        for (first, second, most) in &self.counter_difference {
            let difference = counter(first).abs_diff(counter(second));
            if difference > most.unsigned_abs() {
                faults.push(format!("counters {first} and {second} differ by {difference}"));
            }
        }
        faults.extend(self.timing.iter().filter_map(|timing| timing.judge(pages).err()));
        if let Some((min, max)) = self.access_log_ms {
            let is_within = |elapsed: &&Duration| {
                (min..=max).contains(&i64::try_from(elapsed.as_millis()).unwrap_or(i64::MAX))
            };
            if let Some(elapsed) = pages.elapsed.iter().find(|elapsed| !is_within(elapsed)) {
                faults.push(format!("an access-log entry took {elapsed:?}"));
            }
        }
        let names_all = |warning: &&String| {
            let is_named = |name: &String| {
                warning.split(|c: char| !c.is_alphanumeric()).any(|word| word == name)
            };
            self.log_warning.iter().all(is_named)
        };
        if !self.log_warning.is_empty() && !pages.warnings.iter().any(|line| names_all(&line)) {
            faults.push(format!("no warning names {:?}: {:?}", self.log_warning, pages.warnings));
        }
        faults
    }

    fn judge_answers(&self, answers: &[Answer], faults: &mut Vec<Fault>) {
        if let Some((expected, status, body)) = &self.all_responses {
            let is_right =
                |answer: &&Answer| status.0.contains(&answer.status) && body.judge(answer).is_ok();
            let found = answers.iter().filter(is_right).count();
            if found != *expected {
                faults.push(format!("{found} responses are as expected, not {expected}"));
            }
            return;
        }
        if answers.len() < self.responses.len() {
            faults.push(format!("{} responses of {}", answers.len(), self.responses.len()));
        }
        for (number, (expected, answer)) in self.responses.iter().zip(answers).enumerate() {
            if let Err(fault) = expected.judge(answer) {
                faults.push(format!("response {}: {fault}", number + 1));
            }
        }
    }
}

fn all_responses(value: Value) -> Result<(usize, Status, Body), Fault> {
    let mut fields = Fields::of("all_responses", value)?;
    let count = size(&fields.need("count")?)?;
    let status = Status::parse(fields.need("status")?)?;
    let body = Body::parse(fields.need("body")?)?;
    fields.finish()?;
    Ok((count, status, body))
}

/// The first state of the first change, then the new state of each.
fn states(entries: &[&str]) -> Vec<String> {
    let changes = entries.iter().filter_map(|entry| entry.strip_prefix("state ")?.split_once('>'));
    let mut states = Vec::new();
    for (from, to) in changes {
        if states.is_empty() {
            states.push(from.to_owned());
        }
        states.push(to.to_owned());
    }
    states
}

impl Status {
    fn parse(value: Value) -> Result<Self, Fault> {
        let one = |value: Value| match value {
            Value::Null => Ok(None),
            value => u16::try_from(int(&value)?).map(Some).map_err(|error| error.to_string()),
        };
        match value {
            Value::Object(_) => {
                let mut fields = Fields::of("status", value)?;
                let statuses = each(list(fields.need("one_of")?)?, one)?;
                fields.finish()?;
                Ok(Self(statuses))
            }
            value => Ok(Self(vec![one(value)?])),
        }
    }
}

impl Response {
    fn parse(value: Value) -> Result<Self, Fault> {
        let mut fields = Fields::of("response", value)?;
        let keeps_alive = match fields.opt_text("connection")?.as_deref() {
            None => None,
            Some("keep-alive") => Some(true),
            Some("close") => Some(false),
            Some(other) => return Err(format!("connection: {other:?}")),
        };
        let headers = fields.members("headers")?.into_iter();
        let headers = headers.map(|(name, value)| Ok((name, text(value)?)));
        let response = Self {
            headers: headers.collect::<Result<_, Fault>>()?,
            status: fields.take("status").map_or(Ok(Status(vec![None])), Status::parse)?,
            body: fields.take("body").map(Body::parse).transpose()?,
            keeps_alive,
        };
        fields.finish()?;
        Ok(response)
    }

    fn judge(&self, answer: &Answer) -> Result<(), Fault> {
        if !self.status.0.contains(&answer.status) {
            return Err(format!("status {:?}, not {:?}", answer.status, self.status.0));
        }
        for (name, expected) in &self.headers {
            let found = answer.header(name);
            if found != Some(expected) {
                return Err(format!("{name}: {found:?}, not {expected:?}"));
            }
        }
        self.body.as_ref().map_or(Ok(()), |body| body.judge(answer))
    }
}

impl Body {
    fn parse(value: Value) -> Result<Self, Fault> {
        let mut fields = match value {
            Value::Null => return Ok(Self::Nothing),
            Value::String(text) => return Ok(Self::Whole(text)),
            value => Fields::of("body", value)?,
        };
        let one_of = fields.list("one_of")?;
        let truncated = fields.opt_text("truncated")?;
        let status = fields.opt_int("default_error_page")?;
        let contains = match fields.take("contains") {
            Some(Value::Array(texts)) => each(texts, text)?,
            Some(value) => vec![text(value)?],
            None => Vec::new(),
        };
        let length = fields.take("length").map(|value| size(&value)).transpose()?;
        let ends_with = fields.opt_text("ends_with")?;
        fields.finish()?;
        match (one_of.is_empty(), truncated, status, length) {
            (false, None, None, None) => Ok(Self::OneOf(each(one_of, Self::parse)?)),
            (true, Some(text), None, None) => Ok(Self::Truncated(text)),
            (true, None, Some(status), length) => {
                let status = u16::try_from(status).map_err(|error| error.to_string())?;
                Ok(Self::ErrorPage { status, contains, length, ends_with })
            }
            (true, None, None, Some(length)) => Ok(Self::Length(length)),
            _ => Err("body: no such form".to_owned()),
        }
    }

    fn judge(&self, answer: &Answer) -> Result<(), Fault> {
        let found = String::from_utf8_lossy(&answer.body);
        let shown: String = found.chars().take(120).collect();
        let (is_right, expected) = match self {
            Self::Nothing => (answer.status.is_none(), "none".to_owned()),
            Self::Whole(text) => (answer.is_whole && found == **text, format!("{text:?}")),
            Self::Truncated(text) => (!answer.is_whole && found == **text, format!("{text:?} cut")),
            Self::Length(length) => {
                (answer.is_whole && answer.body.len() == *length, format!("{length} bytes"))
            }
            Self::ErrorPage { status, contains, length, ends_with } => {
                let is_report = answer.is_whole
                    && found.to_ascii_lowercase().contains("<!doctype html")
                    && found.contains(&status.to_string());
                let is_right = is_report
                    && contains.iter().all(|part| found.contains(&**part))
                    && length.is_none_or(|length| answer.body.len() == length)
                    && ends_with.as_ref().is_none_or(|end| found.ends_with(&**end));
                (is_right, format!("the error report {status}"))
            }
            Self::OneOf(bodies) => {
                (bodies.iter().any(|body| body.judge(answer).is_ok()), "one of some".to_owned())
            }
        };
        let is_whole = answer.is_whole;
        match is_right {
            true => Ok(()),
            false => Err(format!("body {shown:?} (whole: {is_whole}), not {expected}")),
        }
    }
}

impl Trace {
    fn parse(value: Value) -> Result<Self, Fault> {
        let mut fields = Fields::of("trace", value)?;
        let name = fields.text("kind")?;
        let entries = fields.list("entries")?;
        let (kind, entries) = match &*name {
            "complete" => (TraceKind::Complete, vec![each(entries, text)?]),
            "subsequence" => (TraceKind::Subsequences, vec![each(entries, text)?]),
            "subsequences" => {
                let lists = each(entries, |value| each(list(value)?, text))?;
                (TraceKind::Subsequences, lists)
            }
            other => return Err(format!("trace: unknown kind {other:?}")),
        };
        let free = each(fields.list("free")?, |value| match value {
            Value::Array(names) => each(names, text),
            value => Ok(vec![text(value)?]),
        })?;
        fields.finish()?;
        Ok(Self { kind, entries, free })
    }

    fn judge(&self, found: &[&str]) -> Result<(), Fault> {
        let is_free = |entry: &str| self.free.iter().flatten().any(|free| free == entry);
        let in_order: Vec<&str> = found.iter().copied().filter(|entry| !is_free(entry)).collect();
        for free in &self.free {
            let listed = self.entries.iter().flatten().filter(|entry| free.contains(entry)).count();
            let expected = listed.max(1);
            let count = found.iter().filter(|entry| free.iter().any(|free| free == *entry)).count();
            if count != expected {
                return Err(format!("{free:?} came {count} times, not {expected}: {found:?}"));
            }
        }
        for entries in &self.entries {
            let entries: Vec<&str> =
                entries.iter().map(|entry| &**entry).filter(|entry| !is_free(entry)).collect();
            let holds = match self.kind {
                TraceKind::Complete => is_whole(&entries, &in_order),
                TraceKind::Subsequences => is_subsequence(&entries, &in_order),
            };
            if !holds {
                return Err(format!("the trace is\n  {found:?}, not\n  {entries:?}"));
            }
        }
        Ok(())
    }
}

/// Whether these are the entries; those that begin with `?` may be absent.
fn is_whole(expected: &[&str], found: &[&str]) -> bool {
    match (expected.split_first(), found.split_first()) {
        (None, found) => found.is_none(),
        (Some((first, rest)), Some((head, tail))) => match first.strip_prefix('?') {
            Some(first) => first == *head && is_whole(rest, tail) || is_whole(rest, found),
            None => first == head && is_whole(rest, tail),
        },
        (Some((first, rest)), None) => first.starts_with('?') && is_whole(rest, found),
    }
}

/// Whether the entries come in this order, others between them.
fn is_subsequence(expected: &[&str], found: &[&str]) -> bool {
    let Some((first, rest)) = expected.split_first() else { return true };
    let name = first.strip_prefix('?').unwrap_or(first);
    match found.iter().position(|entry| *entry == name) {
        Some(place) => {
            is_subsequence(rest, &found[place + 1..])
                || name != *first && is_subsequence(rest, found)
        }
        None => name != *first && is_subsequence(rest, found),
    }
}

impl Timing {
    fn parse(value: Value) -> Result<Self, Fault> {
        let mut fields = Fields::of("timing", value)?;
        let timing = Self {
            from: fields.text("from")?,
            to: fields.text("to")?,
            min: fields.opt_int("min")?.unwrap_or(0),
            max: fields.opt_int("max")?.unwrap_or(i64::MAX),
        };
        fields.finish()?;
        Ok(timing)
    }

    fn judge(&self, pages: &Pages) -> Result<(), Fault> {
        let Self { from, to, min, max } = self;
        let first = |name: &str| pages.first(name).ok_or_else(|| format!("{name} never came"));
        let (begun, ended) = (first(from)?, first(to)?);
        let millis = match ended.checked_duration_since(begun) {
            Some(took) => i64::try_from(took.as_millis()).unwrap_or(i64::MAX),
            None => -i64::try_from(begun.duration_since(ended).as_millis()).unwrap_or(i64::MAX),
        };
        match (*min..=*max).contains(&millis) {
            true => Ok(()),
            false => Err(format!("from {from} to {to}: {millis} ms, not {min} to {max}")),
        }
    }
}
