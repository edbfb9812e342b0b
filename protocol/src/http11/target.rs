//! The request target: its form, and where path, query and authority are in it (RFC 9112 section
//! 3.2). It decodes and normalises nothing; that is the container's part. (Tomcat:
//! `Http11Processor.prepareRequest`.)

use super::authority::Authority;
use super::head::Span;
use super::octet_class::is_path;
use crate::protocol_error::ProtocolError;

/// The four forms of a request target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetForm {
    /// `/path?query`.
    Origin,
    /// `http://host/path?query`, as sent to proxies.
    Absolute,
    /// `host:port`, of CONNECT only.
    Authority,
    /// `*`, of OPTIONS only.
    Asterisk,
}

/// The scheme of an absolute target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// `http`.
    Http,
    /// `https`.
    Https,
}

impl Scheme {
    /// The port that an authority without one means.
    pub const fn default_port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

/// A request target in its parts. All spans count from the start of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its form.
    pub form: TargetForm,
    /// The path, percent codes as they came; empty in an absolute target without path and in
    /// authority form, `*` in asterisk form.
    pub path: Span,
    /// The query behind the `?`, which may be empty; `None` without `?`.
    pub query: Option<Span>,
    /// Host and port of an absolute or authority form.
    pub authority: Option<Authority>,
    /// The scheme of an absolute form.
    pub scheme: Option<Scheme>,
}

impl Target {
    /// The path that is asked for: an empty path of an absolute target is `/` (RFC 9110 section
    /// 4.2.3). `target` is the text that was parsed.
    ///
    /// # Panics
    /// If `target` is not that text.
    pub fn path<'a>(&self, target: &'a [u8]) -> &'a [u8] {
        match self.path.of(target) {
            [] => b"/",
            path => path,
        }
    }

    /// A target that is nothing but a path and a query.
    fn origin(target: &[u8], path_start: usize) -> Result<Self, ProtocolError> {
        let rest = &target[path_start..];
        let path_len = rest.iter().position(|&octet| !is_path(octet)).unwrap_or(rest.len());
        let path_end = path_start + path_len;
        let query = match &rest[path_len..] {
            [] => None,
            [b'?', query @ ..] if query.iter().all(|&octet| is_path(octet) || octet == b'?') => {
                Some(Span::new(path_end + 1..target.len()))
            }
            [..] => return Err(ProtocolError::bad_request("octet that no path or query has")),
        };
        Ok(Self {
            form: TargetForm::Origin,
            path: Span::new(path_start..path_end),
            query,
            authority: None,
            scheme: None,
        })
    }

    fn absolute(target: &[u8]) -> Result<Self, ProtocolError> {
        let (scheme, authority_start) = match scheme_of(target) {
            Some(found) => found,
            None => return Err(ProtocolError::bad_request("request target of no known form")),
        };
        let rest = &target[authority_start..];
        let len = rest.iter().position(|&o| o == b'/' || o == b'?').unwrap_or(rest.len());
        let mut authority = Authority::parse(&rest[..len])?;
        authority.host = Span::new(authority_start..authority_start + authority.host.range().len());
        let path_and_query = Self::origin(target, authority_start + len)?;
        Ok(Self {
            form: TargetForm::Absolute,
            authority: Some(authority),
            scheme: Some(scheme),
            ..path_and_query
        })
    }
}

/// Parts a request target. `target` is what [`Head::target`](super::Head::target) gives.
///
/// # Errors
/// 400 if the target has none of the four forms, or one that the method does not go with; if it
/// has userinfo, an empty or malformed host, another scheme than http and https, or an octet that
/// belongs percent-coded (`[` and `]` in path and query, as RFC 3986 says and browsers do not).
///
/// # Panics
/// If `target` is longer than a head may be.
pub fn parse_target(method: &[u8], target: &[u8]) -> Result<Target, ProtocolError> {
    if method == b"CONNECT" {
        let authority = Authority::parse(target)?;
        if authority.port.is_none() {
            return Err(ProtocolError::bad_request("CONNECT without port"));
        }
        return Ok(Target {
            form: TargetForm::Authority,
            path: Span::default(),
            query: None,
            authority: Some(authority),
            scheme: None,
        });
    }
    match target {
        [b'/', ..] => Target::origin(target, 0),
        b"*" if method == b"OPTIONS" => Ok(Target {
            form: TargetForm::Asterisk,
            path: Span::new(0..1),
            query: None,
            authority: None,
            scheme: None,
        }),
        [..] => Target::absolute(target),
    }
}

