//! Threads end a hundred thousand requests over a thousand connections, in every way and at random:
//! they complete, dispatch, write piece by piece, or leave the request to its timeout. Each has one
//! answer with its own content, and one `on_complete`. On the ring of the kernel, with threads of
//! the system; the simulator goes through the same by design and not by chance.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test with threads and clocks"
)]

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::Duration,
};

use ringcat::{
    AsyncContext, AsyncEvent, AsyncListener, Connector, Context, Error, ErrorKind, Request,
    Response, Result, Server, Servlet,
};

const CONNECTIONS: u64 = 1000;
const CLIENT_THREADS: u64 = 4;
const ROUNDS: u64 = 100;
const FOREIGN_THREADS: usize = 4;

/// How a request is ended, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// A thread writes and completes.
    Complete,
    /// A thread writes in pieces, with flushes, and completes.
    Pieces,
    /// A thread dispatches; the target answers.
    Dispatch,
    /// Nobody: the listener answers at the timeout.
    Timeout,
    /// A thread completes as the time is over: either may come first.
    Race,
}

impl End {
    fn of(number: u64) -> Self {
        match mix(number) % 64 {
            0..=30 => Self::Complete,
            31..=43 => Self::Pieces,
            44..=61 => Self::Dispatch,
            62 => Self::Timeout,
            _ => Self::Race,
        }
    }
}

/// A number that looks like chance and is always the same.
fn mix(number: u64) -> u64 {
    let mixed = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 29)
}

/// The content of an answer: nobody else has it.
fn content(number: u64) -> String {
    let count = usize::try_from(mix(number) % 40 + 1).unwrap();
    format!("[{number:08x}]").repeat(count)
}

fn number_of(target: &str) -> Result<u64> {
    let digits = target.rsplit('/').next().unwrap_or("");
    digits.parse().map_err(|_| Error::illegal_argument(format!("no number in {target:?}")))
}

/// What the listener tells.
struct Told {
    number: u64,
    completions: Arc<Vec<AtomicU64>>,
}

