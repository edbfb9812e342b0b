//! From the target to the servlet: contexts, the four kinds of pattern, path info, redirects,
//! virtual hosts, and what is not there.

use ringcat::{Context, Host, Request, Response, Result};

use crate::simulated::{TestServer, builder, simulated};

/// `name|context path|servlet path|path info|match`.
fn told(
    name: &'static str,
) -> impl Fn(&mut Request, &mut Response) -> Result<()> + Send + Sync + 'static {
    move |req, res| {
        let info = req.path_info().unwrap_or("-");
        let kind = req.mapping().unwrap().kind.name();
        let line = format!("{name}|{}|{}|{info}|{kind}", req.context_path(), req.servlet_path());
        res.write(line)
    }
}

#[test]
fn the_best_pattern_wins() {
    simulated(|| {
        let context = Context::new("/app")
            .get("/a/b", told("exact"))
            .get("/a/*", told("short"))
            .get("/a/b/*", told("long"))
            .get("*.txt", told("extension"))
            .get("/", told("default"))
            .get("", told("root"));
        let server = TestServer::start(context);
        let mut client = server.client();
        for (target, expected) in [
            ("/app/a/b", "exact|/app|/a/b|-|EXACT"),
            ("/app/a/b/c", "long|/app|/a/b|/c|PATH"),
            ("/app/a/b/", "long|/app|/a/b|/|PATH"),
            ("/app/a", "short|/app|/a|-|PATH"),
            ("/app/a/c.txt", "short|/app|/a|/c.txt|PATH"),
            ("/app/c.txt", "extension|/app|/c.txt|-|EXTENSION"),
            ("/app/x/c.txt", "extension|/app|/x/c.txt|-|EXTENSION"),
            ("/app/other", "default|/app|/other|-|DEFAULT"),
            ("/app/", "root|/app||/|CONTEXT_ROOT"),
        ] {
            client.get(target).expect(200, expected);
        }
    });
}

#[test]
fn the_longest_context_path_wins() {
    simulated(|| {
        let all = |path: &str, name| Context::new(path).get("/*", told(name));
        let server = builder(all("", "root")).context(all("/a", "a")).context(all("/a/b", "ab"));
        let server = TestServer::of(server);
        let mut client = server.client();
        client.get("/").expect(200, "root|||/|PATH");
        client.get("/ab").expect(200, "root|||/ab|PATH");
        client.get("/a/x").expect(200, "a|/a||/x|PATH");
        client.get("/a/b/x").expect(200, "ab|/a/b||/x|PATH");
        client.get("/a/bc").expect(200, "a|/a||/bc|PATH");
    });
}

#[test]
fn a_context_path_without_its_slash_is_redirected_with_its_query() {
    simulated(|| {
        let server = TestServer::start(Context::new("/app").get("/x", told("x")));
        let mut client = server.client();
        let answer = client.get("/app?a=1&b=%20");
        assert_eq!((answer.status, answer.field("Location")), (302, Some("/app/?a=1&b=%20")));
        client.get("/app/x").expect(200, "x|/app|/x|-|EXACT");
    });
}

#[test]
fn what_is_not_there_is_404_and_keeps_the_connection() {
    simulated(|| {
        let server = TestServer::start(Context::new("/app").get("/x", told("x")));
        let mut client = server.client();
        client.get("/app/y").expect_report(404);
        client.get("/elsewhere").expect_report(404);
        client.ask("POST /app/y").answer().expect_report(404);
        client.get("/app/x").expect(200, "x|/app|/x|-|EXACT");
    });
}

#[test]
fn paths_are_decoded_and_normalised_before_they_are_mapped() {
    simulated(|| {
        let context = Context::new("/app").get("/files/*", told("files")).get("/x", told("x"));
        let server = TestServer::start(context);
        let mut client = server.client();
        client.get("/app/files/a%20b").expect(200, "files|/app|/files|/a b|PATH");
        client.get("/app/files/%C3%A9").expect(200, "files|/app|/files|/é|PATH");
        client.get("/app//files/./a/../b").expect(200, "files|/app|/files|/b|PATH");
        client.get("/app/x;session=1").expect(200, "x|/app|/x|-|EXACT");
        for target in ["/../x", "/app/%00", "/app/%zz", "/app/files/..;v=1/x"] {
            let mut client = server.client();
            assert_eq!(client.get(target).status, 400, "{target}");
        }
    });
}

#[test]
fn hosts_have_contexts_of_their_own() {
    simulated(|| {
        let server = builder(Context::new("").get("/", told("default"))).host(
            Host::new("a.example")
                .alias("*.example.org")
                .context(Context::new("").get("/", told("a"))),
        );
        let server = TestServer::of(server);
        let mut client = server.client();
        for (host, name) in [
            ("a.example", "a"),
            ("A.EXAMPLE:8080", "a"),
            ("x.example.org", "a"),
            ("example.org", "default"),
            ("b.example", "default"),
        ] {
            client.send(format!("GET /x HTTP/1.1\r\nHost: {host}\r\n\r\n"));
            client.answer().expect(200, &format!("{name}||/x|-|DEFAULT"));
        }
        client.send("GET http://a.example/x HTTP/1.1\r\nHost: a.example\r\n\r\n");
        client.answer().expect(200, "a||/x|-|DEFAULT");
    });
}
