//! The head of a request: [`HeadParser`] finds its end and parts it, [`Head`] keeps it. Every
//! octet is looked at once, however slowly they come, and refused as early as it can be. It
//! judges syntax and sizes only; what the fields mean is [`framing`](mod@super::framing)'s
//! business. (Tomcat: `Http11InputBuffer`, `MimeHeaders`.)

use std::ops::Range;

use memchr::memchr;

use super::field_line::field_line;
use super::octet_class::{is_target, is_token};
use crate::protocol_error::ProtocolError;

/// Sizes past which a head is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLimits {
    /// Octets of the whole head, request line and final empty line included. Default 16,384; at
    /// most 65,535, larger numbers count as that.
    pub head_bytes_max: usize,
    /// Field lines. Default 128.
    pub fields_max: usize,
    /// Octets of the request target. Default 8,192.
    pub uri_bytes_max: usize,
}

impl Default for HeadLimits {
    fn default() -> Self {
        Self { head_bytes_max: 16 * 1024, fields_max: 128, uri_bytes_max: 8 * 1024 }
    }
}

/// The protocol version of a request. A higher minor version counts as 1.1 (RFC 9110 section
/// 2.5); other major versions are refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Version {
    /// HTTP/1.0.
    Http10,
    /// HTTP/1.1 up to HTTP/1.9.
    #[default]
    Http11,
}

/// A part of a head or of a target, as positions that survive a move of the bytes. 4 octets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Index of the first octet.
    pub start: u16,
    /// Number of octets.
    pub len: u16,
}

impl Span {
    /// The span of a range.
    ///
    /// # Panics
    /// If the range ends past 65,535, which the limit of a head excludes.
    pub fn new(range: Range<usize>) -> Self {
        let fit = |number| u16::try_from(number).expect("a head has at most 65,535 octets");
        Self { start: fit(range.start), len: fit(range.len()) }
    }

    /// The span as a range.
    pub fn range(self) -> Range<usize> {
        usize::from(self.start)..usize::from(self.start) + usize::from(self.len)
    }

    /// The octets of this span.
    ///
    /// # Panics
    /// If the span is not one of `bytes`.
    pub fn of(self, bytes: &[u8]) -> &[u8] {
        &bytes[self.range()]
    }

    /// The same octets, seen from a text that starts `offset` octets earlier.
    pub(crate) fn shifted(self, offset: u16) -> Self {
        Self { start: self.start + offset, len: self.len }
    }
}

/// Name and value of one field. 8 octets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FieldSpans {
    pub(crate) name: Span,
    pub(crate) value: Span,
}

/// A parsed head: one copy of its octets and where its parts are. Reused from request to request;
/// a parked exchange takes [`Head::to_compact`] with it. While the head is coming, and after an
/// error, it has what was read so far, which is what the access log shows of a refused request.
#[derive(Debug, Default)]
pub struct Head {
    bytes: Vec<u8>,
    fields: Vec<FieldSpans>,
    method: Span,
    target: Span,
    version: Version,
    /// Where the field lines start, in a copy that parts them when it is asked; else 0.
    lines_start: u16,
}

impl Head {
    /// An empty head without memory.
    pub const fn new() -> Self {
        let none = Span { start: 0, len: 0 };
        Self {
            bytes: Vec::new(),
            fields: Vec::new(),
            method: none,
            target: none,
            version: Version::Http11,
            lines_start: 0,
        }
    }

    /// Empties the head and keeps its memory.
    pub fn clear(&mut self) {
        let Self { bytes, fields, method, target, version, lines_start } = self;
        bytes.clear();
        fields.clear();
        *method = Span::default();
        *target = Span::default();
        *version = Version::Http11;
        *lines_start = 0;
    }

    /// The method, case-sensitive.
    pub fn method(&self) -> &[u8] {
        self.method.of(&self.bytes)
    }

    /// The request target as it came.
    pub fn target(&self) -> &[u8] {
        self.target.of(&self.bytes)
    }

    /// The version; 1.1 while unknown.
    pub fn version(&self) -> Version {
        self.version
    }

