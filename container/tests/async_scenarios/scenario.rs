//! A scenario: what is set up, what the client does, what is expected.

use serde_json::Value;

use crate::{
    expectation::Expectation,
    grammar::{APPLICATION_OPS, CLIENT_OPS, Fault, Fields, Names, Op, list, text},
    machine::Machine,
};

/// What a scenario is about.
pub(crate) enum Kind {
    /// A server, a client, an expectation.
    Served { setup: Setup, client: Vec<Op>, expectation: Box<Expectation> },
    /// The bare state machine.
    Machine(Machine),
    /// Not for this project.
    JavaOnly,
}

/// A scenario.
pub(crate) struct Scenario {
    /// Value tables; the scenario runs once for each.
    pub(crate) variants: Vec<Vec<(String, String)>>,
    pub(crate) rounds: u32,
    pub(crate) kind: Kind,
}

/// What is set up.
#[derive(Default)]
pub(crate) struct Setup {
    pub(crate) connector: Connector,
    pub(crate) drain_limit_ms: Option<i64>,
    pub(crate) contexts: Vec<Context>,
    pub(crate) listeners: Vec<(String, Callbacks)>,
    pub(crate) read_listeners: Vec<(String, Callbacks)>,
    pub(crate) write_listeners: Vec<(String, Callbacks)>,
    pub(crate) workers: Vec<(String, Vec<Op>)>,
}

/// The ops of a listener's callbacks, by name.
pub(crate) type Callbacks = Vec<(String, Vec<Op>)>;

#[derive(Default)]
pub(crate) struct Connector {
    pub(crate) request_threads: Option<i64>,
    pub(crate) async_timeout_ms: Option<i64>,
    pub(crate) connection_timeout_ms: Option<i64>,
    pub(crate) keep_alive_timeout_ms: Option<i64>,
    pub(crate) end_on_peer_close: bool,
    pub(crate) allowed_trailers: Vec<String>,
}

#[derive(Default)]
pub(crate) struct Context {
    pub(crate) path: String,
    pub(crate) unload_delay_ms: Option<i64>,
    pub(crate) cross_context: bool,
    pub(crate) welcome: Vec<String>,
    pub(crate) error_pages: Vec<ErrorPage>,
    pub(crate) valves: Vec<Valve>,
    pub(crate) filters: Vec<Filter>,
    pub(crate) servlets: Vec<Servlet>,
}

pub(crate) struct ErrorPage {
    pub(crate) status: Option<u16>,
    pub(crate) is_for_app: bool,
    pub(crate) location: String,
}

pub(crate) struct Valve {
    pub(crate) name: String,
    pub(crate) is_async: bool,
    pub(crate) level: String,
}

pub(crate) struct Filter {
    pub(crate) name: String,
    pub(crate) is_async: bool,
    pub(crate) url: String,
    pub(crate) dispatch: Vec<String>,
    pub(crate) ops: Vec<Op>,
}

pub(crate) struct Servlet {
    pub(crate) name: String,
    pub(crate) patterns: Vec<String>,
    pub(crate) is_async: bool,
    pub(crate) is_blocking: bool,
    pub(crate) is_streaming: bool,
    pub(crate) service: Vec<Op>,
}

impl Scenario {
    /// The id of a scenario, for messages about one that cannot be parsed.
    pub(crate) fn id_of(value: &Value) -> String {
        value.get("id").and_then(Value::as_str).unwrap_or("a scenario without id").to_owned()
    }

