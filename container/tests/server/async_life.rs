//! The life of an asynchronous request: completed in `service`, from a thread, by one of many;
//! what comes too late; handles that outlive their request; a client that is half gone.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use ringcat::{AsyncContext, Context, ErrorKind, Request, Response, Result};

use crate::{
    simulated::{Client, TestServer, simulated, spawn},
    support::{Journal, Noting, blocking, channel, handing_over, parking, take, wait_until},
};

#[track_caller]
fn expect_illegal<T: std::fmt::Debug>(result: Result<T>) {
    assert_eq!(result.unwrap_err().kind(), ErrorKind::IllegalState);
}

#[test]
fn a_request_may_complete_inside_service() {
    simulated(|| {
        let journal = Journal::default();
        let seen = journal.clone();
        let context = Context::new("").servlet(
            "/",
            parking(move |req, res| {
                assert!(!req.is_async_started());
                let context = req.start_async()?;
                context.add_listener(Noting {
                    on_complete: |event| event.response()?.write(" and on_complete"),
                    ..Noting::new("round", &seen)
                })?;
                context.response()?.write("by the context, ")?;
                res.write("by the response, ")?;
                context.complete()?;
                assert!(req.is_async_started(), "until service returns");
                expect_illegal(context.complete());
                expect_illegal(context.dispatch());
                seen.note("service returns");
                res.write("after complete()")
            }),
        );
        let server = TestServer::start(context);
        let mut client = server.client();
        for _ in 0..3 {
            let expected = "by the context, by the response, after complete() and on_complete";
            let answer = client.get("/");
            answer.expect(200, expected);
            assert_eq!(answer.field("Content-Length"), Some(&*expected.len().to_string()));
        }
        assert_eq!(server.stop().parked, 0);
        assert_eq!(journal.entries(), ["service returns", "round.on_complete"].repeat(3));
    });
}

#[test]
fn a_thread_completes_a_parked_request() {
    simulated(|| {
        let (servlet, contexts) = handing_over();
        let context =
            Context::new("").servlet("/park", servlet).get("/fine", |_, res| res.write("fine"));
        let server = TestServer::start(context);
        let mut client = server.client();
        client.ask("GET /park");
        let context = take(&contexts);
        server.await_parked(1);
        // Parked, it takes no thread: its core serves others.
        server.get("/fine").expect(200, "fine");
        let request = context.request().unwrap();
        assert_eq!((&*request.method(), &*request.target()), ("GET", "/park"));
        assert_eq!(request.header("host").as_deref(), Some("localhost"));
        context.response().unwrap().set_status(202).unwrap();
        context.response().unwrap().set_header("X-Own", "1").unwrap();
        context.response().unwrap().write("from a thread").unwrap();
        context.complete().unwrap();
        let answer = client.answer();
        answer.expect(202, "from a thread");
        assert_eq!(answer.field("X-Own"), Some("1"));
        client.get("/fine").expect(200, "fine");
    });
}

#[test]
fn writes_of_all_clones_come_in_call_order_and_before_the_end() {
    simulated(|| {
        let (servlet, contexts) = handing_over();
        let server = TestServer::start(Context::new("").servlet("/", servlet));
        for round in 0..50 {
            let mut client = server.client();
            client.ask("GET /");
            let context = take(&contexts);
            let (turn, turns) = channel::<AsyncContext>();
            let other = spawn(move || {
                let context = take(&turns);
                context.response().unwrap().write("second, ").unwrap();
                if round % 2 == 0 {
                    context.response().unwrap().flush().unwrap();
                }
                context.clone()
            });
            context.response().unwrap().write("first, ").unwrap();
            turn.send(context);
            let context = other.join();
            context.response().unwrap().write("third").unwrap();
            context.complete().unwrap();
            client.answer().expect(200, "first, second, third");
        }
    });
}