    /// All fields in the order they came: name as written, value without white space around it.
    pub fn fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let parted = self.fields.iter();
        let parted = parted.map(|field| (field.name.of(&self.bytes), field.value.of(&self.bytes)));
        parted.chain(self.field_lines())
    }

    /// The fields of a copy without spans.
    fn field_lines(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let start = usize::from(self.lines_start);
        let mut rest = if start > 0 { &self.bytes[start..] } else { &[] };
        std::iter::from_fn(move || {
            let (line, behind) = rest.split_at_checked(memchr(b'\n', rest)? + 1)?;
            rest = behind;
            let line = line.strip_suffix(b"\r\n").filter(|line| !line.is_empty())?;
            let field = field_line(line).ok()?;
            Some((&line[..field.name_len], &line[field.value]))
        })
    }

    /// The value of the first field of this name, in whatever case.
    pub fn field(&self, name: &str) -> Option<&[u8]> {
        let name = name.as_bytes();
        self.fields().find(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// The values of all fields of this name, in whatever case.
    pub fn field_values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        self.fields()
            .filter(|(field_name, _)| field_name.eq_ignore_ascii_case(name.as_bytes()))
            .map(|(_, value)| value)
    }

    /// The octets of a span of this head, such as the host in
    /// [`Framing::server`](super::Framing::server).
    ///
    /// # Panics
    /// If the span comes from another head.
    pub fn slice(&self, span: Span) -> &[u8] {
        span.of(&self.bytes)
    }

    /// A copy of a parsed head in as little memory as it can be: its fields are parted anew
    /// whenever somebody asks for one.
    pub fn to_compact(&self) -> Self {
        let lines_start = self.fields.first().map_or(self.lines_start, |field| field.name.start);
        let bytes = self.bytes.clone();
        Self { bytes, fields: Vec::new(), lines_start, ..*self }
    }

    /// A copy that holds no octet more than it needs, to be parsed on.
    pub fn to_exact(&self) -> Self {
        let Self { bytes, fields, method, target, version, lines_start } = self;
        // `Vec::clone` asks for the length, not for the capacity.
        Self {
            bytes: bytes.clone(),
            fields: fields.clone(),
            method: *method,
            target: *target,
            version: *version,
            lines_start: *lines_start,
        }
    }

    /// Octets of heap memory held.
    pub fn memory_bytes(&self) -> usize {
        self.bytes.capacity() + self.fields.capacity() * size_of::<FieldSpans>()
    }

    pub(crate) fn field_spans(&self) -> &[FieldSpans] {
        &self.fields
    }

    pub(crate) fn target_start(&self) -> u16 {
        self.target.start
    }
}

/// What [`HeadParser::parse`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadProgress {
    /// The end of the head has not come yet.
    Incomplete,
    /// The head is parsed; its octets and those of empty lines before it are `consumed`.
    Complete {
        /// Octets of the input that are done with; the content starts behind them.
        consumed: usize,
    },
}

/// Finds the end of a head in a growing input and parts it. One parser serves one connection: it
/// is ready for the next head after [`HeadProgress::Complete`] and after an error.
#[derive(Debug, Default)]
pub struct HeadParser {
    phase: Phase,
    /// Octets that need no second look.
    scanned: Offset,
    /// Where the request line starts, behind empty lines.
    begin: Offset,
    /// Where the current part (method, target, version, field line) starts.
    part: Offset,
}

/// A place in the input of a head, which is little more than 65,535 octets. Half a word, since
/// every connection has a parser.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Offset(u32);

impl Offset {
    fn new(offset: usize) -> Self {
        Self(u32::try_from(offset).expect("a head and empty lines before it are bounded"))
    }

    fn get(self) -> usize {
        self.0 as usize
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    EmptyLines,
    Method,
    Target,
    Version,
    Fields,
}

impl HeadParser {
    /// A parser at the start of a message.
    pub const fn new() -> Self {
        Self { phase: Phase::EmptyLines, scanned: Offset(0), begin: Offset(0), part: Offset(0) }
    }

    /// Goes on with a head. `input` is all that has come of this message since its start, those
    /// octets included that earlier calls saw; `head` is the same one in all calls for a message
    /// and is cleared by the first. The result does not depend on how the input was cut.
    ///
    /// # Errors
    /// 400 for what is no request head; 414 for a target past its limit; 431 for too large or too
    /// many fields; 501 for a method longer than any known one; 505 for another major version
    /// (RFC 9112 sections 2.2, 3, 5). The head then has what is good of method and target, and no
    /// fields.
    pub fn parse(
        &mut self,
        input: &[u8],
        head: &mut Head,
        limits: &HeadLimits,
    ) -> Result<HeadProgress, ProtocolError> {
        if self.scanned.get() == 0 {
            head.clear();
        }
        let progress = self.advance(input, head, limits);
        let copied = self.begin.get() + head.bytes.len();
        if copied < self.scanned.get() {
            head.bytes.extend_from_slice(&input[copied..self.scanned.get()]);
        }
        if progress.is_err() {
            head.fields.clear();
        }
        if progress != Ok(HeadProgress::Incomplete) {
            *self = Self::new();
        }
        progress
    }

