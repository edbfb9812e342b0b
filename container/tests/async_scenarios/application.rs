//! Runs the ops of an application: in servlets, filters, listeners and workers.

use std::{
    fmt,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use ringcat::{
    AsyncContext, AsyncHandle, AsyncResponse, Error, ErrorKind, FilterChain, Request,
    RequestWrapper, Response, Result,
};

use crate::{
    callbacks::{ScenarioListener, ScenarioReadListener, ScenarioWriteListener},
    grammar::{Arg, Fault, Op},
    journal::Pages,
    run::{Run, lock},
    state,
};

/// The attribute with the bytes that a request's application has read so far.
pub(crate) const READ_BYTES: &str = "scenario.read_bytes";

/// The application's own error.
#[derive(Debug)]
pub(crate) struct AppError;

impl fmt::Display for AppError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the application's own error")
    }
}

impl std::error::Error for AppError {}

/// What ends a list of ops early.
pub(crate) enum Stop {
    Break,
    Thrown(Error),
    /// The op cannot be run: the scenario has failed.
    Fault(Fault),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Thrown(error)
    }
}

type Done = std::result::Result<(), Stop>;

/// What the ops of a callback act on.
pub(crate) struct Scope<'a> {
    pub(crate) run: Arc<Run>,
    pub(crate) request: Option<&'a mut Request>,
    pub(crate) response: Option<&'a mut Response>,
    pub(crate) context: Option<AsyncContext>,
    handle: Option<AsyncHandle>,
    output: Option<AsyncResponse>,
    chain: Option<FilterChain<'a>>,
    /// Of a listener's event.
    pub(crate) event: Option<EventFacts>,
}

/// What an event says of itself.
#[derive(Clone)]
pub(crate) struct EventFacts {
    pub(crate) is_supplied: bool,
    pub(crate) error: Option<&'static str>,
}

/// Shows every header as `wrapped`.
struct WrappedHeaders;

impl RequestWrapper for WrappedHeaders {
    fn header(&self, _name: &str, _value: Option<&str>) -> Option<String> {
        Some("wrapped".to_owned())
    }
}

/// Parameters get a leading `W`.
pub(crate) struct WrappedParameters;

impl RequestWrapper for WrappedParameters {
    fn parameter(&self, _name: &str, value: Option<&str>) -> Option<String> {
        value.map(|value| format!("W{value}"))
    }
}

/// The name that traces give a kind of error.
pub(crate) fn kind_of(error: &Error) -> &'static str {
    match error.kind() {
        ErrorKind::App | ErrorKind::Panic => "app",
        ErrorKind::Io if error.is_timeout() => "socket_timeout",
        ErrorKind::Io | ErrorKind::ProtocolViolation => "io",
        ErrorKind::IllegalState => "illegal_state",
        ErrorKind::IllegalArgument => "illegal_argument",
        ErrorKind::Unsupported => "unsupported",
        ErrorKind::Servlet => "servlet",
        _ => "other",
    }
}

/// Runs the ops of a callback with request and response.
pub(crate) fn run_callback(
    run: &Arc<Run>,
    ops: &[Op],
    req: &mut Request,
    res: &mut Response,
) -> Result<()> {
    let context = req.async_context().ok();
    let scope = Scope { request: Some(req), response: Some(res), ..Scope::new(run, context) };
    scope.run_to_end(ops)
}

/// Runs the ops of a filter.
pub(crate) fn run_filter(
    run: &Arc<Run>,
    ops: &[Op],
    req: &mut Request,
    res: &mut Response,
    chain: FilterChain<'_>,
) -> Result<()> {
    let context = req.async_context().ok();
    let scope = Scope {
        request: Some(req),
        response: Some(res),
        chain: Some(chain),
        ..Scope::new(run, context)
    };
    scope.run_to_end(ops)
}

/// Runs a worker that the client started.
pub(crate) fn spawn_for_client(run: &Arc<Run>, worker: &str) {
    Scope::new(run, None).spawn(worker);
}

