//! `ReadListener`: content in pieces, its end told once, no content, failures, a lost client.

use ringcat::{AsyncContext, Context, Error, ErrorKind, ReadListener, Request, Response, Result};
use ringcat_engine::sim::fault::Fault;

use crate::{
    simulated::{TestServer, simulated, simulated_without},
    support::{Journal, Noting, channel, streaming, take},
};

/// Reads what is there, and completes at the end.
struct Reader {
    context: AsyncContext,
    journal: Journal,
    content: Vec<u8>,
    fails_at: Option<&'static str>,
    /// Bytes a call reads at most before it goes without asking `is_ready` again.
    piece_bytes: usize,
}

impl Reader {
    fn new(context: AsyncContext, journal: &Journal) -> Self {
        let journal = journal.clone();
        Self { context, journal, content: Vec::new(), fails_at: None, piece_bytes: 8192 }
    }

    fn fail_at(&self, call: &str) -> Result<()> {
        match self.fails_at {
            Some(place) if place == call => Err(Error::app("the reader fails")),
            Some("panic") => panic!("the reader panics"),
            Some(_) | None => Ok(()),
        }
    }
}

impl ReadListener for Reader {
    fn on_data_available(&mut self, request: &mut Request, _response: &mut Response) -> Result<()> {
        let begin = self.content.len();
        let mut piece = vec![0; self.piece_bytes];
        while request.is_ready() {
            let count = request.read(&mut piece)?;
            if count == 0 {
                break;
            }
            self.content.extend_from_slice(&piece[..count]);
        }
        let read = String::from_utf8_lossy(&self.content[begin..]);
        self.journal.note(format!("data {read}"));
        self.fail_at("data")
    }

    fn on_all_data_read(&mut self, request: &mut Request, response: &mut Response) -> Result<()> {
        assert!(request.is_finished());
        self.journal.note("all");
        self.fail_at("all")?;
        response.write(&self.content)?;
        self.context.complete()
    }

    fn on_error(
        &mut self,
        _request: &mut Request,
        _response: &mut Response,
        error: &Error,
    ) -> Result<()> {
        self.journal.note(format!("reader.on_error({:?})", error.kind()));
        Ok(())
    }
}

/// A server whose servlet reads with a listener, and has a listener of its end.
fn reading(journal: &Journal, fails_at: Option<&'static str>) -> TestServer {
    let journal = journal.clone();
    TestServer::start(Context::new("").servlet(
        "/",
        streaming(move |req, _res| {
            let context = req.start_async()?;
            context.add_listener(Noting::new("round", &journal))?;
            let reader = Reader { fails_at, ..Reader::new(context, &journal) };
            req.set_read_listener(reader)?;
            journal.note("service returns");
            Ok(())
        }),
    ))
}

#[test]
fn each_piece_is_a_call_and_the_end_is_told_once() {
    // A receive that brings half a piece is a call for it.
    simulated_without(Fault::ShortReceive, || {
        let journal = Journal::default();
        let server = reading(&journal, None);
        let mut client = server.client();
        client.ask_with("POST /", &["Content-Length: 15"], "");
        journal.wait_for("service returns");
        for piece in ["11111", "22222", "33333"] {
            client.send(piece);
            journal.wait_for(&format!("data {piece}"));
        }
        client.answer().expect(200, "111112222233333");
        client.ask_with("POST /", &[], "again").answer().expect(200, "again");
        server.stop();
        let expected = [
            "service returns",
            "data 11111",
            "data 22222",
            "data 33333",
            "all",
            "round.on_complete",
            "service returns",
            "data again",
            "all",
            "round.on_complete",
        ];
        assert_eq!(journal.entries(), expected);
    });
}

