//! Where log lines go: standard error, a line an event, led by the thread's name as the articles
//! on asynchronous servlets print it: `[http-uring-core-0] state: Changing async state from …`.

use std::{fmt, io::IsTerminal, thread};

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::{
    EnvFilter,
    fmt::{FmtContext, FormatEvent, FormatFields, format::Writer},
    registry::LookupSpan,
};

use super::options::LogFilter;

/// Installs the sink for the process.
pub(crate) fn install(filter: &LogFilter) {
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(&filter.0))
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .event_format(ThreadLine)
        .init();
}

/// `[THREAD] text`, and the level where it is a warning or an error.
struct ThreadLine;

impl<S, N> FormatEvent<S, N> for ThreadLine
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        cx: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        write!(writer, "[{}] ", thread::current().name().unwrap_or("unnamed"))?;
        let level = *event.metadata().level();
        if level <= Level::WARN {
            write!(writer, "{level} ")?;
        }
        cx.field_format().format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}
