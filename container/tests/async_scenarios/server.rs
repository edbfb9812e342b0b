//! The server of a scenario: contexts, servlets, filters and valves that run ops.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use ringcat::{
    Connector, Context, DispatcherType, Filter, FilterChain, Host, Next, Request, RequestListener,
    Response, Result, Server, ServerBuilder, ServiceMode, Servlet, Valve,
};

use crate::{
    application::{self, AppError, READ_BYTES},
    grammar::Fault,
    run::Run,
    scenario,
};

/// The servlet that answers `pong` and leaves no trace.
const PING: &str = "/ping";

/// How long a drain waits for parked requests where the scenario does not say.
const DRAIN: Duration = Duration::from_secs(2);

fn millis(millis: i64) -> Duration {
    Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}

fn is_ping(req: &Request) -> bool {
    req.request_uri() == PING
}

/// The server, not started yet.
pub(crate) fn build(run: &Arc<Run>) -> std::result::Result<ServerBuilder, Fault> {
    let setup = &run.setup;
    let scenario::Connector {
        request_threads,
        async_timeout_ms,
        connection_timeout_ms,
        keep_alive_timeout_ms,
        end_on_peer_close,
        allowed_trailers,
    } = &setup.connector;
    let mut connector = Connector::http("127.0.0.1:0").end_on_peer_close(*end_on_peer_close);
    for name in allowed_trailers {
        connector = connector.allowed_trailer(name);
    }
    if let Some(timeout) = async_timeout_ms {
        connector = connector.async_timeout(millis(*timeout));
    }
    let threads = request_threads.map_or(4, |count| usize::try_from(count).unwrap_or(1));
    let mut builder = Server::builder()
        .connector(connector)
        .cores(1)
        .worker_threads(threads)
        .drain_timeout(setup.drain_limit_ms.map_or(DRAIN, millis))
        .valve(Pipeline(Arc::clone(run)));
    if let Some(timeout) = connection_timeout_ms {
        let timeout = millis(*timeout);
        builder = builder
            .connection_timeout(timeout)
            .head_timeout(timeout)
            .body_timeout(timeout)
            .write_timeout(timeout)
            .keep_alive_timeout(timeout);
    }
    if let Some(timeout) = keep_alive_timeout_ms {
        builder = builder.keep_alive_timeout(millis(*timeout));
    }
    let journal_run = Arc::clone(run);
    builder = builder.on_request_end(move |entry| {
        if entry.target == PING.as_bytes() {
            return;
        }
        let (status, elapsed) = (entry.status, entry.duration);
        journal_run.journal.note(format!("accessLog({status})"));
        journal_run.journal.change(|pages| {
            pages.requests += 1;
            pages.elapsed.push(elapsed);
        });
    });
    let mut host = Host::new("localhost");
    let has_root = setup.contexts.iter().any(|context| context.path.is_empty());
    if !has_root {
        host = host.context(Context::new("").get(PING, ping));
    }
    for declared in &setup.contexts {
        for valve in &declared.valves {
            let traced =
                Traced { run: Arc::clone(run), name: valve.name.clone(), is_async: valve.is_async };
            match &*valve.level {
                "engine" => builder = builder.valve(traced),
                "host" => host = host.valve(traced),
                _ => {}
            }
        }
        host = host.context(context(run, declared));
    }
    Ok(builder.default_host(host))
}

fn ping(_req: &mut Request, res: &mut Response) -> Result<()> {
    res.write("pong")
}

fn context(run: &Arc<Run>, declared: &scenario::Context) -> Context {
    let mut context = Context::new(&*declared.path)
        .cross_context(declared.cross_context)
        .request_listener(Requests(Arc::clone(run)));
    if declared.path.is_empty() {
        context = context.get(PING, ping);
    }
    if let Some(delay) = declared.unload_delay_ms {
        context = context.unload_delay(millis(delay));
    }
    for name in &declared.welcome {
        context = context.welcome_file(name);
    }
    for page in &declared.error_pages {
        context = match (page.status, page.is_for_app) {
            (Some(status), _) => context.error_page(status, &page.location),
            (None, true) => context.error_page_for::<AppError>(&page.location),
            (None, false) => context.default_error_page(&page.location),
        };
    }
    for valve in declared.valves.iter().filter(|valve| valve.level == "context") {
        let (name, is_async) = (valve.name.clone(), valve.is_async);
        context = context.valve(Traced { run: Arc::clone(run), name, is_async });
    }
    for (index, filter) in declared.filters.iter().enumerate() {
        let dispatchers: Vec<DispatcherType> =
            filter.dispatch.iter().map(|name| dispatcher(name)).collect();
        let place = (declared.path.clone(), index);
        let traced = ScenarioFilter { run: Arc::clone(run), place };
        context = context.named_filter(&*filter.name, &dispatchers, &filter.url, traced);
    }
    for (index, servlet) in declared.servlets.iter().enumerate() {
        let patterns: Vec<&str> = servlet.patterns.iter().map(|pattern| &**pattern).collect();
        let place = (declared.path.clone(), index);
        let traced = ScenarioServlet { run: Arc::clone(run), place };
        context = context.named_servlet(&*servlet.name, &patterns, traced);
    }
    context
}