impl<'a> Scope<'a> {
    pub(crate) fn new(run: &Arc<Run>, context: Option<AsyncContext>) -> Self {
        Self {
            run: Arc::clone(run),
            request: None,
            response: None,
            context,
            handle: None,
            output: None,
            chain: None,
            event: None,
        }
    }

    /// What was thrown and not caught comes back; what could not be run makes the scenario fail.
    pub(crate) fn run_to_end(mut self, ops: &[Op]) -> Result<()> {
        match self.ops(ops) {
            Ok(()) | Err(Stop::Break) => Ok(()),
            Err(Stop::Thrown(error)) => Err(error),
            Err(Stop::Fault(fault)) => {
                self.run.journal.fault(fault);
                Ok(())
            }
        }
    }

    fn ops(&mut self, ops: &[Op]) -> Done {
        ops.iter().try_for_each(|op| self.op(op))
    }

    pub(crate) fn need_context(&self) -> Result<&AsyncContext> {
        self.context.as_ref().ok_or_else(|| Error::illegal_state("no round was started here"))
    }

    fn need_request(&mut self) -> std::result::Result<&mut Request, Stop> {
        let request = self.request.as_deref_mut();
        request.ok_or_else(|| Stop::Fault("the op needs a callback of the request".to_owned()))
    }

    fn op(&mut self, op: &Op) -> Done {
        let run = Arc::clone(&self.run);
        match op.name {
            "start_async" => self.start_async(op.text_or(0, ""))?,
            "async_handle" => self.handle = Some(self.need_request()?.async_handle()?),
            "get_async_context" => self.context = Some(self.need_request()?.async_context()?),
            "get_request" => drop(self.need_context()?.request()?),
            "get_response" => drop(self.need_context()?.response()?),
            "get_output" => drop(self.need_context()?.response()?),
            "set_timeout" => {
                let timeout = match op.int(0) {
                    i64::MAX => Duration::MAX,
                    millis => Duration::from_millis(u64::try_from(millis).unwrap_or(0)),
                };
                self.need_context()?.set_timeout(timeout)?;
            }
            "add_listener" => {
                let listener = ScenarioListener::new(&run, op.text(0));
                let context = self.need_context()?;
                match op.text_or(1, "") {
                    "given" => {
                        context.add_listener_with(listener, &[Arc::new(WrappedParameters)])?
                    }
                    "" => context.add_listener(listener)?,
                    other => return Err(Stop::Fault(format!("add_listener: {other:?}"))),
                }
            }
            "complete" => self.need_context()?.complete()?,
            "dispatch" => self.dispatch(op)?,
            "dispatch_value" => {
                let path = state::value(self, op.text(0))?.unwrap_or_default();
                self.need_context()?.dispatch_to(&path)?;
            }
            "start" => self.start(op.text(0))?,
            "spawn" => self.spawn(op.text(0)),
            "join" => {
                let threads = lock(&run.threads).remove(op.text(0)).unwrap_or_default();
                if threads.into_iter().any(|thread| thread.join().is_err()) {
                    return Err(Stop::Fault(format!("worker {} panicked", op.text(0))));
                }
            }
            "keep" => {
                let context = self.need_context()?.clone();
                lock(&run.kept).entry(op.text(0).to_owned()).or_default().push(context);
            }
            "with" => {
                let kept = lock(&run.kept).get(op.text(0)).cloned().unwrap_or_default();
                for context in kept {
                    Scope::new(&run, Some(context)).ops(op.ops(1))?;
                }
            }
            "remember" => *lock(&run.remembered) = self.context.clone(),
            "keep_output" => self.output = Some(self.need_context()?.response()?),
            "set_read_listener" => {
                if matches!(op.args[0], Arg::Null) {
                    return Err(Stop::Fault("there is no listener null".to_owned()));
                }
                let listener = ScenarioReadListener::new(&run, op.text(0));
                match self.request.as_deref_mut() {
                    Some(request) => request.set_read_listener(listener)?,
                    None => self.need_context()?.request()?.set_read_listener(listener)?,
                }
            }
            "set_write_listener" => {
                if matches!(op.args[0], Arg::Null) {
                    return Err(Stop::Fault("there is no listener null".to_owned()));
                }
                let listener = ScenarioWriteListener::new(&run, op.text(0));
                match self.response.as_deref_mut() {
                    Some(response) => response.set_write_listener(listener)?,
                    None => self.need_context()?.response()?.set_write_listener(listener)?,
                }
            }
            "set_attr" => self.set_attribute(op)?,
            "count" => run.journal.add(op.text(0), op.int_or(1, 1)),
            "read" | "read_quiet" | "read_fully" | "read_all" => self.read(op)?,
            "forward" => self.nested(op, ringcat::RequestDispatcher::forward)?,
            "include" => self.nested(op, ringcat::RequestDispatcher::include)?,
            "chain" | "chain_wrapped" => self.chain(op.name == "chain_wrapped")?,
            "show" => {
                let mut shown = Vec::new();
                for key in op.texts() {
                    let value = state::value(self, key)?;
                    shown.push(format!("{key}={}", value.as_deref().unwrap_or("null")));
                }
                run.journal.note(shown.join(" "));
            }
            "note" => run.journal.note(op.text(0)),
            "throw" => return Err(Stop::Thrown(thrown(op.text(0))?)),
            "sleep" => thread::sleep(Duration::from_millis(op.int(0).unsigned_abs())),
            "signal" => run.journal.signal(op.text(0)),
            "await" => {
                let limit = Duration::from_millis(op.int_or(2, 5000).unsigned_abs());
                run.journal.await_entry(op.text(0), op.int_or(1, 1), limit);
            }
            "try" | "catch" | "java" | "if" | "while" | "do_while" | "repeat" | "break" => {
                return self.control(op);
            }
            _ => return self.write(op),
        }
        Ok(())
    }

