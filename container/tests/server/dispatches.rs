//! `AsyncContext::dispatch`: back to the servlet or to a path, what the target sees, filters of
//! the ASYNC dispatch, further rounds, failing targets, targets that are none.

use ringcat::{
    AsyncContext, Context, DispatcherType, Error, ErrorKind, Filter, FilterChain, Request,
    Response, Result,
};
use ringcat_engine::current::Current;

use crate::{
    simulated::{TestServer, simulated, spawn},
    support::{Journal, Noting, Receiver, channel, handing_over, parking, take},
};

fn text_attribute(req: &Request, name: &str) -> String {
    let value = req.attribute(&format!("jakarta.servlet.async.{name}"));
    let value = value.and_then(|value| value.downcast_ref::<String>().cloned());
    value.unwrap_or_else(|| "-".to_owned())
}

/// Answers with everything that a dispatch may change.
fn told(req: &mut Request, res: &mut Response) -> Result<()> {
    let line = [
        req.dispatcher_type().to_string(),
        req.method().to_owned(),
        req.request_uri().into_owned(),
        req.context_path().to_owned(),
        req.servlet_path().to_owned(),
        req.path_info().unwrap_or("-").to_owned(),
        req.query_string().as_deref().unwrap_or("-").to_owned(),
        req.parameter("a")?.unwrap_or("-").to_owned(),
        req.parameter("b")?.unwrap_or("-").to_owned(),
    ];
    let names = ["request_uri", "context_path", "servlet_path", "path_info", "query_string"];
    let first = names.map(|name| text_attribute(req, name));
    res.write(format!("{} <- {}", line.join(" "), first.join(" ")))
}

/// A servlet that hands its context over, and tells what it sees when it is dispatched back.
fn round_trip() -> (impl ringcat::Servlet, Receiver<AsyncContext>) {
    let (sender, contexts) = channel();
    let servlet = parking(move |req, res| {
        if req.dispatcher_type() == DispatcherType::Async {
            assert!(!req.is_async_started());
            return told(req, res);
        }
        for name in ["request_uri", "mapping"] {
            assert!(req.attribute(&format!("jakarta.servlet.async.{name}")).is_none());
        }
        sender.send(req.start_async()?);
        Ok(())
    });
    (servlet, contexts)
}

#[test]
fn dispatch_without_path_goes_back_to_the_client_s_target() {
    simulated(|| {
        let (servlet, contexts) = round_trip();
        let server = TestServer::start(Context::new("/app").named_servlet("s", &["/s/*"], servlet));
        let mut client = server.client();
        for is_parked in [false, true] {
            client.ask("POST /app/s/x%20y?a=1&b=2");
            let context = take(&contexts);
            if is_parked {
                server.await_parked(1);
            }
            context.response().unwrap().write("before: ").unwrap();
            context.dispatch().unwrap();
            client.answer().expect(
                200,
                "before: ASYNC POST /app/s/x%20y /app /s /x y a=1&b=2 1 2 \
                 <- /app/s/x%20y /app /s /x y a=1&b=2",
            );
        }
    });
}

#[test]
fn dispatch_to_a_path_brings_its_own_query() {
    simulated(|| {
        let (servlet, contexts) = handing_over();
        let context = Context::new("/app").servlet("/start", servlet).get("/t/*", told);
        let server = TestServer::start(context);
        let mut client = server.client();
        client.ask("GET /app/start?a=old&b=2");
        take(&contexts).dispatch_to("/t/i?a=new").unwrap();
        client.answer().expect(
            200,
            "ASYNC GET /app/t/i /app /t /i a=new new 2 <- /app/start /app /start - a=old&b=2",
        );
        // Without a query of its own the target sees that of the client.
        client.ask("GET /app/start?a=old");
        take(&contexts).dispatch_to("/t").unwrap();
        let expected = "ASYNC GET /app/t /app /t - a=old old - <- /app/start /app /start - a=old";
        client.answer().expect(200, expected);
    });
}

