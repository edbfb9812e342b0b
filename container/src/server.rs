//! A server: connectors, hosts and contexts put together, started, run, drained. Stands for
//! `StandardServer`, `StandardService` and `Connector`.

use std::{
    fmt,
    net::{SocketAddr, ToSocketAddrs},
    time::Duration,
};

use ringcat_engine::{
    engine::{Engine, EngineOptions},
    signals::Signals,
    sync::Arc,
    timestamp::{Clock, Timestamp},
    worker_pool::{Pool, WorkerPool, WorkerPoolOptions},
};
use ringcat_protocol::{
    http11::options::Http11Options,
    message::Message,
    protocol_handler::{ProtocolHandler, RequestCounters},
};

use crate::{
    access_log::AccessLog,
    container::{ContainerTree, ContextNode, FilterNode, HostNode, ValveNode, WrapperNode},
    context::{Context, FilterDeclaration},
    coyote_adapter::CoyoteAdapter,
    error::{Error, Result},
    guard::{guard, guard_quiet},
    mapper::{Mapper, MapperBuilder, WrapperIndex},
    request::RequestNote,
    uri::UriPolicy,
    url_pattern::UrlPattern,
    valve::Valve,
};

/// Longer than anybody waits, and short enough to be added to any time of any clock.
const DRAIN_LONGEST: Duration = Duration::from_secs(u32::MAX as u64);

/// A listening address with its settings.
#[derive(Clone, Debug)]
pub struct Connector {
    address: String,
    async_timeout: Duration,
}

impl Connector {
    /// HTTP/1.1 on an address like `127.0.0.1:8080`; port 0 picks one.
    pub fn http(address: impl Into<String>) -> Self {
        Self { address: address.into(), async_timeout: Duration::from_secs(30) }
    }

    /// How long an asynchronous round may take unless the application says otherwise; zero means
    /// for ever. 30 s by default.
    #[must_use]
    pub fn async_timeout(mut self, timeout: Duration) -> Self {
        self.async_timeout = timeout;
        self
    }

    fn resolve(&self) -> Result<SocketAddr> {
        let mut addresses = self.address.to_socket_addrs().map_err(|error| {
            Error::illegal_argument(format!(
                "connector address {:?}: {error}; write it as ADDRESS:PORT",
                self.address
            ))
        })?;
        addresses.next().ok_or_else(|| {
            Error::illegal_argument(format!("connector address {:?} names no host", self.address))
        })
    }
}

/// A virtual host under construction.
pub struct Host {
    name: String,
    aliases: Vec<String>,
    contexts: Vec<Context>,
    valves: Vec<Box<dyn Valve>>,
}

impl Host {
    /// A host that answers to `name`.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), aliases: Vec::new(), contexts: Vec::new(), valves: Vec::new() }
    }

    /// Another name of the host; `*.example.org` stands for all names below.
    #[must_use]
    pub fn alias(mut self, alias: impl Into<String>) -> Self {
        self.aliases.push(alias.into());
        self
    }

    /// Adds an application.
    #[must_use]
    pub fn context(mut self, context: Context) -> Self {
        self.contexts.push(context);
        self
    }

    /// Adds a valve to the host's pipeline.
    #[must_use]
    pub fn valve(mut self, valve: impl Valve) -> Self {
        self.valves.push(Box::new(valve));
        self
    }
}

/// A server under construction; see [`Server::builder`].
pub struct ServerBuilder {
    connectors: Vec<Connector>,
    default_host: Host,
    hosts: Vec<Host>,
    valves: Vec<Box<dyn Valve>>,
    engine: EngineOptions,
    http: Http11Options,
    body_bytes_max: u64,
    workers: WorkerPoolOptions,
    drain_timeout: Duration,
    access_log: Option<AccessLog>,
}

/// The entry to building a server.
pub struct Server;

impl Server {
    /// A server without connectors, with a default host `localhost` for all names.
    ///
    /// ```no_run
    /// use ringcat::{Connector, Context, Result, Server};
    ///
    /// fn main() -> Result<()> {
    ///     Server::builder()
    ///         .connector(Connector::http("127.0.0.1:8080"))
    ///         .context(Context::new("").get("/version", |_req, res| res.write("1\n")))
    ///         .run()
    /// }
    /// ```
    pub fn builder() -> ServerBuilder {
        ServerBuilder {
            connectors: Vec::new(),
            default_host: Host::new("localhost"),
            hosts: Vec::new(),
            valves: Vec::new(),
            engine: EngineOptions::default(),
            http: Http11Options::default(),
            body_bytes_max: 2 * 1024 * 1024,
            workers: WorkerPoolOptions::default(),
            drain_timeout: Duration::from_secs(30),
            access_log: None,
        }
    }
}

