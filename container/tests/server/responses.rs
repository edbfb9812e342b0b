//! Responses: the commit and what is too late after it, buffer and framing, reset, errors,
//! redirects, fields that would split a response, cookies.

use ringcat::{Context, Cookie, Error, ErrorKind, Request, Response};

use crate::{
    simulated::{TestServer, simulated},
    support::{blocking, parking},
};

#[test]
fn what_fits_the_buffer_has_a_length_and_what_does_not_is_chunked() {
    simulated(|| {
        let context = Context::new("")
            .get("/fits", |_req, res| res.write("x".repeat(res.buffer_size())))
            .get("/over", |_req, res| {
                let bytes = res.buffer_size();
                res.write("x".repeat(bytes))?;
                assert!(!res.is_committed());
                res.write("y")?;
                assert!(res.is_committed());
                res.write("z")
            })
            .get("/small", |_req, res| {
                res.set_buffer_size(4)?;
                res.write("abcde")?;
                assert!(res.is_committed());
                Ok(())
            })
            .get("/length", |_req, res| {
                res.set_content_length(10_000);
                for _ in 0..10 {
                    res.write("z".repeat(1000))?;
                }
                res.write("this is too much and is dropped")
            })
            .get("/none", |_req, res| {
                res.set_status(204);
                res.write("dropped")
            });
        let server = TestServer::start(context);
        let mut client = server.client();
        let fits = client.get("/fits");
        fits.expect(200, &"x".repeat(8192));
        assert_eq!(
            (fits.field("Content-Length"), fits.field("Transfer-Encoding")),
            (Some("8192"), None)
        );
        let over = client.get("/over");
        over.expect(200, &("x".repeat(8192) + "yz"));
        let framing = (over.field("Content-Length"), over.field("Transfer-Encoding"));
        assert_eq!(framing, (None, Some("chunked")));
        client.get("/small").expect(200, "abcde");
        let length = client.get("/length");
        length.expect(200, &"z".repeat(10_000));
        assert_eq!(length.field("Content-Length"), Some("10000"));
        let none = client.get("/none");
        assert_eq!((none.status, none.field("Content-Length")), (204, None));
        client.get("/small").expect(200, "abcde");
    });
}

#[test]
fn after_the_commit_it_is_too_late() {
    simulated(|| {
        let context = Context::new("").get("/", |_req, res| {
            res.set_header("X-Before", "1")?;
            res.write("a")?;
            res.flush()?;
            assert!(res.is_committed());
            res.set_status(404);
            res.set_header("X-After", "1")?;
            res.add_header("X-After", "2")?;
            res.remove_header("X-Before");
            for late in [res.reset(), res.reset_buffer(), res.send_error(500, None)] {
                assert_eq!(late.unwrap_err().kind(), ErrorKind::IllegalState);
            }
            assert_eq!(res.send_redirect("/x").unwrap_err().kind(), ErrorKind::IllegalState);
            assert_eq!(res.set_buffer_size(1).unwrap_err().kind(), ErrorKind::IllegalState);
            res.write("b")
        });
        let server = TestServer::start(context);
        let answer = server.get("/");
        answer.expect(200, "ab");
        assert_eq!((answer.field("X-Before"), answer.field("X-After")), (Some("1"), None));
        assert_eq!(answer.field("Transfer-Encoding"), Some("chunked"));
    });
}

#[test]
fn a_reset_drops_what_was_not_sent() {
    simulated(|| {
        let context = Context::new("")
            .get("/reset", |_req, res| {
                res.set_status(202);
                res.set_header("X-Gone", "1")?;
                res.write("gone")?;
                res.reset()?;
                res.write("new")
            })
            .get("/buffer", |_req, res| {
                res.set_status(202);
                res.set_header("X-Kept", "1")?;
                res.write("gone")?;
                res.reset_buffer()?;
                res.write("new")
            });
        let server = TestServer::start(context);
        let mut client = server.client();
        let reset = client.get("/reset");
        reset.expect(200, "new");
        assert_eq!(reset.field("X-Gone"), None);
        let buffer = client.get("/buffer");
        buffer.expect(202, "new");
        assert_eq!(buffer.field("X-Kept"), Some("1"));
    });
}

