//! `async fn` servlets: one that is ready at once is a plain one; one that waits lets go of its
//! core, and is dropped before anything else happens when somebody else ends its round.

use std::time::Duration;

use ringcat::{
    AsyncServlet, Context, DispatcherType, Error, ErrorKind, Filter, FilterChain, Methods, Request,
    Response, Result,
};

use crate::{
    simulated::{TestServer, await_rest, builder, simulated, sleep, spawn},
    support::{
        Journal, Noting, Signal, Yield, block_on, channel, handing_over, parking, streaming, take,
        wait_until,
    },
};

/// Notes that it was dropped.
struct Dropped(Journal, &'static str);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.note(self.1);
    }
}

/// Sees a request on both ways.
struct Around(Journal);

impl Filter for Around {
    fn filter(&self, req: &mut Request, res: &mut Response, chain: FilterChain<'_>) -> Result<()> {
        res.set_header("X-Before", "1")?;
        req.set_attribute("before", 7_u32);
        chain.next(req, res)?;
        let number = req.attribute("before").and_then(|value| value.downcast_ref::<u32>().copied());
        self.0.note(format!(
            "back: async {}, status {}, {} {} {number:?}",
            req.is_async_started(),
            res.status(),
            req.method(),
            req.servlet_path(),
        ));
        Ok(())
    }

    fn async_supported(&self) -> bool {
        true
    }
}

#[test]
fn a_future_that_is_ready_at_once_answers_as_a_plain_servlet() {
    simulated(|| {
        let journal = Journal::default();
        let context = Context::new("").filter("/*", Around(journal.clone())).async_get(
            "/now",
            async |req, res| {
                assert!(req.attribute("before").is_some());
                assert_eq!(res.header("X-Before"), Some("1"));
                res.set_status(201);
                res.set_header("X-Own", "2")?;
                res.write("at once")
            },
        );
        let server = TestServer::start(context);
        let mut client = server.client();
        for _ in 0..3 {
            let answer = client.get("/now");
            answer.expect(201, "at once");
            assert_eq!(answer.field("Content-Length"), Some("7"));
            assert_eq!((answer.field("X-Before"), answer.field("X-Own")), (Some("1"), Some("2")));
        }
        client.ask("DELETE /now").answer().expect_report(405);
        assert_eq!(server.stop().parked, 0);
        assert_eq!(journal.entries(), ["back: async false, status 201, GET /now Some(7)"; 3]);
    });
}

#[test]
fn a_future_that_waits_lets_go_of_its_core() {
    simulated(|| {
        let journal = Journal::default();
        let (signal, seen) = (Signal::default(), journal.clone());
        let waited = signal.clone();
        let context = Context::new("")
            .filter("/wait/*", Around(journal.clone()))
            .async_get("/wait/x", async move |req, res| {
                let context = req.async_context();
                assert_eq!(context.unwrap_err().kind(), ErrorKind::IllegalState, "not yet");
                res.write("before, ")?;
                waited.clone().await;
                req.async_context()?.add_listener(Noting::new("round", &seen))?;
                assert_eq!(req.servlet_path(), "/wait/x");
                assert!(req.attribute("before").is_some());
                seen.note("after");
                res.set_status(202);
                res.write("after")
            })
            .get("/fine", |_req, res| res.write("fine"));
        let server = TestServer::start(context);
        let mut client = server.client();
        client.ask("GET /wait/x");
        server.await_parked(1);
        server.get("/fine").expect(200, "fine");
        assert_eq!(journal.entries(), ["back: async true, status 200, GET /wait/x Some(7)"]);
        signal.give();
        let answer = client.answer();
        answer.expect(202, "before, after");
        assert_eq!(answer.field("X-Before"), Some("1"));
        client.get("/fine").expect(200, "fine");
        assert_eq!(journal.entries()[1..], ["after", "round.on_complete"]);
    });
}

/// Answers with what it reads.
struct Echo;

impl AsyncServlet for Echo {
    async fn service(&self, req: &mut Request, res: &mut Response) -> Result<()> {
        let mut piece = [0; 1000];
        loop {
            match req.read_async(&mut piece).await? {
                0 => break,
                count => {
                    res.write_async(&piece[..count]).await?;
                    res.flush()?;
                }
            }
        }
        let trailer = req.trailer("x-sum").map(std::borrow::Cow::into_owned);
        res.write_async(format!("|{}", trailer.unwrap_or_default())).await
    }

