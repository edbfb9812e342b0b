//! What an application is told of an asynchronous request: `AsyncListener` and its events, and
//! `ReadListener` for content that comes while nobody waits for it.

use crate::{
    async_context::AsyncContext,
    error::{Error, Result},
    request::Request,
    request_wrapper::RequestWrapper,
    response::Response,
};

/// Told of what happens to an asynchronous request. Always called on the owning core, never two
/// calls of one request at a time (Servlet section 2.3.3.3).
///
/// A failing call is logged; the other listeners still run.
///
/// | call | when | may end the request |
/// |---|---|---|
/// | `on_timeout` | the round took longer than its timeout | yes: `complete`, `dispatch` |
/// | `on_error` | the servlet failed, or the connection did | yes |
/// | `on_complete` | exactly once, when the request has ended | it has ended |
/// | `on_start_async` | the dispatched servlet begins another round | yes; add yourself again to stay |
pub trait AsyncListener: Send + 'static {
    /// The timeout of the round passed.
    ///
    /// # Errors
    /// Logged; the timeout then counts as not handled by this listener.
    fn on_timeout(&mut self, _event: &mut AsyncEvent<'_>) -> Result<()> {
        Ok(())
    }

    /// The servlet or the connection failed; [`AsyncEvent::error`] says how.
    ///
    /// # Errors
    /// Logged.
    fn on_error(&mut self, _event: &mut AsyncEvent<'_>) -> Result<()> {
        Ok(())
    }

    /// The request has ended. The response can still be written.
    ///
    /// # Errors
    /// Logged.
    fn on_complete(&mut self, _event: &mut AsyncEvent<'_>) -> Result<()> {
        Ok(())
    }

    /// Another round begins; the listeners of the last one are told and then forgotten.
    ///
    /// # Errors
    /// Logged.
    fn on_start_async(&mut self, _event: &mut AsyncEvent<'_>) -> Result<()> {
        Ok(())
    }
}

/// What an [`AsyncListener`] is called with.
pub struct AsyncEvent<'a> {
    pub(crate) context: &'a AsyncContext,
    pub(crate) request: &'a mut Request,
    pub(crate) response: Option<&'a mut Response>,
    pub(crate) error: Option<&'a Error>,
    pub(crate) is_supplied: bool,
}

/// A listener of a round, and the wrappers that its events come with.
pub struct AddedListener {
    pub(crate) listener: Box<dyn AsyncListener>,
    /// Those of [`AsyncContext::add_listener_with`].
    pub(crate) wrappers: Option<Box<[std::sync::Arc<dyn RequestWrapper>]>>,
}

impl AsyncEvent<'_> {
    /// The context of the request.
    pub fn context(&self) -> &AsyncContext {
        self.context
    }

    /// The request.
    pub fn request(&mut self) -> &mut Request {
        self.request
    }

    /// The response, on the core: writes are never refused for lack of credit.
    ///
    /// # Errors
    /// Illegal state in `on_start_async`, which runs inside a call that has the response already.
    pub fn response(&mut self) -> Result<&mut Response> {
        self.response.as_deref_mut().ok_or_else(|| {
            Error::illegal_state("the response belongs to the servlet that starts async")
        })
    }

    /// Request and response at once; the response as [`AsyncEvent::response`] has it.
    pub fn parts(&mut self) -> (&mut Request, Option<&mut Response>) {
        (self.request, self.response.as_deref_mut())
    }

    /// Whether the request comes with the wrappers of [`AsyncContext::add_listener_with`].
    pub fn is_supplied(&self) -> bool {
        self.is_supplied
    }

    /// Why `on_error` was called; `None` in the other calls, and for an error without exception.
    pub fn error(&self) -> Option<&Error> {
        self.error
    }
}

/// Reads a request's content as it comes, without a thread (Servlet section 3.7). Always called
/// on the owning core.
pub trait ReadListener: Send + 'static {
    /// Content can be read: [`Request::read`] until [`Request::is_ready`] says no, which is the
    /// promise of another call.
    ///
    /// # Errors
    /// Ends the request through [`ReadListener::on_error`] and the asynchronous error path.
    fn on_data_available(&mut self, request: &mut Request, response: &mut Response) -> Result<()>;

    /// All content was read. Called once.
    ///
    /// # Errors
    /// As for [`ReadListener::on_data_available`].
    fn on_all_data_read(&mut self, request: &mut Request, response: &mut Response) -> Result<()>;

    /// Reading failed, or a call of this listener did. The connection closes afterwards.
    ///
    /// # Errors
    /// Logged.
    fn on_error(
        &mut self,
        _request: &mut Request,
        _response: &mut Response,
        _error: &Error,
    ) -> Result<()> {
        Ok(())
    }
}

/// Writes a response as the connection takes it, without a thread (Servlet section 5.7). Always
/// called on the owning core.
pub trait WriteListener: Send + 'static {
    /// Content can be written: [`Response::write`] until [`Response::is_ready`] says no, which is
    /// the promise of another call.
    ///
    /// # Errors
    /// Ends the request through [`WriteListener::on_error`] and the asynchronous error path.
    fn on_write_possible(&mut self, request: &mut Request, response: &mut Response) -> Result<()>;

    /// Writing failed, or a call of this listener did. The connection closes afterwards.
    ///
    /// # Errors
    /// Logged.
    fn on_error(
        &mut self,
        _request: &mut Request,
        _response: &mut Response,
        _error: &Error,
    ) -> Result<()> {
        Ok(())
    }
}
