//! The containers of a running server: engine, hosts, contexts, wrappers, and what each level
//! does last in its pipeline. Built once, then immutable and shared by all cores. Stands for
//! `StandardEngine` to `StandardWrapper` with their basic valves, and `ErrorReportValve`.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use ringcat_engine::{core_counters::Counter, key::ListenerId, sync::Arc, worker_pool::Pool};
use ringcat_protocol::{
    async_state_machine::{Event, Flag},
    http11::response_head::reason_phrase,
};

use crate::{
    access_log::AccessLogEntry,
    async_end::tell_complete,
    async_error,
    async_servlet::AnyAsyncServlet,
    dispatch::{DispatchTarget, DispatcherType},
    error::{Error, ErrorKind, Result},
    error_pages::{self, ErrorPage},
    error_report::error_page,
    filter::{Filter, FilterChain},
    mapper::{ContextIndex, HostIndex, Mapper, Mapping, MappingMatch},
    methods::Methods,
    request::Request,
    request_listener::{self, RequestListener},
    response::Response,
    servlet::{ServiceMode, Servlet},
    uri::UriPolicy,
    url_pattern::UrlPattern,
    valve::{Next, Valve},
    watchdog::Watch,
};

/// All containers of a server.
pub struct ContainerTree {
    pub(crate) valves: Vec<ValveNode>,
    pub(crate) hosts: Vec<HostNode>,
    pub(crate) contexts: Vec<ContextNode>,
    pub(crate) mapper: Mapper,
    pub(crate) uri_policy: UriPolicy,
    /// By listener.
    pub(crate) connectors: Vec<ConnectorSettings>,
    pub(crate) body_bytes_max: u64,
    /// How long a thread waits for a client that does not read.
    pub(crate) write_timeout: Duration,
    pub(crate) pool: Arc<dyn Pool>,
    pub(crate) on_request_end: Option<RequestEndObserver>,
    pub(crate) watch: Watch,
}

/// What a connector is set to.
#[derive(Clone, Debug)]
pub(crate) struct ConnectorSettings {
    /// How long an asynchronous round may take.
    pub(crate) async_timeout: Duration,
    pub(crate) ends_on_peer_close: bool,
    /// In lower case; `*` stands for all.
    pub(crate) allowed_trailers: Vec<String>,
}

/// Told of each request that has ended, on its core.
pub(crate) type RequestEndObserver = Box<dyn Fn(&AccessLogEntry<'_>) + Send + Sync>;

/// A valve in its pipeline. What it says of itself is asked once, when the server is built.
pub(crate) struct ValveNode {
    pub(crate) name: String,
    pub(crate) is_async_supported: bool,
    pub(crate) valve: Box<dyn Valve>,
}

impl ValveNode {
    pub(crate) fn new(valve: Box<dyn Valve>) -> Self {
        let (name, is_async_supported) = (valve.name().to_owned(), valve.async_supported());
        Self { name, is_async_supported, valve }
    }
}

/// A virtual host.
pub(crate) struct HostNode {
    pub(crate) valves: Vec<ValveNode>,
}

/// A web application.
pub(crate) struct ContextNode {
    pub(crate) path: String,
    pub(crate) valves: Vec<ValveNode>,
    pub(crate) filters: Vec<FilterNode>,
    pub(crate) wrappers: Vec<WrapperNode>,
    pub(crate) request_listeners: Vec<Box<dyn RequestListener>>,
    pub(crate) error_pages: Vec<ErrorPage>,
    pub(crate) welcome_files: Vec<String>,
    pub(crate) is_cross_context: bool,
    pub(crate) unload_delay: Duration,
    /// A [`ContextPhase`].
    pub(crate) phase: AtomicU8,
    /// Asynchronous requests under way, by core; each core alone changes its own.
    pub(crate) in_progress: Mutex<Vec<Arc<InProgress>>>,
}

/// How far a context is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContextPhase {
    /// It takes requests.
    Available,
    /// It takes no more, and waits for those that are under way.
    Stopping,
    /// It is gone; what is still under way ends by a timeout.
    Stopped,
}

/// Requests of one core that are counted in a context, on a cache line of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct InProgress {
    began: Counter,
    ended: Counter,
}

impl InProgress {
    pub(crate) fn begin(&self) {
        self.began.add(1);
    }

    pub(crate) fn end(&self) {
        self.ended.add(1);
    }
}

impl ContextNode {
    pub(crate) fn phase(&self) -> ContextPhase {
        match self.phase.load(Ordering::Acquire) {
            0 => ContextPhase::Available,
            1 => ContextPhase::Stopping,
            _ => ContextPhase::Stopped,
        }
    }

