//! The access log: the form of its lines, and what reaches its target from several cores, from a
//! stuck target, from a failing one, and at the end.

use std::io::{self, Write};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ringcat::access_log::{
    AccessLog, AccessLogEntry, AccessLogFormat, AccessLogTarget, format_common,
};

const ENTRY: AccessLogEntry<'static> = AccessLogEntry {
    remote: std::net::SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 4711),
    unix_millis: 1_700_000_000_999,
    method: b"GET",
    target: b"/a?x=1",
    version: b"HTTP/1.1",
    status: 200,
    bytes_sent: 5,
    duration: Duration::from_micros(70),
};

/// For a line to come; far more than a healthy writer ever takes.
const PATIENCE: Duration = Duration::from_secs(60);

fn line(entry: &AccessLogEntry<'_>) -> String {
    let mut out = Vec::new();
    format_common(entry, &mut out);
    String::from_utf8(out).expect("lines are ascii")
}

#[test]
fn lines_have_the_common_format() {
    let prefix = "127.0.0.1 - - [14/Nov/2023:22:13:20 +0000]";
    assert_eq!(line(&ENTRY), format!("{prefix} \"GET /a?x=1 HTTP/1.1\" 200 5"));
    let head = AccessLogEntry { method: b"HEAD", bytes_sent: 0, ..ENTRY };
    assert_eq!(line(&head), format!("{prefix} \"HEAD /a?x=1 HTTP/1.1\" 200 -"));
    let garbage = AccessLogEntry { method: b"", target: b"", version: b"", status: 400, ..ENTRY };
    assert_eq!(line(&garbage), format!("{prefix} \"-\" 400 5"));
    let remote = ([0, 0, 0, 0, 0, 0, 0, 1], 80).into();
    assert!(line(&AccessLogEntry { remote, ..ENTRY }).starts_with("::1 - - ["));
    let mut timed = Vec::new();
    AccessLogFormat::Timed.format(&ENTRY, &mut timed);
    assert_eq!(timed, format!("{} 70", line(&ENTRY)).into_bytes());
}

#[test]
fn a_request_cannot_forge_a_line() {
    let target = b"/\"\\\r\n127.0.0.1 - -\x00\x1b[31m\x7f\xc3\xa9";
    let forged = line(&AccessLogEntry { target, ..ENTRY });
    let expected = r#""GET /\"\\\x0d\x0a127.0.0.1 - -\x00\x1b[31m\x7f\xc3\xa9 HTTP/1.1" 200 5"#;
    assert!(forged.ends_with(expected), "{forged}");
}

#[test]
fn dates_follow_the_calendar() {
    let check = |seconds: u64, expected: &str| {
        let text = line(&AccessLogEntry { unix_millis: seconds * 1000, ..ENTRY });
        assert!(text.contains(&format!("[{expected} +0000]")), "{text}");
    };
    check(0, "01/Jan/1970:00:00:00");
    check(951_782_399, "28/Feb/2000:23:59:59");
    check(951_782_400, "29/Feb/2000:00:00:00");
    check(951_868_800, "01/Mar/2000:00:00:00");
    check(1_709_164_800, "29/Feb/2024:00:00:00");
    check(1_735_689_599, "31/Dec/2024:23:59:59");
    check(4_107_542_400, "01/Mar/2100:00:00:00");
    check(4_107_542_399, "28/Feb/2100:23:59:59");
}

/// Keeps what is written.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Kept {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().expect("no panic").clone()).expect("lines are ascii")
    }
}

