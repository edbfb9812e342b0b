//! What a head says about its message: the length of the content, the host that is meant, whether
//! the connection lives on, whether the client waits for 100 (RFC 9112 sections 3.2, 6, 9.3; RFC
//! 9110 section 10.1.1). Whatever two recipients could read in two ways is refused, also where the
//! RFC would let it pass: a repeated length, a length beside chunks, a coding list. (Tomcat:
//! `Http11Processor.prepareRequest`.)

use super::authority::Authority;
use super::head::{FieldSpans, Head, Span, Version};
use super::octet_class::{is_token, trim_ows};
use super::target::{Scheme, Target};
use crate::protocol_error::ProtocolError;

/// How long the content is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyLength {
    /// No framing field: no content.
    None,
    /// Content-Length, at most 2^63-1 octets; 0 if the field says so.
    Length(u64),
    /// Chunks tell.
    Chunked,
}

/// What a head says about its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Framing {
    /// The length of the content.
    pub body: BodyLength,
    /// The client can go on with this connection after the response.
    pub keep_alive: bool,
    /// There is content and the client waits for 100 (Continue) before it sends it.
    pub expects_continue: bool,
    /// The host that is meant: of the target, else of Host; `None` if Host is empty or, in
    /// HTTP/1.0, missing. [`Head::slice`] gives its octets.
    pub server: Option<Authority>,
}

/// Reads the framing of a message; `target` is the parsed target of `head`.
///
/// # Errors
/// 400 for a Host that is missing, repeated, malformed or another than the target's; for a length
/// that is malformed or repeated; for chunks in HTTP/1.0, beside a length, or not as the final
/// coding. 413 for a length past 2^63-1, 417 for an unknown expectation, 501 for a coding before
/// the chunks. The message length is known only where no error is returned.
///
/// # Panics
/// If `target` belongs to another head.
pub fn framing(head: &Head, target: &Target) -> Result<Framing, ProtocolError> {
    let mut seen = Seen::default();
    for &field in head.field_spans() {
        seen.note(head, field)?;
    }
    let server = server(head, target, seen.host)?;
    let body = body_length(head, &seen)?;
    let is_http11 = head.version() == Version::Http11;
    if is_http11 && seen.has_unknown_expectation {
        return Err(ProtocolError::new(417, "unknown expectation"));
    }
    let has_content = !matches!(body, BodyLength::None | BodyLength::Length(0));
    Ok(Framing {
        body,
        keep_alive: !seen.has_close && (is_http11 || seen.has_keep_alive),
        // HTTP/1.0 knows no interim responses (RFC 9110 sections 10.1.1 and 15.2).
        expects_continue: is_http11 && seen.has_continue && has_content,
        server,
    })
}

/// The fields that frame a message, gathered in one pass.
#[derive(Debug, Default)]
struct Seen {
    host: Option<Span>,
    content_length: Option<Span>,
    transfer_encoding: Option<Span>,
    has_close: bool,
    has_keep_alive: bool,
    has_continue: bool,
    has_unknown_expectation: bool,
}

impl Seen {
    fn note(&mut self, head: &Head, field: FieldSpans) -> Result<(), ProtocolError> {
        let name = head.slice(field.name);
        let is = |wanted: &[u8]| name.eq_ignore_ascii_case(wanted);
        // The length alone rules out nearly all fields.
        match name.len() {
            4 if is(b"host") => once(&mut self.host, field, "more than one Host"),
            6 if is(b"expect") => {
                self.note_expectations(head.slice(field.value));
                Ok(())
            }
            10 if is(b"connection") => {
                self.note_connection(head.slice(field.value));
                Ok(())
            }
            14 if is(b"content-length") => {
                once(&mut self.content_length, field, "more than one Content-Length")
            }
            17 if is(b"transfer-encoding") => {
                once(&mut self.transfer_encoding, field, "more than one Transfer-Encoding")
            }
            _ => Ok(()),
        }
    }

