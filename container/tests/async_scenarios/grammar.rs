//! The closed grammar of scenarios as types. What is not in it is an error, never skipped: an
//! unknown key, op, state key or predicate makes its scenario fail.

use serde_json::{Map, Value};

/// Why a scenario is none, or could not be run.
pub(crate) type Fault = String;

/// An op with its checked arguments.
#[derive(Clone, Debug)]
pub(crate) struct Op {
    pub(crate) name: &'static str,
    pub(crate) args: Vec<Arg>,
}

/// An argument of an op.
#[derive(Clone, Debug)]
pub(crate) enum Arg {
    Text(String),
    Int(i64),
    Bool(bool),
    Null,
    Op(Box<Op>),
    Ops(Vec<Op>),
    /// What to do by kind of error.
    Table(Vec<(String, Vec<Op>)>),
    Request(HttpRequest),
}

impl Op {
    pub(crate) fn text(&self, index: usize) -> &str {
        match &self.args[index] {
            Arg::Text(text) => text,
            other => panic!("{}: no text: {other:?}", self.name),
        }
    }

    pub(crate) fn text_or(&self, index: usize, other: &'static str) -> &str {
        if self.args.len() > index { self.text(index) } else { other }
    }

    pub(crate) fn texts(&self) -> impl Iterator<Item = &str> {
        (0..self.args.len()).map(|index| self.text(index))
    }

    pub(crate) fn int(&self, index: usize) -> i64 {
        match &self.args[index] {
            Arg::Int(number) => *number,
            other => panic!("{}: no number: {other:?}", self.name),
        }
    }

    pub(crate) fn int_or(&self, index: usize, other: i64) -> i64 {
        if self.args.len() > index { self.int(index) } else { other }
    }

    pub(crate) fn ops(&self, index: usize) -> &[Op] {
        match self.args.get(index) {
            Some(Arg::Ops(ops)) => ops,
            _ => &[],
        }
    }

    pub(crate) fn op(&self, index: usize) -> &Op {
        match &self.args[index] {
            Arg::Op(op) => op,
            other => panic!("{}: no op: {other:?}", self.name),
        }
    }
}

/// A request of the client.
#[derive(Clone, Debug)]
pub(crate) struct HttpRequest {
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Option<String>,
    pub(crate) version: String,
}

/// Names of ops with the kinds of their arguments: `s` text, `m` a name, `i` a number, `t` a
/// timeout, `k` a state key, `c` a comparison, `v` a value, `o` ops, `p` one op, `K` a kind, `E`
/// ops by kind, `L` `R` `W` `N` the name of a listener, read listener, write listener, worker, `q`
/// a request. `?` may be absent, `*` comes once or more, `0` may be null.
pub(crate) type Table = &'static [(&'static str, &'static str)];

pub(crate) const APPLICATION_OPS: Table = &[
    ("start_async", "s?"),
    ("async_handle", ""),
    ("get_async_context", ""),
    ("get_request", ""),
    ("get_response", ""),
    ("get_output", ""),
    ("set_timeout", "t"),
    ("add_listener", "Ls?"),
    ("create_listener", "s"),
    ("complete", ""),
    ("dispatch", "s0?s?"),
    ("dispatch_value", "k"),
    ("start", "N"),
    ("spawn", "N"),
    ("join", "N"),
    ("keep", "m"),
    ("with", "mo"),
    ("remember", ""),
    ("keep_output", ""),
    ("write", "s"),
    ("write_n", "i"),
    ("write_values", "k*"),
    ("write_read", ""),
    ("flush", ""),
    ("close_output", ""),
    ("status", "i"),
    ("header", "ss"),
    ("content_type", "s"),
    ("content_length", "i"),
    ("send_error", "is?"),
    ("set_attr", "mv"),
    ("count", "mi?"),
    ("read", "i"),
    ("read_quiet", "i"),
    ("read_fully", "i"),
    ("read_all", ""),
    ("set_read_listener", "R0"),
    ("set_write_listener", "W0"),
    ("forward", "s"),
    ("include", "s"),
    ("chain", ""),
    ("chain_wrapped", ""),
    ("show", "k*"),
    ("note", "s"),
    ("throw", "K"),
    ("try", "ps?"),
    ("catch", "pE"),
    ("java", "p"),
    ("if", "kcvoo?"),
    ("while", "kcvo"),
    ("do_while", "kcvo"),
    ("repeat", "io"),
    ("break", ""),
    ("sleep", "i"),
    ("signal", "m"),
    ("await", "mi?i?"),
];

pub(crate) const CLIENT_OPS: Table = &[
    ("connect", "m"),
    ("request", "mq*"),
    ("send", "ms"),
    ("send_bytes", "msi"),
    ("recv", "ms?"),
    ("recv_some", "mi"),
    ("shutdown_write", "m"),
    ("close", "m"),
    ("reset", "m"),
    ("expect_close", "m"),
    ("expect_refused", ""),
    ("sleep", "i"),
    ("signal", "m"),
    ("await", "mi?i?"),
    ("note", "s"),
    ("spawn", "N"),
    ("repeat", "io"),
    ("if", "kcvoo?"),
    ("stop_context", "s"),
    ("stop_server", ""),
    ("pause_connector", ""),
];

