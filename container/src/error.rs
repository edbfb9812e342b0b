//! The one error of the crate: opaque, with a kind that says who must act. It owns a boxed record,
//! so that a `Result` stays one word wide on the paths where nothing goes wrong. It never decides
//! what is answered; [`Error::status`] only says what an uncaught error amounts to. Stands for
//! `ServletException`, `UnavailableException`, `IOException`, `IllegalStateException` and kin.

use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::guard::guard_drop;
use crate::mapper::MappingError;
use crate::uri::{QueryError, UriError};

/// What the functions of this crate and the application's callbacks return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Any error as the application may have it.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What went wrong, in a servlet or in the container: a kind, a text, perhaps a cause.
///
/// One pointer wide. May be made, moved and read on any thread. A wrapped error that panics when
/// it is shown or dropped harms nobody: the panic stands in the text, or in the log.
///
/// ```
/// use ringcat::error::{Error, ErrorKind, Result};
///
/// fn parse(text: &str) -> Result<u32> {
///     text.parse().map_err(Error::app)
/// }
/// let error = parse("x").unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::App);
/// assert!(error.downcast_ref::<std::num::ParseIntError>().is_some());
/// assert_eq!(error.status(), 500);
/// ```
pub struct Error(Box<Record>);

/// Who must act on an [`Error`], and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A call that the present state does not allow (`IllegalStateException`).
    IllegalState,
    /// A call with a value that is never allowed (`IllegalArgumentException`).
    IllegalArgument,
    /// A text that should be a number and is none (`NumberFormatException`).
    NumberFormat,
    /// A character encoding that is not known (`UnsupportedEncodingException`).
    UnsupportedEncoding,
    /// The connection, a file or another thing of the system failed (`IOException`).
    Io,
    /// The application's own error, passed through.
    App,
    /// A servlet or filter gave up, perhaps with a root cause (`ServletException`).
    Servlet,
    /// What was asked for does not exist in this server (`UnsupportedOperationException`).
    Unsupported,
    /// A resource that is not there (`FileNotFoundException`).
    NotFound,
    /// The servlet is unavailable, for a time or for good (`UnavailableException`).
    Unavailable,
    /// The call would have to wait on a thread that must not.
    WouldBlock,
    /// The peer sent what it must not; carries the status to answer.
    ProtocolViolation,
    /// Application code panicked; the text is that of the panic.
    Panic,
}

/// Behind the pointer. An empty `message` shows the text of `inner`.
struct Record {
    kind: ErrorKind,
    status: u16,
    message: Cow<'static, str>,
    inner: Option<BoxError>,
    type_name: Option<&'static str>,
    retry_after: Option<Duration>,
}

impl Drop for Record {
    /// The wrapped error is the application's: a panic of its end is logged and goes no further,
    /// wherever in the container that end comes.
    fn drop(&mut self) {
        if let Some(inner) = self.inner.take() {
            guard_drop("dropping an error", inner);
        }
    }
}

/// How long a servlet is unavailable that did not say a positive time.
const UNAVAILABLE_DEFAULT: Duration = Duration::from_secs(60);

