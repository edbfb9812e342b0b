//! Between the protocol and the containers: maps a request, runs it through the pipelines, and
//! carries an asynchronous one through its events. One a core. Stands for `CoyoteAdapter`.

use std::{
    cell::{Cell, RefCell},
    sync::PoisonError,
    time::Duration,
};

use ringcat_engine::{
    current::Current,
    sync::Arc,
    timestamp::{Clock, Timestamp},
    worker_pool::Job,
};
use ringcat_protocol::{
    SocketEvent,
    action_code::Hook,
    adapter::{Adapter, Call, Delegation, Dispatched, Pending, Plan, Returned, Serviced, TaskEnd},
    async_cell::Look,
    async_state_machine::{Event, Flag, Side},
    exchange::Exchange,
    http11::target::TargetForm,
    protocol_error::ProtocolError,
    response::Response as ProtocolResponse,
};

use crate::{
    access_log::{AccessLogEntry, CoreAccessLog},
    async_end::tell_complete,
    async_error, async_steps,
    container::{
        ContainerTree, ContextNode, ContextPhase, InProgress, record_failure, write_report,
    },
    dispatch::DispatcherType,
    guard::{guard, guard_drop, guard_drop_each, guard_quiet},
    methods::{Method, Methods},
    operation::ContainerOperation,
    request::{Request, host_of, version_name},
    request_listener,
    request_note::{Refusal, RequestNote},
    response::Response,
    servlet::ServiceMode,
    servlet_task::{ServletTask, TaskOutcome},
    uri,
};

/// The container, as the protocol of one core sees it.
pub struct CoyoteAdapter {
    tree: Arc<ContainerTree>,
    clock: Clock,
    access_log: Option<RefCell<CoreAccessLog>>,
    /// By context: this core's asynchronous requests.
    in_progress: Vec<Arc<InProgress>>,
    /// A path in the making; kept for its memory.
    decoded: RefCell<Vec<u8>>,
    /// Requests that the full pool refused since that was logged last.
    refused_by_pool: Cell<u64>,
    pool_warning_due: Cell<Timestamp>,
}

/// A full pool is logged once in this time.
const POOL_WARNING_PERIOD: Duration = Duration::from_secs(1);

impl CoyoteAdapter {
    pub(crate) fn new(
        tree: Arc<ContainerTree>,
        clock: Clock,
        access_log: Option<CoreAccessLog>,
    ) -> Self {
        let access_log = access_log.map(RefCell::new);
        let join = |context: &ContextNode| {
            let own = Arc::new(InProgress::default());
            let mut cores = context.in_progress.lock().unwrap_or_else(PoisonError::into_inner);
            cores.push(Arc::clone(&own));
            own
        };
        let in_progress = tree.contexts.iter().map(join).collect();
        Self {
            tree,
            clock,
            access_log,
            in_progress,
            decoded: RefCell::default(),
            refused_by_pool: Cell::new(0),
            pool_warning_due: Cell::new(Timestamp::ZERO),
        }
    }

    /// One line a second, however many requests are refused.
    fn warn_of_full_pool(&self) {
        let refused = self.refused_by_pool.get() + 1;
        let now = self.clock.now();
        if now < self.pool_warning_due.get() {
            self.refused_by_pool.set(refused);
            return;
        }
        self.refused_by_pool.set(0);
        self.pool_warning_due.set(now + POOL_WARNING_PERIOD);
        tracing::warn!(
            "the worker pool takes no more requests: {refused} answered with 503; more threads \
             (worker_threads) or a longer queue (worker_queue) would take them"
        );
    }

