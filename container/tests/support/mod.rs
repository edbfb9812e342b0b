//! What tests over real sockets share: a raw client that waits for nothing longer than
//! [`PATIENCE`], a server in this process, servlets made of closures, and a journal of what
//! happened.

use std::{
    fmt::Write as _,
    io::{ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    sync::{
        Arc, Condvar, Mutex,
        mpsc::{Receiver, Sender, channel},
    },
    time::{Duration, Instant},
};

use ringcat::{
    AsyncContext, AsyncEvent, AsyncListener, Connector, Context, Request, Response, Result,
    RunningServer, Server, ServerBuilder, ServerReport, ServiceMode, Servlet,
};

/// For anything that a healthy server does at once. A test that waits this long has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// One connection of a client that says exactly what it is told to.
pub(crate) struct Client {
    stream: TcpStream,
    received: Vec<u8>,
}

/// A response as it came over the wire.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// Whether the message came to its end, and not only the connection.
    pub(crate) is_whole: bool,
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        Self::over(TcpStream::connect_timeout(&address, PATIENCE).unwrap())
    }

    /// A client with a small receive buffer, so that a server that is not read from notices soon.
    pub(crate) fn connect_narrow(address: SocketAddr) -> Self {
        let socket =
            socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.set_recv_buffer_size(16 * 1024).unwrap();
        socket.connect(&address.into()).unwrap();
        Self::over(socket.into())
    }

    fn over(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, received: Vec::new() }
    }

    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        self.stream.write_all(bytes.as_ref()).unwrap();
        self
    }

    /// Sends if the connection still takes it.
    pub(crate) fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.stream.write_all(bytes.as_ref()).is_ok()
    }

    /// Sends a request without content, its line without the version: `GET /x`.
    pub(crate) fn ask(&mut self, line: &str) -> &mut Self {
        self.send(request(line, &[], ""))
    }

    /// Sends a request with content and the fields given.
    pub(crate) fn ask_with(&mut self, line: &str, fields: &[&str], content: &str) -> &mut Self {
        self.send(request(line, fields, content))
    }

    pub(crate) fn get(&mut self, target: &str) -> Answer {
        self.ask(&format!("GET {target}")).answer()
    }

    /// Receives a response to anything but HEAD.
    pub(crate) fn answer(&mut self) -> Answer {
        let mut answer = self.answer_to_head();
        let has_content = answer.status >= 200 && !matches!(answer.status, 204 | 304);
        if !has_content {
            return answer;
        }
        let length = answer.field("Content-Length").map(|length| length.parse().unwrap());
        if answer.field("Transfer-Encoding") == Some("chunked") {
            answer.is_whole = self.receive_chunks(&mut answer.body);
        } else if let Some(length) = length {
            answer.is_whole = self.receive_length(length, &mut answer.body);
        } else {
            while self.fill() {}
            answer.body = std::mem::take(&mut self.received);
        }
        answer
    }

    /// Receives a head, which is all that HEAD is answered with.
    pub(crate) fn answer_to_head(&mut self) -> Answer {
        self.try_head().expect("the connection ended before a response")
    }

    /// Receives a response; `None` if the connection ended or was reset before its first byte.
    pub(crate) fn answer_or_end(&mut self) -> Option<Answer> {
        if self.received.is_empty() && !self.fill() {
            return None;
        }
        Some(self.answer())
    }

    fn try_head(&mut self) -> Option<Answer> {
        let end = loop {
            let end = self.received.windows(4).position(|window| window == b"\r\n\r\n");
            if let Some(end) = end {
                break end;
            }
            if !self.fill() {
                assert!(self.received.is_empty(), "half a head: {:?}", self.received_text());
                return None;
            }
        };
        let head = String::from_utf8(self.received.drain(..end + 4).collect()).unwrap();
        let mut lines = head.trim_end().split("\r\n");
        let status_line = lines.next().unwrap();
        assert!(status_line.starts_with("HTTP/1.1 "), "{status_line}");
        let status = status_line[9..12].parse().unwrap();
        let fields = lines
            .map(|line| line.split_once(": ").unwrap_or_else(|| panic!("no field: {line:?}")))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        Some(Answer { status, fields, body: Vec::new(), is_whole: true })
    }

    /// Receives until `text` has come, and takes everything up to its end.
    pub(crate) fn receive_until(&mut self, text: &str) -> String {
        loop {
            let found = self.received.windows(text.len()).position(|part| part == text.as_bytes());
            if let Some(start) = found {
                let taken = self.received.drain(..start + text.len()).collect();
                return String::from_utf8(taken).unwrap();
            }
            assert!(self.fill(), "the end came before {text:?}: {:?}", self.received_text());
        }
    }

    /// The connection ends, without another byte.
    pub(crate) fn expect_close(&mut self) {
        assert!(!self.fill() && self.received.is_empty(), "{:?}", self.received_text());
    }

    pub(crate) fn shutdown_write(&self) {
        self.stream.shutdown(Shutdown::Write).unwrap();
    }

    /// Closes the connection with a reset.
    pub(crate) fn reset(self) {
        let socket = socket2::Socket::from(self.stream);
        socket.set_linger(Some(Duration::ZERO)).unwrap();
    }

    /// Receives something; `false` at the end of the stream or a reset.
    fn fill(&mut self) -> bool {
        let mut piece = [0; 64 * 1024];
        let count = match self.stream.read(&mut piece) {
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => 0,
            // A read with a timeout is not restarted by the kernel.
            Err(error) if error.kind() == ErrorKind::Interrupted => return self.fill(),
            Err(error) => panic!("{error} after {} bytes", self.received.len()),
        };
        self.received.extend_from_slice(&piece[..count]);
        count > 0
    }

    fn receive_length(&mut self, length: usize, body: &mut Vec<u8>) -> bool {
        let mut is_open = true;
        while self.received.len() < length && is_open {
            is_open = self.fill();
        }
        body.extend(self.received.drain(..length.min(self.received.len())));
        is_open
    }

    fn receive_chunks(&mut self, body: &mut Vec<u8>) -> bool {
        loop {
            let Some(line) = self.chunk_line() else { return false };
            let length = usize::from_str_radix(&line, 16).unwrap();
            if length > 0 && !self.receive_length(length, body) {
                return false;
            }
            match self.chunk_line() {
                Some(line) => assert_eq!(line, "", "a chunk ends with a line end"),
                None => return false,
            }
            if length == 0 {
                return true;
            }
        }
    }

    fn chunk_line(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.received.windows(2).position(|window| window == b"\r\n") {
                let line: Vec<u8> = self.received.drain(..end + 2).collect();
                return Some(String::from_utf8(line[..end].to_vec()).unwrap());
            }
            if !self.fill() {
                return None;
            }
        }
    }

    fn received_text(&self) -> String {
        String::from_utf8_lossy(&self.received).into_owned()
    }
}