    fn accepted_methods(&self) -> Option<Methods> {
        Some(Methods::POST)
    }
}

#[test]
fn content_is_read_as_it_comes() {
    simulated(|| {
        let server = TestServer::of(builder(Context::new("").async_servlet("/echo", Echo)));
        let mut client = server.client();
        client.ask_with("POST /echo", &[], "at once").answer().expect(200, "at once|");
        client.send("POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
        client.send("3\r\nabc\r\n");
        client.receive_until("abc");
        client.send("4\r\ndefg\r\n");
        client.receive_until("defg");
        client.send("0\r\n\r\n");
        client.receive_until("0\r\n\r\n");
        client.ask_with("POST /echo", &["Expect: 100-continue"], "").answer().expect(200, "|");
        let content = "0123456789".repeat(30_000);
        client.ask_with("POST /echo", &[], &content);
        let answer = client.answer();
        assert!(answer.is_whole && answer.text() == format!("{content}|"));
    });
}

#[test]
fn content_that_is_cut_or_broken_fails_the_read() {
    simulated(|| {
        let journal = Journal::default();
        let seen = journal.clone();
        let context = Context::new("").async_method(Methods::POST, "/", async move |req, _res| {
            let read = req.read_to_end_async(1 << 20).await;
            let error = read.expect_err("the content is broken");
            seen.note(format!("{:?} {}", error.kind(), error.status()));
            Err(error)
        });
        let server = TestServer::start(context);
        let mut client = server.client();
        client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab");
        server.await_parked(1);
        client.send("c\r\nzz\r\n");
        client.answer().expect_report(400);
        client.expect_close();
        let mut client = server.client();
        client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nabc");
        server.await_parked(2);
        client.shutdown_write();
        client.answer().expect_report(500);
        client.expect_close();
        wait_until("both reads have failed", || journal.entries().len() == 2);
        assert_eq!(journal.entries(), ["ProtocolViolation 400", "Io 500"]);
    });
}

#[test]
fn a_slow_client_holds_the_future_and_nobody_else() {
    simulated(|| {
        let journal = Journal::default();
        let seen = journal.clone();
        let context = Context::new("")
            .async_get("/", async move |_req, res| {
                for _ in 0..400 {
                    res.write_async(vec![b'x'; 10_000]).await?;
                    seen.note("10,000");
                }
                Ok(())
            })
            .get("/fine", |_req, res| res.write("fine"));
        let server = TestServer::start(context);
        let mut client = server.client();
        client.ask("GET /");
        let written = await_rest(|| journal.entries().len());
        assert!(written < 60, "{written} pieces were taken for a client that reads nothing");
        server.get("/fine").expect(200, "fine");
        let answer = client.answer();
        assert!(answer.is_whole);
        assert_eq!(answer.body.len(), 4_000_000);
    });
}

/// A servlet whose future waits for ever, and notes its end.
fn waiting(
    journal: &Journal,
) -> impl AsyncFn(&mut Request, &mut Response) -> Result<()> + Send + Sync + use<> {
    let journal = journal.clone();
    async move |req: &mut Request, res: &mut Response| {
        let dropped = Dropped(journal.clone(), "dropped");
        res.set_header("X-Own", "1")?;
        Yield::default().await;
        req.async_context()?.add_listener(Noting::new("round", &journal))?;
        journal.note("waits");
        std::future::pending::<()>().await;
        drop(dropped);
        Ok(())
    }
}

#[test]
fn a_timeout_drops_the_future_before_its_listeners_hear() {
    simulated(|| {
        let journal = Journal::default();
        let wait = waiting(&journal);
        let context = Context::new("").async_get("/", wait);
        let connector = ringcat::Connector::http("127.0.0.1:0");
        let connector = connector.async_timeout(Duration::from_millis(300));
        let server = TestServer::of(crate::simulated::builder_at(connector, context));
        server.get("/").expect_report(500);
        assert_eq!(
            journal.entries(),
            ["waits", "dropped", "round.on_timeout", "round.on_complete"]
        );
        assert_eq!(server.stop().timed_out, 1);
    });
}

#[test]
fn a_client_that_leaves_drops_the_future() {
    simulated(|| {
        let journal = Journal::default();
        let server = TestServer::start(Context::new("").async_get("/", waiting(&journal)));
        let mut client = server.client();
        client.ask("GET /");
        journal.wait_for("waits");
        client.reset();
        journal.wait_for("round.on_complete");
        assert_eq!(
            journal.entries(),
            ["waits", "dropped", "round.on_error(Io)", "round.on_complete"]
        );
        assert_eq!(server.stop().aborted, 1);
    });
}

#[test]
fn a_handle_of_another_thread_begins_no_round_beside_the_futures() {
    simulated(|| {
        let journal = Journal::default();
        let (sender, contexts) = channel();
        let wait = waiting(&journal);
        let context = Context::new("").async_get("/", async move |req, res| {
            // Handed over before the first wait, where the round does not exist yet.
            sender.send(req.async_handle()?);
            wait(req, res).await
        });
        let server = TestServer::start(context);
        let mut client = server.client();
        client.ask("GET /");
        let handle = take(&contexts);
        journal.wait_for("waits");
        let refused = handle.start_async();
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::IllegalState, "a round is on");
        drop(handle);
        client.reset();
        journal.wait_for("round.on_complete");
    });
}

