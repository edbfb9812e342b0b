//! Every change of an asynchronous state is a line in the log. A test program of its own: whether a
//! log line is wanted is remembered for the process, so that other tests, which have no log, could
//! decide it at the same time.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test")]

use std::{
    fmt,
    sync::{Arc, Mutex},
};

use ringcat_engine::{current::ExchangeName, key::CoreId};
use ringcat_protocol::{
    async_cell::{AsyncCell, CellLimits, Doorbell, Look, Operation},
    async_state_machine::{Event, Side},
    exchange_key::ExchangeKey,
};

/// Nothing is asked for here but changes of state.
struct Nothing;

impl Operation for Nothing {
    fn credit_bytes(&self) -> usize {
        0
    }
}

struct Silent;

impl Doorbell for Silent {
    fn look(&self, _key: ExchangeKey) {}
}

const DRAINED: Event = Event::PostProcess { drained: true, io_allowed: true };

fn parked() -> AsyncCell<Nothing> {
    let key = ExchangeKey { slot: 3, stamp: 7 };
    let name = ExchangeName { core: CoreId(2), key: key.to_u64() };
    let cell = AsyncCell::new(name, key, Arc::new(Silent), CellLimits::default());
    cell.advance(cell.word(), Event::AsyncStart).unwrap();
    cell.advance(cell.word(), DRAINED).unwrap();
    cell
}

/// Keeps the text of every event of the target "state".
#[derive(Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == "state"
    }

    fn event(&self, event: &tracing::Event<'_>) {
        struct Text(String);
        impl tracing::field::Visit for Text {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn fmt::Debug) {
                assert_eq!(field.name(), "message");
                self.0 = format!("{value:?}");
            }
        }
        assert_eq!(*event.metadata().level(), tracing::Level::TRACE);
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }

    fn new_span(&self, _span: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _span: &tracing::span::Id, _values: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _span: &tracing::span::Id, _follows: &tracing::span::Id) {}
    fn enter(&self, _span: &tracing::span::Id) {}
    fn exit(&self, _span: &tracing::span::Id) {}
}

#[test]
fn every_change_of_state_is_a_line_in_the_log() {
    let log = Log::default();
    let lines = log.0.clone();
    tracing::subscriber::with_default(log, || {
        let cell = parked();
        // No change, no line.
        cell.advance(cell.word(), DRAINED).unwrap();
        cell.call(Some(Event::Complete(Side::Other)), None, Look::Never).unwrap();
    });
    let expected = [
        "state: Changing async state from [DISPATCHED] to [STARTING]",
        "state: Changing async state from [STARTING] to [STARTED]",
        "state: Changing async state from [STARTED] to [COMPLETING]",
    ];
    assert_eq!(*lines.lock().unwrap(), expected);
}