impl ServerBuilder {
    /// Adds a connector. The first is the one that is printed and named first.
    #[must_use]
    pub fn connector(mut self, connector: Connector) -> Self {
        self.connectors.push(connector);
        self
    }

    /// Adds an application to the default host.
    #[must_use]
    pub fn context(mut self, context: Context) -> Self {
        self.default_host.contexts.push(context);
        self
    }

    /// Adds a virtual host.
    #[must_use]
    pub fn host(mut self, host: Host) -> Self {
        self.hosts.push(host);
        self
    }

    /// Adds a valve to the engine's pipeline, before all hosts.
    #[must_use]
    pub fn valve(mut self, valve: impl Valve) -> Self {
        self.valves.push(Box::new(valve));
        self
    }

    /// How many cores to start. By default one for each CPU that the affinity mask and the CPU
    /// quota allow.
    #[must_use]
    pub fn cores(mut self, count: usize) -> Self {
        self.engine.core_count = Some(count);
        self
    }

    /// The CPUs to pin cores to, one core each.
    #[must_use]
    pub fn cpus(mut self, cpus: Vec<usize>) -> Self {
        self.engine.cpus = Some(cpus);
        self
    }

    /// Threads of the worker pool, at most; blocking servlets and `AsyncContext::start` run there.
    /// 200 by default.
    #[must_use]
    pub fn worker_threads(mut self, count: usize) -> Self {
        self.workers.threads_max = count;
        self
    }

    /// Requests and tasks, at most, that wait for a thread of the worker pool; one more is 503 with
    /// `Retry-After`. 10,000 by default.
    #[must_use]
    pub fn worker_queue(mut self, count: usize) -> Self {
        self.workers.queue_max = count;
        self
    }

    /// Content of one request that is taken for a servlet that is called when it is complete, in
    /// bytes; more is 413. 2 MiB by default.
    #[must_use]
    pub fn body_bytes_max(mut self, bytes: u64) -> Self {
        self.body_bytes_max = bytes;
        self
    }

    /// How long a new connection may take to send its first byte; then it closes. 20 s by default.
    #[must_use]
    pub fn connection_timeout(mut self, timeout: Duration) -> Self {
        self.engine.timeouts.connection = timeout;
        self
    }

    /// How long a connection may be idle between two requests; then it closes. 60 s by default.
    #[must_use]
    pub fn keep_alive_timeout(mut self, timeout: Duration) -> Self {
        self.engine.timeouts.keep_alive = timeout;
        self
    }

    /// How long a head may take from its first byte to its end; then it is 408. 20 s by default.
    #[must_use]
    pub fn head_timeout(mut self, timeout: Duration) -> Self {
        self.engine.timeouts.head = timeout;
        self
    }

    /// How long a client may be silent inside a content; then it is 408, or an error to its
    /// reader. 20 s by default.
    #[must_use]
    pub fn body_timeout(mut self, timeout: Duration) -> Self {
        self.engine.timeouts.body = timeout;
        self
    }

    /// How long a client may take no output; then its connection fails, and threads that wait to
    /// write get an I/O error. 60 s by default.
    #[must_use]
    pub fn write_timeout(mut self, timeout: Duration) -> Self {
        self.engine.timeouts.write = timeout;
        self
    }

    /// The head of a request, at most, in bytes; more is 431. 16 KiB by default, 64 KiB less one
    /// byte at most.
    #[must_use]
    pub fn head_bytes_max(mut self, bytes: usize) -> Self {
        self.http.head.head_bytes_max = bytes;
        self
    }

    /// The header fields of a request, at most; more are 431. 128 by default.
    #[must_use]
    pub fn header_fields_max(mut self, count: usize) -> Self {
        self.http.head.fields_max = count;
        self
    }

    /// The target of a request, at most, in bytes; more is 414. 8 KiB by default; a longer one
    /// needs a larger [`ServerBuilder::head_bytes_max`] too.
    #[must_use]
    pub fn target_bytes_max(mut self, bytes: usize) -> Self {
        self.http.head.uri_bytes_max = bytes;
        self
    }