#[test]
fn send_error_replaces_what_was_written_and_what_will_be() {
    simulated(|| {
        let context = Context::new("").get("/", |_req, res| {
            res.write("before")?;
            res.set_content_length(3);
            res.send_error(409, Some("no <b>bold</b> words"))?;
            res.set_status(200);
            res.write("after")
        });
        let server = TestServer::start(context);
        let mut client = server.client();
        let answer = client.get("/");
        answer.expect_report(409);
        assert_eq!(answer.field("Content-Type"), Some("text/html;charset=utf-8"));
        let text = answer.text();
        assert!(text.contains("no &lt;b&gt;bold&lt;/b&gt; words"), "{text}");
        assert!(!text.contains("before") && !text.contains("after"), "{text}");
        client.get("/").expect_report(409);
    });
}

#[test]
fn a_redirect_has_its_location_and_nothing_else() {
    simulated(|| {
        let context = Context::new("").get("/", |_req, res| {
            res.write("gone")?;
            res.send_redirect("/next?a=%20b")?;
            res.write("dropped")
        });
        let answer = TestServer::start(context).get("/");
        answer.expect(302, "");
        assert_eq!(answer.field("Location"), Some("/next?a=%20b"));
    });
}

#[test]
fn a_field_cannot_split_the_response() {
    simulated(|| {
        let context = Context::new("").get("/", |_req, res| {
            for value in ["a\r\nSet-Cookie: stolen=1", "a\nb", "a\rb", "a\0b"] {
                let refusals = [
                    res.set_header("X-Own", value).unwrap_err(),
                    res.add_header("X-Own", value).unwrap_err(),
                    res.send_redirect(value).unwrap_err(),
                ];
                assert!(refusals.iter().all(|error| error.kind() == ErrorKind::IllegalArgument));
            }
            for name in ["", "a b", "a:b", "a\r\nb", "é"] {
                let refusal = res.set_header(name, "1").unwrap_err();
                assert_eq!(refusal.kind(), ErrorKind::IllegalArgument, "{name:?}");
            }
            // This setter cannot fail, so the next write does.
            res.set_content_type("text/plain\r\nX-Split: 1");
            assert_eq!(res.write("x").unwrap_err().kind(), ErrorKind::IllegalArgument);
            res.set_status(200);
            res.remove_header("Location");
            res.write("unharmed")
        });
        let answer = TestServer::start(context).get("/");
        answer.expect(200, "unharmed");
        for name in ["X-Own", "Set-Cookie", "X-Split", "Location", "Content-Type"] {
            assert_eq!(answer.field(name), None, "{name}");
        }
    });
}

#[test]
fn fields_are_set_added_and_removed() {
    simulated(|| {
        let context = Context::new("").get("/", |_req, res| {
            res.set_header("X-One", "1")?;
            res.set_header("x-one", "2")?;
            assert_eq!(res.header("X-ONE"), Some("2"));
            res.add_header("X-Two", "1")?;
            res.add_header("X-Two", "2")?;
            res.set_header("X-Three", "1")?;
            res.remove_header("x-three");
            Ok(())
        });
        let answer = TestServer::start(context).get("/");
        let values = |name: &str| -> Vec<&str> {
            let fields = answer.fields.iter().filter(|(other, _)| other.eq_ignore_ascii_case(name));
            fields.map(|(_, value)| &**value).collect()
        };
        assert_eq!(values("x-one"), ["2"]);
        assert_eq!(values("x-two"), ["1", "2"]);
        assert_eq!(values("x-three"), [""; 0]);
        assert_eq!(values("date").len(), 1);
    });
}

#[test]
fn cookies_are_checked_and_each_has_a_field() {
    simulated(|| {
        let context = Context::new("").get("/", |_req, res| {
            res.add_cookie(&Cookie::new("a", "1").path("/app").http_only())?;
            res.add_cookie(&Cookie::new("b", "2"))?;
            for (name, value) in [("a b", "1"), ("c", "1;2"), ("c", "1\r\nX: y")] {
                let refusal = res.add_cookie(&Cookie::new(name, value)).unwrap_err();
                assert_eq!(refusal.kind(), ErrorKind::IllegalArgument, "{name}={value}");
            }
            Ok(())
        });
        let answer = TestServer::start(context).get("/");
        assert_eq!(answer.status, 200, "{}", answer.text());
        let cookies: Vec<&str> = answer
            .fields
            .iter()
            .filter(|(name, _)| name == "Set-Cookie")
            .map(|(_, value)| &**value)
            .collect();
        assert_eq!(cookies, ["a=1; Path=/app; HttpOnly", "b=2"]);
    });
}

