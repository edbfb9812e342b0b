//! What a server serves, without the cores that serve it: the tree of hosts, contexts and servlets,
//! and what is counted. Each core makes its handler from it, whatever backend it runs on. Stands
//! for `StandardService`.

use std::{
    rc::Rc,
    sync::{Mutex, MutexGuard, PoisonError, atomic::AtomicU8},
    time::Duration,
};

use ringcat_engine::{
    backend::Io,
    core_context::{CoreMessage, CoreSeat},
    sync::Arc,
    timestamp::Clock,
};
use ringcat_protocol::{
    http11::options::Http11Options,
    message::Message,
    protocol_handler::{ProtocolHandler, RequestCounters},
};

use crate::{
    access_log::AccessLog,
    container::{
        ContainerTree, ContextNode, ContextPhase, FilterNode, HostNode, ValveNode, WrapperNode,
    },
    context::{Context, FilterDeclaration},
    coyote_adapter::CoyoteAdapter,
    error::{Error, Result},
    error_pages,
    guard::{guard, guard_quiet},
    mapper::{ContextIndex, Mapper, MapperBuilder, WrapperIndex},
    request_note::RequestNote,
    server::Host,
    server_report::ServerReport,
    url_pattern::UrlPattern,
};

/// What a server serves, shared by its cores. See
/// [`ServerBuilder::assemble`](crate::server::ServerBuilder::assemble).
pub struct Service {
    tree: Arc<ContainerTree>,
    http: Http11Options,
    access_log: Option<AccessLog>,
    counters: Mutex<Vec<Arc<RequestCounters>>>,
}

impl Service {
    pub(crate) fn new(
        tree: ContainerTree,
        http: Http11Options,
        access_log: Option<AccessLog>,
    ) -> Result<Self> {
        for index in 0..tree.contexts.len() {
            error_pages::check(&tree, ContextIndex(index as u16))?;
        }
        init_servlets(&tree)?;
        Ok(Self { tree: Arc::new(tree), http, access_log, counters: Mutex::default() })
    }

    /// The handler of one core's connections. To be called on the core's thread, once.
    pub fn core_handler(
        &self,
        seat: &CoreSeat<Message<RequestNote>>,
        io: Rc<dyn Io>,
    ) -> ProtocolHandler<CoyoteAdapter> {
        let counters = Arc::new(RequestCounters::default());
        self.lock_counters().push(Arc::clone(&counters));
        let log = self.access_log.as_ref().map(AccessLog::core_log);
        let adapter = CoyoteAdapter::new(Arc::clone(&self.tree), io.clock(), log);
        ProtocolHandler::new(seat, io, self.http, counters, adapter)
    }

    pub(crate) fn tree(&self) -> Arc<ContainerTree> {
        Arc::clone(&self.tree)
    }

    /// What was counted so far, over the cores of `seats`.
    pub fn report(&self, seats: &[CoreSeat<Message<RequestNote>>]) -> ServerReport {
        let mut report = ServerReport::default();
        for seat in seats {
            report.connections_accepted += seat.counters.connections_accepted.get();
            report.connections_closed += seat.counters.connections_closed.get();
            report.connections_failed += seat.counters.connections_failed.get();
            report.connections_cut += seat.counters.connections_cut.get();
            report.deadlines.add(&seat.counters.deadlines);
            report.wakes += seat.inbox.wake_count();
        }
        for core in self.lock_counters().iter() {
            report.answered += core.answered();
            for (sum, status) in report.statuses.iter_mut().zip(&core.statuses) {
                *sum += status.get();
            }
            report.refused += core.refused.get();
            report.aborted += core.aborts.get();
            report.parked += core.parked.get();
            report.timed_out += core.timeouts.get();
            report.polls += core.polls.get();
        }
        report
    }