    /// Is nothing of a message seen yet, so that any head may be given next?
    pub fn is_fresh(&self) -> bool {
        self.scanned.get() == 0
    }

    /// Has the request line started? If not, a connection that ends or times out was idle and
    /// gets no answer.
    pub fn has_started(&self) -> bool {
        self.phase != Phase::EmptyLines
    }

    fn advance(
        &mut self,
        input: &[u8],
        head: &mut Head,
        limits: &HeadLimits,
    ) -> Result<HeadProgress, ProtocolError> {
        if self.phase == Phase::EmptyLines && !self.pass_empty_lines(input)? {
            return Ok(HeadProgress::Incomplete);
        }
        let head_bytes_max = limits.head_bytes_max.min(usize::from(u16::MAX));
        let seen = &input[..input.len().min(self.begin.get() + head_bytes_max)];
        if self.phase == Phase::Method && self.pass_method(seen, head)? {
            self.start(Phase::Target, self.scanned.get() + 1);
        }
        if self.phase == Phase::Target && self.pass_target(seen, head, limits.uri_bytes_max)? {
            self.start(Phase::Version, self.scanned.get() + 1);
        }
        if self.phase == Phase::Version && self.pass_version(seen, head)? {
            self.start(Phase::Fields, self.part.get() + VERSION_END.len());
        }
        if self.phase == Phase::Fields && self.pass_fields(seen, head, limits.fields_max)? {
            return Ok(HeadProgress::Complete { consumed: self.scanned.get() });
        }
        if seen.len() < self.begin.get() + head_bytes_max {
            return Ok(HeadProgress::Incomplete);
        }
        Err(match self.phase {
            Phase::Fields => ProtocolError::new(431, "head too large"),
            Phase::EmptyLines | Phase::Method | Phase::Target | Phase::Version => {
                ProtocolError::new(414, "request line too long")
            }
        })
    }

    fn start(&mut self, phase: Phase, part: usize) {
        self.phase = phase;
        self.part = Offset::new(part);
        self.scanned = Offset::new(part);
    }

    /// Passes empty lines in front of the request line, which old clients send behind content
    /// (RFC 9112 section 2.2); false if the request line has not started.
    fn pass_empty_lines(&mut self, input: &[u8]) -> Result<bool, ProtocolError> {
        loop {
            match &input[self.begin.get()..] {
                [b'\r', b'\n', ..] => self.begin = Offset::new(self.begin.get() + 2),
                [] | [b'\r'] => return Ok(false),
                [..] => break,
            }
            if self.begin.get() > 2 * EMPTY_LINES_MAX {
                return Err(ProtocolError::bad_request("too many empty lines before a request"));
            }
        }
        self.start(Phase::Method, self.begin.get());
        Ok(true)
    }

    fn pass_method(&mut self, seen: &[u8], head: &mut Head) -> Result<bool, ProtocolError> {
        let end = self.pass_octets(seen, is_token);
        head.method = self.span(self.begin.get()..end.min(self.begin.get() + METHOD_BYTES_MAX));
        if end - self.begin.get() > METHOD_BYTES_MAX {
            return Err(ProtocolError::new(501, "method too long"));
        }
        match seen.get(end) {
            Some(b' ') if end > self.begin.get() => Ok(true),
            Some(_) => Err(ProtocolError::bad_request("method is no token")),
            None => Ok(false),
        }
    }

    fn pass_target(
        &mut self,
        seen: &[u8],
        head: &mut Head,
        uri_bytes_max: usize,
    ) -> Result<bool, ProtocolError> {
        let end = self.pass_octets(seen, is_target);
        head.target = self.span(self.part.get()..end.min(self.part.get() + uri_bytes_max));
        if end - self.part.get() > uri_bytes_max {
            return Err(ProtocolError::new(414, "request target too long"));
        }
        match seen.get(end) {
            Some(b' ') if end > self.part.get() => Ok(true),
            Some(b' ') => Err(ProtocolError::bad_request("empty request target")),
            Some(b'\r' | b'\n') => {
                Err(ProtocolError::bad_request("request line without target or version"))
            }
            Some(_) => Err(ProtocolError::bad_request("octet that no request target has")),
            None => Ok(false),
        }
    }

