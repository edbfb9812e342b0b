//! Which example is where.

use std::sync::Arc;

use ringcat::{Context, Methods, Request, Response, Result};

use super::{article, delay::Delay, live, plain, sleep::Sleeper};
use crate::program::options::ExamplesAt;

/// The contexts of the program: the examples at their place, and a welcome page at the root, if
/// the examples are not there.
pub(crate) fn contexts(
    place: &ExamplesAt,
    welcome: fn(&mut Request, &mut Response) -> Result<()>,
) -> Vec<Context> {
    match place {
        ExamplesAt::Nowhere => vec![Context::new("").get("", welcome)],
        ExamplesAt::Path(path) if path.is_empty() => vec![examples("")],
        ExamplesAt::Path(path) => vec![Context::new("").get("", welcome), examples(path)],
    }
}

fn examples(path: &str) -> Context {
    let marks = Arc::new(plain::Marks::default());
    let context = Context::new(path)
        .get("", |req, res| {
            if !req.request_uri().ends_with('/') {
                // The page's links are relative to its folder.
                let folder = format!("{}/", req.request_uri());
                return res.send_redirect(&folder);
            }
            res.set_content_type("text/html;charset=utf-8");
            res.write(include_str!("../../../assets/examples.html"))
        })
        .get("/hello", plain::hello)
        .named_servlet("echo", &["/echo/*"], plain::Echo)
        .named_servlet("sink", &["/sink"], plain::Sink)
        .named_servlet("ignore", &["/ignore"], plain::Ignore)
        .named_servlet("mark", &["/mark"], plain::Mark { marks: Arc::clone(&marks), adds: true })
        .named_servlet("marks", &["/marks"], plain::Mark { marks, adds: false })
        .named_servlet("status", &["/status"], plain::Status)
        .get("/stream", plain::stream)
        .named_servlet("header", &["/header"], plain::Header)
        .get("/redirect", plain::redirect)
        .get("/cookie", plain::cookie)
        .method(Methods::ALL, "/fail", plain::fail)
        .filter("/secret/*", plain::Forbidden)
        .method(Methods::ALL, "/secret/*", |_req, res| res.write("top secret\n"))
        .get("/static/page.txt", plain::page)
        .named_servlet("delay", &["/delay/*"], Delay::default())
        .named_async_servlet("sleep", &["/sleep/*"], Sleeper);
    live::declare(article::declare(context))
}
