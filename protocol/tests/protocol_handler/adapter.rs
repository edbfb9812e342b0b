//! A small container: what a request does is chosen by its path, what happened to it is written
//! into a journal, and its asynchronous and blocking sides are left for the test to run.

use std::sync::{
    Mutex,
    atomic::{AtomicBool, Ordering},
};

use bytes::Bytes;
use ringcat_engine::sync::Arc;
use ringcat_protocol::{
    SocketEvent,
    action_code::{ActionCode, Hook},
    adapter::{
        Adapter, Call, Delegation, Dispatched, Plan, ResumeHandle, Returned, Serviced, TaskEnd,
    },
    async_cell::{Advance, AsyncCell, CallError, Direction, Look, Operation, WriteRefused},
    async_state_machine::{AsyncState, Event, Side},
    exchange::Exchange,
    protocol_error::ProtocolError,
    request::Request,
    response::Response,
};

use crate::support::Kernel;

/// Content that the collecting paths take.
pub(crate) const BODY_BYTES_MAX: u64 = 64;

/// The adapter's part of an exchange.
#[derive(Debug, Default)]
pub(crate) struct Note {
    target: Option<String>,
}

/// What another thread asks of an exchange.
#[derive(Debug)]
pub(crate) enum Op {
    Write(Bytes),
    Flush,
    Target(String),
    /// Announces on the first channel that the list is locked, and keeps it so until the second
    /// one says otherwise.
    Lock(std::sync::mpsc::Sender<()>, Mutex<std::sync::mpsc::Receiver<()>>),
}

impl Operation for Op {
    fn credit_bytes(&self) -> usize {
        match self {
            Self::Write(bytes) => bytes.len(),
            Self::Flush | Self::Target(_) | Self::Lock(..) => 0,
        }
    }

    fn commits(&self) -> bool {
        // Asked inside the lock of the list.
        if let Self::Lock(locked, unlock) = self
            && locked.send(()).is_ok()
        {
            let _ = unlock.lock().unwrap().recv();
        }
        matches!(self, Self::Flush)
    }
}

/// What an application keeps of an asynchronous request.
#[derive(Clone)]
pub(crate) struct Handle(pub(crate) Arc<AsyncCell<Op>>);

impl Handle {
    pub(crate) fn write(&self, bytes: impl Into<Bytes>) -> Result<(), WriteRefused<Op>> {
        self.0.try_write(Op::Write(bytes.into()))
    }

    pub(crate) fn flush(&self) -> Result<(), CallError> {
        self.0.call(None, Some(Op::Flush), Look::Always).map(drop)
    }

    pub(crate) fn complete(&self) -> Result<(), CallError> {
        self.0.call(Some(Event::Complete(self.0.side())), None, Look::Always).map(drop)
    }

    pub(crate) fn dispatch(&self, path: &str) -> Result<(), CallError> {
        let event = Event::Dispatch(self.0.side());
        self.0.call(Some(event), Some(Op::Target(path.into())), Look::Always).map(drop)
    }

    /// The path of the request, from the copy of its head that other threads share.
    pub(crate) fn path(&self) -> &[u8] {
        self.0.head().unwrap().target()
    }

    pub(crate) fn set_timeout_millis(&self, millis: i64) {
        self.0.set_timeout_millis(millis);
        self.0.post_look();
    }
}

/// A blocking servlet that waits for a thread.
pub(crate) struct Job {
    pub(crate) request: Box<Request>,
    pub(crate) note: Box<Note>,
    pub(crate) handle: Handle,
    pub(crate) resume: ResumeHandle<Note>,
}

impl Job {
    pub(crate) fn finish(self) {
        let Self { request, note, resume, .. } = self;
        resume.resume(Returned { request, note });
    }
}

type AtTheStart = Box<dyn FnOnce(&Handle) + Send>;

/// What the test sees of the adapter.
#[derive(Default)]
pub(crate) struct Stage {
    journal: Mutex<Vec<String>>,
    pub(crate) handles: Mutex<Vec<Handle>>,
    pub(crate) jobs: Mutex<Vec<Job>>,
    at_the_end: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    at_the_start: Mutex<Option<AtTheStart>>,
    /// Whether `on_complete` flushes; what is written there still goes out.
    pub(crate) flushes_at_the_end: AtomicBool,
}

