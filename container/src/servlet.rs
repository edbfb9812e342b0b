//! The application's unit: a servlet answers requests. Stands for `Servlet` and `HttpServlet`.

use crate::{
    error::{Error, Result},
    methods::{Method, Methods},
    request::Request,
    response::Response,
};

/// How a servlet wants to be called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServiceMode {
    /// On its core, when the whole body is there: reads never wait.
    #[default]
    Collected,
    /// On its core, at the end of the head: it reads as content comes, with a
    /// [`ReadListener`](crate::async_listener::ReadListener).
    Streaming,
    /// On a worker thread, at the end of the head: it may block, and its reads and writes wait.
    Blocking,
}

/// Answers requests. One instance serves all cores, at the same time.
///
/// `service` runs on a core and must not block, unless [`Servlet::mode`] says so: a core that
/// sleeps serves nobody.
pub trait Servlet: Send + Sync + 'static {
    /// Answers one request.
    ///
    /// # Errors
    /// Whatever the servlet could not deal with: 500, or what [`Error::status`] says, if nothing
    /// was sent yet.
    fn service(&self, req: &mut Request, res: &mut Response) -> Result<()>;

    /// Called once, before the first request.
    ///
    /// # Errors
    /// The server does not start.
    fn init(&self) -> Result<()> {
        Ok(())
    }

    /// Called once, after the last request.
    fn destroy(&self) {}

    /// The methods that the servlet takes; `None` for any. Another one is answered at the end of
    /// the head: 405 with `Allow`, or 501 if nobody knows it.
    fn accepted_methods(&self) -> Option<Methods> {
        None
    }

    /// Whether the servlet may call [`Request::start_async`] (Servlet section 2.3.3.3).
    fn is_async_supported(&self) -> bool {
        false
    }

    /// Whether requests of the servlet, once asynchronous, end when the client ends its sending
    /// side, as [`Request::set_end_on_peer_close`]; `None` leaves that to the connector.
    fn end_on_peer_close(&self) -> Option<bool> {
        None
    }

    /// How the servlet wants to be called.
    fn mode(&self) -> ServiceMode {
        ServiceMode::Collected
    }
}