#[test]
fn a_bad_target_changes_nothing() {
    simulated(|| {
        let (servlet, contexts) = handing_over();
        let context = Context::new("/app").servlet("/start", servlet).get("/t", told);
        let server = TestServer::start(context);
        let mut client = server.client();
        client.ask("GET /app/start");
        let context = take(&contexts);
        for (path, kind) in [
            ("t", ErrorKind::IllegalArgument),
            ("", ErrorKind::IllegalArgument),
            ("/nothing", ErrorKind::Unsupported),
            ("/../t", ErrorKind::Unsupported),
            ("/%zz", ErrorKind::Unsupported),
        ] {
            assert_eq!(context.dispatch_to(path).unwrap_err().kind(), kind, "{path:?}");
        }
        context.dispatch_to("/t").unwrap();
        let again = context.dispatch_to("/t").unwrap_err();
        assert_eq!(again.kind(), ErrorKind::IllegalState);
        assert!(client.answer().text().starts_with("ASYNC GET /app/t "));
    });
}

/// Writes its name.
struct Named {
    name: &'static str,
}

impl Filter for Named {
    fn filter(&self, req: &mut Request, res: &mut Response, chain: FilterChain<'_>) -> Result<()> {
        res.write(format!("{}({}) ", self.name, req.dispatcher_type()))?;
        chain.next(req, res)
    }

    fn async_supported(&self) -> bool {
        true
    }
}

#[test]
fn filters_run_for_the_dispatch_that_they_are_declared_for() {
    simulated(|| {
        use DispatcherType::{Async, Request};
        let context = Context::new("")
            .filter("/*", Named { name: "client" })
            .filter_for(&[Async], "/*", Named { name: "async" })
            .filter_for(&[Async], "/start", Named { name: "elsewhere" })
            .filter_for(&[Request, Async], "/*", Named { name: "both" })
            .servlet("/start", parking(|req, _res| req.start_async()?.dispatch_to("/t")))
            .get("/t", |_req, res| res.write("target"));
        let server = TestServer::start(context);
        let expected = "client(REQUEST) both(REQUEST) async(ASYNC) both(ASYNC) target";
        server.get("/start").expect(200, expected);
        server.get("/t").expect(200, "client(REQUEST) both(REQUEST) target");
    });
}

#[test]
fn a_dispatched_servlet_may_start_another_round() {
    simulated(|| {
        let journal = Journal::default();
        let seen = journal.clone();
        let servlet = parking(move |req, res| {
            let count =
                req.attribute("count").and_then(|count| count.downcast_ref::<u8>().copied());
            let count = count.unwrap_or(0) + 1;
            req.set_attribute("count", count);
            let context = req.start_async()?;
            context.add_listener(Noting::new(["", "1", "2", "3"][usize::from(count)], &seen))?;
            res.write(format!("{count}{} ", req.dispatcher_type()))?;
            if count < 3 { context.dispatch() } else { context.complete() }
        });
        let server = TestServer::start(Context::new("").servlet("/", servlet));
        let mut client = server.client();
        for _ in 0..2 {
            client.get("/").expect(200, "1REQUEST 2ASYNC 3ASYNC ");
        }
        server.stop();
        let once = ["1.on_start_async", "2.on_start_async", "3.on_complete"];
        assert_eq!(journal.entries(), [once, once].concat());
    });
}

#[test]
fn a_listener_stays_by_adding_itself_again() {
    simulated(|| {
        let journal = Journal::default();
        let seen = journal.clone();
        let servlet = parking(move |req, _res| {
            if req.dispatcher_type() == DispatcherType::Request {
                let context = req.start_async()?;
                let journal = seen.clone();
                context.add_listener(Staying { journal })?;
                return context.dispatch();
            }
            let context = req.start_async()?;
            context.add_listener(Noting::new("later", &seen))?;
            context.complete()
        });
        let server = TestServer::start(Context::new("").servlet("/", servlet));
        server.get("/").expect(200, "");
        server.stop();
        assert_eq!(
            journal.entries(),
            ["staying.on_start_async", "staying.on_complete", "later.on_complete"]
        );
    });
}

/// Stays over all rounds.
struct Staying {
    journal: Journal,
}

impl ringcat::AsyncListener for Staying {
    fn on_start_async(&mut self, event: &mut ringcat::AsyncEvent<'_>) -> Result<()> {
        self.journal.note("staying.on_start_async");
        event.context().add_listener(Self { journal: self.journal.clone() })
    }