#[test]
fn of_many_that_complete_one_succeeds() {
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
        let server = TestServer::start(Context::new("").servlet("/", servlet));
        let mut client = server.client();
        for _ in 0..50 {
            client.ask("GET /");
            let context = take(&contexts);
            let threads = [0; 4].map(|_| {
                let context = context.clone();
                spawn(move || context.complete())
            });
            let results = threads.map(|thread| thread.join());
            assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
            for error in results.into_iter().filter_map(Result::err) {
                assert_eq!(error.kind(), ErrorKind::IllegalState);
            }
            client.answer().expect(200, "");
        }
        server.stop();
        assert_eq!(journal.entries(), ["round.on_complete"; 50]);
    });
}

#[test]
fn a_handle_that_is_kept_never_reaches_the_next_request() {
    simulated(|| {
        let (servlet, contexts) = handing_over();
        let server = TestServer::start(Context::new("").servlet("/", servlet));
        let mut client = server.client();
        let mut kept: Vec<AsyncContext> = Vec::new();
        for round in 0..20 {
            client.ask("GET /");
            let context = take(&contexts);
            for old in &kept {
                expect_illegal(old.complete());
                expect_illegal(old.dispatch());
                expect_illegal(old.dispatch_to("/"));
                expect_illegal(old.response().and_then(|response| response.write("stray")));
                expect_illegal(old.response().and_then(|response| response.try_write("stray")));
                expect_illegal(old.response().and_then(|response| response.flush()));
                expect_illegal(
                    old.response().and_then(|response| response.set_header("X-Stray", "1")),
                );
                expect_illegal(old.response().and_then(|response| response.send_error(500, None)));
                expect_illegal(old.set_timeout(Duration::from_millis(1)));
                expect_illegal(old.add_listener(Noting::new("stray", &Journal::default())));
                expect_illegal(old.start(|| Ok(())));
                expect_illegal(old.request());
            }
            let text = format!("answer {round}");
            context.response().unwrap().write(&*text).unwrap();
            context.complete().unwrap();
            let answer = client.answer();
            answer.expect(200, &text);
            assert_eq!(answer.field("X-Stray"), None);
            kept.push(context);
        }
    });
}

#[test]
fn a_second_start_async_in_one_pass_is_illegal() {
    simulated(|| {
        let context = Context::new("").servlet(
            "/",
            parking(|req, res| {
                expect_illegal(req.async_context());
                let context = req.start_async()?;
                expect_illegal(req.start_async());
                assert!(req.async_context().is_ok());
                context.complete()?;
                expect_illegal(req.start_async());
                res.write("fine")
            }),
        );
        TestServer::start(context).get("/").expect(200, "fine");
    });
}

#[test]
fn listeners_hear_in_the_order_they_were_added() {
    simulated(|| {
        let journal = Journal::default();
        let seen = journal.clone();
        let (sender, contexts) = channel();
        let servlet = parking(move |req, _res| {
            let context = req.start_async()?;
            let failing: crate::support::Reaction = |_event| panic!("a listener panics");
            context.add_listener(Noting { on_complete: failing, ..Noting::new("1", &seen) })?;
            context.add_listener(Noting {
                on_complete: |event| {
                    expect_illegal(event.context().complete());
                    expect_illegal(event.context().dispatch());
                    let result = event.request().start_async();
                    expect_illegal(result);
                    Ok(())
                },
                ..Noting::new("2", &seen)
            })?;
            sender.send(context);
            Ok(())
        });
        let server = TestServer::start(Context::new("").servlet("/", servlet));
        let mut client = server.client();
        client.ask("GET /");
        let context = take(&contexts);
        server.await_parked(1);
        context.add_listener(Noting::new("3", &journal)).unwrap();
        context.complete().unwrap();
        client.answer().expect(200, "");
        server.stop();
        assert_eq!(journal.entries(), ["1.on_complete", "2.on_complete", "3.on_complete"]);
    });
}

#[test]
fn a_half_closed_client_gets_its_answer() {
    simulated(|| {
        let (servlet, contexts) = handing_over();
        let server = TestServer::start(Context::new("").servlet("/", servlet));
        let mut client = server.client();
        client.ask("GET /");
        let context = take(&contexts);
        server.await_parked(1);
        assert!(!context.peer_closed());
        client.shutdown_write();
        wait_until("the end of the stream is noticed", || context.peer_closed());
        context.response().unwrap().write("still here").unwrap();
        context.complete().unwrap();
        client.answer().expect(200, "still here");
        client.expect_close();
        assert_eq!(server.stop().aborted, 0);
    });
}

