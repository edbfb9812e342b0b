//! Content of requests and what becomes of it: parameters, forms, content that is collected,
//! chunks, limits, content that nobody reads.

use ringcat::Context;

use crate::{
    simulated::{TestServer, builder, simulated},
    support::{Journal, streaming},
};

#[test]
fn parameters_come_from_the_query_and_then_from_the_form() {
    simulated(|| {
        let context = Context::new("").post("/", |req, res| {
            let mut line = String::new();
            for name in ["a", "b", "c", "none"] {
                line += req.parameter(name)?.unwrap_or("-");
                line += "|";
            }
            res.write(line)
        });
        let server = TestServer::start(context);
        let mut client = server.client();
        let form = ["Content-Type: application/x-www-form-urlencoded"];
        let target = "POST /?a=1%202&b=%C3%A9";
        client
            .ask_with(target, &form, "a=late&c=x+y&c=second")
            .answer()
            .expect(200, "1 2|é|x y|-|");
        let form = ["Content-Type: Application/X-WWW-Form-Urlencoded; charset=utf-8"];
        client.ask_with("POST /", &form, "b=&c=%26").answer().expect(200, "-||&|-|");
        let text = ["Content-Type: text/plain"];
        client.ask_with("POST /?a=1", &text, "b=2").answer().expect(200, "1|-|-|-|");
        client.ask_with("POST /", &form, "a=%zz").answer().expect_report(400);
    });
}

#[test]
fn collected_content_is_there_when_the_servlet_is_called() {
    simulated(|| {
        let context = Context::new("").post("/", |req, res| {
            assert!(req.is_ready());
            let mut first = [0; 3];
            assert_eq!(req.read(&mut first)?, 3);
            let rest = req.read_to_end()?;
            assert!(req.is_finished());
            assert_eq!(req.read(&mut first)?, 0);
            res.write(first)?;
            res.write(rest)
        });
        let server = TestServer::start(context);
        let mut client = server.client();
        client.ask_with("POST /", &[], "abcdef").answer().expect(200, "abcdef");
        // Bytes one by one, so that every border is somewhere in between.
        let chunked = "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n\
                       3;x=\"y\"\r\nabc\r\n2\r\nde\r\n0\r\nT: 1\r\n\r\n";
        for byte in chunked.as_bytes() {
            client.send([*byte]);
        }
        client.answer().expect(200, "abcde");
        let long = "x".repeat(1_500_000);
        client.ask_with("POST /", &[], &long).answer().expect(200, &long);
    });
}

#[test]
fn trailers_follow_the_content() {
    simulated(|| {
        let context = Context::new("").post("/", |req, res| {
            req.read_to_end()?;
            let trailers: Vec<String> = req
                .trailers()
                .map(|(name, value)| {
                    format!("{}={}", String::from_utf8_lossy(name), String::from_utf8_lossy(value))
                })
                .collect();
            res.write(format!("{:?} {}", req.content_length(), trailers.join(",")))
        });
        let server = TestServer::start(context);
        let mut client = server.client();
        client.send(
            "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n\
             1\r\na\r\n0\r\nX-Sum: 7\r\n\r\n",
        );
        client.answer().expect(200, "None x-sum=7");
    });
}

#[test]
fn content_past_the_limit_is_413_before_the_servlet() {
    simulated(|| {
        let journal = Journal::default();
        let seen = journal.clone();
        let context = Context::new("").post("/", move |req, res| {
            seen.note("servlet");
            let count = req.read_to_end()?.len();
            res.write(count.to_string())
        });
        let server = TestServer::of(builder(context).body_bytes_max(1000));
        server.client().ask_with("POST /", &[], &"x".repeat(1000)).answer().expect(200, "1000");
        let mut client = server.client();
        client.ask_with("POST /", &["Content-Length: 1001"], "").answer().expect_report(413);
        client.expect_close();
        let mut client = server.client();
        client.send("POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
        client.send(format!("3e9\r\n{}\r\n", "x".repeat(1001))).answer().expect_report(413);
        let report = server.stop();
        assert_eq!((journal.entries().len(), report.refused), (1, 2));
    });
}

#[test]
fn continue_is_said_once_when_the_content_is_wanted() {
    simulated(|| {
        let context = Context::new("").post("/in", |req, res| {
            let content = req.read_to_end()?;
            res.write(content)
        });
        let server = TestServer::start(context);
        let mut client = server.client();
        let head = ["Expect: 100-continue", "Content-Length: 3"];
        let go_on = client.ask_with("POST /in", &head, "").answer();
        assert_eq!((go_on.status, go_on.fields.len()), (100, 0));
        client.send("abc").answer().expect(200, "abc");
        // Nobody takes it there, so nobody asks for it.
        client.ask_with("POST /none", &head, "").answer().expect_report(404);
        client.expect_close();
    });
}

#[test]
fn content_that_nobody_reads_is_swallowed() {
    simulated(|| {
        let context = Context::new("").servlet("/", streaming(|_req, res| res.write("unread")));
        let server = TestServer::start(context);
        let mut client = server.client();
        client.ask_with("POST /", &[], &"x".repeat(200_000)).answer().expect(200, "unread");
        client.ask_with("POST /", &["Content-Length: 5"], "").answer().expect(200, "unread");
        client.send("GET /").ask("GET /").answer().expect(200, "unread");
        // Too much is not worth it: the connection ends instead.
        client
            .ask_with("POST /", &["Content-Length: 100000000"], "")
            .answer()
            .expect(200, "unread");
        for _ in 0..64 {
            client.send(vec![b'x'; 65_536]);
        }
        client.expect_close();
    });
}

#[test]
fn a_connection_that_ends_inside_the_content_is_not_a_request() {
    simulated(|| {
        let journal = Journal::default();
        let seen = journal.clone();
        let context = Context::new("").post("/", move |_req, _res| {
            seen.note("servlet");
            Ok(())
        });
        let server = TestServer::start(context);
        let mut client = server.client();
        client.ask_with("POST /", &["Content-Length: 10"], "").send("half").shutdown_write();
        client.answer().expect_report(400);
        server.client().ask_with("POST /", &["Content-Length: 10"], "").send("half");
        assert_eq!(server.stop().statuses[1], 0);
        assert!(journal.entries().is_empty());
    });
}

#[test]
fn a_streaming_servlet_is_told_how_to_read() {
    simulated(|| {
        let context = Context::new("").servlet(
            "/",
            streaming(|req, res| {
                let mut buffer = [0; 8];
                let error = req.read(&mut buffer).unwrap_err();
                res.write(format!("{:?} {error}", error.kind()))
            }),
        );
        let server = TestServer::start(context);
        let text = server.client().ask_with("POST /", &["Content-Length: 5"], "").answer().text();
        for part in ["IllegalState", "ReadListener", "blocking"] {
            assert!(text.contains(part), "{text} lacks {part}");
        }
    });
}
