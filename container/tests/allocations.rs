//! The path of a plain keep-alive request allocates nothing once it is warm: not in the engine, not
//! in the protocol, not in the container, with a filter and three valves on the way. The only test
//! of its program, since the allocator that counts is that of the whole process.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::{
    alloc::System,
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

use ringcat::{
    Connector, Context, Filter, FilterChain, Next, Request, Response, Result, Server, Valve,
};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const REQUEST: &[u8] = b"GET /app/hello?a=b HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n";
const CONTENT: &str = "hello\n";
const WARM_UP: usize = 500;
const COUNTED: usize = 2000;
const ROUNDS_MAX: usize = 5;

struct Pass;

impl Filter for Pass {
    fn filter(&self, req: &mut Request, res: &mut Response, chain: FilterChain<'_>) -> Result<()> {
        chain.next(req, res)
    }
}

impl Valve for Pass {
    fn name(&self) -> &str {
        "pass"
    }

    fn invoke(&self, req: &mut Request, res: &mut Response, next: Next<'_>) -> Result<()> {
        next.invoke(req, res)
    }
}

#[test]
fn a_plain_request_allocates_nothing_once_warm() {
    let context = Context::new("/app")
        .get("/hello", |_req, res| {
            res.set_content_type("text/plain");
            res.write(CONTENT)
        })
        .filter("/*", Pass)
        .valve(Pass)
        .valve(Pass);
    let server = Server::builder()
        .connector(Connector::http("127.0.0.1:0"))
        .cores(1)
        .valve(Pass)
        .context(context)
        .start()
        .unwrap();
    let mut client = TcpStream::connect(server.local_addr()).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut answer = [0; 1024];
    for _ in 0..WARM_UP {
        ask(&mut client, &mut answer);
    }
    // The harness has a thread of its own that may still be at its bookkeeping. What a request
    // allocates is there in every round.
    let mut counts = Vec::new();
    while counts.len() < ROUNDS_MAX && !counts.contains(&(0, 0, 0)) {
        let region = Region::new(ALLOCATOR);
        for _ in 0..COUNTED {
            ask(&mut client, &mut answer);
        }
        let change = region.change();
        counts.push((change.allocations, change.reallocations, change.deallocations));
    }
    assert!(counts.contains(&(0, 0, 0)), "rounds of {COUNTED} requests: {counts:?}");
    drop(client);
    server.stop();
}

/// One request and its whole answer, without an allocation on this side.
fn ask(client: &mut TcpStream, answer: &mut [u8]) {
    client.write_all(REQUEST).unwrap();
    let mut len = 0;
    while !answer[..len].ends_with(CONTENT.as_bytes()) {
        let count = client.read(&mut answer[len..]).unwrap();
        assert!(count > 0, "the server closed the connection");
        len += count;
    }
    assert!(answer.starts_with(b"HTTP/1.1 200 OK\r\n"));
}
