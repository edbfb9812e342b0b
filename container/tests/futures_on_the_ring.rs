//! Futures of `async fn` servlets on the ring of the kernel: ten thousand that wait, each for its
//! own timer or another server, cost no thread and no time; and wherever a future waits when its
//! client resets the connection or its round times out, it leaves nothing behind.
//!
//! The server is a process of its own, this program again, so that its descriptors, threads and
//! time are its own, and both stay below the usual limit of descriptors.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test with processes, threads and clocks"
)]

use std::{
    future::Future,
    io::{BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    pin::{Pin, pin},
    process::{Child, ChildStdout, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context as TaskContext, Poll, Wake, Waker},
    thread,
    time::{Duration, Instant},
};

use ringcat::{
    AsyncEvent, AsyncListener, Connector, Context, Error, Methods, Request, Response, Result,
    Server, net, time,
};
use socket2::{Domain, SockRef, Socket, Type};

/// Half of them wait for a timer, half for another server.
const WAITING: usize = 10_000;

/// How long those wait that wait for a timer: longer than all take to arrive.
const TIMER: Duration = Duration::from_secs(12);

/// For anything that comes soon.
const PATIENCE: Duration = Duration::from_secs(30);

/// Where the server of this program connects to.
const UPSTREAM: &str = "RINGCAT_TEST_UPSTREAM";

fn main() {
    if let Ok(upstream) = std::env::var(UPSTREAM) {
        serve(upstream.parse().unwrap());
        return;
    }
    let test = |name: &str, body: fn()| {
        body();
        println!("test {name} ... ok");
    };
    test("wherever_a_future_waits_it_leaves_nothing", wherever_a_future_waits_it_leaves_nothing);
    test("ten_thousand_futures_wait_for_nothing", ten_thousand_futures_wait_for_nothing);
    println!("\ntest result: ok. 2 passed; 0 failed");
}

fn wherever_a_future_waits_it_leaves_nothing() {
    let upstream = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let server = ServerProcess::start(upstream.local_addr().unwrap());
    let fds_before = server.stats().fds;
    let mut completed = 0;
    for stage in ["connect", "write", "read", "body", "answer", "sleep"] {
        let full = (stage == "connect").then(FullListener::new);
        for is_reset in [true, false] {
            let timeout = if is_reset { 0 } else { 300 };
            let port = full.as_ref().map_or(0, |full| full.address.port());
            let mut client = server.connect();
            let head = format!("POST /stage/{stage}/{timeout}/{port} HTTP/1.1\r\nHost: a\r\n");
            client.write_all(head.as_bytes()).unwrap();
            client.write_all(b"Content-Length: 1000\r\n\r\nhalf of it").unwrap();
            let other = full.is_none().then(|| upstream.accept().unwrap().0);
            completed += 1;
            if is_reset {
                server.await_stats("the future waits", |stats| stats.begun == completed);
                // A moment more, so that it waits where it should.
                thread::sleep(Duration::from_millis(50));
                SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
                drop(client);
            } else if stage == "answer" {
                // Its answer has begun, and can only be cut.
                server.await_stats("it timed out", |stats| stats.completed == completed);
                drop(client);
            } else {
                let mut answer = String::new();
                client.set_read_timeout(Some(PATIENCE)).unwrap();
                // The rest of the content is on its way no more; the server may reset for that.
                drop(client.read_to_string(&mut answer));
                assert!(answer.starts_with("HTTP/1.1 500"), "{stage}: {answer}");
            }
            server.await_stats("on_complete, once", |stats| stats.completed == completed);
            if let Some(mut other) = other {
                other.set_read_timeout(Some(PATIENCE)).unwrap();
                // The end, or a reset, whatever was written before.
                let mut rest = vec![0; 1 << 20];
                while let Ok(1..) = other.read(&mut rest) {}
            }
            let stats = server.await_stats("the descriptors are back", |stats| {
                // Those of the connection that asks for the numbers.
                stats.fds <= fds_before
            });
            assert_eq!((stats.completed, stats.dropped), (completed, completed), "{stage}");
        }
    }
    server.stop();
}

fn ten_thousand_futures_wait_for_nothing() {
    let upstream = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let server = ServerProcess::start(upstream.local_addr().unwrap());
    let go = Arc::new(AtomicBool::new(false));
    let other = thread::spawn({
        let go = Arc::clone(&go);
        move || answer_when_told(&upstream, WAITING / 2, &go)
    });
    let before = server.stats();
    let threads_before = server.threads();
    let mut clients: Vec<TcpStream> = (0..WAITING)
        .map(|number| {
            let mut client = server.connect();
            let path = if number % 2 == 0 { "timer" } else { "other" };
            let request = format!("GET /{path}/{number} HTTP/1.1\r\nHost: a\r\n\r\n");
            client.write_all(request.as_bytes()).unwrap();
            client
        })
        .collect();
    let waiting = before.begun + WAITING as u64;
    server.await_stats("all have begun", |stats| stats.begun == waiting);
    // The last ones still connect, and each client is looked for once, a quarter of a second after
    // its request was parked: of some seconds the quietest counts.
    let seconds = (0..3).map(|_| {
        let ticks = server.cpu_ticks();
        thread::sleep(Duration::from_secs(1));
        server.cpu_ticks() - ticks
    });
    let idle_ticks = seconds.min().unwrap();
    assert_eq!(server.threads(), threads_before, "a thread was made");
    // Of a hundred.
    assert!(idle_ticks <= 3, "{idle_ticks} ticks of CPU in a second of nothing");
    go.store(true, Ordering::Release);
    for (number, client) in clients.iter_mut().enumerate() {
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut answer = vec![0; 400];
        let count = client.read(&mut answer).unwrap();
        let answer = String::from_utf8_lossy(&answer[..count]);
        assert!(answer.starts_with("HTTP/1.1 200"), "{number}: {answer}");
        assert!(answer.ends_with(&format!("\r\n\r\n{number}")), "{number}: {answer}");
    }
    let stats = server.stats();
    assert_eq!(stats.over_polled, 0, "futures were polled more often than woken, and once");
    assert!(stats.polls <= stats.wakes + stats.begun, "{stats:?}");
    println!(
        "{WAITING} futures: {} polls, {} wakes, {idle_ticks} ticks of CPU in a second of waiting",
        stats.polls, stats.wakes
    );
    drop(clients);
    other.join().unwrap();
    server.stop();
}

/// Another server: takes `count` questions, and answers all when told.
fn answer_when_told(listener: &TcpListener, count: usize, go: &AtomicBool) {
    let mut questions = Vec::with_capacity(count);
    for _ in 0..count {
        let (mut socket, _) = listener.accept().unwrap();
        let mut question = [0; 8];
        socket.read_exact(&mut question).unwrap();
        questions.push((socket, question));
    }
    while !go.load(Ordering::Acquire) {
        thread::sleep(Duration::from_millis(5));
    }
    for (socket, question) in &mut questions {
        socket.write_all(question).unwrap();
    }
    // The ends come from the server, when its futures are over.
    for (socket, _) in &mut questions {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(socket.read(&mut [0; 8]).unwrap(), 0);
    }
}

/// A listener whose queue is full: a connect to it waits.
struct FullListener {
    address: SocketAddr,
    _socket: Socket,
    _queued: Vec<Socket>,
}

impl FullListener {
    fn new() -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
        socket.listen(0).unwrap();
        let address = socket.local_addr().unwrap();
        let mut queued = Vec::new();
        loop {
            let client = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            let is_connected = client.connect_timeout(&address, Duration::from_millis(200)).is_ok();
            if !is_connected {
                break;
            }
            queued.push(client);
            assert!(queued.len() < 10, "a queue for none takes all");
        }
        let address = address.as_socket().unwrap();
        Self { address, _socket: socket, _queued: queued }
    }
}

