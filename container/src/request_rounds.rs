//! The asynchronous rounds of a request: how one begins, and its listeners (Servlet section
//! 2.3.3.3).

use ringcat_engine::sync::Arc;
use ringcat_protocol::{
    action_code::Hook,
    async_cell::{AsyncCell, Look},
    async_state_machine::Event,
    http11::target::TargetForm,
};

use crate::{
    async_context::{AsyncContext, AsyncParts, RoundPlace, call_error},
    async_listener::{AddedListener, AsyncEvent, AsyncListener},
    container::ContainerTree,
    error::{Error, Result},
    guard::{guard, guard_drop_each},
    operation::ContainerOperation,
    request::{Request, millis},
    request_wrapper::RequestWrapper,
};

impl Request {
    /// Lets go of the thread: the request stays open when `service` returns, and ends by
    /// [`AsyncContext::complete`], [`AsyncContext::dispatch`] or its timeout, from any thread.
    ///
    /// # Errors
    /// Illegal state: the servlet, or a filter or valve before it, is not declared asynchronous
    /// (a warning names them); or a round was started already.
    pub fn start_async(&mut self) -> Result<AsyncContext> {
        let context = self.begin_round()?;
        self.note.set_kept(None);
        context.parts.set_place(None, true);
        self.tell_previous_listeners(&context);
        Ok(context)
    }

    /// As [`Request::start_async`], with the request as it is here: the target of a dispatch sees
    /// it through the wrappers that it has, and through `wrappers` (`startAsync(request,
    /// response)`). Without a path a dispatch goes to the path that the request has here, in a
    /// forward that of its target.
    ///
    /// # Errors
    /// As [`Request::start_async`].
    pub fn start_async_with(
        &mut self,
        wrappers: &[std::sync::Arc<dyn RequestWrapper>],
    ) -> Result<AsyncContext> {
        let context = self.begin_round()?;
        self.keep_for_dispatch(wrappers);
        let own_path =
            self.note.mapping.map(|mapping| mapping.path_within(&self.note.path).to_owned());
        let is_wrapped = !wrappers.is_empty() || !self.note.seldom().wrappers.is_empty();
        context.parts.set_place(own_path, !is_wrapped && self.note.nesting == 0);
        self.tell_previous_listeners(&context);
        Ok(context)
    }

    fn begin_round(&mut self) -> Result<AsyncContext> {
        if !self.is_async_supported() {
            return Err(self.warn_of_lacking_support());
        }
        if let Hook::Core(hook) = &self.hook
            && hook.is_output_closed()
        {
            return Err(Error::illegal_state("start_async: the response was closed already"));
        }
        let cell = self.hook.async_cell(&mut self.inner);
        if matches!(self.hook, Hook::Core(_)) {
            // The callback that runs now began before there was a cell to say so.
            cell.enter_callback();
        }
        cell.call(Some(Event::AsyncStart), None, Look::Never).map_err(call_error)?;
        let tree = self.tree();
        cell.set_timeout_millis(millis(tree.connector(self.inner.listener).async_timeout));
        cell.set_start_nanos(self.hook.now().as_nanos());
        self.note.is_error_told = false;
        Ok(self.context_of(&cell))
    }

    /// The one context of the request.
    pub(crate) fn context_of(&mut self, cell: &Arc<AsyncCell<ContainerOperation>>) -> AsyncContext {
        if let Some(context) = &self.note.context {
            return context.clone();
        }
        for (name, value) in self.note.take_attributes() {
            drop(cell.set_attribute(&name, value));
        }
        let parts = self.async_parts(Arc::clone(cell), self.tree());
        let context = AsyncContext::new(parts);
        self.note.context = Some(context.clone());
        context
    }

    /// Another thread began a round.
    pub(crate) fn round_began(&mut self) {
        self.note.is_error_told = false;
        self.note.set_kept(None);
        if let Some(context) = self.note.context.clone() {
            self.tell_previous_listeners(&context);
        }
    }

