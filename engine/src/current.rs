//! Who is running on this thread: which core or worker, and in a callback of which exchange. The
//! only thread-local of ringcat. "Request side" of the asynchronous state machine means that
//! `Current` names the exchange; several cores may share a thread in the simulator, so the value
//! is scoped and put back, also when the callback panics.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

use crate::{key::CoreId, local::services::LocalServices};

/// Who is running on this thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Current {
    /// The core whose loop runs here, if any.
    pub core: Option<CoreId>,
    /// Whether this is a thread of a worker pool.
    pub is_worker: bool,
    /// The exchange whose callback runs here. Exchanges of different cores differ too.
    pub exchange: Option<ExchangeName>,
}

/// The name of an exchange across all cores of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExchangeName {
    /// The owner.
    pub core: CoreId,
    /// The layer above's key of the exchange on that core.
    pub key: u64,
}

thread_local! {
    static CURRENT: Cell<Current> = const {
        Cell::new(Current { core: None, is_worker: false, exchange: None })
    };
    /// What the core that runs here offers to its futures; beside `Current`, which is copied.
    static SERVICES: RefCell<Option<Rc<LocalServices>>> = const { RefCell::new(None) };
}

/// What the core of the calling thread offers.
pub(crate) fn services() -> Option<Rc<LocalServices>> {
    SERVICES.with_borrow(Option::clone)
}

/// Runs `f` on the thread of the core that `services` belong to.
pub(crate) fn with_services<R>(services: Rc<LocalServices>, f: impl FnOnce() -> R) -> R {
    let _restore = RestoreServices(SERVICES.replace(Some(services)));
    f()
}

struct RestoreServices(Option<Rc<LocalServices>>);

impl Drop for RestoreServices {
    fn drop(&mut self) {
        // What was there goes behind the borrow.
        drop(SERVICES.replace(self.0.take()));
    }
}

impl Current {
    /// Who runs on the calling thread.
    pub fn get() -> Self {
        CURRENT.get()
    }

    /// Runs `f` as `self`, then puts back who ran before.
    pub fn scope<R>(self, f: impl FnOnce() -> R) -> R {
        let _restore = Restore(CURRENT.replace(self));
        f()
    }

    /// Says that `self` runs on this thread from now on, on the core with these services, and
    /// answers who did before: an actor of the simulator is left in the middle of a scope and
    /// resumed there.
    #[cfg(all(feature = "sim", not(loom)))]
    pub(crate) fn swap_in(
        self,
        services: Option<Rc<LocalServices>>,
    ) -> (Self, Option<Rc<LocalServices>>) {
        (CURRENT.replace(self), SERVICES.replace(services))
    }

    /// Runs `f` inside a callback of `exchange`.
    pub fn in_exchange<R>(exchange: ExchangeName, f: impl FnOnce() -> R) -> R {
        Self { exchange: Some(exchange), ..Self::get() }.scope(f)
    }
}

struct Restore(Current);

impl Drop for Restore {
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_previous_value_comes_back_also_after_a_panic() {
        let core = Current { core: Some(CoreId(1)), ..Current::default() };
        core.scope(|| {
            let exchange = ExchangeName { core: CoreId(1), key: 7 };
            let caught = std::panic::catch_unwind(|| {
                Current::in_exchange(exchange, || {
                    assert_eq!(Current::get().exchange, Some(exchange));
                    std::panic::resume_unwind(Box::new(()));
                })
            });
            assert!(caught.is_err());
            assert_eq!(Current::get(), core);
        });
        assert_eq!(Current::get(), Current::default());
    }
}
