//! Lets another thread start async while `service` still runs. Part of what `ServletRequest` is to
//! a thread that it was handed to.

use ringcat_engine::{sync::Arc, timestamp::Clock};
use ringcat_protocol::{async_cell::Look, async_state_machine::Event};

use crate::{
    async_context::{AsyncContext, call_error},
    error::Result,
    operation::ContainerOperation,
    request::{Request, millis},
};

/// A handle of a request that is not asynchronous yet, for other threads. From
/// [`Request::async_handle`].
#[derive(Clone)]
pub struct AsyncHandle {
    context: AsyncContext,
    timeout: i64,
    clock: Clock,
}

impl AsyncHandle {
    /// As [`Request::start_async`], from any thread, while a servlet of the request runs.
    ///
    /// # Errors
    /// As there; illegal state also when `service` has returned.
    pub fn start_async(&self) -> Result<AsyncContext> {
        let cell = &self.context.parts.cell;
        let operation = ContainerOperation::RoundBegan;
        cell.call(Some(Event::AsyncStart), Some(operation), Look::Never).map_err(call_error)?;
        cell.set_timeout_millis(self.timeout);
        cell.set_start_nanos(self.clock.now().as_nanos());
        self.context.parts.set_place(None, true);
        cell.post_look();
        Ok(self.context.clone())
    }
}

impl Request {
    /// A handle with which another thread may start async, as long as `service` runs.
    ///
    /// # Errors
    /// Illegal state: the servlet, or a filter or valve before it, is not declared asynchronous.
    pub fn async_handle(&mut self) -> Result<AsyncHandle> {
        if !self.is_async_supported() {
            return Err(self.warn_of_lacking_support());
        }
        let cell = self.hook.async_cell(&mut self.inner);
        let timeout = millis(self.tree().connector(self.inner.listener).async_timeout);
        let clock = self.hook.clock();
        let context = self.context_of(&Arc::clone(&cell));
        self.note.has_handle = true;
        Ok(AsyncHandle { context, timeout, clock })
    }

    /// The servlet has returned: from now on no other thread may start async. Answers whether one
    /// did before.
    pub(crate) fn bar_start(&mut self) -> bool {
        if !self.note.has_handle {
            return self.is_async();
        }
        self.cell().is_some_and(|cell| !cell.bar_start())
    }
}