impl Stage {
    pub(crate) fn note(&self, line: impl Into<String>) {
        self.journal.lock().unwrap().push(line.into());
    }

    /// Runs `f` in the next `on_complete`.
    pub(crate) fn at_the_end(&self, f: impl FnOnce() + Send + 'static) {
        *self.at_the_end.lock().unwrap() = Some(Box::new(f));
    }

    /// Runs `f` when the next request has become asynchronous.
    pub(crate) fn at_the_start(&self, f: impl FnOnce(&Handle) + Send + 'static) {
        *self.at_the_start.lock().unwrap() = Some(Box::new(f));
    }

    /// How often something happened.
    pub(crate) fn count(&self, line: &str) -> usize {
        self.journal.lock().unwrap().iter().filter(|other| *other == line).count()
    }

    pub(crate) fn journal(&self) -> Vec<String> {
        self.journal.lock().unwrap().clone()
    }

    /// The handle of the asynchronous request that started last.
    pub(crate) fn handle(&self) -> Handle {
        self.handles.lock().unwrap().last().unwrap().clone()
    }

    pub(crate) fn job(&self) -> Job {
        self.jobs.lock().unwrap().pop().unwrap()
    }
}

/// The adapter of the tests.
pub(crate) struct TestAdapter {
    pub(crate) stage: Arc<Stage>,
    pub(crate) kernel: std::rc::Rc<Kernel>,
    pub(crate) async_timeout_millis: i64,
}

impl TestAdapter {
    fn run(&self, path: &str, exchange: &mut Exchange<Note>, hook: &Hook<Op>) {
        self.stage.note(format!("run {path}"));
        let Exchange { request, response, .. } = exchange;
        match path {
            "/hello" => write(response, hook, b"hello"),
            "/echo" => {
                let body = request.body.take_available();
                write(response, hook, &body);
            }
            "/chunked" => {
                write(response, hook, b"one,");
                flush(response, hook);
                write(response, hook, b"two");
                flush(response, hook);
                write(response, hook, b"");
            }
            "/large" => write(response, hook, &vec![b'x'; 100_000]),
            "/204" => response.status = 204,
            "/304" => {
                response.status = 304;
                write(response, hook, b"not sent");
            }
            "/reject" => {
                response.status = 403;
                write(response, hook, b"no");
            }
            "/ignore" => write(response, hook, b"ignored"),
            "/stream" | "/deaf" => {
                request.has_read_listener = true;
                self.start(request, hook);
                let cell = hook.existing_cell().expect("start made one");
                request.is_read_due = cell.is_ready_or_owed(Direction::Read);
            }
            "/park" => self.start(request, hook),
            "/complete" => {
                self.start(request, hook);
                write(response, hook, b"at once");
                self.stage.handle().complete().unwrap();
            }
            "/backlog" => {
                self.start(request, hook);
                let handle = self.stage.handle();
                handle.write(vec![b'b'; 70_000]).unwrap();
                self.apply_pending(&handle, response, hook);
                flush(response, hook);
            }
            _ => panic!("no such path: {path}"),
        }
    }

    /// What a flush inside a callback does first: the operations that others left come before.
    fn apply_pending(&self, handle: &Handle, response: &mut Response, hook: &Hook<Op>) {
        let ringcat_protocol::async_cell::Took::Taken { operations, .. } = handle.0.take() else {
            return;
        };
        let Hook::Core(core) = hook else { panic!("a callback runs on the core") };
        core.note_applied(operations.iter().map(Operation::credit_bytes).sum());
        for operation in operations {
            apply(response, hook, operation);
        }
    }

    fn start(&self, request: &mut Request, hook: &Hook<Op>) {
        let cell = hook.async_cell(request);
        cell.call(Some(Event::AsyncStart), None, Look::Never).unwrap();
        cell.set_start_nanos(self.kernel.time().as_nanos());
        cell.set_timeout_millis(self.async_timeout_millis);
        let handle = Handle(cell);
        if let Some(f) = self.stage.at_the_start.lock().unwrap().take() {
            f(&handle);
        }
        self.stage.handles.lock().unwrap().push(handle);
    }

