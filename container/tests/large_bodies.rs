//! A GiB up and a GiB down through listeners of one core, in bounded memory, and a reader that is
//! slow. A program of its own, one test at a time: the memory that it measures is that of the whole
//! process.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test with threads and clocks"
)]

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use ringcat::{
    AsyncContext, Connector, Context, ReadListener, Request, Response, Result, RunningServer,
    Server, ServiceMode, Servlet, WriteListener,
};

const GIBIBYTE: u64 = 1 << 30;
const PIECE: usize = 64 * 1024;

/// What the process may grow by while a body goes through it.
const GROWTH_MAX: u64 = 32 << 20;

/// Longer than any step of a healthy server takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Tests of this program run one after the other.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The memory of the process that is in RAM, in bytes.
fn resident_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    let kibibytes: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kibibytes * 1024
}

/// Watches the memory of the process until it is told to stop; answers the most that it saw.
fn watch(is_over: &Arc<AtomicU64>) -> thread::JoinHandle<u64> {
    let is_over = Arc::clone(is_over);
    thread::spawn(move || {
        let mut most = 0;
        while is_over.load(Ordering::Relaxed) == 0 {
            most = most.max(resident_bytes());
            thread::sleep(Duration::from_millis(2));
        }
        most
    })
}

struct Streaming<F>(F);

impl<F: Fn(&mut Request, &mut Response) -> Result<()> + Send + Sync + 'static> Servlet
    for Streaming<F>
{
    fn service(&self, req: &mut Request, res: &mut Response) -> Result<()> {
        (self.0)(req, res)
    }

    fn is_async_supported(&self) -> bool {
        true
    }

    fn mode(&self) -> ServiceMode {
        ServiceMode::Streaming
    }
}

/// Counts what comes up.
struct Counting {
    context: AsyncContext,
    bytes: u64,
    buffer: Vec<u8>,
}

impl ReadListener for Counting {
    fn on_data_available(&mut self, req: &mut Request, _res: &mut Response) -> Result<()> {
        while req.is_ready() && !req.is_finished() {
            self.bytes += req.read(&mut self.buffer)? as u64;
        }
        Ok(())
    }

    fn on_all_data_read(&mut self, _req: &mut Request, res: &mut Response) -> Result<()> {
        res.write(self.bytes.to_string())?;
        self.context.complete()
    }
}

/// Writes so many bytes, as the client takes them.
struct Pouring {
    context: AsyncContext,
    left: u64,
    written: Arc<AtomicU64>,
}

impl WriteListener for Pouring {
    fn on_write_possible(&mut self, _req: &mut Request, res: &mut Response) -> Result<()> {
        let piece = [b'x'; PIECE];
        while self.left > 0 && res.is_ready() {
            let count = self.left.min(PIECE as u64);
            res.write(&piece[..usize::try_from(count).unwrap()])?;
            self.left -= count;
            self.written.fetch_add(count, Ordering::Relaxed);
        }
        if self.left == 0 { self.context.complete() } else { Ok(()) }
    }
}

fn start(written: &Arc<AtomicU64>) -> RunningServer {
    let written = Arc::clone(written);
    let up = Streaming(|req: &mut Request, _res: &mut Response| {
        let context = req.start_async()?;
        context.set_timeout(Duration::ZERO)?;
        req.set_read_listener(Counting { context, bytes: 0, buffer: vec![0; PIECE] })
    });
    let down = Streaming(move |req: &mut Request, res: &mut Response| {
        let context = req.start_async()?;
        context.set_timeout(Duration::ZERO)?;
        res.set_content_length(GIBIBYTE);
        res.set_write_listener(Pouring { context, left: GIBIBYTE, written: Arc::clone(&written) })
    });
    let context = Context::new("").servlet("/up", up).servlet("/down", down);
    let connector = Connector::http("127.0.0.1:0");
    Server::builder().connector(connector).cores(1).context(context).start().unwrap()
}

fn connect(server: &RunningServer) -> TcpStream {
    let client = TcpStream::connect(server.local_addr()).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.set_write_timeout(Some(PATIENCE)).unwrap();
    client
}

/// Reads a head; answers what came behind it.
fn read_head(client: &mut TcpStream) -> Vec<u8> {
    let mut head = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let count = client.read(&mut piece).unwrap();
        assert!(count > 0, "the server closed the connection");
        head.extend_from_slice(&piece[..count]);
        if let Some(end) = head.windows(4).position(|four| four == b"\r\n\r\n") {
            assert!(head.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&head));
            return head.split_off(end + 4);
        }
    }
}

#[test]
fn a_gibibyte_goes_up_and_down_in_bounded_memory() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let server = start(&Arc::default());
    let mut client = connect(&server);
    let piece = vec![b'u'; PIECE];
    let before = resident_bytes();
    let is_over = Arc::new(AtomicU64::new(0));
    let watcher = watch(&is_over);
    let head =
        format!("POST /up HTTP/1.1\r\nHost: localhost\r\nContent-Length: {GIBIBYTE}\r\n\r\n");
    client.write_all(head.as_bytes()).unwrap();
    for _ in 0..GIBIBYTE / PIECE as u64 {
        client.write_all(&piece).unwrap();
    }
    let mut answer = read_head(&mut client);
    let expected = GIBIBYTE.to_string();
    while answer.len() < expected.len() {
        let mut rest = [0; 64];
        let count = client.read(&mut rest).unwrap();
        answer.extend_from_slice(&rest[..count]);
    }
    assert_eq!(answer, expected.as_bytes());
    client.write_all(b"GET /down HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut received = read_head(&mut client).len() as u64;
    let mut buffer = vec![0; PIECE];
    while received < GIBIBYTE {
        let count = client.read(&mut buffer).unwrap();
        assert!(count > 0, "the answer was cut after {received} bytes");
        received += count as u64;
    }
    assert_eq!(received, GIBIBYTE);
    is_over.store(1, Ordering::Relaxed);
    let growth = watcher.join().unwrap().saturating_sub(before);
    assert!(growth < GROWTH_MAX, "the process grew by {growth} bytes");
    server.stop();
}

#[test]
fn a_slow_reader_holds_one_piece_and_what_the_kernel_takes() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let written = Arc::new(AtomicU64::new(0));
    let server = start(&written);
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    // So that the kernel's share is small, and the rest would be the server's.
    socket.set_recv_buffer_size(16 * 1024).unwrap();
    socket.connect(&server.local_addr().into()).unwrap();
    let mut client = TcpStream::from(socket);
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.write_all(b"GET /down HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut received = read_head(&mut client).len() as u64;
    let before = resident_bytes();
    let mut piece = [0; 1024];
    // 10 KiB a second, for three of them.
    for _ in 0..30 {
        received += client.read(&mut piece).unwrap() as u64;
        thread::sleep(Duration::from_millis(100));
    }
    let growth = resident_bytes().saturating_sub(before);
    assert!(growth < 4 << 20, "the process grew by {growth} bytes");
    // The listener is called when all that it wrote has left, so nothing gathers behind it.
    let settled = written.load(Ordering::Relaxed);
    thread::sleep(Duration::from_millis(300));
    let later = written.load(Ordering::Relaxed);
    assert!(later - settled <= PIECE as u64, "{settled} bytes were written, then {later}");
    assert!(settled - received < 16 << 20, "{settled} bytes written, {received} taken");
    drop(client);
    server.stop();
}