    fn on_complete(&mut self, _event: &mut ringcat::AsyncEvent<'_>) -> Result<()> {
        self.journal.note("staying.on_complete");
        Ok(())
    }
}

#[test]
fn a_target_without_another_round_is_the_end() {
    simulated(|| {
        let journal = Journal::default();
        let seen = journal.clone();
        let context = Context::new("")
            .servlet(
                "/start",
                parking(move |req, _res| {
                    let context = req.start_async()?;
                    context.add_listener(Noting::new("round", &seen))?;
                    context.dispatch_to("/t")
                }),
            )
            .get("/t", |req, res| {
                assert_eq!(req.async_context().unwrap_err().kind(), ErrorKind::IllegalState);
                res.write("target")
            });
        let server = TestServer::start(context);
        server.get("/start").expect(200, "target");
        server.stop();
        assert_eq!(journal.entries(), ["round.on_complete"]);
    });
}

#[test]
fn a_failing_target_is_told_and_reported() {
    simulated(|| {
        for (query, kind) in [("error", "App"), ("panic", "Panic"), ("send", "")] {
            let journal = Journal::default();
            let seen = journal.clone();
            let context = Context::new("")
                .servlet(
                    "/start",
                    parking(move |req, _res| {
                        let context = req.start_async()?;
                        context.add_listener(Noting::new("round", &seen))?;
                        let query = req.query_string().unwrap_or_default().into_owned();
                        context.dispatch_to(&format!("/t?{query}"))
                    }),
                )
                .get("/t", |req, res| match req.query_string().as_deref() {
                    Some("error") => Err(Error::app("the target fails")),
                    Some("panic") => panic!("the target panics"),
                    Some(_) | None => res.send_error(500, None),
                });
            let server = TestServer::start(context);
            server.get(&format!("/start?{query}")).expect_report(500);
            server.stop();
            let mut expected = vec!["round.on_complete".to_owned()];
            if !kind.is_empty() {
                expected.insert(0, format!("round.on_error({kind})"));
            }
            assert_eq!(journal.entries(), expected, "{query}");
        }
    });
}

#[test]
fn a_dispatch_from_a_thread_races_with_service_and_always_arrives() {
    simulated(|| {
        let (servlet, contexts) = handing_over();
        let context =
            Context::new("").servlet("/start", servlet).get("/t", |_, res| res.write("t"));
        let server = TestServer::start(context);
        let mut client = server.client();
        for _ in 0..100 {
            client.ask("GET /start");
            let context = take(&contexts);
            context.response().unwrap().write("s").unwrap();
            context.dispatch_to("/t").unwrap();
            client.answer().expect(200, "st");
        }
    });
}

/// A servlet that parks, and one at `/blocking` that its dispatch goes to, on a worker thread.
fn parks_and_blocks(
    blocks: impl Fn(&mut Request, &mut Response) -> Result<()> + Send + Sync + 'static,
    journal: &Journal,
) -> (Context, Receiver<AsyncContext>) {
    let (sender, contexts) = channel();
    let seen = journal.clone();
    let parks = crate::support::streaming(move |req, res| {
        let context = req.start_async()?;
        context.add_listener(Noting::new("round", &seen))?;
        res.write("core, ")?;
        sender.send(context);
        Ok(())
    });
    let context = Context::new("").servlet("/", parks);
    (context.servlet("/blocking", crate::support::blocking(blocks)), contexts)
}

#[test]
fn a_blocking_target_runs_on_a_worker_and_reads_what_the_first_pass_left() {
    simulated(|| {
        let journal = Journal::default();
        let blocks = |req: &mut Request, res: &mut Response| {
            assert_eq!(req.dispatcher_type(), DispatcherType::Async);
            assert!(Current::get().is_worker);
            let content = req.read_to_end()?;
            res.write(String::from_utf8_lossy(&content).into_owned())
        };
        let (context, contexts) = parks_and_blocks(blocks, &journal);
        let server = TestServer::start(context);
        let mut client = server.client();
        for round in 1..=2 {
            client.ask_with("POST /", &["Content-Length: 6"], "").send("abc");
            let context = take(&contexts);
            server.await_parked(round);
            context.dispatch_to("/blocking").unwrap();
            client.send("def");
            client.answer().expect(200, "core, abcdef");
            assert_eq!(context.complete().unwrap_err().kind(), ErrorKind::IllegalState);
        }
        server.stop();
        assert_eq!(journal.entries(), ["round.on_complete", "round.on_complete"]);
    });
}

