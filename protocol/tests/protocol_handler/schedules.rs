//! Any mix of requests on several connections, cut anywhere, with sends that take their time and
//! with other threads that end what waits in any order: each client gets its answers, in order.

use proptest::prelude::*;
use ringcat_engine::key::ConnKey;
use ringcat_protocol::async_state_machine::AsyncState;

use crate::{Site, answer, get};

/// A request that a client may send.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Hello,
    Echo,
    EchoChunked,
    Chunked,
    Stream,
    Ignore,
    Park,
    Complete,
    Delegate,
    Large,
}

const KINDS: [Kind; 10] = [
    Kind::Hello,
    Kind::Echo,
    Kind::EchoChunked,
    Kind::Chunked,
    Kind::Stream,
    Kind::Ignore,
    Kind::Park,
    Kind::Complete,
    Kind::Delegate,
    Kind::Large,
];

impl Kind {
    fn request(self) -> String {
        let post =
            |path| format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody");
        match self {
            Self::Hello => get("/hello"),
            Self::Echo => post("/echo"),
            Self::EchoChunked => "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\
                                  \r\n\r\n2\r\nbo\r\n2\r\ndy\r\n0\r\n\r\n"
                .to_owned(),
            Self::Chunked => get("/chunked"),
            Self::Stream => post("/stream"),
            Self::Ignore => post("/ignore"),
            Self::Park => get("/park"),
            Self::Complete => get("/complete"),
            Self::Delegate => post("/delegate"),
            Self::Large => get("/large"),
        }
    }

    fn answer(self) -> String {
        match self {
            Self::Hello => answer("hello"),
            Self::Echo | Self::EchoChunked | Self::Stream => answer("body"),
            Self::Chunked => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
                              4\r\none,\r\n3\r\ntwo\r\n0\r\n\r\n"
                .to_owned(),
            Self::Ignore => answer("ignored"),
            Self::Park => answer("parked"),
            Self::Complete => answer("at once"),
            Self::Delegate => answer("worked: body"),
            Self::Large => format!(
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n186a0\r\n{}\r\n0\r\n\r\n",
                "x".repeat(100_000)
            ),
        }
    }
}

/// What happens next.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// So many bytes arrive on a connection, by the connection's index.
    Receive(usize, usize),
    /// The oldest send of a connection arrives.
    Sent(usize),
    /// Another thread ends a parked request.
    Complete,
    /// A worker does its job.
    Work,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..3_usize, 1..300_usize).prop_map(|(conn, count)| Step::Receive(conn, count)),
        2 => (0..3_usize).prop_map(Step::Sent),
        1 => Just(Step::Complete),
        1 => Just(Step::Work),
    ]
}

/// Lets another thread end a request that is parked; whether there was one.
fn complete_one(site: &mut Site) -> bool {
    let handles = site.stage.handles.lock().unwrap().clone();
    let parked = handles
        .into_iter()
        .find(|handle| handle.0.word().state() == AsyncState::Started && handle.path() == b"/park");
    let Some(handle) = parked else { return false };
    crate::elsewhere(|| {
        handle.write("parked").unwrap();
        handle.complete().unwrap();
    });
    site.driver.settle();
    true
}

/// Lets a worker do a job whose body has come; whether there was one.
fn work_one(site: &mut Site) -> bool {
    let job = {
        let mut jobs = site.stage.jobs.lock().unwrap();
        let ready = jobs.iter().position(|job| job.handle.0.inbound_len() == 4);
        ready.map(|index| jobs.swap_remove(index))
    };
    let Some(job) = job else { return false };
    crate::elsewhere(|| {
        let mut body = [0; 8];
        assert_eq!(job.handle.0.try_read(&mut body).unwrap(), 4);
        job.handle.write("worked: ").unwrap();
        job.handle.write(body[..4].to_vec()).unwrap();
        job.finish();
    });
    site.driver.settle();
    true
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn every_client_gets_its_answers_in_order(
        requests in prop::collection::vec(
            prop::collection::vec(prop::sample::select(&KINDS[..]), 0..12), 3),
        steps in prop::collection::vec(step(), 0..120),
    ) {
        let mut site = Site::new();
        let conns: Vec<ConnKey> = (0..3).map(|_| site.driver.connect()).collect();
        conns.iter().for_each(|conn| site.driver.hold_sends(*conn));
        let mut streams: Vec<Vec<u8>> = requests
            .iter()
            .map(|kinds| kinds.iter().map(|kind| kind.request()).collect::<String>().into_bytes())
            .collect();
        let receive = |site: &mut Site, stream: &mut Vec<u8>, conn, count: usize| {
            let count = count.min(stream.len());
            if count > 0 {
                site.driver.receive(conn, stream.drain(..count).collect::<Vec<u8>>());
            }
            count > 0
        };
        for step in steps {
            match step {
                Step::Receive(index, count) => {
                    receive(&mut site, &mut streams[index], conns[index], count);
                }
                Step::Sent(index) => {
                    site.driver.release_send(conns[index]);
                }
                Step::Complete => {
                    complete_one(&mut site);
                }
                Step::Work => {
                    work_one(&mut site);
                }
            }
        }
        loop {
            let mut has_moved = complete_one(&mut site) | work_one(&mut site);
            for (stream, conn) in streams.iter_mut().zip(&conns) {
                has_moved |= receive(&mut site, stream, *conn, 500);
                has_moved |= site.driver.release_send(*conn) > 0;
            }
            if !has_moved {
                break;
            }
        }
        for (kinds, conn) in requests.iter().zip(&conns) {
            let expected: String = kinds.iter().map(|kind| kind.answer()).collect();
            prop_assert_eq!(site.driver.text(*conn), expected);
        }
        site.finish(&conns);
    }
}
