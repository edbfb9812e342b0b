//! What futures of a core wait for: timers, tasks, and TCP streams to somebody else. Nothing of
//! them is left when the request is over, whoever ended it and where it waited.

use std::{
    future::poll_fn,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use ringcat::{Context, Error, Request, Response, Result, net::TcpStream, task, time};
use ringcat_engine::sim::{network::ClientSocket, upstream::Upstream};

use crate::{
    simulated::{TestServer, builder, expect_elapsed, now, simulated, sleep, spawn},
    support::{Journal, PATIENCE, Signal, wait_until},
};

/// Where the other server of a test listens.
fn upstream_address() -> SocketAddr {
    SocketAddr::from(([10, 1, 1, 1], 80))
}

#[test]
fn a_sleep_is_never_early_and_soon_over() {
    simulated(|| {
        let context = Context::new("").async_get("/", async |_req, res| {
            time::sleep(Duration::from_millis(300)).await;
            time::sleep(Duration::ZERO).await;
            res.write("woken")
        });
        let server = TestServer::start(context);
        let begun = now();
        server.get("/").expect(200, "woken");
        expect_elapsed(begun, Duration::from_millis(300));
    });
}

#[test]
fn a_timeout_ends_what_takes_too_long() {
    simulated(|| {
        let context = Context::new("").async_get("/", async |_req, res| {
            let late = time::timeout(Duration::from_millis(50), std::future::pending::<()>());
            assert_eq!(late.await, Err(time::Elapsed));
            let soon = async {
                time::sleep(Duration::from_millis(10)).await;
                7
            };
            assert_eq!(time::timeout(Duration::from_secs(60), soon).await, Ok(7));
            res.write("done")
        });
        TestServer::start(context).get("/").expect(200, "done");
    });
}

#[test]
fn a_task_outlives_its_request_and_ends_with_its_core() {
    simulated(|| {
        let journal = Journal::default();
        let (seen, signal) = (journal.clone(), Signal::default());
        let awaited = signal.clone();
        let context = Context::new("").async_get("/", async move |_req, res| {
            let (seen, awaited) = (seen.clone(), awaited.clone());
            let noted = seen.clone();
            task::spawn(async move {
                awaited.await;
                seen.note("woken");
                std::future::pending::<()>().await;
            });
            let cancelled = task::spawn(async move { noted.note("never") });
            task::cancel(cancelled);
            task::spawn(async { panic!("of the test") });
            res.write("started")
        });
        let server = TestServer::start(context);
        server.get("/").expect(200, "started");
        signal.give();
        journal.wait_for("woken");
        server.get("/").expect(200, "started");
        server.stop();
        assert_eq!(journal.count("never"), 0);
    });
}

/// A server that is not ours, each connection an actor.
#[derive(Clone, Default)]
struct Other(Arc<OtherState>);

#[derive(Default)]
struct OtherState {
    is_over: AtomicBool,
    begun: AtomicUsize,
    served: AtomicUsize,
}

impl Other {
    fn start(serve: impl Fn(ClientSocket) + Clone + 'static) -> Self {
        let other = Self::default();
        let state = Arc::clone(&other.0);
        let upstream = Upstream::listen(upstream_address());
        spawn(move || {
            while !state.is_over.load(Ordering::Relaxed) {
                let Some(socket) = upstream.accept(Duration::from_millis(5)) else { continue };
                state.begun.fetch_add(1, Ordering::Relaxed);
                let (serve, state) = (serve.clone(), Arc::clone(&state));
                spawn(move || {
                    serve(socket);
                    state.served.fetch_add(1, Ordering::Relaxed);
                });
            }
            state.is_over.store(false, Ordering::Relaxed);
        });
        other
    }

    fn served(&self) -> usize {
        self.0.served.load(Ordering::Relaxed)
    }

    /// Listens no more; every connection has ended.
    fn stop(&self) {
        let state = &self.0;
        state.is_over.store(true, Ordering::Relaxed);
        wait_until("it listens no more", || !state.is_over.load(Ordering::Relaxed));
        wait_until("its connections have ended", || {
            self.served() == state.begun.load(Ordering::Relaxed)
        });
    }
}

/// Sends back all that comes, until its end.
fn echo(socket: ClientSocket) {
    let mut bytes = Vec::new();
    while let Ok(1..) = socket.receive(&mut bytes, 4000, PATIENCE) {
        if socket.send(&bytes, PATIENCE).is_err() {
            return;
        }
        bytes.clear();
    }
    socket.shut_down_write();
    // Dropped with what it did not read, a connection is reset: wait for the other end.
    while let Ok(1..) = socket.receive(&mut bytes, 4000, PATIENCE) {}
}

/// Sends the content of the request to the other server, and its answer to the client.
async fn proxy(req: &mut Request, res: &mut Response) -> Result<()> {
    let mut stream = TcpStream::connect(upstream_address()).await?;
    let mut piece = [0; 3000];
    loop {
        let count = req.read_async(&mut piece).await?;
        if count == 0 {
            break;
        }
        stream.write_all(&piece[..count]).await?;
        let mut sent = 0;
        while sent < count {
            let count = stream.read(&mut piece).await?;
            if count == 0 {
                return Err(Error::servlet("the other server ended too early"));
            }
            sent += count;
            res.write_async(&piece[..count]).await?;
        }
    }
    stream.shutdown().await?;
    while stream.read(&mut piece).await? > 0 {}
    Ok(())
}

#[test]
fn a_future_talks_to_another_server() {
    simulated(|| {
        let other = Other::start(echo);
        let context =
            Context::new("")
                .async_method(ringcat::Methods::POST, "/", async |req, res| proxy(req, res).await);
        let server = TestServer::start(context);
        let mut client = server.client();
        for size in [1, 100, 30_000] {
            let content: String = "0123456789".chars().cycle().take(size).collect();
            let answer = client.ask_with("POST /", &[], &content).answer();
            assert_eq!((answer.status, answer.text()), (200, content));
        }
        wait_until("the other server saw all ends", || other.served() == 3);
        server.stop();
        other.stop();
    });
}

#[test]
fn a_megabyte_each_way_is_held_back_and_arrives() {
    simulated(|| {
        let other = Other::start(|socket| {
            let mut bytes = Vec::new();
            while bytes.len() < 1_000_000 {
                socket.receive(&mut bytes, 100_000, PATIENCE).unwrap();
            }
            socket.send(&bytes, PATIENCE).unwrap();
        });
        let context = Context::new("").async_get("/", async |_req, res| {
            let mut stream = TcpStream::connect(upstream_address()).await?;
            let content: Vec<u8> = (0..1_000_000_u32).map(|n| (n / 7) as u8).collect();
            stream.write_all(&content).await?;
            let (mut back, mut piece) = (Vec::new(), vec![0; 50_000]);
            // Long enough for the other server to fill what holds it back.
            time::sleep(Duration::from_millis(100)).await;
            loop {
                match stream.read(&mut piece).await? {
                    0 => break,
                    count => back.extend_from_slice(&piece[..count]),
                }
            }
            assert_eq!(stream.peer_addr(), Some(upstream_address()));
            res.write(if back == content { "same" } else { "other" })
        });
        let server = TestServer::start(context);
        server.get("/").expect(200, "same");
        other.stop();
        assert_eq!(other.served(), 1);
    });
}

#[test]
fn a_connection_that_is_refused_or_reset_is_an_error() {
    simulated(|| {
        let context = Context::new("")
            .async_get("/connect", async |_req, res| {
                let error = TcpStream::connect(upstream_address()).await.unwrap_err();
                res.write(format!("{:?}", error.kind()))
            })
            .async_get("/read", async |_req, res| {
                let mut stream = TcpStream::connect(upstream_address()).await?;
                let error = stream.read(&mut [0; 10]).await.unwrap_err();
                res.write(format!("{:?}", error.kind()))
            });
        let server = TestServer::start(context);
        server.get("/connect").expect(200, "ConnectionRefused");
        let other = Other::start(|socket| {
            sleep(Duration::from_millis(20));
            socket.reset();
        });
        server.get("/read").expect(200, "ConnectionReset");
        other.stop();
    });
}

#[test]
fn whoever_ends_the_request_closes_its_connections() {
    for wait in ["connect", "write", "read", "sleep"] {
        simulated(move || {
            let journal = Journal::default();
            let seen = journal.clone();
            // Takes a while to notice anything, and never answers.
            let other = Other::start(|socket| {
                let mut bytes = Vec::new();
                sleep(Duration::from_millis(500));
                while let Ok(1..) = socket.receive(&mut bytes, 1000, PATIENCE) {
                    sleep(Duration::from_millis(1));
                }
            });
            let context = Context::new("").async_get("/", async move |req, _res| {
                let context = req.start_async()?;
                context.add_listener(crate::support::Noting::new("round", &seen))?;
                if wait == "connect" {
                    seen.note("waits");
                }
                let mut stream = TcpStream::connect(upstream_address()).await?;
                if wait != "connect" {
                    seen.note("waits");
                }
                match wait {
                    "write" => loop {
                        stream.write_all(&[b'x'; 10_000]).await?;
                    },
                    "sleep" => time::sleep(Duration::from_secs(600)).await,
                    _ => drop(stream.read(&mut [0; 100]).await?),
                }
                std::future::pending().await
            });
            let connector = ringcat::Connector::http("127.0.0.1:0");
            let connector = connector.async_timeout(Duration::from_millis(700));
            let server = TestServer::of(crate::simulated::builder_at(connector, context));
            // One is reset, one runs into its timeout.
            let mut client = server.client();
            client.ask("GET /");
            journal.wait_for("waits");
            client.reset();
            server.get("/").expect_report(500);
            wait_until("both are told", || journal.count("round.on_complete") == 2);
            let connected = if wait == "connect" { 0 } else { 2 };
            wait_until("the other server saw the ends", || other.served() >= connected);
            server.stop();
            other.stop();
        });
    }
}

#[test]
fn a_drain_does_not_wait_for_connections_to_others() {
    simulated(|| {
        let other = Other::start(echo);
        let context = Context::new("").async_get("/", async |_req, res| {
            task::spawn(async {
                let stream = TcpStream::connect(upstream_address()).await;
                std::future::pending::<()>().await;
                drop(stream);
            });
            res.write("fine")
        });
        let server = TestServer::of(builder(context).drain_timeout(Duration::from_secs(30)));
        server.get("/").expect(200, "fine");
        let begun = now();
        server.stop();
        assert!(now().saturating_since(begun) < Duration::from_secs(5));
        other.stop();
    });
}

/// What clients of other crates do with a stream.
async fn talk_by_traits<S>(mut stream: S, text: &[u8]) -> std::io::Result<Vec<u8>>
where
    S: futures_io::AsyncRead + futures_io::AsyncWrite + Unpin,
{
    let mut sent = 0;
    while sent < text.len() {
        sent += poll_fn(|cx| Pin::new(&mut stream).poll_write(cx, &text[sent..])).await?;
    }
    poll_fn(|cx| Pin::new(&mut stream).poll_flush(cx)).await?;
    poll_fn(|cx| Pin::new(&mut stream).poll_close(cx)).await?;
    let (mut back, mut piece) = (Vec::new(), [0; 100]);
    loop {
        match poll_fn(|cx| Pin::new(&mut stream).poll_read(cx, &mut piece)).await? {
            0 => return Ok(back),
            count => back.extend_from_slice(&piece[..count]),
        }
    }
}

#[test]
fn a_stream_has_the_traits_of_futures() {
    simulated(|| {
        let other = Other::start(echo);
        let context = Context::new("").async_get("/", async |_req, res| {
            let stream = TcpStream::connect(upstream_address()).await?;
            let back = talk_by_traits(stream, &b"there and back ".repeat(100)).await?;
            assert_eq!(back, b"there and back ".repeat(100));
            res.write("back")
        });
        let server = TestServer::start(context);
        server.get("/").expect(200, "back");
        server.stop();
        other.stop();
    });
}

#[test]
fn connections_to_others_take_no_room_from_clients() {
    simulated(|| {
        let other = Other::start(echo);
        let context = Context::new("").async_get("/", async |_req, res| {
            let (mut stream, mut idle) =
                (TcpStream::connect(upstream_address()).await?, Vec::new());
            for _ in 0..5 {
                idle.push(TcpStream::connect(upstream_address()).await?);
            }
            task::spawn(async move {
                drop(stream.read(&mut [0]).await);
                drop(idle);
            });
            res.write("fine")
        });
        let server = TestServer::of(builder(context).cores(1).connections_max(2));
        let (mut first, mut second) = (server.client(), server.client());
        for _ in 0..3 {
            first.get("/").expect(200, "fine");
            second.get("/").expect(200, "fine");
        }
        server.stop();
        other.stop();
    });
}
