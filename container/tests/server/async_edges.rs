//! The corners of `async fn` servlets: what stands round them, and what they may do to their own
//! request.

use std::future::pending;

use ringcat::{
    AsyncServlet, Context, DispatcherType, Error, ErrorKind, Filter, FilterChain, Methods, Request,
    Response, Result,
};

use crate::{
    simulated::{TestServer, simulated},
    support::{Journal, Noting, Signal, Yield, parking},
};

#[test]
fn a_head_request_and_an_old_client_get_their_forms() {
    simulated(|| {
        let context = Context::new("").async_get("/", async |_req, res| {
            Yield::default().await;
            res.set_content_length(5);
            res.write("later")
        });
        let server = TestServer::start(context);
        let mut client = server.client();
        client.ask("HEAD /");
        let answer = client.answer_to_head();
        assert_eq!((answer.status, answer.field("Content-Length")), (200, Some("5")));
        client.get("/").expect(200, "later");
        let mut old = server.client();
        old.send("GET / HTTP/1.0\r\n\r\n").answer().expect(200, "later");
        old.expect_close();
    });
}

#[test]
fn content_that_nobody_read_does_not_become_a_request() {
    simulated(|| {
        let context = Context::new("").async_method(Methods::POST, "/*", async |req, res| {
            if req.path_info() == Some("/late") {
                Yield::default().await;
            }
            res.write("unread")
        });
        let server = TestServer::start(context);
        let mut client = server.client();
        let content = "GET /stolen HTTP/1.1\r\nHost: a\r\n\r\n".repeat(300);
        for path in ["/now", "/late", "/now"] {
            client.ask_with(&format!("POST {path}"), &[], &content).answer().expect(200, "unread");
        }
        client.send("POST /late HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab");
        client.receive_until("unread");
        client.send("\r\n0\r\n\r\n");
        client.ask_with("POST /now", &[], "x").answer().expect(200, "unread");
    });
}

#[test]
fn a_client_that_asks_first_is_told_to_go_on() {
    simulated(|| {
        let context = Context::new("").async_method(Methods::POST, "/", async |req, res| {
            let content = req.read_to_end_async(100).await?;
            res.write(content)
        });
        let server = TestServer::start(context);
        let mut client = server.client();
        client.send(
            "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n",
        );
        client.receive_until("100 Continue\r\n\r\n");
        client.send("body").answer().expect(200, "body");
        let long = "x".repeat(101);
        client.ask_with("POST /", &[], &long).answer().expect_report(413);
    });
}

#[test]
fn errors_and_redirects_of_a_future_are_those_of_a_servlet() {
    simulated(|| {
        let context = Context::new("")
            .async_get("/*", async |req, res| {
                let path = req.path_info().unwrap_or_default().to_owned();
                if path.ends_with("late") {
                    Yield::default().await;
                }
                res.set_header("X-Lost", "1")?;
                res.write("lost")?;
                match path.split('-').next() {
                    Some("/error") => res.send_error(503, Some("not now"))?,
                    Some("/redirect") => res.send_redirect("/elsewhere")?,
                    _ => {
                        res.reset()?;
                        res.set_status(202);
                    }
                }
                res.write("kept")
            })
            .error_page(404, "/page")
            .get("/page", |_req, res| res.write("a page"));
        let server = TestServer::start(context);
        for kind in ["now", "late"] {
            server.get(&format!("/error-{kind}")).expect_report(503);
            let answer = server.get(&format!("/redirect-{kind}"));
            assert_eq!((answer.status, answer.field("Location")), (302, Some("/elsewhere")));
            let answer = server.get(&format!("/reset-{kind}"));
            answer.expect(202, "kept");
            assert_eq!(answer.field("X-Lost"), None);
        }
    });
}

#[test]
fn a_future_may_use_other_servlets_that_do_not_wait() {
    simulated(|| {
        let context = Context::new("")
            .async_get("/forward", async |req, res| {
                Yield::default().await;
                res.write("lost")?;
                req.request_dispatcher("/plain?a=1")?.forward(req, res)
            })
            .async_get("/include", async |req, res| {
                res.write("before ")?;
                Yield::default().await;
                req.request_dispatcher("/plain?a=2")?.include(req, res)?;
                res.write(" after")
            })
            .async_get("/async", async |req, res| {
                let error = req.request_dispatcher("/include")?.forward(req, res).unwrap_err();
                Yield::default().await;
                let late = req.request_dispatcher("/include")?.forward(req, res).unwrap_err();
                res.write(format!("{:?} {:?}", error.kind(), late.kind()))
            })
            .get("/plain", |req, res| {
                let (kind, query) = (req.dispatcher_type(), req.query_string());
                res.write(format!("{kind:?} {query:?}"))
            });
        let server = TestServer::start(context);
        let mut client = server.client();
        client.get("/forward").expect(200, "Forward Some(\"a=1\")");
        client.get("/include").expect(200, "before Include None after");
        client.get("/async").expect(200, "Unsupported Unsupported");
    });
}

