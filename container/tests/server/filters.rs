//! What stands round servlets: filters and valves, their order, what they cut short, what is
//! refused before its content is read, and how they lower the support of async.

use ringcat::{
    Context, DispatcherType, Error, Filter, FilterChain, Host, Next, Request, Response, Result,
    Valve,
};

use crate::{
    simulated::{TestServer, builder, simulated},
    support::{Journal, parking},
};

/// Notes its way in and out.
struct Tracing {
    name: &'static str,
    journal: Journal,
    is_async: bool,
}

impl Filter for Tracing {
    fn filter(&self, req: &mut Request, res: &mut Response, chain: FilterChain<'_>) -> Result<()> {
        self.journal.note(format!("{} in", self.name));
        let result = chain.next(req, res);
        self.journal.note(format!("{} out", self.name));
        result
    }

    fn async_supported(&self) -> bool {
        self.is_async
    }
}

impl Valve for Tracing {
    fn name(&self) -> &str {
        self.name
    }

    fn invoke(&self, req: &mut Request, res: &mut Response, next: Next<'_>) -> Result<()> {
        self.journal.note(format!("{} in", self.name));
        let result = next.invoke(req, res);
        self.journal.note(format!("{} out", self.name));
        result
    }

    fn async_supported(&self) -> bool {
        self.is_async
    }
}

fn tracing(name: &'static str, journal: &Journal) -> Tracing {
    Tracing { name, journal: journal.clone(), is_async: true }
}

#[test]
fn valves_and_filters_nest_in_their_order() {
    simulated(|| {
        let journal = Journal::default();
        let seen = journal.clone();
        let context = Context::new("")
            .valve(tracing("context", &journal))
            .filter("/*", tracing("first", &journal))
            .filter("/other", tracing("other", &journal))
            .filter("*.x", tracing("second", &journal))
            .filter_for(&[DispatcherType::Error], "/*", tracing("error", &journal))
            .get("/a.x", move |_req, res| {
                seen.note("servlet");
                res.write("done")
            });
        let host = Host::new("h.example").valve(tracing("host", &journal)).context(context);
        let server = builder(Context::new("/none"))
            .valve(tracing("engine", &journal))
            .valve(tracing("engine 2", &journal))
            .host(host);
        let server = TestServer::of(server);
        server
            .client()
            .send("GET /a.x HTTP/1.1\r\nHost: h.example\r\n\r\n")
            .answer()
            .expect(200, "done");
        let ways = ["engine", "engine 2", "host", "context", "first", "second"];
        let mut expected: Vec<String> = ways.iter().map(|name| format!("{name} in")).collect();
        expected.push("servlet".to_owned());
        expected.extend(ways.iter().rev().map(|name| format!("{name} out")));
        assert_eq!(journal.entries(), expected);
    });
}

/// Answers by itself, or changes what came back.
struct Gate;

impl Filter for Gate {
    fn filter(&self, req: &mut Request, res: &mut Response, chain: FilterChain<'_>) -> Result<()> {
        match req.path_info() {
            Some("/closed") => return res.write("the gate answers"),
            Some("/forbidden") => return res.send_error(403, Some("not you")),
            Some("/away") => return res.send_redirect("/elsewhere"),
            Some(_) | None => {}
        }
        req.set_attribute("gate", 7_u32);
        chain.next(req, res)?;
        res.write(" and out")
    }
}

#[test]
fn a_filter_answers_itself_or_goes_on() {
    simulated(|| {
        let context = Context::new("").filter("/*", Gate).get("/*", |req, res| {
            let gate = req.attribute("gate").and_then(|value| value.downcast_ref::<u32>().copied());
            res.write(format!("in by {}", gate.unwrap()))
        });
        let server = TestServer::start(context);
        let mut client = server.client();
        client.get("/open").expect(200, "in by 7 and out");
        client.get("/closed").expect(200, "the gate answers");
        let forbidden = client.get("/forbidden");
        forbidden.expect_report(403);
        assert!(forbidden.text().contains("not you"));
        let away = client.get("/away");
        assert_eq!((away.status, away.field("Location")), (302, Some("/elsewhere")));
    });
}

