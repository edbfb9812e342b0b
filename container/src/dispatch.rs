//! How a request came to a servlet, and where a dispatch sends it.

use std::fmt;

use crate::{
    container::ContainerTree,
    error::{Error, Result},
    mapper::{ContextIndex, Mapping},
    uri,
};

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

impl DispatchTarget {
    /// Checks and maps `path`, percent-encoded and with its query string if it has one, in a
    /// context.
    ///
    /// # Errors
    /// Illegal argument: a relative path. Unsupported: nothing is mapped there, or the path leads
    /// out of the context.
    pub(crate) fn find(tree: &ContainerTree, context: ContextIndex, path: &str) -> Result<Self> {
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
        let mut decoded = String::from_utf8(decoded).map_err(|_| unsupported("it is not UTF-8"))?;
        let mapping = tree.mapper.map_in_context(context, &decoded);
        let mapping = tree.with_welcome_file(mapping, &mut decoded, |path| {
            Some(tree.mapper.map_in_context(context, path))
        });
        if mapping.wrapper.is_none() {
            return Err(unsupported("no servlet is mapped there"));
        }
        let context_path = &tree.context(context).path;
        let request_uri = format!("{}{raw_path}", uri::encode_path(context_path));
        Ok(Self { path: decoded, request_uri, query, mapping })
    }
}