    fn note_connection(&mut self, options: &[u8]) {
        for option in members(options) {
            self.has_close |= option.eq_ignore_ascii_case(b"close");
            self.has_keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
        }
    }

    fn note_expectations(&mut self, expectations: &[u8]) {
        for expectation in members(expectations).filter(|member| !member.is_empty()) {
            let is_continue = expectation.eq_ignore_ascii_case(b"100-continue");
            self.has_continue |= is_continue;
            self.has_unknown_expectation |= !is_continue;
        }
    }
}

fn once(
    slot: &mut Option<Span>,
    field: FieldSpans,
    reason: &'static str,
) -> Result<(), ProtocolError> {
    match slot.replace(field.value) {
        None => Ok(()),
        Some(_) => Err(ProtocolError::bad_request(reason)),
    }
}

/// The members of a list, without white space around them; some may be empty.
fn members(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    list.split(|&octet| octet == b',').map(trim_ows)
}

/// The host that is meant (RFC 9112 sections 3.2 and 3.3).
fn server(
    head: &Head,
    target: &Target,
    host: Option<Span>,
) -> Result<Option<Authority>, ProtocolError> {
    if host.is_none() && head.version() == Version::Http11 {
        return Err(ProtocolError::bad_request("Host is missing"));
    }
    let of_host = match host {
        Some(span) if span.len > 0 => {
            let parsed = Authority::parse(head.slice(span))?;
            Some(Authority { host: parsed.host.shifted(span.start), ..parsed })
        }
        Some(_) | None => None,
    };
    let Some(named) = target.authority else { return Ok(of_host) };
    let of_target = Authority { host: named.host.shifted(head.target_start()), ..named };
    // The target would win, but caches and filters in front may have gone by Host.
    if host.is_some() && !of_host.is_some_and(|other| is_same(head, target, of_target, other)) {
        return Err(ProtocolError::bad_request("Host differs from the request target"));
    }
    Ok(Some(of_target))
}

fn is_same(head: &Head, target: &Target, one: Authority, other: Authority) -> bool {
    let default_port = target.scheme.map(Scheme::default_port);
    head.slice(one.host).eq_ignore_ascii_case(head.slice(other.host))
        && one.port.or(default_port) == other.port.or(default_port)
}

/// The length of the content (RFC 9112 section 6.3).
fn body_length(head: &Head, seen: &Seen) -> Result<BodyLength, ProtocolError> {
    match (seen.transfer_encoding, seen.content_length) {
        (None, None) => Ok(BodyLength::None),
        (None, Some(length)) => content_length(head.slice(length)).map(BodyLength::Length),
        (Some(_), Some(_)) => {
            Err(ProtocolError::bad_request("Content-Length beside Transfer-Encoding"))
        }
        (Some(_), None) if head.version() == Version::Http10 => {
            Err(ProtocolError::bad_request("Transfer-Encoding in HTTP/1.0"))
        }
        (Some(coding), None) => {
            check_coding(head.slice(coding))?;
            Ok(BodyLength::Chunked)
        }
    }
}

fn content_length(value: &[u8]) -> Result<u64, ProtocolError> {
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return Err(ProtocolError::bad_request("Content-Length is no number"));
    }
    let add = |number: i64, octet: &u8| {
        number.checked_mul(10).and_then(|tens| tens.checked_add(i64::from(octet - b'0')))
    };
    // Signed, so that no one above can make a negative number of it.
    match value.iter().try_fold(0, add) {
        Some(length) => Ok(length.unsigned_abs()),
        None => Err(ProtocolError::new(413, "Content-Length past 2^63-1")),
    }
}

