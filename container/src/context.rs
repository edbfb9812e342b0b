//! Builds a web application: servlets and filters with their URL patterns, valves. Stands for
//! the registration part of `ServletContext` and for `StandardContext`.

use std::time::Duration;

use crate::{
    async_servlet::{AsyncClosureServlet, AsyncServlet},
    container::ServletKind,
    dispatch::DispatcherType,
    error::Result,
    error_pages::{ErrorPage, ErrorPageCause},
    filter::Filter,
    methods::Methods,
    request::Request,
    request_listener::RequestListener,
    response::Response,
    servlet::{ClosureServlet, Servlet},
    valve::Valve,
};

/// A web application under construction.
///
/// URL patterns are those of the Servlet specification, section 12.2: exact (`/a/b`), path
/// prefix (`/a/*`), extension (`*.txt`), default (`/`), and `""` for the context root. A bad or
/// repeated pattern is reported when the server starts.
pub struct Context {
    pub(crate) path: String,
    pub(crate) servlets: Vec<ServletDeclaration>,
    pub(crate) filters: Vec<FilterDeclaration>,
    pub(crate) valves: Vec<Box<dyn Valve>>,
    pub(crate) request_listeners: Vec<Box<dyn RequestListener>>,
    pub(crate) error_pages: Vec<ErrorPage>,
    pub(crate) welcome_files: Vec<String>,
    pub(crate) is_cross_context: bool,
    pub(crate) unload_delay: Duration,
}

pub(crate) struct ServletDeclaration {
    pub(crate) name: String,
    pub(crate) patterns: Vec<String>,
    pub(crate) servlet: ServletKind,
    pub(crate) valves: Vec<Box<dyn Valve>>,
}

pub(crate) struct FilterDeclaration {
    pub(crate) name: String,
    pub(crate) pattern: String,
    pub(crate) dispatchers: Vec<DispatcherType>,
    pub(crate) filter: Box<dyn Filter>,
}

impl Context {
    /// An application at `path`: `""` for the root, else a path that begins with a slash.
    pub fn new(path: impl Into<String>) -> Self {
        let path = path.into();
        let path = if path == "/" { String::new() } else { path };
        Self {
            path,
            servlets: Vec::new(),
            filters: Vec::new(),
            valves: Vec::new(),
            request_listeners: Vec::new(),
            error_pages: Vec::new(),
            welcome_files: Vec::new(),
            is_cross_context: false,
            unload_delay: Duration::from_secs(2),
        }
    }

    /// Declares a servlet for a URL pattern. Its name in logs is that of its type.
    #[must_use]
    pub fn servlet(self, pattern: &str, servlet: impl Servlet) -> Self {
        let name = short_type_name(std::any::type_name_of_val(&servlet));
        self.declare(name, &[pattern], ServletKind::Plain(Box::new(servlet)))
    }

    /// Declares an `async fn` servlet for a URL pattern.
    #[must_use]
    pub fn async_servlet(self, pattern: &str, servlet: impl AsyncServlet) -> Self {
        let name = short_type_name(std::any::type_name_of_val(&servlet));
        self.declare(name, &[pattern], ServletKind::Async(Box::new(servlet)))
    }

    /// Declares an `async fn` servlet with a name and any number of URL patterns.
    #[must_use]
    pub fn named_async_servlet(
        self,
        name: impl Into<String>,
        patterns: &[&str],
        servlet: impl AsyncServlet,
    ) -> Self {
        self.declare(name.into(), patterns, ServletKind::Async(Box::new(servlet)))
    }

    /// Declares an asynchronous closure that answers GET and HEAD.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let context = ringcat::Context::new("").async_get("/later", async |_req, res| {
    ///     ringcat::time::sleep(Duration::from_millis(5)).await;
    ///     res.write("later\n")
    /// });
    /// # drop(context);
    /// ```
    #[must_use]
    pub fn async_get<F>(self, pattern: &str, service: F) -> Self
    where
        F: AsyncFn(&mut Request, &mut Response) -> Result<()> + Send + Sync + 'static,
    {
        self.async_method(Methods::GET, pattern, service)
    }

    /// Declares an asynchronous closure that answers the given methods.
    #[must_use]
    pub fn async_method<F>(self, methods: Methods, pattern: &str, service: F) -> Self
    where
        F: AsyncFn(&mut Request, &mut Response) -> Result<()> + Send + Sync + 'static,
    {
        let name = format!("closure at {pattern}");
        let servlet = AsyncClosureServlet { methods, service };
        self.declare(name, &[pattern], ServletKind::Async(Box::new(servlet)))
    }

    /// Declares a servlet with a name and any number of URL patterns.
    #[must_use]
    pub fn named_servlet(
        self,
        name: impl Into<String>,
        patterns: &[&str],
        servlet: impl Servlet,
    ) -> Self {
        self.declare(name.into(), patterns, ServletKind::Plain(Box::new(servlet)))
    }

    /// Declares a closure that answers GET and HEAD.
    #[must_use]
    pub fn get<F>(self, pattern: &str, service: F) -> Self
    where
        F: Fn(&mut Request, &mut Response) -> Result<()> + Send + Sync + 'static,
    {
        self.method(Methods::GET, pattern, service)
    }

    /// Declares a closure that answers POST.
    #[must_use]
    pub fn post<F>(self, pattern: &str, service: F) -> Self
    where
        F: Fn(&mut Request, &mut Response) -> Result<()> + Send + Sync + 'static,
    {
        self.method(Methods::POST, pattern, service)
    }