#[test]
fn who_completes_from_elsewhere_drops_the_future_and_keeps_its_bytes() {
    simulated(|| {
        let journal = Journal::default();
        let (sender, contexts) = channel();
        let seen = journal.clone();
        let context = Context::new("").async_get("/", async move |req, res| {
            let _dropped = Dropped(seen.clone(), "dropped");
            let context = req.start_async()?;
            context.add_listener(Noting::new("round", &seen))?;
            sender.send(context);
            res.write("of the future, ")?;
            std::future::pending().await
        });
        let server = TestServer::start(context);
        let mut client = server.client();
        for _ in 0..3 {
            client.ask("GET /");
            let context = take(&contexts);
            spawn(move || {
                context.response().unwrap().write("of a thread").unwrap();
                context.complete().unwrap();
            });
            client.answer().expect(200, "of the future, of a thread");
        }
        assert_eq!(journal.entries(), ["dropped", "round.on_complete"].repeat(3));
    });
}

#[test]
fn a_dispatch_from_elsewhere_drops_the_future_for_its_target() {
    simulated(|| {
        let journal = Journal::default();
        let (sender, contexts) = channel();
        let (seen, signal) = (journal.clone(), Signal::default());
        let waited = signal.clone();
        let context = Context::new("")
            .async_get("/", async move |req, _res| {
                let _dropped = Dropped(seen.clone(), "dropped");
                sender.send(req.start_async()?);
                std::future::pending().await
            })
            .async_get("/target", async move |req, res| {
                assert_eq!(req.dispatcher_type(), DispatcherType::Async);
                waited.clone().await;
                res.write(format!("target {}", req.query_string().unwrap_or_default()))
            });
        let server = TestServer::start(context);
        let mut client = server.client();
        client.ask("GET /");
        take(&contexts).dispatch_to("/target?a=b").unwrap();
        journal.wait_for("dropped");
        server.await_parked(2);
        signal.give();
        client.answer().expect(200, "target a=b");
    });
}

#[test]
fn errors_and_panics_are_answered_before_and_after_a_wait() {
    simulated(|| {
        let journal = Journal::default();
        let seen = journal.clone();
        let context = Context::new("").async_get("/*", async move |req, _res| {
            let path = req.path_info().unwrap_or_default().to_owned();
            if path.starts_with("/late") {
                Yield::default().await;
                req.async_context()?.add_listener(Noting::new("round", &seen))?;
            }
            match path.rsplit('/').next() {
                Some("error") => Err(Error::protocol_violation(409, "no")),
                Some("panic") => panic!("of the test"),
                _ => Ok(()),
            }
        });
        let server = TestServer::start(context);
        server.get("/now/error").expect_report(409);
        server.get("/now/panic").expect_report(500);
        server.get("/late/fine").expect(200, "");
        server.get("/late/error").expect_report(409);
        server.get("/late/panic").expect_report(500);
        server.get("/late/fine").expect(200, "");
        let expected = [
            "round.on_complete",
            "round.on_error(ProtocolViolation)",
            "round.on_complete",
            "round.on_error(Panic)",
            "round.on_complete",
            "round.on_complete",
        ];
        assert_eq!(journal.entries(), expected);
    });
}

