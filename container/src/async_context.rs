//! The handle of an asynchronous request: `Send`, `Clone`, usable from any thread, and an error
//! once the request is over. Stands for `AsyncContext` and `AsyncContextImpl`.

use std::{
    any::Any,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use ringcat_engine::{current::Current, sync::Arc};
use ringcat_protocol::{
    async_cell::{AsyncCell, CallError, Look, WriteRefused},
    async_state_machine::{AsyncState, Event, Flag},
    http11::head::Head,
};

use crate::{
    async_listener::{AddedListener, AsyncListener, ReadListener, WriteListener},
    container::ContainerTree,
    dispatch::DispatchTarget,
    error::{Error, ErrorKind, Result},
    guard::guard,
    mapper::Mapping,
    operation::ContainerOperation,
    request::{Attribute, is_input_ready, latin1, millis, worker_read_error},
    request_wrapper::RequestWrapper,
    uri,
};

/// An asynchronous request.
///
/// All clones stand for the same request, over all its rounds. After the request has ended every
/// call is an [illegal state](crate::error::ErrorKind::IllegalState) and touches nothing, also
/// when its slot serves another request by then.
#[derive(Clone)]
pub struct AsyncContext {
    pub(crate) parts: Arc<AsyncParts>,
}

/// What a context refers to.
pub(crate) struct AsyncParts {
    pub(crate) cell: Arc<AsyncCell<ContainerOperation>>,
    pub(crate) tree: Arc<ContainerTree>,
    /// Where the client's request was mapped.
    pub(crate) mapping: Mapping,
    /// None while there is nothing to say.
    pub(crate) place: Mutex<Option<Box<RoundPlace>>>,
}

/// Where the present round was started.
#[derive(Default)]
pub(crate) struct RoundPlace {
    /// The client's path within the context, decoded; none if it is as the head has it.
    client_path: Option<Box<str>>,
    /// The path within the context of the request that was given; none for the client's.
    path: Option<Box<str>>,
    is_wrapped: bool,
}

impl RoundPlace {
    /// That of a client's request whose path is not as the head has it.
    pub(crate) fn of_client(path: &str) -> Box<Self> {
        Box::new(Self { client_path: Some(path.into()), ..Self::default() })
    }
}

impl AsyncParts {
    pub(crate) fn set_place(&self, path: Option<String>, is_original: bool) {
        let path = path.map(String::into_boxed_str);
        let mut place = self.lock_place();
        if path.is_some() || !is_original || place.is_some() {
            let place = place.get_or_insert_default();
            (place.path, place.is_wrapped) = (path, !is_original);
        }
    }

    /// Where a dispatch without a path leads, as a request URI.
    fn dispatch_path(&self) -> Result<String> {
        if let Some(place) = &*self.lock_place()
            && let Some(path) = place.path.as_ref().or(place.client_path.as_ref())
        {
            return Ok(uri::encode_path(path));
        }
        let target = self.head()?.target();
        let path = target.split(|octet| *octet == b'?').next().unwrap_or_default();
        Ok(uri::encode_path(self.mapping.path_within(&String::from_utf8_lossy(path))))
    }

    fn head(&self) -> Result<&Arc<Head>> {
        self.cell.head().ok_or_else(|| Error::illegal_state("the request has not begun a round"))
    }

    fn lock_place(&self) -> MutexGuard<'_, Option<Box<RoundPlace>>> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsyncContext {
    pub(crate) fn new(parts: AsyncParts) -> Self {
        Self { parts: Arc::new(parts) }
    }

    /// Ends the request: what was written is sent, `on_complete` runs on the owning core, and the
    /// connection serves the next request. From inside `service` it takes effect when `service`
    /// returns. Never waits.
    ///
    /// # Errors
    /// Illegal state: it was completed or dispatched already, or timed out, or is over.
    pub fn complete(&self) -> Result<()> {
        let cell = &self.parts.cell;
        cell.call(Some(Event::Complete(cell.side())), None, Look::Always)
            .map(|_| ())
            .map_err(call_error)
    }

    /// Sends the request back to the servlet that the client asked for.
    ///
    /// # Errors
    /// As [`AsyncContext::complete`]; a round has one dispatch.
    pub fn dispatch(&self) -> Result<()> {
        let path = self.parts.dispatch_path()?;
        self.dispatch_to(&path)
    }

    /// Sends the request to `path` in its context; the path begins with `/`, is percent-encoded,
    /// and may carry a query string.
    ///
    /// # Errors
    /// Illegal argument: a relative path. Unsupported: nothing is mapped there, or the path leads
    /// out of the context. Illegal state as for [`AsyncContext::complete`].
    pub fn dispatch_to(&self, path: &str) -> Result<()> {
        let AsyncParts { tree, mapping, .. } = &*self.parts;
        self.dispatch_at(DispatchTarget::find(tree, mapping.context, path)?)
    }

    /// Sends the request to `path` in the application at `context_path`, of the same host.
    ///
    /// # Errors
    /// As [`AsyncContext::dispatch_to`]. Unsupported: there is no such application, or this one
    /// may not dispatch to others, see
    /// [`Context::cross_context`](crate::context::Context::cross_context).
    pub fn dispatch_in(&self, context_path: &str, path: &str) -> Result<()> {
        let AsyncParts { tree, mapping, .. } = &*self.parts;
        let unsupported = |why: &str| {
            Error::unsupported(format!("dispatch to {path:?} in {context_path:?}: {why}"))
        };
        let context = tree
            .mapper
            .context_of(mapping.host, context_path)
            .filter(|context| tree.context(*context).path == context_path)
            .ok_or_else(|| unsupported("there is no such application"))?;
        if context != mapping.context && !tree.context(mapping.context).is_cross_context {
            return Err(unsupported("the application is not declared cross_context"));
        }
        self.dispatch_at(DispatchTarget::find(tree, context, path)?)
    }

    fn dispatch_at(&self, target: DispatchTarget) -> Result<()> {
        let cell = &self.parts.cell;
        let operation = ContainerOperation::Dispatch(target);
        cell.call(Some(Event::Dispatch(cell.side())), Some(operation), Look::Always)
            .map(|_| ())
            .map_err(call_error)
    }

    /// Sets how long the present round may take, counted from its start; zero means for ever.
    ///
    /// # Errors
    /// Illegal state: the request is over.
    pub fn set_timeout(&self, timeout: Duration) -> Result<()> {
        self.refuse_closed()?;
        self.parts.cell.set_timeout_millis(millis(timeout));
        self.parts.cell.post_look();
        Ok(())
    }

    /// How long the present round may take; zero means for ever.
    ///
    /// # Errors
    /// Illegal state: the request is over.
    pub fn timeout(&self) -> Result<Duration> {
        self.refuse_closed()?;
        let millis = u64::try_from(self.parts.cell.timeout_millis()).unwrap_or(0);
        Ok(Duration::from_millis(millis))
    }

    /// Adds a listener to the present round, behind those that are there.
    ///
    /// # Errors
    /// Illegal state: the request is over.
    pub fn add_listener(&self, listener: impl AsyncListener) -> Result<()> {
        let listener = AddedListener { listener: Box::new(listener), wrappers: None };
        let operation = ContainerOperation::AddListener(listener);
        self.parts.cell.call(None, Some(operation), Look::Never).map(|_| ()).map_err(call_error)
    }

    /// As [`AsyncContext::add_listener`]; its events come with `wrappers` on the request.
    ///
    /// # Errors
    /// Illegal state: the request is over.
    pub fn add_listener_with(
        &self,
        listener: impl AsyncListener,
        wrappers: &[std::sync::Arc<dyn RequestWrapper>],
    ) -> Result<()> {
        let wrappers = Some(wrappers.into());
        let operation = ContainerOperation::AddListener(AddedListener {
            listener: Box::new(listener),
            wrappers,
        });
        self.parts.cell.call(None, Some(operation), Look::Never).map(|_| ()).map_err(call_error)
    }

    /// Whether the present round was started with the client's request as it came, without
    /// wrappers and outside of a forward.
    ///
    /// # Errors
    /// Illegal state: the request is over.
    pub fn has_original_request_and_response(&self) -> Result<bool> {
        self.refuse_closed()?;
        Ok(!self.parts.lock_place().as_ref().is_some_and(|place| place.is_wrapped))
    }

    /// Whether the request is in a round that was started and not ended (`isAsyncStarted`).
    ///
    /// # Errors
    /// Illegal state: the request is over.
    pub fn is_started(&self) -> Result<bool> {
        self.refuse_closed()?;
        Ok(self.parts.cell.word().state().is_started())
    }

    /// The response, for this thread: writes are sent by the owning core, in call order over all
    /// clones.
    ///
    /// # Errors
    /// Illegal state: the request was dispatched, or is over.
    pub fn response(&self) -> Result<AsyncResponse> {
        self.refuse_dispatched()?;
        let AsyncParts { cell, tree, .. } = &*self.parts;
        Ok(AsyncResponse { cell: Arc::clone(cell), write_timeout: tree.write_timeout })
    }

    /// The request's head, as the client sent it.
    ///
    /// # Errors
    /// Illegal state: the request was dispatched, or is over.
    pub fn request(&self) -> Result<AsyncRequest> {
        self.refuse_dispatched()?;
        let head = Arc::clone(self.parts.head()?);
        Ok(AsyncRequest { head, cell: Arc::clone(&self.parts.cell) })
    }

    /// An attribute of the request; those that were set before `start_async` are there too. `None`
    /// once the request is over.
    pub fn attribute(&self, name: &str) -> Option<Attribute> {
        self.refuse_closed().ok().and_then(|()| self.parts.cell.attribute(name))
    }

    /// Sets an attribute of the request, for listeners and the target of a dispatch, say. Any
    /// thread; the last call counts.
    ///
    /// # Errors
    /// Illegal state: the request is over.
    pub fn set_attribute(&self, name: &str, value: impl Any + Send + Sync) -> Result<()> {
        self.refuse_closed()?;
        drop(self.parts.cell.set_attribute(name, std::sync::Arc::new(value)));
        let closed = self.refuse_closed();
        if closed.is_err() {
            // The owner may have taken the others out already: what is left would end with the
            // cell, where no panic is caught.
            drop(self.parts.cell.remove_attribute(name));
        }
        closed
    }

    /// Removes an attribute of the request. `None` once the request is over.
    pub fn remove_attribute(&self, name: &str) -> Option<Attribute> {
        self.refuse_closed().ok().and_then(|()| self.parts.cell.remove_attribute(name))
    }

    /// Runs `task` on the container's worker pool. What it fails with is recorded, for the error
    /// page of the round's timeout: nothing is woken by it.
    ///
    /// # Errors
    /// Illegal state in the present phase; would-block: the pool's queue is full.
    pub fn start(&self, task: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
        let cell = Arc::clone(&self.parts.cell);
        cell.call(Some(Event::Run), None, Look::Never).map_err(call_error)?;
        let job = move || {
            if let Err(error) = guard(task) {
                tracing::error!("a task of AsyncContext::start failed: {error}");
                let operation = ContainerOperation::TaskFailed(error);
                if let Err(error) = cell.call(None, Some(operation), Look::Never) {
                    tracing::debug!("its request was over: {error}");
                }
            }
        };
        self.parts
            .tree
            .pool
            .try_submit(Box::new(job))
            .map_err(|_| Error::would_block("the worker pool takes no more tasks"))
    }

    /// Whether the client ended its sending side while the request was parked. It may still wait
    /// for the answer.
    pub fn peer_closed(&self) -> bool {
        self.parts.cell.word().has(Flag::PeerClosed)
    }

    fn refuse_dispatched(&self) -> Result<()> {
        self.refuse_closed()?;
        let state = self.parts.cell.word().state();
        if state.is_dispatching() || state == AsyncState::DispatchPending {
            return Err(Error::illegal_state("the request was dispatched"));
        }
        Ok(())
    }

    fn refuse_closed(&self) -> Result<()> {
        if self.parts.cell.word().has(Flag::Closed) {
            return Err(call_error(CallError::Closed));
        }
        Ok(())
    }
}

/// Two are equal if they stand for the same request.
impl PartialEq for AsyncContext {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.parts, &other.parts)
    }
}