    /// Ops that run others.
    fn control(&mut self, op: &Op) -> Done {
        match op.name {
            "try" => {
                let tried = op.op(0);
                let label = op.args.get(1).map_or(tried.name, |_| op.text(1)).to_owned();
                let kind = match self.op(tried) {
                    Ok(()) => "ok",
                    Err(Stop::Thrown(error)) => kind_of(&error),
                    Err(other) => return Err(other),
                };
                self.run.journal.note(format!("{label} -> {kind}"));
                Ok(())
            }
            "catch" => match self.op(op.op(0)) {
                Err(Stop::Thrown(error)) => {
                    let Arg::Table(table) = &op.args[1] else { return Err(Stop::Thrown(error)) };
                    let kind = kind_of(&error);
                    match table.iter().find(|(own, _)| own == kind) {
                        Some((_, ops)) => self.ops(ops),
                        None => Err(Stop::Thrown(error)),
                    }
                }
                other => other,
            },
            // Where the language has no such call.
            "java" => Ok(()),
            "if" => {
                let branch = if self.holds(op)? { 3 } else { 4 };
                self.ops(op.ops(branch))
            }
            "while" => {
                while self.holds(op)? {
                    if let Some(end) = self.round(op.ops(3)) {
                        return end;
                    }
                }
                Ok(())
            }
            "do_while" => loop {
                if let Some(end) = self.round(op.ops(3)) {
                    return end;
                }
                if !self.holds(op)? {
                    return Ok(());
                }
            },
            "repeat" => {
                for _ in 0..op.int(0) {
                    if let Some(end) = self.round(op.ops(1)) {
                        return end;
                    }
                }
                Ok(())
            }
            _ => Err(Stop::Break),
        }
    }

    /// One round of a loop; some: the loop ends so.
    fn round(&mut self, ops: &[Op]) -> Option<Done> {
        match self.ops(ops) {
            Ok(()) => None,
            Err(Stop::Break) => Some(Ok(())),
            other => Some(other),
        }
    }