#[test]
fn a_blocking_target_that_fails_is_told_and_reported() {
    simulated(|| {
        let journal = Journal::default();
        let (context, contexts) = parks_and_blocks(
            |_req, res| {
                res.reset_buffer()?;
                Err(Error::servlet("no"))
            },
            &journal,
        );
        let server = TestServer::start(context);
        let mut client = server.client();
        client.ask("GET /");
        let context = take(&contexts);
        server.await_parked(1);
        context.dispatch_to("/blocking").unwrap();
        client.answer().expect_report(500);
        server.stop();
        assert_eq!(journal.entries(), ["round.on_error(Servlet)", "round.on_complete"]);
    });
}

#[test]
fn a_blocking_target_may_start_another_round() {
    simulated(|| {
        let journal = Journal::default();
        let (context, contexts) = parks_and_blocks(
            |req, res| {
                let context = req.start_async()?;
                res.write("worker, ")?;
                spawn(move || {
                    context.response().unwrap().write("thread").unwrap();
                    context.complete().unwrap();
                });
                Ok(())
            },
            &journal,
        );
        let server = TestServer::start(context);
        let mut client = server.client();
        client.ask("GET /");
        let context = take(&contexts);
        server.await_parked(1);
        context.dispatch_to("/blocking").unwrap();
        client.answer().expect(200, "core, worker, thread");
        server.stop();
        assert_eq!(journal.entries(), ["round.on_start_async"]);
    });
}

#[test]
fn a_form_that_was_read_stays_over_dispatches() {
    simulated(|| {
        let servlet = parking(|req, _res| {
            assert_eq!(req.parameter("a")?, Some("form"));
            req.start_async()?.dispatch_to("/again")
        });
        let again = parking(|req, _res| {
            assert_eq!(req.parameter("a")?, Some("form"));
            req.start_async()?.dispatch_to("/t?b=query")
        });
        let context = Context::new("").servlet("/start", servlet).servlet("/again", again);
        let server = TestServer::start(context.servlet("/t", parking(told)));
        let mut client = server.client();
        let form = ["Content-Type: application/x-www-form-urlencoded"];
        client.ask_with("POST /start", &form, "a=form&b=form");
        let expected = "ASYNC POST /t  /t - b=query form query <- /start  /start - -";
        client.answer().expect(200, expected);
        // The next request on the connection has nothing of it.
        client.ask_with("POST /t", &form, "b=own");
        client.answer().expect(200, "REQUEST POST /t  /t - - - own <- - - - - -");
    });
}

#[test]
fn dispatch_without_path_goes_to_the_welcome_file_that_the_request_was_led_to() {
    simulated(|| {
        let (servlet, contexts) = round_trip();
        let context = Context::new("/app").named_servlet("s", &["/d/index"], servlet);
        let server = TestServer::start(context.welcome_file("index"));
        let mut client = server.client();
        client.ask("GET /app/d/");
        take(&contexts).dispatch().unwrap();
        client.answer().expect(
            200,
            "ASYNC GET /app/d/index /app /d/index - - - - <- /app/d/ /app /d/index - -",
        );
    });
}

#[test]
fn the_context_path_is_decoded_after_a_dispatch_too() {
    simulated(|| {
        let servlet = parking(|req, _res| req.start_async()?.dispatch_to("/t%20t/%3Fx?a=1"));
        let context = Context::new("/a pp").servlet("/start", servlet).get("/t t/*", told);
        let server = TestServer::start(context);
        let expected = "ASYNC GET /a%20pp/t%20t/%3Fx /a pp /t t /?x a=1 1 - \
                        <- /a%20pp/start /a pp /start - -";
        server.get("/a%20pp/start").expect(200, expected);
    });
}