/// A filter that does not support async.
struct Bar;

impl Filter for Bar {
    fn filter(&self, req: &mut Request, res: &mut Response, chain: FilterChain<'_>) -> Result<()> {
        let result = chain.next(req, res);
        let text = result.as_ref().err().map(ToString::to_string).unwrap_or_default();
        assert!(text.contains("filter Bar"), "{text}");
        result
    }
}

#[test]
fn a_chain_without_support_fails_also_where_the_future_would_be_ready() {
    simulated(|| {
        let context =
            Context::new("").filter("/*", Bar).async_get("/", async |_req, res| res.write("ready"));
        TestServer::start(context).get("/").expect_report(500);
    });
}

#[test]
fn a_forward_leads_to_a_future_and_an_include_does_not() {
    simulated(|| {
        let context = Context::new("")
            .servlet(
                "/forward",
                parking(|req, res| req.request_dispatcher("/late?x=1")?.forward(req, res)),
            )
            .servlet(
                "/include",
                parking(|req, res| {
                    let error = req.request_dispatcher("/late")?.include(req, res).unwrap_err();
                    res.write(format!("{:?}", error.kind()))
                }),
            )
            .async_get("/late", async |req, res| {
                Yield::default().await;
                let (path, kind) = (req.servlet_path().to_owned(), req.dispatcher_type());
                let query = req.parameter("x")?.unwrap_or("").to_owned();
                res.write(format!("{path} {kind:?} {query}"))
            });
        let server = TestServer::start(context);
        let mut client = server.client();
        client.get("/forward").expect(200, "/late Forward 1");
        client.get("/include").expect(200, "Unsupported");
        client.get("/late").expect(200, "/late Request ");
    });
}

#[test]
fn pipelined_requests_wait_for_the_future_before_them() {
    simulated(|| {
        let context = Context::new("")
            .async_get("/late", async |_req, res| {
                Yield::default().await;
                res.write("late")
            })
            .get("/fine", |_req, res| res.write("fine"));
        let server = TestServer::start(context);
        let mut client = server.client();
        let one = "GET /late HTTP/1.1\r\nHost: a\r\n\r\nGET /fine HTTP/1.1\r\nHost: a\r\n\r\n";
        client.send(one.repeat(20));
        for _ in 0..20 {
            client.answer().expect(200, "late");
            client.answer().expect(200, "fine");
        }
    });
}

#[test]
fn a_future_is_polled_once_a_wake_and_once_more() {
    simulated(|| {
        let journal = Journal::default();
        let (seen, signal) = (journal.clone(), Signal::default());
        let waited = signal.clone();
        let context = Context::new("").async_get("/", async move |_req, res| {
            let mut signal = waited.clone();
            std::future::poll_fn(|cx| {
                seen.note("poll");
                std::pin::Pin::new(&mut signal).poll(cx)
            })
            .await;
            res.write("done")
        });
        let server = TestServer::start(context);
        let mut client = server.client();
        client.ask("GET /");
        server.await_parked(1);
        for wakes in 1..=5 {
            signal.wake_only();
            wait_until("it is polled", || journal.count("poll") > wakes);
            // A burst is one wake for the owner, at most two.
        }
        signal.give();
        client.answer().expect(200, "done");
        assert!(journal.count("poll") <= 7, "{} polls", journal.count("poll"));
    });
}

#[test]
fn a_drain_ends_what_waits_through_its_listeners() {
    simulated(|| {
        let journal = Journal::default();
        let context = Context::new("").async_get("/", waiting(&journal));
        let server = TestServer::of(builder(context).drain_timeout(Duration::from_millis(200)));
        let mut client = server.client();
        client.ask("GET /");
        journal.wait_for("waits");
        server.stop();
        client.answer().expect_report(500);
        assert_eq!(
            journal.entries(),
            ["waits", "dropped", "round.on_timeout", "round.on_complete"]
        );
    });
}

