//! The client of `perf parked`, in a process of its own so that its memory and its open files are
//! not the measuring process's. It takes a step a line on its standard input and answers each with
//! a line: what it did, or what was wrong.

use std::{
    fmt,
    io::{self, BufReader, ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    str::FromStr,
    time::Duration,
};

use clap::Args;

use crate::{
    Outcome,
    answer::{self, Answer},
};

/// Silence of the server that ends the test.
const READ_MAX: Duration = Duration::from_secs(60);
/// Buffer of a connection; small, since there are many and answers are short.
const BUFFER_BYTES: usize = 512;
/// What the answer to a parked request says.
const DONE: &[u8] = b"done";

/// What the client needs to know.
#[derive(Args, Clone, Debug)]
pub(crate) struct ClientOptions {
    /// Where the server listens
    #[arg(long)]
    pub(crate) address: SocketAddr,
    /// Connections to open
    #[arg(long)]
    pub(crate) connections: usize,
    /// What is answered at once
    #[arg(long)]
    pub(crate) quick_path: String,
    /// What parks
    #[arg(long)]
    pub(crate) path: String,
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
            format!("--quick-path={}", self.quick_path),
            format!("--path={}", self.path),
            format!("--padding-bytes={}", self.padding_bytes),
        ]
    }
}

/// A step of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Opens the connections.
    Connect,
    /// On each connection, one request that is answered at once, and its answer.
    Exchange,
    /// On each connection, one request that parks.
    Park,
    /// Receives the answer of each parked request, and makes sure that nothing follows.
    Collect,
}

impl Step {
    const ALL: [Self; 4] = [Self::Connect, Self::Exchange, Self::Park, Self::Collect];
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connect => "connect",
            Self::Exchange => "exchange",
            Self::Park => "park",
            Self::Collect => "collect",
        })
    }
}

impl FromStr for Step {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let step = Self::ALL.into_iter().find(|step| step.to_string() == text);
        step.ok_or_else(|| format!("{text:?} is no step"))
    }
}

/// The line that says that a step is done.
pub(crate) fn done_line(step: Step) -> String {
    format!("done {step}")
}

/// Takes steps until its input ends.
///
/// # Errors
/// A step failed. Its text is the answer to the step too.
pub(crate) fn run(options: &ClientOptions) -> Outcome<()> {
    let mut client = Client { options: options.clone(), connections: Vec::new() };
    for line in io::stdin().lines() {
        let step = line?.parse()?;
        let outcome = client.take(step);
        let answer = match &outcome {
            Ok(()) => done_line(step),
            Err(error) => format!("{step} failed: {error}"),
        };
        println!("{answer}");
        io::stdout().flush()?;
        outcome?;
    }
    Ok(())
}

struct Client {
    options: ClientOptions,
    connections: Vec<BufReader<TcpStream>>,
}

impl Client {
    fn take(&mut self, step: Step) -> Outcome<()> {
        match step {
            Step::Connect => self.connect(),
            Step::Exchange => self.exchange(),
            Step::Park => self.park(),
            Step::Collect => self.collect(),
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
        let head = self.head(&self.options.quick_path);
        for (number, connection) in self.connections.iter_mut().enumerate() {
            let answer = answer::exchange(connection, &head)
                .map_err(|error| format!("connection {number}: {error}"))?;
            if answer.status != 200 {
                return Err(format!("connection {number}: answer {}", answer.status).into());
            }
        }
        Ok(())
    }

    fn park(&mut self) -> Outcome<()> {
        let head = self.head(&self.options.path);
        for (number, connection) in self.connections.iter_mut().enumerate() {
            connection
                .get_mut()
                .write_all(&head)
                .map_err(|error| format!("connection {number}: {error}"))?;
        }
        Ok(())
    }

    fn collect(&mut self) -> Outcome<()> {
        for (number, connection) in self.connections.iter_mut().enumerate() {
            let answer = Answer::read(connection)
                .map_err(|error| format!("connection {number}: no answer: {error}"))?;
            if answer.status != 200 || answer.content.trim_ascii() != DONE {
                let content = String::from_utf8_lossy(&answer.content);
                let status = answer.status;
                return Err(format!("connection {number}: answer {status} {content:?}").into());
            }
        }
        // Only now: a second answer would have had the time to come.
        for (number, connection) in self.connections.iter_mut().enumerate() {
            expect_silence(connection).map_err(|error| format!("connection {number}: {error}"))?;
        }
        Ok(())
    }

    fn head(&self, path: &str) -> Vec<u8> {
        answer::request_head(path, &self.options.address.to_string(), self.options.padding_bytes)
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

    const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\ndone\n";

    #[test]
    fn steps_have_names() {
        for step in Step::ALL {
            assert_eq!(step.to_string().parse(), Ok(step));
        }
        assert!("jump".parse::<Step>().is_err());
    }

    /// What a client says of a server that answers its one parked request with `bytes`.
    fn collect(bytes: &'static [u8], is_closed: bool) -> Result<(), String> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let options = ClientOptions {
            address: listener.local_addr().unwrap(),
            connections: 1,
            quick_path: "/quick".to_owned(),
            path: "/slow".to_owned(),
            padding_bytes: 400,
        };
        let mut client = Client { options, connections: Vec::new() };
        client.take(Step::Connect).unwrap();
        client.take(Step::Park).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        let expected = client.head("/slow");
        let mut head = vec![0; expected.len()];
        server.read_exact(&mut head).unwrap();
        assert_eq!(head, expected);
        server.write_all(bytes).unwrap();
        let server = (!is_closed).then_some(server);
        let outcome = client.take(Step::Collect).map_err(|error| error.to_string());
        drop(server);
        outcome
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
        check(b"HTTP/1.1 500 Oops\r\nContent-Length: 4\r\n\r\ndone", false, "500");
        check(b"HTTP/1.1 200 OK\r\n", true, "no answer");
    }

    #[test]
    fn exchanges_wait_for_their_answers() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let options = ClientOptions {
            address: listener.local_addr().unwrap(),
            connections: 1,
            quick_path: "/quick".to_owned(),
            path: "/slow".to_owned(),
            padding_bytes: 0,
        };
        let server = thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream);
            let mut line = String::new();
            while line != "\r\n" {
                line.clear();
                reader.read_line(&mut line).unwrap();
            }
            reader.get_mut().write_all(ANSWER).unwrap();
        });
        let mut client = Client { options, connections: Vec::new() };
        client.take(Step::Connect).unwrap();
        client.take(Step::Exchange).unwrap();
        server.join().unwrap();
    }
}