    /// Decodes, normalises and maps the target; `None` if the request can go to its servlet.
    fn map(&self, request: &mut Request) -> Option<Refusal> {
        let refuse = |status| Some(Refusal { status, allow: None, location: None });
        match request.inner.target.form {
            TargetForm::Origin | TargetForm::Absolute => {}
            TargetForm::Asterisk if request.method_kind() == Method::Options => {
                let allow = Some(Methods::ALL.allow_header());
                return Some(Refusal { status: 200, allow, location: None });
            }
            TargetForm::Asterisk => return refuse(400),
            TargetForm::Authority => return refuse(501),
        }
        let note = &mut *request.note;
        let mut path = self.decoded.borrow_mut();
        path.clear();
        let policy = &self.tree.uri_policy;
        let decoded =
            uri::decode_path(request.inner.raw_path(), policy, &mut path).and_then(|()| {
                match request.inner.raw_query() {
                    Some(query) => uri::check_query(query, policy),
                    None => Ok(()),
                }
            });
        if let Err(error) = decoded {
            return refuse(error.status);
        }
        note.path.clear();
        match std::str::from_utf8(&path) {
            Ok(path) => note.path.push_str(path),
            Err(_) => return refuse(400),
        }
        let host = host_of(&request.inner);
        note.mapping = self.tree.mapper.map(host, &note.path).map(|mapping| {
            let map = |path: &str| self.tree.mapper.map(host, path);
            self.tree.with_welcome_file(mapping, &mut note.path, map)
        });
        let stopped = note.mapping.filter(|mapping| {
            self.tree.context(mapping.context).phase() != ContextPhase::Available
        });
        if stopped.is_some() {
            note.mapping = None;
        }
        let Some(mapping) = note.mapping else { return refuse(404) };
        if mapping.redirect_to_slash {
            let query = request.inner.raw_query();
            let location = redirect_location(&note.path, query);
            return Some(Refusal { status: 302, allow: None, location: Some(location) });
        }
        self.check_method(request)
    }

    /// Whether the mapped servlet takes the method.
    fn check_method(&self, request: &Request) -> Option<Refusal> {
        let wrapper = self.tree.wrapper(request.note.mapping?)?;
        let method = request.method_kind();
        let accepted = wrapper.accepted_methods;
        let allow = || Some(accepted.unwrap_or(Methods::ALL).allow_header());
        if method == Method::Trace {
            return Some(Refusal { status: 405, allow: allow(), location: None });
        }
        let accepted = accepted?;
        if method == Method::Other {
            return Some(Refusal { status: 501, allow: None, location: None });
        }
        let is_taken = accepted.accepts(method) || method == Method::Options;
        (!is_taken).then(|| Refusal { status: 405, allow: allow(), location: None })
    }

    fn check_valves(&self, request: &Request) -> Option<Refusal> {
        use crate::container::Level;
        let mapping = request.note.mapping?;
        let levels = [Level::Engine, Level::Host, Level::Context, Level::Wrapper];
        let mut valves = levels.iter().flat_map(|level| self.tree.valves(*level, mapping));
        let status = valves.find_map(|valve| {
            guard(|| Ok(valve.valve.check_head(request))).unwrap_or_else(|error| {
                tracing::error!("check_head of valve {} failed: {error}", valve.name);
                Some(500)
            })
        })?;
        Some(Refusal { status, allow: None, location: None })
    }

    /// Runs the pipelines, or answers what no context is responsible for.
    fn run(&self, request: &mut Request, response: &mut Response) {
        match request.note.mapping {
            Some(mapping) => {
                request.in_callback(|request| self.tree.invoke(mapping, request, response));
            }
            None => answer_unmapped(request, response),
        }
    }

    /// The future that has the request now, counted as under way. One whose filters failed behind
    /// it is dropped: the request is back for its report.
    fn take_task(&self, request: &mut Request) -> Option<Box<ServletTask>> {
        let mut task = request.task.take()?;
        if let Some(error) = request.note.take(|seldom| seldom.error.take()) {
            task.restore(request);
            request.note.seldom_mut().error = Some(error);
            return None;
        }
        if let (Some(mapping), None) = (request.note.mapping, request.note.counted_in) {
            task.counted_in = Some(mapping.context);
            self.in_progress[usize::from(mapping.context.0)].begin();
        }
        task.leave_chain(request);
        Some(task)
    }