#[test]
fn a_future_of_another_thread_reads_writes_and_waits_for_credit() {
    simulated(|| {
        let (sender, contexts) = channel();
        let context = Context::new("").servlet(
            "/",
            streaming(move |req, _res| {
                sender.send(req.start_async()?);
                Ok(())
            }),
        );
        let server = TestServer::start(context);
        let mut client = server.client();
        client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc");
        let context = take(&contexts);
        server.await_parked(1);
        let read = Journal::default();
        let seen = read.clone();
        let thread = spawn(move || {
            block_on(async {
                let (request, response) = (context.request().unwrap(), context.response().unwrap());
                let mut piece = [0; 100];
                loop {
                    let count = request.read_async(&mut piece).await.unwrap();
                    seen.note(String::from_utf8_lossy(&piece[..count]));
                    if count == 0 {
                        break;
                    }
                }
                for _ in 0..100 {
                    response.write_async(vec![b'x'; 20_000]).await.unwrap();
                    seen.note("written");
                }
                context.complete().unwrap();
            });
        });
        read.wait_for("abc");
        client.send("def");
        read.wait_for("def");
        client.send("ghi");
        let written = await_rest(|| read.count("written"));
        assert!(written < 40, "{written} pieces were taken for a client that reads nothing");
        let answer = client.answer();
        assert!(answer.is_whole);
        assert_eq!(answer.body.len(), 2_000_000);
        thread.join();
    });
}

#[test]
fn a_cancellation_fires_when_the_client_may_be_gone() {
    simulated(|| {
        let (servlet, contexts) = handing_over();
        let server = TestServer::start(Context::new("").servlet("/", servlet));
        for is_reset in [false, true] {
            let mut client = server.client();
            client.ask("GET /");
            let context = take(&contexts);
            let cancellation = context.cancellation();
            assert!(!cancellation.is_cancelled());
            let watched = cancellation.clone();
            let thread = spawn(move || block_on(watched.cancelled()));
            sleep(Duration::from_secs(1));
            assert!(!cancellation.is_cancelled() && !thread.is_finished());
            if is_reset {
                client.reset();
                thread.join();
            } else {
                client.shutdown_write();
                thread.join();
                assert!(context.peer_closed());
                context.response().unwrap().write("for who is half gone").unwrap();
                context.complete().unwrap();
                client.answer().expect(200, "for who is half gone");
            }
            assert!(cancellation.is_cancelled());
        }
        // One that nothing happens to fires when the request is over.
        let mut client = server.client();
        client.ask("GET /");
        let context = take(&contexts);
        let cancellation = context.cancellation();
        let thread = spawn(move || block_on(cancellation.cancelled()));
        context.complete().unwrap();
        thread.join();
        client.answer().expect(200, "");
    });
}

#[test]
fn a_future_hears_that_its_client_is_half_gone() {
    simulated(|| {
        let context = Context::new("").async_get("/", async |req, res| {
            Yield::default().await;
            req.async_context()?.cancellation().cancelled().await;
            res.write("still wanted")
        });
        let server = TestServer::start(context);
        let mut client = server.client();
        client.ask("GET /");
        server.await_parked(1);
        client.shutdown_write();
        client.answer().expect(200, "still wanted");
    });
}

#[test]
fn a_forwarded_future_is_back_where_the_client_asked_when_it_is_dispatched() {
    simulated(|| {
        let (sender, contexts) = channel();
        let context = Context::new("")
            .servlet(
                "/forward",
                parking(|req, res| {
                    if req.dispatcher_type() == DispatcherType::Async {
                        let uri = req.attribute("jakarta.servlet.async.request_uri");
                        let uri = uri.and_then(|uri| uri.downcast_ref::<String>().cloned());
                        let forwarded = req.attribute("jakarta.servlet.forward.request_uri");
                        let (path, forwarded) = (req.servlet_path(), forwarded.is_some());
                        return res.write(format!("{path} {uri:?} {forwarded}"));
                    }
                    req.request_dispatcher("/late")?.forward(req, res)?;
                    assert_eq!(req.servlet_path(), "/forward");
                    Ok(())
                }),
            )
            .async_get("/late", async move |req, _res| {
                assert_eq!(req.servlet_path(), "/late");
                sender.send(req.start_async()?);
                std::future::pending().await
            });
        let server = TestServer::start(context);
        let mut client = server.client();
        client.ask("GET /forward");
        take(&contexts).dispatch().unwrap();
        client.answer().expect(200, "/forward Some(\"/forward\") false");
    });
}
