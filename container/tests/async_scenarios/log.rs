//! The log of the process as part of the trace: changes of the asynchronous state are entries,
//! warnings are kept.

use std::{fmt, sync::Arc};

use tracing::{Level, Metadata, Subscriber, field::Field, span};

use crate::run::Run;

struct Log(Arc<Run>);

/// Listens from now on.
pub(crate) fn install(run: Arc<Run>) {
    tracing::subscriber::set_global_default(Log(run)).expect("a process plays one run");
}

struct Text(String);

impl tracing::field::Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "state" || *metadata.level() <= Level::WARN
    }

    fn event(&self, event: &tracing::Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        let Text(text) = text;
        let journal = &self.0.journal;
        if event.metadata().target() != "state" {
            journal.change(|pages| pages.warnings.push(text));
            return;
        }
        let mut states = text.split(['[', ']']).skip(1).step_by(2);
        if let (Some(from), Some(to)) = (states.next(), states.next()) {
            journal.note(format!("state {from}>{to}"));
        }
    }

    fn new_span(&self, _span: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _span: &span::Id, _values: &span::Record<'_>) {}
    fn record_follows_from(&self, _span: &span::Id, _follows: &span::Id) {}
    fn enter(&self, _span: &span::Id) {}
    fn exit(&self, _span: &span::Id) {}
}