    /// What follows the first pass of the pipelines (Tomcat's `CoyoteAdapter.service`).
    fn after_service(&self, request: &mut Request, response: &mut Response) {
        if !request.bar_start() {
            response.finish();
            return;
        }
        if let (Some(mapping), None) = (request.note.mapping, request.note.counted_in) {
            request.note.counted_in = Some(mapping.context);
            self.in_progress[usize::from(mapping.context.0)].begin();
        }
        async_steps::read_all_if_due(request, response);
        if !request.is_async_completing() && request.note.seldom().error.is_some() {
            let error = request.note.seldom().error.clone();
            async_error::set_error_state(request, response, error, async_error::Fire::OnError);
        }
    }

    /// The dispatch step: the whole way again, to the target. `true`: the target blocks, so that
    /// a worker has to go the way.
    fn dispatch_step(&self, request: &mut Request, response: &mut Response) -> bool {
        // A listener of this very event may have asked for it.
        request.take_in(response);
        if let Some(target) = request.note.take(|seldom| seldom.dispatch_target.take()) {
            request.enter_dispatch(*target);
        }
        // The target reads and writes without listeners.
        if let Some(cell) = request.cell() {
            cell.clear_flag(Flag::ReadListened);
            cell.clear_flag(Flag::WriteListened);
            cell.clear_flag(Flag::WriteOwed);
        }
        request.inner.has_read_listener = false;
        response.inner.has_write_listener = false;
        if let Some(listener) = request.note.take(|seldom| seldom.read_listener.take()) {
            guard_drop("dropping a read listener", listener);
        }
        if let Some(listener) = request.note.take(|seldom| seldom.write_listener.take()) {
            guard_drop("dropping a write listener", listener);
        }
        if response.is_error_report_due() {
            // A response that is in error goes to its report; the dispatch is dropped.
            async_error::set_error_state(request, response, None, async_error::Fire::Nothing);
            return false;
        }
        let wrapper = request.note.mapping.and_then(|mapping| self.tree.wrapper(mapping));
        if wrapper.is_some_and(|wrapper| wrapper.mode == ServiceMode::Blocking) {
            return true;
        }
        self.run(request, response);
        request.task = self.take_task(request);
        if request.task.is_none() {
            self.after_dispatch(request, response);
        }
        false
    }

    /// What follows when the target of a dispatch has returned.
    fn after_dispatch(&self, request: &mut Request, response: &mut Response) {
        if request.note.seldom().error.is_some() {
            let error = request.note.seldom().error.clone();
            async_error::set_error_state(request, response, error, async_error::Fire::OnError);
        }
        if !request.is_async() {
            // The target did not begin another round, nor did its failure (the second of one
            // round changes nothing): this is the request's end.
            tell_complete(request, response);
        }
    }
}

impl Adapter for CoyoteAdapter {
    type Note = RequestNote;
    type Operation = ContainerOperation;

    fn post_parse(&self, call: Call<Self>) -> (Exchange<RequestNote>, Plan) {
        let (mut request, response) = open(call);
        if request.note.tree.is_none() {
            request.note.tree = Some(Arc::clone(&self.tree));
        }
        let refusal = self.map(&mut request).or_else(|| self.check_valves(&request));
        if let Some(refusal) = refusal {
            request.note.seldom_mut().refusal = Some(refusal);
        }
        let wrapper = request.note.mapping.and_then(|mapping| self.tree.wrapper(mapping));
        request.inner.ends_on_peer_close = wrapper
            .and_then(|wrapper| wrapper.ends_on_peer_close)
            .unwrap_or_else(|| self.tree.connector(request.inner.listener).ends_on_peer_close);
        let plan = match wrapper {
            Some(wrapper) if request.note.seldom().refusal.is_none() => match wrapper.mode {
                ServiceMode::Collected => {
                    Plan::WhenBodyComplete { body_bytes_max: self.tree.body_bytes_max }
                }
                ServiceMode::Streaming => Plan::AtEndOfHead,
                ServiceMode::Blocking => Plan::Delegate,
            },
            Some(_) | None => Plan::WithoutBody,
        };
        (close(request, response), plan)
    }

