//! How a response is framed and written: status line, fields, chunks (RFC 9112 sections 4, 6, 7.1;
//! RFC 9110 sections 6.6.1, 8.6, 15). Framing fields are written here and nowhere else; what the
//! application set of them is information, never output. (Tomcat: `Http11OutputBuffer` and
//! `Http11Processor.prepareResponse`.)

use super::chunked_decoder::is_banned_trailer;
use super::head::Version;
use super::octet_class::is_field_value;
use crate::response_fields::ResponseFields;

/// The interim response that asks for the content.
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// What delimits the content of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseFraming {
    /// A Content-Length field. For HEAD the length that GET would have, and no content.
    ContentLength(u64),
    /// Chunks.
    Chunked,
    /// The end of the connection.
    UntilClose,
    /// Nothing: the response ends with its head.
    None,
}

/// What decides about the framing of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseShape {
    /// The version of the request.
    pub request_version: Version,
    /// The request is a HEAD.
    pub is_head: bool,
    /// The status of the response.
    pub status: u16,
    /// The length that the application announced.
    pub declared_len: Option<u64>,
    /// The length of the content, if it is all there when the head is written.
    pub known_len: Option<u64>,
    /// The connection could live on: the request allows it ([`Framing::keep_alive`]), the server
    /// wants it, the application did not set `Connection: close`.
    ///
    /// [`Framing::keep_alive`]: super::Framing::keep_alive
    pub keep_alive: bool,
}

impl ResponseShape {
    /// May content follow the head? What the application writes is discarded where not.
    pub fn allows_content(&self) -> bool {
        !self.is_head && !matches!(self.status, 100..=199 | 204 | 205 | 304)
    }
}

/// The framing of a response, and whether the connection can live on after it.
///
/// A length that is known wins over one that the application announced. Where neither is there,
/// HTTP/1.1 gets chunks and HTTP/1.0 the end of the connection.
pub fn response_framing(shape: &ResponseShape) -> (ResponseFraming, bool) {
    let framing = match (shape.status, shape.known_len.or(shape.declared_len)) {
        // A framing field on these is an error or a lie (RFC 9110 section 8.6).
        (100..=199 | 204 | 304, _) => ResponseFraming::None,
        (205, _) => ResponseFraming::ContentLength(0),
        (_, _) if shape.is_head => match (shape.declared_len, shape.known_len) {
            (Some(len), _) => ResponseFraming::ContentLength(len),
            // Nothing written may mean that the servlet spared itself the content for HEAD.
            (None, Some(0) | None) => ResponseFraming::None,
            (None, Some(len)) => ResponseFraming::ContentLength(len),
        },
        (_, Some(len)) => ResponseFraming::ContentLength(len),
        (_, None) => match shape.request_version {
            Version::Http10 => ResponseFraming::UntilClose,
            Version::Http11 => ResponseFraming::Chunked,
        },
    };
    (framing, shape.keep_alive && framing != ResponseFraming::UntilClose)
}

/// What a response says about the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionField {
    /// Nothing; Connection fields of the application (such as `Upgrade`) go out.
    Implicit,
    /// `Connection: keep-alive`, which HTTP/1.0 needs (RFC 9112 section C.2.2).
    KeepAlive,
    /// `Connection: close`.
    Close,
}

impl ConnectionField {
    /// What to say to a client of this version about a connection that does or does not live on.
    pub const fn of(request_version: Version, keep_alive: bool) -> Self {
        match (request_version, keep_alive) {
            (_, false) => Self::Close,
            (Version::Http10, true) => Self::KeepAlive,
            (Version::Http11, true) => Self::Implicit,
        }
    }
}