    /// The data step of a read listener.
    fn read(&self, exchange: &mut Exchange<Note>, hook: &Hook<Op>, cell: &AsyncCell<Op>) {
        if step(cell, Event::Operation).is_none_or(|effects| effects.refused) {
            return;
        }
        let Exchange { request, response, .. } = exchange;
        request.is_read_due = false;
        let mut buffer = [0; 1000];
        while !cell.is_inbound_consumed() && cell.is_ready_or_owed(Direction::Read) {
            match cell.try_read(&mut buffer) {
                Ok(count) => write(response, hook, &buffer[..count]),
                Err(_) => return self.fail(request, cell),
            }
        }
        if cell.is_inbound_consumed() {
            self.stage.note("all read");
            step(cell, Event::Complete(Side::Request)).unwrap();
        }
    }

    fn time_out(&self, response: &mut Response, hook: &Hook<Op>, cell: &AsyncCell<Op>) {
        if !step(cell, Event::Timeout).is_some_and(|effects| effects.fire_on_timeout) {
            return;
        }
        self.stage.note("on_timeout");
        step(cell, Event::Error(Side::Request)).unwrap();
        if !response.is_committed {
            response.status = 500;
        }
        write(response, hook, b"timeout");
        step(cell, Event::Complete(Side::Request)).unwrap();
    }

    fn fail(&self, request: &Request, cell: &AsyncCell<Op>) {
        self.stage.note(match (request.failure, request.body_error()) {
            (Some(_), _) => "on_error connection",
            (None, Some(_)) => "on_error body",
            (None, None) => "on_error",
        });
        step(cell, Event::Error(Side::Request));
        if cell.word().state() == AsyncState::Error {
            step(cell, Event::Complete(Side::Request)).unwrap();
        }
    }
}

/// A transition of the owner inside a callback.
fn step(
    cell: &AsyncCell<Op>,
    event: Event,
) -> Option<ringcat_protocol::async_state_machine::Effects> {
    loop {
        match cell.advance(cell.word(), event) {
            Ok(effects) => return Some(effects),
            Err(Advance::Changed(_)) => {}
            Err(Advance::Illegal(_)) => return None,
        }
    }
}

/// An ask whose failure the tests see on the connection.
fn act(hook: &Hook<Op>, code: ActionCode<'_>) {
    let Hook::Core(hook) = hook else { panic!("the response is the core's") };
    let _ = hook.action(code);
}

fn write(response: &mut Response, hook: &Hook<Op>, bytes: &[u8]) {
    if response.is_finished {
        return;
    }
    response.written_bytes += bytes.len() as u64;
    if response.buffer.len() + bytes.len() <= response.buffer_bytes_max as usize {
        response.buffer.extend_from_slice(bytes);
        return;
    }
    hand_over(response, hook, false);
    act(hook, ActionCode::Write(bytes));
}

fn hand_over(response: &mut Response, hook: &Hook<Op>, is_complete: bool) {
    if !response.is_committed {
        act(hook, ActionCode::Commit { response, is_complete });
    }
    if !response.buffer.is_empty() && response.is_committed {
        act(hook, ActionCode::Write(&response.buffer));
    }
    response.buffer.clear();
}

fn flush(response: &mut Response, hook: &Hook<Op>) {
    hand_over(response, hook, false);
    act(hook, ActionCode::Flush);
}

fn finish(response: &mut Response, hook: &Hook<Op>) {
    if std::mem::replace(&mut response.is_finished, true) {
        return;
    }
    hand_over(response, hook, true);
    if response.is_committed {
        act(hook, ActionCode::Close);
    }
}

fn apply(response: &mut Response, hook: &Hook<Op>, operation: Op) {
    match operation {
        Op::Write(bytes) => write(response, hook, &bytes),
        Op::Flush => flush(response, hook),
        Op::Target(_) | Op::Lock(..) => {}
    }
}

fn path_of(request: &Request) -> String {
    String::from_utf8(request.raw_path().to_vec()).unwrap()
}

impl Adapter for TestAdapter {
    type Note = Note;
    type Operation = Op;

    fn post_parse(&self, call: Call<Self>) -> (Exchange<Note>, Plan) {
        let plan = match path_of(&call.exchange.request).as_str() {
            "/stream" | "/deaf" => Plan::AtEndOfHead,
            "/delegate" => Plan::Delegate,
            "/reject" | "/ignore" => Plan::WithoutBody,
            _ => Plan::WhenBodyComplete { body_bytes_max: BODY_BYTES_MAX },
        };
        (call.exchange, plan)
    }

    fn group(&self, _note: &Note) -> Option<u16> {
        None
    }

