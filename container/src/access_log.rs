//! The access log: one line a request in the common log format, handed to one writer thread. It
//! owns that thread and, for each core, a bounded buffer of whole lines. A core copies its line
//! into memory and never waits: not for the file, not for another core, not for the writer. Stands
//! for `AbstractAccessLogValve` and `AccessLogValve`.
//!
//! What two threads touch:
//!
//! | field | core | writer | rule |
//! |---|---|---|---|
//! | `CoreLines::slots` | appends to a free one | empties each | a mutex each, held for a copy |
//! | `Shared::cores` | pushes at its start | copies the list | a mutex, not held over I/O |
//! | `Shared::lost` | adds | adds, reads | relaxed: a count orders nothing |
//! | `Shared::stop` | reads | reads | stored by `stop` with release, loaded with acquire |
//!
//! A pass of the writer that begins with a load of `stop` sees every line logged before `stop` was
//! called, so the pass that finds it set is the last.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

/// What the log says about one request, borrowed from it when it has ended.
#[derive(Clone, Copy, Debug)]
pub struct AccessLogEntry<'a> {
    /// The client's address; the port is not logged.
    pub remote: SocketAddr,
    /// When the request arrived, in milliseconds since the epoch.
    pub unix_millis: u64,
    /// The method as received; empty if the request line could not be read.
    pub method: &'a [u8],
    /// The request target as received.
    pub target: &'a [u8],
    /// The protocol version as received, `HTTP/1.1`.
    pub version: &'a [u8],
    /// The final status.
    pub status: u16,
    /// Bytes of the response's body on the wire.
    pub bytes_sent: u64,
    /// From the first byte of the request to the last byte of the response.
    pub duration: Duration,
}

/// How a line of the log looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessLogFormat {
    /// The common log format: `%h %l %u %t "%r" %s %b`.
    #[default]
    Common,
    /// The common log format with the duration in microseconds behind: `%h … %b %D`.
    Timed,
}

impl AccessLogFormat {
    /// Appends the line of `entry` without a line end.
    pub fn format(self, entry: &AccessLogEntry<'_>, out: &mut Vec<u8>) {
        format_common(entry, out);
        match self {
            Self::Common => {}
            Self::Timed => append(out, format_args!(" {}", entry.duration.as_micros())),
        }
    }
}

/// Appends `entry` in the common log format, without a line end: address, two dashes, time in UTC,
/// request line, status, bytes or a dash. Quotes and backslashes of the request are escaped by a
/// backslash, controls and non-ASCII bytes as `\xhh`, so that no request can forge a line.
///
/// ```
/// use ringcat::access_log::{AccessLogEntry, format_common};
///
/// let entry = AccessLogEntry {
///     remote: ([127, 0, 0, 1], 4711).into(),
///     unix_millis: 1_700_000_000_000,
///     method: b"GET",
///     target: b"/a?x=1",
///     version: b"HTTP/1.1",
///     status: 200,
///     bytes_sent: 5,
///     duration: std::time::Duration::from_micros(70),
/// };
/// let mut line = Vec::new();
/// format_common(&entry, &mut line);
/// let expected = b"127.0.0.1 - - [14/Nov/2023:22:13:20 +0000] \"GET /a?x=1 HTTP/1.1\" 200 5";
/// assert_eq!(line, expected);
/// ```
pub fn format_common(entry: &AccessLogEntry<'_>, out: &mut Vec<u8>) {
    append(out, format_args!("{} - - [", entry.remote.ip()));
    append_time(entry.unix_millis / 1000, out);
    out.extend_from_slice(b"] \"");
    if entry.method.is_empty() {
        out.push(b'-');
    } else {
        append_escaped(entry.method, out);
        for part in [entry.target, entry.version] {
            out.push(b' ');
            append_escaped(part, out);
        }
    }
    append(out, format_args!("\" {} ", entry.status));
    match entry.bytes_sent {
        0 => out.push(b'-'),
        bytes => append(out, format_args!("{bytes}")),
    }
}

fn append(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("a vector takes every byte");
}

/// Appends `%d/%b/%Y:%H:%M:%S +0000`.
fn append_time(unix_seconds: u64, out: &mut Vec<u8>) {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    const DAY: u64 = 24 * 60 * 60;
    let (year, month, day) = civil_date(unix_seconds / DAY);
    let second = unix_seconds % DAY;
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let month = MONTHS[month];
    append(out, format_args!("{day:02}/{month}/{year:04}:{hour:02}:{minute:02}:{second:02} +0000"));
}