const KINDS: &[&str] = &[
    "ok",
    "app",
    "io",
    "socket_timeout",
    "illegal_state",
    "illegal_argument",
    "unsupported",
    "null_argument",
    "servlet",
    "none",
];

const COMPARISONS: &[&str] = &["eq", "ne", "lt", "ge"];

const STATE_KEYS: &[&str] = &[
    "dispatcher",
    "started",
    "supported",
    "in_ready",
    "in_finished",
    "out_ready",
    "committed",
    "status",
    "timeout",
    "has_original",
    "method",
    "uri",
    "context_path",
    "app_path",
    "servlet_path",
    "path_info",
    "query",
    "mapping",
    "thread",
    "throwable",
    "supplied",
    "same_context",
    "same_request",
    "same_response",
    "peer_closed",
    "stat:requests",
    "error:status_code",
    "error:exception",
    "async:request_uri",
    "async:context_path",
    "async:servlet_path",
    "async:path_info",
    "async:query_string",
    "async:mapping",
];

const NAMED_STATE_KEYS: &[&str] = &["attr", "param", "header", "count", "trailer", "variant"];

/// Takes the keys of an object one by one; what is left at the end is unknown.
pub(crate) struct Fields {
    what: &'static str,
    map: Map<String, Value>,
}

impl Fields {
    pub(crate) fn of(what: &'static str, value: Value) -> Result<Self, Fault> {
        match value {
            Value::Object(map) => Ok(Self { what, map }),
            other => Err(format!("{what}: an object is wanted, not {other}")),
        }
    }

    pub(crate) fn take(&mut self, key: &str) -> Option<Value> {
        self.map.remove(key)
    }

    pub(crate) fn need(&mut self, key: &str) -> Result<Value, Fault> {
        self.take(key).ok_or_else(|| format!("{}: {key} is missing", self.what))
    }

    pub(crate) fn text(&mut self, key: &str) -> Result<String, Fault> {
        let what = self.what;
        text(self.need(key)?).map_err(|fault| format!("{what}.{key}: {fault}"))
    }

    pub(crate) fn opt_text(&mut self, key: &str) -> Result<Option<String>, Fault> {
        self.take(key).map(text).transpose()
    }

    pub(crate) fn opt_int(&mut self, key: &str) -> Result<Option<i64>, Fault> {
        let what = self.what;
        self.take(key)
            .map(|value| value.as_i64().ok_or_else(|| format!("{what}.{key}: no number: {value}")))
            .transpose()
    }

    pub(crate) fn flag(&mut self, key: &str) -> Result<bool, Fault> {
        let what = self.what;
        self.take(key).map_or(Ok(false), |value| {
            value.as_bool().ok_or_else(|| format!("{what}.{key}: neither true nor false: {value}"))
        })
    }

    pub(crate) fn list(&mut self, key: &str) -> Result<Vec<Value>, Fault> {
        self.take(key).map_or(Ok(Vec::new()), list)
    }

    pub(crate) fn texts(&mut self, key: &str) -> Result<Vec<String>, Fault> {
        self.list(key)?.into_iter().map(text).collect()
    }

    /// The members of an object, in the order of their names.
    pub(crate) fn members(&mut self, key: &str) -> Result<Vec<(String, Value)>, Fault> {
        match self.take(key) {
            None => Ok(Vec::new()),
            Some(Value::Object(map)) => Ok(map.into_iter().collect()),
            Some(other) => Err(format!("{}.{key}: an object is wanted, not {other}", self.what)),
        }
    }

    /// Whatever is for humans only.
    pub(crate) fn ignore(&mut self, keys: &[&str]) {
        for key in keys {
            self.map.remove(*key);
        }
    }

    pub(crate) fn finish(self) -> Result<(), Fault> {
        match self.map.keys().next() {
            Some(key) => Err(format!("{}: unknown key {key:?}", self.what)),
            None => Ok(()),
        }
    }
}

pub(crate) fn text(value: Value) -> Result<String, Fault> {
    match value {
        Value::String(text) => Ok(text),
        other => Err(format!("no text: {other}")),
    }
}

pub(crate) fn list(value: Value) -> Result<Vec<Value>, Fault> {
    match value {
        Value::Array(values) => Ok(values),
        other => Err(format!("no list: {other}")),
    }
}

/// What ops may name.
#[derive(Clone, Copy)]
pub(crate) struct Names<'a> {
    pub(crate) table: Table,
    pub(crate) is_filter: bool,
    pub(crate) listeners: &'a [String],
    pub(crate) read_listeners: &'a [String],
    pub(crate) write_listeners: &'a [String],
    pub(crate) workers: &'a [String],
}