    pub(crate) fn set_phase(&self, phase: ContextPhase) {
        self.phase.store(phase as u8, Ordering::Release);
    }

    /// Asynchronous requests under way. For an answer only.
    pub(crate) fn in_progress(&self) -> u64 {
        let cores = self.in_progress.lock().unwrap_or_else(PoisonError::into_inner);
        cores.iter().map(|core| core.began.get().wrapping_sub(core.ended.get())).sum()
    }
}

/// A declared filter.
pub(crate) struct FilterNode {
    pub(crate) name: String,
    pub(crate) pattern: UrlPattern,
    pub(crate) dispatchers: Vec<DispatcherType>,
    pub(crate) is_async_supported: bool,
    pub(crate) filter: Box<dyn Filter>,
}

/// A declared servlet.
pub(crate) struct WrapperNode {
    pub(crate) name: String,
    pub(crate) is_async_supported: bool,
    pub(crate) accepted_methods: Option<Methods>,
    pub(crate) mode: ServiceMode,
    pub(crate) ends_on_peer_close: Option<bool>,
    pub(crate) valves: Vec<ValveNode>,
    pub(crate) servlet: ServletKind,
}

/// A servlet, by how it is called.
pub(crate) enum ServletKind {
    Plain(Box<dyn Servlet>),
    Async(Box<dyn AnyAsyncServlet>),
}

impl ServletKind {
    pub(crate) fn init(&self) -> Result<()> {
        match self {
            Self::Plain(servlet) => servlet.init(),
            Self::Async(servlet) => servlet.init(),
        }
    }

    pub(crate) fn destroy(&self) {
        match self {
            Self::Plain(servlet) => servlet.destroy(),
            Self::Async(servlet) => servlet.destroy(),
        }
    }

    pub(crate) fn accepted_methods(&self) -> Option<Methods> {
        match self {
            Self::Plain(servlet) => servlet.accepted_methods(),
            Self::Async(servlet) => servlet.accepted_methods(),
        }
    }

    pub(crate) fn end_on_peer_close(&self) -> Option<bool> {
        match self {
            Self::Plain(servlet) => servlet.end_on_peer_close(),
            Self::Async(servlet) => servlet.end_on_peer_close(),
        }
    }

    pub(crate) fn is_async_supported(&self) -> bool {
        match self {
            Self::Plain(servlet) => servlet.is_async_supported(),
            Self::Async(_) => true,
        }
    }

    /// An `async fn` takes its content as it comes, as a streaming servlet does.
    pub(crate) fn mode(&self) -> ServiceMode {
        match self {
            Self::Plain(servlet) => servlet.mode(),
            Self::Async(_) => ServiceMode::Streaming,
        }
    }
}

/// A level of containers, outermost first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    Engine,
    Host,
    Context,
    Wrapper,
}

impl ContainerTree {
    /// What the connector of a listener is set to.
    pub(crate) fn connector(&self, listener: ListenerId) -> &ConnectorSettings {
        &self.connectors[usize::from(listener.0)]
    }

    /// For a path that ends in a slash and that nothing but a default servlet takes: where the
    /// first welcome file leads that a servlet takes, whose name goes behind the path.
    pub(crate) fn with_welcome_file(
        &self,
        mapping: Mapping,
        path: &mut String,
        map: impl Fn(&str) -> Option<Mapping>,
    ) -> Mapping {
        let welcome_files = &self.context(mapping.context).welcome_files;
        let is_directory = mapping.kind == MappingMatch::Default && path.ends_with('/');
        if welcome_files.is_empty() || !is_directory {
            return mapping;
        }
        let directory_len = path.len();
        for name in welcome_files {
            path.push_str(name);
            let found = map(path).filter(|found| found.kind != MappingMatch::Default);
            if let Some(found) = found {
                return found;
            }
            path.truncate(directory_len);
        }
        mapping
    }

    /// A context by its index.
    pub(crate) fn context(&self, index: ContextIndex) -> &ContextNode {
        &self.contexts[usize::from(index.0)]
    }

    /// The servlet of a mapping.
    pub(crate) fn wrapper(&self, mapping: Mapping) -> Option<&WrapperNode> {
        let index = usize::from(mapping.wrapper?.0);
        self.context(mapping.context).wrappers.get(index)
    }

