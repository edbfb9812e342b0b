//! Plain answers: what a probe of the protocol needs to see.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write as _,
    sync::{Arc, Mutex, PoisonError},
};

use ringcat::{
    Cookie, Error, Filter, FilterChain, HttpServlet, Methods, Request, Response, Result,
    ServiceMode, Servlet,
};

use sha2::{Digest, Sha256};

/// `hello, wire`.
pub(crate) fn hello(_req: &mut Request, res: &mut Response) -> Result<()> {
    res.set_content_type("text/plain");
    res.write("hello, wire\n")
}

/// N lines, flushed one by one.
pub(crate) fn stream(req: &mut Request, res: &mut Response) -> Result<()> {
    let count: u32 = number(req, "n")?.unwrap_or(1);
    res.set_content_type("text/plain");
    for line in 0..count.min(100_000) {
        res.write(format!("line {line}\n"))?;
        res.flush()?;
    }
    Ok(())
}

/// Redirects to the parameter `to`.
pub(crate) fn redirect(req: &mut Request, res: &mut Response) -> Result<()> {
    let to = req.parameter("to")?.unwrap_or("/").to_owned();
    res.send_redirect(&to)
}

/// Sets the cookie `c`.
pub(crate) fn cookie(req: &mut Request, res: &mut Response) -> Result<()> {
    let value = req.parameter("v")?.unwrap_or("").to_owned();
    res.add_cookie(&Cookie::new("c", value))?;
    res.set_content_type("text/plain");
    res.write("ok\n")
}

/// Fails, before or after something was sent.
pub(crate) fn fail(req: &mut Request, res: &mut Response) -> Result<()> {
    res.set_content_type("text/plain");
    if req.parameter("when")? == Some("after") {
        res.write("partial\n")?;
        res.flush()?;
    }
    Err(Error::servlet("this servlet fails, on purpose"))
}

/// A file of one line.
pub(crate) fn page(_req: &mut Request, res: &mut Response) -> Result<()> {
    res.set_content_type("text/plain");
    res.write("static page\n")
}

/// Lets nobody through.
pub(crate) struct Forbidden;

impl Filter for Forbidden {
    fn filter(&self, _req: &mut Request, res: &mut Response, _: FilterChain<'_>) -> Result<()> {
        res.send_error(403, None)
    }
}

/// Answers with what it was asked, for any method.
pub(crate) struct Echo;

impl Servlet for Echo {
    fn service(&self, req: &mut Request, res: &mut Response) -> Result<()> {
        let content = req.read_to_end()?;
        let mut lines = String::new();
        let path = format!("{}{}", req.servlet_path(), req.path_info().unwrap_or(""));
        let mut line = |name: &str, value: &[u8]| {
            lines.push_str(name);
            lines.push('=');
            push_escaped(&mut lines, value);
            lines.push('\n');
        };
        line("method", req.method().as_bytes());
        line("uri", req.request_uri().as_bytes());
        line("path", path.as_bytes());
        line("query", req.query_string().as_deref().unwrap_or("-").as_bytes());
        line("proto", req.protocol().as_bytes());
        line("server", req.server_name().as_bytes());
        for (name, value) in joined(req.headers()) {
            line(&format!("h.{name}"), &value);
        }
        for (name, value) in joined(req.trailers()) {
            line(&format!("t.{name}"), &value);
        }
        line("len", content.len().to_string().as_bytes());
        let digest = Sha256::digest(&content);
        let digest = digest.iter().fold(String::new(), |text, octet| format!("{text}{octet:02x}"));
        line("sha256", digest.as_bytes());
        res.set_content_type("text/plain");
        res.write(lines)
    }
}

/// Reads its content and counts it.
pub(crate) struct Sink;

impl Servlet for Sink {
    fn service(&self, req: &mut Request, res: &mut Response) -> Result<()> {
        let content = req.read_to_end()?;
        res.set_content_type("text/plain");
        res.write(format!("read {} bytes\n", content.len()))
    }
}

/// Never touches its content.
pub(crate) struct Ignore;

impl Servlet for Ignore {
    /// What is never read need not be waited for.
    fn mode(&self) -> ServiceMode {
        ServiceMode::Streaming
    }

    fn service(&self, _req: &mut Request, res: &mut Response) -> Result<()> {
        res.set_content_type("text/plain");
        res.write("ignored\n")
    }
}

/// Counts of calls by key.
#[derive(Default)]
pub(crate) struct Marks(Mutex<HashMap<String, u64>>);

/// Keys that are kept at most: the examples are open to everybody.
const MARKS_MAX: usize = 100_000;

/// Counts a call under its key, or tells the count.
pub(crate) struct Mark {
    pub(crate) marks: Arc<Marks>,
    pub(crate) adds: bool,
}

impl Servlet for Mark {
    fn service(&self, req: &mut Request, res: &mut Response) -> Result<()> {
        let key = req.parameter("k")?.unwrap_or("").to_owned();
        let mut marks = self.marks.0.lock().unwrap_or_else(PoisonError::into_inner);
        if self.adds && (marks.len() < MARKS_MAX || marks.contains_key(&key)) {
            *marks.entry(key.clone()).or_default() += 1;
        }
        let count = marks.get(&key).copied().unwrap_or(0);
        drop(marks);
        res.set_content_type("text/plain");
        res.write(format!("{count}\n"))
    }
}

/// Answers with the asked status.
pub(crate) struct Status;

impl Servlet for Status {
    fn service(&self, req: &mut Request, res: &mut Response) -> Result<()> {
        let status: u16 = number(req, "code")?.unwrap_or(200);
        res.set_status(status);
        if req.parameter("body")? == Some("1") {
            res.set_content_type("text/plain");
            res.write("hello")?;
        }
        Ok(())
    }
}

/// Sets the asked field.
pub(crate) struct Header;

impl HttpServlet for Header {
    fn methods(&self) -> Methods {
        Methods::GET
    }

    fn do_get(&self, req: &mut Request, res: &mut Response) -> Result<()> {
        let name = req.parameter("n")?.unwrap_or("X-Echo").to_owned();
        let value = req.parameter("v")?.unwrap_or("").to_owned();
        res.set_header(&name, value)?;
        res.set_content_type("text/plain");
        res.write("ok\n")
    }
}

fn number<T: std::str::FromStr>(req: &mut Request, name: &str) -> Result<Option<T>> {
    let wrong = || Error::protocol_violation(400, format!("parameter {name} is no number"));
    match req.parameter(name)? {
        Some(value) => value.parse().map(Some).map_err(|_| wrong()),
        None => Ok(None),
    }
}

/// Fields by lower-case name, the values of one name joined.
fn joined<'a>(fields: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> BTreeMap<String, Vec<u8>> {
    let mut joined: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for (name, value) in fields {
        let name = String::from_utf8_lossy(name).to_ascii_lowercase();
        let values = joined.entry(name).or_default();
        if !values.is_empty() {
            values.extend_from_slice(b", ");
        }
        values.extend_from_slice(value);
    }
    joined
}

/// Octets outside printable ASCII, and the percent sign, as `%XX`.
fn push_escaped(out: &mut String, octets: &[u8]) {
    for octet in octets {
        match octet {
            b'%' | 0..=0x1f | 0x7f..=0xff => {
                write!(out, "%{octet:02X}").expect("a String takes all that is written");
            }
            0x20..=0x7e => out.push(char::from(*octet)),
        }
    }
}
