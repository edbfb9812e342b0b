//! Starts, drains and joins the cores of a server: probes the ring, binds the ports once for all
//! cores, pins a thread a core, and hands out the doors to them.

use std::{
    fmt, io,
    net::SocketAddr,
    panic::AssertUnwindSafe,
    rc::Rc,
    sync::mpsc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use crate::{
    backend::{Backend, Io},
    connection_handler::ConnectionHandler,
    core_context::{CoreMessage, CoreSeat, CoreTimeouts},
    core_counters::CoreCounters,
    core_thread::Core,
    cpus,
    current::Current,
    event_fd::EventFd,
    inbox::Inbox,
    key::CoreId,
    native::{
        backend::NativeBackend,
        listen::{self, Listener},
        options::NativeOptions,
        probe::{self, Capabilities, Refusal},
    },
    sync::Arc,
};

/// What an engine is made of.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Where to listen; port 0 picks one.
    pub addresses: Vec<SocketAddr>,
    /// CPUs to pin cores to, one core each, in this order; CPUs outside the process's affinity
    /// mask are refused. `None`: the first `core_count` of the mask.
    pub cpus: Option<Vec<usize>>,
    /// Cores to start. `None`: one for each CPU that the affinity mask and the CPU quota allow.
    pub core_count: Option<usize>,
    /// Names the threads: `<prefix>-uring-core-<n>`.
    pub thread_prefix: String,
    /// The native ring.
    pub native: NativeOptions,
    /// Timeouts of connections.
    pub timeouts: CoreTimeouts,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            addresses: Vec::new(),
            cpus: None,
            core_count: None,
            thread_prefix: "http".to_owned(),
            native: NativeOptions::default(),
            timeouts: CoreTimeouts::default(),
        }
    }
}

/// Why an engine did not start. One line that names what was wrong and what to do.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// This host does not let us drive io_uring.
    Ring(Refusal),
    /// An option of the ring is out of range; the text names it.
    Options(io::Error),
    /// The choice of cores or CPUs is impossible.
    Cpus(String),
    /// An address cannot be listened on; the text names it.
    Listen(io::Error),
    /// A core's ring could not be made.
    CoreRing(CoreId, Refusal),
    /// A core's thread could not be started.
    Thread(CoreId, io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ring(refusal) => write!(f, "{refusal}"),
            Self::Cpus(why) => f.write_str(why),
            Self::Options(error) | Self::Listen(error) => write!(f, "{error}"),
            Self::CoreRing(core, refusal) => write!(f, "core {core}: {refusal}"),
            Self::Thread(core, error) => write!(
                f,
                "core {core}: its thread could not be started: {error}; raise the limit of \
                 processes (ulimit -u, TasksMax), or start fewer cores with --cores"
            ),
        }
    }
}

impl std::error::Error for StartError {}

/// Running cores.
pub struct Engine<M: Send> {
    addresses: Vec<SocketAddr>,
    seats: Vec<CoreSeat<M>>,
    threads: Vec<JoinHandle<()>>,
    pinned_cpus: Vec<usize>,
}

/// Makes the handler of a core, on the core's thread.
type CoreFactory<H> = dyn Fn(&CoreSeat<<H as ConnectionHandler>::Message>, Rc<dyn Io>) -> H;

/// Exit status after a panic of ours on a core: a bug, and no state of the core is to be trusted.
const EXIT_STATUS_BUG: i32 = 70;