/// All that goes into the head of a response.
#[derive(Clone, Copy, Debug)]
pub struct ResponseHead<'a> {
    /// The status, 100 to 999; another number is sent as 500.
    pub status: u16,
    /// The reason phrase; `None`, or a text with control octets, gives the usual one.
    pub reason: Option<&'a str>,
    /// The application's fields.
    pub fields: &'a ResponseFields,
    /// What delimits the content.
    pub framing: ResponseFraming,
    /// What to say about the connection; [`ResponseFraming::UntilClose`] always says close.
    pub connection: ConnectionField,
    /// The text of [`DateCache`](super::DateCache), used unless the application set a Date.
    pub date: &'a [u8; 29],
}

/// Appends the head of a response, empty line included.
///
/// Content-Length and Transfer-Encoding come from `framing` alone and Date comes once, whatever
/// the application's fields say.
pub fn encode_head(out: &mut Vec<u8>, head: &ResponseHead<'_>) {
    let status = if matches!(head.status, 100..=999) { head.status } else { 500 };
    encode_status_line(out, status, head.reason);
    let connection = match head.framing {
        ResponseFraming::UntilClose => ConnectionField::Close,
        ResponseFraming::ContentLength(_) | ResponseFraming::Chunked | ResponseFraming::None => {
            head.connection
        }
    };
    let has_date = encode_fields(out, head.fields, connection);
    match head.framing {
        ResponseFraming::ContentLength(len) => {
            out.extend_from_slice(b"Content-Length: ");
            encode_decimal(out, len);
            out.extend_from_slice(b"\r\n");
        }
        ResponseFraming::Chunked => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
        ResponseFraming::UntilClose | ResponseFraming::None => {}
    }
    match connection {
        ConnectionField::Implicit => {}
        ConnectionField::KeepAlive => out.extend_from_slice(b"Connection: keep-alive\r\n"),
        ConnectionField::Close => out.extend_from_slice(b"Connection: close\r\n"),
    }
    if has_date {
        out.extend_from_slice(b"\r\n");
    } else {
        out.extend_from_slice(b"Date: ");
        out.extend_from_slice(head.date);
        out.extend_from_slice(b"\r\n\r\n");
    }
}

/// Appends a chunk. Nothing for no data, since an empty chunk would end the content.
pub fn encode_chunk(out: &mut Vec<u8>, data: &[u8]) {
    if data.is_empty() {
        return;
    }
    encode_hex(out, data.len());
    out.reserve(data.len() + 4);
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(data);
    out.extend_from_slice(b"\r\n");
}

/// Appends the end of chunked content and its trailers, without those that must not be there
/// (RFC 9110 section 6.5.1).
pub fn encode_last_chunk(out: &mut Vec<u8>, trailers: Option<&ResponseFields>) {
    out.extend_from_slice(b"0\r\n");
    for (name, line) in trailers.into_iter().flat_map(ResponseFields::iter_lines) {
        if !is_banned_trailer(&name.to_ascii_lowercase()) {
            out.extend_from_slice(line);
        }
    }
    out.extend_from_slice(b"\r\n");
}

/// The usual reason phrase of a status, empty for an unregistered one (RFC 9110 section 15).
pub fn reason_phrase(status: u16) -> &'static str {
    match REASON_PHRASES.binary_search_by_key(&status, |&(code, _)| code) {
        Ok(index) => REASON_PHRASES[index].1,
        Err(_) => "",
    }
}