impl Error {
    /// An error of `kind` with a text in lower case without a full stop.
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Record {
            kind,
            status: kind.status(),
            message: message.into(),
            inner: None,
            type_name: None,
            retry_after: None,
        }))
    }

    /// A call that the present state does not allow.
    pub fn illegal_state(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::IllegalState, message)
    }

    /// A call with a value that is never allowed.
    pub fn illegal_argument(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::IllegalArgument, message)
    }

    /// Something this server does not offer.
    pub fn unsupported(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Unsupported, message)
    }

    /// A resource that is not there.
    pub fn not_found(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::NotFound, message)
    }

    /// A call that would have to wait where waiting is forbidden.
    pub fn would_block(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::WouldBlock, message)
    }

    /// What the peer did wrong and the status that answers it, 400 to 599.
    pub fn protocol_violation(status: u16, message: impl Into<Cow<'static, str>>) -> Self {
        let mut error = Self::new(ErrorKind::ProtocolViolation, message);
        error.0.status = status;
        error
    }

    /// The servlet is unavailable for `period`: 503 with `Retry-After` meanwhile. A zero period
    /// counts as one minute (Servlet specification, `UnavailableException`).
    pub fn unavailable_for(period: Duration, message: impl Into<Cow<'static, str>>) -> Self {
        let mut error = Self::new(ErrorKind::Unavailable, message);
        let period = if period.is_zero() { UNAVAILABLE_DEFAULT } else { period };
        error.0.retry_after = Some(period);
        error.0.status = 503;
        error
    }

    /// The servlet is unavailable for good: 404 from now on.
    pub fn unavailable_permanently(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Unavailable, message)
    }

    /// A servlet's or filter's own failure without a cause.
    pub fn servlet(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Servlet, message)
    }

    /// A servlet's or filter's own failure with its root cause, for which an error page may be
    /// declared.
    pub fn servlet_caused<E: Into<BoxError>>(
        message: impl Into<Cow<'static, str>>,
        root_cause: E,
    ) -> Self {
        let mut error = Self::new(ErrorKind::Servlet, message);
        error.0.inner = Some(root_cause.into());
        error.0.type_name = Some(std::any::type_name::<E>());
        error
    }

    /// The application's own error, passed through: text and sources are those of `error`.
    pub fn app<E: Into<BoxError>>(error: E) -> Self {
        Self::wrapping(ErrorKind::App, error)
    }

    /// What [`std::panic::catch_unwind`] caught. The payload is dropped here, and a payload that
    /// panics once more while it is dropped is given up, so this never unwinds.
    pub fn from_panic(payload: Box<dyn Any + Send>) -> Self {
        let message = match payload.downcast::<&'static str>() {
            Ok(text) => Cow::Borrowed(*text),
            Err(payload) => match payload.downcast::<String>() {
                Ok(text) => Cow::Owned(*text),
                Err(payload) => {
                    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
                        std::mem::forget(again);
                    }
                    Cow::Borrowed("a panic without a text")
                }
            },
        };
        Self::new(ErrorKind::Panic, message)
    }

    /// What kind of error this is.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The status an uncaught error of this sort is answered with: 500, except 503 or 404 when
    /// unavailable and the error's own for a protocol violation.
    pub fn status(&self) -> u16 {
        self.0.status
    }

    /// For how long a servlet is unavailable; `None` for ever, or for any other kind.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// The wrapped error: the application's own, the system's, or a servlet error's root cause.
    pub fn inner(&self) -> Option<&(dyn std::error::Error + Send + Sync + 'static)> {
        self.0.inner.as_deref()
    }

    /// The wrapped error as a `T`, if it is one.
    pub fn downcast_ref<T: std::error::Error + 'static>(&self) -> Option<&T> {
        self.inner()?.downcast_ref()
    }

    /// The Rust name of the wrapped error's type as it was handed in; for logs and error pages.
    pub fn type_name(&self) -> Option<&'static str> {
        self.0.type_name
    }

    /// Whether a deadline of the connection passed: the other end neither sent nor took anything.
    pub fn is_timeout(&self) -> bool {
        self.downcast_ref::<std::io::Error>()
            .is_some_and(|error| error.kind() == std::io::ErrorKind::TimedOut)
    }

    /// Whether this is a system error that only connections have.
    pub(crate) fn is_of_connection(&self) -> bool {
        use std::io::ErrorKind as Kind;
        self.downcast_ref::<std::io::Error>().is_some_and(|error| {
            matches!(
                error.kind(),
                Kind::BrokenPipe
                    | Kind::ConnectionAborted
                    | Kind::ConnectionReset
                    | Kind::NotConnected
                    | Kind::TimedOut
            )
        })
    }

    fn wrapping<E: Into<BoxError>>(kind: ErrorKind, inner: E) -> Self {
        let mut error = Self::new(kind, "");
        error.0.inner = Some(inner.into());
        error.0.type_name = Some(std::any::type_name::<E>());
        error
    }
}

