//! Builds a web application: servlets and filters with their URL patterns, valves. Stands for
//! the registration part of `ServletContext` and for `StandardContext`.

use crate::{
    dispatch::DispatcherType,
    error::Result,
    filter::Filter,
    methods::Methods,
    request::Request,
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
}

pub(crate) struct ServletDeclaration {
    pub(crate) name: String,
    pub(crate) patterns: Vec<String>,
    pub(crate) servlet: Box<dyn Servlet>,
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
        Self { path, servlets: Vec::new(), filters: Vec::new(), valves: Vec::new() }
    }

    /// Declares a servlet for a URL pattern. Its name in logs is that of its type.
    #[must_use]
    pub fn servlet(self, pattern: &str, servlet: impl Servlet) -> Self {
        let name = short_type_name(std::any::type_name_of_val(&servlet));
        self.declare(name, &[pattern], Box::new(servlet))
    }

    /// Declares a servlet with a name and any number of URL patterns.
    #[must_use]
    pub fn named_servlet(
        self,
        name: impl Into<String>,
        patterns: &[&str],
        servlet: impl Servlet,
    ) -> Self {
        self.declare(name.into(), patterns, Box::new(servlet))
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
        self.declare(name, &[pattern], Box::new(ClosureServlet { methods, service }))
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
        mut self,
        dispatchers: &[DispatcherType],
        pattern: &str,
        filter: impl Filter,
    ) -> Self {
        self.filters.push(FilterDeclaration {
            name: short_type_name(std::any::type_name_of_val(&filter)),
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

    fn declare(mut self, name: String, patterns: &[&str], servlet: Box<dyn Servlet>) -> Self {
        let patterns = patterns.iter().map(|pattern| (*pattern).to_owned()).collect();
        self.servlets.push(ServletDeclaration { name, patterns, servlet, valves: Vec::new() });
        self
    }
}

fn short_type_name(name: &str) -> String {
    name.rsplit("::").next().unwrap_or(name).to_owned()
}
