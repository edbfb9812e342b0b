//! Cookies: reading `Cookie` fields without copying, and building `Set-Cookie` values that no
//! client misreads (RFC 6265). It reads no clock: the present is an argument. Stands for `Cookie`
//! and `Rfc6265CookieProcessor`.

use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::error::{Error, ErrorKind, Result};

/// What a context's cookie processor adds and tolerates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CookiePolicy {
    /// `SameSite` of response cookies that have none of their own. Default: none.
    pub same_site: Option<SameSite>,
    /// Whether response cookies are `Partitioned` also without asking for it. Default: false.
    pub partitioned: bool,
    /// What a request cookie without `=` is. Default: ignored.
    pub without_equals: CookieWithoutEquals,
}

/// What `Cookie: a` without an equals sign means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CookieWithoutEquals {
    /// Nothing; the other cookies are kept.
    #[default]
    Ignore,
    /// The cookie of that name with an empty value.
    Name,
}

/// On which cross-site requests a client sends a cookie back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SameSite {
    /// `Strict`: on none.
    Strict,
    /// `Lax`: on top-level navigation.
    Lax,
    /// `None`: on all; clients want `Secure` with it.
    None,
}

impl SameSite {
    /// The value of the attribute.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Strict => "Strict",
            Self::Lax => "Lax",
            Self::None => "None",
        }
    }
}

impl FromStr for SameSite {
    type Err = Error;

    /// Reads the name in any case.
    fn from_str(name: &str) -> Result<Self> {
        [Self::Strict, Self::Lax, Self::None]
            .into_iter()
            .find(|one| one.name().eq_ignore_ascii_case(name))
            .ok_or_else(|| refused("SameSite of a cookie", name))
    }
}

/// A response cookie: name, value and attributes. Nothing is checked until it is written.
///
/// ```
/// use ringcat::cookie::{Cookie, CookiePolicy, SameSite};
/// use std::time::SystemTime;
///
/// let cookie = Cookie::new("theme", "dark").path("/app").http_only().same_site(SameSite::Lax);
/// let value = cookie.set_cookie_value(&CookiePolicy::default(), SystemTime::now())?;
/// assert_eq!(value, "theme=dark; Path=/app; HttpOnly; SameSite=Lax");
/// assert!(Cookie::new("a b", "1").validate().is_err());
/// # Ok::<(), ringcat::error::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cookie {
    name: String,
    value: String,
    domain: Option<String>,
    path: Option<String>,
    max_age: Option<Duration>,
    is_secure: bool,
    is_http_only: bool,
    is_partitioned: bool,
    same_site: Option<SameSite>,
    /// Other attributes, in the order they were given.
    attributes: Vec<(String, String)>,
}

