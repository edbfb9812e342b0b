//! Errors and panics of application code: 500 where nothing is committed, else a cut connection;
//! the core, the other connections and the counters stay sound.

use std::time::Duration;

use ringcat::{Context, Error, Filter, FilterChain, Next, Request, Response, Result, Valve};

use crate::{
    simulated::{TestServer, builder, simulated},
    support::blocking,
};

/// Fails as the query says: by an error or a panic, on the way in or out.
fn failing(req: &mut Request, res: &mut Response) -> Result<()> {
    let query = req.query_string().unwrap_or_default().into_owned();
    match &*query {
        "error" => Err(Error::servlet("it was asked to fail")),
        "panic" => panic!("it was asked to panic"),
        "payload" => std::panic::panic_any(7_u8),
        "io" => Err(std::io::Error::other("a file of the application").into()),
        "app" => Err(Error::app("text of the application")),
        "status" => Err(Error::protocol_violation(422, "not to be processed")),
        "later" => Err(Error::unavailable_for(Duration::from_secs(30), "a rest")),
        "never" => Err(Error::unavailable_permanently("gone for good")),
        "written" => {
            res.write("uncommitted")?;
            Err(Error::servlet("it failed with content in the buffer"))
        }
        "committed" => {
            res.write("begun")?;
            res.flush()?;
            Err(Error::servlet("it failed after the commit"))
        }
        "committed-panic" => {
            res.write("begun")?;
            res.flush()?;
            panic!("after the commit")
        }
        _ => res.write("fine"),
    }
}

fn failing_context(path: &str) -> Context {
    Context::new(path)
        .get("/core", failing)
        .servlet("/worker", blocking(failing))
        .filter("/filter", Failing)
        .get("/filter", |_req, res| res.write("fine"))
        .get("/valve", |_req, res| res.write("fine"))
        .valve(Failing)
}

/// Fails as the servlet does, for its own path only.
struct Failing;

impl Filter for Failing {
    fn filter(&self, req: &mut Request, res: &mut Response, chain: FilterChain<'_>) -> Result<()> {
        if req.query_string().is_some() { failing(req, res) } else { chain.next(req, res) }
    }
}

impl Valve for Failing {
    fn name(&self) -> &str {
        "failing"
    }

    fn invoke(&self, req: &mut Request, res: &mut Response, next: Next<'_>) -> Result<()> {
        let is_own = req.servlet_path() == "/valve" && req.query_string().is_some();
        if is_own { failing(req, res) } else { next.invoke(req, res) }
    }
}

const PLACES: [&str; 4] = ["/core", "/worker", "/filter", "/valve"];

#[test]
fn what_fails_before_the_commit_is_reported() {
    simulated(|| {
        let server = TestServer::start(failing_context(""));
        let mut bystander = server.client();
        let mut failures = 0;
        for place in PLACES {
            for failure in ["error", "panic", "payload", "io", "app"] {
                let mut client = server.client();
                client.get(&format!("{place}?{failure}")).expect_report(500);
                client.expect_close();
                bystander.get(place).expect(200, "fine");
                failures += 1;
            }
        }
        let report = server.stop();
        assert_eq!(report.statuses[4], failures);
        assert_eq!(report.statuses[1], failures);
        assert_eq!((report.answered, report.aborted), (2 * failures, 0));
        assert_eq!(report.connections_closed, failures + 1);
    });
}

#[test]
fn an_error_carries_its_status() {
    simulated(|| {
        let server = TestServer::start(failing_context(""));
        for place in PLACES {
            server.get(&format!("{place}?status")).expect_report(422);
            let later = server.get(&format!("{place}?later"));
            later.expect_report(503);
            assert!(later.field("Retry-After").is_some(), "{place}");
            server.get(&format!("{place}?never")).expect_report(404);
        }
    });
}

#[test]
fn content_in_the_buffer_stands_in_for_the_report() {
    simulated(|| {
        let server = TestServer::start(failing_context(""));
        for place in PLACES {
            server.get(&format!("{place}?written")).expect(500, "uncommitted");
        }
    });
}

#[test]
fn what_fails_after_the_commit_is_cut() {
    simulated(|| {
        let server = TestServer::start(failing_context(""));
        let mut bystander = server.client();
        for place in PLACES {
            for failure in ["committed", "committed-panic"] {
                let target = format!("{place}?{failure}");
                let mut client = server.client();
                let answer = client.get(&target);
                let is_cut = !answer.is_whole;
                assert_eq!(
                    (answer.status, &*answer.text(), is_cut),
                    (200, "begun", true),
                    "{target}"
                );
                bystander.get(place).expect(200, "fine");
            }
        }
        let report = server.stop();
        assert_eq!(report.aborted, 8);
    });
}

#[test]
fn a_panic_while_values_are_dropped_hurts_nobody() {
    simulated(|| {
        /// Panics when it is dropped.
        struct Mine;
        impl Drop for Mine {
            fn drop(&mut self) {
                panic!("dropped");
            }
        }
        let context = Context::new("").get("/", |req, res| {
            req.set_attribute("mine", Mine);
            res.write("fine")
        });
        let server = TestServer::start(context);
        let mut client = server.client();
        for _ in 0..3 {
            client.get("/").expect(200, "fine");
        }
        assert_eq!(server.stop().statuses[1], 3);
    });
}

#[test]
fn an_engine_valve_that_fails_is_reported_too() {
    simulated(|| {
        /// Panics always.
        struct Broken;
        impl Valve for Broken {
            fn name(&self) -> &str {
                "broken"
            }

            fn invoke(&self, _: &mut Request, _: &mut Response, _: Next<'_>) -> Result<()> {
                panic!("in the engine");
            }
        }
        let context = Context::new("").get("/", |_req, res| res.write("fine"));
        let server = TestServer::of(builder(context).valve(Broken));
        for _ in 0..3 {
            server.get("/").expect_report(500);
        }
    });
}
