//! The wire corpus, played against the pure parts of HTTP/1.1: each case's octets go through head,
//! target, framing and content, message by message. What depends on a servlet or on time is not
//! judged here; the corpus is played whole against the server.

#![allow(clippy::unwrap_used, reason = "a test")]

use ringcat_protocol::http11::{
    BodyDecoder, Head, HeadLimits, HeadParser, HeadProgress, ResponseShape, framing, parse_target,
    response_framing,
};
use serde_json::Value;

const CORPUS: &str = include_str!("../../container/tests/wire/http1.json");

const GROUPS: &[&str] = &[
    "rl", "ver", "host", "cl", "te", "chk", "tgt", "hdr", "trl", "exp", "ka", "meth", "seg", "up",
];

/// Decided by the servlet, which is not played here: it fails late, or it answers before the
/// content that it was promised has come.
const SERVLET_DECIDES: &[&str] = &["ka-error-late", "exp-404", "exp-unread-skip"];

/// Longest case that is cut at every octet.
const CUT_BYTES_MAX: usize = 2_000;

/// Longest case that is cut at all, at a sample of octets.
const SAMPLED_BYTES_MAX: usize = 20_000;

/// One message, as far as the protocol can tell.
#[derive(Debug, PartialEq, Eq)]
enum Message {
    /// It reaches a servlet.
    Accepted(Request),
    /// It is answered with this status, and the connection closes.
    Refused(u16),
}

#[derive(Debug, PartialEq, Eq)]
struct Request {
    method: Vec<u8>,
    query: Option<Vec<u8>>,
    server: Option<Vec<u8>>,
    fields: Vec<(String, Vec<u8>)>,
    trailers: Vec<(Vec<u8>, Vec<u8>)>,
    content_len: usize,
}

/// What a connection came to.
#[derive(Debug, PartialEq, Eq)]
struct Played {
    messages: Vec<Message>,
    closes: bool,
}

/// A server's side of a connection, without the server.
#[derive(Default)]
struct Player {
    parser: HeadParser,
    head: Head,
    body: Option<BodyDecoder>,
    keeps: bool,
    content: Vec<u8>,
    pending: Vec<u8>,
    played: Vec<Message>,
    closed: bool,
}

impl Player {
    fn feed(&mut self, input: &[u8]) {
        self.pending.extend_from_slice(input);
        while !self.closed && self.step() {}
    }

    fn finish(self) -> Played {
        Played { messages: self.played, closes: self.closed }
    }

    /// One head or one piece of content; false if more octets are needed.
    fn step(&mut self) -> bool {
        let outcome = if self.body.is_none() { self.read_head() } else { self.read_content() };
        outcome.unwrap_or_else(|status| {
            self.played.push(Message::Refused(status));
            self.closed = true;
            false
        })
    }

    fn read_head(&mut self) -> Result<bool, u16> {
        let limits = HeadLimits::default();
        let parsed = self.parser.parse(&self.pending, &mut self.head, &limits);
        let HeadProgress::Complete { consumed } = parsed.map_err(|error| error.status)? else {
            return Ok(false);
        };
        self.pending.drain(..consumed);
        let target = parse_target(self.head.method(), self.head.target()).map_err(|e| e.status)?;
        let framing = framing(&self.head, &target).map_err(|error| error.status)?;
        let is_stream = target.path(self.head.target()).starts_with(b"/stream");
        (_, self.keeps) = response_framing(&ResponseShape {
            request_version: self.head.version(),
            is_head: self.head.method() == b"HEAD",
            status: 200,
            declared_len: None,
            known_len: if is_stream { None } else { Some(12) },
            keep_alive: framing.keep_alive,
        });
        self.body = Some(BodyDecoder::new(framing.body));
        self.content.clear();
        Ok(true)
    }

    fn read_content(&mut self) -> Result<bool, u16> {
        let body = self.body.as_mut().unwrap();
        let decoded = body.decode(&self.pending, &mut self.content, 1000).map_err(|e| e.status)?;
        self.pending.drain(..decoded.consumed);
        if !decoded.done {
            return Ok(decoded.consumed > 0);
        }
        let trailers = body.take_trailers();
        self.body = None;
        self.played.push(Message::Accepted(request(&self.head, trailers, self.content.len())));
        self.closed = !self.keeps;
        Ok(true)
    }
}

fn request(head: &Head, trailers: Vec<(Vec<u8>, Vec<u8>)>, content_len: usize) -> Request {
    let target = parse_target(head.method(), head.target()).unwrap();
    let server = framing(head, &target).unwrap().server;
    let lower = |name: &[u8]| String::from_utf8(name.to_ascii_lowercase()).unwrap();
    Request {
        method: head.method().to_vec(),
        query: target.query.map(|query| query.of(head.target()).to_vec()),
        server: server.map(|server| head.slice(server.host).to_vec()),
        fields: head.fields().map(|(name, value)| (lower(name), value.to_vec())).collect(),
        trailers,
        content_len,
    }
}

/// Octets of a case, `rep` parts expanded.
fn expand(part: &Value) -> Vec<u8> {
    match part {
        Value::String(text) => text.chars().map(|c| u8::try_from(c).unwrap()).collect(),
        Value::Array(parts) => parts.iter().flat_map(expand).collect(),
        Value::Object(map) => {
            expand(&map["rep"]).repeat(usize::try_from(map["n"].as_u64().unwrap()).unwrap())
        }
        other => panic!("no octets: {other}"),
    }
}

