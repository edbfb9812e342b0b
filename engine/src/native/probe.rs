//! Finds out what this host's io_uring can do, by doing it; and if it can not, says so in one line:
//! what, why, and what to do.
//!
//! The kernel's version is never asked: distributions port features back, and containers filter
//! calls that the kernel has.

use std::{fmt, fs, io, rc::Rc, thread, time::Duration};

use io_uring::{Probe, opcode};

use super::{
    buffer_ring::BufferRing,
    operation::Operation,
    options::NativeOptions,
    ring::{Ring, Setup, TaskRun, Wait},
};

/// What this host's io_uring can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// When the kernel runs completions.
    pub task_run: TaskRun,
    /// Submission queue entries that the locked memory limit allows.
    pub sq_entries: u32,
    /// Completion queue entries that it allows.
    pub cq_entries: u32,
    /// Waiting is not counted as waiting for a disk (6.15).
    pub has_no_iowait: bool,
    /// A multishot receive lets other connections have their turn (6.8).
    pub has_fair_multishot: bool,
}

impl Capabilities {
    /// How a core makes its ring.
    pub(crate) fn setup(&self) -> Setup {
        let Self { task_run, sq_entries, cq_entries, .. } = *self;
        Setup { task_run, sq_entries, cq_entries }
    }
}

/// Why the native backend does not run here. Its text is one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    step: Step,
    errno: i32,
    host: Host,
}

impl Refusal {
    /// Explains why the ring of one of `cores` cores could not be made, although the probe's could:
    /// limits are for all rings together.
    pub(crate) fn of_core(error: &io::Error, cores: usize) -> Self {
        let host = Host { cores, ..Host::read() };
        Self { step: Step::Setup, errno: errno(error), host }
    }
}

/// What the probe was doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// `io_uring_setup`.
    Setup,
    /// Looking for a feature of the ring.
    Feature(&'static str),
    /// Registering the operation probe.
    Register,
    /// Looking for an operation.
    Operation(&'static str),
    /// Registering a buffer ring.
    BufferRing,
    /// `io_uring_enter` with an operation that does nothing.
    Enter,
}

/// What explains a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Host {
    /// The sysctl `kernel.io_uring_disabled`, from 6.6 on.
    io_uring_disabled: Option<u32>,
    /// `RLIMIT_MEMLOCK`; `None` if unlimited.
    locked_bytes_max: Option<u64>,
    /// `RLIMIT_NOFILE`; `None` if unlimited.
    open_files_max: Option<u64>,
    /// Cores that would each need a ring.
    cores: usize,
}

/// Makes a ring as a core would and sends an operation through it, on the calling thread.
///
/// The thread's next blocking call may fail with `EINTR` once, as after each ring that is closed.
///
/// # Errors
/// The first thing that failed and has no substitute.
pub fn probe(options: &NativeOptions) -> Result<Capabilities, Refusal> {
    probe_steps(options).map_err(|(step, errno)| Refusal { step, errno, host: Host::read() })
}

fn probe_steps(options: &NativeOptions) -> Result<Capabilities, (Step, i32)> {
    // Declared before the ring, so dropped after it.
    let buffers = BufferRing::new(8, 64).map_err(|e| (Step::BufferRing, errno(&e)))?;
    let (mut ring, setup) = make_ring(options).map_err(|e| (Step::Setup, errno(&e)))?;
    let parameters = ring.parameters();
    let features = [
        (parameters.is_feature_ext_arg(), "timeouts of io_uring_enter"),
        (parameters.is_feature_nodrop(), "completions that are never dropped"),
        (parameters.is_feature_fast_poll(), "polled sockets"),
    ];
    let has_no_iowait = parameters.is_feature_no_iowait();
    require(&features, Step::Feature)?;

    let mut known = Probe::new();
    ring.submitter().register_probe(&mut known).map_err(|e| (Step::Register, errno(&e)))?;
    let operations = [
        (known.is_supported(opcode::AsyncCancel::CODE), "cancel"),
        (known.is_supported(opcode::PollAdd::CODE), "poll"),
        (known.is_supported(opcode::Close::CODE), "close"),
        // Came together with buffer rings, multishot accept and cancel of all.
        (known.is_supported(opcode::Socket::CODE), "socket"),
    ];
    require(&operations, Step::Operation)?;

    // SAFETY: `buffers` is dropped after the ring, and no receive is submitted to it.
    unsafe { buffers.register(&ring.submitter()) }.map_err(|e| (Step::BufferRing, errno(&e)))?;

    round_trip(&mut ring).map_err(|e| (Step::Enter, errno(&e)))?;
    Ok(Capabilities {
        task_run: setup.task_run,
        sq_entries: setup.sq_entries,
        cq_entries: setup.cq_entries,
        has_no_iowait,
        // The operation came with the same kernel.
        has_fair_multishot: known.is_supported(opcode::FixedFdInstall::CODE),
    })
}

