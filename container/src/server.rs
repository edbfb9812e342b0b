//! A server: connectors, hosts and contexts put together, started, run, drained. Stands for
//! `StandardServer`, `StandardService` and `Connector`.

use std::{
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
use ringcat_protocol::{http11::options::Http11Options, message::Message};

use crate::{
    access_log::{AccessLog, AccessLogEntry},
    container::{ConnectorSettings, ContainerTree, RequestEndObserver, ValveNode},
    context::Context,
    error::{Error, Result},
    request_note::RequestNote,
    server_report::ServerReport,
    service::{Service, build_tree},
    uri::UriPolicy,
    valve::Valve,
    watchdog::{Watch, Watchdog},
};

/// Longer than anybody waits, and short enough to be added to any time of any clock.
const DRAIN_LONGEST: Duration = Duration::from_secs(u32::MAX as u64);

/// A listening address with its settings.
#[derive(Clone, Debug)]
pub struct Connector {
    address: String,
    settings: ConnectorSettings,
}

impl Connector {
    /// HTTP/1.1 on an address like `127.0.0.1:8080`; port 0 picks one.
    pub fn http(address: impl Into<String>) -> Self {
        let settings = ConnectorSettings {
            async_timeout: Duration::from_secs(30),
            ends_on_peer_close: false,
            allowed_trailers: Vec::new(),
        };
        Self { address: address.into(), settings }
    }

    /// How long an asynchronous round may take unless the application says otherwise; zero means
    /// for ever. 30 s by default.
    #[must_use]
    pub fn async_timeout(mut self, timeout: Duration) -> Self {
        self.settings.async_timeout = timeout;
        self
    }

    /// Whether an asynchronous request ends when its client ends its sending side: it is told as of
    /// a reset. Off by default, since such a client may still wait for its answer; a servlet that
    /// sends until the client leaves sets it for its requests
    /// ([`Request::set_end_on_peer_close`](crate::Request::set_end_on_peer_close)).
    #[must_use]
    pub fn end_on_peer_close(mut self, is_ended: bool) -> Self {
        self.settings.ends_on_peer_close = is_ended;
        self
    }

    /// Lets applications see a trailer field, of a name in any case; `*` lets all through. By
    /// default none is seen: what a trailer says has passed no check that the header has.
    #[must_use]
    pub fn allowed_trailer(mut self, name: &str) -> Self {
        self.settings.allowed_trailers.push(name.to_ascii_lowercase());
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
    pub(crate) name: String,
    pub(crate) aliases: Vec<String>,
    pub(crate) contexts: Vec<Context>,
    pub(crate) valves: Vec<Box<dyn Valve>>,
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
    on_request_end: Option<RequestEndObserver>,
    watchdog: Duration,
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
            on_request_end: None,
            watchdog: Duration::from_secs(1),
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

    /// Takes a host for the default one, which serves names that no other host has; applications
    /// that were added before go with the old one.
    #[must_use]
    pub fn default_host(mut self, host: Host) -> Self {
        self.default_host = host;
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

    /// How fast the content of a request has to come, in bytes a second; 0 asks for nothing. 500 by
    /// default. [`ServerBuilder::body_timeout`] is the patience of each client: waiting for its
    /// content uses it up, and each byte that comes gives some of it back, a second's worth for so
    /// many bytes. Only time in which the server waits for the client counts.
    #[must_use]
    pub fn body_rate_min(mut self, bytes_per_second: u32) -> Self {
        self.engine.timeouts.body_rate_min = bytes_per_second;
        self
    }

    /// How long a client may take for a piece of output, of 128 KiB at most; then its connection
    /// fails, and threads that wait to write get an I/O error. 60 s by default.
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

    /// Requests of one connection, after which it closes; the last answer says `Connection: close`.
    /// 0, the default, is no limit.
    #[must_use]
    pub fn keep_alive_requests_max(mut self, count: u32) -> Self {
        self.http.keep_alive_requests_max = count;
        self
    }

    /// Requests of one core, at most, that are under way, from the end of their head to the end of
    /// their answer, parked ones included; one more is 503 with `Retry-After`. 65,536 by default.
    #[must_use]
    pub fn requests_max(mut self, count: usize) -> Self {
        self.http.requests_max = count;
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

    /// Reports, as a warning, a servlet or listener that holds a core for longer than `threshold`:
    /// its name, the core, and for how long. 1 s by default; zero turns it off.
    #[must_use]
    pub fn watchdog(mut self, threshold: Duration) -> Self {
        self.watchdog = threshold;
        self
    }

    /// Calls `observer` for each request when it has ended, with what an access log says of it. It
    /// runs on the request's core and must not block.
    #[must_use]
    pub fn on_request_end(
        mut self,
        observer: impl Fn(&AccessLogEntry<'_>) + Send + Sync + 'static,
    ) -> Self {
        self.on_request_end = Some(Box::new(observer));
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
        check_options(&self.engine, &self.http)?;
        let mut engine_options = self.engine.clone();
        for connector in &self.connectors {
            engine_options.addresses.push(connector.resolve()?);
        }
        let pool = Arc::new(WorkerPool::new(self.workers.clone()));
        let (drain_timeout, threshold) = (self.drain_timeout, self.watchdog);
        let service = Arc::new(self.assemble(Arc::clone(&pool) as Arc<dyn Pool>)?);
        let core_service = Arc::clone(&service);
        let engine =
            Engine::start(&engine_options, move |seat, io| core_service.core_handler(seat, io))
                .map_err(|error| Error::from(error.to_string()))?;
        let watchdog = match threshold {
            Duration::ZERO => None,
            threshold => Some(Watchdog::start(service.tree(), threshold)?),
        };
        let clock = Clock::system();
        Ok(RunningServer { engine, service, pool, drain_timeout, watchdog, clock })
    }

    /// Initialises the servlets and puts together what a server serves, without cores:
    /// [`ServerBuilder::start`] does it for those of this process, a simulation for its own.
    /// Blocking servlets run on `pool`.
    ///
    /// # Errors
    /// A URL pattern is wrong, a servlet's `init` failed.
    pub fn assemble(self, pool: Arc<dyn Pool>) -> Result<Service> {
        let mut hosts = vec![self.default_host];
        hosts.extend(self.hosts);
        let (mapper, hosts, contexts) = build_tree(hosts)?;
        let connectors = self.connectors.iter();
        let cores = match (self.engine.core_count, &self.engine.cpus) {
            (Some(count), _) => count,
            (None, Some(cpus)) => cpus.len(),
            (None, None) => ringcat_engine::cpus::default_core_count(),
        };
        let tree = ContainerTree {
            valves: self.valves.into_iter().map(ValveNode::new).collect(),
            hosts,
            contexts,
            mapper,
            uri_policy: UriPolicy::default(),
            connectors: connectors.map(|connector| connector.settings.clone()).collect(),
            body_bytes_max: self.body_bytes_max,
            write_timeout: self.engine.timeouts.write,
            pool,
            on_request_end: self.on_request_end,
            watch: Watch::new(cores),
        };
        Service::new(tree, self.http, self.access_log)
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
    service: Arc<Service>,
    pool: Arc<WorkerPool>,
    drain_timeout: Duration,
    watchdog: Option<Watchdog>,
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
        self.service.report(self.engine.seats())
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

    /// Stops the applications at a path, on every host: they take no more requests, and
    /// asynchronous ones have the unload delay to end
    /// ([`Context::unload_delay`](crate::Context::unload_delay)), which the calling thread waits
    /// for. Those that are left time out through their listeners right afterwards, whatever their
    /// timeout; then the servlets are destroyed.
    ///
    /// # Errors
    /// Not found: no application runs there. I/O: no thread for the rest of the stop.
    pub fn stop_context(&self, path: &str) -> Result<()> {
        self.service.stop_context(path, self.engine.seats())
    }

    /// Accepts no more connections. What is under way is answered, and its connections close.
    pub fn pause(&self) {
        self.engine.drain();
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
        let Self { engine, service, pool, clock, watchdog, .. } = self;
        engine.join();
        drop(watchdog);
        if !pool.shutdown(Duration::from_secs(5)) {
            tracing::warn!("worker threads are still busy; they are left behind");
        }
        service.destroy();
        drop(service);
        tracing::info!("drained in {:?}", clock.now().saturating_since(begun));
        report
    }

    /// How long the server has been up.
    pub fn uptime(&self) -> Duration {
        self.clock.now().saturating_since(Timestamp::ZERO)
    }
}

/// Zero is refused by its name. As a timeout it would be at once, and reads like never.
fn check_options(options: &EngineOptions, http: &Http11Options) -> Result<()> {
    if options.native.connections_max == 0 {
        return Err(Error::illegal_argument("connections_max is zero; write at least 1"));
    }
    if http.requests_max == 0 {
        return Err(Error::illegal_argument("requests_max is zero; write at least 1"));
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