    pub(crate) fn parse(value: Value) -> Result<Self, Fault> {
        let mut fields = Fields::of("scenario", value)?;
        fields.need("id")?;
        let group = fields.text("group")?;
        fields.need("title")?;
        fields.need("source")?;
        let checked = fields.text("checked")?;
        if !["run", "test", "article", "read", "required"].contains(&&*checked) {
            return Err(format!("checked is unknown: {checked:?}"));
        }
        if checked == "required" {
            fields.need("divergence")?;
        }
        fields.ignore(&["note", "divergence", "reference_observed"]);
        let variants = fields.list("variants")?.into_iter().map(variant);
        let variants = variants.collect::<Result<Vec<_>, Fault>>()?;
        let rounds = fields.opt_int("rounds")?.unwrap_or(1);
        let java_only = fields.opt_text("java_only")?;
        let (setup, expect) = (fields.need("setup")?, fields.need("expect")?);
        let kind = if group == "machine" {
            Kind::Machine(Machine::parse(setup, expect)?)
        } else {
            let setup = Setup::parse(setup)?;
            let workers = names(&setup.workers);
            let names = Names {
                table: CLIENT_OPS,
                is_filter: false,
                listeners: &[],
                read_listeners: &[],
                write_listeners: &[],
                workers: &workers,
            };
            let client = names.ops(fields.need("client")?).map_err(in_place("client"))?;
            let expectation = Box::new(Expectation::parse(expect)?);
            Kind::Served { setup, client, expectation }
        };
        fields.finish()?;
        let kind = java_only.map_or(kind, |_reason| Kind::JavaOnly);
        Ok(Self { variants, rounds: u32::try_from(rounds).unwrap_or(1), kind })
    }
}

fn variant(value: Value) -> Result<Vec<(String, String)>, Fault> {
    let Value::Object(map) = value else { return Err(format!("variants: no table: {value}")) };
    map.into_iter()
        .map(|(name, value)| match value {
            Value::String(text) => Ok((name, text)),
            Value::Number(number) => Ok((name, number.to_string())),
            Value::Bool(flag) => Ok((name, flag.to_string())),
            other => Err(format!("variants: no value: {other}")),
        })
        .collect()
}

fn names<T>(members: &[(String, T)]) -> Vec<String> {
    members.iter().map(|(name, _)| name.clone()).collect()
}

fn in_place(place: &str) -> impl Fn(Fault) -> Fault + use<> {
    let place = place.to_owned();
    move |fault| format!("{place}: {fault}")
}

impl Setup {
    fn parse(value: Value) -> Result<Self, Fault> {
        let mut fields = Fields::of("setup", value)?;
        let listeners = fields.members("listeners")?;
        let read_listeners = fields.members("read_listeners")?;
        let write_listeners = fields.members("write_listeners")?;
        let workers = fields.members("workers")?;
        let known = [names(&listeners), names(&read_listeners), names(&write_listeners)];
        let [known_listeners, known_read_listeners, known_write_listeners] = &known;
        let known_workers = names(&workers);
        let names = Names {
            table: APPLICATION_OPS,
            is_filter: false,
            listeners: known_listeners,
            read_listeners: known_read_listeners,
            write_listeners: known_write_listeners,
            workers: &known_workers,
        };
        let mut setup = Self {
            connector: Connector::parse(&mut fields)?,
            drain_limit_ms: None,
            contexts: Vec::new(),
            listeners: callbacks(
                names,
                listeners,
                &["on_timeout", "on_error", "on_complete", "on_start_async"],
            )?,
            read_listeners: callbacks(
                names,
                read_listeners,
                &["on_data_available", "on_all_data_read", "on_error"],
            )?,
            write_listeners: callbacks(names, write_listeners, &["on_write_possible", "on_error"])?,
            workers: workers
                .into_iter()
                .map(|(name, ops)| {
                    let ops = names.ops(ops).map_err(in_place(&format!("worker {name}")))?;
                    Ok((name, ops))
                })
                .collect::<Result<_, Fault>>()?,
        };
        if let Some(server) = fields.take("server") {
            let mut server = Fields::of("server", server)?;
            setup.drain_limit_ms = server.opt_int("drain_limit_ms")?;
            server.finish()?;
        }
        for context in fields.list("contexts")? {
            setup.contexts.push(Context::parse(names, context)?);
        }
        fields.finish()?;
        Ok(setup)
    }
}

fn callbacks(
    names: Names<'_>,
    members: Vec<(String, Value)>,
    known: &[&str],
) -> Result<Vec<(String, Callbacks)>, Fault> {
    let parse = |(name, value): (String, Value)| {
        let mut fields = Fields::of("listener", value)?;
        let mut callbacks = Callbacks::new();
        for callback in known {
            if let Some(ops) = fields.take(callback) {
                let place = in_place(&format!("{name}.{callback}"));
                callbacks.push(((*callback).to_owned(), names.ops(ops).map_err(place)?));
            }
        }
        fields.finish()?;
        Ok((name, callbacks))
    };
    members.into_iter().map(parse).collect()
}