impl Cookie {
    /// A cookie that lives as long as the client's session, for the host and the directory of the
    /// request.
    pub fn new(name: impl Into<String>, value: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            value: value.into(),
            domain: None,
            path: None,
            max_age: None,
            is_secure: false,
            is_http_only: false,
            is_partitioned: false,
            same_site: None,
            attributes: Vec::new(),
        }
    }

    /// Sets the domain for whose hosts it is meant, without a leading dot.
    pub fn domain(mut self, domain: impl Into<String>) -> Self {
        self.domain = Some(domain.into());
        self
    }

    /// Sets the path below which it is sent back.
    pub fn path(mut self, path: impl Into<String>) -> Self {
        self.path = Some(path.into());
        self
    }

    /// Sets for how long the client keeps it, in whole seconds; zero deletes it.
    pub fn max_age(mut self, max_age: Duration) -> Self {
        self.max_age = Some(max_age);
        self
    }

    /// Has it sent back over secure connections only.
    pub fn secure(mut self) -> Self {
        self.is_secure = true;
        self
    }

    /// Hides it from scripts.
    pub fn http_only(mut self) -> Self {
        self.is_http_only = true;
        self
    }

    /// Keeps it apart for each top-level site (CHIPS).
    pub fn partitioned(mut self) -> Self {
        self.is_partitioned = true;
        self
    }

    /// Sets on which cross-site requests it is sent back, instead of the context's choice.
    pub fn same_site(mut self, same_site: SameSite) -> Self {
        self.same_site = Some(same_site);
        self
    }

    /// Sets any attribute by its name in any case, as from a configuration. An attribute with a
    /// method of its own has the same effect here; flags are set by `true` or an empty value. Of
    /// another attribute the last value counts.
    ///
    /// # Errors
    /// Number format for a `Max-Age` that is no number of seconds, illegal argument for an unknown
    /// `SameSite`; a negative `Max-Age` means the client's session.
    pub fn attribute(mut self, name: &str, value: &str) -> Result<Self> {
        let is_on = value.is_empty() || value.eq_ignore_ascii_case("true");
        match name.to_ascii_lowercase().as_str() {
            "domain" => self.domain = Some(value.to_owned()),
            "path" => self.path = Some(value.to_owned()),
            "max-age" => {
                let seconds: i64 = value.parse().map_err(|_| {
                    let text = format!("max-age of a cookie is no number: {value:?}");
                    Error::new(ErrorKind::NumberFormat, text)
                })?;
                self.max_age = u64::try_from(seconds).ok().map(Duration::from_secs);
            }
            "secure" => self.is_secure = is_on,
            "httponly" => self.is_http_only = is_on,
            "partitioned" => self.is_partitioned = is_on,
            "samesite" => self.same_site = Some(value.parse()?),
            _other => {
                self.attributes.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
                self.attributes.push((name.to_owned(), value.to_owned()));
            }
        }
        Ok(self)
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The value; quotes around it belong to it.
    pub fn value(&self) -> &str {
        &self.value
    }

    /// Checks that a client reads every part as it is meant.
    ///
    /// # Errors
    /// Illegal argument, naming the part, for a name that is no token (RFC 9110 section 5.6.2), a
    /// value with other than cookie octets or non-ASCII text, perhaps in quotes (RFC 6265 section
    /// 4.1.1), a domain that is no host name, and controls, `;` or non-ASCII in a path or another
    /// attribute.
    pub fn validate(&self) -> Result<()> {
        if !is_token(self.name.as_bytes()) {
            return Err(refused("name of a cookie", &self.name));
        }
        if !is_value(self.value.as_bytes()) {
            return Err(refused(&format!("value of cookie {:?}", self.name), &self.value));
        }
        if let Some(domain) = self.domain.as_deref().filter(|domain| !is_domain(domain)) {
            return Err(refused("domain of a cookie", domain));
        }
        if let Some(path) = self.path.as_deref().filter(|path| !is_attribute_text(path)) {
            return Err(refused("path of a cookie", path));
        }
        for (name, value) in &self.attributes {
            if !is_token(name.as_bytes()) || !is_attribute_text(value) {
                return Err(refused("attribute of a cookie", &format!("{name}={value}")));
            }
        }
        Ok(())
    }

    /// The value of one `Set-Cookie` field at the time `now`: name and value, `Max-Age` with
    /// `Expires`, `Domain`, `Path`, `Secure`, `HttpOnly`, `SameSite`, `Partitioned`, others.
    ///
    /// # Errors
    /// As [`validate`](Self::validate).
    pub fn set_cookie_value(&self, policy: &CookiePolicy, now: SystemTime) -> Result<String> {
        self.validate()?;
        let mut out = String::with_capacity(self.name.len() + self.value.len() + 64);
        out.extend([self.name.as_str(), "=", self.value.as_str()]);
        if let Some(max_age) = self.max_age {
            let expires = httpdate::fmt_http_date(expiry(max_age, now));
            out.extend(["; Max-Age=", &max_age.as_secs().to_string(), "; Expires=", &expires]);
        }
        for (name, value) in [("; Domain=", &self.domain), ("; Path=", &self.path)] {
            // An empty attribute is read as a missing one, so it is left out.
            if let Some(value) = value.as_deref().filter(|value| !value.is_empty()) {
                out.extend([name, value]);
            }
        }
        if self.is_secure {
            out.push_str("; Secure");
        }
        if self.is_http_only {
            out.push_str("; HttpOnly");
        }
        if let Some(same_site) = self.same_site.or(policy.same_site) {
            out.extend(["; SameSite=", same_site.name()]);
        }
        if self.is_partitioned || policy.partitioned {
            out.push_str("; Partitioned");
        }
        for (name, value) in &self.attributes {
            out.extend(["; ", name]);
            if !value.is_empty() {
                out.extend(["=", value]);
            }
        }
        Ok(out)
    }
}

/// When a cookie expires: for a deleted one a date that is past for every clock, and never a date
/// that HTTP cannot write.
fn expiry(max_age: Duration, now: SystemTime) -> SystemTime {
    let first = UNIX_EPOCH + Duration::from_secs(10);
    let last = UNIX_EPOCH + Duration::from_secs(253_402_300_799);
    if max_age.is_zero() {
        return first;
    }
    now.checked_add(max_age).unwrap_or(last).clamp(first, last)
}

fn refused(what: &str, value: &str) -> Error {
    Error::illegal_argument(format!("invalid {what}: {value:?}"))
}

/// A cookie that the client sent, borrowed from its field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestCookie<'a> {
    /// The name, a token.
    pub name: &'a str,
    /// The value; quotes around it belong to it.
    pub value: &'a str,
}