    fn pass_version(&mut self, seen: &[u8], head: &mut Head) -> Result<bool, ProtocolError> {
        let text = &seen[self.part.get()..];
        // Compared octet by octet, so that a line without version is refused before more comes.
        let fits = text.iter().zip(VERSION_END).all(|(&octet, &wanted)| match wanted {
            b'd' => octet.is_ascii_digit(),
            literal => octet == literal,
        });
        if !fits {
            return Err(ProtocolError::bad_request("malformed version or end of request line"));
        }
        if text.len() < VERSION_END.len() {
            return Ok(false);
        }
        head.version = match (text[5], text[7]) {
            (b'1', b'0') => Version::Http10,
            (b'1', _) => Version::Http11,
            (_, _) => return Err(ProtocolError::new(505, "unsupported major version")),
        };
        Ok(true)
    }

    /// Parts the field lines that have come; true behind the empty line that ends them.
    fn pass_fields(
        &mut self,
        seen: &[u8],
        head: &mut Head,
        fields_max: usize,
    ) -> Result<bool, ProtocolError> {
        while let Some(distance) = memchr(b'\n', &seen[self.scanned.get()..]) {
            let end = self.scanned.get() + distance;
            let [line @ .., b'\r'] = &seen[self.part.get()..end] else {
                return Err(ProtocolError::bad_request("line ends without CR"));
            };
            let part = self.part.get();
            self.start(Phase::Fields, end + 1);
            if line.is_empty() {
                return Ok(true);
            }
            if head.fields.len() >= fields_max {
                return Err(ProtocolError::new(431, "too many fields"));
            }
            let field = field_line(line)?;
            head.fields.push(FieldSpans {
                name: self.span(part..part + field.name_len),
                value: self.span(part + field.value.start..part + field.value.end),
            });
        }
        self.scanned = Offset::new(seen.len());
        Ok(false)
    }

    /// Passes the octets of a class and returns where they end.
    fn pass_octets(&mut self, seen: &[u8], is_in: impl Fn(u8) -> bool) -> usize {
        let rest = &seen[self.scanned.get()..];
        let passed = rest.iter().position(|&octet| !is_in(octet)).unwrap_or(rest.len());
        let end = self.scanned.get() + passed;
        self.scanned = Offset::new(end);
        end
    }

    fn span(&self, range: Range<usize>) -> Span {
        let begin = self.begin.get();
        Span::new(range.start - begin..range.end - begin)
    }
}

/// The end of a request line: `d` stands for a digit.
const VERSION_END: &[u8; 10] = b"HTTP/d.d\r\n";

/// Empty lines accepted in front of a request line.
const EMPTY_LINES_MAX: usize = 4;

/// Octets of a method: longer than any registered one.
const METHOD_BYTES_MAX: usize = 64;

const _: () = assert!(size_of::<FieldSpans>() == 8);
const _: () = assert!(size_of::<Head>() <= 64);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use proptest::prelude::*;

    use super::*;

    type Parsed = Result<Option<usize>, u16>;

    fn limits() -> HeadLimits {
        HeadLimits { head_bytes_max: 300, fields_max: 4, uri_bytes_max: 40 }
    }

    /// Feeds the first octets, then all: what comes of it, and the head.
    fn parse_cut(input: &[u8], cut: usize) -> (Parsed, Head) {
        let (mut parser, mut head) = (HeadParser::new(), Head::new());
        let mut result = parser.parse(&input[..cut], &mut head, &limits());
        if result == Ok(HeadProgress::Incomplete) {
            result = parser.parse(input, &mut head, &limits());
        }
        let parsed = match result {
            Ok(HeadProgress::Incomplete) => Ok(None),
            Ok(HeadProgress::Complete { consumed }) => Ok(Some(consumed)),
            Err(error) => Err(error.status),
        };
        (parsed, head)
    }

    type Parts = (Vec<u8>, Vec<u8>, Version, Vec<(Vec<u8>, Vec<u8>)>);