    /// Unread content, at most, that is swallowed so that a connection can live on, in bytes; past
    /// it the connection closes. 2 MiB by default.
    #[must_use]
    pub fn swallow_bytes_max(mut self, bytes: u64) -> Self {
        self.http.swallow_bytes_max = bytes;
        self
    }

    /// Connections of one core, at most; more wait in the backlog. 65,536 by default.
    #[must_use]
    pub fn connections_max(mut self, count: usize) -> Self {
        self.engine.native.connections_max = count;
        self
    }

    /// Connections of one core and connector, at most, that wait to be accepted. 4096 by default;
    /// the kernel cuts it to `net.core.somaxconn`.
    #[must_use]
    pub fn backlog(mut self, count: u16) -> Self {
        self.engine.native.backlog = i32::from(count);
        self
    }

    /// How long a drain may take before parked requests are timed out. 30 s by default.
    #[must_use]
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.drain_timeout = timeout.min(DRAIN_LONGEST);
        self
    }

    /// Writes an access log: a line for each request, when it ends. Off by default.
    #[must_use]
    pub fn access_log(mut self, access_log: AccessLog) -> Self {
        self.access_log = Some(access_log);
        self
    }

    /// Initialises the servlets and starts the cores.
    ///
    /// # Errors
    /// A connector, a URL pattern or a limit is wrong, or a timeout is zero; a servlet's `init`
    /// failed; the ring is denied or the address in use. The text names what, where, and what to
    /// do.
    pub fn start(self) -> Result<RunningServer> {
        if self.connectors.is_empty() {
            return Err(Error::illegal_argument(
                "the server has no connector: add Connector::http(\"127.0.0.1:8080\")",
            ));
        }
        check_options(&self.engine)?;
        let mut engine_options = self.engine;
        for connector in &self.connectors {
            engine_options.addresses.push(connector.resolve()?);
        }
        let pool = Arc::new(WorkerPool::new(self.workers));
        let async_timeouts =
            self.connectors.iter().map(|connector| connector.async_timeout).collect();
        let mut hosts = vec![self.default_host];
        hosts.extend(self.hosts);
        let mut tree = build_tree(hosts)?;
        tree.valves = self.valves.into_iter().map(ValveNode::new).collect();
        tree.async_timeouts = async_timeouts;
        tree.body_bytes_max = self.body_bytes_max;
        tree.write_timeout = engine_options.timeouts.write;
        tree.pool = Arc::clone(&pool) as Arc<dyn Pool>;
        init_servlets(&tree)?;
        let tree = Arc::new(tree);
        let counters = Arc::new(std::sync::Mutex::new(Vec::new()));
        let http = self.http;
        let core_tree = Arc::clone(&tree);
        let core_counters = Arc::clone(&counters);
        let access_log = self.access_log.map(Arc::new);
        let core_access_log = access_log.clone();
        let engine = Engine::start(&engine_options, move |seat, io| {
            let counters = Arc::new(RequestCounters::default());
            core_counters
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner)
                .push(Arc::clone(&counters));
            let log = core_access_log.as_ref().map(|log| log.core_log());
            let adapter = CoyoteAdapter::new(Arc::clone(&core_tree), io.clock(), log);
            ProtocolHandler::new(seat, io, http, counters, adapter)
        })
        .map_err(|error| Error::from(error.to_string()))?;
        Ok(RunningServer {
            engine,
            tree,
            pool,
            counters,
            drain_timeout: self.drain_timeout,
            access_log,
            clock: Clock::system(),
        })
    }

    /// Starts the server and serves until SIGTERM or SIGINT, then drains; a second signal ends the
    /// process at once. Call it from the main thread, before it starts others: the signals are
    /// blocked for all threads that follow.
    ///
    /// # Errors
    /// As [`ServerBuilder::start`].
    pub fn run(self) -> Result<()> {
        let signals = Signals::block()?;
        self.start()?.run_until(signals);
        Ok(())
    }
}

/// A server that serves. Dropping it leaves it running until the process ends.
pub struct RunningServer {
    engine: Engine<Message<RequestNote>>,
    tree: Arc<ContainerTree>,
    pool: Arc<WorkerPool>,
    counters: Arc<std::sync::Mutex<Vec<Arc<RequestCounters>>>>,
    drain_timeout: Duration,
    access_log: Option<Arc<AccessLog>>,
    clock: Clock,
}

