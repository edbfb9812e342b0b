//! The future of an `async fn` servlet, with the request that it owns while it runs. Polled the
//! first time at the end of the filter chain: if it is ready, nothing of this is seen outside. If
//! it is not, the request becomes asynchronous, and the processor polls it on.
//!
//! Whoever is still in the chain behind sees a copy of the request's head: the request itself went
//! into the future. The response stays with the core; the future writes to it through the cell.

use std::{
    cell::RefCell,
    future::Future,
    mem,
    pin::Pin,
    rc::Rc,
    task::{Context as TaskContext, Poll, Waker},
};

use ringcat_engine::{few::Few, sync::Arc};
use ringcat_protocol::{
    action_code::Hook,
    adapter::{LocalTask, Returned},
    async_cell::{AsyncCell, Look},
    async_state_machine::{AsyncState, Event},
    request::Request as ProtocolRequest,
    response::Response as ProtocolResponse,
};

use crate::{
    async_context::call_error,
    async_listener::AddedListener,
    async_servlet::AnyAsyncServlet,
    container::{ContainerTree, ServletKind},
    dispatch::DispatcherType,
    error::{Error, Result},
    guard::{guard, guard_drop},
    mapper::{ContextIndex, Mapping},
    operation::ContainerOperation,
    request::{Request, millis},
    request_note::RequestNote,
    request_place::Kept,
    response::Response,
};

/// The future of a request, and what comes back of it.
pub(crate) struct ServletTask {
    future: Option<Pin<Box<dyn Future<Output = Result<()>>>>>,
    seat: Rc<Seat>,
    result: Option<Result<()>>,
    waker: Waker,
    tree: Arc<ContainerTree>,
    mapping: Mapping,
    is_own_round: bool,
    /// Whether the request is in a forward here, or has wrappers.
    is_elsewhere: bool,
    /// Set while the future has the note.
    pub(crate) counted_in: Option<ContextIndex>,
    /// Where the request is once its filters and forwards have returned, if it was somewhere else
    /// in between.
    outer: Option<Box<RequestNote>>,
}

/// What became of a future, for the step that has the request again.
pub(crate) struct TaskOutcome {
    /// `None` for one that was dropped.
    pub(crate) result: Option<Result<()>>,
    /// The round was begun for the future, and ends with it.
    pub(crate) is_own_round: bool,
    pub(crate) servlet: Mapping,
}

/// Where the future leaves the request when it is over, however that comes.
#[derive(Default)]
struct Seat(RefCell<Option<(Box<ProtocolRequest>, Box<RequestNote>)>>);

/// Has the request while the future runs. Declared before the servlet's own future, so dropped
/// after it.
struct Rider {
    parts: Option<(Request, Response)>,
    seat: Rc<Seat>,
}

impl Drop for Rider {
    fn drop(&mut self) {
        if let Some((request, _)) = self.parts.take() {
            let Request { inner, note, .. } = request;
            *self.seat.0.borrow_mut() = Some((inner, note));
        }
    }
}

/// Runs an `async fn` servlet at the end of its chain.
///
/// # Errors
/// What the servlet fails with at once; lack of support on the way; where no future can run.
pub(crate) fn run(mapping: Mapping, req: &mut Request, res: &mut Response) -> Result<()> {
    let tree = req.tree();
    let Hook::Core(hook) = req.hook.clone() else {
        return Err(unsupported(&tree, mapping, "a forward from another thread or future"));
    };
    match req.note.dispatcher {
        DispatcherType::Include => return Err(unsupported(&tree, mapping, "an include")),
        DispatcherType::Error => return Err(unsupported(&tree, mapping, "an error page")),
        DispatcherType::Request | DispatcherType::Forward | DispatcherType::Async => {}
    }
    if !req.is_async_supported() {
        return Err(req.warn_of_lacking_support());
    }
    let cell = hook.detach(&mut req.inner);
    // The callback that runs now began before there was a cell to say so.
    cell.enter_callback();
    drop(req.context_of(&cell));
    let round = OuterRound::leave(req, &cell);
    let mut task = ServletTask::start(tree, mapping, &cell, req, res);
    let polled = task.poll();
    if polled.is_ready() {
        let result = task.restore(req);
        round.enter(req, &cell);
        res.sync();
        return result.unwrap_or(Ok(()));
    }
    if cell.word().state() == AsyncState::Dispatched {
        let started = cell.call(Some(Event::AsyncStart), None, Look::Never);
        if let Err(error) = started.map_err(call_error) {
            task.restore(req);
            round.enter(req, &cell);
            return Err(error);
        }
        let timeout = req.tree().connector(req.inner.listener).async_timeout;
        cell.set_timeout_millis(millis(timeout));
        cell.set_start_nanos(req.hook.now().as_nanos());
        task.is_own_round = true;
        if let Some(context) = &req.note.context {
            context.parts.set_place(None, true);
        }
    }
    round.enter(req, &cell);
    req.task = Some(Box::new(task));
    Ok(())
}

fn unsupported(tree: &ContainerTree, mapping: Mapping, place: &str) -> Error {
    let name = tree.wrapper(mapping).map_or("", |wrapper| &wrapper.name);
    Error::unsupported(format!(
        "servlet {name} is an async fn and cannot run in {place}: its future needs a request of \
         its own on the core; dispatch to it by an AsyncContext, or forward from a plain servlet"
    ))
}

/// What belongs to the round before, if the future begins another one.
struct OuterRound {
    listeners: Few<AddedListener>,
    kept: Option<Box<Kept>>,
    was_async: bool,
}

