//! Servlets whose `service` is an `async fn`: a future on the core, which lets go of it while it
//! waits.

use std::{future::Future, pin::Pin};

use crate::{
    error::Result,
    methods::{Method, Methods},
    request::Request,
    response::Response,
};

/// Answers requests with a future that runs on the request's core. One instance serves all cores,
/// at the same time; the futures stay on theirs and need not be `Send`.
///
/// `service` is called at the end of the head. A future that is ready at once answers as a plain
/// servlet does. One that waits makes the request asynchronous, in a round of its own: it counts
/// against the asynchronous timeout, filters see [`Request::is_async_started`] on their way back,
/// and when the future is ready the request is completed. Whoever else ends the round (its timeout,
/// a client that left, `complete` or `dispatch` from elsewhere) drops the future first, on its
/// core.
///
/// Between two waits the future holds its core, as any servlet does: it must not block. What waits
/// is awaited: [`Request::read_async`], [`Request::read_form_async`] before
/// [`Request::parameter`] of a form, [`Response::write_async`], [`time`](crate::time),
/// [`net`](crate::net), or anything that a waker of another runtime brings on.
///
/// ```
/// use ringcat::{AsyncServlet, Request, Response, Result};
///
/// struct Upper;
///
/// impl AsyncServlet for Upper {
///     async fn service(&self, req: &mut Request, res: &mut Response) -> Result<()> {
///         let mut piece = [0; 1024];
///         loop {
///             match req.read_async(&mut piece).await? {
///                 0 => return Ok(()),
///                 count => res.write_async(piece[..count].to_ascii_uppercase()).await?,
///             }
///         }
///     }
/// }
///
/// let context = ringcat::Context::new("").async_servlet("/upper", Upper);
/// # drop(context);
/// ```
pub trait AsyncServlet: Send + Sync + 'static {
    /// Answers one request.
    ///
    /// # Errors
    /// As [`Servlet::service`](crate::Servlet::service); once the request is asynchronous its
    /// listeners are told, by `on_error`, before the error report goes out.
    fn service(&self, req: &mut Request, res: &mut Response) -> impl Future<Output = Result<()>>;

    /// Called once, before the first request.
    ///
    /// # Errors
    /// The server does not start.
    fn init(&self) -> Result<()> {
        Ok(())
    }

    /// Called once, after the last request.
    fn destroy(&self) {}

    /// As [`Servlet::accepted_methods`](crate::Servlet::accepted_methods).
    fn accepted_methods(&self) -> Option<Methods> {
        None
    }

    /// Whether requests of the servlet, once asynchronous, end when the client ends its sending
    /// side, as [`Request::set_end_on_peer_close`]; `None` leaves that to the connector.
    fn end_on_peer_close(&self) -> Option<bool> {
        None
    }
}

/// The future of one request.
pub(crate) type ServiceFuture<'a> = Pin<Box<dyn Future<Output = Result<()>> + 'a>>;

/// [`AsyncServlet`] without its type.
pub(crate) trait AnyAsyncServlet: Send + Sync + 'static {
    fn service<'a>(&'a self, req: &'a mut Request, res: &'a mut Response) -> ServiceFuture<'a>;

    fn init(&self) -> Result<()>;

    fn destroy(&self);

    fn accepted_methods(&self) -> Option<Methods>;

    fn end_on_peer_close(&self) -> Option<bool>;
}

impl<T: AsyncServlet> AnyAsyncServlet for T {
    fn service<'a>(&'a self, req: &'a mut Request, res: &'a mut Response) -> ServiceFuture<'a> {
        Box::pin(AsyncServlet::service(self, req, res))
    }

    fn init(&self) -> Result<()> {
        AsyncServlet::init(self)
    }

    fn destroy(&self) {
        AsyncServlet::destroy(self);
    }

    fn accepted_methods(&self) -> Option<Methods> {
        AsyncServlet::accepted_methods(self)
    }

    fn end_on_peer_close(&self) -> Option<bool> {
        AsyncServlet::end_on_peer_close(self)
    }
}

/// An asynchronous closure as a servlet for some methods.
pub(crate) struct AsyncClosureServlet<F> {
    pub(crate) methods: Methods,
    pub(crate) service: F,
}

impl<F> AsyncServlet for AsyncClosureServlet<F>
where
    F: AsyncFn(&mut Request, &mut Response) -> Result<()> + Send + Sync + 'static,
{
    async fn service(&self, req: &mut Request, res: &mut Response) -> Result<()> {
        if req.method_kind() == Method::Options && !self.methods.contains(Methods::OPTIONS) {
            return res.set_header("Allow", self.methods.allow_header());
        }
        (self.service)(req, res).await
    }

    fn accepted_methods(&self) -> Option<Methods> {
        Some(self.methods)
    }
}