impl Eq for AsyncContext {}

impl std::fmt::Debug for AsyncContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AsyncContext").field("word", &self.parts.cell.word()).finish()
    }
}

/// The head of an asynchronous request, for any thread.
#[derive(Clone)]
pub struct AsyncRequest {
    head: Arc<Head>,
    pub(crate) cell: Arc<AsyncCell<ContainerOperation>>,
}

impl AsyncRequest {
    /// The method.
    pub fn method(&self) -> std::borrow::Cow<'_, str> {
        latin1(self.head.method())
    }

    /// The request target, as sent.
    pub fn target(&self) -> std::borrow::Cow<'_, str> {
        latin1(self.head.target())
    }

    /// The first value of a field.
    pub fn header(&self, name: &str) -> Option<std::borrow::Cow<'_, str>> {
        self.head.field(name).map(latin1)
    }

    /// The values of all fields of a name, as
    /// [`Request::header_values`](crate::request::Request::header_values).
    pub fn header_values<'a>(
        &'a self,
        name: &'a str,
    ) -> impl Iterator<Item = std::borrow::Cow<'a, str>> {
        self.head.field_values(name).map(latin1)
    }
}

impl std::fmt::Debug for AsyncRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AsyncRequest").field("head", &self.head).finish_non_exhaustive()
    }
}