/// A servlet with a function a method. What [`HttpServlet::methods`] declares is dispatched; it
/// also makes `Allow` and answers OPTIONS.
///
/// ```
/// use ringcat::{HttpServlet, Methods, Request, Response, Result};
///
/// struct Hello;
/// impl HttpServlet for Hello {
///     fn methods(&self) -> Methods {
///         Methods::GET
///     }
///     fn do_get(&self, _req: &mut Request, res: &mut Response) -> Result<()> {
///         res.set_content_type("text/plain");
///         res.write("Hello, World!\n")
///     }
/// }
/// ```
pub trait HttpServlet: Send + Sync + 'static {
    /// The methods that the servlet declares. GET implies HEAD.
    fn methods(&self) -> Methods;

    /// Whether the servlet may call [`Request::start_async`].
    fn async_supported(&self) -> bool {
        false
    }

    /// Whether requests of the servlet, once asynchronous, end when the client ends its sending
    /// side, as [`Request::set_end_on_peer_close`]; `None` leaves that to the connector.
    fn end_on_peer_close(&self) -> Option<bool> {
        None
    }

    /// How the servlet wants to be called.
    fn mode(&self) -> ServiceMode {
        ServiceMode::Collected
    }

    /// Called once, before the first request.
    ///
    /// # Errors
    /// The server does not start.
    fn init(&self) -> Result<()> {
        Ok(())
    }

    /// Called once, after the last request.
    fn destroy(&self) {}

    /// Answers GET.
    ///
    /// # Errors
    /// As [`Servlet::service`]; by default, that the servlet declares what it does not implement.
    fn do_get(&self, _req: &mut Request, _res: &mut Response) -> Result<()> {
        Err(not_implemented::<Self>("do_get"))
    }

    /// Answers HEAD; by default [`HttpServlet::do_get`], whose content the container keeps back.
    ///
    /// # Errors
    /// As [`Servlet::service`].
    fn do_head(&self, req: &mut Request, res: &mut Response) -> Result<()> {
        self.do_get(req, res)
    }

    /// Answers POST.
    ///
    /// # Errors
    /// As [`HttpServlet::do_get`].
    fn do_post(&self, _req: &mut Request, _res: &mut Response) -> Result<()> {
        Err(not_implemented::<Self>("do_post"))
    }

    /// Answers PUT.
    ///
    /// # Errors
    /// As [`HttpServlet::do_get`].
    fn do_put(&self, _req: &mut Request, _res: &mut Response) -> Result<()> {
        Err(not_implemented::<Self>("do_put"))
    }

    /// Answers DELETE.
    ///
    /// # Errors
    /// As [`HttpServlet::do_get`].
    fn do_delete(&self, _req: &mut Request, _res: &mut Response) -> Result<()> {
        Err(not_implemented::<Self>("do_delete"))
    }

    /// Answers PATCH.
    ///
    /// # Errors
    /// As [`HttpServlet::do_get`].
    fn do_patch(&self, _req: &mut Request, _res: &mut Response) -> Result<()> {
        Err(not_implemented::<Self>("do_patch"))
    }

    /// Answers OPTIONS; by default with `Allow`.
    ///
    /// # Errors
    /// As [`Servlet::service`].
    fn do_options(&self, _req: &mut Request, res: &mut Response) -> Result<()> {
        res.set_header("Allow", self.methods().allow_header())
    }

    /// Answers TRACE, where the connector lets it through.
    ///
    /// # Errors
    /// As [`HttpServlet::do_get`].
    fn do_trace(&self, _req: &mut Request, _res: &mut Response) -> Result<()> {
        Err(not_implemented::<Self>("do_trace"))
    }
}

impl<T: HttpServlet> Servlet for T {
    fn service(&self, req: &mut Request, res: &mut Response) -> Result<()> {
        match req.method_kind() {
            Method::Get => self.do_get(req, res),
            Method::Head => self.do_head(req, res),
            Method::Post => self.do_post(req, res),
            Method::Put => self.do_put(req, res),
            Method::Delete => self.do_delete(req, res),
            Method::Patch => self.do_patch(req, res),
            Method::Options => self.do_options(req, res),
            Method::Trace => self.do_trace(req, res),
            // The mapping refused it at the end of the head.
            Method::Other => res.send_error(501, None),
        }
    }

    fn init(&self) -> Result<()> {
        HttpServlet::init(self)
    }

    fn destroy(&self) {
        HttpServlet::destroy(self);
    }

    fn accepted_methods(&self) -> Option<Methods> {
        Some(self.methods())
    }

    fn is_async_supported(&self) -> bool {
        self.async_supported()
    }

    fn end_on_peer_close(&self) -> Option<bool> {
        HttpServlet::end_on_peer_close(self)
    }

    fn mode(&self) -> ServiceMode {
        HttpServlet::mode(self)
    }
}

/// A closure as a servlet for one method.
pub(crate) struct ClosureServlet<F> {
    pub(crate) methods: Methods,
    pub(crate) service: F,
}

impl<F> Servlet for ClosureServlet<F>
where
    F: Fn(&mut Request, &mut Response) -> Result<()> + Send + Sync + 'static,
{
    fn service(&self, req: &mut Request, res: &mut Response) -> Result<()> {
        if req.method_kind() == Method::Options && !self.methods.contains(Methods::OPTIONS) {
            return res.set_header("Allow", self.methods.allow_header());
        }
        (self.service)(req, res)
    }

    fn accepted_methods(&self) -> Option<Methods> {
        Some(self.methods)
    }
}

fn not_implemented<T: ?Sized>(function: &str) -> Error {
    Error::servlet(format!(
        "{} declares a method whose {function} it does not implement",
        std::any::type_name::<T>()
    ))
}
