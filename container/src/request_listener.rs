//! Told of each request that enters and leaves a web application. Stands for
//! `ServletRequestListener`.

use crate::{
    container::ContextPhase, error::Result, guard::guard, mapper::ContextIndex, request::Request,
};

/// Told of the requests of one web application (Servlet section 11; `ServletRequestListener`).
///
/// Both calls come once a client's request, on the thread that runs it: not for forwards, includes,
/// error pages or the passes of an asynchronous request.
pub trait RequestListener: Send + Sync + 'static {
    /// The request enters the application, before its valves and filters. Listeners are called in
    /// the order of their declaration.
    ///
    /// # Errors
    /// The request is answered with 500, and no further.
    fn on_request_initialized(&self, _request: &mut Request) -> Result<()> {
        Ok(())
    }

    /// The request leaves the application: after its error page, and after `on_complete` if it was
    /// asynchronous. Listeners are called in reverse order.
    ///
    /// # Errors
    /// Logged.
    fn on_request_destroyed(&self, _request: &mut Request) -> Result<()> {
        Ok(())
    }
}

/// Tells the listeners of the request's context, once, that it enters.
pub(crate) fn tell_initialized(context: ContextIndex, req: &mut Request) -> Result<()> {
    let tree = req.tree();
    let listeners = &tree.context(context).request_listeners;
    if listeners.is_empty() || req.note.entered_context.replace(context).is_some() {
        return Ok(());
    }
    listeners.iter().try_for_each(|listener| guard(|| listener.on_request_initialized(req)))
}

/// Tells the listeners of the context that the request entered, once, that it leaves.
pub(crate) fn tell_destroyed(req: &mut Request) {
    let Some(context) = req.note.entered_context.take() else { return };
    let tree = req.tree();
    if tree.context(context).phase() == ContextPhase::Stopped {
        // Its listeners went with it.
        return;
    }
    for listener in tree.context(context).request_listeners.iter().rev() {
        if let Err(error) = guard(|| listener.on_request_destroyed(req)) {
            tracing::error!("on_request_destroyed of a listener failed: {error}");
        }
    }
}