#[test]
fn a_worker_thread_has_the_same_response() {
    simulated(|| {
        let context = Context::new("")
            .servlet(
                "/commit",
                blocking(|_req, res| {
                    res.set_status(202);
                    res.set_header("X-Own", "1")?;
                    assert_eq!((res.status(), res.header("x-own")), (202, Some("1")));
                    res.write("a")?;
                    res.reset_buffer()?;
                    res.write("b")?;
                    assert!(!res.is_committed());
                    res.flush()?;
                    res.write("c")
                }),
            )
            .servlet(
                "/error",
                blocking(|_req, res| {
                    res.write("gone")?;
                    res.send_error(409, Some("worker says no"))?;
                    res.write("dropped")
                }),
            )
            .servlet("/redirect", blocking(|_req, res| res.send_redirect("/next")))
            .servlet(
                "/split",
                blocking(|_req, res| {
                    let refusal = res.set_header("X-Own", "a\r\nb").unwrap_err();
                    assert_eq!(refusal.kind(), ErrorKind::IllegalArgument);
                    res.set_content_length(2);
                    res.write("ok")
                }),
            );
        let server = TestServer::start(context);
        let mut client = server.client();
        let commit = client.get("/commit");
        commit.expect(202, "bc");
        assert_eq!(commit.field("X-Own"), Some("1"));
        let error = client.get("/error");
        error.expect_report(409);
        assert!(error.text().contains("worker says no"));
        let redirect = client.get("/redirect");
        assert_eq!((redirect.status, redirect.field("Location")), (302, Some("/next")));
        let split = client.get("/split");
        split.expect(200, "ok");
        assert_eq!(split.field("Content-Length"), Some("2"));
    });
}

#[test]
fn a_status_that_is_none_is_500() {
    simulated(|| {
        let status = |req: &Request| req.query_string().unwrap().parse::<u16>().unwrap();
        let context = Context::new("")
            .get("/set", move |req, res| {
                res.set_status(status(req));
                res.write("set")
            })
            .get("/send", move |req, res| res.send_error(status(req), None))
            .servlet("/worker", blocking(move |req, res| res.send_error(status(req), None)))
            .get("/fail", move |req, _res| Err(Error::protocol_violation(status(req), "fails")))
            .servlet(
                "/async",
                parking(move |req, _res| {
                    let context = req.start_async()?;
                    context.response()?.send_error(status(req), None)?;
                    context.complete()
                }),
            );
        let server = TestServer::start(context);
        let mut requests = 0;
        // 1xx is no answer: a client would wait for another one.
        for none in [0, 42, 100, 101, 199, 600, 1000, u16::MAX] {
            server.get(&format!("/set?{none}")).expect(500, "set");
            for place in ["/send", "/worker", "/fail", "/async"] {
                server.get(&format!("{place}?{none}")).expect_report(500);
            }
            requests += 5;
        }
        let report = server.stop();
        assert_eq!((report.answered, report.statuses[4]), (requests, requests));
    });
}

#[test]
fn a_redirect_has_no_content_whatever_length_was_announced() {
    simulated(|| {
        let redirect = |_req: &mut Request, res: &mut Response| {
            res.set_content_length(100);
            let refusal = res.send_redirect("/a\r\nb").unwrap_err();
            assert_eq!((refusal.kind(), res.status()), (ErrorKind::IllegalArgument, 200));
            res.send_redirect("/next")
        };
        let server = TestServer::start(
            Context::new("").get("/core", redirect).servlet("/w", blocking(redirect)),
        );
        let mut client = server.client();
        for path in ["/core", "/w", "/core"] {
            let answer = client.get(path);
            answer.expect(302, "");
            assert_eq!(answer.field("Location"), Some("/next"));
        }
    });
}
