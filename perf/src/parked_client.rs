//! The client of `perf parked`, in a process of its own so that its memory and its open files are
//! not the measuring process's.

use std::{
    io::{BufReader, ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use clap::Args;

use crate::{
    Outcome,
    answer::{self, Answer},
    latencies::Latencies,
    monotonic,
    parking_lot::visit_order,
    step_process,
    test_server::{PARK_PATH, PLAIN_PATH},
};

/// Silence of the server that ends the test.
const READ_MAX: Duration = Duration::from_secs(60);
/// Buffer of a connection; small, since there are many and answers are short.
const BUFFER_BYTES: usize = 512;

/// What the client needs to know.
#[derive(Args, Clone, Debug)]
pub(crate) struct ClientOptions {
    /// Where the server listens
    #[arg(long)]
    pub(crate) address: SocketAddr,
    /// Connections to open
    #[arg(long)]
    pub(crate) connections: usize,
    /// Bytes of a field that makes heads long
    #[arg(long)]
    pub(crate) padding_bytes: usize,
}

impl ClientOptions {
    /// The command line that these options are read from.
    pub(crate) fn to_arguments(&self) -> Vec<String> {
        vec![
            "parked-client".to_owned(),
            format!("--address={}", self.address),
            format!("--connections={}", self.connections),
            format!("--padding-bytes={}", self.padding_bytes),
        ]
    }

    /// The head of the request that parks on a connection; all are equally long.
    pub(crate) fn parking_head(&self, number: usize) -> Vec<u8> {
        self.head(&format!("{PARK_PATH}{number:05}"))
    }

    /// A head with padding.
    pub(crate) fn head(&self, path: &str) -> Vec<u8> {
        answer::request_head(path, &self.address.to_string(), self.padding_bytes)
    }
}

/// Takes steps until its input ends:
///
/// | step | what |
/// |---|---|
/// | `connect` | opens the connections |
/// | `exchange` | on each, one request that is answered at once, and its answer |
/// | `park` | on each, one request that parks |
/// | `follow N` | receives the next N answers in the order in which the server completes, tells how late they came, and parks a request again on each connection |
/// | `collect` | receives the answer of each parked request; the time from the first completion |
/// | `silence` | makes sure that nothing follows |
///
/// # Errors
/// A step failed. Its text is the answer to the step too.
pub(crate) fn run(options: &ClientOptions) -> Outcome<()> {
    let mut client = Client::new(options.clone());
    step_process::take_steps(|name, argument| client.take(name, argument))
}

struct Client {
    options: ClientOptions,
    connections: Vec<BufReader<TcpStream>>,
    order: Box<dyn Iterator<Item = usize>>,
}

impl Client {
    fn new(options: ClientOptions) -> Self {
        let order = Box::new(visit_order(options.connections));
        Self { options, connections: Vec::new(), order }
    }

    fn take(&mut self, name: &str, argument: &str) -> Outcome<String> {
        let done = |()| String::new();
        match name {
            "connect" => self.connect().map(done),
            "exchange" => self.exchange().map(done),
            "park" => (0..self.connections.len()).try_for_each(|n| self.park(n)).map(done),
            "follow" => self.follow(argument.parse()?),
            "collect" => self.collect(),
            "silence" => self.expect_silence().map(done),
            _ => Err(format!("{name:?} is no step").into()),
        }
    }

    fn connect(&mut self) -> Outcome<()> {
        for number in 0..self.options.connections {
            let stream = TcpStream::connect(self.options.address)
                .map_err(|error| format!("connection {number}: {error}"))?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(READ_MAX))?;
            self.connections.push(BufReader::with_capacity(BUFFER_BYTES, stream));
        }
        Ok(())
    }

    fn exchange(&mut self) -> Outcome<()> {
        let head = self.options.head(PLAIN_PATH);
        for (number, connection) in self.connections.iter_mut().enumerate() {
            let answer = answer::exchange(connection, &head)
                .map_err(|error| format!("connection {number}: {error}"))?;
            if answer.status != 200 {
                return Err(format!("connection {number}: answer {}", answer.status).into());
            }
        }
        Ok(())
    }

    fn park(&mut self, number: usize) -> Outcome<()> {
        let head = self.options.parking_head(number);
        let sent = self.connections[number].get_mut().write_all(&head);
        Ok(sent.map_err(|error| format!("connection {number}: {error}"))?)
    }

    fn follow(&mut self, count: usize) -> Outcome<String> {
        let mut latencies = Latencies::new();
        for _ in 0..count {
            let number = self.order.next().expect("the order has no end");
            let completed_nanos = self.receive(number)?;
            latencies.record(monotonic::now_nanos().saturating_sub(completed_nanos));
            self.park(number)?;
        }
        Ok(latencies.percentiles().to_fields())
    }

    fn collect(&mut self) -> Outcome<String> {
        let mut first_nanos = u64::MAX;
        for number in 0..self.connections.len() {
            first_nanos = first_nanos.min(self.receive(number)?);
        }
        Ok(format!("nanos={}", monotonic::now_nanos().saturating_sub(first_nanos)))
    }

    /// Receives the answer to a parked request; gives when it was completed.
    fn receive(&mut self, number: usize) -> Outcome<u64> {
        let answer = Answer::read(&mut self.connections[number])
            .map_err(|error| format!("connection {number}: no answer: {error}"))?;
        let content = String::from_utf8_lossy(&answer.content);
        match content.trim_ascii().parse() {
            Ok(nanos) if answer.status == 200 => Ok(nanos),
            _ => Err(format!("connection {number}: answer {} {content:?}", answer.status).into()),
        }
    }

    fn expect_silence(&mut self) -> Outcome<()> {
        for (number, connection) in self.connections.iter_mut().enumerate() {
            expect_silence(connection).map_err(|error| format!("connection {number}: {error}"))?;
        }
        Ok(())
    }
}

/// Makes sure that a connection is open and that nothing came after the answer.
fn expect_silence(connection: &mut BufReader<TcpStream>) -> Outcome<()> {
    if !connection.buffer().is_empty() {
        return Err("a second answer came".into());
    }
    let stream = connection.get_mut();
    stream.set_nonblocking(true)?;
    let read = stream.read(&mut [0]);
    stream.set_nonblocking(false)?;
    match read {
        Ok(0) => Err("the server closed it".into()),
        Ok(_) => Err("a second answer came".into()),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::{io::BufRead, net::TcpListener, thread};

    use super::*;

    const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n12\n";

    fn connected(listener: &TcpListener) -> Client {
        let mut client = Client::new(ClientOptions {
            address: listener.local_addr().unwrap(),
            connections: 1,
            padding_bytes: 400,
        });
        client.take("connect", "").unwrap();
        client
    }

    /// What a client says of a server that answers its one parked request with `bytes`.
    fn collect(bytes: &'static [u8], is_closed: bool) -> Result<(), String> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = connected(&listener);
        client.take("park", "").unwrap();
        let (mut server, _) = listener.accept().unwrap();
        let expected = client.options.parking_head(0);
        let mut head = vec![0; expected.len()];
        server.read_exact(&mut head).unwrap();
        assert_eq!(head, expected);
        server.write_all(bytes).unwrap();
        let server = (!is_closed).then_some(server);
        let outcome = client.take("collect", "").and_then(|_| client.take("silence", ""));
        drop(server);
        outcome.map(|_| ()).map_err(|error| error.to_string())
    }

    #[test]
    fn takes_one_answer_and_no_other() {
        assert_eq!(collect(ANSWER, false), Ok(()));
        let check = |bytes, is_closed, expected: &str| {
            let error = collect(bytes, is_closed).unwrap_err();
            assert!(error.contains(expected), "{error}");
        };
        check(ANSWER.repeat(2).leak(), false, "second answer");
        check(ANSWER, true, "closed");
        check(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnone", false, "none");
        check(b"HTTP/1.1 500 Oops\r\nContent-Length: 2\r\n\r\n12", false, "500");
        check(b"HTTP/1.1 200 OK\r\n", true, "no answer");
    }

    #[test]
    fn exchanges_and_what_it_follows_wait_for_their_answers() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = connected(&listener);
        let server = thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream);
            for _ in 0..3 {
                let mut line = String::new();
                while line != "\r\n" {
                    line.clear();
                    reader.read_line(&mut line).unwrap();
                }
                reader.get_mut().write_all(ANSWER).unwrap();
            }
        });
        client.take("exchange", "").unwrap();
        client.take("park", "").unwrap();
        // It parks again after each.
        assert!(client.take("follow", "1").unwrap().starts_with("count=1 "));
        client.take("collect", "").unwrap();
        server.join().unwrap();
    }

    #[test]
    fn heads_are_equally_long() {
        let address = "127.0.0.1:80".parse().unwrap();
        let options = ClientOptions { address, connections: 1, padding_bytes: 10 };
        assert_eq!(options.parking_head(0).len(), options.parking_head(24_999).len());
        assert!(Client::new(options).take("jump", "").is_err());
    }
}
