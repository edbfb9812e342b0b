//! A journal of what happened, and a listener that keeps one.

use std::sync::Arc;

use ringcat::{AsyncEvent, AsyncListener, Result};

use super::channel::Waiting;

/// What happened, in order, from any thread.
#[derive(Clone, Default)]
pub(crate) struct Journal(Arc<Waiting<Vec<String>>>);

impl Journal {
    pub(crate) fn note(&self, entry: impl Into<String>) {
        self.0.change(|entries| entries.push(entry.into()));
    }

    pub(crate) fn entries(&self) -> Vec<String> {
        self.0.change(|entries| entries.clone())
    }

    pub(crate) fn count(&self, entry: &str) -> usize {
        self.entries().iter().filter(|other| *other == entry).count()
    }

    /// Waits until an entry contains `text`; the entry.
    #[track_caller]
    pub(crate) fn wait_for(&self, text: &str) -> String {
        let find =
            |entries: &mut Vec<String>| entries.iter().find(|entry| entry.contains(text)).cloned();
        self.0.wait(find).unwrap_or_else(|| panic!("no {text:?} in {:?}", self.entries()))
    }
}

/// What a listener does when it is called.
pub(crate) type Reaction = fn(&mut AsyncEvent<'_>) -> Result<()>;

/// A listener that notes each call as `name.on_…`, and then does what the test wants.
pub(crate) struct Noting {
    pub(crate) name: &'static str,
    pub(crate) journal: Journal,
    pub(crate) on_timeout: Reaction,
    pub(crate) on_error: Reaction,
    pub(crate) on_complete: Reaction,
    pub(crate) on_start_async: Reaction,
}

impl Noting {
    /// A listener that only notes.
    pub(crate) fn new(name: &'static str, journal: &Journal) -> Self {
        let nothing: Reaction = |_event| Ok(());
        Self {
            name,
            journal: journal.clone(),
            on_timeout: nothing,
            on_error: nothing,
            on_complete: nothing,
            on_start_async: nothing,
        }
    }
}

impl AsyncListener for Noting {
    fn on_timeout(&mut self, event: &mut AsyncEvent<'_>) -> Result<()> {
        self.journal.note(format!("{}.on_timeout", self.name));
        (self.on_timeout)(event)
    }

    fn on_error(&mut self, event: &mut AsyncEvent<'_>) -> Result<()> {
        let kind = event.error().map(|error| format!("{:?}", error.kind()));
        let kind = kind.unwrap_or_else(|| "none".to_owned());
        self.journal.note(format!("{}.on_error({kind})", self.name));
        (self.on_error)(event)
    }

    fn on_complete(&mut self, event: &mut AsyncEvent<'_>) -> Result<()> {
        self.journal.note(format!("{}.on_complete", self.name));
        (self.on_complete)(event)
    }

    fn on_start_async(&mut self, event: &mut AsyncEvent<'_>) -> Result<()> {
        self.journal.note(format!("{}.on_start_async", self.name));
        (self.on_start_async)(event)
    }
}