/// Year, month from 0 and day from 1 of a day since the epoch, in the Gregorian calendar. Counted
/// in years that begin on the first of March, the leap day is the last day of its year, and the
/// months before a day follow from a line through their lengths.
fn civil_date(days_since_epoch: u64) -> (u64, usize, u64) {
    const DAYS_OF_400_YEARS: u64 = 146_097;
    // From 1 March of year 0 to the epoch.
    let days = days_since_epoch + 719_468;
    let (era, day_of_era) = (days / DAYS_OF_400_YEARS, days % DAYS_OF_400_YEARS);
    let leap_days = day_of_era / 1460 + day_of_era / (DAYS_OF_400_YEARS - 1);
    let year_of_era = (day_of_era - leap_days + day_of_era / 36_524) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12;
    let year = era * 400 + year_of_era + u64::from(month < 2);
    (year, usize::try_from(month).expect("a month is below 12"), day)
}

fn append_escaped(bytes: &[u8], out: &mut Vec<u8>) {
    for &byte in bytes {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            b' '..=b'~' => out.push(byte),
            other => append(out, format_args!("\\x{other:02x}")),
        }
    }
}

/// Where the lines go.
pub enum AccessLogTarget {
    /// A file, made if missing, appended to.
    File(PathBuf),
    /// The standard output of the process.
    Stdout,
    /// Anything else; used by the writer thread alone, which calls `flush` after each batch.
    Writer(Box<dyn Write + Send>),
}

/// The sink of all cores. Dropping it writes what is there, as [`close`](Self::close) does.
#[derive(Debug)]
pub struct AccessLog {
    shared: Arc<Shared>,
    format: AccessLogFormat,
    writer: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    cores: Mutex<Vec<Arc<CoreLines>>>,
    lost: AtomicU64,
    stop: AtomicBool,
}

/// The lines of one core that are not written yet. The writer locks one slot at a time, so a core
/// always finds one free; it prefers the first and the writer takes that first, which keeps lines
/// in order: what goes to the second was logged before anything that the first gets afterwards.
#[derive(Debug, Default)]
struct CoreLines {
    slots: [Mutex<Lines>; 2],
}

#[derive(Debug, Default)]
struct Lines {
    bytes: Vec<u8>,
    count: u64,
}

/// How often the writer looks without being woken, hence the longest that a line waits.
const FLUSH_PERIOD: Duration = Duration::from_millis(500);
/// How much a core gathers before it wakes the writer.
const WAKE_BYTES: usize = 64 * 1024;
/// How much a core gathers while the writer is stuck, before lines are lost.
const SLOT_BYTES_MAX: usize = 1024 * 1024;

impl AccessLog {
    /// Opens the target and starts the writer thread, `ringcat-access-log`.
    ///
    /// # Errors
    /// The file cannot be opened or the thread not be started.
    #[allow(clippy::disallowed_methods, reason = "the one thread that may wait for the log's file")]
    pub fn start(target: AccessLogTarget, format: AccessLogFormat) -> io::Result<Self> {
        let mut out: Box<dyn Write + Send> = match target {
            AccessLogTarget::File(path) => {
                Box::new(OpenOptions::new().create(true).append(true).open(path)?)
            }
            AccessLogTarget::Stdout => Box::new(io::stdout()),
            AccessLogTarget::Writer(writer) => writer,
        };
        let shared = Arc::new(Shared {
            cores: Mutex::new(Vec::new()),
            lost: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        });
        let for_writer = Arc::clone(&shared);
        let writer = thread::Builder::new()
            .name("ringcat-access-log".to_owned())
            .spawn(move || write_until_stopped(&for_writer, &mut *out))?;
        Ok(Self { shared, format, writer: Some(writer) })
    }

    /// A core's door to the log. Made once a core; its memory lives as long as the log.
    pub fn core_log(&self) -> CoreAccessLog {
        let lines = Arc::new(CoreLines::default());
        lock(&self.shared.cores).push(Arc::clone(&lines));
        let writer = self.writer.as_ref().map(|writer| writer.thread().clone());
        CoreAccessLog {
            shared: Arc::clone(&self.shared),
            lines,
            writer,
            format: self.format,
            line: Vec::new(),
        }
    }

    /// How many lines were not written since the start: the writer was stuck, or its target
    /// failed, or the log was closed.
    pub fn lost_lines(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }

    /// Writes what all cores have logged so far and ends the thread. Waits for the target, so it
    /// belongs to the end of the server, when no core logs any more; later lines are lost.
    pub fn close(mut self) {
        self.stop();
    }

    fn stop(&mut self) {
        if let Some(writer) = self.writer.take() {
            self.shared.stop.store(true, Ordering::Release);
            writer.thread().unpark();
            if writer.join().is_err() {
                tracing::error!("the access log's writer panicked");
            }
        }
    }
}

impl Drop for AccessLog {
    fn drop(&mut self) {
        self.stop();
    }
}

/// One core's door to the access log. `Send`, but not shared: a core moves it in and keeps it.
#[derive(Debug)]
pub struct CoreAccessLog {
    shared: Arc<Shared>,
    lines: Arc<CoreLines>,
    writer: Option<Thread>,
    format: AccessLogFormat,
    /// The line in the making; kept for its memory.
    line: Vec<u8>,
}

impl CoreAccessLog {
    /// Logs one request. Never waits; the line is written within a second, or counted as lost if
    /// the writer cannot keep up.
    pub fn log(&mut self, entry: &AccessLogEntry<'_>) {
        self.line.clear();
        self.format.format(entry, &mut self.line);
        self.line.push(b'\n');
        let is_added = !self.shared.stop.load(Ordering::Relaxed) && self.add_line();
        if !is_added {
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// As [`AccessLog::lost_lines`].
    pub fn lost_lines(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }

    /// Copies the line into the first slot that is free, and wakes the writer when that slot has
    /// gathered enough.
    fn add_line(&self) -> bool {
        let slots = &self.lines.slots;
        let Some(mut lines) = try_lock(&slots[0]).or_else(|| try_lock(&slots[1])) else {
            return false;
        };
        let before = lines.bytes.len();
        let after = before + self.line.len();
        if after > SLOT_BYTES_MAX {
            return false;
        }
        lines.bytes.extend_from_slice(&self.line);
        lines.count += 1;
        drop(lines);
        let is_enough = before < WAKE_BYTES && after >= WAKE_BYTES;
        if let Some(writer) = self.writer.as_ref().filter(|_| is_enough) {
            writer.unpark();
        }
        true
    }
}

/// A panic between lock and unlock is impossible here, and lines would be whole all the same.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// The writer thread.
fn write_until_stopped(shared: &Shared, out: &mut dyn Write) {
    let mut batch = Lines::default();
    let mut reporter = LossReporter::default();
    let mut is_line_torn = false;
    loop {
        // Loaded before the pass, not after: lines might come in between.
        let is_last = shared.stop.load(Ordering::Acquire);
        let cores = lock(&shared.cores).clone();
        for slot in cores.iter().flat_map(|core| &core.slots) {
            std::mem::swap(&mut *lock(slot), &mut batch);
            if let Err(error) = write_batch(&batch, out, &mut is_line_torn) {
                shared.lost.fetch_add(batch.count, Ordering::Relaxed);
                reporter.report_error(&error);
            }
            batch.bytes.clear();
            batch.count = 0;
        }
        reporter.report_loss(shared.lost.load(Ordering::Relaxed));
        if is_last {
            return;
        }
        thread::park_timeout(FLUSH_PERIOD);
    }
}

/// Writes whole lines and flushes them. After a failure somewhere inside a line the next batch
/// starts a new one.
fn write_batch(batch: &Lines, out: &mut dyn Write, is_line_torn: &mut bool) -> io::Result<()> {
    if batch.bytes.is_empty() {
        return Ok(());
    }
    if *is_line_torn {
        out.write_all(b"\n")?;
    }
    *is_line_torn = true;
    out.write_all(&batch.bytes)?;
    *is_line_torn = false;
    out.flush()
}

/// Tells the operator once of each kind of trouble; the count is in [`AccessLog::lost_lines`].
#[derive(Default)]
struct LossReporter {
    has_told_error: bool,
    has_told_loss: bool,
}

impl LossReporter {
    fn report_error(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.has_told_error, true) {
            tracing::error!(%error, "the access log cannot be written, lines are lost");
        }
    }

    fn report_loss(&mut self, lost: u64) {
        if lost > 0 && !std::mem::replace(&mut self.has_told_loss, true) {
            tracing::warn!(lost, "access log lines are lost, further losses are only counted");
        }
    }
}