    /// Declares a closure that answers PUT.
    #[must_use]
    pub fn put<F>(self, pattern: &str, service: F) -> Self
    where
        F: Fn(&mut Request, &mut Response) -> Result<()> + Send + Sync + 'static,
    {
        self.method(Methods::PUT, pattern, service)
    }

    /// Declares a closure that answers DELETE.
    #[must_use]
    pub fn delete<F>(self, pattern: &str, service: F) -> Self
    where
        F: Fn(&mut Request, &mut Response) -> Result<()> + Send + Sync + 'static,
    {
        self.method(Methods::DELETE, pattern, service)
    }

    /// Declares a closure that answers the given methods.
    #[must_use]
    pub fn method<F>(self, methods: Methods, pattern: &str, service: F) -> Self
    where
        F: Fn(&mut Request, &mut Response) -> Result<()> + Send + Sync + 'static,
    {
        let name = format!("closure at {pattern}");
        let servlet = ClosureServlet { methods, service };
        self.declare(name, &[pattern], ServletKind::Plain(Box::new(servlet)))
    }

    /// Declares a filter for requests of clients that match a URL pattern. Filters run in the
    /// order of their declaration.
    #[must_use]
    pub fn filter(self, pattern: &str, filter: impl Filter) -> Self {
        self.filter_for(&[DispatcherType::Request], pattern, filter)
    }

    /// Declares a filter for the given dispatcher types.
    #[must_use]
    pub fn filter_for(
        self,
        dispatchers: &[DispatcherType],
        pattern: &str,
        filter: impl Filter,
    ) -> Self {
        let name = short_type_name(std::any::type_name_of_val(&filter));
        self.named_filter(name, dispatchers, pattern, filter)
    }

    /// Declares a filter with a name for the given dispatcher types.
    #[must_use]
    pub fn named_filter(
        mut self,
        name: impl Into<String>,
        dispatchers: &[DispatcherType],
        pattern: &str,
        filter: impl Filter,
    ) -> Self {
        self.filters.push(FilterDeclaration {
            name: name.into(),
            pattern: pattern.to_owned(),
            dispatchers: dispatchers.to_vec(),
            filter: Box::new(filter),
        });
        self
    }

    /// Adds a valve to the pipeline of the servlet declared last, innermost of all.
    ///
    /// # Panics
    /// No servlet is declared yet.
    #[must_use]
    pub fn servlet_valve(mut self, valve: impl Valve) -> Self {
        let servlet = self.servlets.last_mut().expect("servlet_valve follows a servlet");
        servlet.valves.push(Box::new(valve));
        self
    }

    /// Adds a valve to the context's pipeline.
    #[must_use]
    pub fn valve(mut self, valve: impl Valve) -> Self {
        self.valves.push(Box::new(valve));
        self
    }

    /// Adds a listener that is told of each request that enters and leaves the application.
    #[must_use]
    pub fn request_listener(mut self, listener: impl RequestListener) -> Self {
        self.request_listeners.push(Box::new(listener));
        self
    }

    /// Declares the page for answers of a status: a path in the application, to which the request
    /// is forwarded (Servlet section 10.9). A location without a leading slash is reported when the
    /// server starts.
    #[must_use]
    pub fn error_page(self, status: u16, location: &str) -> Self {
        self.declare_error_page(ErrorPageCause::Status(status), location)
    }

    /// Declares the page for errors of the application that are an `E`, as handed to
    /// [`Error::app`](crate::error::Error::app).
    #[must_use]
    pub fn error_page_for<E: std::error::Error + 'static>(self, location: &str) -> Self {
        let is_caused = |error: &crate::error::Error| error.downcast_ref::<E>().is_some();
        self.declare_error_page(ErrorPageCause::Error(is_caused), location)
    }

    /// Declares the page for every error that no other page is for.
    #[must_use]
    pub fn default_error_page(self, location: &str) -> Self {
        self.declare_error_page(ErrorPageCause::Any, location)
    }

    /// Adds a name that is tried behind a path that ends in a slash and that no servlet but the
    /// default one takes, in the order of declaration (Servlet section 10.10).
    #[must_use]
    pub fn welcome_file(mut self, name: impl Into<String>) -> Self {
        self.welcome_files.push(name.into());
        self
    }

    /// Whether the application may dispatch requests to other ones. Off by default.
    #[must_use]
    pub fn cross_context(mut self, is_allowed: bool) -> Self {
        self.is_cross_context = is_allowed;
        self
    }

    /// How long the application waits, when it is stopped, for asynchronous requests to end before
    /// they are timed out. 2 s by default.
    #[must_use]
    pub fn unload_delay(mut self, delay: Duration) -> Self {
        self.unload_delay = delay;
        self
    }

    fn declare_error_page(mut self, cause: ErrorPageCause, location: &str) -> Self {
        self.error_pages.push(ErrorPage { cause, location: location.to_owned() });
        self
    }

    fn declare(mut self, name: String, patterns: &[&str], servlet: ServletKind) -> Self {
        let patterns = patterns.iter().map(|pattern| (*pattern).to_owned()).collect();
        self.servlets.push(ServletDeclaration { name, patterns, servlet, valves: Vec::new() });
        self
    }
}

fn short_type_name(name: &str) -> String {
    name.rsplit("::").next().unwrap_or(name).to_owned()
}
