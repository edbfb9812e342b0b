//! The program `bare-ring`, started and spoken to over loopback.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    process::{Child, Command, Stdio},
    time::Duration,
};

use ringcat_bench::bare_ring::HELLO;

const REQUEST: &[u8] = b"GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// A running `bare-ring`, ended with the test.
struct Running {
    child: Child,
    address: SocketAddr,
}

impl Running {
    fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_bare-ring"))
            .args(["--listen", "127.0.0.1:0"])
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim_end().strip_prefix("listening on ").unwrap().parse().unwrap();
        Self { child, address }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn read_responses(stream: &mut TcpStream, response: &[u8], count: usize) {
    let mut bytes = vec![0; response.len() * count];
    stream.read_exact(&mut bytes).unwrap();
    assert_eq!(bytes, response.repeat(count));
}

#[test]
fn answers_on_a_connection_that_stays_open() {
    let server = Running::start(&[]);
    let mut stream = server.connect();
    for _ in 0..3 {
        stream.write_all(REQUEST).unwrap();
        read_responses(&mut stream, HELLO, 1);
    }
}

#[test]
fn answers_pipelined_and_cut_requests_each_once_then_closes() {
    let server = Running::start(&[]);
    let mut stream = server.connect();
    let (first, second) = REQUEST.split_at(REQUEST.len() - 2);
    stream.write_all(&REQUEST.repeat(1000)).unwrap();
    stream.write_all(first).unwrap();
    read_responses(&mut stream, HELLO, 1000);
    stream.write_all(second).unwrap();
    stream.write_all(&REQUEST.repeat(16)).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    read_responses(&mut stream, HELLO, 17);
    assert_eq!(stream.read(&mut [0]).unwrap(), 0, "nothing more, and the end");
}

#[test]
fn sends_the_response_of_a_file() {
    let path = std::env::temp_dir().join(format!("bare-ring-{}.http", std::process::id()));
    let response = b"HTTP/1.1 204 No Content\r\n\r\n";
    std::fs::write(&path, response).unwrap();
    let server = Running::start(&["--response", path.to_str().unwrap()]);
    std::fs::remove_file(&path).unwrap();
    let mut stream = server.connect();
    stream.write_all(&REQUEST.repeat(2)).unwrap();
    read_responses(&mut stream, response, 2);
}

#[test]
fn a_taken_address_is_named() {
    let server = Running::start(&[]);
    let output = Command::new(env!("CARGO_BIN_EXE_bare-ring"))
        .args(["--listen", &server.address.to_string()])
        .output()
        .unwrap();
    assert!(!output.status.success());
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains(&server.address.to_string()), "{text}");
}
