//! What io_uring does to those who do not expect it, provoked on the real kernel. The numbers are
//! those of the design's list of pitfalls, all that were seen to be real:
//!
//! | pitfall | the test that fails of it |
//! |---|---|
//! | P1: no buffer ends a multishot receive, and arming it again fails until one came back | `echo::two_tiny_buffers_lose_nothing` |
//! | P2: a full completion queue ends multishot operations without an error | `echo::small_queues_lose_nothing`; the wake: `wakes_survive_full_queues` |
//! | P3: any last completion ends an operation, so it must be armed again | as P1 and P2 |
//! | P7: one enter brings 20 of several hundred completions | `a_burst_is_served_in_few_turns_and_delays_no_timer` |
//! | P8: an enter that only submits brings no completion | `completions_come_although_every_enter_submits` |
//! | P9: an enter that submitted does not report that its time is over | `deadlines_are_kept_although_every_enter_submits` |
//! | P11: a close alone ends no receive and sends no FIN | `connections::a_close_with_an_armed_receive_sends_a_fin_and_closed_is_last` |
//! | P12: an accept in flight keeps the port of a closed listener | `a_stopped_acceptor_frees_its_port_before_it_says_so`, `a_dropped_backend_frees_its_port` and the test below it, `connections::stop_closes_what_is_open` |
//! | P13: a dropped ring interrupts its thread's next blocking call | `starting_and_ending_engines_interrupts_nobody`, `rings_follow_one_another_on_a_thread` |
//! | P14: an accept that is armed again without descriptors spins | `accepting_pauses_without_descriptors_and_goes_on_after_a_close` in `native_file_limit.rs` |
//! | P15: the end of stream comes with the last data | `connections::the_end_of_stream_comes_after_the_data_and_the_answer_still_leaves` |
//! | P16: a reset shows after the data, and then in the send | `connections::a_reset_fails_the_receive_after_the_data` |
//! | P18: a ring serves the thread that made it only | the assertion on [`NativeBackend`] below, `two_engines_work_side_by_side` |
//! | P19: a child process would keep the ring | `no_child_process_gets_a_ring` |
//! | M1: rings count as locked memory of the user | `native_memory_limit.rs` |
//! | cancel under a stream that never pauses | `connections::a_braked_stream_loses_and_reorders_nothing` |
//! | setup may be allowed where enter is denied | `denied::a_filter_on_enter_is_found_although_setup_is_allowed` |

use std::{
    collections::HashSet,
    fs,
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    os::unix::net::UnixStream,
    path::Path,
    sync::{Arc, OnceLock, mpsc},
    time::{Duration, Instant},
};

use ringcat_engine::{
    backend::{Backend, Command, Event},
    buffer::{Chunk, Chunks},
    event_fd::EventFd,
    key::ConnKey,
    native::{
        backend::NativeBackend,
        listen,
        options::{NativeOptions, RecvMode},
    },
    timestamp::Timestamp,
};
use socket2::{Domain, Socket, Type};

use crate::{
    echo::echo,
    engines::{client_of, end_engine, round_trip, start_engine},
    harness::{PATIENCE, Server, TestCore, Turn, next, open, pattern},
};

fn modes() -> [NativeOptions; 2] {
    [RecvMode::Multi, RecvMode::Single]
        .map(|recv_mode| NativeOptions { recv_mode, ..NativeOptions::default() })
}

fn one(bytes: &[u8]) -> Chunks {
    Chunks::One(Chunk::Owned(bytes.to_vec()))
}