/// The valid cookies of one `Cookie` field in wire order. An invalid pair is passed over and the
/// others are kept. Values may hold `=`, `/`, quotes around them and UTF-8. The caller goes through
/// all fields in order and counts against its limit.
///
/// ```
/// use ringcat::cookie::{CookieWithoutEquals, RequestCookies};
///
/// let cookies = RequestCookies::new(b"a=1; b(x)=2; c=x=y", CookieWithoutEquals::Ignore);
/// assert!(cookies.map(|cookie| cookie.value).eq(["1", "x=y"]));
/// ```
#[derive(Clone, Debug)]
pub struct RequestCookies<'a> {
    rest: &'a [u8],
    without_equals: CookieWithoutEquals,
}

impl<'a> RequestCookies<'a> {
    /// Reads the value of a `Cookie` field.
    pub fn new(field_value: &'a [u8], without_equals: CookieWithoutEquals) -> Self {
        Self { rest: field_value, without_equals }
    }

    fn parse(&self, pair: &'a [u8]) -> Option<RequestCookie<'a>> {
        let (name, value) = match memchr::memchr(b'=', pair) {
            Some(index) => (&pair[..index], trim(&pair[index + 1..])),
            None if self.without_equals == CookieWithoutEquals::Name => (pair, &b""[..]),
            None => return None,
        };
        let name = trim(name);
        if !is_token(name) || !is_value(value) {
            return None;
        }
        let text = |bytes| std::str::from_utf8(bytes).ok();
        Some(RequestCookie { name: text(name)?, value: text(value)? })
    }
}

impl<'a> Iterator for RequestCookies<'a> {
    type Item = RequestCookie<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.rest.is_empty() {
            let len = memchr::memchr(b';', self.rest).unwrap_or(self.rest.len());
            let pair = &self.rest[..len];
            self.rest = self.rest.get(len + 1..).unwrap_or_default();
            if let Some(cookie) = self.parse(trim(pair)) {
                return Some(cookie);
            }
        }
        None
    }
}

/// Takes off the blanks of RFC 9110's optional white space.
fn trim(mut bytes: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = bytes {
        bytes = rest;
    }
    bytes
}

fn is_token(name: &[u8]) -> bool {
    let is_token_byte = |b: &u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b);
    !name.is_empty() && name.iter().all(is_token_byte)
}

/// Whether `value` is made of cookie octets or non-ASCII bytes, perhaps in quotes.
fn is_value(value: &[u8]) -> bool {
    let inner = match value {
        [b'"', inner @ .., b'"'] => inner,
        other => other,
    };
    let is_octet = |b: &u8| *b > b' ' && *b != 0x7f && !b"\",;\\".contains(b);
    inner.iter().all(is_octet)
}

fn is_domain(domain: &str) -> bool {
    let is_label = |label: &str| {
        let is_label_byte = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
        let is_at_edge = label.starts_with('-') || label.ends_with('-');
        !label.is_empty() && !is_at_edge && label.bytes().all(is_label_byte)
    };
    domain.is_empty() || domain.split('.').all(is_label)
}

