//! Asynchronous requests that fail: the servlet after `start_async`, a task, the client that
//! resets its connection. `on_complete` comes exactly once, whatever happened.

use std::time::Duration;

use ringcat::{Context, Error, ErrorKind};

use crate::{
    simulated::{TestServer, expect_elapsed, now, simulated},
    support::{Journal, Noting, Reaction, channel, parking, take, wait_until},
};

/// A servlet that starts async and then fails as the query says.
fn failing(journal: &Journal, on_error: Reaction) -> impl ringcat::Servlet + use<> {
    let journal = journal.clone();
    parking(move |req, res| {
        if req.dispatcher_type() == ringcat::DispatcherType::Async {
            return res.write("dispatched");
        }
        let context = req.start_async()?;
        context.add_listener(Noting { on_error, ..Noting::new("round", &journal) })?;
        match req.query_string().as_deref() {
            Some("panic") => panic!("after start_async"),
            Some("completed") => {
                context.complete()?;
                Err(Error::app("after complete()"))
            }
            Some("dispatched") => {
                context.dispatch()?;
                Err(Error::app("after dispatch()"))
            }
            Some("committed") => {
                res.write("begun")?;
                res.flush()?;
                Err(Error::app("after the commit"))
            }
            Some(_) | None => Err(Error::app("after start_async")),
        }
    })
}

#[test]
fn a_servlet_that_fails_after_start_async_is_told_and_reported() {
    simulated(|| {
        for (query, expected) in [
            ("error", &["round.on_error(App)", "round.on_complete"][..]),
            ("panic", &["round.on_error(Panic)", "round.on_complete"]),
            ("completed", &["round.on_complete"]),
            ("dispatched", &["round.on_error(App)", "round.on_complete"]),
        ] {
            let journal = Journal::default();
            let servlet = failing(&journal, |_event| Ok(()));
            let server = TestServer::start(Context::new("").servlet("/", servlet));
            let answer = server.get(&format!("/?{query}"));
            assert_eq!((answer.status, answer.is_whole), (500, true), "{query}: {}", answer.text());
            let report = server.stop();
            assert_eq!(journal.entries(), expected, "{query}");
            assert_eq!((report.answered, report.statuses[4]), (1, 1), "{query}");
        }
    });
}

#[test]
fn a_listener_may_end_what_failed() {
    simulated(|| {
        let journal = Journal::default();
        let servlet = failing(&journal, |event| {
            event.response()?.write("told")?;
            event.context().complete()
        });
        let server = TestServer::start(Context::new("").servlet("/", servlet));
        assert_eq!(server.get("/?error").text(), "told");
        server.stop();
        assert_eq!(journal.entries(), ["round.on_error(App)", "round.on_complete"]);

        let journal = Journal::default();
        let servlet = failing(&journal, |event| event.context().dispatch());
        let server = TestServer::start(Context::new("").servlet("/", servlet));
        let answer = server.get("/?error");
        assert!(answer.is_whole, "{answer:?}");
        server.stop();
        assert_eq!(journal.entries(), ["round.on_error(App)", "round.on_complete"]);
    });
}

#[test]
fn a_failure_after_the_commit_cuts_the_connection() {
    simulated(|| {
        let journal = Journal::default();
        let servlet = failing(&journal, |_event| Ok(()));
        let server = TestServer::start(Context::new("").servlet("/", servlet));
        let answer = server.get("/?committed");
        assert_eq!((answer.status, &*answer.text(), answer.is_whole), (200, "begun", false));
        let report = server.stop();
        assert_eq!(journal.entries(), ["round.on_error(App)", "round.on_complete"]);
        assert_eq!(report.aborted, 1);
    });
}

#[test]
fn a_task_that_fails_before_the_timeout_is_reported_by_it() {
    simulated(|| {
        let journal = Journal::default();
        let seen = journal.clone();
        let servlet = parking(move |req, _res| {
            let context = req.start_async()?;
            context.set_timeout(Duration::from_millis(100))?;
            context.add_listener(Noting::new("round", &seen))?;
            context.start(|| panic!("a task panics"))
        });
        let server = TestServer::start(Context::new("").servlet("/", servlet));
        server.get("/").expect_report(500);
        server.stop();
        assert_eq!(journal.count("round.on_complete"), 1);
    });
}

#[test]
fn a_client_that_resets_is_noticed_while_the_request_is_parked() {
    simulated(|| {
        let journal = Journal::default();
        let seen = journal.clone();
        let (sender, contexts) = channel();
        let servlet = parking(move |req, _res| {
            let context = req.start_async()?;
            context.add_listener(Noting::new("round", &seen))?;
            sender.send(context);
            Ok(())
        });
        let context =
            Context::new("").servlet("/", servlet).get("/fine", |_, res| res.write("fine"));
        let server = TestServer::start(context);
        let mut client = server.client();
        client.ask("GET /");
        let context = take(&contexts);
        server.await_parked(1);
        let begun = now();
        client.reset();
        journal.wait_for("round.on_complete");
        expect_elapsed(begun, Duration::ZERO);
        assert_eq!(journal.entries(), ["round.on_error(Io)", "round.on_complete"]);
        let is_illegal = |result: ringcat::Result<()>| {
            result.is_err_and(|error| error.kind() == ErrorKind::IllegalState)
        };
        assert!(is_illegal(context.complete()));
        wait_until("the request is over", || {
            is_illegal(context.response().and_then(|response| response.write("late")))
        });
        server.get("/fine").expect(200, "fine");
        let report = server.stop();
        assert_eq!((journal.count("round.on_complete"), report.aborted), (1, 1));
        assert_eq!(report.connections_accepted, report.connections_closed);
    });
}

#[test]
fn a_reset_ends_each_of_many_parked_requests_once() {
    simulated(|| {
        let journal = Journal::default();
        let seen = journal.clone();
        let servlet = parking(move |req, _res| {
            let context = req.start_async()?;
            context.add_listener(Noting::new("round", &seen))
        });
        let server = TestServer::start(Context::new("").servlet("/", servlet));
        let clients: Vec<_> = (0..100)
            .map(|_| {
                let mut client = server.client();
                client.ask("GET /");
                client
            })
            .collect();
        server.await_parked(100);
        for client in clients {
            client.reset();
        }
        wait_until("every end is told", || journal.count("round.on_complete") == 100);
        let report = server.stop();
        assert_eq!(journal.count("round.on_error(Io)"), 100);
        assert_eq!((journal.count("round.on_complete"), report.aborted), (100, 100));
    });
}

#[test]
fn a_listener_of_an_error_sees_the_error() {
    simulated(|| {
        let journal = Journal::default();
        let seen = journal.clone();
        let servlet = parking(move |req, _res| {
            let context = req.start_async()?;
            context.add_listener(Noting {
                on_error: |event| {
                    let text = event.error().unwrap().to_string();
                    event.response()?.set_header("X-Error", text)
                },
                ..Noting::new("round", &seen)
            })?;
            Err(Error::app("exactly this"))
        });
        let server = TestServer::start(Context::new("").servlet("/", servlet));
        let answer = server.get("/");
        answer.expect_report(500);
        assert_eq!(answer.field("X-Error"), Some("exactly this"));
    });
}