    /// The valves of one level on the way of a request.
    pub(crate) fn valves(&self, level: Level, mapping: Mapping) -> &[ValveNode] {
        match level {
            Level::Engine => &self.valves,
            Level::Host => &self.host(mapping.host).valves,
            Level::Context => &self.context(mapping.context).valves,
            Level::Wrapper => self.wrapper(mapping).map_or(&[], |wrapper| &wrapper.valves),
        }
    }

    /// Runs a request through all pipelines to its servlet.
    pub(crate) fn invoke(&self, mapping: Mapping, req: &mut Request, res: &mut Response) {
        let result = Next::first(self, mapping).invoke(req, res);
        if let Err(error) = result {
            record_failure(req, res, "a valve of the engine", error);
            report(req, res);
        }
    }

    /// What stands last in the pipeline of a level.
    pub(crate) fn basic(
        &self,
        level: Level,
        mapping: Mapping,
        req: &mut Request,
        res: &mut Response,
    ) -> Result<()> {
        let next = |level| Next { tree: self, mapping, level, index: 0 };
        match level {
            Level::Engine => {
                self.host_basic(next(Level::Host), req, res);
                Ok(())
            }
            Level::Host => {
                self.context_pass(next(Level::Context), req, res);
                Ok(())
            }
            Level::Context => next(Level::Wrapper).invoke(req, res),
            Level::Wrapper => {
                self.wrapper_basic(mapping, req, res);
                Ok(())
            }
        }
    }

    fn host(&self, index: HostIndex) -> &HostNode {
        &self.hosts[usize::from(index.0)]
    }

    /// Runs the host's pipeline, and turns what failed in it into the error report.
    fn host_basic(&self, host: Next<'_>, req: &mut Request, res: &mut Response) {
        if let Err(error) = host.invoke(req, res) {
            record_failure(req, res, "a valve", error);
        }
        take_back(req, res);
        report(req, res);
    }

    /// Runs the context's pipeline, and then the application's error page where one is due.
    fn context_pass(&self, context: Next<'_>, req: &mut Request, res: &mut Response) {
        let is_first = req.note.dispatcher == DispatcherType::Request && !req.is_async();
        let entered = match is_first {
            true => request_listener::tell_initialized(context.mapping.context, req),
            false => Ok(()),
        };
        // A response that is in error already goes to its report, not to the application.
        if !res.is_error_report_due()
            && let Err(error) = entered.and_then(|()| context.invoke(req, res))
        {
            record_failure(req, res, "a valve or listener of the context", error);
        }
        take_back(req, res);
        error_pages::render(req, res);
        // The page of what failed on a worker thread is rendered when the core has it again.
        let is_over = res.is_local() || !res.is_error_report_due();
        if is_first && is_over && !req.bar_start() {
            request_listener::tell_destroyed(req);
        }
    }

    /// Runs the filter chain to the servlet.
    fn wrapper_basic(&self, mapping: Mapping, req: &mut Request, res: &mut Response) {
        if let Some(refusal) = req.note.take(|seldom| seldom.refusal.take()) {
            answer_refusal(&refusal, res);
            return;
        }
        let Some(wrapper) = self.wrapper(mapping) else {
            answer_error(res, 404, None);
            return;
        };
        if req.is_async_dispatching()
            && let Some(cell) = req.cell()
        {
            async_error::advance(&cell, Event::Dispatched);
        }
        let mut filters = std::mem::take(&mut req.note.filters);
        let path = mapping.path_within(&req.note.path);
        self.choose_filters(mapping, req.note.dispatcher, path, &mut filters);
        let result = FilterChain { tree: self, mapping, filters: &filters }.next(req, res);
        req.note.filters = filters;
        let result = result.and_then(|()| res.take_refused().map_or(Ok(()), Err));
        if let Err(error) = result {
            record_failure(req, res, &wrapper.name, error);
        }
        let is_end = req.note.dispatcher == DispatcherType::Async && !req.is_async();
        // A failure goes to the listeners first; the second one of a round changes nothing.
        let is_marked = req.cell().is_some_and(|cell| cell.word().has(Flag::ErrorMarked));
        if is_end && (is_marked || !res.is_error_report_due()) {
            // The target of a dispatch did not begin another round: this is the request's end.
            tell_complete(req, res);
        }
    }

    /// Runs the filter chain to the target of a request dispatcher.
    pub(crate) fn run_chain(
        &self,
        target: &DispatchTarget,
        dispatcher: DispatcherType,
        req: &mut Request,
        res: &mut Response,
    ) -> Result<()> {
        let mut filters = Vec::new();
        self.choose_filters(target.mapping, dispatcher, &target.path, &mut filters);
        FilterChain { tree: self, mapping: target.mapping, filters: &filters }.next(req, res)
    }