fn is_attribute_text(text: &str) -> bool {
    text.bytes().all(|byte| (b' '..=b'~').contains(&byte) && byte != b';')
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;

    fn check_request(field: &[u8], expected: &[(&str, &str)]) {
        let cookies = RequestCookies::new(field, CookieWithoutEquals::Ignore);
        let found: Vec<_> = cookies.map(|cookie| (cookie.name, cookie.value)).collect();
        assert_eq!(found, expected, "{}", field.escape_ascii());
    }

    #[test]
    fn request_cookies_keep_their_order_and_survive_invalid_neighbours() {
        check_request(b"", &[]);
        check_request(b"a=1; b=2", &[("a", "1"), ("b", "2")]);
        check_request(b"a=1;b=2;a=3", &[("a", "1"), ("b", "2"), ("a", "3")]);
        check_request(b"a=x=y/z", &[("a", "x=y/z")]);
        check_request(b"a=\"q\"; b=2", &[("a", "\"q\""), ("b", "2")]);
        check_request(b"a=\"\";b=", &[("a", "\"\""), ("b", "")]);
        check_request(b"a=1; b(x)=2; c=3", &[("a", "1"), ("c", "3")]);
        check_request(b" ; a = 1\t;;", &[("a", "1")]);
        check_request(b"a=\xc3\xa9; b=\xc3; c=3", &[("a", "\u{e9}"), ("c", "3")]);
        check_request(b"a=\"x; b=x y; c=x,y; d=\\; =e; f=1", &[("f", "1")]);
        check_request(b"a=\x7f; b=\x01; c=\"", &[]);
        check_request(b"a; b=2", &[("b", "2")]);
    }

    #[test]
    fn a_name_alone_is_a_cookie_where_the_policy_says_so() {
        let mut cookies = RequestCookies::new(b"a; =; b=2", CookieWithoutEquals::Name);
        assert_eq!(cookies.next(), Some(RequestCookie { name: "a", value: "" }));
        assert_eq!(cookies.next(), Some(RequestCookie { name: "b", value: "2" }));
        assert_eq!(cookies.next(), None);
    }

    fn written(cookie: &Cookie) -> String {
        let now = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        cookie.set_cookie_value(&CookiePolicy::default(), now).unwrap()
    }

    #[test]
    fn attributes_stand_in_the_order_clients_know() {
        let cookie = Cookie::new("a", "1")
            .attribute("Priority", "High")
            .and_then(|cookie| cookie.attribute("samesite", "lax"))
            .unwrap()
            .partitioned()
            .http_only()
            .secure()
            .path("/p")
            .domain("example.org")
            .max_age(Duration::from_secs(60));
        let expected = "a=1; Max-Age=60; Expires=Tue, 14 Nov 2023 22:14:20 GMT; \
                        Domain=example.org; Path=/p; Secure; HttpOnly; SameSite=Lax; Partitioned; \
                        Priority=High";
        assert_eq!(written(&cookie), expected);
        assert_eq!(written(&Cookie::new("a", "1")), "a=1");
    }

    #[test]
    fn the_policy_fills_in_what_the_cookie_leaves_open() {
        let policy = CookiePolicy {
            same_site: Some(SameSite::Strict),
            partitioned: true,
            ..CookiePolicy::default()
        };
        let value = |cookie: Cookie| cookie.set_cookie_value(&policy, UNIX_EPOCH).unwrap();
        assert_eq!(value(Cookie::new("a", "1")), "a=1; SameSite=Strict; Partitioned");
        let own = Cookie::new("a", "1").same_site(SameSite::None);
        assert_eq!(value(own), "a=1; SameSite=None; Partitioned");
    }

    #[test]
    fn a_deleted_cookie_expires_in_the_past_and_a_long_one_at_the_last_date() {
        let deleted = written(&Cookie::new("a", "1").max_age(Duration::ZERO));
        assert_eq!(deleted, "a=1; Max-Age=0; Expires=Thu, 01 Jan 1970 00:00:10 GMT");
        let long = written(&Cookie::new("a", "1").max_age(Duration::MAX));
        assert!(long.ends_with("Expires=Fri, 31 Dec 9999 23:59:59 GMT"), "{long}");
    }

    #[test]
    fn what_a_client_would_misread_is_an_illegal_argument() {
        let check = |cookie: Cookie| {
            let error = cookie.set_cookie_value(&CookiePolicy::default(), UNIX_EPOCH);
            assert_eq!(error.unwrap_err().kind(), ErrorKind::IllegalArgument, "{cookie:?}");
        };
        for name in ["", "a b", "a=b", "a;b", "\u{e9}", "a\r"] {
            check(Cookie::new(name, "1"));
        }
        for value in ["x;y", "x y", "x,y", "\"", "a\"b", "\\", "\r\nSet-Cookie: b", "\x7f"] {
            check(Cookie::new("a", value));
        }
        for domain in [".a.org", "a..org", "a.org.", "-a.org", "a-.org", "a b", "a;b"] {
            check(Cookie::new("a", "1").domain(domain));
        }
        for path in ["/a;b", "/a\n", "/\u{e9}"] {
            check(Cookie::new("a", "1").path(path));
        }
        check(Cookie::new("a", "1").attribute("x y", "").unwrap());
        check(Cookie::new("a", "1").attribute("x", ";").unwrap());
        assert!(Cookie::new("a", "\u{e9}\"").validate().is_err());
        assert!(Cookie::new("a", "\"\u{e9}\"").domain("a-b.org").path("/").validate().is_ok());
    }

    #[test]
    fn attributes_by_name_act_like_their_methods() {
        let cookie =
            [("Max-Age", "-1"), ("SECURE", "true"), ("HttpOnly", ""), ("x", "1"), ("X", "2")]
                .iter()
                .try_fold(Cookie::new("a", "1"), |cookie, (name, value)| {
                    cookie.attribute(name, value)
                })
                .unwrap();
        assert_eq!(written(&cookie), "a=1; Secure; HttpOnly; X=2");
        let error = cookie.clone().attribute("max-age", "soon").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NumberFormat);
        let error = cookie.attribute("SameSite", "sometimes").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::IllegalArgument);
    }
}
