//! The request as an application sees it. Wraps the protocol's request and the container's note
//! by value for the length of a call; servlets see it without lifetimes. Stands for
//! `HttpServletRequest` and `connector.Request`.

use std::{any::Any, borrow::Cow, net::SocketAddr, time::Duration};

use ringcat_engine::{backend::Errno, sync::Arc};
use ringcat_protocol::{
    action_code::Hook,
    async_cell::{AsyncCell, Direction, Look},
    async_state_machine::Flag,
    http11::head::Version,
    request::{BodyRead, Request as ProtocolRequest},
};

use crate::{
    async_context::{call_error, note_io_error},
    async_listener::ReadListener,
    async_support::Barring,
    container::ContainerTree,
    dispatch::{DispatchTarget, DispatcherType},
    error::{Error, Result},
    mapper::{Mapping, MappingValues},
    methods::Method,
    operation::ContainerOperation,
    request_dispatcher::RequestDispatcher,
    request_note::RequestNote,
    request_wrapper::RequestWrapper,
    servlet_task::ServletTask,
    uri,
};

/// An attribute's value.
pub type Attribute = Arc<dyn Any + Send + Sync>;

/// The attribute that makes up for elements that do not support async.
const ASYNC_SUPPORTED: &str = "org.apache.catalina.ASYNC_SUPPORTED";

/// A request.
pub struct Request {
    pub(crate) inner: Box<ProtocolRequest>,
    pub(crate) note: Box<RequestNote>,
    pub(crate) hook: Hook<ContainerOperation>,
    /// The future that has the request, of which this is a copy for who still looks at it.
    pub(crate) task: Option<Box<ServletTask>>,
}

impl Request {
    /// The method, as sent; an error page always sees `GET`.
    pub fn method(&self) -> &str {
        if self.note.dispatcher == DispatcherType::Error {
            return "GET";
        }
        std::str::from_utf8(self.inner.head.get().method()).unwrap_or("")
    }

    pub(crate) fn method_kind(&self) -> Method {
        Method::parse(self.inner.head.get().method())
    }