    /// The context of the present round.
    ///
    /// # Errors
    /// Illegal state: the request is not in a round.
    pub fn async_context(&self) -> Result<AsyncContext> {
        match &self.note.context {
            Some(context) if self.is_async_started() => Ok(context.clone()),
            Some(_) | None => Err(Error::illegal_state("the request is not asynchronous")),
        }
    }

    /// Calls each listener of the round in order, also after one failed.
    pub(crate) fn fire(
        &mut self,
        mut response: Option<&mut crate::response::Response>,
        error: Option<&Error>,
        what: &str,
        call: fn(&mut dyn AsyncListener, &mut AsyncEvent<'_>) -> Result<()>,
    ) {
        let Some(context) = self.note.context.clone() else { return };
        let mut listeners = std::mem::take(&mut self.note.listeners);
        self.in_callback(|request| {
            for added in listeners.iter_mut() {
                let AddedListener { listener, wrappers } = added;
                let count = request.push_wrappers(wrappers.as_deref().unwrap_or_default());
                let mut event = AsyncEvent {
                    context: &context,
                    request: &mut *request,
                    response: response.as_deref_mut(),
                    error,
                    is_supplied: wrappers.is_some(),
                };
                if let Err(error) = guard(|| call(&mut **listener, &mut event)) {
                    tracing::error!("{what} of a listener failed: {error}");
                }
                request.pop_wrappers(count);
            }
        });
        // Listeners that were added meanwhile come behind those that were there.
        listeners.extend(Vec::from(std::mem::take(&mut self.note.listeners)));
        self.note.listeners = listeners;
    }

    /// Tells the listeners of the last round that another begins. Listeners are the owner's: a
    /// worker leaves that to the core that gets the request back.
    fn tell_previous_listeners(&mut self, context: &AsyncContext) {
        let listeners = std::mem::take(&mut self.note.listeners);
        self.note.add_previous_listeners(listeners);
        if matches!(self.hook, Hook::Core(_)) {
            self.tell_of_start(context);
        }
    }

    /// Calls `on_start_async` of the listeners of the last round, and forgets them.
    pub(crate) fn tell_of_start(&mut self, context: &AsyncContext) {
        let mut previous = self.note.take_previous_listeners();
        for added in &mut previous {
            let is_supplied = added.wrappers.is_some();
            let (response, error) = (None, None);
            let mut event = AsyncEvent { context, request: self, response, error, is_supplied };
            if let Err(error) = guard(|| added.listener.on_start_async(&mut event)) {
                tracing::error!("on_start_async of a listener failed: {error}");
            }
        }
        guard_drop_each("dropping a listener", previous);
    }

    fn async_parts(
        &self,
        cell: Arc<AsyncCell<ContainerOperation>>,
        tree: Arc<ContainerTree>,
    ) -> AsyncParts {
        let (path, mapping) = match &self.note.seldom().dispatched {
            Some(dispatched) => (&dispatched.original_path, Some(dispatched.original_mapping)),
            None => (&self.note.path, self.note.mapping),
        };
        let mapping = mapping.expect("a request that runs a servlet was mapped");
        let is_as_sent = self.inner.target.form == TargetForm::Origin
            && path.as_bytes() == self.inner.raw_path();
        let place = (!is_as_sent).then(|| RoundPlace::of_client(mapping.path_within(path)));
        AsyncParts { cell, tree, mapping, place: std::sync::Mutex::new(place) }
    }

    pub(crate) fn warn_of_lacking_support(&self) -> Error {
        let tree = self.tree();
        let mut culprits: Vec<String> = Vec::new();
        for element in self.note.barred_by.iter() {
            let name = element.name(&tree);
            if !culprits.contains(&name) {
                culprits.push(name);
            }
        }
        tracing::warn!(
            "start_async refused: these elements on the way of {} {} do not support async: {}",
            self.method(),
            self.request_uri(),
            culprits.join(", ")
        );
        Error::illegal_state(format!(
            "start_async: not declared asynchronous: {}",
            culprits.join(", ")
        ))
    }
}