/// Refuses by the head alone.
struct Doorman(Journal);

impl Valve for Doorman {
    fn name(&self) -> &str {
        "doorman"
    }

    fn check_head(&self, req: &Request) -> Option<u16> {
        (req.header("X-Pass").as_deref() != Some("yes")).then_some(401)
    }

    fn invoke(&self, req: &mut Request, res: &mut Response, next: Next<'_>) -> Result<()> {
        self.0.note("invoke");
        next.invoke(req, res)
    }
}

#[test]
fn a_valve_refuses_before_the_content_is_read() {
    simulated(|| {
        let journal = Journal::default();
        let seen = journal.clone();
        let context =
            Context::new("").valve(Doorman(journal.clone())).post("/in", move |req, res| {
                seen.note("servlet");
                let content = req.read_to_end()?;
                res.write(content)
            });
        let server = TestServer::start(context);
        let mut client = server.client();
        let head = ["Expect: 100-continue", "Content-Length: 1000000"];
        // The answer comes although not a byte of the content was sent, and asks for none.
        client.ask_with("POST /in", &head, "").answer().expect_report(401);
        client.expect_close();
        let mut client = server.client();
        let head = ["X-Pass: yes", "Expect: 100-continue", "Content-Length: 2"];
        assert_eq!(client.ask_with("POST /in", &head, "").answer().status, 100);
        client.send("ok").answer().expect(200, "ok");
        server.stop();
        assert_eq!(journal.count("servlet"), 1);
    });
}

#[test]
fn start_async_names_everything_that_does_not_support_it() {
    simulated(|| {
        let journal = Journal::default();
        let lowering = |name| Tracing { name, journal: journal.clone(), is_async: false };
        /// Answers with the refusal of `start_async`.
        fn refused(req: &mut Request, res: &mut Response) -> Result<()> {
            let text = match req.start_async() {
                Ok(_) => "it was started".to_owned(),
                Err(error) => format!("{:?}: {error}", error.kind()),
            };
            res.write(format!("{} {text}", req.is_async_supported()))
        }
        let context = Context::new("")
            .valve(lowering("low valve"))
            .filter("/low/*", lowering("unused name"))
            .named_servlet("sync servlet", &["/low/sync"], Sync)
            .servlet("/low/async", parking(refused));
        let server = TestServer::of(builder(context).valve(tracing("fine valve", &journal)));
        let mut client = server.client();
        let text = client.get("/low/async").text();
        assert!(text.starts_with("false IllegalState: "), "{text}");
        for part in ["valve low valve", "filter Tracing"] {
            assert!(text.contains(part), "{text} lacks {part}");
        }
        assert!(!text.contains("fine valve") && !text.contains("servlet"), "{text}");
        let text = client.get("/low/sync").text();
        assert!(text.contains("valve low valve, filter Tracing, servlet sync servlet"), "{text}");
    });
}

/// A servlet that does not support async, and tries.
struct Sync;

impl ringcat::Servlet for Sync {
    fn service(&self, req: &mut Request, res: &mut Response) -> Result<()> {
        let error = req.start_async().err().unwrap_or_else(|| Error::servlet("it was started"));
        res.write(error.to_string())
    }
}

#[test]
fn an_uncaught_refusal_is_500_and_the_next_request_is_served() {
    simulated(|| {
        let context = Context::new("")
            .get("/sync", |req, _res| req.start_async().map(drop))
            .get("/fine", |_req, res| res.write("fine"));
        let server = TestServer::start(context);
        server.get("/sync").expect_report(500);
        server.get("/fine").expect(200, "fine");
        assert_eq!(server.stop().parked, 0);
    });
}