impl Answer {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let mut fields = self.fields.iter();
        fields.find(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| &**value)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    /// A whole response with this status and this content.
    #[track_caller]
    pub(crate) fn expect(&self, status: u16, text: &str) {
        assert_eq!((self.status, &*self.text(), self.is_whole), (status, text, true));
    }

    /// A whole error report.
    #[track_caller]
    pub(crate) fn expect_report(&self, status: u16) {
        assert_eq!((self.status, self.is_whole), (status, true), "{}", self.text());
        assert!(self.text().contains(&format!("<h1>{status} ")), "{}", self.text());
    }
}

/// A request as bytes; `content` is announced by its length unless it is empty.
pub(crate) fn request(line: &str, fields: &[&str], content: &str) -> String {
    let mut request = format!("{line} HTTP/1.1\r\nHost: localhost\r\n");
    for field in fields {
        write!(request, "{field}\r\n").unwrap();
    }
    if !content.is_empty() {
        write!(request, "Content-Length: {}\r\n", content.len()).unwrap();
    }
    request + "\r\n" + content
}

/// A server in this process, drained when it is dropped.
pub(crate) struct TestServer(Option<RunningServer>);

impl TestServer {
    /// One core, one context.
    pub(crate) fn start(context: Context) -> Self {
        Self::of(builder(context))
    }

    pub(crate) fn of(builder: ServerBuilder) -> Self {
        Self(Some(builder.start().unwrap()))
    }

    fn running(&self) -> &RunningServer {
        self.0.as_ref().unwrap()
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.running().local_addr()
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(self.address())
    }

    /// One GET on a connection of its own.
    pub(crate) fn get(&self, target: &str) -> Answer {
        self.client().get(target)
    }

    pub(crate) fn report(&self) -> ServerReport {
        self.running().report()
    }

    /// Waits until requests were parked so many times.
    pub(crate) fn await_parked(&self, times: u64) {
        wait_until("the request is parked", || self.report().parked >= times);
    }

    /// Drains the server; what tests observe afterwards has ended.
    pub(crate) fn stop(mut self) -> ServerReport {
        self.0.take().unwrap().stop()
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        if let Some(server) = self.0.take() {
            server.stop();
        }
    }
}

/// A server of one core that listens on a port of its own; a drain gives up after two seconds.
pub(crate) fn builder(context: Context) -> ServerBuilder {
    builder_at(Connector::http("127.0.0.1:0"), context)
}

/// As [`builder`], with a connector of the test's own.
pub(crate) fn builder_at(connector: Connector, context: Context) -> ServerBuilder {
    Server::builder()
        .connector(connector)
        .cores(1)
        .drain_timeout(Duration::from_secs(2))
        .context(context)
}

/// Waits for something that no event tells of.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "waited in vain: {what}");
        std::thread::yield_now();
    }
}

/// A closure as a servlet for all methods.
pub(crate) struct Scripted<F> {
    service: F,
    mode: ServiceMode,
    is_async: bool,
}