/// The content, for any thread. It is read once: what one thread reads no other one gets.
impl AsyncRequest {
    /// Reads content into `buffer`; 0 is its end. With a read listener it never waits; without one
    /// a foreign thread waits, and a core thread does not.
    ///
    /// # Errors
    /// Illegal state: the request is over, or nothing is there and nobody may wait. I/O: the
    /// client left, or sent content that breaks its framing.
    ///
    /// [`ReadListener::on_all_data_read`] comes when the thread asks again after the last bytes, by
    /// any call of this kind: it may still be at work with them.
    pub fn read(&self, buffer: &mut [u8]) -> Result<usize> {
        // Before the bytes are taken, or the owner could see them gone and nobody at work.
        self.cell.set_flag(Flag::ReaderInside);
        let read = self.read_some(buffer);
        if !matches!(read, Ok(1..)) {
            self.leave_bytes();
        }
        read
    }

    fn read_some(&self, buffer: &mut [u8]) -> Result<usize> {
        let is_waiting = !self.cell.set_flag(Flag::InboundWanted).has(Flag::ReadListened);
        if is_waiting && Current::get().core.is_none() {
            self.cell.post_look();
            let read = self.cell.read_blocking(buffer, None).map_err(read_error);
            return read.inspect_err(|error| note_io_error(&self.cell, error));
        }
        let read = self.cell.try_read(buffer).map_err(read_error);
        read.inspect_err(|error| note_io_error(&self.cell, error))
    }

