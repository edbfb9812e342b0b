//! A user whose locked memory is limited (pitfall M1): from 6.14 on the kernel counts rings. In a
//! binary of its own, since limit and user are the process's: the test starts itself again, as
//! nobody if it may, and does the work there.

#![allow(clippy::unwrap_used, reason = "a test")]
#![allow(dead_code, reason = "harness and engines serve more tests than this one")]

#[path = "native_backend/engines.rs"]
mod engines;
#[path = "native_backend/harness.rs"]
mod harness;

use std::{
    env,
    fmt::Display,
    fs,
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    os::unix::{fs::MetadataExt, process::CommandExt},
    path::Path,
    process,
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use engines::{client_of, end_engine, round_trip, start_engine};
use harness::{PATIENCE, TestCore, Turn};
use ringcat_engine::{
    backend::{Backend, Command, Event},
    buffer::{Chunk, Chunks},
    engine::StartError,
    event_fd::EventFd,
    native::{
        backend::NativeBackend,
        listen::{self, Listener},
        options::NativeOptions,
        probe::{Capabilities, probe},
    },
};

/// Set in the process that is limited.
const IS_LIMITED: &str = "RINGCAT_TEST_IS_LIMITED";

/// A user that owns nothing: "nobody".
const NOBODY: u32 = 65534;

#[test]
fn short_locked_memory_makes_smaller_rings_or_is_named() {
    if env::var_os(IS_LIMITED).is_some() {
        limited();
        return;
    }
    // By this name, since nobody may not search the folders of the file's other name.
    let mut again = process::Command::new("/proc/self/exe");
    again.args(["--exact", "short_locked_memory_makes_smaller_rings_or_is_named", "--nocapture"]);
    again.env(IS_LIMITED, "1").current_dir("/");
    // Root's rings are not counted.
    if fs::metadata("/proc/self").unwrap().uid() == 0 {
        again.uid(NOBODY).gid(NOBODY);
    }
    let output = again.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

/// What the limited process does.
fn limited() {
    let options = NativeOptions::default();
    let all = eventually(|| probe(&options));
    assert_eq!(all.sq_entries, options.sq_entries, "the hard limit is too low for this test");

    // Not even the smallest ring.
    set_locked_max(0);
    let counts_rings = match probe(&options) {
        Ok(capabilities) => {
            assert_eq!(capabilities, all, "no limit, no smaller ring");
            false
        }
        Err(refusal) => {
            check_text(&refusal.to_string(), "0 KiB");
            check_text(&start_engine(1).err().unwrap().to_string(), "0 KiB");
            true
        }
    };

    // Room for less than a ring of the default size, which takes about 145 KiB.
    set_locked_max(100);
    let smaller =
        eventually(|| probe(&options).inspect_err(|e| check_text(&e.to_string(), "100 KiB")));
    assert!(smaller.sq_entries >= 256 && smaller.cq_entries == 4 * smaller.sq_entries);
    assert_eq!(smaller.sq_entries < all.sq_entries, counts_rings, "{smaller:?}");
    assert!(serve(&smaller, &options) <= smaller.sq_entries);
    // A core makes its ring smaller too: the probe may have found more room than there is now.
    let sq_entries = serve(&all, &options);
    assert_eq!(sq_entries < all.sq_entries, counts_rings, "{sq_entries} entries");
    eventually(|| start_and_end(1, "100 KiB"));

    // Too little for both cores, now or always. What did start is ended.
    set_locked_max(200);
    let started = start_and_end(2, "200 KiB");
    assert!(started.is_ok() || counts_rings);
}

/// Serves a client on a ring that is made after a probe found these capabilities.
fn serve(capabilities: &Capabilities, options: &NativeOptions) -> u32 {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let listeners = listen::bind(&[any], 1, 16).unwrap().remove(0);
    let mut client = TcpStream::connect(listeners[0].local_addr).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.write_all(b"echo").unwrap();
    let wake = Arc::new(EventFd::new().unwrap());
    let backend = eventually(|| {
        let copy =
            |listener: &Listener| Listener { fd: listener.fd.try_clone().unwrap(), ..*listener };
        let listeners = listeners.iter().map(copy).collect();
        NativeBackend::open(capabilities, options, listeners, Arc::clone(&wake))
            .inspect_err(|error| assert_eq!(error.kind(), ErrorKind::OutOfMemory))
    });
    let sq_entries = sq_entries_of_this_process();
    let (_inbox, receiver) = mpsc::channel();
    let on_event = |turn: &mut Turn<'_>, event: Event| match event {
        Event::Accepted { conn, .. } => turn.push(Command::Demand(conn, true)),
        Event::Received(conn, lease) => {
            turn.push(Command::Send(conn, Chunks::One(Chunk::Owned(lease.to_vec()))));
        }
        Event::Sent(..) => turn.push(Command::Stop),
        _ => {}
    };
    let io = backend.io();
    backend.run(&mut TestCore::new(on_event, io, receiver)).unwrap();
    let mut back = [0; 4];
    client.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"echo");
    sq_entries
}

/// Starts an engine, uses its cores, ends it; a refusal names the limit.
fn start_and_end(core_count: usize, limit: &str) -> Result<(), StartError> {
    let started = start_engine(core_count);
    let engine = started.inspect_err(|error| check_text(&error.to_string(), limit))?;
    for _ in 0..10 * core_count {
        round_trip(&client_of(&engine), b"a small ring is as good");
    }
    end_engine(engine);
    Ok(())
}

/// The size of the one ring that this process has, as the kernel tells it.
fn sq_entries_of_this_process() -> u32 {
    let is_ring = |path: &Path| {
        fs::read_link(path).is_ok_and(|target| target.as_os_str() == "anon_inode:[io_uring]")
    };
    let paths = fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    let rings: Vec<_> = paths.filter(|path| is_ring(path)).collect();
    assert_eq!(rings.len(), 1, "{rings:?}");
    let info = Path::new("/proc/self/fdinfo").join(rings[0].file_name().unwrap());
    let info = fs::read_to_string(info).unwrap();
    let mask = info.lines().find_map(|line| line.strip_prefix("SqMask:")).unwrap();
    1 + u32::from_str_radix(mask.trim().trim_start_matches("0x"), 16).unwrap()
}

/// A refusal says what is short, how much of it there is, and what to do.
fn check_text(text: &str, limit: &str) {
    for part in ["locked memory limit", limit, "ulimit -l", "LimitMEMLOCK"] {
        assert!(text.contains(part), "{text:?} should contain {part:?}");
    }
}

/// Tries again while it fails: the memory of rings that are closed is given back late (M2), and
/// the user may have others elsewhere. The pause lets the kernel's threads do that.
fn eventually<T, E: Display>(mut attempt: impl FnMut() -> Result<T, E>) -> T {
    let start = Instant::now();
    loop {
        match attempt() {
            Ok(done) => return done,
            Err(error) => assert!(start.elapsed() < PATIENCE, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Sets the limit that counts; the one up to which it may be raised stays.
fn set_locked_max(kib: u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes the `rlimit` during the call.
    let answer = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    assert_eq!(answer, 0);
    limit.rlim_cur = (kib * 1024).min(limit.rlim_max);
    // SAFETY: the kernel reads the `rlimit` during the call.
    let answer = unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) };
    assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
}