    fn end_task(&self, call: Call<Self>, _end: TaskEnd) -> Exchange<Note> {
        call.exchange
    }

    fn discard(&self, operations: Vec<Op>) {
        drop(operations);
    }

    fn service(&self, call: Call<Self>) -> Serviced<Note> {
        let Call { mut exchange, hook, .. } = call;
        let path = path_of(&exchange.request);
        self.run(&path, &mut exchange, &hook);
        if hook.existing_cell().is_none_or(|cell| !cell.word().state().is_async()) {
            finish(&mut exchange.response, &hook);
        }
        Serviced::Returned(exchange)
    }

    fn async_dispatch(&self, call: Call<Self>, event: SocketEvent) -> Dispatched<Note> {
        let Call { mut exchange, hook, .. } = call;
        let cell = hook.existing_cell().unwrap();
        let is_async = || cell.word().state().is_async();
        match event {
            SocketEvent::Timeout if is_async() => {
                self.time_out(&mut exchange.response, &hook, &cell);
            }
            SocketEvent::Error if is_async() => self.fail(&exchange.request, &cell),
            SocketEvent::OpenRead
                if is_async()
                    && (exchange.request.is_read_due || cell.is_inbound_consumed())
                    && exchange.request.has_read_listener
                    && exchange.request.raw_path() != b"/deaf" =>
            {
                self.read(&mut exchange, &hook, &cell);
            }
            _ => {}
        }
        if cell.word().state().is_dispatching() {
            step(&cell, Event::Dispatched).unwrap();
            let path = exchange.note.target.take().expect("the target comes with the dispatch");
            self.run(&path, &mut exchange, &hook);
        }
        let request = &exchange.request;
        let is_connection_usable = request.failure.is_none() && request.body_error().is_none();
        if !is_async() {
            finish(&mut exchange.response, &hook);
        }
        let serviced = Serviced::Returned(exchange);
        Dispatched { serviced, is_connection_usable, is_for_worker: false }
    }

    fn delegate(&self, delegation: Delegation<Self>, _hook: Hook<Op>) -> Serviced<Note> {
        let Delegation { exchange, cell, resume, .. } = delegation;
        let Exchange { request, response, note } = exchange;
        self.stage.jobs.lock().unwrap().push(Job { request, note, handle: Handle(cell), resume });
        Serviced::Delegated(response)
    }

    fn resume(&self, call: Call<Self>) -> Exchange<Note> {
        let Call { mut exchange, hook, .. } = call;
        self.stage.note("resume");
        if hook.existing_cell().is_none_or(|cell| !cell.word().state().is_async()) {
            finish(&mut exchange.response, &hook);
        }
        exchange
    }

    fn on_complete(&self, call: Call<Self>) -> Exchange<Note> {
        let Call { mut exchange, hook, .. } = call;
        self.stage.note("on_complete");
        if let Some(f) = self.stage.at_the_end.lock().unwrap().take() {
            f();
        }
        if self.stage.flushes_at_the_end.load(Ordering::Relaxed) {
            flush(&mut exchange.response, &hook);
        }
        exchange
    }

    fn apply(&self, call: Call<Self>, operations: Vec<Op>) -> Exchange<Note> {
        let Call { mut exchange, hook, .. } = call;
        for operation in operations {
            match operation {
                Op::Target(path) => exchange.note.target = Some(path),
                operation => apply(&mut exchange.response, &hook, operation),
            }
        }
        exchange
    }

    fn apply_delegated(
        &self,
        mut response: Box<Response>,
        hook: Hook<Op>,
        operations: Vec<Op>,
        deferred: &mut Vec<Op>,
    ) -> Box<Response> {
        for operation in operations {
            match operation {
                operation @ Op::Target(_) => deferred.push(operation),
                operation => apply(&mut response, &hook, operation),
            }
        }
        response
    }

    fn refuse(&self, call: Call<Self>, error: ProtocolError) -> Exchange<Note> {
        let Call { mut exchange, hook, .. } = call;
        self.stage.note(format!("refuse {}", error.status));
        exchange.response.status = error.status;
        finish(&mut exchange.response, &hook);
        exchange
    }

    fn log(&self, exchange: &mut Exchange<Note>) {
        self.stage.note(format!("log {}", exchange.response.status));
    }

    fn recycle(&self, note: &mut Note) {
        let Note { target } = note;
        *target = None;
    }
}