    fn parts(head: &Head) -> Parts {
        let fields = head.fields().map(|(name, value)| (name.to_vec(), value.to_vec())).collect();
        (head.method().to_vec(), head.target().to_vec(), head.version(), fields)
    }

    /// Parses at once, cut once at every octet, and octet by octet.
    fn check(input: &[u8], expected: Parsed) -> Head {
        let (parsed, head) = parse_cut(input, 0);
        assert_eq!(parsed, expected, "input {}", input.escape_ascii());
        for cut in 1..input.len() {
            let (again, other) = parse_cut(input, cut);
            assert_eq!(again, expected, "input {} cut at {cut}", input.escape_ascii());
            assert_eq!(parts(&head), parts(&other), "cut at {cut}");
        }
        let (mut parser, mut other) = (HeadParser::new(), Head::new());
        let found = (0..=input.len())
            .map(|len| parser.parse(&input[..len], &mut other, &limits()))
            .find(|result| *result != Ok(HeadProgress::Incomplete));
        assert_eq!(found.is_some(), expected != Ok(None), "octet by octet");
        assert_eq!(parts(&head), parts(&other), "octet by octet");
        assert_eq!(parts(&head), parts(&head.to_compact()), "compact");
        head
    }

    fn refused(input: &[u8], status: u16) {
        check(input, Err(status));
    }

    #[test]
    fn parts_a_head() {
        let input = b"\r\nGET /a?b HTTP/1.1\r\nHost: h\r\nx-A:  1 \r\nX-a:\r\n\r\nrest";
        let head = check(input, Ok(Some(input.len() - 4)));
        assert_eq!(head.method(), b"GET");
        assert_eq!(head.target(), b"/a?b");
        assert_eq!(head.version(), Version::Http11);
        assert_eq!(head.field("HOST"), Some(&b"h"[..]));
        assert_eq!(head.field_values("X-A").collect::<Vec<_>>(), [&b"1"[..], b""]);
        assert_eq!(head.field("x"), None);
        assert_eq!(head.fields().count(), 3);
    }

    #[test]
    fn versions() {
        let version = |text: &[u8]| check(text, Ok(Some(text.len()))).version();
        assert_eq!(version(b"GET / HTTP/1.0\r\n\r\n"), Version::Http10);
        assert_eq!(version(b"GET / HTTP/1.9\r\n\r\n"), Version::Http11);
        refused(b"GET / HTTP/2.0\r\n", 505);
        refused(b"GET / HTTP/0.9\r\n", 505);
        for text in [&b"http/1.1"[..], b"HTTP/1.10", b"HTTP/1", b"HTTP/1.1 ", b"HTTP/1.1\r", b" "] {
            refused(&[b"GET / ", text, b"\r\n\r\n"].concat(), 400);
        }
    }

    #[test]
    fn refuses_early() {
        refused(b"\x16\x03\x01", 400);
        refused(b"GET\t", 400);
        refused(b"GET  ", 400);
        refused(b"GET /\r\n", 400);
        refused(b"GET /\n", 400);
        refused(b"GET /\x7f", 400);
        refused(b"GET /#", 400);
        refused(b"GET / X", 400);
        refused(b"GET / HTTP/1.1\n", 400);
        refused(b"GET / HTTP/1.1\r\nA: b\n", 400);
        refused(b"GET / HTTP/1.1\r\n\n", 400);
        refused(b"GET / HTTP/1.1\r\n A: b\r\n", 400);
        refused(b"\n", 400);
        refused(b"\rG", 400);
        refused(&b"\r\n".repeat(5), 400);
    }

    #[test]
    fn waits_for_the_end() {
        let whole = b"\r\n\r\nGET / HTTP/1.1\r\nA: b\r\n\r\n";
        for len in 0..whole.len() {
            check(&whole[..len], Ok(None));
        }
    }

    #[test]
    fn limits_are_exact() {
        let target =
            |len: usize| [b"GET /", &b"a".repeat(len - 1)[..], b" HTTP/1.1\r\n\r\n"].concat();
        check(&target(40), Ok(Some(40 + 17)));
        refused(&target(41), 414);
        let fields = |count: usize| {
            let lines = b"A: b\r\n".repeat(count);
            [b"GET / HTTP/1.1\r\n", &lines[..], b"\r\n"].concat()
        };
        check(&fields(4), Ok(Some(16 + 24 + 2)));
        refused(&fields(5), 431);
        let sized = |len: usize| {
            [b"GET / HTTP/1.1\r\nA: ", &b"v".repeat(len - 16 - 3 - 4)[..], b"\r\n\r\n"].concat()
        };
        check(&sized(300), Ok(Some(300)));
        refused(&sized(301), 431);
        refused(&b"M".repeat(65), 501);
    }

