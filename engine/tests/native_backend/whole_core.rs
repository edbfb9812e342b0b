//! What concerns a whole core: wakes, idleness, accepting, connections that move, files, connects.

use std::{
    io::{Read, Seek, SeekFrom, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, mpsc},
    time::Duration,
};

use ringcat_engine::{
    backend::{Backend, Command, ConnectRequest, Errno, Event, FileDirection, FileRequest, Stream},
    buffer::{Chunk, Chunks},
    event_fd::EventFd,
    key::{ConnKey, ListenerId},
    native::options::NativeOptions,
};

use crate::{
    echo::echo,
    harness::{Server, TestCore, Turn, next, open, pattern},
};

#[test]
fn another_thread_wakes_a_waiting_core() {
    let (woken, wakes) = mpsc::channel();
    let server = Server::start(NativeOptions::default(), move || {
        move |_: &mut Turn<'_>, event: Event| {
            if matches!(event, Event::Woken) {
                woken.send(()).unwrap();
            }
        }
    });
    for _ in 0..100 {
        server.wake.wake();
        next(&wakes);
    }
    assert!(server.stop().wakes >= 100);
}

/// CPU time of the calling thread.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes the `timespec` during the call.
    let answer = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(answer, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn an_idle_core_uses_next_to_no_cpu() {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let listeners = ringcat_engine::native::listen::bind(&[any], 1, 16).unwrap().remove(0);
    let client = TcpStream::connect(listeners[0].local_addr).unwrap();
    let backend = open(&NativeOptions::default(), listeners, Arc::new(EventFd::new().unwrap()));
    let stats = backend.stats();
    let (_inbox, receiver) = mpsc::channel();
    let mut start = None;
    let mut used = Duration::ZERO;
    let on_event = |turn: &mut Turn<'_>, event: Event| match (event, start) {
        (Event::Accepted { conn, .. }, _) => turn.push(Command::Demand(conn, true)),
        (Event::Timeout, None) => {
            *turn.deadline = Some(turn.now + Duration::from_millis(300));
            start = Some((turn.now, cpu_time()));
        }
        (Event::Timeout, Some((then, cpu))) if turn.now >= then + Duration::from_millis(300) => {
            used = cpu_time() - cpu;
            turn.push(Command::Stop);
        }
        _ => {}
    };
    let io = backend.io();
    backend.run(&mut TestCore::new(on_event, io, receiver)).unwrap();
    assert!(used < Duration::from_millis(30), "{used:?} of CPU in 300 ms");
    assert!(stats.enters.get() < 50, "{} enters", stats.enters.get());
    drop(client);
}

/// What a core says of its acceptors.
#[derive(Debug, PartialEq, Eq)]
enum Door {
    Accepted(ConnKey),
    Stopped(ListenerId, Option<Errno>),
}

fn door(options: NativeOptions) -> (Server, mpsc::Receiver<Door>) {
    let (sender, receiver) = mpsc::channel();
    let server = Server::start(options, move || {
        move |_: &mut Turn<'_>, event: Event| match event {
            Event::Accepted { conn, .. } => sender.send(Door::Accepted(conn)).unwrap(),
            Event::AcceptStopped(id, errno) => sender.send(Door::Stopped(id, errno)).unwrap(),
            _ => {}
        }
    });
    (server, receiver)
}

#[test]
fn a_stopped_acceptor_serves_its_backlog_first() {
    for accept_burst in [256, 2] {
        let (server, events) = door(NativeOptions { accept_burst, ..NativeOptions::default() });
        server.command(Command::PauseAccept);
        let clients: Vec<_> = (0..9).map(|_| server.connect()).collect();
        server.command(Command::StopAccept);
        for _ in &clients {
            assert!(matches!(next(&events), Door::Accepted(_)));
        }
        assert_eq!(next(&events), Door::Stopped(ListenerId(0), None));
        TcpStream::connect(server.address).unwrap_err();
        server.stop();
    }
}

#[test]
fn a_paused_acceptor_leaves_clients_in_the_backlog() {
    let (server, events) = door(NativeOptions::default());
    for _ in 0..20 {
        server.command(Command::PauseAccept);
        let _client = server.connect();
        // Commands run in order, so an accept before the second pause would be seen.
        server.command(Command::PauseAccept);
        server.command(Command::ResumeAccept);
        assert!(matches!(next(&events), Door::Accepted(_)));
    }
    server.stop();
}

#[test]
fn a_full_core_accepts_again_when_a_connection_closes() {
    let (server, events) = door(NativeOptions { connections_max: 2, ..NativeOptions::default() });
    let _clients: Vec<_> = (0..4).map(|_| server.connect()).collect();
    let mut open = Vec::new();
    for _ in 0..2 {
        let Door::Accepted(conn) = next(&events) else { panic!("stopped") };
        open.push(conn);
    }
    for _ in 0..2 {
        events.try_recv().expect_err("two places only");
        server.command(Command::Close(open.remove(0)));
        let Door::Accepted(conn) = next(&events) else { panic!("stopped") };
        open.push(conn);
    }
    server.stop();
}