impl RunningServer {
    /// Where the first connector listens, its port resolved.
    pub fn local_addr(&self) -> SocketAddr {
        self.engine.addresses()[0]
    }

    /// Where the connectors listen, ports resolved, in order.
    pub fn local_addrs(&self) -> &[SocketAddr] {
        self.engine.addresses()
    }

    /// The CPU that each core is pinned to.
    pub fn pinned_cpus(&self) -> &[usize] {
        self.engine.pinned_cpus()
    }

    /// What was counted so far, over all cores.
    pub fn report(&self) -> ServerReport {
        let mut report = ServerReport::default();
        for seat in self.engine.seats() {
            report.connections_accepted += seat.counters.connections_accepted.get();
            report.connections_closed += seat.counters.connections_closed.get();
            report.connections_failed += seat.counters.connections_failed.get();
            report.connections_cut += seat.counters.connections_cut.get();
        }
        let counters = self.counters.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        for core in counters.iter() {
            report.answered += core.answered();
            for (sum, status) in report.statuses.iter_mut().zip(&core.statuses) {
                *sum += status.get();
            }
            report.refused += core.refused.get();
            report.aborted += core.aborts.get();
            report.parked += core.parked.get();
            report.timed_out += core.timeouts.get();
        }
        report
    }

    /// Serves until SIGTERM or SIGINT, then drains; a second signal ends the process at once.
    pub fn run_until(self, signals: Signals) -> ServerReport {
        let signal = signals.wait();
        tracing::info!("{signal:?}: draining for at most {:?}", self.drain_timeout);
        std::thread::Builder::new()
            .name("second-signal".to_owned())
            .spawn(move || {
                let signal = signals.wait();
                tracing::warn!("{signal:?} again: the process ends at once");
                std::process::exit(128 + signal.number());
            })
            .map_or_else(
                |error| tracing::warn!("a second signal will not be heard: {error}"),
                drop,
            );
        self.stop()
    }

    /// Drains: accepts no more, serves what has arrived, waits for parked requests up to the drain
    /// timeout, then times them out through their listeners; destroys the servlets.
    pub fn stop(self) -> ServerReport {
        let begun = self.clock.now();
        self.engine.drain();
        if !self.engine.wait(Some(self.drain_timeout)) {
            self.engine.end_drain();
            self.engine.wait(Some(Duration::from_secs(10)));
        }
        let report = self.report();
        let Self { engine, tree, pool, access_log, clock, .. } = self;
        engine.join();
        if !pool.shutdown(Duration::from_secs(5)) {
            tracing::warn!("worker threads are still busy; they are left behind");
        }
        for wrapper in tree.contexts.iter().flat_map(|context| &context.wrappers) {
            guard_quiet("destroy of a servlet", || wrapper.servlet.destroy());
        }
        drop(access_log);
        tracing::info!("drained in {:?}", clock.now().saturating_since(begun));
        report
    }

    /// How long the server has been up.
    pub fn uptime(&self) -> Duration {
        self.clock.now().saturating_since(Timestamp::ZERO)
    }
}

/// What a server counted, over all cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerReport {
    /// Connections accepted.
    pub connections_accepted: u64,
    /// Connections closed.
    pub connections_closed: u64,
    /// Connections that failed: resets, broken sends, timeouts.
    pub connections_failed: u64,
    /// Connections cut by the end of a drain.
    pub connections_cut: u64,
    /// Responses, refusals included.
    pub answered: u64,
    /// Responses by class, 1xx to 5xx.
    pub statuses: [u64; 5],
    /// Requests that the protocol refused.
    pub refused: u64,
    /// Requests whose response is not whole.
    pub aborted: u64,
    /// Times that a request was put into the waiting set: at the start of a round, and again after
    /// each event that a parked request was taken out for. Not the number of parked requests.
    pub parked: u64,
    /// Asynchronous rounds that timed out.
    pub timed_out: u64,
}

impl fmt::Display for ServerReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "connections: accepted {}, closed {}, failed {}, cut {}",
            self.connections_accepted,
            self.connections_closed,
            self.connections_failed,
            self.connections_cut
        )?;
        let [_, ok, redirected, refused, failed] = self.statuses;
        write!(
            f,
            "requests: {} answered (2xx {ok}, 3xx {redirected}, 4xx {refused}, 5xx {failed}), \
             refused {}, aborted {}, parked {}, timed out {}",
            self.answered, self.refused, self.aborted, self.parked, self.timed_out
        )
    }
}