fn play(pieces: &[&[u8]]) -> Played {
    let mut player = Player::default();
    for piece in pieces {
        player.feed(piece);
    }
    player.finish()
}

/// Does one allowed outcome cover what was played? The reason if not.
fn fits(expect: &Value, played: &Played, is_shut: bool) -> Result<(), String> {
    let responses = expect["responses"].as_array().unwrap();
    if responses.len() != played.messages.len() {
        return Err(format!("{} messages, not {}", played.messages.len(), responses.len()));
    }
    for (index, (allowed, message)) in responses.iter().zip(&played.messages).enumerate() {
        let mut statuses = allowed.as_array().unwrap().iter().map(|s| s.as_u64().unwrap());
        let is_allowed = match message {
            // Any status that a servlet, the mapping or a security constraint may answer.
            Message::Accepted(_) => {
                statuses.any(|s| !matches!(s, 400 | 408 | 411 | 413 | 414 | 417 | 431 | 501 | 505))
            }
            Message::Refused(status) => statuses.any(|s| s == u64::from(*status)),
        };
        if !is_allowed {
            return Err(format!("message {index} is {message:?}"));
        }
    }
    let closes = played.closes || is_shut;
    if expect["close"].as_bool().is_some_and(|wanted| wanted != closes) {
        return Err(format!("closes: {closes}"));
    }
    for check in expect["checks"].as_array().into_iter().flatten() {
        let index = usize::try_from(check["at"].as_u64().unwrap()).unwrap();
        if let Message::Accepted(request) = &played.messages[index] {
            check_echo(&check["echo"], request)?;
        }
    }
    Ok(())
}

fn check_echo(echo: &Value, request: &Request) -> Result<(), String> {
    for (key, wanted) in echo.as_object().into_iter().flatten() {
        let seen = match key.as_str() {
            "method" => Some(escaped(&request.method)),
            "query" => Some(request.query.as_deref().map_or("-".to_owned(), escaped)),
            "server" => request.server.as_deref().map(escaped),
            "len" => Some(request.content_len.to_string()),
            other => match other.split_once('.') {
                Some(("h", name)) => {
                    let of_name = request.fields.iter().filter(|(field, _)| field == name);
                    let values: Vec<_> = of_name.map(|(_, value)| escaped(value)).collect();
                    (!values.is_empty()).then(|| values.join(", "))
                }
                Some(("t", name)) => {
                    let mut fields = request.trailers.iter();
                    let found = fields.find(|(field, _)| field == name.as_bytes());
                    found.map(|(_, value)| escaped(value))
                }
                _ => continue,
            },
        };
        let is_pattern = wanted.as_str().is_some_and(|text| text.starts_with('~'));
        if !is_pattern && seen.as_deref() != wanted.as_str() {
            return Err(format!("{key} is {seen:?}, not {wanted}"));
        }
    }
    Ok(())
}

/// As the corpus writes values: octets outside the visible ones, and `%`, as `%XX`.
fn escaped(value: &[u8]) -> String {
    let one = |&octet: &u8| match octet {
        b' '..=b'~' if octet != b'%' => char::from(octet).to_string(),
        _ => format!("%{octet:02X}"),
    };
    value.iter().map(one).collect()
}

fn cuts(len: usize) -> Vec<usize> {
    if len <= CUT_BYTES_MAX {
        (1..len).collect()
    } else if len <= SAMPLED_BYTES_MAX {
        (1..len).step_by(len / 100).chain(len - 30..len).collect()
    } else {
        vec![len / 2]
    }
}

fn judge(case: &Value) -> Result<(), String> {
    let octets = expand(&case["bytes"]);
    let played = play(&[&octets]);
    for cut in cuts(octets.len()) {
        let (one, two) = octets.split_at(cut);
        if play(&[one, two]) != played {
            return Err(format!("another result when cut at {cut}"));
        }
    }
    if octets.len() <= CUT_BYTES_MAX {
        let pieces: Vec<_> = octets.chunks(1).collect();
        if play(&pieces) != played {
            return Err("another result octet by octet".to_owned());
        }
    }
    let is_shut = case["end"] == "shutdown";
    let alternatives = match &case["expect"] {
        Value::Array(list) => list.as_slice(),
        one => std::slice::from_ref(one),
    };
    let tries = alternatives.iter().map(|expect| fits(expect, &played, is_shut));
    let misses: Vec<String> = tries.filter_map(Result::err).collect();
    if misses.len() < alternatives.len() { Ok(()) } else { Err(misses.join(" | ")) }
}

#[test]
fn corpus_is_decided_right() {
    let corpus: Value = serde_json::from_str(CORPUS).unwrap();
    let mut failures = Vec::new();
    let mut count = 0;
    for case in corpus["cases"].as_array().unwrap() {
        let (id, group) = (case["id"].as_str().unwrap(), case["group"].as_str().unwrap());
        if !GROUPS.contains(&group) || SERVLET_DECIDES.contains(&id) {
            continue;
        }
        count += 1;
        if let Err(reason) = judge(case) {
            failures.push(format!("{id}: {reason} -- {}", case["why"]));
        }
    }
    assert!(count > 400, "only {count} cases");
    assert!(failures.is_empty(), "{} of {count}:\n{}", failures.len(), failures.join("\n"));
}
