//! The client of a scenario: named connections, driven by one list of ops.

use std::{
    collections::BTreeMap,
    io::{self, Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpStream},
    sync::Arc,
    thread,
    time::Duration,
};

use crate::{
    application,
    grammar::{Arg, Fault, HttpRequest, Op},
    run::Run,
};

/// Longer than any answer takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// One response, or the end of the stream in its place.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answer {
    /// None: the stream ended before a status line.
    pub(crate) status: Option<u16>,
    headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) is_whole: bool,
    /// The connection that it came on.
    pub(crate) connection: String,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&String> {
        self.headers.iter().find(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

/// A connection with what was received and not taken yet.
struct Connection {
    stream: TcpStream,
    received: Vec<u8>,
}

/// The client.
pub(crate) struct Client {
    run: Arc<Run>,
    address: SocketAddr,
    connections: BTreeMap<String, Connection>,
    pub(crate) answers: Vec<Answer>,
    /// The round of each `repeat` that it is in.
    rounds: Vec<i64>,
}

impl Client {
    pub(crate) fn new(run: Arc<Run>, address: SocketAddr) -> Self {
        let (connections, answers) = (BTreeMap::new(), Vec::new());
        Self { run, address, connections, answers, rounds: Vec::new() }
    }

    pub(crate) fn run(&mut self, ops: &[Op]) -> Result<(), Fault> {
        ops.iter().try_for_each(|op| self.op(op).map_err(|fault| format!("{}: {fault}", op.name)))
    }

    /// A text with the round in place of `${i}`.
    fn fill(&self, text: &str) -> String {
        let round = self.rounds.last().copied().unwrap_or(0);
        text.replace("${i}", &round.to_string())
    }

    fn op(&mut self, op: &Op) -> Result<(), Fault> {
        match op.name {
            "connect" => {
                let stream = TcpStream::connect(self.address).map_err(|error| error.to_string())?;
                let prepared =
                    stream.set_nodelay(true).and_then(|()| stream.set_read_timeout(Some(PATIENCE)));
                prepared.map_err(|error| error.to_string())?;
                let connection = Connection { stream, received: Vec::new() };
                self.connections.insert(self.fill(op.text(0)), connection);
            }
            "request" => {
                let mut bytes = Vec::new();
                for arg in &op.args[1..] {
                    let Arg::Request(request) = arg else { return Err("no request".to_owned()) };
                    self.write_request(request, &mut bytes);
                }
                self.send(op.text(0), &bytes)?;
            }
            "send" => self.send(op.text(0), &latin1(&self.fill(op.text(1))))?,
            "send_bytes" => {
                for byte in latin1(&self.fill(op.text(1))) {
                    self.send(op.text(0), &[byte])?;
                    sleep(op.int(2));
                }
            }
            "recv" => {
                let is_head_only = op.text_or(1, "") == "head";
                let name = self.fill(op.text(0));
                let mut answer = self.connection(&name)?.receive(is_head_only)?;
                answer.connection = name;
                self.answers.push(answer);
            }
            "recv_some" => {
                let mut left = usize::try_from(op.int(1)).unwrap_or(0);
                let name = self.fill(op.text(0));
                let connection = self.connection(&name)?;
                while left > 0 {
                    if connection.received.is_empty() && !connection.fill()? {
                        return Err("the stream ended".to_owned());
                    }
                    let count = left.min(connection.received.len());
                    connection.received.drain(..count);
                    left -= count;
                }
            }
            "shutdown_write" => {
                let name = self.fill(op.text(0));
                let stream = &self.connection(&name)?.stream;
                stream.shutdown(Shutdown::Write).map_err(|error| error.to_string())?;
            }
            "close" => drop(self.connections.remove(&self.fill(op.text(0)))),
            "reset" => {
                let name = self.fill(op.text(0));
                let connection =
                    self.connections.remove(&name).ok_or_else(|| format!("no {name:?}"))?;
                let socket = socket2::SockRef::from(&connection.stream);
                socket.set_linger(Some(Duration::ZERO)).map_err(|error| error.to_string())?;
            }
            "expect_close" => {
                let name = self.fill(op.text(0));
                self.connection(&name)?.expect_end()?;
            }
            "expect_refused" => {
                if TcpStream::connect_timeout(&self.address, Duration::from_secs(2)).is_ok() {
                    return Err("a new connection was accepted".to_owned());
                }
            }
            _ => return self.control(op),
        }
        Ok(())
    }

    /// Ops that concern no connection.
    fn control(&mut self, op: &Op) -> Result<(), Fault> {
        let run = Arc::clone(&self.run);
        match op.name {
            "sleep" => sleep(op.int(0)),
            "signal" => run.journal.signal(&self.fill(op.text(0))),
            "await" => {
                let limit = Duration::from_millis(op.int_or(2, 5000).unsigned_abs());
                run.journal.await_entry(&self.fill(op.text(0)), op.int_or(1, 1), limit);
            }
            "note" => run.journal.note(self.fill(op.text(0))),
            "spawn" => application::spawn_for_client(&run, op.text(0)),
            "repeat" => {
                for round in 0..op.int(0) {
                    self.rounds.push(round);
                    let result = self.run(op.ops(1));
                    self.rounds.pop();
                    result?;
                }
            }
            "if" => {
                let key = op.text(0);
                let name = key.strip_prefix("variant:").ok_or("only variants can be asked")?;
                let is_met = application::compare(
                    Some(run.variant(name).to_owned()),
                    op.text(1),
                    &op.args[2],
                )?;
                self.run(op.ops(if is_met { 3 } else { 4 }))?;
            }
            "stop_context" => {
                let path = op.text(0).to_owned();
                run.stop("context stopped", move |server| {
                    server.stop_context(&path).map_err(|error| error.to_string())
                });
            }
            "stop_server" => run.stop_server(),
            "pause_connector" => {
                run.with_server(|server| {
                    server.pause();
                    Ok(())
                })?;
                run.journal.note("connector paused");
            }
            other => return Err(format!("no such op: {other}")),
        }
        Ok(())
    }

    fn connection(&mut self, name: &str) -> Result<&mut Connection, Fault> {
        self.connections.get_mut(name).ok_or_else(|| format!("no connection {name:?}"))
    }

    fn send(&mut self, name: &str, bytes: &[u8]) -> Result<(), Fault> {
        let name = self.fill(name);
        // The server may have closed already; what comes back is judged.
        drop(self.connection(&name)?.stream.write_all(bytes));
        Ok(())
    }

    fn write_request(&self, request: &HttpRequest, out: &mut Vec<u8>) {
        let HttpRequest { method, target, headers, body, version } = request;
        let mut head = format!("{method} {} HTTP/{version}\r\n", self.fill(target));
        let has = |name: &str| headers.iter().any(|(own, _)| own.eq_ignore_ascii_case(name));
        if version == "1.1" && !has("Host") {
            head += "Host: localhost\r\n";
        }
        for (name, value) in headers {
            head += &format!("{name}: {}\r\n", self.fill(value));
        }
        let body = latin1(&self.fill(body.as_deref().unwrap_or("")));
        if !body.is_empty() && !has("Content-Length") && !has("Transfer-Encoding") {
            head += &format!("Content-Length: {}\r\n", body.len());
        }
        head += "\r\n";
        out.extend(latin1(&head));
        out.extend(body);
    }

    /// What became of the connection of an answer, asked when the script is through.
    pub(crate) fn check_connection(&mut self, name: &str, keeps_alive: bool) -> Result<(), Fault> {
        let Some(connection) = self.connections.get_mut(name) else {
            return Err(format!("connection {name} was closed by the script"));
        };
        if !keeps_alive {
            return connection.expect_end();
        }
        let ping = b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n";
        connection.stream.write_all(ping).map_err(|error| error.to_string())?;
        let answer = connection.receive(false)?;
        match answer.status == Some(200) && answer.body == b"pong" {
            true => Ok(()),
            false => Err(format!("connection {name} does not go on: {answer:?}")),
        }
    }
}

fn sleep(millis: i64) {
    thread::sleep(Duration::from_millis(millis.unsigned_abs()));
}

fn latin1(text: &str) -> Vec<u8> {
    text.chars().map(|c| u8::try_from(u32::from(c)).unwrap_or(b'?')).collect()
}

impl Connection {
    /// Receives more; `false` at the end of the stream.
    fn fill(&mut self) -> Result<bool, Fault> {
        let mut piece = [0; 65536];
        match self.stream.read(&mut piece) {
            Ok(0) => Ok(false),
            Ok(count) => {
                self.received.extend_from_slice(&piece[..count]);
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(false),
            Err(error) => Err(format!("nothing came: {error}")),
        }
    }

    fn expect_end(&mut self) -> Result<(), Fault> {
        if self.received.is_empty() && !self.fill()? {
            return Ok(());
        }
        Err(format!("more came: {:?}", String::from_utf8_lossy(&self.received)))
    }

    /// A line without its end; none at the end of the stream.
    fn line(&mut self) -> Result<Option<String>, Fault> {
        loop {
            if let Some(end) = self.received.windows(2).position(|pair| pair == b"\r\n") {
                let line: Vec<u8> = self.received.drain(..end + 2).collect();
                return Ok(Some(String::from_utf8_lossy(&line[..end]).into_owned()));
            }
            if !self.fill()? {
                return Ok(None);
            }
        }
    }

    /// Takes so many bytes, or those that came before the end of the stream.
    fn take(&mut self, count: usize, into: &mut Vec<u8>) -> Result<bool, Fault> {
        while self.received.len() < count {
            if !self.fill()? {
                into.append(&mut self.received);
                return Ok(false);
            }
        }
        into.extend(self.received.drain(..count));
        Ok(true)
    }

    fn receive(&mut self, is_head_only: bool) -> Result<Answer, Fault> {
        let mut answer = Answer::default();
        let Some(line) = self.line()? else { return Ok(answer) };
        answer.status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
        while let Some(line) = self.line()? {
            let Some((name, value)) = line.split_once(':') else { break };
            answer.headers.push((name.to_owned(), value.trim().to_owned()));
        }
        let status = answer.status.ok_or_else(|| format!("no status line: {line:?}"))?;
        let is_empty = is_head_only || status < 200 || status == 204 || status == 304;
        if is_empty {
            answer.is_whole = true;
        } else if answer.header("Transfer-Encoding").is_some() {
            answer.is_whole = self.receive_chunks(&mut answer.body)?;
        } else if let Some(length) = answer.header("Content-Length") {
            let length = length.parse().map_err(|_| format!("Content-Length {length:?}"))?;
            answer.is_whole = self.take(length, &mut answer.body)?;
        } else {
            while self.fill()? {}
            answer.body.append(&mut self.received);
            answer.is_whole = true;
        }
        Ok(answer)
    }

    fn receive_chunks(&mut self, body: &mut Vec<u8>) -> Result<bool, Fault> {
        loop {
            let Some(line) = self.line()? else { return Ok(false) };
            let size = line.split(';').next().unwrap_or("");
            let size = usize::from_str_radix(size, 16).map_err(|_| format!("chunk {line:?}"))?;
            if size == 0 {
                while let Some(line) = self.line()? {
                    if line.is_empty() {
                        return Ok(true);
                    }
                }
                return Ok(false);
            }
            if !self.take(size, body)? || self.line()?.is_none() {
                return Ok(false);
            }
        }
    }
}
