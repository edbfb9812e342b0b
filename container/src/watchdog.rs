//! Reports application code that holds a core: nobody else on that core is served meanwhile. A
//! thread of the server looks at what each core runs; the cores only note it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use ringcat_engine::{
    current::Current,
    timestamp::{Clock, Timestamp},
};

use crate::{
    container::ContainerTree,
    error::Result,
    mapper::{ContextIndex, Mapping, WrapperIndex},
};

/// What each core runs at the moment. Each core alone writes its slot.
#[derive(Debug, Default)]
pub(crate) struct Watch(Vec<Slot>);

/// A number that no other callback of the core has (32 bits), context and servlet (16 each, the
/// latter from 1 on); 0 in the lower half: no application code runs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Slot(AtomicU64);

const SERVLET_MASK: u64 = 0xffff_ffff;
const ONE_CALLBACK: u64 = 1 << 32;

impl Watch {
    pub(crate) fn new(cores: usize) -> Self {
        Self((0..cores).map(|_| Slot::default()).collect())
    }

    fn slot(&self) -> Option<&AtomicU64> {
        let core = Current::get().core?;
        self.0.get(usize::from(core.0)).map(|slot| &slot.0)
    }

    /// The calling core enters application code of a servlet; answers what it left for that.
    pub(crate) fn enter(&self, mapping: Option<Mapping>) -> u64 {
        let Some(slot) = self.slot() else { return 0 };
        let before = slot.load(Ordering::Relaxed);
        let servlet = mapping.map_or(0, |mapping| {
            let wrapper = mapping.wrapper.map_or(0, |wrapper| u64::from(wrapper.0) + 1);
            u64::from(mapping.context.0) << 16 | wrapper
        });
        let number = (before & !SERVLET_MASK).wrapping_add(ONE_CALLBACK);
        slot.store(number | servlet, Ordering::Relaxed);
        before
    }

    /// The calling core is back where [`Watch::enter`] came from.
    pub(crate) fn leave(&self, before: u64) {
        let Some(slot) = self.slot() else { return };
        let number = slot.load(Ordering::Relaxed) & !SERVLET_MASK;
        // An outer callback goes on as what it was; otherwise nothing runs, and the next one has
        // another number.
        let is_outer = before & SERVLET_MASK != 0;
        slot.store(if is_outer { before } else { number }, Ordering::Relaxed);
    }
}

/// The thread that looks.
#[derive(Debug)]
pub(crate) struct Watchdog {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// What was seen of a core, since when, and whether that was reported.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    value: u64,
    since: Timestamp,
    is_reported: bool,
}

impl Watchdog {
    /// Reports what holds a core longer than `threshold`.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start(
        tree: ringcat_engine::sync::Arc<ContainerTree>,
        threshold: Duration,
    ) -> Result<Self> {
        let is_over = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&is_over);
        let thread = thread::Builder::new().name("watchdog".to_owned()).spawn(move || {
            let clock = Clock::system();
            let mut seen = vec![Seen::default(); tree.watch.0.len()];
            while !told.load(Ordering::Acquire) {
                thread::park_timeout(threshold / 4);
                look(&tree, clock.now(), threshold, &mut seen);
            }
        })?;
        Ok(Self { is_over, thread: Some(thread) })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            if thread.join().is_err() {
                tracing::error!("the watchdog panicked");
            }
        }
    }
}

fn look(tree: &ContainerTree, now: Timestamp, threshold: Duration, seen: &mut [Seen]) {
    for (core, (slot, seen)) in tree.watch.0.iter().zip(seen).enumerate() {
        let value = slot.0.load(Ordering::Relaxed);
        let held = now.saturating_since(seen.since);
        if value != seen.value {
            if seen.is_reported {
                let name = name_of(tree, seen.value);
                tracing::warn!("core {core}: {name} has left the core, after {held:?}");
            }
            *seen = Seen { value, since: now, is_reported: false };
        } else if value & SERVLET_MASK != 0 && held >= threshold && !seen.is_reported {
            seen.is_reported = true;
            let name = name_of(tree, value);
            tracing::warn!(
                "core {core}: {name} has held the core for {held:?} and still does: nobody else on \
                 it is served; declare the servlet blocking, or let it start async"
            );
        }
    }
}

fn name_of(tree: &ContainerTree, value: u64) -> String {
    let (context, wrapper) = ((value >> 16) as u16, value as u16);
    let context = tree.context(ContextIndex(context));
    let wrapper = wrapper.checked_sub(1).map(WrapperIndex);
    let wrapper = wrapper.and_then(|index| context.wrappers.get(usize::from(index.0)));
    let name = wrapper.map_or("no servlet", |wrapper| &wrapper.name);
    format!("servlet {name} of context {:?}", context.path)
}
