//! The handle of an asynchronous request: `Send`, `Clone`, usable from any thread, and an error
//! once the request is over. Stands for `AsyncContext` and `AsyncContextImpl`.

use std::{any::Any, time::Duration};

use bytes::Bytes;
use ringcat_engine::{current::Current, sync::Arc};
use ringcat_protocol::{
    async_cell::{AsyncCell, CallError, Look, WriteRefused},
    async_state_machine::{Event, Flag},
    http11::head::Head,
};

use crate::{
    async_listener::AsyncListener,
    container::ContainerTree,
    dispatch::DispatchTarget,
    error::{Error, Result},
    guard::guard,
    mapper::Mapping,
    operation::ContainerOperation,
    request::{Attribute, latin1, millis},
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
    /// The client's path within the context, decoded.
    pub(crate) path: String,
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
        let path = uri::encode_path(&self.parts.path);
        self.dispatch_to(&path)
    }

    /// Sends the request to `path` in its context; the path begins with `/`, is percent-encoded,
    /// and may carry a query string.
    ///
    /// # Errors
    /// Illegal argument: a relative path. Unsupported: nothing is mapped there, or the path leads
    /// out of the context. Illegal state as for [`AsyncContext::complete`].
    pub fn dispatch_to(&self, path: &str) -> Result<()> {
        let target = self.target(path)?;
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
    pub fn timeout(&self) -> Duration {
        let millis = u64::try_from(self.parts.cell.timeout_millis()).unwrap_or(0);
        Duration::from_millis(millis)
    }

    /// Adds a listener to the present round, behind those that are there.
    ///
    /// # Errors
    /// Illegal state: the request is over.
    pub fn add_listener(&self, listener: impl AsyncListener) -> Result<()> {
        let operation = ContainerOperation::AddListener(Box::new(listener));
        self.parts.cell.call(None, Some(operation), Look::Never).map(|_| ()).map_err(call_error)
    }

    /// The response, for this thread: writes are sent by the owning core, in call order over all
    /// clones.
    pub fn response(&self) -> AsyncResponse {
        let AsyncParts { cell, tree, .. } = &*self.parts;
        AsyncResponse { cell: Arc::clone(cell), write_timeout: tree.write_timeout }
    }

    /// The request's head, as the client sent it.
    ///
    /// # Errors
    /// Illegal state: the request is over.
    pub fn request(&self) -> Result<AsyncRequest> {
        self.refuse_closed()?;
        let head = self.parts.cell.head().and_then(|head| Arc::clone(head).downcast().ok());
        head.map(|head| AsyncRequest { head })
            .ok_or_else(|| Error::illegal_state("the request is over"))
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

    /// Runs `task` on the container's worker pool.
    ///
    /// # Errors
    /// Illegal state in the present phase; would-block: the pool's queue is full.
    pub fn start(&self, task: impl FnOnce() + Send + 'static) -> Result<()> {
        let cell = Arc::clone(&self.parts.cell);
        cell.call(Some(Event::Run), None, Look::Never).map_err(call_error)?;
        let job = move || {
            let result = guard(|| {
                task();
                Ok(())
            });
            if let Err(error) = result {
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

    fn refuse_closed(&self) -> Result<()> {
        if self.parts.cell.word().has(Flag::Closed) {
            return Err(call_error(CallError::Closed));
        }
        Ok(())
    }

    /// Checks and maps a target, so that a bad one changes nothing.
    fn target(&self, path: &str) -> Result<DispatchTarget> {
        if !path.starts_with('/') {
            return Err(Error::illegal_argument(format!(
                "dispatch: the path {path:?} must begin with a slash"
            )));
        }
        let (raw_path, query) = match path.split_once('?') {
            Some((path, query)) => (path, Some(query.to_owned())),
            None => (path, None),
        };
        let unsupported = |why: &str| Error::unsupported(format!("dispatch to {path:?}: {why}"));
        let mut decoded = Vec::new();
        uri::decode_path(raw_path.as_bytes(), &uri::UriPolicy::DISPATCH, &mut decoded)
            .map_err(|error| unsupported(error.reason))?;
        let decoded = String::from_utf8(decoded).map_err(|_| unsupported("it is not UTF-8"))?;
        let AsyncParts { tree, mapping, .. } = &*self.parts;
        let mapped = tree.mapper.map_in_context(mapping.context, &decoded);
        if mapped.wrapper.is_none() {
            return Err(unsupported("no servlet is mapped there"));
        }
        let context_path = &tree.context(mapping.context).path;
        let request_uri = format!("{}{raw_path}", uri::encode_path(context_path));
        Ok(DispatchTarget { path: decoded, request_uri, query, mapping: mapped })
    }
}

impl std::fmt::Debug for AsyncContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AsyncContext").field("word", &self.parts.cell.word()).finish()
    }
}

/// The head of an asynchronous request, for any thread.
#[derive(Clone, Debug)]
pub struct AsyncRequest {
    head: Arc<Head>,
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

/// The response of an asynchronous request, for any thread.
///
/// Calls take effect in call order over all clones, before whatever ends the request. It can be
/// asked whether the response is committed, and nothing else: the response itself lives on its
/// core.
#[derive(Clone)]
pub struct AsyncResponse {
    cell: Arc<AsyncCell<ContainerOperation>>,
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
        if Current::get().core.is_some() {
            return self.cell.try_write(operation).map_err(write_refused);
        }
        self.cell.write_blocking(operation, Some(self.write_timeout)).map_err(write_refused)
    }

    /// Writes content if credit allows, and never waits.
    ///
    /// # Errors
    /// As [`AsyncResponse::write`]; would-block when the high-water mark is passed.
    pub fn try_write(&self, content: impl Into<Content>) -> Result<()> {
        let operation = ContainerOperation::Write(content.into().0);
        self.cell.try_write(operation).map_err(write_refused)
    }

    /// Commits, and puts what was written on its way.
    ///
    /// # Errors
    /// Illegal state: the request is over. I/O: the connection failed.
    pub fn flush(&self) -> Result<()> {
        self.push(ContainerOperation::Flush, Look::Always)
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
pub struct Content(Bytes);

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