#[test]
fn chunks_cut_anywhere_give_the_same_content() {
    simulated(|| {
        let journal = Journal::default();
        let server = reading(&journal, None);
        let mut client = server.client();
        client.send("POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
        for byte in b"5;a=b\r\nhello\r\n1\r\n \r\n5\r\nworld\r\n0\r\nT: x\r\n\r\n" {
            client.send([*byte]);
        }
        client.answer().expect(200, "hello world");
        server.stop();
        let entries = journal.entries();
        assert!(entries.iter().all(|entry| entry != "data "), "a call without data: {entries:?}");
        assert_eq!((journal.count("all"), journal.count("round.on_complete")), (1, 1));
    });
}

#[test]
fn no_content_is_the_end_at_once() {
    simulated(|| {
        let journal = Journal::default();
        let server = reading(&journal, None);
        let mut client = server.client();
        client.get("/").expect(200, "");
        client.ask_with("POST /", &["Content-Length: 0"], "").answer().expect(200, "");
        server.stop();
        let expected = ["service returns", "all", "round.on_complete"];
        assert_eq!(journal.entries(), [expected, expected].concat());
    });
}

#[test]
fn large_content_passes_in_bounded_pieces() {
    simulated(|| {
        let journal = Journal::default();
        let server = reading(&journal, None);
        let long = "0123456789abcdef".repeat(64 * 1024);
        server.client().ask_with("POST /", &[], &long).answer().expect(200, &long);
        server.stop();
        let longest = journal.entries().iter().map(String::len).max();
        assert!(longest < Some(long.len() / 2), "{longest:?}");
        assert_eq!(journal.count("all"), 1);
    });
}

#[test]
fn a_failing_reader_hears_of_it_and_so_do_the_listeners() {
    simulated(|| {
        for (fails_at, kind) in [("data", "App"), ("all", "App"), ("panic", "Panic")] {
            let journal = Journal::default();
            let server = reading(&journal, Some(fails_at));
            let mut client = server.client();
            client.ask_with("POST /", &[], "abc");
            if let Some(answer) = client.answer_or_end() {
                assert_eq!(answer.status, 500, "{fails_at}");
            }
            client.expect_close();
            server.stop();
            for entry in [
                format!("reader.on_error({kind})"),
                format!("round.on_error({kind})"),
                "round.on_complete".to_owned(),
            ] {
                assert_eq!(journal.count(&entry), 1, "{fails_at}: {entry} {:?}", journal.entries());
            }
        }
    });
}

#[test]
fn a_client_that_leaves_inside_the_content_is_an_error_of_the_read() {
    simulated(|| {
        for resets in [true, false] {
            let journal = Journal::default();
            let server = reading(&journal, None);
            let mut client = server.client();
            client.ask_with("POST /", &["Content-Length: 10"], "").send("half");
            journal.wait_for("data half");
            if resets {
                client.reset();
            } else {
                client.shutdown_write();
                while client.answer_or_end().is_some() {}
            }
            journal.wait_for("round.on_complete");
            let report = server.stop();
            let entries = journal.entries();
            let position = |part: &str| entries.iter().position(|entry| entry.contains(part));
            let reader = position("reader.on_error");
            assert!(reader.is_some() && reader < position("round.on_error"), "{entries:?}");
            assert_eq!(journal.count("round.on_complete"), 1, "{entries:?}");
            assert_eq!((journal.count("all"), report.statuses[1]), (0, 0), "{entries:?}");
        }
    });
}

#[test]
fn a_read_listener_needs_a_round_and_is_the_only_one() {
    simulated(|| {
        let (sender, receiver) = channel();
        let journal = Journal::default();
        let context = Context::new("").servlet(
            "/",
            streaming(move |req, _res| {
                let context = req.start_async()?;
                req.set_read_listener(Reader::new(context.clone(), &journal))?;
                let twice = req.set_read_listener(Reader::new(context, &journal)).unwrap_err();
                sender.send(vec![twice.kind()]);
                Ok(())
            }),
        );
        let server = TestServer::start(context);
        server.client().ask_with("POST /", &[], "abc").answer().expect(200, "abc");
        assert_eq!(take(&receiver), [ErrorKind::IllegalState]);
    });
}

#[test]
fn a_complete_with_unread_content_keeps_the_connection() {
    simulated(|| {
        let context = Context::new("").servlet(
            "/",
            streaming(|req, res| {
                let context = req.start_async()?;
                res.write("early")?;
                context.complete()
            }),
        );
        let server = TestServer::start(context);
        let mut client = server.client();
        client.ask_with("POST /", &["Content-Length: 6"], "").answer().expect(200, "early");
        client.send("unread").get("/").expect(200, "early");
    });
}