fn require(
    found: &[(bool, &'static str)],
    step: fn(&'static str) -> Step,
) -> Result<(), (Step, i32)> {
    match found.iter().find(|(is_there, _)| !is_there) {
        Some((_, name)) => Err((step(name), libc::EOPNOTSUPP)),
        None => Ok(()),
    }
}

/// Makes the best ring that the kernel has: without the flags that it does not know, and smaller
/// where locked memory is short.
fn make_ring(options: &NativeOptions) -> io::Result<(Ring, Setup)> {
    let mut last = io::Error::from_raw_os_error(libc::EINVAL);
    for task_run in TaskRun::ALL {
        let NativeOptions { sq_entries, cq_entries, .. } = *options;
        let mut setup = Some(Setup { task_run, sq_entries, cq_entries });
        while let Some(wish) = setup {
            match Ring::new(wish, &Rc::default()) {
                Ok(ring) => return Ok((ring, wish)),
                Err(error) => {
                    setup = match error.raw_os_error() {
                        Some(libc::EINVAL) => None,
                        Some(libc::ENOMEM) if wish.halved().is_some() => wish.halved(),
                        _ => return Err(error),
                    };
                    last = error;
                }
            }
        }
    }
    Err(last)
}

/// Setup may be allowed where enter is not.
fn round_trip(ring: &mut Ring) -> io::Result<()> {
    ring.push(Operation::nop());
    let mut batch = Vec::new();
    // Once may be cut short by a signal.
    for _ in 0..ROUND_TRIPS_MAX {
        ring.enter(Wait::For(Some(Duration::from_millis(100))))?;
        ring.reap(&mut batch, 1);
        if let Some(completion) = batch.first() {
            return match completion.result {
                0.. => Ok(()),
                result => Err(io::Error::from_raw_os_error(-result)),
            };
        }
    }
    Err(io::Error::from_raw_os_error(libc::ETIME))
}

impl Host {
    fn read() -> Self {
        let io_uring_disabled = fs::read_to_string("/proc/sys/kernel/io_uring_disabled")
            .ok()
            .and_then(|text| text.trim().parse().ok());
        Self {
            io_uring_disabled,
            locked_bytes_max: limit(libc::RLIMIT_MEMLOCK),
            open_files_max: limit(libc::RLIMIT_NOFILE),
            cores: thread::available_parallelism().map_or(1, usize::from),
        }
    }
}

/// The calling process's limit; `None` if there is none.
fn limit(resource: libc::__rlimit_resource_t) -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes the `rlimit` during the call.
    let answer = unsafe { libc::getrlimit(resource, &raw mut limit) };
    (answer == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&explain(self.step, self.errno, self.host))
    }
}

impl std::error::Error for Refusal {}

/// What, why, what to do: one line.
fn explain(step: Step, errno: i32, host: Host) -> String {
    let what = match step {
        Step::Setup => "io_uring_setup failed",
        Step::Register => "io_uring_register failed",
        Step::BufferRing => "registering a buffer ring failed",
        Step::Enter => "io_uring_enter failed",
        Step::Feature(name) => return too_old("feature", name),
        Step::Operation(name) => return too_old("operation", name),
    };
    let (why, remedy) = match (errno, host.io_uring_disabled) {
        (libc::EPERM, Some(level @ 1..)) if step == Step::Setup => {
            (format!("io_uring is switched off (kernel.io_uring_disabled={level})"), "set it to 0")
        }
        (libc::EPERM | libc::EACCES, _) => (
            "denied, most likely by the container's seccomp profile".to_owned(),
            "allow io_uring_setup, io_uring_enter and io_uring_register",
        ),
        (libc::ENOSYS, _) => (
            "kernel without io_uring, or filtered by a seccomp profile".to_owned(),
            "use Linux 6.1 or later and allow io_uring_setup, io_uring_enter, io_uring_register",
        ),
        (libc::ENOMEM, _) => (memory_reason(host), "raise ulimit -l or LimitMEMLOCK"),
        (libc::EMFILE | libc::ENFILE, _) => {
            let limit = host.open_files_max.map_or("none".to_owned(), |max| max.to_string());
            (format!("open files limit reached, it is {limit}"), "raise ulimit -n or LimitNOFILE")
        }
        (libc::EINVAL, _) => ("the kernel is too old for it".to_owned(), "use Linux 6.1 or later"),
        _ => (
            io::Error::from_raw_os_error(errno).to_string(),
            "report it with the output of uname -a",
        ),
    };
    let name = io::Error::from_raw_os_error(errno);
    let number = name.raw_os_error().unwrap_or(errno);
    format!("{what} (errno {number}): {why}; {remedy}")
}

fn too_old(what: &str, name: &str) -> String {
    format!("io_uring lacks the {what} \"{name}\": the kernel is too old; use Linux 6.1 or later")
}

fn memory_reason(host: Host) -> String {
    let needed = host.cores * RING_LOCKED_KIB;
    match host.locked_bytes_max {
        Some(max) => format!(
            "the locked memory limit of this user is {} KiB, needed are about {} cores x {} KiB \
             = {needed} KiB",
            max / 1024,
            host.cores,
            RING_LOCKED_KIB
        ),
        None => "the kernel is out of memory, since locked memory is not limited".to_owned(),
    }
}

/// Locked memory of a ring of the default size with its buffer ring.
const RING_LOCKED_KIB: usize = 145;

/// Waits of 100 ms for an operation that does nothing.
const ROUND_TRIPS_MAX: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: Host = Host {
        io_uring_disabled: Some(0),
        locked_bytes_max: Some(64 * 1024),
        open_files_max: Some(1024),
        cores: 4,
    };

    #[test]
    fn every_refusal_is_one_line_that_says_what_why_and_what_to_do() {
        let check = |step, errno, host: Host, expected: &[&str]| {
            let text = explain(step, errno, host);
            assert!(!text.contains('\n'), "{text}");
            assert!(text.contains("; "), "no remedy in {text:?}");
            for part in expected {
                assert!(text.contains(part), "{text:?} should contain {part:?}");
            }
        };
        for level in [1, 2] {
            let host = Host { io_uring_disabled: Some(level), ..HOST };
            let named = format!("kernel.io_uring_disabled={level}");
            check(Step::Setup, libc::EPERM, host, &["switched off", &named, "set it to 0"]);
            // Setup was allowed, so the switch is not what denies enter.
            check(Step::Enter, libc::EPERM, host, &["io_uring_enter", "seccomp"]);
        }
        let old = Host { io_uring_disabled: None, ..HOST };
        for host in [HOST, old] {
            check(Step::Setup, libc::EPERM, host, &["io_uring_setup", "seccomp", "allow"]);
        }
        check(Step::Register, libc::EPERM, HOST, &["io_uring_register", "seccomp"]);
        check(Step::Enter, libc::EACCES, HOST, &["io_uring_enter", "seccomp"]);
        check(Step::Setup, libc::ENOSYS, HOST, &["kernel without io_uring, or filtered"]);
        let numbers = ["64 KiB", "4 cores x 145 KiB = 580 KiB", "ulimit -l", "LimitMEMLOCK"];
        check(Step::Setup, libc::ENOMEM, HOST, &numbers);
        check(Step::BufferRing, libc::ENOMEM, HOST, &["buffer ring", "64 KiB"]);
        let unlimited = Host { locked_bytes_max: None, ..HOST };
        check(Step::Setup, libc::ENOMEM, unlimited, &["out of memory"]);
        check(Step::Setup, libc::EMFILE, HOST, &["open files", "1024", "ulimit -n"]);
        check(Step::BufferRing, libc::EINVAL, HOST, &["buffer ring", "too old", "6.1"]);
        check(Step::Feature("x"), 0, HOST, &["feature \"x\"", "6.1"]);
        check(Step::Operation("y"), 0, HOST, &["operation \"y\"", "6.1"]);
        check(Step::Enter, libc::EIO, HOST, &["errno 5", "Input/output error"]);
    }

    #[test]
    fn this_host_can_do_it() {
        let capabilities = probe(&NativeOptions::default()).unwrap();
        assert!(capabilities.sq_entries >= 256);
        assert!(capabilities.cq_entries >= capabilities.sq_entries);
    }
}