impl Write for Kept {
    /// Takes a part only, as a pipe may.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let part = &bytes[..bytes.len().min(1000)];
        self.0.lock().expect("no panic").extend_from_slice(part);
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn start(writer: impl Write + Send + 'static) -> AccessLog {
    let target = AccessLogTarget::Writer(Box::new(writer));
    AccessLog::start(target, AccessLogFormat::Common).expect("a thread")
}

#[test]
fn lines_of_all_cores_are_whole_and_each_core_s_in_order() {
    const LINES: u64 = 3000;
    let kept = Kept::default();
    let log = start(kept.clone());
    std::thread::scope(|scope| {
        for core in 0..3_u16 {
            let mut core_log = log.core_log();
            scope.spawn(move || {
                for number in 1..=LINES {
                    let entry = AccessLogEntry { status: core, bytes_sent: number, ..ENTRY };
                    core_log.log(&entry);
                }
            });
        }
    });
    assert_eq!(log.lost_lines(), 0);
    log.close();
    let text = kept.text();
    assert!(text.ends_with('\n'));
    for core in 0..3_u16 {
        let of_core = text.lines().filter(|line| line.contains(&format!("\" {core} ")));
        let expected = (1..=LINES)
            .map(|number| line(&AccessLogEntry { status: core, bytes_sent: number, ..ENTRY }));
        assert!(of_core.eq(expected));
    }
    assert_eq!(text.lines().count(), 9000);
}

/// Says how much came with each call, then waits for leave to go on.
struct Stuck {
    arrived: Sender<usize>,
    leave: Receiver<()>,
}

impl Write for Stuck {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.arrived.send(bytes.len()).map_err(io::Error::other)?;
        // Once the test has dropped its end, everything is let through.
        let _ = self.leave.recv();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_line_is_written_without_close_and_a_stuck_target_costs_lines_not_time() {
    let (arrived_sender, arrived) = channel();
    let (leave_sender, leave) = channel();
    let log = start(Stuck { arrived: arrived_sender, leave });
    let mut core_log = log.core_log();
    core_log.log(&ENTRY);
    let first = arrived.recv_timeout(PATIENCE).expect("the line comes by itself");
    assert_eq!(first, line(&ENTRY).len() + 1);

    // The writer is in `write` now, and whatever is logged stays here, up to the limit.
    let target = vec![b'x'; 1000];
    let long = AccessLogEntry { target: &target, ..ENTRY };
    for _ in 0..5000 {
        core_log.log(&long);
    }
    let lost = log.lost_lines();
    assert!(lost > 3000 && lost < 5000, "{lost}");
    drop(leave_sender);
    log.close();
    let long_line = line(&long).len() + 1;
    let written: usize = arrived.iter().sum();
    assert_eq!(written, usize::try_from(5000 - lost).expect("a count") * long_line);
}

#[test]
fn lines_after_the_end_are_counted_as_lost() {
    let kept = Kept::default();
    let log = start(kept.clone());
    let mut core_log = log.core_log();
    core_log.log(&ENTRY);
    let watcher = log.core_log();
    drop(log);
    core_log.log(&ENTRY);
    assert_eq!(kept.text(), line(&ENTRY) + "\n");
    assert_eq!(watcher.lost_lines(), 1);
}

/// Fails in the middle of the first line, then works.
struct FailsOnce {
    calls: u32,
    arrived: Sender<Vec<u8>>,
}

impl Write for FailsOnce {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.calls += 1;
        let len = if self.calls == 1 { 10 } else { bytes.len() };
        self.arrived.send(bytes[..len].to_vec()).map_err(io::Error::other)?;
        if self.calls == 2 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(len) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn after_a_failed_write_the_next_line_starts_anew() {
    let (sender, arrived) = channel();
    let log = start(FailsOnce { calls: 0, arrived: sender });
    let mut core_log = log.core_log();
    let next = || arrived.recv_timeout(PATIENCE).expect("the writer writes");
    core_log.log(&ENTRY);
    assert_eq!(next(), &line(&ENTRY).as_bytes()[..10]);
    assert_eq!(next(), &(line(&ENTRY) + "\n").as_bytes()[10..]);
    core_log.log(&ENTRY);
    assert_eq!(next(), b"\n");
    assert_eq!(next(), (line(&ENTRY) + "\n").into_bytes());
    assert_eq!(log.lost_lines(), 1);
    log.close();
}

#[test]
fn a_file_is_appended_to_and_a_missing_folder_is_an_error() {
    let folder = std::env::temp_dir().join(format!("ringcat-access-log-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let path = folder.join("access.log");
    for _ in 0..2 {
        let target = AccessLogTarget::File(path.clone());
        let log = AccessLog::start(target, AccessLogFormat::Common).expect("the file opens");
        log.core_log().log(&ENTRY);
        log.close();
    }
    let text = std::fs::read_to_string(&path).expect("the file is there");
    assert_eq!(text, format!("{0}\n{0}\n", line(&ENTRY)));
    let target = AccessLogTarget::File(folder.join("none/access.log"));
    assert!(AccessLog::start(target, AccessLogFormat::Common).is_err());
    std::fs::remove_dir_all(&folder).expect("the folder goes");
}
