//! Servlets and their methods: what is dispatched, what is refused, `Allow`, HEAD, init, destroy.

use ringcat::{
    Connector, Context, Error, ErrorKind, HttpServlet, Methods, Request, Response, Result, Server,
};

use crate::{
    simulated::{TestServer, builder, simulated},
    support::Journal,
};

/// Declares every method and names the function that was called.
struct Every;

impl HttpServlet for Every {
    fn methods(&self) -> Methods {
        Methods::ALL
    }

    fn do_get(&self, _req: &mut Request, res: &mut Response) -> Result<()> {
        res.write("do_get")
    }

    fn do_head(&self, _req: &mut Request, res: &mut Response) -> Result<()> {
        res.set_header("X-Function", "do_head")
    }

    fn do_post(&self, _req: &mut Request, res: &mut Response) -> Result<()> {
        res.write("do_post")
    }

    fn do_put(&self, _req: &mut Request, res: &mut Response) -> Result<()> {
        res.write("do_put")
    }

    fn do_delete(&self, _req: &mut Request, res: &mut Response) -> Result<()> {
        res.write("do_delete")
    }

    fn do_patch(&self, _req: &mut Request, res: &mut Response) -> Result<()> {
        res.write("do_patch")
    }
}

#[test]
fn each_method_reaches_its_function() {
    simulated(|| {
        let server = TestServer::start(Context::new("").servlet("/every", Every));
        let mut client = server.client();
        for method in ["GET", "POST", "PUT", "DELETE", "PATCH"] {
            let answer = client.ask(&format!("{method} /every")).answer();
            answer.expect(200, &format!("do_{}", method.to_lowercase()));
        }
        let head = client.ask("HEAD /every").answer_to_head();
        assert_eq!((head.status, head.field("X-Function")), (200, Some("do_head")));
        let options = client.ask("OPTIONS /every").answer();
        options.expect(200, "");
        assert_eq!(options.field("Allow"), Some("GET, HEAD, PATCH, POST, PUT, DELETE, OPTIONS"));
    });
}

#[test]
fn closures_answer_their_method_only() {
    simulated(|| {
        let context = Context::new("")
            .get("/x", |_req, res| res.write("got"))
            .post("/p", |_req, res| res.write("posted"))
            .put("/u", |_req, res| res.write("put"))
            .delete("/d", |_req, res| res.write("deleted"))
            .method(Methods::GET | Methods::PATCH, "/m", |req, res| {
                let method = req.method().to_owned();
                res.write(method)
            });
        let server = TestServer::start(context);
        let mut client = server.client();
        client.get("/x").expect(200, "got");
        client.ask("POST /p").answer().expect(200, "posted");
        client.ask("PUT /u").answer().expect(200, "put");
        client.ask("DELETE /d").answer().expect(200, "deleted");
        client.ask("PATCH /m").answer().expect(200, "PATCH");
        for (line, allow) in [
            ("POST /x", "GET, HEAD, OPTIONS"),
            ("GET /p", "POST, OPTIONS"),
            ("DELETE /m", "GET, HEAD, PATCH, OPTIONS"),
            ("TRACE /x", "GET, HEAD, OPTIONS"),
        ] {
            let answer = client.ask(line).answer();
            answer.expect_report(405);
            assert_eq!(answer.field("Allow"), Some(allow), "{line}");
        }
        let options = client.ask("OPTIONS /p").answer();
        options.expect(200, "");
        assert_eq!(options.field("Allow"), Some("POST, OPTIONS"));
    });
}

#[test]
fn what_nobody_knows_is_501_and_an_asterisk_is_the_server() {
    simulated(|| {
        let server = TestServer::start(Context::new("").get("/x", |_req, res| res.write("got")));
        let mut client = server.client();
        let options = client.ask("OPTIONS *").answer();
        assert_eq!(options.status, 200);
        assert!(options.field("Allow").unwrap().contains("GET"));
        client.ask("BREW /x").answer().expect_report(501);
        client.expect_close();
    });
}