impl<M: Send + 'static> Engine<M> {
    /// Starts the cores. `factory` runs on each core's own thread and makes its handler.
    ///
    /// # Errors
    /// See [`StartError`]. Nothing is left running then.
    pub fn start<H, F>(options: &EngineOptions, factory: F) -> Result<Self, StartError>
    where
        H: ConnectionHandler<Message = M>,
        F: Fn(&CoreSeat<M>, Rc<dyn Io>) -> H + Send + Sync + 'static,
    {
        options.native.check().map_err(StartError::Options)?;
        let cpus = choose_cpus(options)?;
        let capabilities = probe_apart(&options.native)?;
        let listeners = listen::bind(&options.addresses, cpus.len(), options.native.backlog)
            .map_err(StartError::Listen)?;
        let addresses = listeners[0].iter().map(|listener| listener.local_addr).collect();
        let mut engine = Self {
            addresses,
            seats: Vec::with_capacity(cpus.len()),
            threads: Vec::with_capacity(cpus.len()),
            pinned_cpus: cpus,
        };
        match engine.start_cores(options, capabilities, listeners, &Arc::new(factory)) {
            Ok(()) => Ok(engine),
            Err(error) => {
                // Those that did start may have connections already.
                engine.drain();
                engine.end_drain();
                engine.join();
                Err(error)
            }
        }
    }

    fn start_cores<H, F>(
        &mut self,
        options: &EngineOptions,
        capabilities: Capabilities,
        listeners: Vec<Vec<Listener>>,
        factory: &Arc<F>,
    ) -> Result<(), StartError>
    where
        H: ConnectionHandler<Message = M>,
        F: Fn(&CoreSeat<M>, Rc<dyn Io>) -> H + Send + Sync + 'static,
    {
        let core_count = listeners.len();
        let (ready, started) = mpsc::channel();
        for (index, listeners) in listeners.into_iter().enumerate() {
            let id = CoreId(u16::try_from(index).expect("choose_cpus bounds the count"));
            let wake =
                Arc::new(EventFd::new().map_err(|error| {
                    StartError::CoreRing(id, Refusal::of_core(&error, core_count))
                })?);
            let seat = CoreSeat {
                id,
                inbox: Arc::new(Inbox::new(Box::new(Arc::clone(&wake)))),
                counters: Arc::new(CoreCounters::default()),
            };
            self.seats.push(seat.clone());
            let start = CoreStart {
                seat,
                cpu: self.pinned_cpus[index],
                listeners,
                wake,
                capabilities,
                options: options.clone(),
                ready: ready.clone(),
            };
            let factory = Arc::clone(factory);
            let name = format!("{}-uring-core-{id}", options.thread_prefix);
            let thread = std::thread::Builder::new()
                .name(name)
                .spawn(move || run_core(start, &*factory))
                .map_err(|error| StartError::Thread(id, error))?;
            self.threads.push(thread);
        }
        drop(ready);
        self.await_start(&started)
    }

    /// Where the engine listens, ports resolved, in the order of the options.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The CPU of each core.
    pub fn pinned_cpus(&self) -> &[usize] {
        &self.pinned_cpus
    }

    /// The doors to the cores and what they count.
    pub fn seats(&self) -> &[CoreSeat<M>] {
        &self.seats
    }

    /// Begins the drain: no new connections, what has arrived is served, each core ends when its
    /// last connection is closed.
    pub fn drain(&self) {
        self.post_all(|| CoreMessage::Drain);
    }

    /// The drain limit passed: parked exchanges time out through their listeners, and what is
    /// still open a moment later is cut.
    pub fn end_drain(&self) {
        self.post_all(|| CoreMessage::DrainLimit);
    }

    /// Waits until all cores have ended; `false` if they have not when `limit` is over.
    pub fn wait(&self, limit: Option<Duration>) -> bool {
        let deadline = limit.map(|limit| Instant::now() + limit);
        while self.threads.iter().any(|thread| !thread.is_finished()) {
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        true
    }

    /// Joins all cores; call it after [`Engine::wait`] said that they ended.
    pub fn join(self) {
        for thread in self.threads {
            if thread.join().is_err() {
                tracing::error!("a core thread panicked");
            }
        }
    }

    fn post_all(&self, message: impl Fn() -> CoreMessage<M>) {
        for seat in &self.seats {
            seat.inbox.post(message());
        }
    }

    fn await_start(
        &self,
        started: &mpsc::Receiver<(CoreId, io::Result<()>)>,
    ) -> Result<(), StartError> {
        let mut first_error = None;
        for (core, result) in started.iter().take(self.seats.len()) {
            if let Err(error) = result {
                let refusal = Refusal::of_core(&error, self.seats.len());
                first_error.get_or_insert(StartError::CoreRing(core, refusal));
            }
        }
        first_error.map_or(Ok(()), Err)
    }
}

/// What a core's thread begins with.
struct CoreStart<M: Send> {
    seat: CoreSeat<M>,
    cpu: usize,
    listeners: Vec<Listener>,
    wake: Arc<EventFd>,
    capabilities: Capabilities,
    options: EngineOptions,
    ready: mpsc::Sender<(CoreId, io::Result<()>)>,
}

