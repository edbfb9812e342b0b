//! What happened, in order and with its time: the trace that expectations are about, and signals,
//! for which ops wait.

use std::{
    collections::BTreeMap,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// The journal of one run.
#[derive(Default)]
pub(crate) struct Journal {
    pages: Mutex<Pages>,
    changed: Condvar,
}

/// What is in a journal.
#[derive(Clone, Default)]
pub(crate) struct Pages {
    pub(crate) trace: Vec<(Instant, String)>,
    pub(crate) signals: Vec<(Instant, String)>,
    pub(crate) counters: BTreeMap<String, i64>,
    pub(crate) warnings: Vec<String>,
    /// What could not be done; the scenario has failed.
    pub(crate) faults: Vec<String>,
    /// Elapsed times of access-log entries.
    pub(crate) elapsed: Vec<Duration>,
    pub(crate) requests: usize,
    pub(crate) workers: usize,
}

impl Pages {
    pub(crate) fn count(&self, name: &str) -> usize {
        self.trace.iter().chain(&self.signals).filter(|(_, entry)| entry == name).count()
    }

    /// When an entry or signal came first.
    pub(crate) fn first(&self, name: &str) -> Option<Instant> {
        let mut all = self.trace.iter().chain(&self.signals);
        all.find(|(_, entry)| entry == name).map(|(at, _)| *at)
    }
}

impl Journal {
    fn lock(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes it, and wakes who waits.
    pub(crate) fn change<R>(&self, f: impl FnOnce(&mut Pages) -> R) -> R {
        let result = f(&mut self.lock());
        self.changed.notify_all();
        result
    }

    pub(crate) fn pages(&self) -> Pages {
        self.lock().clone()
    }

    pub(crate) fn note(&self, entry: impl Into<String>) {
        self.change(|pages| pages.trace.push((Instant::now(), entry.into())));
    }

    pub(crate) fn signal(&self, name: &str) {
        self.change(|pages| pages.signals.push((Instant::now(), name.to_owned())));
    }

    pub(crate) fn fault(&self, what: impl Into<String>) {
        self.change(|pages| pages.faults.push(what.into()));
    }

    pub(crate) fn counter(&self, name: &str) -> i64 {
        self.lock().counters.get(name).copied().unwrap_or(0)
    }

    pub(crate) fn add(&self, name: &str, by: i64) {
        self.change(|pages| *pages.counters.entry(name.to_owned()).or_default() += by);
    }

    /// Waits until `is_met`; `false` if it is not within `limit`.
    pub(crate) fn wait(&self, limit: Duration, is_met: impl Fn(&Pages) -> bool) -> bool {
        let deadline = Instant::now() + limit;
        let mut pages = self.lock();
        while !is_met(&pages) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.changed.wait_timeout(pages, left);
            pages = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Waits until an entry or signal was seen `times`; a fault if it is not within `limit`.
    pub(crate) fn await_entry(&self, name: &str, times: i64, limit: Duration) -> bool {
        let times = usize::try_from(times).unwrap_or(0);
        let is_met = self.wait(limit, |pages| pages.count(name) >= times);
        if !is_met {
            self.fault(format!("{name:?} was awaited {times} times, for {limit:?}"));
        }
        is_met
    }
}