/// P2, P3: the poll of the wake is a multishot operation like others.
#[test]
fn wakes_survive_full_queues() {
    let (woken, wakes) = mpsc::channel();
    let options = NativeOptions {
        sq_entries: 2,
        cq_entries: 4,
        recv_bufs: Some(64),
        recv_buf_bytes: 128,
        ..NativeOptions::default()
    };
    let server = Server::start(options, move || {
        let mut echo = echo();
        move |turn: &mut Turn<'_>, event: Event| {
            if matches!(event, Event::Woken) {
                woken.send(()).unwrap();
            }
            echo(turn, event);
        }
    });
    let streams: Vec<_> = (0..40).map(|_| server.connect()).collect();
    std::thread::scope(|scope| {
        let talk = |stream| (0..5).for_each(|round| round_trip(stream, &pattern(4000, round)));
        let clients: Vec<_> =
            streams.iter().map(|stream| scope.spawn(move || talk(stream))).collect();
        while !clients.iter().all(|client| client.is_finished()) {
            server.wake.wake();
            // One event may stand for several wakes, but the last wake has one after it.
            next(&wakes);
            wakes.try_iter().for_each(drop);
        }
    });
    drop(streams);
    let counts = server.stop();
    assert!(counts.overflows > 0, "four places were enough: {counts:?}");
}

/// What a core saw of a burst.
#[derive(Debug, Default)]
struct Burst {
    /// The time of the present turn, by which turns are told apart.
    turn: Timestamp,
    turns: usize,
    in_turn: usize,
    turn_max: usize,
    served: usize,
    /// Served after the deadline and before the timeout.
    late: usize,
    is_timed_out: bool,
}

impl Burst {
    fn look_at(&mut self, turn: Timestamp) {
        if std::mem::replace(&mut self.turn, turn) != turn {
            self.turns += 1;
            self.in_turn = 0;
        }
    }
}

/// P7: all are ready at once, and a deadline passes while they are served.
fn check_burst(options: NativeOptions) {
    const CLIENTS: usize = 250;
    let (sender, accepted) = mpsc::channel();
    let (report, reported) = mpsc::channel();
    let (blocked, is_blocked) = mpsc::channel();
    let (gate, opened) = mpsc::channel::<()>();
    let server = Server::start(options, move || {
        let mut waiting = HashSet::new();
        let mut burst: Option<(Burst, Timestamp)> = None;
        move |turn: &mut Turn<'_>, event: Event| match (event, &mut burst) {
            (Event::Accepted { conn, .. }, _) => {
                waiting.insert(conn);
                turn.push(Command::Demand(conn, true));
                sender.send(()).unwrap();
            }
            (Event::Woken, None) if waiting.len() == CLIENTS => {
                blocked.send(()).unwrap();
                opened.recv_timeout(PATIENCE).unwrap();
                let limit = turn.io.now() + PATIENCE;
                while !waiting.iter().all(|conn| turn.io.unread(*conn)) {
                    assert!(turn.io.now() < limit, "the bytes do not arrive");
                }
                let deadline = turn.io.now() + Duration::from_millis(5);
                *turn.deadline = Some(deadline);
                burst = Some((Burst::default(), deadline));
            }
            (Event::Received(conn, _), Some((burst, deadline))) => {
                assert!(waiting.remove(&conn), "{conn:?} is served twice");
                burst.look_at(turn.now);
                burst.in_turn += 1;
                burst.turn_max = burst.turn_max.max(burst.in_turn);
                burst.served += 1;
                burst.late += usize::from(!burst.is_timed_out && turn.io.now() >= *deadline);
                // A handler has its work too: 50 ms for all.
                let busy_until = turn.io.now() + Duration::from_micros(200);
                while turn.io.now() < busy_until {}
            }
            (Event::Timeout, Some((burst, deadline))) => {
                // None of those that still wait may be taken for silent.
                assert!(waiting.iter().all(|conn| turn.io.unread(*conn)));
                burst.look_at(turn.now);
                if turn.now >= *deadline {
                    burst.is_timed_out = true;
                    *turn.deadline = None;
                }
                if burst.is_timed_out && waiting.is_empty() {
                    report.send(std::mem::take(burst)).unwrap();
                }
            }
            _ => {}
        }
    });
    let clients: Vec<_> = (0..CLIENTS).map(|_| server.connect()).collect();
    clients.iter().for_each(|_| next(&accepted));
    server.wake.wake();
    next(&is_blocked);
    clients.iter().for_each(|mut client| client.write_all(b"x").unwrap());
    gate.send(()).unwrap();
    let burst = next(&reported);
    assert_eq!(burst.served, CLIENTS);
    // At least 20 a turn, and some turns in which nothing is left.
    assert!(burst.turns <= CLIENTS / 20 + 20, "{burst:?}");
    // The turn in which the deadline passes and the one that sees it.
    assert!(burst.late <= 2 * burst.turn_max, "{burst:?}");
    server.stop();
}