/// Zero is refused by its name. As a timeout it would be at once, and reads like never.
fn check_options(options: &EngineOptions) -> Result<()> {
    if options.native.connections_max == 0 {
        return Err(Error::illegal_argument("connections_max is zero; write at least 1"));
    }
    let timeouts = &options.timeouts;
    let named = [
        ("connection_timeout", timeouts.connection),
        ("keep_alive_timeout", timeouts.keep_alive),
        ("head_timeout", timeouts.head),
        ("body_timeout", timeouts.body),
        ("write_timeout", timeouts.write),
    ];
    match named.into_iter().find(|(_, timeout)| timeout.is_zero()) {
        Some((name, _)) => Err(Error::illegal_argument(format!(
            "{name} is zero; write a time, an hour or a year if it should be long"
        ))),
        None => Ok(()),
    }
}

fn build_tree(hosts: Vec<Host>) -> Result<ContainerTree> {
    let mut mapper = Mapper::builder();
    let mut host_nodes = Vec::with_capacity(hosts.len());
    let mut contexts = Vec::new();
    for (index, host) in hosts.into_iter().enumerate() {
        let aliases: Vec<&str> = host.aliases.iter().map(String::as_str).collect();
        let host_index = mapper.add_host(&host.name, &aliases)?;
        if index == 0 {
            mapper.default_host(host_index);
        }
        for context in host.contexts {
            let context_index = mapper.add_context(host_index, &context.path)?;
            contexts.push(build_context(&mut mapper, context_index, context)?);
        }
        let valves = host.valves.into_iter().map(ValveNode::new).collect();
        host_nodes.push(HostNode { valves });
    }
    Ok(ContainerTree {
        valves: Vec::new(),
        hosts: host_nodes,
        contexts,
        mapper: mapper.build(),
        uri_policy: UriPolicy::default(),
        async_timeouts: Vec::new(),
        body_bytes_max: 0,
        write_timeout: Duration::ZERO,
        pool: Arc::new(WorkerPool::new(WorkerPoolOptions::default())),
    })
}

fn build_context(
    mapper: &mut MapperBuilder,
    index: crate::mapper::ContextIndex,
    context: Context,
) -> Result<ContextNode> {
    let Context { path, servlets, filters, valves } = context;
    let mut wrappers = Vec::with_capacity(servlets.len());
    for declaration in servlets {
        let wrapper = WrapperIndex(u16::try_from(wrappers.len()).map_err(|_| {
            Error::illegal_argument(format!("context {path:?} declares too many servlets"))
        })?);
        for pattern in &declaration.patterns {
            mapper.add_mapping(index, pattern, wrapper)?;
        }
        wrappers.push(WrapperNode {
            name: declaration.name,
            is_async_supported: declaration.servlet.is_async_supported(),
            mode: declaration.servlet.mode(),
            valves: declaration.valves.into_iter().map(ValveNode::new).collect(),
            accepted_methods: declaration.servlet.accepted_methods(),
            servlet: declaration.servlet,
        });
    }
    let filters =
        filters.into_iter().map(|filter| build_filter(&path, filter)).collect::<Result<_>>()?;
    let valves = valves.into_iter().map(ValveNode::new).collect();
    Ok(ContextNode { path, valves, filters, wrappers })
}

fn build_filter(path: &str, declaration: FilterDeclaration) -> Result<FilterNode> {
    let FilterDeclaration { name, pattern, dispatchers, filter } = declaration;
    let pattern = UrlPattern::parse(&pattern).map_err(|reason| {
        Error::illegal_argument(format!(
            "context {path:?}, filter {name}: pattern {pattern:?}: {reason}"
        ))
    })?;
    let is_async_supported = filter.async_supported();
    Ok(FilterNode { name, pattern, dispatchers, is_async_supported, filter })
}

fn init_servlets(tree: &ContainerTree) -> Result<()> {
    for context in &tree.contexts {
        for wrapper in &context.wrappers {
            guard(|| wrapper.servlet.init()).map_err(|error| {
                Error::servlet(format!(
                    "context {:?}, servlet {}: init failed: {error}",
                    context.path, wrapper.name
                ))
            })?;
        }
    }
    Ok(())
}
