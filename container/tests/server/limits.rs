//! Limits and timeouts that the builder sets: what is past them is answered as the manual says.
//! The clock is the simulator's.

use std::time::Duration;

use ringcat::{Context, ErrorKind, ServerBuilder};

use crate::{
    simulated::{Builder, Client, TestServer, builder, expect_elapsed, now, simulated},
    support::{blocking, channel, handing_over, take, wait_until},
};

const SHORT: Duration = Duration::from_millis(60);

type Setter = fn(Builder, Duration) -> Builder;

fn app() -> Context {
    Context::new("").get("/*", |_req, res| res.write("fine"))
}

#[test]
fn heads_have_limits_that_the_builder_sets() {
    simulated(|| {
        let server = TestServer::of(
            builder(app()).head_bytes_max(40_000).header_fields_max(3).target_bytes_max(30_000),
        );
        let long = "x".repeat(20_000);
        server.get(&format!("/{long}")).expect(200, "fine");
        server.get(&format!("/{long}{long}")).expect_report(414);
        let three = ["A: 1", "B: 2"];
        server.client().ask_with("GET /", &three, "").answer().expect(200, "fine");
        let four = ["A: 1", "B: 2", "C: 3"];
        server.client().ask_with("GET /", &four, "").answer().expect_report(431);
        let wide = format!("A: {long}{long}");
        server.client().ask_with("GET /", &[&wide], "").answer().expect_report(431);
    });
}

#[test]
fn unread_content_is_swallowed_up_to_the_limit_of_the_builder() {
    simulated(|| {
        let streaming = crate::support::streaming(|_req, res| res.write("unread"));
        let context = Context::new("").servlet("/", streaming);
        let server = TestServer::of(builder(context).swallow_bytes_max(100_000));
        // What came before the answer, at most 64 KiB, was never in doubt.
        let mut client = server.client();
        client.ask_with("POST /", &[], &"x".repeat(100_000)).answer().expect(200, "unread");
        client.get("/").expect(200, "unread");
        client.send("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900000\r\n\r\n");
        client.answer().expect(200, "unread");
        client.try_send("x".repeat(100_001));
        client.expect_close();
    });
}

#[test]
fn a_core_takes_so_many_connections_and_the_next_when_one_closes() {
    simulated(|| {
        let server = TestServer::of(builder(app()).connections_max(2));
        let (mut first, mut second) = (server.client(), server.client());
        first.get("/").expect(200, "fine");
        second.get("/").expect(200, "fine");
        let mut third = server.client();
        third.ask("GET /");
        second.get("/").expect(200, "fine");
        assert_eq!(server.report().connections_accepted, 2);
        drop(first);
        third.answer().expect(200, "fine");
    });
}

fn closes_after(set: Setter, begin: fn(&mut Client), status: Option<u16>) {
    let server = TestServer::of(set(builder(app()), SHORT));
    let mut client = server.client();
    let begun = now();
    begin(&mut client);
    let answer = client.answer_or_end();
    expect_elapsed(begun, SHORT);
    assert_eq!(answer.map(|answer| answer.status), status);
}

#[test]
fn clients_that_send_nothing_have_the_time_that_the_builder_gives() {
    simulated(|| {
        closes_after(Builder::connection_timeout, |_client| (), None);
        let kept = |client: &mut Client| client.get("/").expect(200, "fine");
        closes_after(Builder::keep_alive_timeout, kept, None);
        let in_head = |client: &mut Client| {
            client.send("GET / HT");
        };
        closes_after(Builder::head_timeout, in_head, Some(408));
        let in_body = |client: &mut Client| {
            client.send("GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nhalf");
        };
        closes_after(Builder::body_timeout, in_body, Some(408));
    });
}

#[test]
fn a_client_that_takes_nothing_has_the_time_that_the_builder_gives() {
    simulated(|| {
        let (parked, contexts) = handing_over();
        let (sender, failures) = channel();
        let worker = blocking(move |_req, res| {
            let failure = loop {
                if let Err(error) = res.write([0; 64 * 1024]) {
                    break error.kind();
                }
            };
            sender.send(failure);
            Ok(())
        });
        let context = Context::new("").servlet("/parked", parked).servlet("/worker", worker);
        let server = TestServer::of(builder(context).write_timeout(SHORT));
        let mut deaf = server.client();
        deaf.ask("GET /parked");
        let response = take(&contexts).response().unwrap();
        // While the servlet runs, a write does not wait: past the backlog it would be refused.
        server.await_parked(1);
        let failure = loop {
            if let Err(error) = response.write(vec![0; 64 * 1024]) {
                break error.kind();
            }
        };
        assert!(matches!(failure, ErrorKind::Io | ErrorKind::IllegalState), "{failure:?}");
        let mut deaf = server.client();
        deaf.ask("GET /worker");
        assert_eq!(take(&failures), ErrorKind::Io);
    });
}

