//! Keep-alive and pipelining: answers in order, requests that wait behind a parked one, versions
//! and fields that end a connection.

use ringcat::Context;

use crate::{
    simulated::{TestServer, simulated},
    support::{Journal, blocking, handing_over, request, take},
};

fn numbered() -> Context {
    Context::new("").get("/n/*", |req, res| {
        let number = req.path_info().unwrap_or("").to_owned();
        res.write(number)
    })
}

#[test]
fn answers_come_in_the_order_of_the_requests() {
    simulated(|| {
        let server = TestServer::start(numbered());
        let mut client = server.client();
        let burst: String =
            (0..500).map(|number| request(&format!("GET /n/{number}"), &[], "")).collect();
        client.send(burst);
        for number in 0..500 {
            client.answer().expect(200, &format!("/{number}"));
        }
        assert_eq!(server.stop().connections_accepted, 1);
    });
}

#[test]
fn nothing_passes_a_parked_request() {
    simulated(|| {
        let journal = Journal::default();
        let seen = journal.clone();
        let (servlet, contexts) = handing_over();
        let context = Context::new("").servlet("/park", servlet).get("/next", move |_req, res| {
            seen.note("next");
            res.write("next")
        });
        let server = TestServer::start(context);
        let mut client = server.client();
        for round in 1..=3 {
            let burst = ["GET /park", "GET /next", "GET /park"].map(|line| request(line, &[], ""));
            client.send(burst.concat());
            let first = take(&contexts);
            server.get("/next").expect(200, "next");
            assert_eq!(journal.entries().len(), 3 * round - 2, "only the other connection's");
            first.response().unwrap().write("first").unwrap();
            first.complete().unwrap();
            client.answer().expect(200, "first");
            client.answer().expect(200, "next");
            let third = take(&contexts);
            third.response().unwrap().write("third").unwrap();
            third.complete().unwrap();
            client.answer().expect(200, "third");
            server.get("/next").expect(200, "next");
        }
    });
}

#[test]
fn what_is_sent_while_a_request_is_parked_is_served_after_it() {
    simulated(|| {
        let (servlet, contexts) = handing_over();
        let server = TestServer::start(numbered().servlet("/park", servlet));
        let mut client = server.client();
        client.ask("GET /park");
        let context = take(&contexts);
        server.await_parked(1);
        // More than the server keeps for a parked client.
        let burst: String =
            (0..2000).map(|number| request(&format!("GET /n/{number}"), &[], "")).collect();
        client.send(burst);
        context.complete().unwrap();
        client.answer().expect(200, "");
        for number in 0..2000 {
            client.answer().expect(200, &format!("/{number}"));
        }
    });
}

#[test]
fn content_is_no_request_and_the_next_request_is_no_content() {
    simulated(|| {
        let context = Context::new("").post("/", |req, res| {
            let content = req.read_to_end()?;
            res.write(content)
        });
        let context = context.servlet(
            "/worker",
            blocking(|req, res| {
                let content = req.read_to_end()?;
                res.write(content)
            }),
        );
        let server = TestServer::start(context);
        let mut client = server.client();
        let smuggled = request("POST /", &[], "smuggled");
        for line in ["POST /", "POST /worker"] {
            client.send(request(line, &[], &smuggled) + &request(line, &[], "two"));
            client.answer().expect(200, &smuggled);
            client.answer().expect(200, "two");
        }
    });
}

#[test]
fn a_connection_lasts_as_both_sides_want() {
    simulated(|| {
        let context = numbered().get("/close", |_req, res| {
            res.set_header("Connection", "close")?;
            res.write("last")
        });
        let server = TestServer::start(context);
        let mut client = server.client();
        client.ask_with("GET /n/1", &["Connection: close"], "").answer().expect(200, "/1");
        client.expect_close();
        let mut client = server.client();
        let answer = client.get("/close");
        answer.expect(200, "last");
        assert_eq!(answer.field("Connection"), Some("close"));
        client.expect_close();
        let mut client = server.client();
        client.send("GET /n/2 HTTP/1.0\r\n\r\n").answer().expect(200, "/2");
        client.expect_close();
        let mut client = server.client();
        for _ in 0..2 {
            client.send("GET /n/3 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
            let answer = client.answer();
            answer.expect(200, "/3");
            assert_eq!(answer.field("Connection"), Some("keep-alive"));
        }
        let mut client = server.client();
        client.send("GET /n/4 HTTP/1.1\r\nHost: localhost\r\n\r\n").shutdown_write();
        client.answer().expect(200, "/4");
        client.expect_close();
    });
}