impl Names<'_> {
    pub(crate) fn ops(&self, value: Value) -> Result<Vec<Op>, Fault> {
        list(value)?.into_iter().map(|value| self.op(value)).collect()
    }

    fn op(&self, value: Value) -> Result<Op, Fault> {
        let mut values = list(value)?.into_iter();
        let name = text(values.next().ok_or("an op without a name")?)?;
        let Some((name, kinds)) = self.table.iter().find(|(known, _)| *known == name) else {
            return Err(format!("unknown op {name:?}"));
        };
        if name.starts_with("chain") && !self.is_filter {
            return Err(format!("{name} outside of a filter"));
        }
        let fault = |why: Fault| format!("{name}: {why}");
        let mut args = Vec::new();
        let mut kinds = kinds.chars().peekable();
        while let Some(kind) = kinds.next() {
            let is_nullable = kinds.next_if_eq(&'0').is_some();
            let is_optional = kinds.next_if_eq(&'?').is_some();
            let is_repeated = kinds.next_if_eq(&'*').is_some();
            match values.next() {
                Some(Value::Null) if is_nullable => args.push(Arg::Null),
                Some(value) => args.push(self.arg(kind, value).map_err(fault)?),
                None if is_optional => {}
                None => return Err(fault("too few arguments".to_owned())),
            }
            if is_repeated {
                for value in values.by_ref() {
                    args.push(self.arg(kind, value).map_err(fault)?);
                }
            }
        }
        match values.next() {
            Some(value) => Err(fault(format!("one argument too many: {value}"))),
            None => Ok(Op { name, args }),
        }
    }

    fn arg(&self, kind: char, value: Value) -> Result<Arg, Fault> {
        let one_of = |known: &[String], value: Value| {
            let name = text(value)?;
            match known.contains(&name) {
                true => Ok(Arg::Text(name)),
                false => Err(format!("{name:?} is not set up")),
            }
        };
        match kind {
            's' | 'm' => Ok(Arg::Text(text(value)?)),
            'k' => Ok(Arg::Text(state_key(text(value)?)?)),
            'c' => Ok(Arg::Text(member(COMPARISONS, text(value)?)?)),
            'K' => Ok(Arg::Text(member(KINDS, text(value)?)?)),
            't' if value == "max" => Ok(Arg::Int(i64::MAX)),
            'i' | 't' => value.as_i64().map(Arg::Int).ok_or_else(|| format!("no number: {value}")),
            'v' => scalar(value),
            'o' => self.ops(value).map(Arg::Ops),
            'p' => self.op(value).map(Box::new).map(Arg::Op),
            'L' => one_of(self.listeners, value),
            'R' => one_of(self.read_listeners, value),
            'W' => one_of(self.write_listeners, value),
            'N' => one_of(self.workers, value),
            'E' => {
                let Value::Object(map) = value else { return Err(format!("no table: {value}")) };
                map.into_iter()
                    .map(|(kind, ops)| Ok((member(KINDS, kind)?, self.ops(ops)?)))
                    .collect::<Result<_, Fault>>()
                    .map(Arg::Table)
            }
            'q' => request(value).map(Arg::Request),
            other => panic!("the table knows no kind {other:?}"),
        }
    }
}

fn scalar(value: Value) -> Result<Arg, Fault> {
    match value {
        Value::Null => Ok(Arg::Null),
        Value::Bool(flag) => Ok(Arg::Bool(flag)),
        Value::String(text) => Ok(Arg::Text(text)),
        Value::Number(number) if number.is_i64() => Ok(Arg::Int(number.as_i64().unwrap_or(0))),
        other => Err(format!("no value: {other}")),
    }
}

fn member(known: &[&str], name: String) -> Result<String, Fault> {
    match known.contains(&&*name) {
        true => Ok(name),
        false => Err(format!("unknown name {name:?}")),
    }
}

fn state_key(key: String) -> Result<String, Fault> {
    let is_named = key
        .split_once(':')
        .is_some_and(|(head, tail)| NAMED_STATE_KEYS.contains(&head) && !tail.is_empty());
    match is_named || STATE_KEYS.contains(&&*key) {
        true => Ok(key),
        false => Err(format!("unknown state key {key:?}")),
    }
}

fn request(value: Value) -> Result<HttpRequest, Fault> {
    let mut fields = Fields::of("request", value)?;
    let headers = fields.list("headers")?.into_iter().map(|pair| {
        let mut pair = list(pair)?.into_iter();
        match (pair.next(), pair.next(), pair.next()) {
            (Some(name), Some(value), None) => Ok((text(name)?, text(value)?)),
            _ => Err("request: a header is a name and a value".to_owned()),
        }
    });
    let request = HttpRequest {
        headers: headers.collect::<Result<_, Fault>>()?,
        method: fields.text("method")?,
        target: fields.text("target")?,
        body: fields.opt_text("body")?,
        version: fields.opt_text("version")?.unwrap_or_else(|| "1.1".to_owned()),
    };
    fields.finish()?;
    Ok(request)
}