impl Connector {
    fn parse(setup: &mut Fields) -> Result<Self, Fault> {
        let Some(connector) = setup.take("connector") else { return Ok(Self::default()) };
        let mut fields = Fields::of("connector", connector)?;
        let connector = Self {
            request_threads: fields.opt_int("request_threads")?,
            async_timeout_ms: fields.opt_int("async_timeout_ms")?,
            connection_timeout_ms: fields.opt_int("connection_timeout_ms")?,
            keep_alive_timeout_ms: fields.opt_int("keep_alive_timeout_ms")?,
            end_on_peer_close: fields.flag("end_on_peer_close")?,
            allowed_trailers: fields.texts("allowed_trailers")?,
        };
        fields.finish()?;
        Ok(connector)
    }
}

impl Context {
    fn parse(names: Names<'_>, value: Value) -> Result<Self, Fault> {
        let mut fields = Fields::of("context", value)?;
        let context = Self {
            path: fields.text("path")?,
            unload_delay_ms: fields.opt_int("unload_delay_ms")?,
            cross_context: fields.flag("cross_context")?,
            welcome: fields.texts("welcome")?,
            error_pages: each(fields.list("error_pages")?, error_page)?,
            valves: each(fields.list("valves")?, valve)?,
            filters: each(fields.list("filters")?, |value| filter(names, value))?,
            servlets: each(fields.list("servlets")?, |value| servlet(names, value))?,
        };
        fields.finish()?;
        Ok(context)
    }
}

fn each<T>(values: Vec<Value>, parse: impl Fn(Value) -> Result<T, Fault>) -> Result<Vec<T>, Fault> {
    values.into_iter().map(parse).collect()
}

fn error_page(value: Value) -> Result<ErrorPage, Fault> {
    let mut fields = Fields::of("error page", value)?;
    let is_for_app = match fields.opt_text("exception")?.as_deref() {
        None => false,
        Some("app") => true,
        Some(other) => return Err(format!("error page: unknown exception {other:?}")),
    };
    let status = fields.opt_int("status")?;
    let status = status.map(|status| u16::try_from(status).map_err(|error| error.to_string()));
    let (status, location) = (status.transpose()?, fields.text("location")?);
    fields.finish()?;
    Ok(ErrorPage { status, is_for_app, location })
}

fn valve(value: Value) -> Result<Valve, Fault> {
    let mut fields = Fields::of("valve", value)?;
    let (name, is_async) = (fields.text("name")?, fields.flag("async")?);
    let level = fields.text("level")?;
    fields.finish()?;
    match &*level {
        "engine" | "host" | "context" => Ok(Valve { name, is_async, level }),
        _ => Err(format!("valve: unknown level {level:?}")),
    }
}

fn filter(names: Names<'_>, value: Value) -> Result<Filter, Fault> {
    let mut fields = Fields::of("filter", value)?;
    let name = fields.text("name")?;
    let names = Names { is_filter: true, ..names };
    let ops = names.ops(fields.need("ops")?).map_err(in_place(&name))?;
    let mut dispatch = fields.texts("dispatch")?;
    if dispatch.is_empty() {
        dispatch.push("REQUEST".to_owned());
    }
    let filter =
        Filter { is_async: fields.flag("async")?, url: fields.text("url")?, name, dispatch, ops };
    fields.finish()?;
    Ok(filter)
}

fn servlet(names: Names<'_>, value: Value) -> Result<Servlet, Fault> {
    let mut fields = Fields::of("servlet", value)?;
    let name = fields.text("name")?;
    let service = names.ops(fields.need("service")?).map_err(in_place(&name))?;
    let servlet = Servlet {
        patterns: list(fields.need("patterns")?)?
            .into_iter()
            .map(text)
            .collect::<Result<_, _>>()?,
        is_async: fields.flag("async")?,
        is_blocking: fields.flag("blocking")?,
        is_streaming: fields.flag("streaming")?,
        name,
        service,
    };
    // It waits where it runs: on the owner, like any servlet that is not declared blocking.
    fields.flag("hold_owner")?;
    fields.finish()?;
    Ok(servlet)
}
