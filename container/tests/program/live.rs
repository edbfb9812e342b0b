//! The live list: what one posts, all who wait get.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
};

use crate::{process::Process, support::PATIENCE};

/// A reader of a stream whose end is not known.
struct Listener {
    stream: TcpStream,
    received: String,
}

impl Listener {
    fn ask(address: SocketAddr, target: &str) -> Self {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let request = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        Self { stream, received: String::new() }
    }

    /// Receives until a text has come.
    fn wait_for(&mut self, text: &str) {
        let mut piece = [0; 4096];
        while !self.received.contains(text) {
            let count = self.stream.read(&mut piece).unwrap();
            assert!(count > 0, "the stream ended: {:?}", self.received);
            self.received += &String::from_utf8_lossy(&piece[..count]);
        }
    }
}

fn post(process: &Process, text: &str) {
    let body = format!("text={text}");
    let fields = ["Content-Type: application/x-www-form-urlencoded"];
    let answer = process.client().ask_with("POST /examples/live/post", &fields, &body).answer();
    assert_eq!(answer.status, 204, "{}", answer.text());
}

#[test]
fn a_post_reaches_streams_and_polls_at_once() {
    let process = Process::start(&["--cores", "2"]);
    let mut streams: Vec<_> =
        (0..5).map(|_| Listener::ask(process.address(), "/examples/live/events")).collect();
    for stream in &mut streams {
        stream.wait_for(": open\n\n");
    }
    let mut poll = Listener::ask(process.address(), "/examples/live/poll?after=0");
    // Some leave; nobody else notices.
    drop(streams.pop());
    post(&process, "first");
    for stream in &mut streams {
        stream.wait_for("id: 1\ndata: first\n\n");
    }
    poll.wait_for("1 first\n");
    post(&process, "second");
    for stream in &mut streams {
        stream.wait_for("id: 2\ndata: second\n\n");
    }
    // Who comes later gets what is kept, or what is behind its number.
    let mut late = Listener::ask(process.address(), "/examples/live/events");
    late.wait_for("data: second\n\n");
    let known = process.client().get("/examples/live/poll?after=1");
    assert_eq!((known.status, &*known.text()), (200, "2 second\n"));
    let page = process.client().get("/examples/live");
    assert!(page.text().contains("<button>Post</button>"), "{}", page.text());
    assert_eq!(process.client().get("/examples/live/poll?after=x").status, 400);
    drop((streams, late, poll));
    assert_eq!(process.stop().status.code(), Some(0));
}
