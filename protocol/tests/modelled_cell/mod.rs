//! What the loom models of the cell share: a cell, the bell that counts its looks and wakes, and an
//! owner that takes its steps.

#![allow(dead_code, reason = "each file of models uses its part")]
#![allow(clippy::unwrap_used, reason = "a test")]

use std::{sync::Arc as StdArc, task::Wake};

use loom::{
    model::Builder,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};
use ringcat_engine::{current::ExchangeName, key::CoreId};
use ringcat_protocol::{
    async_cell::{Advance, AsyncCell, CellLimits, Doorbell, Operation, Took},
    async_state_machine::{AsyncState, Effects, Event, Outcome},
    exchange_key::ExchangeKey,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Write(usize),
    Target,
    RoundBegan,
    Listener,
}

impl Operation for Op {
    fn credit_bytes(&self) -> usize {
        match self {
            Self::Write(bytes) => *bytes,
            Self::Target | Self::RoundBegan | Self::Listener => 0,
        }
    }
}

/// Counts; as a doorbell the looks that were posted, as a waker the wakes.
#[derive(Default)]
pub(crate) struct Bell {
    count: AtomicUsize,
}

impl Bell {
    pub(crate) fn rung(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }
}

impl Doorbell for Bell {
    fn look(&self, _key: ExchangeKey) {
        self.count.fetch_add(1, Ordering::AcqRel);
    }
}

impl Wake for Bell {
    fn wake(self: StdArc<Self>) {
        self.count.fetch_add(1, Ordering::AcqRel);
    }
}

pub(crate) type Cell = AsyncCell<Op>;

pub(crate) const DRAINED: Event = Event::PostProcess { drained: true, io_allowed: true };

/// A cell before its first round, or in it: at the end of the starting callback, or parked.
pub(crate) fn cell(state: AsyncState) -> (Arc<Cell>, StdArc<Bell>) {
    let key = ExchangeKey { slot: 3, stamp: 9 };
    let name = ExchangeName { core: CoreId(0), key: key.to_u64() };
    let bell = StdArc::new(Bell::default());
    let limits = CellLimits { high_water_bytes: 2, ..CellLimits::default() };
    let cell = AsyncCell::new(name, key, bell.clone(), limits);
    if state != AsyncState::Dispatched {
        cell.advance(cell.word(), Event::AsyncStart).unwrap();
    }
    if state == AsyncState::Started {
        cell.advance(cell.word(), DRAINED).unwrap();
    }
    assert_eq!(cell.word().state(), state);
    (Arc::new(cell), bell)
}

pub(crate) fn model(f: impl Fn() + Send + Sync + 'static) {
    model_within(4, f);
}

/// With fewer preemptions, for models whose threads take many steps.
pub(crate) fn model_within(preemptions_max: usize, f: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions_max);
    builder.check(f);
}

/// The owner's side of a model.
pub(crate) struct Owner {
    pub(crate) cell: Arc<Cell>,
    pub(crate) bell: StdArc<Bell>,
    pub(crate) looks_taken: usize,
    pub(crate) applied: Vec<Op>,
    /// How often the exchange ended: calls of `on_complete`.
    pub(crate) ends: usize,
}

impl Owner {
    pub(crate) fn new(cell: &Arc<Cell>, bell: &StdArc<Bell>) -> Self {
        Self {
            cell: cell.clone(),
            bell: bell.clone(),
            looks_taken: 0,
            applied: Vec::new(),
            ends: 0,
        }
    }

    /// The owner's step for one event; none where a caller was inside.
    pub(crate) fn step(&mut self, event: Event) -> Option<Effects> {
        loop {
            let Took::Taken { word, operations } = self.cell.take() else { return None };
            self.applied.extend(operations);
            match self.cell.advance(word, event) {
                Ok(effects) => {
                    self.ends += usize::from(effects.on_complete);
                    return Some(effects);
                }
                Err(Advance::Changed(_)) => {}
                Err(Advance::Illegal(illegal)) => panic!("{illegal}"),
            }
        }
    }

    /// Steps on until the owner would park or has ended the exchange.
    pub(crate) fn run(&mut self) {
        while let Some(effects) = self.step(DRAINED) {
            if self.cell.word().state() == AsyncState::Dispatched
                || effects.outcome != Some(Outcome::AsyncEnd)
            {
                return;
            }
        }
    }

    /// Answers one look, if one was posted. While callers run, an owner that meets one inside goes
    /// on with other work, so it answers once.
    pub(crate) fn answer_look(&mut self) {
        if self.looks_taken < self.bell.rung() {
            self.looks_taken += 1;
            if self.cell.word().state() != AsyncState::Dispatched {
                self.run();
            }
        }
    }

    /// Answers every look, when the callers are through.
    pub(crate) fn answer_looks(&mut self) {
        while self.looks_taken < self.bell.rung() {
            self.answer_look();
        }
    }
}

/// A cell at its mark.
pub(crate) fn full_cell() -> (Arc<Cell>, StdArc<Bell>) {
    let (cell, bell) = cell(AsyncState::Started);
    cell.try_write(Op::Write(2)).unwrap();
    assert!(matches!(cell.take(), Took::Taken { .. }));
    (cell, bell)
}

/// A parked cell with a queue for body bytes, since loom does not follow a `OnceLock`.
pub(crate) fn reading_cell() -> (Arc<Cell>, StdArc<Bell>) {
    let (cell, bell) = cell(AsyncState::Started);
    cell.push_inbound(b"").unwrap();
    (cell, bell)
}

/// Closes the cell as an owner does that comes back while a caller is inside.
pub(crate) fn close(cell: &Cell) -> Vec<Op> {
    loop {
        match cell.close() {
            Some(left) => return left,
            None => thread::yield_now(),
        }
    }
}