impl OuterRound {
    fn leave(req: &mut Request, cell: &AsyncCell<ContainerOperation>) -> Self {
        let was_async = cell.word().state() != AsyncState::Dispatched;
        if was_async {
            // A filter began the round that the future runs in.
            return Self { listeners: Few::default(), kept: None, was_async };
        }
        let note = &mut *req.note;
        let kept = note.take(|seldom| seldom.kept.take());
        Self { listeners: mem::take(&mut note.listeners), kept, was_async }
    }

    /// Gives back what is still the request's; tells the old listeners of a round that began.
    fn enter(self, req: &mut Request, cell: &AsyncCell<ContainerOperation>) {
        let is_async = cell.word().state() != AsyncState::Dispatched;
        if !self.was_async && is_async {
            req.note.add_previous_listeners(self.listeners);
            if let Some(context) = req.note.context.clone() {
                req.tell_of_start(&context);
            }
        } else if !self.was_async {
            req.note.listeners = self.listeners;
            req.note.set_kept(self.kept);
        }
    }
}

impl ServletTask {
    /// Moves the request into the future, and leaves a copy of its head.
    fn start(
        tree: Arc<ContainerTree>,
        mapping: Mapping,
        cell: &Arc<AsyncCell<ContainerOperation>>,
        req: &mut Request,
        res: &Response,
    ) -> Self {
        let hook = Hook::Future { cell: Arc::clone(cell), clock: req.hook.clock() };
        let is_elsewhere = req.note.nesting > 0 || !req.note.seldom().wrappers.is_empty();
        let inner = Box::new(req.inner.copy_of_head());
        let note = Box::new(req.note.copy_of_place());
        let request = Request {
            inner: mem::replace(&mut req.inner, inner),
            note: mem::replace(&mut req.note, note),
            hook: hook.clone(),
            task: None,
        };
        let response = Response::new(Box::new(copy_of_head(&res.inner)), hook);
        let seat = Rc::<Seat>::default();
        let rider = Rider { parts: Some((request, response)), seat: Rc::clone(&seat) };
        let future = ride(rider, Arc::clone(&tree), mapping);
        Self {
            future: Some(Box::pin(future)),
            seat,
            result: None,
            waker: AsyncCell::task_waker(cell),
            tree,
            mapping,
            is_own_round: false,
            is_elsewhere,
            counted_in: None,
            outer: None,
        }
    }

    /// The pipelines have returned: `copy` says where the request is now.
    pub(crate) fn leave_chain(&mut self, copy: &mut Request) {
        if self.is_elsewhere {
            self.outer = Some(mem::take(&mut copy.note));
        }
    }

    /// Takes the request back out of a future that is over, or that is dropped for it.
    pub(crate) fn restore(mut self, req: &mut Request) -> Option<Result<()>> {
        let (inner, note) = self.take_parts();
        drop(mem::replace(&mut req.inner, inner));
        drop(mem::replace(&mut req.note, note));
        self.result.take()
    }

    fn take_parts(&mut self) -> (Box<ProtocolRequest>, Box<RequestNote>) {
        if let Some(future) = self.future.take() {
            guard_drop("dropping the future of a servlet", future);
        }
        self.seat.0.borrow_mut().take().expect("a rider leaves the parts when it goes")
    }
}

async fn ride(mut rider: Rider, tree: Arc<ContainerTree>, mapping: Mapping) -> Result<()> {
    let wrapper = tree.wrapper(mapping);
    match (wrapper.map(|wrapper| &wrapper.servlet), &mut rider.parts) {
        (Some(ServletKind::Async(servlet)), Some((request, response))) => {
            AnyAsyncServlet::service(&**servlet, request, response).await
        }
        (Some(_) | None, _) => Ok(()),
    }
}

impl LocalTask<RequestNote> for ServletTask {
    fn poll(&mut self) -> Poll<()> {
        let Some(future) = &mut self.future else { return Poll::Ready(()) };
        let before = self.tree.watch.enter(Some(self.mapping));
        let mut cx = TaskContext::from_waker(&self.waker);
        let polled = guard(|| match future.as_mut().poll(&mut cx) {
            Poll::Ready(result) => result.map(Poll::Ready),
            Poll::Pending => Ok(Poll::Pending),
        });
        let result = match polled {
            Ok(Poll::Pending) => {
                self.tree.watch.leave(before);
                return Poll::Pending;
            }
            Ok(Poll::Ready(())) => Ok(()),
            Err(error) => Err(error),
        };
        self.result = Some(result);
        if let Some(future) = self.future.take() {
            guard_drop("dropping the future of a servlet", future);
        }
        self.tree.watch.leave(before);
        Poll::Ready(())
    }

    fn take_back(mut self: Box<Self>) -> Returned<RequestNote> {
        let (request, mut note) = self.take_parts();
        note.counted_in = note.counted_in.or(self.counted_in);
        note.seldom_mut().task_outcome = Some(Box::new(TaskOutcome {
            result: self.result.take(),
            is_own_round: self.is_own_round,
            servlet: self.mapping,
        }));
        if self.is_own_round {
            note.is_error_told = false;
        }
        if let Some(outer) = self.outer.take() {
            note.return_to(*outer);
        }
        Returned { request, note }
    }

    fn group(&self) -> Option<u16> {
        Some(self.mapping.context.0)
    }
}

/// What the future can ask its response for, as filters left it.
fn copy_of_head(response: &ProtocolResponse) -> ProtocolResponse {
    ProtocolResponse {
        status: response.status,
        fields: response.fields.clone(),
        content_length: response.content_length,
        buffer_bytes_max: response.buffer_bytes_max,
        written_bytes: response.written_bytes,
        is_suspended: response.is_suspended,
        ..ProtocolResponse::default()
    }
}