    /// The protocol, `HTTP/1.1` or `HTTP/1.0`.
    pub fn protocol(&self) -> &'static str {
        version_name(self.inner.head.get().version())
    }

    /// The path of the request target, undecoded; after an asynchronous dispatch that of its
    /// target (Servlet section 9.7).
    pub fn request_uri(&self) -> Cow<'_, str> {
        match &self.note.seldom().dispatched {
            Some(dispatched) => Cow::Borrowed(&dispatched.request_uri),
            None => latin1(self.inner.raw_path()),
        }
    }

    /// The query string, undecoded.
    pub fn query_string(&self) -> Option<Cow<'_, str>> {
        match self.dispatched_query() {
            Some(query) => Some(Cow::Borrowed(query)),
            None => self.inner.raw_query().map(latin1),
        }
    }

    /// The context path, decoded; empty for the root context.
    pub fn context_path(&self) -> &str {
        match (&self.note.seldom().dispatched, self.note.mapping) {
            // The path of a dispatch begins behind the context's.
            (Some(_), Some(_)) => self.servlet_context_path(),
            (None, Some(mapping)) => mapping.context_path(&self.note.path),
            (Some(_) | None, None) => "",
        }
    }

    /// The part of the path that chose the servlet, decoded.
    pub fn servlet_path(&self) -> &str {
        self.note.mapping.map_or("", |mapping| mapping.servlet_path(&self.note.path))
    }

    /// The part of the path behind the servlet path, decoded.
    pub fn path_info(&self) -> Option<&str> {
        self.note.mapping.and_then(|mapping| mapping.path_info(&self.note.path))
    }

    /// How the servlet was found; lengths count in the decoded path.
    pub fn mapping(&self) -> Option<Mapping> {
        self.note.mapping
    }

    /// How the servlet was found, as the specification's names and texts (`HttpServletMapping`).
    pub fn mapping_values(&self) -> Option<MappingValues> {
        self.note.mapping.map(|mapping| mapping.values(&self.note.path))
    }

    /// The way to another servlet of the application, to be taken by
    /// [`RequestDispatcher::forward`] or [`RequestDispatcher::include`]. The path is
    /// percent-encoded and may carry a query string; one that does not begin with a slash counts
    /// from the directory of the present one.
    ///
    /// # Errors
    /// Unsupported: nothing is mapped there, or the path leads out of the application.
    pub fn request_dispatcher(&self, path: &str) -> Result<RequestDispatcher> {
        let mapping = self.note.mapping.ok_or_else(|| Error::illegal_state("no application"))?;
        let own = mapping.path_within(&self.note.path);
        let directory = own.rsplit_once('/').map_or("", |(directory, _)| directory);
        let path = match path.starts_with('/') {
            true => Cow::Borrowed(path),
            false => Cow::Owned(format!("{}/{path}", uri::encode_path(directory))),
        };
        let tree = self.tree();
        DispatchTarget::find(&tree, mapping.context, &path).map(RequestDispatcher::new)
    }

    /// The path of the application that the present servlet belongs to; empty for the root one.
    pub fn servlet_context_path(&self) -> &str {
        let context = self.note.mapping.map(|mapping| mapping.context);
        let tree = self.note.tree.as_ref();
        tree.zip(context).map_or("", |(tree, context)| &tree.context(context).path)
    }

    /// Why the servlet is called.
    pub fn dispatcher_type(&self) -> DispatcherType {
        self.note.dispatcher
    }

    /// The first value of a field, octets outside ASCII read as ISO-8859-1.
    pub fn header(&self, name: &str) -> Option<Cow<'_, str>> {
        let value = self.inner.head.get().field(name).map(latin1);
        let wrappers = self.note.seldom().wrappers.iter();
        wrappers
            .fold(value, |value, wrapper| wrapper.header(name, value.as_deref()).map(Cow::Owned))
    }

    /// The values of all fields of a name in any case, in wire order, as [`Request::header`] reads
    /// them. A list in one field (`a, b`) is one value.
    pub fn header_values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = Cow<'a, str>> {
        self.inner.head.get().field_values(name).map(latin1)
    }

    /// All fields in wire order, as octets.
    pub fn headers(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.inner.head.get().fields()
    }

    /// Trailer fields that the connector lets through
    /// ([`Connector::allowed_trailer`](crate::Connector::allowed_trailer)), names in lower case;
    /// there once the content is finished.
    pub fn trailers(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let tree = self.note.tree.as_ref();
        let allowed =
            tree.map_or(&[][..], |tree| &tree.connector(self.inner.listener).allowed_trailers);
        let is_allowed =
            move |name: &[u8]| allowed.iter().any(|own| own == "*" || own.as_bytes() == name);
        let trailers = self.inner.trailers().iter().map(|(name, value)| (&**name, &**value));
        trailers.filter(move |(name, _)| is_allowed(name))
    }

    /// The value of a trailer field, as [`Request::trailers`] has it.
    pub fn trailer(&self, name: &str) -> Option<Cow<'_, str>> {
        let name = name.as_bytes();
        let mut trailers = self.trailers();
        trailers.find(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| latin1(value))
    }

    /// The announced length of the content in bytes; `None` if it is chunked.
    pub fn content_length(&self) -> Option<u64> {
        self.inner.content_length()
    }

    /// The client's address.
    pub fn remote_addr(&self) -> SocketAddr {
        self.inner.peer.into()
    }

    /// The host that the client named, without the port.
    pub fn server_name(&self) -> Cow<'_, str> {
        latin1(host_of(&self.inner))
    }

    /// The first value of a parameter: of the query first, then of a form in the content, which is
    /// read for it.
    ///
    /// # Errors
    /// The query or form cannot be decoded (400).
    pub fn parameter(&mut self, name: &str) -> Result<Option<&str>> {
        if self.note.parameters.is_none() {
            self.note.parameters = Some(Box::new(self.parse_parameters()?));
        }
        let parameters = self.note.parameters.as_deref().map_or(&[][..], Vec::as_slice);
        Ok(parameters.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str()))
    }

    /// Reads content into `buffer`; 0 is its end. On the core it never waits, in a blocking
    /// servlet it does.
    ///
    /// # Errors
    /// The content is broken or the client left; illegal state where the content has not arrived
    /// yet and nobody may wait: a streaming servlet reads with a
    /// [`ReadListener`], or as a blocking servlet, or is called when the content is complete.
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        if let Hook::Worker { cell, .. } = &self.hook {
            let read = cell.read_blocking(buffer, None).map_err(worker_read_error);
            let count = read.inspect_err(|error| note_io_error(cell, error))?;
            return Ok(self.note_read(count, buffer.len()));
        }
        if self.inner.has_read_listener && self.note.was_unready {
            return Err(self.read_error());
        }
        if self.inner.uses_inbound
            && let Some(cell) = self.cell()
        {
            let read = cell.try_read(buffer).map_err(|error| match error.kind() {
                std::io::ErrorKind::WouldBlock => self.read_error(),
                _ => worker_read_error(error),
            });
            return read.map(|count| self.note_read(count, buffer.len()));
        }
        match self.inner.body.read(buffer) {
            BodyRead::Bytes(count) => Ok(count),
            BodyRead::End => Ok(0),
            BodyRead::NotReady => Err(self.read_error()),
        }
    }

    /// What a read of the queue means for the request: at the end the trailers are there.
    pub(crate) fn note_read(&mut self, count: usize, wanted: usize) -> usize {
        if count == 0
            && wanted > 0
            && let Some(cell) = self.cell()
        {
            self.inner.body.finish();
            self.inner.set_trailers(cell.trailers().to_vec());
        }
        count
    }

    /// Reads the rest of the content.
    ///
    /// # Errors
    /// As [`Request::read`].
    pub fn read_to_end(&mut self) -> Result<Vec<u8>> {
        let mut content = Vec::new();
        let mut piece = [0; 8192];
        loop {
            match self.read(&mut piece)? {
                0 => return Ok(content),
                count => content.extend_from_slice(&piece[..count]),
            }
        }
    }

    /// Whether a read gives content at once. With a read listener, `false` promises a call of
    /// [`ReadListener::on_data_available`] when content is there.
    pub fn is_ready(&mut self) -> bool {
        match self.cell() {
            Some(cell) if self.inner.has_read_listener => {
                let is_ready = !self.inner.is_read_due && is_input_ready(&cell);
                self.note.was_unready = !is_ready;
                is_ready
            }
            Some(_) | None => true,
        }
    }

    /// Whether all content was read.
    pub fn is_finished(&self) -> bool {
        match self.cell() {
            Some(cell) if self.inner.uses_inbound || !self.is_on_core() => {
                cell.is_inbound_consumed()
            }
            Some(_) | None => self.inner.body.is_consumed(),
        }
    }

    /// Sets the read listener; its first call comes after the present callback has returned.
    ///
    /// # Errors
    /// Illegal state: the request is not asynchronous, or has a read listener.
    pub fn set_read_listener(&mut self, listener: impl ReadListener) -> Result<()> {
        let is_async = self.is_async();
        if !is_async {
            return Err(Error::illegal_state(
                "a read listener needs an asynchronous request: call start_async first",
            ));
        }
        if self.inner.has_read_listener {
            return Err(Error::illegal_state("the request has a read listener already"));
        }
        if matches!(self.hook, Hook::Future { .. }) {
            return Err(Error::illegal_state(
                "an async fn servlet reads by awaiting read_async, without a read listener",
            ));
        }
        if let Hook::Worker { cell, .. } = &self.hook {
            let operation = ContainerOperation::SetReadListener(Box::new(listener));
            cell.call(None, Some(operation), Look::Never).map_err(call_error)?;
            self.inner.has_read_listener = true;
            return Ok(());
        }
        self.install_read_listener(Box::new(listener));
        Ok(())
    }

    pub(crate) fn install_read_listener(&mut self, listener: Box<dyn ReadListener>) {
        self.note.seldom_mut().read_listener = Some(listener);
        if let Some(cell) = self.cell() {
            cell.set_flag(Flag::ReadListened);
        }
        self.inner.has_read_listener = true;
        // Content may be there already; if not, the call is owed from now on.
        let is_ready = self.cell().is_some_and(|cell| cell.is_ready_or_owed(Direction::Read));
        self.inner.is_read_due |= is_ready;
    }

    /// An attribute of the request.
    pub fn attribute(&self, name: &str) -> Option<Attribute> {
        match &self.note.context {
            Some(context) => context.parts.cell.attribute(name),
            None => self.note.attributes.as_ref()?.get(name).map(Arc::clone),
        }
    }

    /// Sets an attribute of the request. Once it was asynchronous its context has the same ones,
    /// for any thread: [`AsyncContext::attribute`](crate::AsyncContext::attribute).
    ///
    /// `org.apache.catalina.ASYNC_SUPPORTED` with the value `true` makes up for elements on the way
    /// that do not support async.
    pub fn set_attribute(&mut self, name: impl Into<String>, value: impl Any + Send + Sync) {
        let (name, value): (String, Attribute) = (name.into(), Arc::new(value));
        if name == ASYNC_SUPPORTED && value.downcast_ref() == Some(&true) {
            self.note.barred_by.clear();
        }
        drop(self.swap_attribute(&name, Some(value)));
    }

    /// Sets an attribute, or removes it; answers the one before.
    pub(crate) fn swap_attribute(
        &mut self,
        name: &str,
        value: Option<Attribute>,
    ) -> Option<Attribute> {
        match (&self.note.context, value) {
            (Some(context), Some(value)) => context.parts.cell.set_attribute(name, value),
            (Some(context), None) => context.parts.cell.remove_attribute(name),
            (None, Some(value)) => {
                self.note.attributes.get_or_insert_default().insert(name.to_owned(), value)
            }
            (None, None) => self.note.attributes.as_mut()?.remove(name),
        }
    }

    /// Removes an attribute of the request.
    pub fn remove_attribute(&mut self, name: &str) -> Option<Attribute> {
        self.swap_attribute(name, None)
    }

    /// Whether the request, once asynchronous, ends when the client ends its sending side: it is
    /// told as of a reset, `on_error` and then `on_complete`. The connector says what it is at
    /// first.
    pub fn set_end_on_peer_close(&mut self, is_ended: bool) {
        self.inner.ends_on_peer_close = is_ended;
        if let Some(cell) = self.cell() {
            match is_ended {
                true => cell.set_flag(Flag::EndsOnPeerClose),
                false => cell.clear_flag(Flag::EndsOnPeerClose),
            };
        }
    }

    /// Whether [`Request::start_async`] is allowed by everything the request went through.
    pub fn is_async_supported(&self) -> bool {
        self.note.barred_by.is_empty()
    }

    /// Whether the request is in a round that was started and not ended (`isAsyncStarted`).
    pub fn is_async_started(&self) -> bool {
        self.state_is(|state| state.is_started())
    }

    pub(crate) fn is_async(&self) -> bool {
        self.state_is(|state| state.is_async())
    }

    pub(crate) fn is_async_completing(&self) -> bool {
        self.state_is(|state| state.is_completing())
    }

    pub(crate) fn is_async_dispatching(&self) -> bool {
        self.state_is(|state| state.is_dispatching())
    }

    /// What the application failed with, for error reports.
    pub fn error(&self) -> Option<&Error> {
        self.note.seldom().error.as_deref()
    }

    /// Whether the read listener is due: content waits that it was promised, or all was read.
    pub(crate) fn is_read_due(&self) -> bool {
        let is_at_end = || self.is_finished() && !self.is_read_elsewhere();
        let is_told_all = self.note.is_all_data_read_sent;
        self.inner.has_read_listener && !is_told_all && (self.inner.is_read_due || is_at_end())
    }

    /// Applies what was asked for so far, so that listeners of this very callback are known.
    pub(crate) fn take_in(&mut self, response: &mut crate::response::Response) {
        response.sync();
        let Hook::Core(hook) = &self.hook else { return };
        for operation in hook.take_deferred() {
            self.apply(operation);
        }
    }

    /// Applies an operation of another thread that concerns the request or its round.
    pub(crate) fn apply(&mut self, operation: ContainerOperation) {
        match operation {
            ContainerOperation::AddListener(listener) => self.note.listeners.push(listener),
            ContainerOperation::SetReadListener(listener) => self.install_read_listener(listener),
            ContainerOperation::SetWriteListener(listener) => {
                self.note.seldom_mut().write_listener = Some(listener);
            }
            ContainerOperation::RoundBegan => self.round_began(),
            ContainerOperation::Dispatch(target) => {
                self.note.seldom_mut().dispatch_target = Some(Box::new(target));
            }
            ContainerOperation::TaskFailed(error) => {
                self.note.seldom_mut().error = Some(Arc::new(error));
            }
            ContainerOperation::Write(_)
            | ContainerOperation::Flush
            | ContainerOperation::Status(_)
            | ContainerOperation::SetHeader(..)
            | ContainerOperation::AddHeader(..)
            | ContainerOperation::RemoveHeader(_)
            | ContainerOperation::ContentLength(_)
            | ContainerOperation::Reset
            | ContainerOperation::ResetBuffer
            | ContainerOperation::BufferSize(_)
            | ContainerOperation::SendError(..)
            | ContainerOperation::Failed(_)
            | ContainerOperation::Close
            | ContainerOperation::Finish => panic!("an operation of the response"),
        }
    }

    /// Notes an element on the way that does not support async.
    pub(crate) fn bar_async_unless(
        &mut self,
        is_supported: bool,
        element: impl FnOnce() -> Barring,
    ) {
        if !is_supported {
            self.note.barred_by.push(element());
        }
    }

    /// What comes behind sees the request through `wrappers` too. Answers how many there were.
    pub(crate) fn push_wrappers(
        &mut self,
        wrappers: &[std::sync::Arc<dyn RequestWrapper>],
    ) -> usize {
        let count = self.note.seldom().wrappers.len();
        if !wrappers.is_empty() {
            self.note.seldom_mut().wrappers.extend_from_slice(wrappers);
        }
        self.note.parameters = None;
        count
    }

    /// Back to so many wrappers.
    pub(crate) fn pop_wrappers(&mut self, count: usize) {
        if let Some(seldom) = self.note.seldom_if_there() {
            seldom.wrappers.truncate(count);
        }
        self.note.parameters = None;
    }

    /// Whether the calling thread is the core that owns the request.
    pub(crate) fn is_on_core(&self) -> bool {
        !matches!(self.hook, Hook::Worker { .. })
    }

    pub(crate) fn tree(&self) -> Arc<ContainerTree> {
        let tree = self.note.tree.as_ref().expect("post_parse gives every note its tree");
        Arc::clone(tree)
    }

    pub(crate) fn cell(&self) -> Option<Arc<AsyncCell<ContainerOperation>>> {
        self.hook.existing_cell()
    }

    /// Whether sending or receiving failed, as far as this thread can know.
    pub(crate) fn has_connection_failed(&self) -> bool {
        let is_noted = || self.cell().is_some_and(|cell| cell.word().has(Flag::IoError));
        self.inner.failure.is_some() || self.inner.body_error().is_some() || is_noted()
    }

    /// Whether nothing but the error of the content is left to be read.
    pub(crate) fn is_input_broken(&self) -> bool {
        self.inner.body_error().is_some() && self.cell().is_none_or(|cell| cell.inbound_len() == 0)
    }

    /// Whether another thread may still be at work with the last bytes that it read.
    pub(crate) fn is_read_elsewhere(&self) -> bool {
        self.cell().is_some_and(|cell| cell.word().has(Flag::ReaderInside))
    }

    /// Runs application code on the core: nobody may wait for this exchange's owner meanwhile,
    /// since the application may wait for them.
    pub(crate) fn in_callback<R>(&mut self, f: impl FnOnce(&mut Self) -> R) -> R {
        if !matches!(self.hook, Hook::Core(_)) {
            return f(self);
        }
        if let Some(cell) = self.cell() {
            cell.enter_callback();
        }
        let tree = self.note.tree.as_ref();
        let before = tree.map_or(0, |tree| tree.watch.enter(self.note.mapping));
        let result = f(self);
        if let Some(tree) = &self.note.tree {
            tree.watch.leave(before);
        }
        if let Some(cell) = self.cell() {
            cell.leave_callback();
        }
        result
    }

    fn state_is(&self, ask: fn(ringcat_protocol::async_state_machine::AsyncState) -> bool) -> bool {
        self.cell().is_some_and(|cell| ask(cell.word().state()))
    }

    fn read_error(&self) -> Error {
        if let Some(error) = self.inner.body_error() {
            return Error::protocol_violation(error.status, error.reason);
        }
        if self.inner.failure.is_some() {
            return std::io::Error::from(std::io::ErrorKind::ConnectionReset).into();
        }
        Error::illegal_state(
            "read: the content has not arrived; use a ReadListener, await read_async in an async \
             fn servlet, declare the servlet blocking, or let it be called when the content is \
             complete",
        )
    }

    /// The query string that a dispatch or forward brought.
    fn dispatched_query(&self) -> Option<&str> {
        self.note.seldom().dispatched.as_ref().and_then(|dispatched| dispatched.query.as_deref())
    }

    /// Whether the content is a form that was not read yet.
    pub(crate) fn is_form_unread(&self) -> bool {
        let is_form = self.header("content-type").is_some_and(|value| {
            let media_type = value.split(';').next().unwrap_or("").trim();
            media_type.eq_ignore_ascii_case("application/x-www-form-urlencoded")
        });
        is_form && self.method_kind() == Method::Post && self.note.seldom().form.is_none()
    }

    fn parse_parameters(&mut self) -> Result<Vec<(String, String)>> {
        let mut parameters = Vec::new();
        for query in self.note.seldom().queries.iter().rev() {
            parameters.append(&mut uri::parse_query(query.as_bytes())?);
        }
        if let Some(query) = self.inner.raw_query() {
            parameters.append(&mut uri::parse_query(query)?);
        }
        if self.is_form_unread() {
            let content = self.read_to_end()?;
            self.note.seldom_mut().form = Some(uri::parse_query(&content)?);
        }
        parameters.extend(self.note.seldom().form.iter().flatten().cloned());
        for wrapper in self.note.seldom().wrappers.iter() {
            parameters = parameters
                .into_iter()
                .filter_map(|(name, value)| {
                    wrapper.parameter(&name, Some(&value)).map(|value| (name, value))
                })
                .collect();
        }
        Ok(parameters)
    }
}

