//! The response as an application sees it: status, fields, content behind a buffer, the commit.
//! On the core it acts at once; on a worker thread (a blocking servlet) it keeps a copy to answer
//! questions from and hands every change to the core as an operation. Stands for
//! `HttpServletResponse`, `connector.Response` and `OutputBuffer`.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use ringcat_protocol::{
    action_code::{ActionCode, ActionError, ActionHook, Hook},
    async_cell::Look,
    async_state_machine::{AsyncState, Flag},
    response::{ErrorState, Response as ProtocolResponse},
};

use crate::{
    async_context::{call_error, note_io_error, write_refused},
    async_listener::WriteListener,
    error::{Error, Result},
    operation::ContainerOperation,
};

/// A response.
///
/// Until it is *committed* status and fields can be set; the commit comes with the first flush,
/// with the buffer's overflow, or with the end (Servlet section 5.2). A response that fits the
/// buffer leaves with its `Content-Length`; a longer one is chunked.
pub struct Response {
    pub(crate) inner: Box<ProtocolResponse>,
    pub(crate) hook: Hook<ContainerOperation>,
    refused: Option<Error>,
    /// How long a worker thread waits for a client that does not read.
    pub(crate) write_timeout: Duration,
    /// Inside [`Response::apply`]: what came to the list meanwhile was called later.
    is_applying: bool,
    /// An included servlet runs: it adds content, and changes nothing else.
    pub(crate) is_included: bool,
}

impl Response {
    pub(crate) fn new(inner: Box<ProtocolResponse>, hook: Hook<ContainerOperation>) -> Self {
        Self {
            inner,
            hook,
            refused: None,
            write_timeout: Duration::ZERO,
            is_applying: false,
            is_included: false,
        }
    }

    /// The status code.
    pub fn status(&self) -> u16 {
        self.inner.status
    }

    /// Sets the status code; without effect once committed. A number that is no final status, 200
    /// to 599, is answered as 500.
    pub fn set_status(&mut self, status: u16) {
        self.sync();
        if self.is_head_fixed() {
            return;
        }
        self.inner.status = final_status(status);
        self.forward(ContainerOperation::Status(status));
    }