    /// Whether a read takes effect without waiting. With a read listener, `false` promises a call
    /// of [`ReadListener::on_data_available`].
    pub fn is_ready(&self) -> bool {
        self.leave_bytes();
        !self.cell.word().has(Flag::ReadListened) || is_input_ready(&self.cell)
    }

    /// Whether all content was read.
    pub fn is_finished(&self) -> bool {
        self.leave_bytes();
        self.cell.is_inbound_consumed()
    }

    /// The owner is to leave content where any thread reads it, and this thread reads it now.
    pub(crate) fn want_content(&self) {
        // Before the bytes are taken, or the owner could see them gone and nobody at work.
        self.cell.set_flag(Flag::ReaderInside);
        if !self.cell.set_flag(Flag::InboundWanted).has(Flag::InboundWanted) {
            self.cell.post_look();
        }
    }

    /// The thread is through with the bytes that it read.
    pub(crate) fn leave_bytes(&self) {
        let was_inside = self.cell.clear_flag(Flag::ReaderInside).has(Flag::ReaderInside);
        if was_inside && self.cell.is_inbound_consumed() {
            // The owner has a listener to tell of the end.
            self.cell.post_look();
        }
    }

    /// Sets the read listener; it is called on the owning core.
    ///
    /// # Errors
    /// Illegal state: the request is over.
    pub fn set_read_listener(&self, listener: impl ReadListener) -> Result<()> {
        let operation = ContainerOperation::SetReadListener(Box::new(listener));
        self.cell.call(None, Some(operation), Look::Always).map(|_| ()).map_err(call_error)
    }

    /// The first value of a parameter of the client's query.
    ///
    /// # Errors
    /// The query cannot be decoded (400).
    pub fn parameter(&self, name: &str) -> Result<Option<String>> {
        let target = self.head.target();
        let Some(start) = target.iter().position(|byte| *byte == b'?') else { return Ok(None) };
        let parameters = uri::parse_query(&target[start + 1..])?;
        Ok(parameters.into_iter().find(|(own, _)| own == name).map(|(_, value)| value))
    }
}