/// A servlet that may start async.
pub(crate) fn parking<F>(service: F) -> Scripted<F>
where
    F: Fn(&mut Request, &mut Response) -> Result<()> + Send + Sync + 'static,
{
    Scripted { service, mode: ServiceMode::Collected, is_async: true }
}

/// A servlet that may start async, called at the end of the head.
pub(crate) fn streaming<F>(service: F) -> Scripted<F>
where
    F: Fn(&mut Request, &mut Response) -> Result<()> + Send + Sync + 'static,
{
    Scripted { service, mode: ServiceMode::Streaming, is_async: true }
}

/// A servlet that may start async, called on a worker thread.
pub(crate) fn blocking<F>(service: F) -> Scripted<F>
where
    F: Fn(&mut Request, &mut Response) -> Result<()> + Send + Sync + 'static,
{
    Scripted { service, mode: ServiceMode::Blocking, is_async: true }
}

/// A servlet that starts async and gives the context to the test.
pub(crate) fn handing_over() -> (impl Servlet, Receiver<AsyncContext>) {
    let (sender, receiver): (Sender<AsyncContext>, _) = channel();
    let servlet = parking(move |req, _res| {
        sender.send(req.start_async()?).unwrap();
        Ok(())
    });
    (servlet, receiver)
}

/// What comes over a channel, soon.
#[track_caller]
pub(crate) fn take<T>(receiver: &Receiver<T>) -> T {
    receiver.recv_timeout(PATIENCE).expect("nothing came")
}

impl<F> Servlet for Scripted<F>
where
    F: Fn(&mut Request, &mut Response) -> Result<()> + Send + Sync + 'static,
{
    fn service(&self, req: &mut Request, res: &mut Response) -> Result<()> {
        (self.service)(req, res)
    }

    fn is_async_supported(&self) -> bool {
        self.is_async
    }

    fn mode(&self) -> ServiceMode {
        self.mode
    }
}

/// What happened, in order, from any thread.
#[derive(Clone, Default)]
pub(crate) struct Journal(Arc<(Mutex<Vec<String>>, Condvar)>);

impl Journal {
    pub(crate) fn note(&self, entry: impl Into<String>) {
        let (entries, changed) = &*self.0;
        entries.lock().unwrap().push(entry.into());
        changed.notify_all();
    }

    pub(crate) fn entries(&self) -> Vec<String> {
        self.0.0.lock().unwrap().clone()
    }

    pub(crate) fn count(&self, entry: &str) -> usize {
        self.entries().iter().filter(|other| *other == entry).count()
    }

    /// Waits until an entry contains `text`; the entry.
    #[track_caller]
    pub(crate) fn wait_for(&self, text: &str) -> String {
        let (entries, changed) = &*self.0;
        let mut entries = entries.lock().unwrap();
        let begun = Instant::now();
        loop {
            if let Some(entry) = entries.iter().find(|entry| entry.contains(text)) {
                return entry.clone();
            }
            let rest = PATIENCE.saturating_sub(begun.elapsed());
            assert!(!rest.is_zero(), "no {text:?} in {entries:?}");
            entries = changed.wait_timeout(entries, rest).unwrap().0;
        }
    }
}

/// What a listener does when it is called.
pub(crate) type Reaction = fn(&mut AsyncEvent<'_>) -> Result<()>;

/// A listener that notes each call as `name.on_…`, and then does what the test wants.
pub(crate) struct Noting {
    pub(crate) name: &'static str,
    pub(crate) journal: Journal,
    pub(crate) on_timeout: Reaction,
    pub(crate) on_error: Reaction,
    pub(crate) on_complete: Reaction,
    pub(crate) on_start_async: Reaction,
}

impl Noting {
    /// A listener that only notes.
    pub(crate) fn new(name: &'static str, journal: &Journal) -> Self {
        let nothing: Reaction = |_event| Ok(());
        Self {
            name,
            journal: journal.clone(),
            on_timeout: nothing,
            on_error: nothing,
            on_complete: nothing,
            on_start_async: nothing,
        }
    }
}

impl AsyncListener for Noting {
    fn on_timeout(&mut self, event: &mut AsyncEvent<'_>) -> Result<()> {
        self.journal.note(format!("{}.on_timeout", self.name));
        (self.on_timeout)(event)
    }

    fn on_error(&mut self, event: &mut AsyncEvent<'_>) -> Result<()> {
        let kind = event.error().map(|error| format!("{:?}", error.kind()));
        let kind = kind.unwrap_or_else(|| "none".to_owned());
        self.journal.note(format!("{}.on_error({kind})", self.name));
        (self.on_error)(event)
    }

    fn on_complete(&mut self, event: &mut AsyncEvent<'_>) -> Result<()> {
        self.journal.note(format!("{}.on_complete", self.name));
        (self.on_complete)(event)
    }

    fn on_start_async(&mut self, event: &mut AsyncEvent<'_>) -> Result<()> {
        self.journal.note(format!("{}.on_start_async", self.name));
        (self.on_start_async)(event)
    }
}