    #[test]
    fn a_refused_head_keeps_what_the_log_wants() {
        let head = check(b"POST /x?y HTTP/1.1\r\nA : b\r\n\r\n", Err(400));
        assert_eq!((head.method(), head.target()), (&b"POST"[..], &b"/x?y"[..]));
        assert_eq!(head.fields().count(), 0);
        let head = check(b"GET /a<b HTTP/1.1\r\n\r\n", Err(400));
        assert_eq!((head.method(), head.target()), (&b"GET"[..], &b"/a"[..]));
        assert_eq!(check(b"G(T / HTTP/1.1\r\n\r\n", Err(400)).method(), b"G");
    }

    #[test]
    fn memory_is_reused_and_the_copy_is_exact() {
        let (mut parser, mut head) = (HeadParser::new(), Head::new());
        let input = b"GET / HTTP/1.1\r\nHost: h\r\nA: b\r\n\r\n";
        parser.parse(input, &mut head, &limits()).unwrap();
        let warm = head.memory_bytes();
        for _ in 0..3 {
            parser.parse(input, &mut head, &limits()).unwrap();
        }
        assert_eq!(head.memory_bytes(), warm);
        let exact = head.to_exact();
        assert_eq!(exact.memory_bytes(), input.len() + 2 * 8);
        assert_eq!(parts(&exact), parts(&head));
        assert_eq!(head.to_compact().memory_bytes(), input.len());
        head.clear();
        assert_eq!((head.method(), head.fields().count()), (&b""[..], 0));
    }

    #[test]
    fn has_started_with_the_request_line() {
        let (mut parser, mut head) = (HeadParser::new(), Head::new());
        parser.parse(b"\r\n", &mut head, &limits()).unwrap();
        assert!(!parser.has_started());
        parser.parse(b"\r\nGET /a", &mut head, &limits()).unwrap();
        assert!(parser.has_started());
        // What the log shows of a request that timed out.
        assert_eq!((head.method(), head.target()), (&b"GET"[..], &b"/a"[..]));
    }

    proptest! {
        #[test]
        fn any_cut_same_result(
            line in "(GET|[ -~]{1,4}) (/|[ -~]{1,6}) HTTP/[0-2].1\r?\n",
            fields in "([a-z:]{1,3}: ?[ -~\t\r]{0,4}\r?\n){0,5}\r\n",
            cut in 0_usize..60,
        ) {
            let input = [line.as_bytes(), fields.as_bytes()].concat();
            let (whole, head) = parse_cut(&input, 0);
            let (cut, other) = parse_cut(&input, cut.min(input.len()));
            prop_assert_eq!(whole, cut);
            prop_assert_eq!(parts(&head), parts(&other));
            prop_assert_eq!(parts(&head), parts(&head.to_compact()));
        }

        /// A second tokenizer that is known to be more lenient sees the same parts.
        #[test]
        fn what_passes_here_passes_elsewhere(
            line in "(GET|PUT) /[a-z?%]{0,4} HTTP/1.[01]\r\n",
            fields in "([a-zA-Z-]{1,3}:[ \t]{0,2}[ -~\t]{0,4}\r\n){0,4}\r\n",
        ) {
            let input = line + &fields;
            let (parsed, head) = parse_cut(input.as_bytes(), 0);
            if let Ok(Some(consumed)) = parsed {
                let mut fields = [httparse::EMPTY_HEADER; 8];
                let mut request = httparse::Request::new(&mut fields);
                let status = request.parse(input.as_bytes()).unwrap();
                prop_assert_eq!(status, httparse::Status::Complete(consumed));
                prop_assert_eq!(request.method.unwrap().as_bytes(), head.method());
                prop_assert_eq!(request.path.unwrap().as_bytes(), head.target());
                let theirs: Vec<_> =
                    request.headers.iter().map(|h| (h.name.as_bytes(), h.value)).collect();
                prop_assert_eq!(theirs, head.fields().collect::<Vec<_>>());
            }
        }
    }
}
