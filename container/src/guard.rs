//! The one place where calls into application code are caught: a panic becomes an error, the
//! core lives. Also the drop of application-owned values goes through here.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::{Error, Result};

/// Calls application code; a panic in it comes back as an error of kind
/// [`Panic`](crate::error::ErrorKind::Panic).
///
/// The application's own state is its own affair after a panic. What is ours is rebuilt by the
/// caller from the error, so asserting unwind safety is sound.
pub(crate) fn guard<R>(f: impl FnOnce() -> Result<R>) -> Result<R> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|payload| Err(Error::from_panic(payload)))
}

/// Calls application code that does not fail; a panic is logged with `what` and given up.
pub(crate) fn guard_quiet(what: &str, f: impl FnOnce()) {
    let result = guard(|| {
        f();
        Ok(())
    });
    if let Err(error) = result {
        tracing::error!("{what} failed: {error}");
    }
}

/// Drops an application's value where its panic is caught.
pub(crate) fn guard_drop<T>(what: &str, value: T) {
    guard_quiet(what, || drop(value));
}

/// Drops an application's values one by one: of two that panic in one go the second would end the
/// process.
pub(crate) fn guard_drop_each<T>(what: &str, values: impl IntoIterator<Item = T>) {
    for value in values {
        guard_drop(what, value);
    }
}