impl AsyncListener for Told {
    fn on_timeout(&mut self, event: &mut AsyncEvent<'_>) -> Result<()> {
        let text = content(self.number);
        match event.context().complete() {
            Ok(()) => event.response()?.write(text),
            // A thread was first: the answer is its.
            Err(error) if error.kind() == ErrorKind::IllegalState => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn on_complete(&mut self, _event: &mut AsyncEvent<'_>) -> Result<()> {
        let place = usize::try_from(self.number).unwrap();
        self.completions[place].fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

struct Park {
    threads: Mutex<Vec<Sender<(u64, AsyncContext)>>>,
    completions: Arc<Vec<AtomicU64>>,
}

impl Servlet for Park {
    fn service(&self, req: &mut Request, _res: &mut Response) -> Result<()> {
        let number = number_of(&req.request_uri())?;
        let context = req.start_async()?;
        let completions = Arc::clone(&self.completions);
        context.add_listener(Told { number, completions })?;
        let end = End::of(number);
        if matches!(end, End::Timeout | End::Race) {
            context.set_timeout(Duration::from_millis(20))?;
        }
        if end != End::Timeout {
            let threads = self.threads.lock().unwrap();
            let place = usize::try_from(mix(number)).unwrap() % threads.len();
            threads[place].send((number, context)).unwrap();
        }
        Ok(())
    }

    fn is_async_supported(&self) -> bool {
        true
    }
}

/// Ends requests until the servlet is gone.
fn end_requests(contexts: &Receiver<(u64, AsyncContext)>) {
    while let Ok((number, context)) = contexts.recv() {
        let ended = end_request(number, &context);
        let may_lose = End::of(number) == End::Race;
        if let Err(error) = ended
            && !(may_lose && error.kind() == ErrorKind::IllegalState)
        {
            panic!("request {number}, {:?}: {error}", End::of(number));
        }
    }
}

fn end_request(number: u64, context: &AsyncContext) -> Result<()> {
    let text = content(number);
    match End::of(number) {
        End::Complete => {
            context.response()?.write(text)?;
            context.complete()
        }
        End::Pieces => {
            let response = context.response()?;
            for piece in text.as_bytes().chunks(33) {
                response.write(piece)?;
                response.flush()?;
            }
            context.complete()
        }
        End::Dispatch => context.dispatch_to(&format!("/target/{number}")),
        // What it writes counts only if it completes: the listener has the whole answer else.
        End::Race => {
            thread::sleep(Duration::from_millis(19));
            context.complete()
        }
        End::Timeout => panic!("request {number} was left to its timeout"),
    }
}

struct Target;

impl Servlet for Target {
    fn service(&self, req: &mut Request, res: &mut Response) -> Result<()> {
        res.write(content(number_of(&req.request_uri())?))
    }
}

/// One answer: status and content.
fn receive(stream: &mut BufReader<TcpStream>) -> (String, Vec<u8>) {
    let (mut status, mut length) = (String::new(), None);
    stream.read_line(&mut status).unwrap();
    loop {
        let mut line = String::new();
        assert!(stream.read_line(&mut line).unwrap() > 0, "the connection ended in a head");
        match line.trim_end().split_once(": ") {
            Some(("Content-Length", value)) => length = Some(value.parse::<usize>().unwrap()),
            Some(_) => {}
            None => break,
        }
    }
    let mut content = Vec::new();
    if let Some(length) = length {
        content.resize(length, 0);
        stream.read_exact(&mut content).unwrap();
        return (status, content);
    }
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        let size = usize::from_str_radix(line.trim_end(), 16).unwrap();
        let mut chunk = vec![0; size + 2];
        stream.read_exact(&mut chunk).unwrap();
        if size == 0 {
            return (status, content);
        }
        content.extend_from_slice(&chunk[..size]);
    }
}

/// Asks on many connections at once, then reads all answers, round after round.
fn ask(address: SocketAddr, thread: u64) {
    let count = CONNECTIONS / CLIENT_THREADS;
    let mut streams: Vec<_> = (0..count)
        .map(|_| {
            let stream = TcpStream::connect(address).unwrap();
            stream.set_nodelay(true).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            BufReader::new(stream)
        })
        .collect();
    for round in 0..ROUNDS {
        let first = (round * CLIENT_THREADS + thread) * count;
        for (place, stream) in streams.iter_mut().enumerate() {
            let number = first + place as u64;
            let request = format!("GET /park/{number} HTTP/1.1\r\nHost: localhost\r\n\r\n");
            stream.get_mut().write_all(request.as_bytes()).unwrap();
        }
        for (place, stream) in streams.iter_mut().enumerate() {
            let number = first + place as u64;
            let (status, text) = receive(stream);
            let is_whole = text == content(number).as_bytes();
            // A thread that wins the race completes without content.
            let is_right = is_whole || End::of(number) == End::Race && text.is_empty();
            let text = String::from_utf8_lossy(&text);
            assert!(
                status.starts_with("HTTP/1.1 200 ") && is_right,
                "request {number}, {:?}: {status:?} {text:?}",
                End::of(number)
            );
        }
    }
}

#[test]
fn threads_end_a_hundred_thousand_requests_in_every_way() {
    let requests = CONNECTIONS * ROUNDS;
    let completions: Arc<Vec<AtomicU64>> =
        Arc::new((0..requests).map(|_| AtomicU64::new(0)).collect());
    let mut senders = Vec::new();
    let threads: Vec<_> = (0..FOREIGN_THREADS)
        .map(|_| {
            let (sender, receiver) = channel();
            senders.push(sender);
            thread::spawn(move || end_requests(&receiver))
        })
        .collect();
    let park = Park { threads: Mutex::new(senders), completions: Arc::clone(&completions) };
    let context = Context::new("").servlet("/park/*", park).servlet("/target/*", Target);
    let connector = Connector::http("127.0.0.1:0");
    let server = Server::builder().connector(connector).cores(2).context(context).start().unwrap();
    let address = server.local_addr();
    let clients: Vec<_> =
        (0..CLIENT_THREADS).map(|thread| thread::spawn(move || ask(address, thread))).collect();
    for client in clients {
        client.join().unwrap();
    }
    // Ends by itself: nothing is left that a drain would wait for.
    let report = server.stop();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(report.statuses, [0, requests, 0, 0, 0], "{report:?}");
    assert_eq!(report.aborted, 0, "{report:?}");
    assert_eq!(report.connections_accepted, CONNECTIONS, "{report:?}");
    assert_eq!(report.connections_closed, CONNECTIONS, "{report:?}");
    assert_eq!(report.connections_cut, 0, "{report:?}");
    let told_wrongly = completions.iter().position(|count| count.load(Ordering::Relaxed) != 1);
    assert_eq!(told_wrongly, None, "on_complete of that request did not come once");
}