    /// The filters for a path in a context.
    fn choose_filters(
        &self,
        mapping: Mapping,
        dispatcher: DispatcherType,
        path: &str,
        filters: &mut Vec<usize>,
    ) {
        filters.clear();
        let declared = self.context(mapping.context).filters.iter().enumerate();
        let chosen = declared.filter(|(_, filter)| filter.applies_to(dispatcher, path));
        filters.extend(chosen.map(|(index, _)| index));
    }
}

impl FilterNode {
    fn applies_to(&self, dispatcher: DispatcherType, path: &str) -> bool {
        self.dispatchers.contains(&dispatcher) && self.pattern.applies_to(path)
    }
}

/// The application failed: remembers how, and that a report is due.
pub(crate) fn record_failure(req: &mut Request, res: &mut Response, element: &str, error: Error) {
    if is_clients_doing(req, &error) {
        tracing::debug!("{element}: {error}");
    } else {
        let uri = req.request_uri();
        tracing::error!("{element} failed on {} {uri}: {error}", req.method());
    }
    if let Some(period) = error.retry_after() {
        let until = httpdate::fmt_http_date(res.system_time() + period);
        if let Err(error) = res.set_header("Retry-After", until) {
            tracing::error!("Retry-After could not be set: {error}");
        }
    }
    res.set_failed(error.status());
    req.note.seldom_mut().error = Some(Arc::new(error));
}

/// Whether the client caused the error: it left, or sent what the application cannot take. Another
/// system error, say of a file, is the application's.
fn is_clients_doing(req: &Request, error: &Error) -> bool {
    match error.kind() {
        ErrorKind::ProtocolViolation => error.status() < 500,
        ErrorKind::Io => req.has_connection_failed() || error.is_of_connection(),
        ErrorKind::IllegalState
        | ErrorKind::IllegalArgument
        | ErrorKind::NumberFormat
        | ErrorKind::UnsupportedEncoding
        | ErrorKind::App
        | ErrorKind::Servlet
        | ErrorKind::Unsupported
        | ErrorKind::NotFound
        | ErrorKind::Unavailable
        | ErrorKind::WouldBlock
        | ErrorKind::Panic => false,
    }
}

fn answer_refusal(refusal: &crate::request_note::Refusal, res: &mut Response) {
    let fields = [("Allow", &refusal.allow), ("Location", &refusal.location)];
    for (name, value) in fields {
        if let Some(value) = value
            && let Err(error) = res.set_header(name, value)
        {
            tracing::error!("{name} of a refused request could not be set: {error}");
        }
    }
    if refusal.status < 400 {
        res.set_status(refusal.status);
        return;
    }
    answer_error(res, refusal.status, None);
}

fn answer_error(res: &mut Response, status: u16, message: Option<&str>) {
    if let Err(error) = res.send_error(status, message) {
        tracing::debug!("status {status} came too late: {error}");
    }
}

/// The container has the response again after application code. One whose report has to wait for
/// the end of the request takes nothing else until then.
pub(crate) fn take_back(req: &Request, res: &mut Response) {
    let is_parking = req.is_async() && !req.is_async_completing();
    let is_report_waiting = res.is_error_report_due() && !res.inner.is_committed && is_parking;
    res.inner.is_suspended &= is_report_waiting;
}

/// Writes the built-in error report where one is due and nothing speaks against it. What a worker
/// thread ran is reported by the core, which has the response.
pub(crate) fn report(req: &Request, res: &mut Response) {
    if !res.is_local() {
        return;
    }
    if res.inner.is_committed {
        // Nothing can be reported any more; the response must not look whole.
        if res.set_error_reported() {
            if let Err(error) = res.flush() {
                tracing::debug!("the rest of a failed response could not be sent: {error}");
            }
            res.close_now();
        }
        return;
    }
    if req.is_async() && !req.is_async_completing() {
        return;
    }
    let is_wanted = res.inner.status >= 400 && res.inner.written_bytes == 0;
    if !is_wanted || !res.set_error_reported() {
        return;
    }
    write_report(res);
}

/// Writes the built-in error report for the response's status.
pub(crate) fn write_report(res: &mut Response) {
    let status = res.inner.status;
    let mut page = String::new();
    let message = res.inner.message.as_ref().map(|message| message.as_str());
    error_page(status, reason_phrase(status), message, &mut page);
    res.set_content_type("text/html;charset=utf-8");
    if let Err(error) = res.write(page) {
        tracing::debug!("an error report could not be written: {error}");
    }
}
