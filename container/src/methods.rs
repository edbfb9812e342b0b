//! Request methods: the name that selects a handler, and the set of methods that a servlet
//! declares, from which `Allow`, 405 and 501 follow. Stands for the method table of `HttpServlet`.

use std::fmt;
use std::ops::{BitOr, BitOrAssign};

/// A request method by its exact, case-sensitive name (RFC 9110 section 9.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// `GET`
    Get,
    /// `HEAD`
    Head,
    /// `POST`
    Post,
    /// `PUT`
    Put,
    /// `DELETE`
    Delete,
    /// `OPTIONS`
    Options,
    /// `TRACE`
    Trace,
    /// `PATCH`
    Patch,
    /// Any other name; a servlet answers it with 501.
    Other,
}

impl Method {
    /// The method of that name, exactly as it stands in the request line.
    pub const fn parse(name: &[u8]) -> Self {
        match name {
            b"GET" => Self::Get,
            b"HEAD" => Self::Head,
            b"POST" => Self::Post,
            b"PUT" => Self::Put,
            b"DELETE" => Self::Delete,
            b"OPTIONS" => Self::Options,
            b"TRACE" => Self::Trace,
            b"PATCH" => Self::Patch,
            _ => Self::Other,
        }
    }

    /// The name; `None` for [`Method::Other`], whose name stands only in the request.
    pub const fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::Get => "GET",
            Self::Head => "HEAD",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Delete => "DELETE",
            Self::Options => "OPTIONS",
            Self::Trace => "TRACE",
            Self::Patch => "PATCH",
            Self::Other => return None,
        })
    }
}

/// A set of methods, as a servlet declares it. One byte.
///
/// ```
/// use ringcat::methods::{Method, Methods};
///
/// let methods = Methods::GET | Methods::POST;
/// assert!(methods.accepts(Method::Head));
/// assert!(!methods.accepts(Method::Put));
/// assert_eq!(methods.allow_header(), "GET, HEAD, POST, OPTIONS");
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Methods(u8);

impl Methods {
    /// No method at all.
    pub const NONE: Self = Self(0);
    /// `GET`, and with it `HEAD`, which runs the same handler without its body.
    pub const GET: Self = Self(1);
    /// `HEAD` with a handler of its own.
    pub const HEAD: Self = Self(1 << 1);
    /// `POST`
    pub const POST: Self = Self(1 << 2);
    /// `PUT`
    pub const PUT: Self = Self(1 << 3);
    /// `DELETE`
    pub const DELETE: Self = Self(1 << 4);
    /// `OPTIONS` with a handler of its own; without one it is answered from the set.
    pub const OPTIONS: Self = Self(1 << 5);
    /// `TRACE`; has an effect only on a connector that allows it.
    pub const TRACE: Self = Self(1 << 6);
    /// `PATCH`
    pub const PATCH: Self = Self(1 << 7);
    /// Every method but `TRACE`.
    pub const ALL: Self = Self(!Self::TRACE.0);

    /// Whether every method of `other` was declared; nothing is implied here.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The methods of both sets; `|` for use in constants.
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The methods of `self` without those of `other`.
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The declared methods and those that come with them: `HEAD` with `GET`, `OPTIONS` always.
    pub const fn with_implied(self) -> Self {
        let head = if self.contains(Self::GET) { Self::HEAD } else { Self::NONE };
        self.union(head).union(Self::OPTIONS)
    }

    /// Whether a request with `method` reaches a handler; if not, the answer is 405, and 501 for
    /// [`Method::Other`].
    pub const fn accepts(self, method: Method) -> bool {
        match Self::only(method) {
            Self::NONE => false,
            one => self.with_implied().contains(one),
        }
    }

    /// The value of `Allow`: implied methods included, in the order GET, HEAD, PATCH, POST, PUT,
    /// DELETE, OPTIONS, TRACE. The caller takes `TRACE` out where the connector refuses it.
    pub fn allow_header(self) -> String {
        let set = self.with_implied();
        let mut value = String::with_capacity(56);
        for (one, name) in Self::ALLOW_ORDER {
            if set.contains(one) {
                if !value.is_empty() {
                    value.push_str(", ");
                }
                value.push_str(name);
            }
        }
        value
    }

    /// The set with that method alone; empty for [`Method::Other`].
    pub const fn only(method: Method) -> Self {
        match method {
            Method::Get => Self::GET,
            Method::Head => Self::HEAD,
            Method::Post => Self::POST,
            Method::Put => Self::PUT,
            Method::Delete => Self::DELETE,
            Method::Options => Self::OPTIONS,
            Method::Trace => Self::TRACE,
            Method::Patch => Self::PATCH,
            Method::Other => Self::NONE,
        }
    }

    const ALLOW_ORDER: [(Self, &'static str); 8] = [
        (Self::GET, "GET"),
        (Self::HEAD, "HEAD"),
        (Self::PATCH, "PATCH"),
        (Self::POST, "POST"),
        (Self::PUT, "PUT"),
        (Self::DELETE, "DELETE"),
        (Self::OPTIONS, "OPTIONS"),
        (Self::TRACE, "TRACE"),
    ];
}

impl BitOr for Methods {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.union(other)
    }
}

impl BitOrAssign for Methods {
    fn bitor_assign(&mut self, other: Self) {
        *self = self.union(other);
    }
}

impl fmt::Debug for Methods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names = f.debug_set();
        for (one, name) in Self::ALLOW_ORDER {
            if self.contains(one) {
                names.entry(&format_args!("{name}"));
            }
        }
        names.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_exact_and_case_sensitive() {
        for (one, name) in Methods::ALLOW_ORDER {
            let method = Method::parse(name.as_bytes());
            assert_eq!((method.name(), Methods::only(method)), (Some(name), one));
            assert_eq!(Method::parse(name.to_lowercase().as_bytes()), Method::Other);
        }
        assert_eq!(Method::parse(b""), Method::Other);
        assert_eq!(Method::Other.name(), None);
    }

    #[test]
    fn allow_has_the_order_of_http_servlet_and_its_implied_methods() {
        let check = |methods: Methods, expected| assert_eq!(methods.allow_header(), expected);
        check(Methods::NONE, "OPTIONS");
        check(Methods::GET, "GET, HEAD, OPTIONS");
        check(Methods::POST | Methods::HEAD, "HEAD, POST, OPTIONS");
        check(Methods::ALL, "GET, HEAD, PATCH, POST, PUT, DELETE, OPTIONS");
        check(Methods::ALL | Methods::TRACE, "GET, HEAD, PATCH, POST, PUT, DELETE, OPTIONS, TRACE");
    }

    #[test]
    fn accepts_follows_allow() {
        assert!(Methods::GET.accepts(Method::Head) && !Methods::GET.contains(Methods::HEAD));
        assert!(Methods::NONE.accepts(Method::Options) && !Methods::NONE.accepts(Method::Get));
        assert!(!Methods::ALL.accepts(Method::Other) && !Methods::ALL.accepts(Method::Trace));
        assert!(!Methods::ALL.without(Methods::PUT).accepts(Method::Put));
        assert_eq!(format!("{:?}", Methods::GET | Methods::PUT), "{GET, PUT}");
    }
}