#[test]
fn a_timeout_of_zero_is_refused_by_its_name() {
    type Setter = fn(ServerBuilder, Duration) -> ServerBuilder;
    let sets: [(&str, Setter); 5] = [
        ("connection_timeout", ServerBuilder::connection_timeout),
        ("keep_alive_timeout", ServerBuilder::keep_alive_timeout),
        ("head_timeout", ServerBuilder::head_timeout),
        ("body_timeout", ServerBuilder::body_timeout),
        ("write_timeout", ServerBuilder::write_timeout),
    ];
    for (name, set) in sets {
        let refusal = set(crate::support::builder(app()), Duration::ZERO).start().err().unwrap();
        assert_eq!(refusal.kind(), ErrorKind::IllegalArgument);
        assert!(refusal.to_string().starts_with(name), "{refusal}");
    }
    let refusal = crate::support::builder(app()).connections_max(0).start().err().unwrap();
    assert!(refusal.to_string().contains("connections_max"), "{refusal}");
    let refusal = crate::support::builder(app()).requests_max(0).start().err().unwrap();
    assert!(refusal.to_string().contains("requests_max"), "{refusal}");
}

#[test]
fn a_request_beyond_those_under_way_is_503_until_one_of_them_has_ended() {
    simulated(|| {
        let (parked, contexts) = handing_over();
        let context = app().servlet("/parked", parked);
        let server = TestServer::of(builder(context).cores(1).requests_max(2));
        let (mut first, mut second) = (server.client(), server.client());
        first.ask("GET /parked");
        server.await_parked(1);
        second.ask("GET /parked");
        server.await_parked(2);
        let mut third = server.client();
        third.ask("GET /");
        let refused = third.answer();
        refused.expect_report(503);
        assert_eq!(refused.field("Retry-After"), Some("1"));
        take(&contexts).complete().unwrap();
        first.answer().expect(200, "");
        server.get("/").expect(200, "fine");
        // A client that leaves makes room too.
        first.ask("GET /parked");
        server.await_parked(3);
        server.get("/").expect_report(503);
        second.reset();
        wait_until("the client is missed", || server.report().aborted == 1);
        server.get("/").expect(200, "fine");
        let _of_the_second = take(&contexts);
        take(&contexts).complete().unwrap();
        first.answer().expect(200, "");
    });
}

#[test]
fn the_last_request_that_a_connection_may_have_is_told_so() {
    simulated(|| {
        let server = TestServer::of(builder(app()).keep_alive_requests_max(2));
        let mut client = server.client();
        let answer = client.get("/");
        answer.expect(200, "fine");
        assert_eq!(answer.field("Connection"), None);
        // What is pipelined behind the last one is not answered.
        client.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n");
        let answer = client.answer();
        answer.expect(200, "fine");
        assert_eq!(answer.field("Connection"), Some("close"));
        client.expect_close();
    });
}

#[test]
fn times_may_be_as_long_as_a_duration_goes() {
    simulated(|| {
        let (parked, contexts) = handing_over();
        let context = app()
            .servlet("/parked", parked)
            .servlet("/worker", blocking(|_req, res| res.write("worker")));
        let timeouts: [Setter; 6] = [
            Builder::connection_timeout,
            Builder::keep_alive_timeout,
            Builder::head_timeout,
            Builder::body_timeout,
            Builder::write_timeout,
            Builder::drain_timeout,
        ];
        let builder =
            timeouts.into_iter().fold(builder(context), |builder, set| set(builder, Duration::MAX));
        let server = TestServer::of(builder);
        let mut client = server.client();
        client
            .send("GE")
            .send("T / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\na")
            .send("b");
        client.answer().expect(200, "fine");
        client.get("/worker").expect(200, "worker");
        client.ask("GET /parked");
        let context = take(&contexts);
        context.set_timeout(Duration::MAX).unwrap();
        context.response().unwrap().write("parked").unwrap();
        context.complete().unwrap();
        client.answer().expect(200, "parked");
        drop(client);
        server.stop();
    });
}