/// Admits `chunked` alone. Empty members are refused too: some read `,chunked` as no chunks.
fn check_coding(value: &[u8]) -> Result<(), ProtocolError> {
    if value.eq_ignore_ascii_case(b"chunked") {
        return Ok(());
    }
    let is_chunked = |coding: &[u8]| coding.eq_ignore_ascii_case(b"chunked");
    let is_other = |coding: &[u8]| {
        !coding.is_empty() && coding.iter().all(|&o| is_token(o)) && !is_chunked(coding)
    };
    let (last, before) = match value.iter().rposition(|&octet| octet == b',') {
        Some(comma) => (trim_ows(&value[comma + 1..]), &value[..comma]),
        None => (value, &value[..0]),
    };
    if is_chunked(last) && members(before).all(is_other) {
        return Err(ProtocolError::new(501, "unknown transfer coding"));
    }
    Err(ProtocolError::bad_request("chunked is not the final transfer coding"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::super::head::{HeadLimits, HeadParser};
    use super::super::target::parse_target;
    use super::*;

    fn read(text: &str) -> (Head, Result<Framing, u16>) {
        let mut head = Head::new();
        HeadParser::new().parse(text.as_bytes(), &mut head, &HeadLimits::default()).unwrap();
        let target = parse_target(head.method(), head.target()).unwrap();
        let framing = framing(&head, &target).map_err(|error| error.status);
        (head, framing)
    }

    /// Fields of an HTTP/1.1 request with Host.
    fn of_fields(fields: &str) -> Result<Framing, u16> {
        read(&format!("POST / HTTP/1.1\r\nHost: h\r\n{fields}\r\n")).1
    }

    fn check_body(fields: &str, expected: Result<BodyLength, u16>) {
        assert_eq!(of_fields(fields).map(|framing| framing.body), expected, "{fields:?}");
    }

    #[test]
    fn content_length() {
        check_body("", Ok(BodyLength::None));
        check_body("Content-Length: 0\r\n", Ok(BodyLength::Length(0)));
        check_body("content-length:\t0010 \r\n", Ok(BodyLength::Length(10)));
        check_body(
            "Content-Length: 9223372036854775807\r\n",
            Ok(BodyLength::Length(i64::MAX as u64)),
        );
        check_body("Content-Length: 9223372036854775808\r\n", Err(413));
        check_body("Content-Length: 18446744073709551621\r\n", Err(413));
        for value in
            ["", "+5", "-5", "5.0", "0x5", "5 5", "5,5", "5, 5", "\u{665}", "\"5\"", "5;", "1_0"]
        {
            check_body(&format!("Content-Length: {value}\r\n"), Err(400));
        }
        check_body("Content-Length: 5\r\nContent-Length: 5\r\n", Err(400));
        check_body("Content-Length:\r\ncontent-length: 5\r\n", Err(400));
        check_body("Content_Length: 5\r\n", Ok(BodyLength::None));
    }

    #[test]
    fn transfer_encoding() {
        check_body("Transfer-Encoding: chunked\r\n", Ok(BodyLength::Chunked));
        check_body("tRANSFER-eNCODING: \tCHUNKED\t\r\n", Ok(BodyLength::Chunked));
        check_body("Transfer-Encoding: gzip, chunked\r\n", Err(501));
        check_body("Transfer-Encoding: a, b ,chunked\r\n", Err(501));
        for value in [
            "",
            ",",
            "gzip",
            "identity",
            "chunked, gzip",
            "chunked, chunked",
            "chunked,chunked,chunked",
            ",chunked",
            "chunked,",
            "gzip,,chunked",
            "xchunked",
            "chunked;q=1",
            "cow chunked",
            "\"chunked\"",
            "chun\u{212a}ed",
            "x y, chunked",
        ] {
            check_body(&format!("Transfer-Encoding: {value}\r\n"), Err(400));
        }
        check_body("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", Err(400));
        check_body("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", Err(400));
        check_body("Content-Length: x\r\nTransfer-Encoding: chunked\r\n", Err(400));
        let old = "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(read(old).1, Err(400));
    }

    fn check_server(text: &str, expected: Result<Option<(&str, Option<u16>)>, u16>) {
        let (head, framing) = read(text);
        let server = framing.map(|framing| {
            framing.server.map(|server| (head.slice(server.host).to_vec(), server.port))
        });
        let expected =
            expected.map(|some| some.map(|(host, port)| (host.as_bytes().to_vec(), port)));
        assert_eq!(server, expected, "{text:?}");
    }

    #[test]
    fn the_host_that_is_meant() {
        check_server("GET / HTTP/1.1\r\nA: b\r\nhost: \t h:8\t\r\n\r\n", Ok(Some(("h", Some(8)))));
        check_server("GET / HTTP/1.1\r\nHost:\r\n\r\n", Ok(None));
        check_server("GET / HTTP/1.0\r\n\r\n", Ok(None));
        check_server("GET http://h/ HTTP/1.0\r\n\r\n", Ok(Some(("h", None))));
        check_server("GET http://h:80/ HTTP/1.1\r\nHost: H\r\n\r\n", Ok(Some(("h", Some(80)))));
        check_server("GET http://h/ HTTP/1.1\r\nHost: h:80\r\n\r\n", Ok(Some(("h", None))));
        check_server("GET / HTTP/1.1\r\n\r\n", Err(400));
        check_server("GET http://h/ HTTP/1.1\r\n\r\n", Err(400));
        check_server("GET http://h/ HTTP/1.1\r\nHost:\r\n\r\n", Err(400));
        check_server("GET http://h/ HTTP/1.1\r\nHost: i\r\n\r\n", Err(400));
        check_server("GET https://h/ HTTP/1.1\r\nHost: h:80\r\n\r\n", Err(400));
        check_server("GET / HTTP/1.0\r\nHost: a b\r\n\r\n", Err(400));
        check_server("GET / HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n", Err(400));
        check_server("GET / HTTP/1.1\r\nHost: a\r\nHost:\r\n\r\n", Err(400));
    }

    #[test]
    fn persistence() {
        let keeps = |version: &str, fields: &str| {
            let framing = read(&format!("GET / HTTP/{version}\r\nHost: h\r\n{fields}\r\n")).1;
            framing.unwrap().keep_alive
        };
        assert!(keeps("1.1", ""));
        assert!(keeps("1.1", "Connection: closed, xclose\r\nProxy-Connection: close\r\n"));
        assert!(!keeps("1.1", "Connection: CLOSE\r\n"));
        assert!(!keeps("1.1", "Connection: ,, x,\tclose ,keep-alive\r\n"));
        assert!(!keeps("1.1", "Connection: keep-alive\r\nConnection: close\r\n"));
        assert!(!keeps("1.0", ""));
        assert!(keeps("1.0", "Connection: Keep-Alive\r\n"));
        assert!(!keeps("1.0", "Connection: keep-alive, close\r\n"));
    }

    #[test]
    fn expectations() {
        let waits = |fields: &str| of_fields(fields).map(|framing| framing.expects_continue);
        assert_eq!(waits("Content-Length: 5\r\nExpect: 100-Continue\r\n"), Ok(true));
        assert_eq!(waits("Transfer-Encoding: chunked\r\nExpect: 100-continue,\r\n"), Ok(true));
        assert_eq!(waits("Content-Length: 0\r\nExpect: 100-continue\r\n"), Ok(false));
        assert_eq!(waits("Expect: 100-continue\r\n"), Ok(false));
        assert_eq!(waits("Expect:\r\n"), Ok(false));
        assert_eq!(waits("Expect: 200-ok\r\n"), Err(417));
        assert_eq!(waits("Expect: 100-continue, x\r\n"), Err(417));
        assert_eq!(waits("Expect: y 100-continue\r\n"), Err(417));
        // The length comes first: where it is in doubt, the connection must not live on.
        assert_eq!(waits("Expect: x\r\nContent-Length: x\r\n"), Err(400));
        let old = "POST / HTTP/1.0\r\nContent-Length: 5\r\nExpect: 100-continue, x\r\n\r\n";
        assert!(!read(old).1.unwrap().expects_continue);
    }
}