#[test]
fn send_error_through_the_context_is_reported_before_on_complete() {
    simulated(|| {
        let journal = Journal::default();
        let theirs = journal.clone();
        let service = move |req: &mut Request, _res: &mut Response| {
            let context = req.start_async()?;
            let mut listener = Noting::new("l", &theirs);
            listener.on_complete = |event| event.response()?.write("behind the report");
            context.add_listener(listener)?;
            context.response()?.send_error(409, Some("the servlet says no"))?;
            context.complete()
        };
        let context = Context::new("").servlet("/core", parking(service.clone()));
        let server = TestServer::start(context.servlet("/worker", blocking(service)));
        let mut client = server.client();
        for place in ["/core", "/worker"] {
            let answer = client.get(place);
            answer.expect_report(409);
            assert!(answer.text().contains("the servlet says no"));
            assert!(answer.text().ends_with("behind the report"));
        }
        assert_eq!(journal.entries(), ["l.on_complete", "l.on_complete"]);
    });
}

#[test]
fn send_error_from_a_thread_is_reported_at_the_end() {
    simulated(|| {
        let (servlet, contexts) = handing_over();
        let server = TestServer::start(Context::new("").servlet("/", servlet));
        let mut client = server.client();
        client.ask("GET /");
        let context = take(&contexts);
        context.response().unwrap().write("gone").unwrap();
        context.response().unwrap().send_error(409, Some("a thread says no")).unwrap();
        context.complete().unwrap();
        let answer = client.answer();
        answer.expect_report(409);
        assert!(answer.text().contains("a thread says no"), "{}", answer.text());
    });
}

#[test]
fn changes_after_a_foreign_commit_are_illegal() {
    simulated(|| {
        let (servlet, contexts) = handing_over();
        let server = TestServer::start(Context::new("").servlet("/", servlet));
        let mut client = server.client();
        client.ask("GET /");
        let context = take(&contexts);
        let response = context.response().unwrap();
        let split = response.set_header("X-Own", "a\r\nb").unwrap_err();
        assert_eq!(split.kind(), ErrorKind::IllegalArgument);
        response.write("begun").unwrap();
        response.flush().unwrap();
        client.receive_until("begun");
        assert!(response.is_committed());
        expect_illegal(response.set_status(404));
        expect_illegal(response.set_header("X-Late", "1"));
        expect_illegal(response.reset());
        expect_illegal(response.send_error(500, None));
        context.complete().unwrap();
        client.receive_until("\r\n0\r\n\r\n");
    });
}

#[test]
fn a_blocking_servlet_may_start_async_too() {
    simulated(|| {
        let (sender, contexts) = channel();
        let servlet = blocking(move |req, res| {
            let context = req.start_async()?;
            res.write("by the worker, ")?;
            sender.send(context);
            Ok(())
        });
        let server = TestServer::start(Context::new("").servlet("/", servlet));
        let mut client = server.client();
        for _ in 0..20 {
            client.ask("GET /");
            let context = take(&contexts);
            context.response().unwrap().write("by the test").unwrap();
            context.complete().unwrap();
            let text = client.answer().text();
            // The two threads write at the same time; what each wrote is whole.
            assert!(text.contains("by the worker, ") && text.contains("by the test"), "{text}");
        }
    });
}

/// A server on one core with a servlet that parks, and one that does something to what is parked.
fn reaching_over(
    act: impl Fn(&AsyncContext, &mut Response) -> Result<()> + Send + Sync + 'static,
) -> (TestServer, Client) {
    let parked = Arc::new(Mutex::new(None));
    let kept = Arc::clone(&parked);
    let context = Context::new("")
        .servlet(
            "/park",
            parking(move |req, _res| {
                *kept.lock().unwrap() = Some(req.start_async()?);
                Ok(())
            }),
        )
        .get("/act", move |_req, res| {
            let context = parked.lock().unwrap().take().unwrap();
            act(&context, res)
        });
    let server = TestServer::start(context);
    let mut client = server.client();
    client.ask("GET /park");
    server.await_parked(1);
    (server, client)
}