#[test]
fn a_connection_moves_to_another_core() {
    let (sender, moved) = mpsc::channel::<Stream>();
    let from = Server::start(NativeOptions::default(), move || {
        move |turn: &mut Turn<'_>, event: Event| match event {
            Event::Accepted { conn, .. } => turn.push(Command::Handoff(conn)),
            Event::Detached(_, stream) => sender.send(stream).unwrap(),
            Event::Closed(conn) => panic!("{conn:?} left this core"),
            _ => {}
        }
    });
    let to = Server::start(NativeOptions::default(), echo);
    let mut client = from.connect();
    client.write_all(b"carried along").unwrap();
    let stream = next(&moved);
    assert_eq!(stream.peer, client.local_addr().unwrap());
    to.command(Command::Adopt(stream));
    let mut back = [0; 13];
    client.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"carried along");
    from.stop();
    client.write_all(b"x").unwrap();
    client.read_exact(&mut back[..1]).unwrap();
    to.stop();
}

#[test]
fn outgoing_connections() {
    let (sender, events) = mpsc::channel();
    let server = Server::start(NativeOptions::default(), move || {
        move |turn: &mut Turn<'_>, event: Event| match event {
            Event::Connected { conn, token } => {
                let hello = Chunks::One(Chunk::Owned(b"hello".to_vec()));
                turn.push(Command::Send(conn, hello));
                turn.push(Command::ShutdownWrite(conn));
                sender.send((token, None)).unwrap();
            }
            Event::ConnectFailed { token, errno } => sender.send((token, Some(errno))).unwrap(),
            _ => {}
        }
    });
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    server.command(Command::Connect(ConnectRequest { token: 7, address }));
    assert_eq!(next(&events), (7, None));
    let mut bytes = Vec::new();
    listener.accept().unwrap().0.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes, b"hello");

    drop(listener);
    server.command(Command::Connect(ConnectRequest { token: 8, address }));
    assert_eq!(next(&events), (8, Some(Errno(libc::ECONNREFUSED))));
    let address = SocketAddr::from(([255, 255, 255, 255], 9));
    server.command(Command::Connect(ConnectRequest { token: 9, address }));
    let (token, errno) = next(&events);
    assert_eq!((token, errno.is_some()), (9, true));
    server.stop();
}

#[test]
fn files_are_read_and_written_at_their_offsets() {
    let (sender, events) = mpsc::channel();
    let server = Server::start(NativeOptions::default(), move || {
        move |_: &mut Turn<'_>, event: Event| {
            if let Event::FileDone { token, result, buffer } = event {
                sender.send((token, result, buffer)).unwrap();
            }
        }
    });
    let mut file = anonymous_file();
    let request = |token, offset, direction, buffer| {
        let fd = file.try_clone().unwrap().into();
        server.command(Command::File(FileRequest { token, fd, offset, direction, buffer }));
        next(&events)
    };
    let bytes = pattern(100_000, 6);
    let (token, result, buffer) = request(1, 5, FileDirection::Write, bytes.clone());
    assert_eq!((token, result), (1, Ok(bytes.len())));
    assert!(buffer == bytes, "the buffer comes back");
    let (_, result, buffer) = request(2, 5 + 1000, FileDirection::Read, Vec::with_capacity(77));
    assert_eq!(result, Ok(buffer.len()));
    assert!(buffer.len() >= 77 && buffer == bytes[1000..1000 + buffer.len()]);
    let (_, result, buffer) = request(3, 1 << 40, FileDirection::Read, vec![1; 10]);
    assert_eq!((result, buffer.len()), (Ok(0), 0), "behind the end");
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut start = [1; 6];
    file.read_exact(&mut start).unwrap();
    assert_eq!(start, [0, 0, 0, 0, 0, bytes[0]]);

    let fd = std::fs::File::open("/dev/null").unwrap().into();
    let (offset, direction, buffer) = (0, FileDirection::Write, vec![1]);
    server.command(Command::File(FileRequest { token: 4, fd, offset, direction, buffer }));
    assert_eq!(next(&events).1, Err(Errno(libc::EBADF)), "open for reading only");
    server.stop();
}

/// A file in memory.
fn anonymous_file() -> std::fs::File {
    use std::os::fd::FromRawFd;
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(c"ringcat-test".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(fd >= 0);
    // SAFETY: the kernel just made this descriptor.
    unsafe { std::fs::File::from_raw_fd(fd) }
}
