//! Host and port, as in a request target or a Host field (RFC 3986 section 3.2, RFC 9110 section
//! 7.2). Stricter than the URI grammar where that admits what no server is called: percent
//! codes, sub-delims and userinfo are refused. (Tomcat: `parser.Host`.)

use std::net::Ipv6Addr;

use super::head::Span;
use super::octet_class::is_host_name;
use crate::protocol_error::ProtocolError;

/// A host and maybe a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Authority {
    /// The host, never empty: a name, an IPv4 address, or an IPv6 address with its brackets.
    pub host: Span,
    /// The port; `None` where it is missing or empty.
    pub port: Option<u16>,
}

impl Authority {
    /// Parts `host [":" [port]]`. The span counts from the start of `text`.
    ///
    /// # Errors
    /// 400 for anything else, an empty host and a port above 65,535 included.
    ///
    /// # Panics
    /// If `text` is longer than a head may be.
    pub fn parse(text: &[u8]) -> Result<Self, ProtocolError> {
        let host_len = if text.first() == Some(&b'[') {
            ip_literal_len(text).ok_or(ProtocolError::bad_request("malformed IP literal"))?
        } else {
            text.iter().position(|&octet| !is_host_name(octet)).unwrap_or(text.len())
        };
        if host_len == 0 {
            return Err(ProtocolError::bad_request("malformed or empty host"));
        }
        let port = match &text[host_len..] {
            [] | [b':'] => None,
            [b':', digits @ ..] => {
                Some(port(digits).ok_or(ProtocolError::bad_request("malformed port"))?)
            }
            [..] => return Err(ProtocolError::bad_request("malformed host")),
        };
        Ok(Self { host: Span::new(0..host_len), port })
    }
}

/// Octets of an IPv6 address in brackets.
fn ip_literal_len(text: &[u8]) -> Option<usize> {
    let end = text.iter().position(|&octet| octet == b']')?;
    let address = std::str::from_utf8(&text[1..end]).ok()?;
    address.parse::<Ipv6Addr>().ok()?;
    Some(end + 1)
}

fn port(digits: &[u8]) -> Option<u16> {
    digits.iter().try_fold(0_u16, |port, &octet| {
        let digit = octet.is_ascii_digit().then(|| u16::from(octet - b'0'))?;
        port.checked_mul(10)?.checked_add(digit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Option<(&str, Option<u16>)>) {
        let parsed = Authority::parse(text.as_bytes()).ok();
        let parts = parsed.map(|authority| (&text[authority.host.range()], authority.port));
        assert_eq!(parts, expected, "authority {text:?}");
    }

    #[test]
    fn parts_an_authority() {
        check("wire.test", Some(("wire.test", None)));
        check("my_host.test.:80", Some(("my_host.test.", Some(80))));
        check("h:", Some(("h", None)));
        check("h:00065535", Some(("h", Some(65535))));
        check("127.0.0.1:8080", Some(("127.0.0.1", Some(8080))));
        check("[::1]", Some(("[::1]", None)));
        check("[2001:db8::1]:80", Some(("[2001:db8::1]", Some(80))));
        check("[::ffff:1.2.3.4]:", Some(("[::ffff:1.2.3.4]", None)));
    }

    #[test]
    fn refuses_what_is_no_authority() {
        for text in [
            "",
            ":80",
            "a b",
            "a,b",
            "u@h",
            "h/",
            "h?",
            "h#",
            "h\\",
            "h:x",
            "h:+1",
            "h:-1",
            "h:65536",
            "h:4294967376",
            "h:80:81",
            "::1",
            "[::1",
            "[::g]",
            "[::1]x",
            "[]",
            "[::1%25eth0]",
            "[v1.a]",
            "w%2e",
            "h\t",
            "h\u{ef}",
        ] {
            check(text, None);
        }
    }
}