#[test]
fn head_has_the_fields_of_get_and_no_content() {
    simulated(|| {
        let context = Context::new("").get("/short", |_req, res| {
            res.set_content_type("text/plain");
            res.set_header("X-Own", "1")?;
            res.write("five!")
        });
        let context = context.get("/long", |_req, res| res.write(vec![b'x'; 100_000]));
        let server = TestServer::start(context);
        let mut client = server.client();
        for target in ["/short", "/long"] {
            let mut get = client.get(target);
            let mut head = client.ask(&format!("HEAD {target}")).answer_to_head();
            // How chunks would be framed is not said where there are none (RFC 9112, section 6.1).
            get.fields.retain(|(name, _)| name != "Date" && name != "Transfer-Encoding");
            head.fields.retain(|(name, _)| name != "Date");
            assert_eq!((head.status, head.fields), (get.status, get.fields), "{target}");
        }
        client.get("/short").expect(200, "five!");
    });
}

#[test]
fn a_declared_method_without_function_is_an_error_of_the_servlet() {
    simulated(|| {
        struct Liar;
        impl HttpServlet for Liar {
            fn methods(&self) -> Methods {
                Methods::GET | Methods::POST
            }
        }
        let server = TestServer::start(Context::new("").servlet("/liar", Liar));
        server.get("/liar").expect_report(500);
        server.client().ask("POST /liar").answer().expect_report(500);
    });
}

/// Notes its life.
struct Living {
    journal: Journal,
    fails: bool,
}

impl HttpServlet for Living {
    fn methods(&self) -> Methods {
        Methods::GET
    }

    fn init(&self) -> Result<()> {
        self.journal.note("init");
        if self.fails { Err(Error::servlet("no licence")) } else { Ok(()) }
    }

    fn destroy(&self) {
        self.journal.note("destroy");
    }

    fn do_get(&self, _req: &mut Request, _res: &mut Response) -> Result<()> {
        self.journal.note("do_get");
        Ok(())
    }
}

#[test]
fn init_comes_before_the_first_request_and_destroy_after_the_last() {
    simulated(|| {
        let journal = Journal::default();
        let living = Living { journal: journal.clone(), fails: false };
        let context = Context::new("").named_servlet("living", &["/a", "/b"], living);
        let server = TestServer::of(builder(context).cores(2));
        assert_eq!(journal.entries(), ["init"]);
        server.get("/a").expect(200, "");
        server.get("/b").expect(200, "");
        server.stop();
        assert_eq!(journal.entries(), ["init", "do_get", "do_get", "destroy"]);
    });
}

#[test]
fn a_server_does_not_start_half() {
    let journal = Journal::default();
    let failing = Living { journal: journal.clone(), fails: true };
    let context = Context::new("/app").named_servlet("failing", &["/a"], failing);
    let error = crate::support::builder(context).start().err().expect("its servlet failed");
    for part in ["/app", "failing", "no licence"] {
        assert!(error.to_string().contains(part), "{error} lacks {part}");
    }
    let error = Server::builder().start().err().expect("it has no connector");
    assert_eq!(error.kind(), ErrorKind::IllegalArgument);
    for pattern in ["no-slash", "/a/*.txt", "/a/../b"] {
        let context = Context::new("").get(pattern, |_req, _res| Ok(()));
        let error = crate::support::builder(context).start().err().expect("its pattern is wrong");
        assert!(error.to_string().contains(pattern), "{error}");
    }
    let twice = Context::new("").get("/a", |_req, _res| Ok(())).post("/a", |_req, _res| Ok(()));
    assert!(crate::support::builder(twice).start().is_err(), "a pattern has one servlet");
    let nowhere = Server::builder().connector(Connector::http("nowhere"));
    let error = nowhere.start().err().expect("its address is none");
    assert!(error.to_string().contains("ADDRESS:PORT"), "{error}");
}

#[test]
fn all_values_of_a_field_come_in_order_from_request_and_context() {
    simulated(|| {
        let servlet = crate::support::parking(|req, res| {
            let of_request: Vec<String> = req.header_values("x-own").map(Into::into).collect();
            let context = req.start_async()?;
            let head = context.request()?;
            let of_context: Vec<String> = head.header_values("X-OWN").map(Into::into).collect();
            assert_eq!(of_request, of_context);
            assert_eq!(req.header_values("x-none").count(), 0);
            res.write(of_request.join("|"))?;
            context.complete()
        });
        let server = TestServer::start(Context::new("").servlet("/", servlet));
        let fields = ["X-Own: a, b", "Other: x", "x-own: c"];
        server.client().ask_with("GET /", &fields, "").answer().expect(200, "a, b|c");
    });
}