    fn service(&self, call: Call<Self>) -> Serviced<RequestNote> {
        let (mut request, mut response) = open(call);
        self.run(&mut request, &mut response);
        if let Some(task) = self.take_task(&mut request) {
            return pending(task, response);
        }
        self.after_service(&mut request, &mut response);
        Serviced::Returned(close(request, response))
    }

    fn end_task(&self, call: Call<Self>, end: TaskEnd) -> Exchange<RequestNote> {
        let (mut request, mut response) = open(call);
        if !request.note.seldom().previous_listeners.is_empty()
            && let Some(context) = request.note.context.clone()
        {
            request.in_callback(|request| request.tell_of_start(&context));
        }
        let Some(outcome) = request.note.take(|seldom| seldom.task_outcome.take()) else {
            return close(request, response);
        };
        let TaskOutcome { result, is_own_round, servlet } = *outcome;
        match (end, result) {
            (TaskEnd::Ready, Some(Err(error))) => {
                let name = self.tree.wrapper(servlet).map_or("", |wrapper| &wrapper.name);
                record_failure(&mut request, &mut response, name, error);
                if !request.is_async_completing() {
                    let error = request.note.seldom().error.clone();
                    async_error::set_error_state(
                        &mut request,
                        &mut response,
                        error,
                        async_error::Fire::OnError,
                    );
                }
            }
            (TaskEnd::Ready, _) if is_own_round => {
                let completed = request
                    .cell()
                    .map(|cell| cell.call(Some(Event::Complete(Side::Request)), None, Look::Never));
                if let Some(Err(error)) = completed {
                    tracing::debug!("a request was ended while its future returned: {error}");
                }
            }
            (TaskEnd::Ready | TaskEnd::Dropped, _) => {}
        }
        close(request, response)
    }

    fn async_dispatch(&self, call: Call<Self>, event: SocketEvent) -> Dispatched<RequestNote> {
        let (mut request, mut response) = open(call);
        let mut is_connection_usable = true;
        if !request.is_async() {
            response.inner.is_suspended = false;
        }
        match event {
            SocketEvent::Timeout => async_steps::timeout_step(&mut request, &mut response),
            SocketEvent::Error => {
                let is_lost =
                    request.inner.failure.is_some() || request.inner.body_error().is_some();
                is_connection_usable = !is_lost;
                async_steps::error_step(&mut request, &mut response);
            }
            SocketEvent::OpenRead
                if request.is_async()
                    && !request.is_async_dispatching()
                    && request.is_read_due() =>
            {
                is_connection_usable = async_steps::read_step(&mut request, &mut response);
            }
            SocketEvent::OpenWrite
                if request.is_async()
                    && !request.is_async_dispatching()
                    && response.is_write_due() =>
            {
                is_connection_usable = async_steps::write_step(&mut request, &mut response);
            }
            SocketEvent::OpenRead | SocketEvent::OpenWrite => {}
        }
        let is_report_due = response.is_error_report_due() && request.is_async();
        let mut is_for_worker = false;
        if request.is_async_dispatching() && response.is_drained() {
            is_for_worker = self.dispatch_step(&mut request, &mut response);
        } else if is_report_due && request.is_async_completing() {
            self.run(&mut request, &mut response);
        }
        if !request.is_async() && !is_for_worker {
            response.finish();
        }
        if !is_connection_usable && request.inner.failure.is_none() {
            response.close_now();
        }
        let serviced = match request.task.take() {
            Some(task) => pending(task, response),
            None => Serviced::Returned(close(request, response)),
        };
        Dispatched { serviced, is_connection_usable, is_for_worker }
    }