pub(crate) fn read_error(error: std::io::Error) -> Error {
    match error.kind() {
        std::io::ErrorKind::ConnectionAborted => call_error(CallError::Closed),
        std::io::ErrorKind::WouldBlock => {
            Error::illegal_state("read: nothing is there; ask is_ready and wait for the listener")
        }
        _ => worker_read_error(error),
    }
}

/// The response of an asynchronous request, for any thread.
///
/// Calls take effect in call order over all clones, before whatever ends the request. It can be
/// asked whether the response is committed, and nothing else: the response itself lives on its
/// core.
#[derive(Clone)]
pub struct AsyncResponse {
    pub(crate) cell: Arc<AsyncCell<ContainerOperation>>,
    write_timeout: Duration,
}

impl AsyncResponse {
    /// Writes content. A foreign thread waits while more than the high-water mark (64 KiB) is
    /// unsent; a core thread never waits.
    ///
    /// # Errors
    /// Illegal state: the request is over. I/O: the connection failed, or the client took nothing
    /// for the [write timeout](crate::ServerBuilder::write_timeout). Would-block,
    /// on a core thread: use [`AsyncResponse::try_write`] and try later.
    pub fn write(&self, content: impl Into<Content>) -> Result<()> {
        let operation = ContainerOperation::Write(content.into().0);
        let written = if Current::get().core.is_some() {
            self.cell.try_write(operation)
        } else {
            self.cell.write_blocking(operation, Some(self.write_timeout))
        };
        written.map_err(write_refused).inspect_err(|error| note_io_error(&self.cell, error))
    }

    /// Writes content if credit allows, and never waits.
    ///
    /// # Errors
    /// As [`AsyncResponse::write`]; would-block when the high-water mark is passed.
    pub fn try_write(&self, content: impl Into<Content>) -> Result<()> {
        let operation = ContainerOperation::Write(content.into().0);
        let written = self.cell.try_write(operation).map_err(write_refused);
        written.inspect_err(|error| note_io_error(&self.cell, error))
    }

    /// Commits, and puts what was written on its way.
    ///
    /// # Errors
    /// Illegal state: the request is over. I/O: the connection failed.
    pub fn flush(&self) -> Result<()> {
        let flushed = self.push(ContainerOperation::Flush, Look::Always);
        flushed.inspect_err(|error| note_io_error(&self.cell, error))
    }

    /// Sets the status.
    ///
    /// # Errors
    /// Illegal state: the response is committed or the request over.
    pub fn set_status(&self, status: u16) -> Result<()> {
        self.change(ContainerOperation::Status(status))
    }

    /// Sets a field.
    ///
    /// # Errors
    /// As [`AsyncResponse::set_status`]; illegal argument for a name or value that is no field's.
    pub fn set_header(&self, name: &str, value: impl AsRef<[u8]>) -> Result<()> {
        let value = value.as_ref();
        let mut check = ringcat_protocol::response_fields::ResponseFields::default();
        check.set(name, value).map_err(|error| Error::illegal_argument(error.to_string()))?;
        self.change(ContainerOperation::SetHeader(name.to_owned(), value.to_vec()))
    }

    /// Sets `Content-Type`.
    ///
    /// # Errors
    /// As [`AsyncResponse::set_header`].
    pub fn set_content_type(&self, content_type: &str) -> Result<()> {
        self.set_header("Content-Type", content_type)
    }

    /// Announces the length of the content, in bytes.
    ///
    /// # Errors
    /// As [`AsyncResponse::set_status`].
    pub fn set_content_length(&self, length: u64) -> Result<()> {
        self.change(ContainerOperation::ContentLength(length))
    }

    /// Ends the content: what was written is sent, what is written later is dropped.
    ///
    /// # Errors
    /// As [`AsyncResponse::flush`].
    pub fn close(&self) -> Result<()> {
        self.push(ContainerOperation::Close, Look::Always)
    }