impl ErrorKind {
    const fn status(self) -> u16 {
        match self {
            Self::Unavailable => 404,
            Self::ProtocolViolation => 400,
            Self::IllegalState
            | Self::IllegalArgument
            | Self::NumberFormat
            | Self::UnsupportedEncoding
            | Self::Io
            | Self::App
            | Self::Servlet
            | Self::Unsupported
            | Self::NotFound
            | Self::WouldBlock
            | Self::Panic => 500,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.inner {
            // The text is the application's, and is asked for where nothing may unwind: in logs.
            Some(inner) if self.0.message.is_empty() => {
                catch_unwind(AssertUnwindSafe(|| inner.fmt(f))).unwrap_or_else(|payload| {
                    write!(f, "an error whose text panicked: {}", Self::from_panic(payload))
                })
            }
            Some(_) | None => f.write_str(&self.0.message),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Error");
        debug.field("kind", &self.0.kind).field("message", &format_args!("{self}"));
        if let Some(inner) = &self.0.inner {
            debug.field("inner", inner);
        }
        debug.finish_non_exhaustive()
    }
}

impl std::error::Error for Error {
    /// The cause. A passed-through error already lent its text, so its own cause comes next, as
    /// with [`std::io::Error`].
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        let inner = self.0.inner.as_deref()?;
        if self.0.message.is_empty() { inner.source() } else { Some(inner) }
    }
}

impl From<std::io::Error> for Error {
    /// `WouldBlock` stays what it is, every other system error is of kind [`ErrorKind::Io`].
    fn from(error: std::io::Error) -> Self {
        let would_block = error.kind() == std::io::ErrorKind::WouldBlock;
        Self::wrapping(if would_block { ErrorKind::WouldBlock } else { ErrorKind::Io }, error)
    }
}

impl From<fmt::Error> for Error {
    fn from(error: fmt::Error) -> Self {
        Self::app(error)
    }
}

impl From<BoxError> for Error {
    fn from(error: BoxError) -> Self {
        Self::wrapping(ErrorKind::App, error)
    }
}

impl From<String> for Error {
    fn from(message: String) -> Self {
        Self::new(ErrorKind::App, message)
    }
}

impl From<&str> for Error {
    fn from(message: &str) -> Self {
        Self::new(ErrorKind::App, message.to_owned())
    }
}

impl From<UriError> for Error {
    fn from(error: UriError) -> Self {
        Self::protocol_violation(error.status, error.reason)
    }
}

impl From<QueryError> for Error {
    fn from(error: QueryError) -> Self {
        Self::protocol_violation(error.status, error.reason)
    }
}

impl From<MappingError> for Error {
    fn from(error: MappingError) -> Self {
        Self::wrapping(ErrorKind::IllegalArgument, error)
    }
}

const _: () = assert!(size_of::<Error>() == size_of::<usize>());

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error as _;

    #[derive(Debug)]
    struct Outer(fmt::Error);

    impl fmt::Display for Outer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("outer")
        }
    }

    impl std::error::Error for Outer {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            Some(&self.0)
        }
    }

    fn assert_send_sync<T: Send + Sync + 'static>(_: &T) {}

    #[test]
    fn an_application_error_is_passed_through_and_found_again() {
        let error = Error::app(Outer(fmt::Error));
        assert_send_sync(&error);
        assert_eq!((error.kind(), error.to_string()), (ErrorKind::App, "outer".to_owned()));
        assert!(error.downcast_ref::<Outer>().is_some());
        assert!(error.source().is_some_and(|source| source.is::<fmt::Error>()));
        assert!(error.type_name().is_some_and(|name| name.ends_with("::Outer")));
    }

    #[test]
    fn a_servlet_error_keeps_its_own_text_before_its_root_cause() {
        let error = Error::servlet_caused("no database", Outer(fmt::Error));
        assert_eq!(error.to_string(), "no database");
        assert!(error.source().is_some_and(|source| source.is::<Outer>()));
        assert!(Error::servlet("alone").source().is_none());
    }

    #[test]
    fn system_errors_keep_their_kind() {
        let pipe = Error::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
        assert_eq!((pipe.kind(), pipe.status()), (ErrorKind::Io, 500));
        let later = Error::from(std::io::Error::from(std::io::ErrorKind::WouldBlock));
        assert_eq!(later.kind(), ErrorKind::WouldBlock);
        assert!(later.downcast_ref::<std::io::Error>().is_some());
    }

    #[test]
    fn unavailable_says_how_long_and_no_time_is_a_minute() {
        let error = Error::unavailable_for(Duration::ZERO, "warming up");
        assert_eq!((error.status(), error.retry_after()), (503, Some(UNAVAILABLE_DEFAULT)));
        let gone = Error::unavailable_permanently("gone");
        assert_eq!((gone.status(), gone.retry_after()), (404, None));
    }

    #[test]
    fn a_panic_gives_its_text_and_never_unwinds_again() {
        struct PanicsOnDrop;
        impl Drop for PanicsOnDrop {
            fn drop(&mut self) {
                std::panic::resume_unwind(Box::new(()));
            }
        }
        let text = |payload| {
            let error = Error::from_panic(payload);
            assert_eq!(error.kind(), ErrorKind::Panic);
            error.to_string()
        };
        assert_eq!(text(Box::new("boom")), "boom");
        assert_eq!(text(Box::new(String::from("bang"))), "bang");
        assert_eq!(text(Box::new(PanicsOnDrop)), "a panic without a text");
    }

    #[test]
    fn a_text_is_an_application_error_and_a_violation_carries_its_status() {
        assert_eq!(Error::from("late").kind(), ErrorKind::App);
        assert_eq!(Error::from(String::from("late")).to_string(), "late");
        assert_eq!(Error::protocol_violation(413, "too large").status(), 413);
    }
}