fn encode_status_line(out: &mut Vec<u8>, status: u16, reason: Option<&str>) {
    let reason = reason.filter(|text| is_field_value(text.as_bytes()));
    if status == 200 && reason.is_none() {
        out.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
        return;
    }
    out.extend_from_slice(b"HTTP/1.1 ");
    encode_decimal(out, u64::from(status));
    out.push(b' ');
    out.extend_from_slice(reason.unwrap_or_else(|| reason_phrase(status)).as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Appends the application's fields, those excepted that are not its own to send; whether a Date
/// was among them.
fn encode_fields(out: &mut Vec<u8>, fields: &ResponseFields, connection: ConnectionField) -> bool {
    // Nearly all responses have none of them: their lines go out as one block.
    if fields.iter_lines().all(|(name, _)| ManagedField::of(name).is_none()) {
        out.extend_from_slice(fields.lines());
        return false;
    }
    let mut has_date = false;
    for (name, line) in fields.iter_lines() {
        let goes_out = match ManagedField::of(name) {
            None => true,
            Some(ManagedField::Framing) => false,
            Some(ManagedField::Connection) => connection == ConnectionField::Implicit,
            Some(ManagedField::Date) => !std::mem::replace(&mut has_date, true),
        };
        if goes_out {
            out.extend_from_slice(line);
        }
    }
    has_date
}

/// A field that the application cannot simply send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ManagedField {
    Connection,
    Date,
    Framing,
}

impl ManagedField {
    fn of(name: &[u8]) -> Option<Self> {
        let (wanted, field): (&[u8], _) = match name.len() {
            4 => (b"date", Self::Date),
            10 => (b"connection", Self::Connection),
            14 => (b"content-length", Self::Framing),
            17 => (b"transfer-encoding", Self::Framing),
            _ => return None,
        };
        name.eq_ignore_ascii_case(wanted).then_some(field)
    }
}

fn encode_decimal(out: &mut Vec<u8>, mut number: u64) {
    let mut text = [0; 20];
    let mut start = text.len();
    loop {
        start -= 1;
        text[start] = DIGITS[(number % 10) as usize];
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&text[start..]);
}

fn encode_hex(out: &mut Vec<u8>, mut number: usize) {
    let mut text = [0; 16];
    let mut start = text.len();
    loop {
        start -= 1;
        text[start] = DIGITS[number % 16];
        number /= 16;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&text[start..]);
}

const DIGITS: &[u8; 16] = b"0123456789abcdef";

const REASON_PHRASES: &[(u16, &str)] = &[
    (100, "Continue"),
    (101, "Switching Protocols"),
    (103, "Early Hints"),
    (200, "OK"),
    (201, "Created"),
    (202, "Accepted"),
    (203, "Non-Authoritative Information"),
    (204, "No Content"),
    (205, "Reset Content"),
    (206, "Partial Content"),
    (207, "Multi-Status"),
    (208, "Already Reported"),
    (226, "IM Used"),
    (300, "Multiple Choices"),
    (301, "Moved Permanently"),
    (302, "Found"),
    (303, "See Other"),
    (304, "Not Modified"),
    (305, "Use Proxy"),
    (307, "Temporary Redirect"),
    (308, "Permanent Redirect"),
    (400, "Bad Request"),
    (401, "Unauthorized"),
    (402, "Payment Required"),
    (403, "Forbidden"),
    (404, "Not Found"),
    (405, "Method Not Allowed"),
    (406, "Not Acceptable"),
    (407, "Proxy Authentication Required"),
    (408, "Request Timeout"),
    (409, "Conflict"),
    (410, "Gone"),
    (411, "Length Required"),
    (412, "Precondition Failed"),
    (413, "Content Too Large"),
    (414, "URI Too Long"),
    (415, "Unsupported Media Type"),
    (416, "Range Not Satisfiable"),
    (417, "Expectation Failed"),
    (421, "Misdirected Request"),
    (422, "Unprocessable Content"),
    (423, "Locked"),
    (424, "Failed Dependency"),
    (425, "Too Early"),
    (426, "Upgrade Required"),
    (428, "Precondition Required"),
    (429, "Too Many Requests"),
    (431, "Request Header Fields Too Large"),
    (451, "Unavailable For Legal Reasons"),
    (500, "Internal Server Error"),
    (501, "Not Implemented"),
    (502, "Bad Gateway"),
    (503, "Service Unavailable"),
    (504, "Gateway Timeout"),
    (505, "HTTP Version Not Supported"),
    (506, "Variant Also Negotiates"),
    (507, "Insufficient Storage"),
    (508, "Loop Detected"),
    (511, "Network Authentication Required"),
];

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;

    const DATE: &[u8; 29] = b"Sun, 06 Nov 1994 08:49:37 GMT";
    const DATE_LINE: &str = "Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n";

    #[track_caller]
    fn check_framing(shape: ResponseShape, expected: (ResponseFraming, bool)) {
        assert_eq!(response_framing(&shape), expected, "{shape:?}");
    }

    const SHAPE: ResponseShape = ResponseShape {
        request_version: Version::Http11,
        is_head: false,
        status: 200,
        declared_len: None,
        known_len: None,
        keep_alive: true,
    };

    #[test]
    fn framing_with_content() {
        use ResponseFraming::{Chunked, ContentLength, UntilClose};
        let old = ResponseShape { request_version: Version::Http10, ..SHAPE };
        check_framing(SHAPE, (Chunked, true));
        check_framing(old, (UntilClose, false));
        let known = Some(5);
        check_framing(ResponseShape { known_len: known, ..SHAPE }, (ContentLength(5), true));
        check_framing(ResponseShape { known_len: known, ..old }, (ContentLength(5), true));
        check_framing(ResponseShape { declared_len: known, ..old }, (ContentLength(5), true));
        let lie = ResponseShape { declared_len: Some(1), known_len: known, ..SHAPE };
        check_framing(lie, (ContentLength(5), true));
        check_framing(ResponseShape { keep_alive: false, ..SHAPE }, (Chunked, false));
        assert!(SHAPE.allows_content());
    }

    #[test]
    fn framing_without_content() {
        for status in [100, 101, 199, 204, 304] {
            for is_head in [false, true] {
                let shape = ResponseShape { status, is_head, known_len: Some(5), ..SHAPE };
                check_framing(shape, (ResponseFraming::None, true));
                assert!(!shape.allows_content());
            }
        }
        let reset = ResponseShape { status: 205, known_len: Some(5), ..SHAPE };
        check_framing(reset, (ResponseFraming::ContentLength(0), true));
        assert!(!reset.allows_content());
        let head = ResponseShape { is_head: true, ..SHAPE };
        assert!(!head.allows_content());
        check_framing(head, (ResponseFraming::None, true));
        check_framing(
            ResponseShape { request_version: Version::Http10, ..head },
            (ResponseFraming::None, true),
        );
        check_framing(ResponseShape { known_len: Some(0), ..head }, (ResponseFraming::None, true));
        check_framing(
            ResponseShape { known_len: Some(5), ..head },
            (ResponseFraming::ContentLength(5), true),
        );
        let declared = ResponseShape { declared_len: Some(7), known_len: Some(0), ..head };
        check_framing(declared, (ResponseFraming::ContentLength(7), true));
    }

    fn encoded(fields: &[(&str, &str)], change: impl FnOnce(&mut ResponseHead<'_>)) -> String {
        let mut stored = ResponseFields::new();
        for (name, value) in fields {
            stored.add(name, value).unwrap();
        }
        let mut head = ResponseHead {
            status: 200,
            reason: None,
            fields: &stored,
            framing: ResponseFraming::ContentLength(0),
            connection: ConnectionField::Implicit,
            date: DATE,
        };
        change(&mut head);
        let mut out = Vec::new();
        encode_head(&mut out, &head);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn writes_a_head() {
        assert_eq!(
            encoded(&[("A", "b"), ("C", "d")], |_| {}),
            format!("HTTP/1.1 200 OK\r\nA: b\r\nC: d\r\nContent-Length: 0\r\n{DATE_LINE}\r\n")
        );
        let text = encoded(&[], |head| {
            head.status = 404;
            head.framing = ResponseFraming::Chunked;
            head.connection = ConnectionField::Close;
        });
        let lines = "Transfer-Encoding: chunked\r\nConnection: close\r\n";
        assert_eq!(text, format!("HTTP/1.1 404 Not Found\r\n{lines}{DATE_LINE}\r\n"));
        let text = encoded(&[], |head| {
            head.framing = ResponseFraming::ContentLength(u64::MAX);
            head.connection = ConnectionField::KeepAlive;
        });
        assert!(text.contains("\r\nContent-Length: 18446744073709551615\r\n"));
        assert!(text.contains("\r\nConnection: keep-alive\r\n"));
        let text = encoded(&[], |head| head.framing = ResponseFraming::UntilClose);
        assert_eq!(text, format!("HTTP/1.1 200 OK\r\nConnection: close\r\n{DATE_LINE}\r\n"));
    }

    #[test]
    fn the_application_does_not_frame() {
        let fields = [
            ("transfer-encoding", "gzip"),
            ("Content-Length", "1"),
            ("CONTENT-LENGTH", "2"),
            ("Connection", "close"),
            ("A", "b"),
        ];
        let text = encoded(&fields, |head| head.connection = ConnectionField::Close);
        let lines = "A: b\r\nContent-Length: 0\r\nConnection: close\r\n";
        assert_eq!(text, format!("HTTP/1.1 200 OK\r\n{lines}{DATE_LINE}\r\n"));
        let text = encoded(&fields, |head| {
            head.status = 204;
            head.framing = ResponseFraming::None;
            head.connection = ConnectionField::KeepAlive;
        });
        let lines = "A: b\r\nConnection: keep-alive\r\n";
        assert_eq!(text, format!("HTTP/1.1 204 No Content\r\n{lines}{DATE_LINE}\r\n"));
        let text = encoded(&[("Connection", "Upgrade")], |head| head.status = 101);
        assert!(text.starts_with("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n"));
    }

    #[test]
    fn date_comes_once() {
        let text = encoded(&[("date", "one"), ("Date", "two"), ("A", "b")], |_| {});
        assert_eq!(text, "HTTP/1.1 200 OK\r\ndate: one\r\nA: b\r\nContent-Length: 0\r\n\r\n");
    }

    #[test]
    fn status_lines() {
        let line = |status, reason| {
            let text = encoded(&[], |head| (head.status, head.reason) = (status, reason));
            text.lines().next().unwrap().to_owned()
        };
        assert_eq!(line(200, Some("Fine")), "HTTP/1.1 200 Fine");
        assert_eq!(line(200, Some("a\r\nX: y")), "HTTP/1.1 200 OK");
        assert_eq!(line(299, None), "HTTP/1.1 299 ");
        assert_eq!(line(42, None), "HTTP/1.1 500 Internal Server Error");
        assert_eq!(reason_phrase(431), "Request Header Fields Too Large");
        assert!(REASON_PHRASES.is_sorted_by_key(|&(status, _)| status));
    }

    #[test]
    fn connection_field() {
        assert_eq!(ConnectionField::of(Version::Http11, true), ConnectionField::Implicit);
        assert_eq!(ConnectionField::of(Version::Http10, true), ConnectionField::KeepAlive);
        assert_eq!(ConnectionField::of(Version::Http10, false), ConnectionField::Close);
        assert_eq!(ConnectionField::of(Version::Http11, false), ConnectionField::Close);
    }

    #[test]
    fn chunks() {
        let mut out = Vec::new();
        encode_chunk(&mut out, b"hello");
        encode_chunk(&mut out, b"");
        encode_chunk(&mut out, &[b'x'; 26]);
        let mut trailers = ResponseFields::new();
        trailers.add("X-Sum", "1").unwrap();
        trailers.add("Content-Length", "3").unwrap();
        encode_last_chunk(&mut out, Some(&trailers));
        let chunks = format!("5\r\nhello\r\n1a\r\n{}\r\n0\r\nX-Sum: 1\r\n\r\n", "x".repeat(26));
        assert_eq!(String::from_utf8(out).unwrap(), chunks);
        let mut out = Vec::new();
        encode_last_chunk(&mut out, None);
        assert_eq!(out, b"0\r\n\r\n");
    }
}