    fn delegate(
        &self,
        delegation: Delegation<Self>,
        hook: Hook<ContainerOperation>,
    ) -> Serviced<RequestNote> {
        let Delegation { exchange, cell, resume, name } = delegation;
        let Exchange { request, response, note } = exchange;
        let clock = self.clock;
        let shadow = Box::new(ProtocolResponse::default());
        let parts = Arc::new(std::sync::Mutex::new(Some((request, note, resume))));
        let job_parts = Arc::clone(&parts);
        let tree = Arc::clone(&self.tree);
        let job: Job = Box::new(move || {
            let taken = job_parts.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
            let Some((inner, note, resume)) = taken else { return };
            let hook = Hook::Worker { cell, clock };
            let mut request = Request { inner, note, hook: hook.clone(), task: None };
            let mut response = Response::new(shadow, hook);
            response.write_timeout = tree.write_timeout;
            let current = Current { exchange: Some(name), ..Current::get() };
            current.scope(|| {
                if let Some(mapping) = request.note.mapping {
                    tree.invoke(mapping, &mut request, &mut response);
                }
            });
            let Request { inner, note, .. } = request;
            resume.resume(Returned { request: inner, note });
        });
        if self.tree.pool.try_submit(job).is_ok() {
            return Serviced::Delegated(response);
        }
        let taken = parts.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        let (inner, note, _resume) = taken.expect("a refused job did not run");
        let mut request = Request { inner, note, hook: hook.clone(), task: None };
        let mut response = Response::new(response, hook);
        self.warn_of_full_pool();
        response.inner.status = 503;
        ask_to_retry(&mut response);
        write_report(&mut response);
        if request.note.dispatcher == DispatcherType::Async {
            if let Some(cell) = request.cell() {
                async_error::advance(&cell, Event::Dispatched);
            }
            // It was to be the target of a dispatch: this is the request's end.
            tell_complete(&mut request, &mut response);
        }
        response.finish();
        request.note.take(|seldom| seldom.refusal.take());
        Serviced::Returned(close(request, response))
    }

    fn resume(&self, call: Call<Self>) -> Exchange<RequestNote> {
        let (mut request, mut response) = open(call);
        if !request.note.seldom().previous_listeners.is_empty()
            && let Some(context) = request.note.context.clone()
        {
            request.in_callback(|request| request.tell_of_start(&context));
        }
        crate::container::take_back(&request, &mut response);
        crate::error_pages::render(&mut request, &mut response);
        crate::container::report(&request, &mut response);
        if request.note.dispatcher == DispatcherType::Request && !request.bar_start() {
            request_listener::tell_destroyed(&mut request);
        }
        if request.note.dispatcher == DispatcherType::Async {
            self.after_dispatch(&mut request, &mut response);
        }
        self.after_service(&mut request, &mut response);
        close(request, response)
    }

    fn on_complete(&self, call: Call<Self>) -> Exchange<RequestNote> {
        let (mut request, mut response) = open(call);
        // An error that was asked for through the context, after the pipeline had returned.
        response.inner.is_suspended = false;
        crate::container::report(&request, &mut response);
        tell_complete(&mut request, &mut response);
        close(request, response)
    }

    fn apply(
        &self,
        call: Call<Self>,
        operations: Vec<ContainerOperation>,
    ) -> Exchange<RequestNote> {
        let (mut request, mut response) = open(call);
        for operation in operations {
            if operation.is_of_response() {
                response.apply(operation);
            } else {
                response.inner.has_write_listener |=
                    matches!(operation, ContainerOperation::SetWriteListener(_));
                request.apply(operation);
            }
        }
        close(request, response)
    }

    fn apply_delegated(
        &self,
        response: Box<ProtocolResponse>,
        hook: Hook<ContainerOperation>,
        operations: Vec<ContainerOperation>,
        deferred: &mut Vec<ContainerOperation>,
    ) -> Box<ProtocolResponse> {
        let mut response = Response::new(response, hook);
        for operation in operations {
            if operation.is_of_response() {
                response.apply(operation);
            } else {
                deferred.push(operation);
            }
        }
        response.inner
    }