    fn holds(&mut self, op: &Op) -> std::result::Result<bool, Stop> {
        let value = state::value(self, op.text(0))?;
        compare(value, op.text(1), &op.args[2]).map_err(Stop::Fault)
    }

    fn start_async(&mut self, form: &str) -> Done {
        let context = match (self.request.as_deref_mut(), &self.handle, form) {
            (Some(request), _, "") => request.start_async()?,
            (Some(request), _, "args") => request.start_async_with(&[])?,
            (Some(request), _, "wrapped") => {
                request.start_async_with(&[Arc::new(WrappedParameters)])?
            }
            (None, Some(handle), "") => handle.start_async()?,
            (None, None, "") => {
                return Err(Error::illegal_state("a thread needs a handle to start async").into());
            }
            (_, _, form) => return Err(Stop::Fault(format!("start_async: {form:?}"))),
        };
        self.context = Some(context);
        Ok(())
    }

    fn dispatch(&mut self, op: &Op) -> Done {
        let context = self.need_context()?;
        match &*op.args {
            [] => context.dispatch()?,
            [Arg::Text(path)] => context.dispatch_to(path)?,
            [Arg::Text(path), Arg::Text(target)] => {
                // The context first, as `dispatch(ServletContext, String)` has it.
                let is_context = self.run.setup.contexts.iter().any(|own| own.path == *target);
                match is_context {
                    true => context.dispatch_in(target, path)?,
                    false => context.dispatch_in(path, target)?,
                }
            }
            _ => return Err(Stop::Fault("there is no path null".to_owned())),
        }
        Ok(())
    }

    fn nested(
        &mut self,
        op: &Op,
        go: fn(&ringcat::RequestDispatcher, &mut Request, &mut Response) -> Result<()>,
    ) -> Done {
        match (self.request.as_deref_mut(), self.response.as_deref_mut()) {
            (Some(request), Some(response)) => {
                let dispatcher = request.request_dispatcher(op.text(0))?;
                go(&dispatcher, request, response)?;
                self.context = self.context.take().or_else(|| request.async_context().ok());
                Ok(())
            }
            _ => Err(Stop::Fault("forward and include need a callback".to_owned())),
        }
    }

    fn chain(&mut self, is_wrapped: bool) -> Done {
        let parts = (self.chain.take(), self.request.as_deref_mut(), self.response.as_deref_mut());
        match parts {
            (Some(chain), Some(request), Some(response)) if is_wrapped => {
                chain.next_wrapped(Arc::new(WrappedHeaders), request, response)?;
            }
            (Some(chain), Some(request), Some(response)) => chain.next(request, response)?,
            _ => return Err(Stop::Fault("the chain was called already".to_owned())),
        }
        Ok(())
    }

    fn for_worker(&self, name: &str) -> Worker {
        self.run.journal.change(|pages| pages.workers += 1);
        Worker {
            ended: Ended(Arc::clone(&self.run)),
            name: name.to_owned(),
            context: self.context.clone(),
            handle: self.handle.clone(),
            output: self.output.clone(),
        }
    }

    fn spawn(&self, worker: &str) {
        let work = self.for_worker(worker);
        let thread = thread::spawn(move || {
            // Nobody hears of what a thread of its own fails with.
            drop(work.run());
        });
        lock(&self.run.threads).entry(worker.to_owned()).or_default().push(thread);
    }

    fn start(&self, worker: &str) -> Done {
        let work = self.for_worker(worker);
        Ok(self.need_context()?.start(move || work.run())?)
    }