#[test]
fn a_burst_is_served_in_few_turns_and_delays_no_timer() {
    modes().into_iter().for_each(check_burst);
}

/// P8: a core whose enters all submit something, waiting ones and others.
#[test]
fn completions_come_although_every_enter_submits() {
    for is_always_busy in [false, true] {
        check_submitting(is_always_busy);
    }
}

/// The first connection gets bytes without end, one a turn; the others get echoes.
fn check_submitting(is_always_busy: bool) {
    const PERIOD: Duration = Duration::from_millis(2);
    let (sender, accepted) = mpsc::channel();
    let (expired, expiries) = mpsc::channel();
    let server = Server::start(NativeOptions::default(), move || {
        let (mut first, mut echo) = (None, echo());
        move |turn: &mut Turn<'_>, event: Event| match event {
            Event::Accepted { conn, .. } if first.is_none() => {
                first = Some(conn);
                *turn.is_busy = is_always_busy;
                *turn.deadline = Some(turn.now + PERIOD);
                turn.push(Command::Send(conn, one(b"x")));
                sender.send(()).unwrap();
            }
            Event::Sent(conn, chunks) if first == Some(conn) => {
                turn.push(Command::Send(conn, chunks));
            }
            Event::Timeout if turn.deadline.is_some_and(|at| at <= turn.now) => {
                *turn.deadline = Some(turn.now + PERIOD);
                // Nobody listens any more at the end.
                let _ = expired.send(());
            }
            event => echo(turn, event),
        }
    });
    let mut sink = server.connect();
    next(&accepted);
    let reader = std::thread::spawn(move || {
        let mut bytes = vec![0; 65_536];
        while !matches!(sink.read(&mut bytes), Ok(0)) {}
    });
    let clients = [server.connect(), server.connect()];
    for round in 0..100 {
        clients.iter().for_each(|client| round_trip(client, &pattern(100, round)));
    }
    (0..20).for_each(|_| next(&expiries));
    server.stop();
    reader.join().unwrap();
}

/// P9: each wait arms an operation that does not complete, so only the clock ends it.
#[test]
fn deadlines_are_kept_although_every_enter_submits() {
    const WAITS: usize = 20;
    const WAIT: Duration = Duration::from_millis(5);
    for options in modes() {
        let (report, reported) = mpsc::channel();
        let (sender, accepted) = mpsc::channel();
        let server = Server::start(options, move || {
            let mut silent: Vec<ConnKey> = Vec::new();
            let (mut turns, mut start) = (0, None);
            move |turn: &mut Turn<'_>, event: Event| match event {
                Event::Accepted { conn, .. } => {
                    silent.push(conn);
                    sender.send(()).unwrap();
                }
                // All are accepted: the first wait begins.
                Event::Woken if silent.len() == WAITS => {
                    start = Some(turn.io.now());
                    *turn.deadline = Some(turn.now);
                }
                Event::Timeout if start.is_some() => {
                    turns += 1;
                    if turn.deadline.is_none_or(|at| turn.now < at) {
                        return;
                    }
                    *turn.deadline = None;
                    if let Some(conn) = silent.pop() {
                        turn.push(Command::Demand(conn, true));
                        *turn.deadline = Some(turn.io.now() + WAIT);
                    } else {
                        let took = turn.now.saturating_since(start.take().unwrap());
                        report.send((took, turns)).unwrap();
                    }
                }
                _ => {}
            }
        });
        let _clients: Vec<_> = (0..WAITS).map(|_| server.connect()).collect();
        (0..WAITS).for_each(|_| next(&accepted));
        server.wake.wake();
        let (took, turns): (Duration, usize) = next(&reported);
        let least = WAIT * WAITS as u32;
        assert!(took >= least && took < 20 * least, "{WAITS} waits of {WAIT:?} took {took:?}");
        assert!(turns <= 5 * WAITS, "{turns} turns for {WAITS} waits");
        server.stop();
    }
}