    /// Stops an application: it takes no more requests; asynchronous ones that are under way have
    /// its unload delay, then they time out through their listeners.
    pub(crate) fn stop_context(
        &self,
        path: &str,
        seats: &[CoreSeat<Message<RequestNote>>],
    ) -> Result<()> {
        let contexts = self.tree.contexts.iter().enumerate();
        let is_named = |context: &&(usize, &ContextNode)| {
            context.1.path == path && context.1.phase() == ContextPhase::Available
        };
        let stopping: Vec<_> = contexts.filter(|context| is_named(&context)).collect();
        if stopping.is_empty() {
            return Err(Error::not_found(format!("no application runs at {path:?}")));
        }
        for (index, context) in stopping {
            context.set_phase(ContextPhase::Stopping);
            let is_idle = wait_until(context.unload_delay, || context.in_progress() == 0);
            context.set_phase(ContextPhase::Stopped);
            let (tree, group) = (Arc::clone(&self.tree), ContextIndex(index as u16));
            if is_idle {
                destroy_servlets(context);
                continue;
            }
            let inboxes: Vec<_> = seats.iter().map(|seat| Arc::clone(&seat.inbox)).collect();
            std::thread::Builder::new().name("context-stop".to_owned()).spawn(move || {
                end_requests(&tree, group, || {
                    for inbox in &inboxes {
                        inbox.post(CoreMessage::Handler(Message::TimeOutGroup(group.0)));
                    }
                });
            })?;
        }
        Ok(())
    }

    /// Destroys the servlets, after the cores ended.
    pub fn destroy(&self) {
        for context in &self.tree.contexts {
            if context.phase() != ContextPhase::Stopped {
                destroy_servlets(context);
            }
        }
    }

    fn lock_counters(&self) -> MutexGuard<'_, Vec<Arc<RequestCounters>>> {
        self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Times out what is still under way in a stopped application, then destroys its servlets.
#[expect(clippy::disallowed_methods, reason = "never on a core: a stop has a thread of its own")]
fn end_requests(tree: &ContainerTree, index: ContextIndex, time_out: impl FnOnce()) {
    let context = tree.context(index);
    // Whoever completes just now does so before it is timed out.
    std::thread::sleep(STOP_GRACE);
    time_out();
    if !wait_until(STOP_MAX, || context.in_progress() == 0) {
        tracing::warn!("requests of the stopped application {:?} go on", context.path);
    }
    destroy_servlets(context);
}

/// How long after its stop the requests of an application are timed out.
const STOP_GRACE: Duration = Duration::from_millis(50);

/// How long requests may take to end that a stopped application timed out.
const STOP_MAX: Duration = Duration::from_secs(5);

/// How often a stopping application is looked at.
const STOP_PERIOD: Duration = Duration::from_millis(10);

/// Looks again and again, on the thread of the caller; `false` when `limit` is over.
#[expect(
    clippy::disallowed_methods,
    reason = "never on a core: whoever stops an application waits"
)]
fn wait_until(limit: Duration, is_met: impl Fn() -> bool) -> bool {
    let clock = Clock::system();
    let begun = clock.now();
    while !is_met() {
        if clock.now().saturating_since(begun) >= limit {
            return false;
        }
        std::thread::sleep(STOP_PERIOD);
    }
    true
}

fn destroy_servlets(context: &ContextNode) {
    for wrapper in &context.wrappers {
        guard_quiet("destroy of a servlet", || wrapper.servlet.destroy());
    }
}

/// The tree of hosts; the first is the default one. What concerns the whole server is `server`'s.
pub(crate) fn build_tree(hosts: Vec<Host>) -> Result<(Mapper, Vec<HostNode>, Vec<ContextNode>)> {
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
    Ok((mapper.build(), host_nodes, contexts))
}

fn build_context(
    mapper: &mut MapperBuilder,
    index: ContextIndex,
    context: Context,
) -> Result<ContextNode> {
    let Context {
        path,
        servlets,
        filters,
        valves,
        request_listeners,
        error_pages,
        welcome_files,
        is_cross_context,
        unload_delay,
    } = context;
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
            ends_on_peer_close: declaration.servlet.end_on_peer_close(),
            valves: declaration.valves.into_iter().map(ValveNode::new).collect(),
            accepted_methods: declaration.servlet.accepted_methods(),
            servlet: declaration.servlet,
        });
    }
    let filters =
        filters.into_iter().map(|filter| build_filter(&path, filter)).collect::<Result<_>>()?;
    let valves = valves.into_iter().map(ValveNode::new).collect();
    Ok(ContextNode {
        path,
        valves,
        filters,
        wrappers,
        request_listeners,
        error_pages,
        welcome_files,
        is_cross_context,
        unload_delay,
        phase: AtomicU8::new(ContextPhase::Available as u8),
        in_progress: Mutex::default(),
    })
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
