//! The end of a server: what is idle, what is under way, what is parked, and what is lost, which
//! is nothing.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use ringcat::{Context, ErrorKind};

use crate::{
    simulated::{Client, TestServer, await_refusal, builder, is_refused, simulated, spawn},
    support::{
        Journal, Noting, PATIENCE, Reaction, blocking, channel, handing_over, parking, take,
        wait_until,
    },
};

#[test]
fn idle_connections_close_and_new_ones_are_refused() {
    simulated(|| {
        let server = TestServer::start(Context::new("").get("/", |_req, res| res.write("fine")));
        let mut used = server.client();
        used.get("/").expect(200, "fine");
        let mut fresh = server.client();
        wait_until("it is accepted", || server.report().connections_accepted == 2);
        let report = server.stop();
        used.expect_close();
        fresh.expect_close();
        assert!(is_refused());
        assert_eq!((report.connections_closed, report.connections_cut), (2, 0));
    });
}

#[test]
fn what_is_under_way_is_finished_and_closed() {
    simulated(|| {
        let (go_on, wait) = channel::<()>();
        let (sender, contexts) = channel();
        let journal = Journal::default();
        let seen = journal.clone();
        let context = Context::new("")
            .servlet(
                "/worker",
                blocking(move |_req, res| {
                    seen.note("worker");
                    take(&wait);
                    res.write("worker done")
                }),
            )
            .servlet(
                "/park",
                parking(move |req, _res| {
                    sender.send(req.start_async()?);
                    Ok(())
                }),
            );
        let server = TestServer::of(builder(context).drain_timeout(PATIENCE));
        let mut worker = server.client();
        worker.ask("GET /worker");
        let mut parked = server.client();
        parked.ask("GET /park");
        let mut half = server.client();
        half.send("GET /park HTTP/1.1\r\nHo");
        let context = take(&contexts);
        journal.wait_for("worker");
        wait_until("all are accepted", || server.report().connections_accepted == 3);
        let stopping = spawn(move || server.stop());
        await_refusal();
        // A head that has begun may still come to its end.
        half.send("st: localhost\r\n\r\n");
        let late = take(&contexts);
        go_on.send(());
        for context in [context, late] {
            context.response().unwrap().write("parked done").unwrap();
            context.complete().unwrap();
        }
        for (client, text) in
            [(&mut worker, "worker done"), (&mut parked, "parked done"), (&mut half, "parked done")]
        {
            let answer = client.answer();
            answer.expect(200, text);
            assert_eq!(answer.field("Connection"), Some("close"), "{text}");
            client.expect_close();
        }
        let report = stopping.join();
        assert_eq!((report.statuses[1], report.timed_out, report.connections_cut), (3, 0, 0));
    });
}

/// Stops a server with a parked request whose drain limit passes; the answer and what was told.
fn stopped_while_parked(on_timeout: Reaction) -> (crate::support::Answer, Vec<String>) {
    let journal = Journal::default();
    let seen = journal.clone();
    let servlet = parking(move |req, _res| {
        let context = req.start_async()?;
        context.set_timeout(Duration::ZERO)?;
        context.add_listener(Noting { on_timeout, ..Noting::new("round", &seen) })
    });
    let context = Context::new("").servlet("/", servlet);
    let server = TestServer::of(builder(context).drain_timeout(Duration::from_millis(100)));
    let mut client = server.client();
    client.ask("GET /");
    server.await_parked(1);
    let stopping = spawn(move || server.stop());
    let answer = client.answer();
    assert_eq!(answer.field("Connection"), Some("close"));
    client.expect_close();
    // A server that is in doubt whether all input was read waits for this, or for its cut.
    drop(client);
    let report = stopping.join();
    assert_eq!((report.timed_out, report.connections_cut, report.answered), (1, 0, 1));
    (answer, journal.entries())
}

#[test]
fn at_the_limit_parked_requests_time_out_through_their_listeners() {
    simulated(|| {
        let (answer, told) = stopped_while_parked(|event| {
            event.response()?.write("the server stops")?;
            event.context().complete()
        });
        answer.expect(200, "the server stops");
        assert_eq!(told, ["round.on_timeout", "round.on_complete"]);
        let (answer, told) = stopped_while_parked(|_event| Ok(()));
        answer.expect_report(500);
        assert_eq!(told, ["round.on_timeout", "round.on_complete"]);
    });
}

#[test]
fn handles_of_a_stopped_server_are_illegal() {
    simulated(|| {
        let (servlet, contexts) = handing_over();
        let context = Context::new("").servlet("/", servlet);
        let server = TestServer::of(builder(context).drain_timeout(Duration::from_millis(50)));
        let mut client = server.client();
        client.ask("GET /");
        let context = take(&contexts);
        server.stop();
        for late in [
            context.complete(),
            context.dispatch(),
            context.response().and_then(|response| response.write("late")),
        ] {
            assert_eq!(late.unwrap_err().kind(), ErrorKind::IllegalState);
        }
        client.answer().expect_report(500);
    });
}

#[test]
fn pipelined_requests_behind_a_parked_one_are_served() {
    simulated(|| {
        let (servlet, contexts) = handing_over();
        let context =
            Context::new("").servlet("/park", servlet).get("/next", |_, res| res.write("next"));
        let server = TestServer::of(builder(context).drain_timeout(PATIENCE));
        let mut client = server.client();
        let burst = ["GET /park", "GET /next"].map(|line| crate::support::request(line, &[], ""));
        client.send(burst.concat());
        let context = take(&contexts);
        let stopping = spawn(move || server.stop());
        await_refusal();
        context.response().unwrap().write("parked").unwrap();
        context.complete().unwrap();
        client.answer().expect(200, "parked");
        let next = client.answer();
        next.expect(200, "next");
        assert_eq!(next.field("Connection"), Some("close"));
        client.expect_close();
        assert_eq!(stopping.join().statuses[1], 2);
    });
}

#[test]
fn a_stop_under_load_loses_no_request_that_was_run() {
    simulated(|| {
        let run = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&run);
        let context = Context::new("").get("/", move |_req, res| {
            counted.fetch_add(1, Ordering::Relaxed);
            res.write("fine")
        });
        let server = TestServer::of(builder(context).cores(2));
        let answered = Arc::new(AtomicU64::new(0));
        let clients: Vec<_> = (0..4)
            .map(|_| {
                let answered = Arc::clone(&answered);
                spawn(move || {
                    let mut client = Client::connect();
                    loop {
                        let Some(answer) = ask_or_end(&mut client) else { return };
                        answer.expect(200, "fine");
                        answered.fetch_add(1, Ordering::Relaxed);
                        if answer.field("Connection") == Some("close") {
                            client.expect_close();
                            return;
                        }
                    }
                })
            })
            .collect();
        wait_until("the load runs", || answered.load(Ordering::Relaxed) > 1000);
        let report = server.stop();
        for client in clients {
            client.join();
        }
        let answered = answered.load(Ordering::Relaxed);
        assert_eq!((run.load(Ordering::Relaxed), report.answered), (answered, answered));
        assert_eq!((report.aborted, report.connections_cut), (0, 0));
    });
}

/// One request; `None` if the connection was over before it.
fn ask_or_end(client: &mut Client) -> Option<crate::support::Answer> {
    client.try_send(crate::support::request("GET /", &[], "")).then_some(())?;
    client.answer_or_end()
}