    fn set_attribute(&mut self, op: &Op) -> Done {
        let name = op.text(0);
        match (&op.args[1], self.request.as_deref_mut()) {
            (Arg::Bool(value), Some(request)) => request.set_attribute(name, *value),
            (Arg::Int(value), Some(request)) => request.set_attribute(name, *value),
            (Arg::Text(value), Some(request)) => request.set_attribute(name, value.clone()),
            (Arg::Bool(value), None) => self.need_context()?.set_attribute(name, *value)?,
            (Arg::Int(value), None) => self.need_context()?.set_attribute(name, *value)?,
            (Arg::Text(value), None) => self.need_context()?.set_attribute(name, value.clone())?,
            (other, _) => return Err(Stop::Fault(format!("set_attr: {other:?}"))),
        }
        Ok(())
    }

    fn with_read_bytes<R>(&self, f: impl FnOnce(&mut Vec<u8>) -> R) -> Option<R> {
        let bytes = self.read_bytes()?;
        bytes.downcast_ref::<Mutex<Vec<u8>>>().map(|bytes| f(&mut lock(bytes)))
    }

    fn read_bytes(&self) -> Option<ringcat::request::Attribute> {
        match (&self.request, &self.context) {
            (Some(request), _) => request.attribute(READ_BYTES),
            (None, Some(context)) => context.attribute(READ_BYTES),
            (None, None) => None,
        }
    }

    fn read_some(&mut self, buffer: &mut [u8]) -> Result<usize> {
        match self.request.as_deref_mut() {
            Some(request) => request.read(buffer),
            None => self.need_context()?.request()?.read(buffer),
        }
    }

    fn read(&mut self, op: &Op) -> Done {
        if op.name == "read_all" {
            let mut piece = [0; 8192];
            loop {
                match self.read_some(&mut piece)? {
                    0 => return Ok(()),
                    count => {
                        self.with_read_bytes(|bytes| bytes.extend_from_slice(&piece[..count]));
                    }
                }
            }
        }
        // Locked meanwhile: once the last byte is read, the owner may call who writes them all.
        let kept = self.read_bytes();
        let kept = kept.as_deref().and_then(|kept| kept.downcast_ref::<Mutex<Vec<u8>>>());
        let mut kept = kept.map(lock);
        let mut buffer = vec![0; usize::try_from(op.int(0)).unwrap_or(0)];
        let mut count = self.read_some(&mut buffer)?;
        while op.name == "read_fully" && count > 0 && count < buffer.len() {
            match self.read_some(&mut buffer[count..])? {
                0 => break,
                more => count += more,
            }
        }
        let is_end = count == 0 && !buffer.is_empty();
        if op.name != "read_quiet" {
            let bytes = &buffer[..count];
            let text = String::from_utf8_lossy(bytes);
            let shown = if is_end { -1 } else { i64::try_from(count).unwrap_or(i64::MAX) };
            let text = if (1..=64).contains(&count) { format!(" [{text}]") } else { String::new() };
            self.run.journal.note(format!("read={shown}{text}"));
            if let Some(kept) = &mut kept {
                kept.extend_from_slice(bytes);
            }
        }
        if is_end && op.name != "read_fully" {
            return Err(Stop::Break);
        }
        self.run.journal.add("read", i64::try_from(count).unwrap_or(i64::MAX));
        Ok(())
    }