/// Binds without any of the options that forgive an address in use.
fn bind_alone(address: SocketAddr) -> io::Result<()> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.bind(&address.into())?;
    socket.listen(1)
}

/// P12: the accept operation is over before the listener is closed.
#[test]
fn a_stopped_acceptor_frees_its_port_before_it_says_so() {
    for _ in 0..20 {
        let address = Arc::new(OnceLock::new());
        let core_address = Arc::clone(&address);
        let (sender, bound) = mpsc::channel();
        let server = Server::start(NativeOptions::default(), move || {
            move |_: &mut Turn<'_>, event: Event| {
                if matches!(event, Event::AcceptStopped(..)) {
                    let address: &SocketAddr = core_address.get().unwrap();
                    sender.send(bind_alone(*address)).unwrap();
                }
            }
        });
        address.set(server.address).unwrap();
        server.command(Command::StopAccept);
        next(&bound).unwrap();
        server.stop();
    }
}

/// Runs a core on this thread that stops in its first turn, with the accept armed or about to be
/// cancelled. `before` sees the listener's address before the core starts.
fn run_one_turn<R>(is_pausing: bool, before: impl FnOnce(SocketAddr) -> R) -> (SocketAddr, R) {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let listeners = listen::bind(&[any], 1, 16).unwrap().remove(0);
    let address = listeners[0].local_addr;
    let before = before(address);
    let wake = Arc::new(EventFd::new().unwrap());
    // Without a client the first turn needs another reason to come.
    wake.wake();
    let backend = open(&NativeOptions::default(), listeners, wake);
    let (_inbox, receiver) = mpsc::channel();
    let on_event = |turn: &mut Turn<'_>, event: Event| {
        if matches!(event, Event::Timeout) {
            if is_pausing {
                turn.push(Command::PauseAccept);
            }
            turn.push(Command::Stop);
        }
    };
    let io = backend.io();
    backend.run(&mut TestCore::new(on_event, io, receiver)).unwrap();
    (address, before)
}

/// P12: the end of a backend waits for its accept operations.
#[test]
fn a_dropped_backend_frees_its_port() {
    for round in 0..20 {
        let (address, ()) = run_one_turn(round % 2 == 0, |_| ());
        let refused = TcpStream::connect(address).expect_err("nobody is there to accept");
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        bind_alone(address).unwrap();
    }
}

/// P12: nor does a client that came just before wait for ever.
#[test]
fn a_dropped_backend_ends_the_connections_of_its_backlog() {
    for round in 0..20 {
        let connect = |address| {
            let client = TcpStream::connect(address).unwrap();
            client.set_read_timeout(Some(PATIENCE)).unwrap();
            client
        };
        let (address, clients) =
            run_one_turn(round % 2 == 0, |address| [(); 3].map(|()| connect(address)));
        for mut client in clients {
            match client.read(&mut [0]) {
                Ok(count) => assert_eq!(count, 0),
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::ConnectionReset),
            }
        }
        TcpStream::connect(address).unwrap_err();
    }
}

/// Makes a call that waits for longer than nothing; an interruption would show.
fn wait_in_a_call() {
    let (ours, _theirs) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
    let error = (&ours).read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}");
}

/// P13: whoever starts, ends and joins an engine is the application.
#[test]
fn starting_and_ending_engines_interrupts_nobody() {
    for _ in 0..5 {
        let engine = start_engine(2).unwrap();
        wait_in_a_call();
        round_trip(&client_of(&engine), b"served");
        end_engine(engine);
        wait_in_a_call();
    }
}

