//! Timeouts of rounds: the default, one that is set, none; listeners that complete, dispatch, or
//! do nothing; calls that come too late. The clock
//! is the simulator's, so late is as wrong as early.

use std::time::Duration;

use ringcat::{Connector, Context, DispatcherType, ErrorKind};

use crate::{
    simulated::{TestServer, builder_at, expect_elapsed, now, simulated, sleep},
    support::{Journal, Noting, Reaction, Receiver, channel, handing_over, parking, take},
};

const SHORT: Duration = Duration::from_millis(60);

fn impatient(context: Context) -> TestServer {
    let connector = Connector::http("127.0.0.1:0").async_timeout(SHORT);
    TestServer::of(builder_at(connector, context))
}

/// A servlet that parks with a listener, and hands its context over.
fn parked_with(
    journal: &Journal,
    on_timeout: Reaction,
) -> (impl ringcat::Servlet, Receiver<ringcat::AsyncContext>) {
    let journal = journal.clone();
    let (sender, contexts) = channel();
    let servlet = parking(move |req, res| {
        if req.dispatcher_type() == DispatcherType::Async {
            return res.write("dispatched");
        }
        let context = req.start_async()?;
        context.add_listener(Noting { on_timeout, ..Noting::new("first", &journal) })?;
        context.add_listener(Noting::new("second", &journal))?;
        sender.send(context);
        Ok(())
    });
    (servlet, contexts)
}

#[test]
fn nobody_handles_it_so_it_is_500_and_later_calls_are_illegal() {
    simulated(|| {
        let journal = Journal::default();
        let (servlet, contexts) = parked_with(&journal, |_event| Ok(()));
        let server = impatient(Context::new("").servlet("/", servlet));
        let mut client = server.client();
        let begun = now();
        client.get("/").expect_report(500);
        expect_elapsed(begun, SHORT);
        let context = take(&contexts);
        for late in [
            context.complete(),
            context.dispatch(),
            context.response().and_then(|response| response.write("late")),
        ] {
            assert_eq!(late.unwrap_err().kind(), ErrorKind::IllegalState);
        }
        let report = server.stop();
        let expected =
            ["first.on_timeout", "second.on_timeout", "first.on_complete", "second.on_complete"];
        assert_eq!(journal.entries(), expected);
        assert_eq!((report.timed_out, report.statuses[4]), (1, 1));
    });
}

#[test]
fn a_listener_completes() {
    simulated(|| {
        let journal = Journal::default();
        let (servlet, _contexts) = parked_with(&journal, |event| {
            event.response()?.write("timed out, and handled")?;
            event.context().complete()
        });
        let server = impatient(Context::new("").servlet("/", servlet));
        let mut client = server.client();
        client.get("/").expect(200, "timed out, and handled");
        client.get("/").expect(200, "timed out, and handled");
        server.stop();
        let once =
            ["first.on_timeout", "second.on_timeout", "first.on_complete", "second.on_complete"];
        assert_eq!(journal.entries(), [once, once].concat());
    });
}

#[test]
fn a_listener_dispatches() {
    simulated(|| {
        let journal = Journal::default();
        let (servlet, _contexts) = parked_with(&journal, |event| event.context().dispatch());
        let server = impatient(Context::new("").servlet("/", servlet));
        server.get("/").expect(200, "dispatched");
        server.stop();
        let expected =
            ["first.on_timeout", "second.on_timeout", "first.on_complete", "second.on_complete"];
        assert_eq!(journal.entries(), expected);
    });
}

#[test]
fn a_failing_listener_handles_nothing() {
    simulated(|| {
        let journal = Journal::default();
        let (servlet, _contexts) = parked_with(&journal, |_event| panic!("in on_timeout"));
        let server = impatient(Context::new("").servlet("/", servlet));
        server.get("/").expect_report(500);
        server.stop();
        assert_eq!(journal.count("second.on_timeout"), 1);
        assert_eq!(journal.count("second.on_complete"), 1);
    });
}

#[test]
fn zero_means_for_ever() {
    simulated(|| {
        let (servlet, contexts) = handing_over();
        let context = Context::new("")
            .servlet(
                "/ever",
                parking(|req, _res| {
                    let context = req.start_async()?;
                    assert_eq!(context.timeout()?, SHORT);
                    context.set_timeout(Duration::ZERO)
                }),
            )
            .servlet("/kept", servlet);
        let server = impatient(context);
        let mut ever = server.client();
        ever.ask("GET /ever");
        server.await_parked(1);
        let mut kept = server.client();
        kept.ask("GET /kept");
        let context = take(&contexts);
        context.set_timeout(Duration::ZERO).unwrap();
        // Two others that begin later time out meanwhile.
        for _ in 0..2 {
            server.get("/kept").expect_report(500);
        }
        context.response().unwrap().write("in time").unwrap();
        context.complete().unwrap();
        kept.answer().expect(200, "in time");
        assert_eq!(server.report().timed_out, 2);
    });
}

#[test]
fn a_timeout_that_is_set_counts_from_the_start_of_the_round() {
    simulated(|| {
        let longer = Duration::from_millis(300);
        let (servlet, contexts) = handing_over();
        let server = impatient(Context::new("").servlet("/", servlet));
        let mut client = server.client();
        let begun = now();
        client.ask("GET /");
        take(&contexts).set_timeout(longer).unwrap();
        client.answer().expect_report(500);
        expect_elapsed(begun, longer);
        // Moved forward while it is parked, also into the past.
        client = server.client();
        client.ask("GET /");
        let context = take(&contexts);
        context.set_timeout(Duration::from_secs(3600)).unwrap();
        server.await_parked(1);
        context.set_timeout(Duration::from_millis(1)).unwrap();
        client.answer().expect_report(500);
        // The largest one is for ever, and no overflow.
        client = server.client();
        client.ask("GET /");
        let context = take(&contexts);
        context.set_timeout(Duration::MAX).unwrap();
        server.get("/").expect_report(500);
        context.complete().unwrap();
        client.answer().expect(200, "");
    });
}

#[test]
fn each_round_has_the_default_timeout_again() {
    simulated(|| {
        let journal = Journal::default();
        let seen = journal.clone();
        let servlet = parking(move |req, _res| {
            let context = req.start_async()?;
            if req.dispatcher_type() == DispatcherType::Request {
                context.set_timeout(Duration::from_secs(3600))?;
                return context.dispatch();
            }
            seen.note(format!("{:?}", context.timeout()?));
            Ok(())
        });
        let server = impatient(Context::new("").servlet("/", servlet));
        server.get("/").expect_report(500);
        assert_eq!(journal.entries(), [format!("{SHORT:?}")]);
    });
}

#[test]
fn a_complete_that_races_with_the_timeout_is_one_answer() {
    simulated(|| {
        let journal = Journal::default();
        let (servlet, contexts) = parked_with(&journal, |_event| Ok(()));
        let server = impatient(Context::new("").servlet("/", servlet));
        for round in 0..20 {
            let mut client = server.client();
            let begun = now();
            client.ask("GET /");
            let context = take(&contexts);
            // A wait that ends somewhere round the deadline, on purpose.
            let due = SHORT + Duration::from_micros(500) * (round % 8);
            sleep(due.saturating_sub(now().saturating_since(begun)));
            let is_completed = context.complete().is_ok();
            let answer = client.answer();
            assert_eq!(answer.status, if is_completed { 200 } else { 500 }, "round {round}");
        }
        server.stop();
        assert_eq!(journal.count("first.on_complete"), 20);
    });
}
