//! The parked requests of a load test, by the number of their connection, and the threads that
//! complete them: foreign ones, as those of an application are.

use std::{
    sync::{Barrier, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use ringcat::AsyncContext;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::{Outcome, latencies::Latencies, monotonic};

/// How long a core is given to go to sleep before a burst, and to end what the burst left.
const BURST_PAUSE: Duration = Duration::from_millis(50);

/// Places for the requests of so many connections.
#[derive(Debug)]
pub(crate) struct ParkingLot {
    places: Mutex<Vec<Option<AsyncContext>>>,
}

impl ParkingLot {
    /// Places without requests. All of their memory is there from now on.
    pub(crate) fn new(count: usize) -> Self {
        Self { places: Mutex::new((0..count).map(|_| None).collect()) }
    }

    /// Keeps a request; `false` if there is no such place.
    pub(crate) fn park(&self, number: usize, context: AsyncContext) -> bool {
        let mut places = self.lock();
        let place = places.get_mut(number);
        place.map(|place| *place = Some(context)).is_some()
    }

    /// Requests that are parked.
    pub(crate) fn parked_count(&self) -> usize {
        self.lock().iter().flatten().count()
    }

    /// Takes the requests of connections, in this order.
    ///
    /// # Errors
    /// One is not parked.
    pub(crate) fn take(
        &self,
        numbers: impl IntoIterator<Item = usize>,
    ) -> Outcome<Vec<AsyncContext>> {
        let mut places = self.lock();
        let take = |number: usize| {
            places[number].take().ok_or_else(|| format!("request {number} is not parked").into())
        };
        numbers.into_iter().map(take).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Option<AsyncContext>>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The numbers of all connections, without end, neighbours far apart: who completes and who
/// receives go through them alike.
pub(crate) fn visit_order(count: usize) -> impl Iterator<Item = usize> {
    // About the golden section, so that the first few are spread over all.
    let stride = (count * 5 / 8..).find(|stride| greatest_divisor(*stride, count) == 1);
    let stride = stride.expect("one of the numbers that follow has no divisor in common");
    (0..count).cycle().map(move |step| step * stride % count)
}

fn greatest_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_divisor(b, a % b) }
}

/// Completes requests from foreign threads, each with a share and on the CPU. Gives the time from
/// the first call to the return of the last.
///
/// # Errors
/// A request was over, or a thread could not be set on its CPU.
pub(crate) fn complete_all(
    contexts: &[AsyncContext],
    thread_count: usize,
    cpu: usize,
) -> Outcome<Duration> {
    let share = contexts.len().div_ceil(thread_count).max(1);
    let barrier = Barrier::new(contexts.chunks(share).len());
    let complete_share = |share: &[AsyncContext]| -> Result<(Instant, Instant), String> {
        let pinned = pin(cpu);
        barrier.wait();
        pinned?;
        let begin = Instant::now();
        share.iter().try_for_each(complete)?;
        Ok((begin, Instant::now()))
    };
    let ends = thread::scope(|scope| -> Result<Vec<_>, String> {
        let start = |share| scope.spawn(move || complete_share(share));
        let threads: Vec<_> = contexts.chunks(share).map(start).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|_| Err("a foreign thread panicked".to_owned()))
        };
        threads.into_iter().map(join).collect()
    })?;
    let begin = ends.iter().map(|(begin, _)| *begin).min().ok_or("there is nothing to complete")?;
    let end = ends.iter().map(|(_, end)| *end).max().unwrap_or(begin);
    Ok(end - begin)
}

/// Completes one request after the other from one foreign thread on the CPU, so many a second.
/// Gives how late the thread was woken each time: what the machine adds by itself.
///
/// # Errors
/// As [`complete_all`], and a request is not parked when it is its turn.
pub(crate) fn trickle(
    lot: &ParkingLot,
    numbers: impl Iterator<Item = usize> + Send,
    rate: u32,
    cpu: usize,
) -> Outcome<Latencies> {
    let complete_each = || -> Result<Latencies, String> {
        pin(cpu)?;
        let mut lateness = Latencies::new();
        let mut due = Instant::now();
        for number in numbers {
            due += Duration::from_secs(1) / rate;
            thread::sleep(due.saturating_duration_since(Instant::now()));
            lateness.record(due.elapsed().as_nanos() as u64);
            let contexts = lot.take([number]).map_err(|error| error.to_string())?;
            contexts.iter().try_for_each(complete)?;
        }
        Ok(lateness)
    };
    let ended = thread::scope(|scope| scope.spawn(complete_each).join());
    Ok(ended.unwrap_or_else(|_| Err("the foreign thread panicked".to_owned()))?)
}

/// Completes bursts of requests from one foreign thread on the CPU, the core asleep before each.
/// Gives what `wake_count` grew by in each burst.
///
/// # Errors
/// As [`complete_all`].
pub(crate) fn bursts(
    contexts: &[AsyncContext],
    size: usize,
    cpu: usize,
    wake_count: impl Fn() -> u64,
) -> Outcome<Vec<u64>> {
    let burst = |burst: &[AsyncContext]| {
        thread::sleep(BURST_PAUSE);
        let before = wake_count();
        complete_all(burst, 1, cpu)?;
        thread::sleep(BURST_PAUSE);
        Ok(wake_count() - before)
    };
    contexts.chunks(size).map(burst).collect()
}

/// Completes a request. The answer is the moment at which this began, in nanoseconds of the
/// [monotonic clock](monotonic::now_nanos).
fn complete(context: &AsyncContext) -> Result<(), String> {
    let completed = || {
        let content = format!("{}\n", monotonic::now_nanos());
        context.response()?.try_write(content)?;
        context.complete()
    };
    completed().map_err(|error: ringcat::Error| format!("a request was over: {error}"))
}

/// Sets the calling thread on a CPU.
fn pin(cpu: usize) -> Result<(), String> {
    let mut cpus = CpuSet::new();
    cpus.set(cpu);
    sched_setaffinity(None, &cpus).map_err(|error| format!("no thread on CPU {cpu}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_connection_has_its_turn() {
        for count in [1, 2, 3, 10, 64, 1000] {
            let mut seen: Vec<usize> = visit_order(count).take(count).collect();
            let again: Vec<usize> = visit_order(count).skip(count).take(count).collect();
            assert_eq!(seen, again);
            seen.sort_unstable();
            assert_eq!(seen, (0..count).collect::<Vec<_>>());
        }
    }

    #[test]
    fn an_empty_place_is_told() {
        let lot = ParkingLot::new(2);
        assert_eq!(lot.parked_count(), 0);
        let error = lot.take([1]).unwrap_err().to_string();
        assert!(error.contains("request 1 is not parked"), "{error}");
    }
}