    /// Ops on the response.
    fn write(&mut self, op: &Op) -> Done {
        let content = match op.name {
            "write" => Some(op.text(0).as_bytes().to_vec()),
            "write_n" => Some(vec![b'x'; usize::try_from(op.int(0)).unwrap_or(0)]),
            "write_values" => {
                let mut values = Vec::new();
                for key in op.texts() {
                    values.push(state::value(self, key)?.unwrap_or_else(|| "null".to_owned()));
                }
                Some(values.join("|").into_bytes())
            }
            "write_read" => Some(self.with_read_bytes(|bytes| bytes.clone()).unwrap_or_default()),
            _ => None,
        };
        if let Some(response) = self.response.as_deref_mut().filter(|_| self.output.is_none()) {
            match (op.name, content) {
                (_, Some(content)) => response.write(content)?,
                ("flush", _) => response.flush()?,
                ("close_output", _) => response.close()?,
                ("status", _) => response.set_status(status(op)?),
                ("header", _) => response.set_header(op.text(0), op.text(1))?,
                ("content_type", _) => response.set_content_type(op.text(0)),
                ("content_length", _) => response.set_content_length(op.int(0).unsigned_abs()),
                ("send_error", _) => response.send_error(status(op)?, message(op))?,
                (other, None) => return Err(Stop::Fault(format!("no such op: {other}"))),
            }
            return Ok(());
        }
        let response = match &self.output {
            Some(output) => output.clone(),
            None => self.need_context()?.response()?,
        };
        match (op.name, content) {
            (_, Some(content)) => response.write(content)?,
            ("flush", _) => response.flush()?,
            ("close_output", _) => response.close()?,
            ("status", _) => response.set_status(status(op)?)?,
            ("header", _) => response.set_header(op.text(0), op.text(1))?,
            ("content_type", _) => response.set_content_type(op.text(0))?,
            ("content_length", _) => response.set_content_length(op.int(0).unsigned_abs())?,
            ("send_error", _) => response.send_error(status(op)?, message(op))?,
            (other, None) => return Err(Stop::Fault(format!("no such op: {other}"))),
        }
        Ok(())
    }
}

/// What a worker takes over of its starter.
struct Worker {
    ended: Ended,
    name: String,
    context: Option<AsyncContext>,
    handle: Option<AsyncHandle>,
    output: Option<AsyncResponse>,
}

impl Worker {
    fn run(self) -> Result<()> {
        let Self { ended, name, context, handle, output } = self;
        let run = &ended.0;
        let scope = Scope { handle, output, ..Scope::new(run, context) };
        let worker = run.setup.workers.iter().find(|(own, _)| *own == name);
        scope.run_to_end(worker.map_or(&[], |(_, ops)| ops))
    }
}

/// A worker is over, however it ends, or was never begun.
struct Ended(Arc<Run>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.journal.change(|Pages { workers, .. }| *workers -= 1);
    }
}

fn status(op: &Op) -> std::result::Result<u16, Stop> {
    u16::try_from(op.int(0)).map_err(|error| Stop::Fault(error.to_string()))
}

fn message(op: &Op) -> Option<&str> {
    op.args.get(1).map(|_| op.text(1))
}

fn thrown(kind: &str) -> std::result::Result<Error, Stop> {
    match kind {
        "app" => Ok(Error::app(AppError)),
        "io" => Ok(std::io::Error::other("the application's input or output failed").into()),
        "illegal_state" => Ok(Error::illegal_state("thrown by the application")),
        "illegal_argument" => Ok(Error::illegal_argument("thrown by the application")),
        "unsupported" => Ok(Error::unsupported("thrown by the application")),
        "servlet" => Ok(Error::servlet("thrown by the application")),
        other => Err(Stop::Fault(format!("throw: {other:?} is nothing to be thrown"))),
    }
}

/// Compares a value with that of an op.
pub(crate) fn compare(
    value: Option<String>,
    comparison: &str,
    with: &Arg,
) -> std::result::Result<bool, Fault> {
    let expected = match with {
        Arg::Null => None,
        Arg::Text(text) => Some(text.clone()),
        Arg::Int(number) => Some(number.to_string()),
        Arg::Bool(flag) => Some(flag.to_string()),
        other => return Err(format!("nothing to compare with: {other:?}")),
    };
    let number = |text: &Option<String>| -> std::result::Result<i64, Fault> {
        let text = text.as_deref().unwrap_or("null");
        text.parse().map_err(|_| format!("no number to compare: {text:?}"))
    };
    match comparison {
        "eq" => Ok(value == expected),
        "ne" => Ok(value != expected),
        "lt" => Ok(number(&value)? < number(&expected)?),
        "ge" => Ok(number(&value)? >= number(&expected)?),
        other => Err(format!("no comparison: {other:?}")),
    }
}