    /// Whether a write takes effect without waiting. With a write listener, `false` promises a
    /// call of [`WriteListener::on_write_possible`].
    pub fn is_ready(&self) -> bool {
        let word = self.cell.word();
        if !word.has(Flag::WriteListened) || !word.state().keeps_listeners() {
            return true;
        }
        if !word.has(Flag::WriteOwed) && self.cell.in_flight_bytes() == 0 {
            return true;
        }
        self.cell.set_flag(Flag::WriteOwed);
        self.cell.post_look();
        false
    }

    /// Sets the write listener; it is called on the owning core, for the first time as soon as
    /// that runs no callback of the request.
    ///
    /// # Errors
    /// Illegal state: the request is over.
    pub fn set_write_listener(&self, listener: impl WriteListener) -> Result<()> {
        let operation = ContainerOperation::SetWriteListener(Box::new(listener));
        self.cell.call(None, Some(operation), Look::Never).map_err(call_error)?;
        self.cell.set_flag(Flag::WriteListened);
        self.cell.set_flag(Flag::WriteOwed);
        self.cell.post_look();
        Ok(())
    }

    /// Drops status, fields and content.
    ///
    /// # Errors
    /// As [`AsyncResponse::set_status`].
    pub fn reset(&self) -> Result<()> {
        self.change(ContainerOperation::Reset)
    }

    /// Answers with the error report for `status`, once the request is completed.
    ///
    /// # Errors
    /// As [`AsyncResponse::set_status`].
    pub fn send_error(&self, status: u16, message: Option<&str>) -> Result<()> {
        self.change(ContainerOperation::SendError(status, message.map(str::to_owned)))
    }

    /// Whether the head is fixed and on its way.
    pub fn is_committed(&self) -> bool {
        self.cell.word().has(Flag::Committed)
    }

    fn change(&self, operation: ContainerOperation) -> Result<()> {
        self.push(operation, Look::Never)
    }

    fn push(&self, operation: ContainerOperation, look: Look) -> Result<()> {
        self.cell.call(None, Some(operation), look).map(|_| ()).map_err(call_error)
    }
}

/// Content to write: text, bytes, or shared bytes that are not copied.
#[derive(Clone, Debug)]
pub struct Content(pub(crate) Bytes);

impl From<&str> for Content {
    fn from(text: &str) -> Self {
        Self(Bytes::copy_from_slice(text.as_bytes()))
    }
}

impl From<String> for Content {
    fn from(text: String) -> Self {
        Self(Bytes::from(text))
    }
}

impl From<&[u8]> for Content {
    fn from(bytes: &[u8]) -> Self {
        Self(Bytes::copy_from_slice(bytes))
    }
}

impl From<Vec<u8>> for Content {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Bytes::from(bytes))
    }
}

impl From<Bytes> for Content {
    fn from(bytes: Bytes) -> Self {
        Self(bytes)
    }
}

pub(crate) fn call_error(error: CallError) -> Error {
    match error {
        CallError::IllegalState(illegal) => Error::illegal_state(illegal.to_string()),
        CallError::Closed => Error::illegal_state("the request is over"),
        CallError::Committed => Error::illegal_state("the response is committed"),
        CallError::Io => std::io::Error::from(std::io::ErrorKind::ConnectionReset).into(),
    }
}

/// An application thread met a broken connection: the round is in error from now on, and its
/// listeners hear of it on the owner.
pub(crate) fn note_io_error(cell: &AsyncCell<ContainerOperation>, error: &Error) {
    if error.kind() != ErrorKind::Io || !cell.word().state().is_async() {
        return;
    }
    if let Err(error) = cell.call(Some(Event::Error(cell.side())), None, Look::Never) {
        tracing::debug!("the error of a connection came after its request: {error}");
    }
}

pub(crate) fn write_refused(refused: WriteRefused<ContainerOperation>) -> Error {
    match refused {
        WriteRefused::WouldBlock(_) => Error::would_block(
            "the client does not read, and this thread must not wait: use try_write and try later",
        ),
        WriteRefused::Closed(_) => Error::illegal_state("the request is over"),
        WriteRefused::Io(_) => std::io::Error::from(std::io::ErrorKind::ConnectionReset).into(),
        WriteRefused::Backlog(_) => Error::would_block(
            "more is queued than response_backlog_max, and the servlet has not returned yet",
        ),
        WriteRefused::TimedOut(_) => std::io::Error::from(std::io::ErrorKind::TimedOut).into(),
    }
}