    fn refuse(&self, call: Call<Self>, error: ProtocolError) -> Exchange<RequestNote> {
        let (request, mut response) = open(call);
        if !response.inner.is_committed {
            response.inner.status = error.status;
            response.inner.message = Some(Box::new(error.reason.to_owned()));
            if error.status == 503 {
                ask_to_retry(&mut response);
            }
            write_report(&mut response);
        }
        response.finish();
        close(request, response)
    }

    fn log(&self, exchange: &mut Exchange<RequestNote>) {
        if self.access_log.is_none() && self.tree.on_request_end.is_none() {
            return;
        }
        let Exchange { request, response, .. } = exchange;
        let head = request.head.get();
        let now = self.clock.now();
        let duration = now.saturating_since(request.started);
        let unix = self.clock.unix_time().saturating_sub(duration);
        let entry = AccessLogEntry {
            remote: request.peer.into(),
            unix_millis: u64::try_from(unix.as_millis()).unwrap_or(u64::MAX),
            method: head.method(),
            target: head.target(),
            version: version_name(head.version()).as_bytes(),
            status: response.log_status.unwrap_or(response.status),
            bytes_sent: response.written_bytes,
            duration,
        };
        if let Some(access_log) = &self.access_log {
            access_log.borrow_mut().log(&entry);
        }
        if let Some(on_request_end) = &self.tree.on_request_end {
            guard_quiet("the observer of ended requests", || on_request_end(&entry));
        }
    }

    fn group(&self, note: &RequestNote) -> Option<u16> {
        note.mapping.map(|mapping| mapping.context.0)
    }

    fn discard(&self, operations: Vec<ContainerOperation>) {
        guard_drop_each("dropping an operation that came too late", operations);
    }

    fn recycle(&self, note: &mut RequestNote) {
        if let Some(context) = note.counted_in.take() {
            self.in_progress[usize::from(context.0)].end();
        }
        note.recycle();
    }
}

/// Wraps an exchange for the length of a call.
fn open(call: Call<CoyoteAdapter>) -> (Request, Response) {
    let Call { exchange, hook, .. } = call;
    let Exchange { request, response, note } = exchange;
    let request = Request { inner: request, note, hook: hook.clone(), task: None };
    (request, Response::new(response, hook))
}

/// The processor keeps the response, and polls the future on.
fn pending(task: Box<ServletTask>, response: Response) -> Serviced<RequestNote> {
    Serviced::Pending(Pending { response: response.inner, task })
}

/// Takes it out of its wrapping.
fn close(request: Request, response: Response) -> Exchange<RequestNote> {
    Exchange { request: request.inner, note: request.note, response: response.inner }
}

/// Answers a request that no context takes.
fn answer_unmapped(request: &mut Request, response: &mut Response) {
    let refusal = request.note.take(|seldom| seldom.refusal.take());
    let not_found = Refusal { status: 404, allow: None, location: None };
    let refusal = refusal.unwrap_or(not_found);
    response.inner.status = refusal.status;
    if let Some(allow) = refusal.allow
        && let Err(error) = response.set_header("Allow", allow)
    {
        tracing::error!("Allow could not be set: {error}");
    }
    if refusal.status >= 400 {
        write_report(response);
    }
}

fn redirect_location(path: &str, query: Option<&[u8]>) -> String {
    let mut location = uri::encode_path(path);
    location.push('/');
    if let Some(query) = query {
        location.push('?');
        location.push_str(&String::from_utf8_lossy(query));
    }
    location
}

/// What has no room now may have it in a second.
fn ask_to_retry(response: &mut Response) {
    if let Err(error) = response.set_header("Retry-After", "1") {
        tracing::error!("Retry-After could not be set: {error}");
    }
}
