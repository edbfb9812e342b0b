//! The listeners of a scenario.

use std::sync::Arc;

use ringcat::{
    AsyncEvent, AsyncListener, Error, ReadListener, Request, Response, Result, WriteListener,
};

use crate::{
    application::{EventFacts, Scope, kind_of, run_callback},
    grammar::Op,
    run::Run,
    scenario::{Callbacks, Setup},
};

fn ops<'a>(listeners: &'a [(String, Callbacks)], name: &str, callback: &str) -> &'a [Op] {
    let listener = listeners.iter().find(|(own, _)| own == name);
    let callbacks = listener.map_or(&[][..], |(_, callbacks)| callbacks);
    let found = callbacks.iter().find(|(own, _)| own == callback);
    found.map_or(&[], |(_, ops)| ops)
}

/// An asynchronous listener.
pub(crate) struct ScenarioListener {
    run: Arc<Run>,
    name: String,
}

impl ScenarioListener {
    pub(crate) fn new(run: &Arc<Run>, name: &str) -> Self {
        Self { run: Arc::clone(run), name: name.to_owned() }
    }

    fn call(&self, entry: &str, callback: &str, event: &mut AsyncEvent<'_>) -> Result<()> {
        self.run.journal.note(format!("{}.{entry}", self.name));
        let ops = ops(&self.run.setup.listeners, &self.name, callback);
        let facts =
            EventFacts { is_supplied: event.is_supplied(), error: event.error().map(kind_of) };
        let mut scope = Scope::new(&self.run, Some(event.context().clone()));
        scope.event = Some(facts);
        let (request, response) = event.parts();
        scope.request = Some(request);
        scope.response = response;
        scope.run_to_end(ops)
    }
}

impl AsyncListener for ScenarioListener {
    fn on_timeout(&mut self, event: &mut AsyncEvent<'_>) -> Result<()> {
        self.call("onTimeout", "on_timeout", event)
    }

    fn on_error(&mut self, event: &mut AsyncEvent<'_>) -> Result<()> {
        let kind = event.error().map_or("none", kind_of);
        self.call(&format!("onError({kind})"), "on_error", event)
    }

    fn on_complete(&mut self, event: &mut AsyncEvent<'_>) -> Result<()> {
        self.call("onComplete", "on_complete", event)
    }

    fn on_start_async(&mut self, event: &mut AsyncEvent<'_>) -> Result<()> {
        self.call("onStartAsync", "on_start_async", event)
    }
}

/// A read or write listener, by its name.
struct BodyListener {
    run: Arc<Run>,
    name: String,
}

impl BodyListener {
    fn new(run: &Arc<Run>, name: &str) -> Self {
        Self { run: Arc::clone(run), name: name.to_owned() }
    }

    fn call(
        &self,
        (entry, callback): (&str, &str),
        listeners: fn(&Setup) -> &[(String, Callbacks)],
        req: &mut Request,
        res: &mut Response,
    ) -> Result<()> {
        self.run.journal.note(format!("{}.{entry}", self.name));
        let ops = ops(listeners(&self.run.setup), &self.name, callback);
        run_callback(&self.run, ops, req, res)
    }
}

/// A read listener.
pub(crate) struct ScenarioReadListener(BodyListener);

impl ScenarioReadListener {
    pub(crate) fn new(run: &Arc<Run>, name: &str) -> Self {
        Self(BodyListener::new(run, name))
    }
}

fn of_reading(setup: &Setup) -> &[(String, Callbacks)] {
    &setup.read_listeners
}

impl ReadListener for ScenarioReadListener {
    fn on_data_available(&mut self, req: &mut Request, res: &mut Response) -> Result<()> {
        self.0.call(("onDataAvailable", "on_data_available"), of_reading, req, res)
    }

    fn on_all_data_read(&mut self, req: &mut Request, res: &mut Response) -> Result<()> {
        self.0.call(("onAllDataRead", "on_all_data_read"), of_reading, req, res)
    }

    fn on_error(&mut self, req: &mut Request, res: &mut Response, error: &Error) -> Result<()> {
        let entry = format!("onError({})", kind_of(error));
        self.0.call((&entry, "on_error"), of_reading, req, res)
    }
}

/// A write listener.
pub(crate) struct ScenarioWriteListener(BodyListener);

impl ScenarioWriteListener {
    pub(crate) fn new(run: &Arc<Run>, name: &str) -> Self {
        Self(BodyListener::new(run, name))
    }
}

fn of_writing(setup: &Setup) -> &[(String, Callbacks)] {
    &setup.write_listeners
}

impl WriteListener for ScenarioWriteListener {
    fn on_write_possible(&mut self, req: &mut Request, res: &mut Response) -> Result<()> {
        self.0.call(("onWritePossible", "on_write_possible"), of_writing, req, res)
    }

    fn on_error(&mut self, req: &mut Request, res: &mut Response, error: &Error) -> Result<()> {
        let entry = format!("onError({})", kind_of(error));
        self.0.call((&entry, "on_error"), of_writing, req, res)
    }
}