fn dispatcher(name: &str) -> DispatcherType {
    let all = [
        DispatcherType::Request,
        DispatcherType::Forward,
        DispatcherType::Include,
        DispatcherType::Async,
        DispatcherType::Error,
    ];
    all.into_iter().find(|kind| kind.name() == name).expect("the grammar knows the names")
}

/// A context's path, and a place in its lists.
type Place = (String, usize);

fn context_of<'a>(run: &'a Run, place: &Place) -> &'a scenario::Context {
    let mut contexts = run.setup.contexts.iter();
    contexts.find(|context| context.path == place.0).expect("the context is set up")
}

/// The outermost step: the beginning and end of each pass.
struct Pipeline(Arc<Run>);

impl Valve for Pipeline {
    fn name(&self) -> &str {
        "pipeline"
    }

    fn invoke(&self, req: &mut Request, res: &mut Response, next: Next<'_>) -> Result<()> {
        if is_ping(req) {
            return next.invoke(req, res);
        }
        self.0.journal.note("pipeline:enter");
        let result = next.invoke(req, res);
        self.0.journal.note("pipeline:exit");
        result
    }
}

/// A valve of the scenario.
struct Traced {
    run: Arc<Run>,
    name: String,
    is_async: bool,
}

impl Valve for Traced {
    fn name(&self) -> &str {
        &self.name
    }

    fn async_supported(&self) -> bool {
        self.is_async
    }

    fn invoke(&self, req: &mut Request, res: &mut Response, next: Next<'_>) -> Result<()> {
        if is_ping(req) {
            return next.invoke(req, res);
        }
        self.run.journal.note(format!("{}:in", self.name));
        let result = next.invoke(req, res);
        self.run.journal.note(format!("{}:out", self.name));
        result
    }
}

struct Requests(Arc<Run>);

impl RequestListener for Requests {
    fn on_request_initialized(&self, req: &mut Request) -> Result<()> {
        if !is_ping(req) {
            req.set_attribute(READ_BYTES, Mutex::new(Vec::<u8>::new()));
            self.0.journal.note("requestInitialized");
        }
        Ok(())
    }

    fn on_request_destroyed(&self, req: &mut Request) -> Result<()> {
        if !is_ping(req) {
            self.0.journal.note("requestDestroyed");
        }
        Ok(())
    }
}

struct ScenarioFilter {
    run: Arc<Run>,
    place: Place,
}

impl Filter for ScenarioFilter {
    fn filter(&self, req: &mut Request, res: &mut Response, chain: FilterChain<'_>) -> Result<()> {
        if is_ping(req) {
            return chain.next(req, res);
        }
        let filter = &context_of(&self.run, &self.place).filters[self.place.1];
        self.run.journal.note(format!("{}:in", filter.name));
        let result = application::run_filter(&self.run, &filter.ops, req, res, chain);
        self.run.journal.note(format!("{}:out", filter.name));
        result
    }

    fn async_supported(&self) -> bool {
        context_of(&self.run, &self.place).filters[self.place.1].is_async
    }
}

struct ScenarioServlet {
    run: Arc<Run>,
    place: Place,
}

impl ScenarioServlet {
    fn declared(&self) -> &scenario::Servlet {
        &context_of(&self.run, &self.place).servlets[self.place.1]
    }
}

impl Servlet for ScenarioServlet {
    fn service(&self, req: &mut Request, res: &mut Response) -> Result<()> {
        let servlet = self.declared();
        let journal = &self.run.journal;
        journal.note(format!("{}:service({})", servlet.name, req.dispatcher_type()));
        let result = application::run_callback(&self.run, &servlet.service, req, res);
        journal.note(format!("{}:exit", servlet.name));
        result
    }

    fn is_async_supported(&self) -> bool {
        self.declared().is_async
    }

    fn mode(&self) -> ServiceMode {
        let servlet = self.declared();
        match (servlet.is_blocking, servlet.is_streaming) {
            (true, _) => ServiceMode::Blocking,
            (false, true) => ServiceMode::Streaming,
            (false, false) => ServiceMode::Collected,
        }
    }
}