#[test]
fn a_future_may_dispatch_or_complete_its_own_request() {
    simulated(|| {
        let journal = Journal::default();
        let seen = journal.clone();
        let context = Context::new("")
            .async_get("/*", async move |req, res| {
                Yield::default().await;
                let context = req.async_context()?;
                context.add_listener(Noting::new("round", &seen))?;
                res.write("of the future")?;
                if req.path_info() == Some("/complete") {
                    context.complete()?;
                    assert_eq!(context.complete().unwrap_err().kind(), ErrorKind::IllegalState);
                } else {
                    context.dispatch_to("/target")?;
                }
                if req.path_info() == Some("/dispatch-and-wait") {
                    pending::<()>().await;
                }
                Ok(())
            })
            .get("/target", |req, res| {
                assert_eq!(req.dispatcher_type(), DispatcherType::Async);
                res.write(" of the target")
            });
        let server = TestServer::start(context);
        let mut client = server.client();
        client.get("/complete").expect(200, "of the future");
        client.get("/dispatch").expect(200, "of the future of the target");
        client.get("/dispatch-and-wait").expect(200, "of the future of the target");
        assert_eq!(journal.entries(), ["round.on_complete"; 3]);
    });
}

/// Does something on the way back.
struct OnTheWayBack(fn(&mut Request, &mut Response) -> Result<()>);

impl Filter for OnTheWayBack {
    fn filter(&self, req: &mut Request, res: &mut Response, chain: FilterChain<'_>) -> Result<()> {
        chain.next(req, res)?;
        (self.0)(req, res)
    }

    fn async_supported(&self) -> bool {
        true
    }
}

#[test]
fn what_filters_do_on_their_way_back_counts() {
    simulated(|| {
        let journal = Journal::default();
        let (seen, signal) = (journal.clone(), Signal::default());
        let given = signal.clone();
        let context = Context::new("")
            .filter("/fails/*", OnTheWayBack(|_req, _res| Err(Error::servlet("a filter failed"))))
            .filter("/panics/*", OnTheWayBack(|_req, _res| panic!("of the test")))
            .filter(
                "/sets/*",
                OnTheWayBack(|req, res| {
                    assert!(req.is_async_started());
                    req.set_attribute("left", 7_u32);
                    let again = req.start_async().unwrap_err();
                    assert_eq!(again.kind(), ErrorKind::IllegalState);
                    res.set_header("X-Back", "1")
                }),
            )
            .async_get("/*", async move |req, res| {
                struct Dropped(Journal);
                impl Drop for Dropped {
                    fn drop(&mut self) {
                        self.0.note("dropped");
                    }
                }
                let _dropped = Dropped(seen.clone());
                given.clone().await;
                let left = req.attribute("left");
                let left = left.and_then(|left| left.downcast_ref::<u32>().copied());
                res.write(format!("{left:?}"))
            });
        let server = TestServer::start(context);
        server.get("/fails/x").expect_report(500);
        server.get("/panics/x").expect_report(500);
        assert_eq!(journal.entries(), ["dropped"; 2]);
        let mut client = server.client();
        client.ask("GET /sets/x");
        server.await_parked(1);
        signal.give();
        let answer = client.answer();
        answer.expect(200, "Some(7)");
        assert_eq!(answer.field("X-Back"), Some("1"));
    });
}

#[test]
fn a_listener_may_send_a_request_that_timed_out_to_a_future() {
    simulated(|| {
        let context = Context::new("")
            .servlet(
                "/",
                parking(|req, _res| {
                    let context = req.start_async()?;
                    context.set_timeout(std::time::Duration::from_millis(50))?;
                    context.add_listener(Noting {
                        on_timeout: |event| event.context().dispatch_to("/late"),
                        ..Noting::new("round", &Journal::default())
                    })
                }),
            )
            .async_get("/late", async |_req, res| {
                Yield::default().await;
                res.write("late")
            });
        let server = TestServer::start(context);
        let mut client = server.client();
        client.get("/").expect(200, "late");
        client.get("/").expect(200, "late");
    });
}

/// Waits for its client to end its stream.
struct UntilTheEnd(Journal);

impl AsyncServlet for UntilTheEnd {
    async fn service(&self, req: &mut Request, _res: &mut Response) -> Result<()> {
        Yield::default().await;
        req.async_context()?.add_listener(Noting::new("round", &self.0))?;
        self.0.note("waits");
        pending().await
    }

    fn end_on_peer_close(&self) -> Option<bool> {
        Some(true)
    }
}

#[test]
fn a_servlet_may_take_a_client_that_is_half_gone_for_gone() {
    simulated(|| {
        let journal = Journal::default();
        let server =
            TestServer::start(Context::new("").async_servlet("/", UntilTheEnd(journal.clone())));
        let mut client = server.client();
        client.ask("GET /");
        journal.wait_for("waits");
        client.shutdown_write();
        client.expect_close();
        journal.wait_for("round.on_complete");
        assert_eq!(journal.entries(), ["waits", "round.on_error(Io)", "round.on_complete"]);
    });
}

#[test]
fn a_form_is_read_as_it_comes() {
    simulated(|| {
        let context = Context::new("").async_method(Methods::POST, "/", async |req, res| {
            req.read_form_async(1000).await?;
            let (a, b) = (req.parameter("a")?.map(str::to_owned), req.parameter("b")?);
            res.write(format!("{a:?} {b:?}"))
        });
        let server = TestServer::start(context);
        let mut client = server.client();
        client.send("POST /?a=query HTTP/1.1\r\nHost: a\r\nContent-Length: 14\r\n");
        client.send("Content-Type: application/x-www-form-urlencoded\r\n\r\na=fo");
        server.await_parked(1);
        client.send("rm&b=%20c+").answer().expect(200, "Some(\"query\") Some(\" c \")");
        client.ask_with("POST /?b=1", &[], "a=1").answer().expect(200, "None Some(\"1\")");
    });
}
