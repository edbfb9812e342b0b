//! What a simulated test has in place of threads and of their clock.

use std::{cell::Cell, rc::Rc, time::Duration};

use ringcat_engine::{
    sim::world,
    timestamp::{Clock, Timestamp},
};

use crate::support::Waiting;

thread_local! {
    /// Actors that are the test's own: its body, and those that it spawned.
    static OWN: Cell<usize> = const { Cell::new(0) };
}

/// Runs the body of a test. What a failed run counted before is over.
pub(super) fn run_body(body: impl FnOnce()) {
    OWN.set(1);
    body();
}

/// Actors that are not the test's own: cores, workers, what wakes them.
pub(super) fn strangers() -> usize {
    world::others() + 1 - OWN.get()
}

/// The time of the simulation.
pub(crate) fn now() -> Timestamp {
    Clock::system().now()
}

/// What a healthy server takes for anything that waits for no clock, late wakes and all.
const SOON: Duration = Duration::from_millis(20);

/// It is `due` after `begun` by now, and not much more: no timeout is early, and none late.
#[track_caller]
pub(crate) fn expect_elapsed(begun: Timestamp, due: Duration) {
    let elapsed = now().saturating_since(begun);
    assert!((due..due + SOON).contains(&elapsed), "{elapsed:?} instead of {due:?}");
}

/// Lets so much time pass.
pub(crate) fn sleep(duration: Duration) {
    world::sleep(duration);
}

/// Waits until a count has begun and then makes no progress for a long while; the count.
pub(crate) fn await_rest(count: impl Fn() -> usize) -> usize {
    let (mut seen, mut since) = (0, now());
    while seen == 0 || now().saturating_since(since) < Duration::from_secs(2) {
        let next = count();
        if next != seen {
            (seen, since) = (next, now());
        }
        sleep(Duration::from_millis(1));
    }
    seen
}

/// An actor that somebody may wait for.
pub(crate) struct Spawned<T>(Rc<Waiting<Option<T>>>);

/// Starts what would be a thread.
pub(crate) fn spawn<T: 'static>(f: impl FnOnce() -> T + 'static) -> Spawned<T> {
    let result = Rc::new(Waiting::new(None));
    let place = Rc::clone(&result);
    // Counted from now on, so that nobody takes it for a stranger before it begins.
    OWN.set(OWN.get() + 1);
    world::spawn("thread", move || {
        let result = f();
        OWN.set(OWN.get() - 1);
        place.change(|place| *place = Some(result));
    });
    Spawned(result)
}

impl<T> Spawned<T> {
    /// Waits for its end. A panic in it ends the simulation by itself.
    #[track_caller]
    pub(crate) fn join(self) -> T {
        self.0.wait(Option::take).expect("a thread does not end")
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.0.change(|result| result.is_some())
    }
}

/// Where so many wait for each other, again and again.
pub(crate) struct Barrier {
    count: usize,
    /// Those who came, and how often all were there.
    state: Waiting<(usize, usize)>,
}

impl Barrier {
    pub(crate) fn new(count: usize) -> Self {
        Self { count, state: Waiting::new((0, 0)) }
    }

    pub(crate) fn wait(&self) {
        let meeting = self.state.change(|(came, meetings)| {
            let meeting = *meetings;
            *came += 1;
            if *came == self.count {
                (*came, *meetings) = (0, meeting + 1);
            }
            meeting
        });
        let is_over = self.state.wait(|(_, meetings)| (*meetings > meeting).then_some(()));
        is_over.expect("the others do not come");
    }
}