/// P13: the kernel takes a ring apart while the next one waits on the same thread.
#[test]
fn rings_follow_one_another_on_a_thread() {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    for _ in 0..20 {
        let listeners = listen::bind(&[any], 1, 16).unwrap().remove(0);
        let mut client = TcpStream::connect(listeners[0].local_addr).unwrap();
        client.write_all(b"x").unwrap();
        let wake = Arc::new(EventFd::new().unwrap());
        let backend = open(&NativeOptions::default(), listeners, wake);
        let (_inbox, receiver) = mpsc::channel();
        let mut is_served = false;
        let on_event = |turn: &mut Turn<'_>, event: Event| match event {
            Event::Accepted { conn, .. } => turn.push(Command::Demand(conn, true)),
            Event::Received(..) => {
                is_served = true;
                *turn.deadline = Some(turn.now + Duration::from_millis(20));
            }
            Event::Timeout if turn.deadline.is_some_and(|at| at <= turn.now) => {
                turn.push(Command::Stop);
            }
            _ => {}
        };
        let io = backend.io();
        backend.run(&mut TestCore::new(on_event, io, receiver)).unwrap();
        assert!(is_served);
    }
}

/// P18: a type that is `Send` would have both implementations, and the call would not compile.
trait AmbiguousIfSend<Which> {
    fn is_not_send() {}
}

impl<T: ?Sized> AmbiguousIfSend<()> for T {}

struct IfSend;

impl<T: ?Sized + Send> AmbiguousIfSend<IfSend> for T {}

const _: fn() = <NativeBackend as AmbiguousIfSend<_>>::is_not_send;

/// P18: each core makes and uses a ring of its own.
#[test]
fn two_engines_work_side_by_side() {
    let engines = [start_engine(1).unwrap(), start_engine(2).unwrap()];
    let clients: Vec<_> = engines.iter().cycle().take(16).map(client_of).collect();
    std::thread::scope(|scope| {
        for (client, seed) in clients.iter().zip(0..) {
            scope.spawn(move || {
                (0..50).for_each(|round| round_trip(client, &pattern(1000, 50 * seed + round)));
            });
        }
    });
    drop(clients);
    let [first, second] = engines;
    end_engine(first);
    round_trip(&client_of(&second), b"not disturbed");
    end_engine(second);
}

/// P19: the descriptors are closed on exec, and a forked child gets no memory that the kernel
/// shares with us.
#[test]
fn no_child_process_gets_a_ring() {
    let server = Server::start(NativeOptions::default(), echo);
    round_trip(&server.connect(), b"the core is up");
    let mut kinds = HashSet::new();
    for entry in fs::read_dir("/proc/self/fd").unwrap() {
        let entry = entry.unwrap();
        // Other tests open and close meanwhile.
        let Ok(target) = fs::read_link(entry.path()) else { continue };
        let target = target.to_string_lossy().into_owned();
        if !target.starts_with("anon_inode:") {
            continue;
        }
        let info = Path::new("/proc/self/fdinfo").join(entry.file_name());
        let Ok(info) = fs::read_to_string(info) else { continue };
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap();
        let flags = i32::from_str_radix(flags.trim(), 8).unwrap();
        assert_ne!(flags & libc::O_CLOEXEC, 0, "a child would inherit {target}");
        kinds.insert(target);
    }
    for kind in ["anon_inode:[io_uring]", "anon_inode:[eventfd]"] {
        assert!(kinds.contains(kind), "{kind} is not among {kinds:?}");
    }

    // Other tests may be between the mapping of a ring and what is asked of it; ours is not.
    let start = Instant::now();
    while let Some(mapping) = ring_mapping_of_children() {
        assert!(start.elapsed() < PATIENCE, "a child would get {mapping}");
        std::thread::yield_now();
    }
    server.stop();
}

/// A mapping of a ring that a forked child would share.
fn ring_mapping_of_children() -> Option<String> {
    let (mut name, mut rings, mut found) = ("", 0, None);
    let mappings = fs::read_to_string("/proc/self/smaps").unwrap();
    // Each mapping has a line with its name, and lines with attributes that end with its flags.
    for line in mappings.lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            if name.ends_with("anon_inode:[io_uring]") {
                rings += 1;
                // Do not copy on fork.
                if !flags.split(' ').any(|flag| flag == "dc") {
                    found = Some(name.to_owned());
                }
            }
        } else if !line.split(' ').next().unwrap_or_default().ends_with(':') {
            name = line;
        }
    }
    assert!(rings > 0, "no ring is mapped");
    found
}