impl std::io::Read for Request {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        Self::read(self, buffer).map_err(std::io::Error::other)
    }
}

/// Whether a read takes effect at once. At the end of the content nothing is left to be read.
pub(crate) fn is_input_ready(cell: &AsyncCell<ContainerOperation>) -> bool {
    !cell.is_inbound_consumed() && cell.is_ready_or_owed(Direction::Read)
}

/// What a blocking read failed with: content that breaks its framing is the client's fault, and
/// the rest is the connection's.
pub(crate) fn worker_read_error(error: std::io::Error) -> Error {
    if error.raw_os_error() == Some(Errno::EBADMSG.0) {
        return Error::protocol_violation(400, "the content is broken");
    }
    error.into()
}

/// The host that a request names, without port: that of an absolute target, else of `Host`.
pub(crate) fn host_of(request: &ProtocolRequest) -> &[u8] {
    request.framing.server.map_or(b"", |server| request.head.get().slice(server.host))
}

/// A version as it is written.
pub(crate) const fn version_name(version: Version) -> &'static str {
    match version {
        Version::Http10 => "HTTP/1.0",
        Version::Http11 => "HTTP/1.1",
    }
}

/// Octets as text: ASCII as it is, the rest as ISO-8859-1.
pub(crate) fn latin1(bytes: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) if text.is_ascii() => Cow::Borrowed(text),
        Ok(_) | Err(_) => Cow::Owned(bytes.iter().map(|byte| char::from(*byte)).collect()),
    }
}

/// A timeout as the cell keeps it: milliseconds, rounded up so that it is never early.
pub(crate) fn millis(timeout: Duration) -> i64 {
    i64::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX)
}