/// The scheme and where the authority starts.
fn scheme_of(target: &[u8]) -> Option<(Scheme, usize)> {
    let starts = |prefix: &[u8]| {
        target.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
    };
    if starts(b"http://") {
        Some((Scheme::Http, 7))
    } else if starts(b"https://") {
        Some((Scheme::Https, 8))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;

    /// Form, host, port, path, query.
    type Parts<'a> = (TargetForm, &'a str, Option<u16>, &'a str, Option<&'a str>);

    fn check(method: &str, text: &str, expected: Option<Parts<'_>>) {
        let parsed = parse_target(method.as_bytes(), text.as_bytes()).ok();
        let parts = parsed.map(|target| {
            let host = target.authority.map_or("", |authority| &text[authority.host.range()]);
            let port = target.authority.and_then(|authority| authority.port);
            let query = target.query.map(|query| &text[query.range()]);
            (target.form, host, port, &text[target.path.range()], query)
        });
        assert_eq!(parts, expected, "{method} {text}");
    }

    #[test]
    fn origin_form() {
        let origin = |path, query| Some((TargetForm::Origin, "", None, path, query));
        check("GET", "/", origin("/", None));
        check("GET", "/a/b;c=d%20", origin("/a/b;c=d%20", None));
        check("GET", "/a?", origin("/a", Some("")));
        check("GET", "/a?b=c?d/../:@", origin("/a", Some("b=c?d/../:@")));
        check("GET", "//host/a", origin("//host/a", None));
        check("GET", "/http://h/", origin("/http://h/", None));
    }

    #[test]
    fn absolute_form() {
        let absolute =
            |host, port, path, query| Some((TargetForm::Absolute, host, port, path, query));
        check("GET", "http://h/a?b", absolute("h", None, "/a", Some("b")));
        check("GET", "HTTP://H:80", absolute("H", Some(80), "", None));
        check("GET", "http://h?x=/y", absolute("h", None, "", Some("x=/y")));
        check("GET", "https://[::1]:1/", absolute("[::1]", Some(1), "/", None));
        let target = parse_target(b"GET", b"http://h").unwrap();
        assert_eq!(target.path(b"http://h"), b"/");
        assert_eq!(target.scheme.unwrap().default_port(), 80);
    }

    #[test]
    fn other_forms() {
        check("CONNECT", "h:1", Some((TargetForm::Authority, "h", Some(1), "", None)));
        check("OPTIONS", "*", Some((TargetForm::Asterisk, "", None, "*", None)));
        check("OPTIONS", "/", Some((TargetForm::Origin, "", None, "/", None)));
    }

    #[test]
    fn refuses_other_targets() {
        for text in [
            "",
            "*",
            "**",
            "a",
            "h:80",
            "?x",
            ";x/",
            "http:",
            "http:/h/",
            "http:h",
            "http:///h",
            "http://",
            "http://?x",
            "ftp://h/",
            "http://u@h/",
            "http://h:8x/",
            "http://h:99999/",
            "http://[::1/",
            "http://h\\@e/",
            "/a[",
            "/a?b[]=1",
            "/a#b",
            "/a b",
            "/a\"",
            "/\u{e9}",
            "/a?b#",
        ] {
            check("GET", text, None);
        }
        for text in ["/", "*", "h", "h:", "http://h:80/", "h:x"] {
            check("CONNECT", text, None);
        }
        check("OPTIONS", "*x", None);
        check("options", "*", None);
    }
}
