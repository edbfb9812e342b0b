//! How a request came to a servlet, and where an asynchronous dispatch sends it.

use std::fmt;

use crate::mapper::Mapping;

/// Why a servlet or filter is called (Servlet section 9; `jakarta.servlet.DispatcherType`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DispatcherType {
    /// By the client.
    #[default]
    Request,
    /// By a forward.
    Forward,
    /// By an include.
    Include,
    /// By `AsyncContext::dispatch`.
    Async,
    /// As an error page.
    Error,
}

impl DispatcherType {
    /// The name that the Servlet specification gives it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Request => "REQUEST",
            Self::Forward => "FORWARD",
            Self::Include => "INCLUDE",
            Self::Async => "ASYNC",
            Self::Error => "ERROR",
        }
    }
}

impl fmt::Display for DispatcherType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A checked target: something is mapped there.
#[derive(Clone, Debug)]
pub struct DispatchTarget {
    /// The path in the context, decoded.
    pub(crate) path: String,
    /// The request URI that the target sees: context path and path, encoded.
    pub(crate) request_uri: String,
    /// The query string, if the target brings one.
    pub(crate) query: Option<String>,
    /// Where the path leads; lengths count from the path in the context.
    pub(crate) mapping: Mapping,
}
