//! The error pages of an application: which one is for what went wrong, and how it is run
//! (Servlet section 10.9). Stands for `ErrorPage`, `ErrorPageSupport` and `StandardHostValve`.

use ringcat_engine::sync::Arc;

use crate::{
    container::ContainerTree,
    dispatch::{DispatchTarget, DispatcherType},
    error::{Error, Result},
    mapper::ContextIndex,
    request::Request,
    request_dispatcher::RequestDispatcher,
    response::Response,
};

/// A declared error page.
pub(crate) struct ErrorPage {
    pub(crate) cause: ErrorPageCause,
    /// A path in the application.
    pub(crate) location: String,
}

/// What a page is for.
pub(crate) enum ErrorPageCause {
    /// A status.
    Status(u16),
    /// Errors of the application, by their type.
    Error(fn(&Error) -> bool),
    /// Whatever no other page is for.
    Any,
}

/// The page for an error first, then the one for the status, then the one for everything.
fn find<'a>(pages: &'a [ErrorPage], status: u16, error: Option<&Error>) -> Option<&'a str> {
    let is_for_error = |page: &&ErrorPage| match (&page.cause, error) {
        (ErrorPageCause::Error(is_caused), Some(error)) => is_caused(error),
        _ => false,
    };
    let is_for_status =
        |page: &&ErrorPage| matches!(page.cause, ErrorPageCause::Status(own) if own == status);
    let is_for_all = |page: &&ErrorPage| matches!(page.cause, ErrorPageCause::Any);
    let page = pages
        .iter()
        .find(is_for_error)
        .or_else(|| pages.iter().find(is_for_status))
        .or_else(|| pages.iter().find(is_for_all))?;
    Some(&page.location)
}

/// Refuses a page that could never be shown, when the server starts.
pub(crate) fn check(tree: &ContainerTree, context: ContextIndex) -> Result<()> {
    let node = tree.context(context);
    for page in &node.error_pages {
        if !page.location.starts_with('/') {
            return Err(Error::illegal_argument(format!(
                "context {:?}: error page {:?} must begin with a slash",
                node.path, page.location
            )));
        }
    }
    Ok(())
}

/// Runs the application's page for an answer that is in error, if it has one and nothing was sent
/// yet. The built-in report follows where there is none.
pub(crate) fn render(req: &mut Request, res: &mut Response) {
    let is_wanted = res.is_local()
        && res.is_error_report_due()
        && !res.inner.is_committed
        && res.inner.status >= 400
        && !req.has_connection_failed();
    let Some(mapping) = req.note.mapping.filter(|_| is_wanted) else { return };
    let tree = req.tree();
    let pages = &tree.context(mapping.context).error_pages;
    if pages.is_empty() {
        return;
    }
    let (status, error) = (res.inner.status, req.note.seldom().error.clone());
    let Some(location) = find(pages, status, error.as_deref()) else { return };
    let was_suspended = res.inner.is_suspended;
    if let Err(failure) = run(&tree, (mapping.context, location), error, req, res) {
        tracing::error!(
            "the error page {location} of status {status} failed, the built-in report is sent: \
             {failure}"
        );
        if !res.inner.is_committed {
            // A page that fails does not change what it was to report.
            res.inner.status = status;
            res.inner.error = ringcat_protocol::response::ErrorState::ReportDue;
            // Nor lets it others write what that is for.
            res.inner.is_suspended = was_suspended;
        }
    }
}

fn run(
    tree: &ContainerTree,
    page: (ContextIndex, &str),
    error: Option<Arc<Error>>,
    req: &mut Request,
    res: &mut Response,
) -> Result<()> {
    let (context, location) = page;
    let target = DispatchTarget::find(tree, context, location)?;
    let dispatcher = RequestDispatcher::new(target);
    dispatcher.check_thread(req)?;
    set_attributes(error, req, res);
    let was_async = req.is_async();
    res.set_error_reported();
    res.inner.is_suspended = false;
    res.reset_buffer()?;
    let result = dispatcher.forward_as(DispatcherType::Error, req, res);
    if result.is_ok() {
        match (req.is_async_dispatching(), was_async || !req.is_async()) {
            // The page dispatched: what it wrote is the answer, if it did.
            (true, _) if res.inner.written_bytes > 0 => res.end_content(),
            (true, _) => {}
            (false, true) => res.finish(),
            // It started async, and the answer is still to come.
            (false, false) => {}
        }
    }
    result
}

/// Tells the page what went wrong with which request.
fn set_attributes(error: Option<Arc<Error>>, req: &mut Request, res: &Response) {
    let set = |req: &mut Request, name: &str, value: String| {
        req.set_attribute(format!("jakarta.servlet.error.{name}"), value);
    };
    req.set_attribute("jakarta.servlet.error.status_code", res.inner.status);
    let message = res.inner.message.as_deref().cloned().unwrap_or_default();
    let message = error.as_ref().map_or(message, |error| error.to_string());
    set(req, "message", message);
    let uri = req.request_uri().into_owned();
    set(req, "request_uri", uri);
    let method = req.method().to_owned();
    set(req, "method", method);
    if let Some(query) = req.query_string().map(std::borrow::Cow::into_owned) {
        set(req, "query_string", query);
    }
    let tree = req.tree();
    let wrapper = req.note.mapping.and_then(|mapping| tree.wrapper(mapping));
    if let Some(wrapper) = wrapper {
        set(req, "servlet_name", wrapper.name.clone());
    }
    if let Some(error) = error {
        if let Some(name) = error.type_name() {
            set(req, "exception_type", name.to_owned());
        }
        req.set_attribute("jakarta.servlet.error.exception", error);
    }
}
