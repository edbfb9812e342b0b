//! One field line, in a head or in a trailer section: name, colon, value (RFC 9112 section 5).
//! Never repairs a line: folding, space before the colon and control octets are refused.

use std::ops::Range;

use super::octet_class::{is_field_value, is_token};
use crate::protocol_error::ProtocolError;

/// Where name and value of a field line are.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FieldLine {
    /// Octets of the name, which starts the line.
    pub(crate) name_len: usize,
    /// The value without white space around it.
    pub(crate) value: Range<usize>,
}

/// Parts a line, given without its CRLF.
///
/// # Errors
/// 400 for anything but `token ":" OWS value OWS`.
pub(crate) fn field_line(line: &[u8]) -> Result<FieldLine, ProtocolError> {
    let name_len = line.iter().position(|&octet| !is_token(octet)).unwrap_or(line.len());
    match line.get(name_len) {
        Some(b':') if name_len > 0 => {}
        Some(b' ' | b'\t') if name_len == 0 => {
            // Obsolete folding: a proxy that unfolds and one that does not see other fields.
            return Err(ProtocolError::bad_request("field line starts with white space"));
        }
        Some(b' ' | b'\t') => {
            return Err(ProtocolError::bad_request("white space in or behind a field name"));
        }
        Some(_) => return Err(ProtocolError::bad_request("field name is no token")),
        None => return Err(ProtocolError::bad_request("field line without colon")),
    }
    let is_ows = |&octet: &u8| octet == b' ' || octet == b'\t';
    let mut value = name_len + 1..line.len();
    value.start += line[value.clone()].iter().take_while(|o| is_ows(o)).count();
    value.end -= line[value.clone()].iter().rev().take_while(|o| is_ows(o)).count();
    if !is_field_value(&line[value.clone()]) {
        return Err(ProtocolError::bad_request("control octet in a field value"));
    }
    Ok(FieldLine { name_len, value })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &[u8], expected: Option<(&[u8], &[u8])>) {
        let parted = field_line(line).ok().map(|f| (&line[..f.name_len], &line[f.value]));
        assert_eq!(parted, expected, "line {}", line.escape_ascii());
    }

    #[test]
    fn parts_a_line() {
        check(b"a:b", Some((b"a", b"b")));
        check(b"A-b: \t c \t d\t ", Some((b"A-b", b"c \t d")));
        check(b"a:", Some((b"a", b"")));
        check(b"a: \t", Some((b"a", b"")));
        check(b"a::b:", Some((b"a", b":b:")));
        check(b"!#$%&'*+-.^_`|~09aZ:\xe9", Some((b"!#$%&'*+-.^_`|~09aZ", b"\xe9")));
    }

    #[test]
    fn refuses_what_is_no_field() {
        for line in [
            &b""[..],
            b":",
            b": v",
            b"a",
            b"a b",
            b"a : b",
            b"a\t: b",
            b" a: b",
            b"\ta: b",
            b"a\xe9: b",
            b"a\0: b",
            b"a@b: c",
            b"a: b\rc",
            b"a: b\r",
            b"a: b\nc",
            b"a: \x0b",
            b"a: \0",
            b"a: b\x7f",
        ] {
            check(line, None);
        }
    }
}