#[test]
fn a_request_may_complete_another_one_of_its_core() {
    simulated(|| {
        let (server, mut parked) = reaching_over(|context, res| {
            context.response()?.write("by another request")?;
            context.complete()?;
            expect_illegal(context.complete());
            res.write("completed it")
        });
        server.get("/act").expect(200, "completed it");
        parked.answer().expect(200, "by another request");
    });
}

#[test]
fn a_core_never_waits_for_credit() {
    simulated(|| {
        let (server, mut parked) = reaching_over(|context, res| {
            let piece = vec![b'x'; 32 * 1024];
            let mut count = 0;
            let refused = loop {
                match context.response().and_then(|response| response.write(&*piece)) {
                    Ok(()) => count += 1,
                    Err(error) => break error,
                }
            };
            assert_eq!(refused.kind(), ErrorKind::WouldBlock);
            context.complete()?;
            res.write(format!("{count}"))
        });
        let count: usize = server.get("/act").text().parse().unwrap();
        assert!((1..100).contains(&count), "{count}");
        let answer = parked.answer();
        assert_eq!((answer.is_whole, answer.body.len()), (true, count * 32 * 1024));
    });
}

#[test]
fn head_and_old_clients_get_asynchronous_answers_too() {
    simulated(|| {
        let (servlet, contexts) = handing_over();
        let server = TestServer::start(Context::new("").servlet("/", servlet));
        let answer = |context: AsyncContext| {
            context.response().unwrap().write("four").unwrap();
            context.response().unwrap().flush().unwrap();
            context.response().unwrap().write("more").unwrap();
            context.complete().unwrap();
        };
        let mut client = server.client();
        client.ask("HEAD /");
        answer(take(&contexts));
        assert_eq!(client.answer_to_head().status, 200);
        client.ask("GET /");
        answer(take(&contexts));
        client.answer().expect(200, "fourmore");
        // Without chunks the end of the connection is the end of the content.
        client.send("GET / HTTP/1.0\r\n\r\n");
        answer(take(&contexts));
        let old = client.answer();
        old.expect(200, "fourmore");
        assert_eq!((old.field("Transfer-Encoding"), old.field("Content-Length")), (None, None));
        client.expect_close();
    });
}

#[test]
fn attributes_are_those_of_the_request_on_any_thread() {
    simulated(|| {
        let number = |value: Option<ringcat::request::Attribute>| {
            value.and_then(|value| value.downcast_ref::<u32>().copied())
        };
        for is_blocking in [false, true] {
            let (sender, contexts) = channel();
            let service = move |req: &mut Request, res: &mut Response| {
                if req.is_async_supported() && req.attribute("round").is_none() {
                    req.set_attribute("round", 1_u32);
                    let context = req.start_async()?;
                    assert_eq!(number(req.attribute("round")), Some(1));
                    req.set_attribute("inside", 2_u32);
                    sender.send(context);
                    return Ok(());
                }
                let all = ["round", "inside", "thread"].map(|name| number(req.attribute(name)));
                res.write(format!("{all:?}"))
            };
            let context = Context::new("");
            let server = TestServer::start(if is_blocking {
                context.servlet("/", blocking(service))
            } else {
                context.servlet("/", parking(service))
            });
            let mut client = server.client();
            client.ask("GET /");
            let context = take(&contexts);
            server.await_parked(1);
            assert_eq!(number(context.attribute("round")), Some(1));
            assert_eq!(number(context.attribute("inside")), Some(2));
            context.set_attribute("thread", 3_u32).unwrap();
            context.set_attribute("round", 4_u32).unwrap();
            assert_eq!(number(context.remove_attribute("inside")), Some(2));
            context.dispatch().unwrap();
            client.answer().expect(200, "[Some(4), None, Some(3)]");
            // The end: nothing is left, and nothing is let in. The next request begins anew.
            client.ask("GET /");
            let next = take(&contexts);
            expect_illegal(context.set_attribute("late", 5_u32));
            assert_eq!(number(context.attribute("round")), None);
            assert_eq!(number(next.attribute("thread")), None);
            next.complete().unwrap();
            client.answer().expect(200, "");
        }
    });
}