/// The body of a core's thread. Handlers guard application code themselves; a panic that comes
/// out here is ours, and ends the process rather than leave a core silently missing.
fn run_core<H: ConnectionHandler>(start: CoreStart<H::Message>, factory: &CoreFactory<H>) {
    let id = start.seat.id;
    let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| serve_core(start, factory)));
    if outcome.is_err() {
        tracing::error!("core {id}: internal error, see the panic above; the process ends");
        std::process::exit(EXIT_STATUS_BUG);
    }
}

fn serve_core<H: ConnectionHandler>(start: CoreStart<H::Message>, factory: &CoreFactory<H>) {
    let CoreStart { seat, cpu, listeners, wake, capabilities, options, ready } = start;
    name_kernel_thread(seat.id);
    if !cpus::pin_current_thread(cpu) {
        tracing::warn!("core {}: could not be pinned to CPU {cpu}", seat.id);
    }
    let listener_count = listeners.len();
    let backend = NativeBackend::open(&capabilities, &options.native, listeners, wake);
    let report = |result| {
        // The starter may have given up on us already.
        ready.send((seat.id, result)).is_ok()
    };
    let backend = match backend {
        Ok(backend) => backend,
        Err(error) => {
            report(Err(error));
            return;
        }
    };
    let current = Current { core: Some(seat.id), ..Current::default() };
    current.scope(|| {
        let io = backend.io();
        let handler = factory(&seat, Rc::clone(&io));
        let mut core = Core::new(&seat, io, options.timeouts, listener_count, handler);
        report(Ok(()));
        let services = Rc::clone(core.services());
        if let Err(error) = services.scope(|| backend.run(&mut core)) {
            tracing::error!("core {}: the ring failed: {error}", seat.id);
            std::process::exit(EXIT_STATUS_BUG);
        }
    });
}

/// Probes on a thread of its own: after a ring is dropped, the kernel lets the next blocking call
/// of its thread fail with EINTR, and the caller's thread is the application's.
fn probe_apart(options: &NativeOptions) -> Result<Capabilities, StartError> {
    let probed = std::thread::scope(|scope| scope.spawn(|| probe::probe(options)).join());
    match probed {
        Ok(probed) => probed.map_err(StartError::Ring),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Tools show the kernel's name of a thread, 15 characters of it: the number must be among them.
fn name_kernel_thread(core: CoreId) {
    if let Err(error) = std::fs::write("/proc/thread-self/comm", format!("uring-core-{core}")) {
        tracing::debug!("core {core}: the kernel's name of the thread stays: {error}");
    }
}

fn choose_cpus(options: &EngineOptions) -> Result<Vec<usize>, StartError> {
    let allowed = cpus::allowed();
    let chosen = match &options.cpus {
        Some(cpus) => cpus.clone(),
        None => allowed.clone(),
    };
    if let Some(outside) = chosen.iter().find(|cpu| !allowed.contains(cpu)) {
        return Err(StartError::Cpus(format!(
            "CPU {outside} is outside this process's affinity mask {allowed:?}; choose others, \
             or start the process with a wider mask (taskset, cpuset)"
        )));
    }
    let default_count =
        if options.cpus.is_some() { chosen.len() } else { cpus::default_core_count() };
    let count = options.core_count.unwrap_or(default_count);
    if count == 0 || count > usize::from(u16::MAX) {
        return Err(StartError::Cpus(format!(
            "{count} cores asked for; allowed are 1 to {}",
            u16::MAX
        )));
    }
    if chosen.is_empty() {
        return Err(StartError::Cpus("no CPU to run on: the list of CPUs is empty".to_owned()));
    }
    if options.cpus.is_some() && options.core_count.is_some_and(|count| count != chosen.len()) {
        return Err(StartError::Cpus(format!(
            "{count} cores and {} CPUs asked for; leave one of the two out, or make them equal",
            chosen.len()
        )));
    }
    // More cores than CPUs share CPUs in turn: slower, but right, and useful for tests.
    Ok((0..count).map(|index| chosen[index % chosen.len()]).collect())
}
