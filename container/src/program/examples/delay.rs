//! Answers `done` after so many milliseconds. However many requests wait, one thread of the
//! application ends them all, and no thread of the container waits.
#![expect(clippy::disallowed_methods, reason = "the example's own thread has a clock of its own")]

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use ringcat::{AsyncContext, Error, HttpServlet, Methods, Request, Response, Result};

/// The servlet at `/delay/{ms}`.
#[derive(Default)]
pub(crate) struct Delay {
    queue: Arc<Queue>,
}

#[derive(Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    heap: BinaryHeap<Reverse<Entry>>,
    count: u64,
    is_stopped: bool,
}

/// Ordered by time, then by number.
struct Entry {
    due: Instant,
    number: u64,
    context: AsyncContext,
}

impl HttpServlet for Delay {
    fn methods(&self) -> Methods {
        Methods::GET
    }

    fn async_supported(&self) -> bool {
        true
    }

    fn init(&self) -> Result<()> {
        let queue = Arc::clone(&self.queue);
        thread::Builder::new().name("delay".to_owned()).spawn(move || queue.serve())?;
        Ok(())
    }

    fn destroy(&self) {
        self.queue.lock().is_stopped = true;
        self.queue.changed.notify_all();
    }

    fn do_get(&self, req: &mut Request, _res: &mut Response) -> Result<()> {
        let path = req.path_info().unwrap_or("").trim_start_matches('/');
        let millis: u64 = path.parse().map_err(|_| {
            Error::protocol_violation(400, "delay/{ms} takes a number of milliseconds")
        })?;
        let context = req.start_async()?;
        self.queue.push(Instant::now() + Duration::from_millis(millis.min(600_000)), context);
        Ok(())
    }
}

impl Queue {
    fn lock(&self) -> std::sync::MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, due: Instant, context: AsyncContext) {
        let mut waiting = self.lock();
        waiting.count += 1;
        let number = waiting.count;
        let is_first = waiting.heap.peek().is_none_or(|first| due < first.0.due);
        waiting.heap.push(Reverse(Entry { due, number, context }));
        if is_first {
            self.changed.notify_one();
        }
    }

    fn serve(&self) {
        let mut waiting = self.lock();
        while !waiting.is_stopped {
            let now = Instant::now();
            let wait = match waiting.heap.peek() {
                Some(first) if first.0.due <= now => None,
                Some(first) => Some(first.0.due - now),
                None => Some(Duration::from_secs(3600)),
            };
            if let Some(wait) = wait {
                let woken = self.changed.wait_timeout(waiting, wait);
                waiting = woken.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            let Some(Reverse(entry)) = waiting.heap.pop() else { continue };
            drop(waiting);
            if let Err(error) = answer(&entry.context) {
                tracing::debug!("a delayed request was over: {error}");
            }
            waiting = self.lock();
        }
    }
}

fn answer(context: &AsyncContext) -> Result<()> {
    context.response()?.try_write("done\n")?;
    context.complete()
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.due, self.number).cmp(&(other.due, other.number))
    }
}