/// The server, in a process of its own.
struct ServerProcess {
    child: Child,
    _stdout: BufReader<ChildStdout>,
    address: SocketAddr,
}

/// What the server says of itself.
#[derive(Debug, Default)]
struct Stats {
    begun: u64,
    completed: u64,
    dropped: u64,
    polls: u64,
    wakes: u64,
    over_polled: u64,
    fds: u64,
}

impl ServerProcess {
    fn start(upstream: SocketAddr) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .env(UPSTREAM, upstream.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let address = line.trim().parse().unwrap();
        Self { child, _stdout: stdout, address }
    }

    fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).unwrap()
    }

    fn stats(&self) -> Stats {
        let mut client = self.connect();
        client.write_all(b"GET /stats HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        let (_, numbers) = answer.split_once("\r\n\r\n").unwrap();
        let numbers: Vec<u64> = numbers.split(' ').map(|number| number.parse().unwrap()).collect();
        let [begun, completed, dropped, polls, wakes, over_polled, fds] =
            numbers.try_into().unwrap();
        Stats { begun, completed, dropped, polls, wakes, over_polled, fds }
    }

    fn await_stats(&self, what: &str, is_so: impl Fn(&Stats) -> bool) -> Stats {
        let begun = Instant::now();
        loop {
            let stats = self.stats();
            if is_so(&stats) {
                return stats;
            }
            assert!(begun.elapsed() < PATIENCE, "waited in vain: {what}: {stats:?}");
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn threads(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap().count()
    }

    /// Time on CPUs, in hundredths of a second.
    fn cpu_ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let (_, fields) = stat.rsplit_once(") ").unwrap();
        let fields: Vec<&str> = fields.split(' ').collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    }

    /// Ends it as it wants to end: with nothing left.
    fn stop(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // One that was stopped is gone; a failed test must not leave one behind.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// What the server counts.
#[derive(Default)]
struct Counts {
    begun: AtomicU64,
    completed: AtomicU64,
    dropped: AtomicU64,
    polls: AtomicU64,
    wakes: AtomicU64,
    over_polled: AtomicU64,
}

static COUNTS: Counts = Counts {
    begun: AtomicU64::new(0),
    completed: AtomicU64::new(0),
    dropped: AtomicU64::new(0),
    polls: AtomicU64::new(0),
    wakes: AtomicU64::new(0),
    over_polled: AtomicU64::new(0),
};

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// The server's process.
fn serve(upstream: SocketAddr) {
    let context = Context::new("")
        .get("/stats", |_req, res| {
            let Counts { begun, completed, dropped, polls, wakes, over_polled } = &COUNTS;
            let counters = [begun, completed, dropped, polls, wakes, over_polled];
            let mut text: Vec<String> =
                counters.iter().map(|count| count.load(Ordering::Acquire).to_string()).collect();
            // Beside the one that this reads with.
            let fds = std::fs::read_dir("/proc/self/fd")?.count() - 1;
            text.push(fds.to_string());
            res.write(text.join(" "))
        })
        .async_get("/timer/*", async |req, res| {
            let number = last_of(req);
            Counted::new(time::sleep(TIMER)).await;
            res.write(number)
        })
        .async_get("/other/*", async move |req, res| {
            let number = last_of(req);
            let answer = Counted::new(pin!(ask(upstream, &number))).await?;
            res.write(answer)
        })
        .async_method(Methods::POST, "/stage/*", async move |req, res| {
            wait_at_stage(upstream, req, res).await
        });
    let server = Server::builder()
        .connector(Connector::http("127.0.0.1:0").async_timeout(Duration::from_secs(120)))
        .connections_max(30_000)
        .cores(1)
        .context(context)
        .start()
        .unwrap();
    println!("{}", server.local_addr());
    // Until the test closes it.
    drop(std::io::stdin().read_to_end(&mut Vec::new()));
    let report = server.stop();
    assert_eq!(report.connections_cut, 0);
}

fn last_of(req: &Request) -> String {
    req.path_info().unwrap_or_default().trim_start_matches('/').to_owned()
}

/// Asks the other server for the number, in eight characters.
async fn ask(upstream: SocketAddr, number: &str) -> Result<String> {
    let mut stream = net::TcpStream::connect(upstream).await?;
    stream.write_all(format!("{number:>8}").as_bytes()).await?;
    let mut answer = [0; 8];
    let mut offset = 0;
    while offset < answer.len() {
        match stream.read(&mut answer[offset..]).await? {
            0 => return Err(Error::servlet("the other server ended too early")),
            count => offset += count,
        }
    }
    Ok(String::from_utf8_lossy(&answer).trim().to_owned())
}

/// Waits for ever at the place that the request names.
async fn wait_at_stage(upstream: SocketAddr, req: &mut Request, res: &mut Response) -> Result<()> {
    let _dropped = CountDrop;
    let path = last_of(req);
    let mut parts = path.split('/');
    let mut next = || parts.next().unwrap_or_default();
    let (stage, timeout, port) = (next(), next(), next());
    let context = req.start_async()?;
    context.set_timeout(Duration::from_millis(timeout.parse().unwrap_or(0)))?;
    context.add_listener(CountComplete)?;
    let address = match port.parse() {
        Ok(0) | Err(_) => upstream,
        Ok(port) => SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
    };
    count(&COUNTS.begun);
    let mut stream = net::TcpStream::connect(address).await?;
    let mut piece = [0; 100];
    match stage {
        "write" => loop {
            stream.write_all(&[b'x'; 10_000]).await?;
        },
        "body" => while req.read_async(&mut piece).await? > 0 {},
        "answer" => loop {
            res.write_async(vec![b'x'; 10_000]).await?;
        },
        "sleep" => time::sleep(Duration::from_secs(600)).await,
        _ => drop(stream.read(&mut piece).await?),
    }
    Ok(())
}

struct CountDrop;

impl Drop for CountDrop {
    fn drop(&mut self) {
        count(&COUNTS.dropped);
    }
}

struct CountComplete;

impl AsyncListener for CountComplete {
    fn on_complete(&mut self, _event: &mut AsyncEvent<'_>) -> Result<()> {
        count(&COUNTS.completed);
        Ok(())
    }
}

/// A future that counts its polls and its wakes.
struct Counted<F> {
    future: F,
    polls: u64,
    waker: Option<Arc<CountedWaker>>,
}

struct CountedWaker {
    waker: Waker,
    wakes: AtomicU64,
}

impl Wake for CountedWaker {
    fn wake(self: Arc<Self>) {
        count(&self.wakes);
        count(&COUNTS.wakes);
        self.waker.wake_by_ref();
    }
}

impl<F> Counted<F> {
    fn new(future: F) -> Self {
        Self { future, polls: 0, waker: None }
    }
}

impl<F: Future + Unpin> Future for Counted<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<F::Output> {
        let this = self.get_mut();
        if this.polls == 0 {
            count(&COUNTS.begun);
        }
        this.polls += 1;
        count(&COUNTS.polls);
        let counted = this.waker.get_or_insert_with(|| {
            Arc::new(CountedWaker { waker: cx.waker().clone(), wakes: AtomicU64::new(0) })
        });
        if this.polls > counted.wakes.load(Ordering::Relaxed) + 1 {
            count(&COUNTS.over_polled);
        }
        let waker = Waker::from(Arc::clone(counted));
        Pin::new(&mut this.future).poll(&mut TaskContext::from_waker(&waker))
    }
}