    /// The first value of a field that was set, if it is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.inner.fields.get(name).and_then(|value| std::str::from_utf8(value).ok())
    }

    /// Sets a field, in place of all of that name; without effect once committed.
    ///
    /// # Errors
    /// Illegal argument: the name is no token, or the value holds a control character. (A line
    /// end in a value would split the response.)
    pub fn set_header(&mut self, name: &str, value: impl AsRef<[u8]>) -> Result<()> {
        self.sync();
        if self.is_head_fixed() {
            return Ok(());
        }
        let value = value.as_ref();
        self.inner.fields.set(name, value).map_err(invalid_field)?;
        if !self.is_local() {
            self.forward(ContainerOperation::SetHeader(name.to_owned(), value.to_vec()));
        }
        Ok(())
    }

    /// Adds a field beside those of that name; without effect once committed.
    ///
    /// # Errors
    /// As [`Response::set_header`].
    pub fn add_header(&mut self, name: &str, value: impl AsRef<[u8]>) -> Result<()> {
        self.sync();
        if self.is_head_fixed() {
            return Ok(());
        }
        let value = value.as_ref();
        self.inner.fields.add(name, value).map_err(invalid_field)?;
        if !self.is_local() {
            self.forward(ContainerOperation::AddHeader(name.to_owned(), value.to_vec()));
        }
        Ok(())
    }

    /// Removes all fields of that name; without effect once committed.
    pub fn remove_header(&mut self, name: &str) {
        self.sync();
        if self.is_head_fixed() {
            return;
        }
        self.inner.fields.remove(name);
        if !self.is_local() {
            self.forward(ContainerOperation::RemoveHeader(name.to_owned()));
        }
    }

    /// Sets `Content-Type`. A value that is no field value is reported by the next write.
    pub fn set_content_type(&mut self, content_type: &str) {
        if let Err(error) = self.set_header("Content-Type", content_type) {
            self.refused.get_or_insert(error);
        }
    }

    /// Announces the length of the content, in bytes; what is written past it is dropped.
    pub fn set_content_length(&mut self, length: u64) {
        self.sync();
        if self.is_head_fixed() {
            return;
        }
        self.inner.content_length = Some(length);
        self.forward(ContainerOperation::ContentLength(length));
    }

    /// Sets the size of the buffer in front of the commit, in bytes.
    ///
    /// # Errors
    /// Illegal state: content was written already.
    pub fn set_buffer_size(&mut self, bytes: usize) -> Result<()> {
        self.sync();
        if self.is_committed() || self.inner.written_bytes > 0 {
            return Err(Error::illegal_state("the buffer size is set before any content"));
        }
        self.inner.buffer_bytes_max = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.forward(ContainerOperation::BufferSize(bytes));
        Ok(())
    }

    /// The size of the buffer in front of the commit, in bytes.
    pub fn buffer_size(&self) -> usize {
        self.inner.buffer_bytes_max as usize
    }

    /// Writes content. On the core it never waits; on a worker thread it waits while the client
    /// does not read.
    ///
    /// # Errors
    /// The connection failed; more is queued than `response_backlog_max`; an earlier
    /// [`Response::set_content_type`] was refused.
    pub fn write(&mut self, content: impl AsRef<[u8]>) -> Result<()> {
        if let Some(refused) = self.refused.take() {
            return Err(refused);
        }
        self.sync();
        self.refuse_unready("write")?;
        let content = content.as_ref();
        if self.inner.is_finished || self.inner.is_suspended {
            return Ok(());
        }
        match &self.hook {
            Hook::Core(_) => {
                let written = self.write_local(content);
                written.inspect_err(|error| self.note_io_error(error))
            }
            Hook::Worker { cell, .. } => {
                self.inner.written_bytes += content.len() as u64;
                let operation = ContainerOperation::Write(Bytes::copy_from_slice(content));
                let written = cell.write_blocking(operation, Some(self.write_timeout));
                written.map_err(write_refused).inspect_err(|error| note_io_error(cell, error))
            }
            Hook::Future { cell, .. } => {
                self.inner.written_bytes += content.len() as u64;
                let operation = ContainerOperation::Write(Bytes::copy_from_slice(content));
                let written = cell.try_write(operation);
                written.map_err(write_refused).inspect_err(|error| note_io_error(cell, error))
            }
        }
    }

    /// Commits and puts what was written on its way now; the client sees it although the servlet
    /// works on.
    ///
    /// # Errors
    /// The connection failed.
    pub fn flush(&mut self) -> Result<()> {
        self.sync();
        self.refuse_unready("flush")?;
        if self.inner.is_finished || self.inner.is_suspended {
            return Ok(());
        }
        match self.hook.clone() {
            Hook::Core(hook) => {
                let flushed = self
                    .flush_buffer(&*hook)
                    .and_then(|()| hook.action(ActionCode::Flush).map_err(action_error));
                flushed.inspect_err(|error| self.note_io_error(error))
            }
            Hook::Worker { cell, .. } | Hook::Future { cell, .. } => cell
                .call(None, Some(ContainerOperation::Flush), Look::Always)
                .map(|_| ())
                .map_err(call_error)
                .inspect_err(|error| note_io_error(&cell, error)),
        }
    }

    /// Ends the content: commits, and what was written is sent; what is written later is dropped.
    /// Never waits.
    ///
    /// # Errors
    /// The connection failed.
    pub fn close(&mut self) -> Result<()> {
        self.sync();
        if self.is_included {
            return Ok(());
        }
        match self.hook.clone() {
            Hook::Core(_) => self.finish(),
            Hook::Worker { cell, .. } | Hook::Future { cell, .. } => {
                self.inner.is_finished = true;
                cell.call(None, Some(ContainerOperation::Close), Look::Always)
                    .map_err(call_error)?;
            }
        }
        Ok(())
    }

    /// Whether a write takes effect without waiting. With a write listener, `false` promises a
    /// call of [`WriteListener::on_write_possible`] when all that was written has left; without
    /// one it is always `true`.
    pub fn is_ready(&mut self) -> bool {
        if !self.is_non_blocking() {
            return true;
        }
        let Some(cell) = self.hook.existing_cell() else { return true };
        if cell.word().has(Flag::WriteOwed) {
            return false;
        }
        let is_ready = match &self.hook {
            // A connection that failed takes everything: the write itself says so.
            Hook::Core(hook) => hook.drain_output().unwrap_or(true),
            Hook::Worker { cell, .. } | Hook::Future { cell, .. } => cell.in_flight_bytes() == 0,
        };
        if !is_ready {
            cell.set_flag(Flag::WriteOwed);
            if !self.is_local() {
                cell.post_look();
            }
        }
        is_ready
    }

    /// Sets the write listener; its first call comes after the present callback has returned.
    ///
    /// # Errors
    /// Illegal state: the request is not asynchronous, or has a write listener.
    pub fn set_write_listener(&mut self, listener: impl WriteListener) -> Result<()> {
        let cell = self.hook.existing_cell().filter(|cell| cell.word().state().is_async());
        let Some(cell) = cell else {
            return Err(Error::illegal_state(
                "a write listener needs an asynchronous request: call start_async first",
            ));
        };
        if self.inner.has_write_listener {
            return Err(Error::illegal_state("the request has a write listener already"));
        }
        let operation = ContainerOperation::SetWriteListener(Box::new(listener));
        match &self.hook {
            Hook::Core(hook) => hook.defer(operation),
            Hook::Worker { cell, .. } => {
                cell.call(None, Some(operation), Look::Never).map_err(call_error)?;
            }
            Hook::Future { .. } => {
                return Err(Error::illegal_state(
                    "an async fn servlet writes by awaiting write_async, without a write listener",
                ));
            }
        }
        self.inner.has_write_listener = true;
        cell.set_flag(Flag::WriteListened);
        cell.set_flag(Flag::WriteOwed);
        Ok(())
    }

    /// Whether the head is fixed and on its way.
    pub fn is_committed(&self) -> bool {
        match &self.hook {
            Hook::Core(_) => self.inner.is_committed,
            Hook::Worker { cell, .. } | Hook::Future { cell, .. } => {
                cell.word().has(Flag::Committed)
            }
        }
    }

    /// Drops status, fields and content.
    ///
    /// # Errors
    /// Illegal state once committed.
    pub fn reset(&mut self) -> Result<()> {
        self.sync();
        if self.is_included {
            return Ok(());
        }
        self.refuse_committed("reset")?;
        self.inner.status = 200;
        self.inner.fields.clear();
        self.inner.content_length = None;
        self.drop_content();
        self.forward(ContainerOperation::Reset);
        Ok(())
    }

    /// Drops content, and keeps status and fields.
    ///
    /// # Errors
    /// Illegal state once committed.
    pub fn reset_buffer(&mut self) -> Result<()> {
        self.sync();
        if self.is_included {
            return Ok(());
        }
        self.refuse_committed("reset_buffer")?;
        self.drop_content();
        self.forward(ContainerOperation::ResetBuffer);
        Ok(())
    }

    /// Answers with the error report for `status`, 400 to 599; what was written is dropped, and so
    /// is what will be. The number is taken as by [`Response::set_status`]; below 400 no report is
    /// written, the content stays empty.
    ///
    /// # Errors
    /// Illegal state once committed.
    pub fn send_error(&mut self, status: u16, message: Option<&str>) -> Result<()> {
        self.sync();
        if self.is_included {
            return Ok(());
        }
        self.refuse_committed("send_error")?;
        self.drop_content();
        self.inner.content_length = None;
        self.inner.status = final_status(status);
        self.inner.message = message.map(|message| Box::new(message.to_owned()));
        self.inner.error = ErrorState::ReportDue;
        self.inner.is_suspended = true;
        self.forward(ContainerOperation::SendError(status, message.map(str::to_owned)));
        Ok(())
    }

    /// Answers with a redirect (302) to `location`, which is sent as it is.
    ///
    /// # Errors
    /// Illegal state once committed; illegal argument if `location` is no field value.
    pub fn send_redirect(&mut self, location: &str) -> Result<()> {
        self.sync();
        if self.is_included {
            return Ok(());
        }
        self.refuse_committed("send_redirect")?;
        self.set_header("Location", location)?;
        self.reset_buffer()?;
        self.set_status(302);
        self.set_content_length(0);
        self.end_content();
        Ok(())
    }

    /// Adds a `Set-Cookie` field.
    ///
    /// # Errors
    /// Illegal argument: name, value, domain or path is no cookie's.
    pub fn add_cookie(&mut self, cookie: &crate::cookie::Cookie) -> Result<()> {
        let policy = crate::cookie::CookiePolicy::default();
        let value = cookie.set_cookie_value(&policy, self.system_time())?;
        self.add_header("Set-Cookie", value)
    }

    /// The time of day.
    pub(crate) fn system_time(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + self.hook.clock().unix_time()
    }

    /// The application's part is over: what else it writes is dropped.
    pub(crate) fn end_content(&mut self) {
        self.inner.is_suspended = true;
        self.forward(ContainerOperation::Finish);
    }

    pub(crate) fn is_local(&self) -> bool {
        matches!(self.hook, Hook::Core(_))
    }

    /// Applies an operation of another thread.
    pub(crate) fn apply(&mut self, operation: ContainerOperation) {
        self.is_applying = true;
        let result = match operation {
            ContainerOperation::Write(bytes) => self.write_shared(bytes),
            ContainerOperation::Flush => self.flush(),
            ContainerOperation::Status(status) => {
                self.set_status(status);
                Ok(())
            }
            ContainerOperation::SetHeader(name, value) => self.set_header(&name, value),
            ContainerOperation::AddHeader(name, value) => self.add_header(&name, value),
            ContainerOperation::RemoveHeader(name) => {
                self.remove_header(&name);
                Ok(())
            }
            ContainerOperation::ContentLength(length) => {
                self.set_content_length(length);
                Ok(())
            }
            ContainerOperation::Reset => self.reset(),
            ContainerOperation::ResetBuffer => self.reset_buffer(),
            ContainerOperation::BufferSize(bytes) => self.set_buffer_size(bytes),
            ContainerOperation::SendError(status, message) => {
                self.send_error(status, message.as_deref())
            }
            ContainerOperation::Failed(status) => {
                self.set_failed(status);
                Ok(())
            }
            ContainerOperation::Finish => {
                self.inner.is_suspended = true;
                Ok(())
            }
            ContainerOperation::Close => {
                self.finish();
                Ok(())
            }
            ContainerOperation::AddListener(_)
            | ContainerOperation::SetReadListener(_)
            | ContainerOperation::SetWriteListener(_)
            | ContainerOperation::RoundBegan
            | ContainerOperation::Dispatch(_)
            | ContainerOperation::TaskFailed(_) => panic!("an operation of the request"),
        };
        if let Err(error) = result {
            // The caller was told where it could know; what only the core can see is logged.
            tracing::debug!("an operation on a response came too late: {error}");
        }
        self.is_applying = false;
    }

    /// Whether an error report is due.
    pub(crate) fn is_error_report_due(&self) -> bool {
        self.inner.error == ErrorState::ReportDue
    }

    /// Marks the report as made; `false` if none was due.
    pub(crate) fn set_error_reported(&mut self) -> bool {
        let was_due = self.is_error_report_due();
        if was_due {
            self.inner.error = ErrorState::Reported;
        }
        was_due
    }

    /// How the request ended, for the access log; also where another status was sent before.
    pub(crate) fn log_as(&mut self, status: u16) {
        if self.inner.is_committed {
            self.inner.log_status = Some(status);
        } else {
            self.inner.status = status;
        }
    }

    /// The application failed: a report is due.
    pub(crate) fn set_failed(&mut self, status: u16) {
        if !self.inner.is_committed {
            self.inner.status = final_status(status);
        }
        if self.inner.is_committed && !self.inner.is_finished {
            self.log_as(500);
        }
        if self.inner.error == ErrorState::None {
            self.inner.error = ErrorState::ReportDue;
        }
        self.forward(ContainerOperation::Failed(status));
    }

    /// Whether the write listener is to be called: it was promised a call, and all that it wrote
    /// has left.
    pub(crate) fn is_write_due(&self) -> bool {
        let is_owed = || self.hook.existing_cell().is_some_and(|c| c.word().has(Flag::WriteOwed));
        self.is_non_blocking() && is_owed() && self.is_drained()
    }

    /// Whether nothing that a write listener wrote has still to leave.
    pub(crate) fn is_drained(&self) -> bool {
        match &self.hook {
            Hook::Core(hook) if self.inner.has_write_listener => {
                hook.drain_output().unwrap_or(true)
            }
            Hook::Core(_) | Hook::Worker { .. } | Hook::Future { .. } => true,
        }
    }

    /// What was wrong with a value that an infallible setter took.
    pub(crate) fn take_refused(&mut self) -> Option<Error> {
        self.refused.take()
    }

    /// Ends the response: commits what is complete with its length, and closes the content.
    pub(crate) fn finish(&mut self) {
        if std::mem::replace(&mut self.inner.is_finished, true) {
            return;
        }
        let Hook::Core(hook) = self.hook.clone() else { return };
        let mut result = Ok(());
        if !self.inner.is_committed {
            let response = &mut *self.inner;
            result = hook.action(ActionCode::Commit { response, is_complete: true });
        }
        let buffer = std::mem::take(&mut self.inner.buffer);
        let result = result
            .and_then(|()| hook.action(ActionCode::Write(&buffer)))
            .and_then(|()| hook.action(ActionCode::Close));
        self.inner.buffer = buffer;
        self.inner.buffer.clear();
        if let Err(error) = result {
            tracing::debug!("a response could not be finished: {error}");
        }
    }

    /// Gives the response up: it must not look complete.
    pub(crate) fn close_now(&mut self) {
        self.inner.is_finished = true;
        if let Hook::Core(hook) = &self.hook
            && let Err(error) = hook.action(ActionCode::CloseNow)
        {
            tracing::debug!("a response could not be given up: {error}");
        }
    }

    /// Applies what other threads asked for before the next step of our own, so that the order of
    /// bytes is the order of calls.
    pub(crate) fn sync(&mut self) {
        if self.is_applying {
            return;
        }
        let Hook::Core(hook) = &self.hook else { return };
        let Some(cell) = hook.existing_cell() else { return };
        let operations = cell.take_before_own_step();
        if operations.is_empty() {
            return;
        }
        let hook = std::rc::Rc::clone(hook);
        hook.note_applied(operations.iter().map(credit_of).sum());
        for operation in operations {
            if operation.is_of_response() {
                self.apply(operation);
            } else {
                hook.defer(operation);
            }
        }
    }

    /// Hands a change on a worker thread to the core. A request that is over has no use for it.
    fn forward(&self, operation: ContainerOperation) {
        if let Hook::Worker { cell, .. } | Hook::Future { cell, .. } = &self.hook
            && let Err(error) = cell.call(None, Some(operation), Look::WhenGathered)
        {
            tracing::debug!("a change of a response came too late: {error}");
        }
    }

    /// Whether status and fields take no change: they are sent, the response is in error, or an
    /// included servlet tries.
    fn is_head_fixed(&self) -> bool {
        self.is_committed() || self.inner.is_suspended || self.is_included
    }

    /// Whether a write listener is to be called when there is room.
    fn is_non_blocking(&self) -> bool {
        let state = || self.hook.existing_cell().map(|cell| cell.word().state());
        self.inner.has_write_listener && state().is_some_and(AsyncState::keeps_listeners)
    }

    /// With a write listener nothing is queued behind what has not left.
    fn refuse_unready(&mut self, call: &str) -> Result<()> {
        if self.inner.has_write_listener && !self.is_applying && !self.is_ready() {
            return Err(Error::illegal_state(format!(
                "{call}: output is pending; ask is_ready and wait for on_write_possible"
            )));
        }
        Ok(())
    }

    /// A callback of an asynchronous request met a broken connection.
    fn note_io_error(&self, error: &Error) {
        if !self.is_applying
            && let Some(cell) = self.hook.existing_cell()
        {
            note_io_error(&cell, error);
        }
    }

    fn refuse_committed(&self, call: &str) -> Result<()> {
        if self.is_committed() {
            return Err(Error::illegal_state(format!("{call}: the response is committed")));
        }
        Ok(())
    }

    fn drop_content(&mut self) {
        self.inner.buffer.clear();
        self.inner.written_bytes = 0;
    }

    fn write_shared(&mut self, bytes: Bytes) -> Result<()> {
        let is_small = self.inner.buffer.len() + bytes.len() <= self.buffer_size();
        if is_small || self.inner.is_finished || self.inner.is_suspended {
            return self.write(&bytes);
        }
        let Hook::Core(hook) = self.hook.clone() else { return self.write(&bytes) };
        self.inner.written_bytes += bytes.len() as u64;
        self.flush_buffer(&*hook)?;
        hook.action(ActionCode::WriteShared(bytes)).map_err(action_error)
    }

    fn write_local(&mut self, content: &[u8]) -> Result<()> {
        self.inner.written_bytes += content.len() as u64;
        if self.inner.buffer.len() + content.len() <= self.buffer_size() {
            self.inner.buffer.extend_from_slice(content);
            return Ok(());
        }
        let Hook::Core(hook) = self.hook.clone() else { return Ok(()) };
        self.flush_buffer(&*hook)?;
        if content.len() < self.buffer_size() {
            self.inner.buffer.extend_from_slice(content);
            return Ok(());
        }
        hook.action(ActionCode::Write(content)).map_err(action_error)
    }

    /// Commits if that is due, and hands the buffer over.
    fn flush_buffer(&mut self, hook: &dyn ActionHook<ContainerOperation>) -> Result<()> {
        if !self.inner.is_committed {
            let response = &mut *self.inner;
            hook.action(ActionCode::Commit { response, is_complete: false })
                .map_err(action_error)?;
        }
        let result = hook.action(ActionCode::Write(&self.inner.buffer)).map_err(action_error);
        self.inner.buffer.clear();
        result
    }
}

impl std::io::Write for Response {
    fn write(&mut self, content: &[u8]) -> std::io::Result<usize> {
        Self::write(self, content).map_err(std::io::Error::other)?;
        Ok(content.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Self::flush(self).map_err(std::io::Error::other)
    }
}

/// A status that ends an exchange. After a 1xx a client would wait for the answer, and others are
/// none (RFC 9110 section 15).
fn final_status(status: u16) -> u16 {
    if (200..=599).contains(&status) { status } else { 500 }
}

fn credit_of(operation: &ContainerOperation) -> usize {
    ringcat_protocol::async_cell::Operation::credit_bytes(operation)
}

fn invalid_field(invalid: ringcat_protocol::response_fields::InvalidField) -> Error {
    Error::illegal_argument(invalid.to_string())
}

pub(crate) fn action_error(error: ActionError) -> Error {
    match error {
        ActionError::Io(errno) => std::io::Error::from(errno).into(),
        ActionError::Backlog { .. } => Error::would_block(error.to_string()),
    }
}
