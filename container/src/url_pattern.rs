//! The patterns of servlet and filter mappings: which spellings there are, which can never match
//! and are refused, and what a filter's pattern matches. Owns its text, knows no servlet. Stands
//! for `StandardContext.validateURLPattern` and `FilterUtil.matchFiltersURL`.

use std::fmt;

/// A checked pattern (Servlet 6.1, section 12.2). Comparisons are case-sensitive.
///
/// ```
/// use ringcat::url_pattern::UrlPattern;
///
/// assert_eq!(UrlPattern::parse("/api/*"), Ok(UrlPattern::Prefix("/api".into())));
/// assert!(UrlPattern::parse("/api/*.json").is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum UrlPattern {
    /// `""`: the root of the context alone.
    ContextRoot,
    /// `/`: whatever nothing else matches; for a filter the path `/`.
    Default,
    /// `/a/b`: that path alone.
    Exact(Box<str>),
    /// `/a/*`: that path and what lies below, without the final `/*`; empty for `/*`.
    Prefix(Box<str>),
    /// `*.b`: paths whose last segment has that extension, without the `*.`.
    Extension(Box<str>),
}

impl UrlPattern {
    /// Checks and takes apart a pattern.
    ///
    /// # Errors
    /// The reason, in lower case, for any other spelling and for patterns that no normalised path
    /// can match.
    pub fn parse(pattern: &str) -> Result<Self, &'static str> {
        if let Some(extension) = pattern.strip_prefix("*.") {
            return match extension {
                "" => Err("an extension pattern needs an extension"),
                _ if extension.contains(['/', '*']) => Err("an extension holds no '/' or '*'"),
                _ if extension.contains('.') => Err("an extension starts at the last dot"),
                _ => Ok(Self::Extension(extension.into())),
            };
        }
        match pattern {
            "" => return Ok(Self::ContextRoot),
            "/" => return Ok(Self::Default),
            _ if !pattern.starts_with('/') => return Err("a pattern starts with '/' or '*.'"),
            _ => {}
        }
        let prefix = pattern.strip_suffix("/*");
        let path = prefix.unwrap_or(pattern);
        if path.contains('*') {
            return Err("a '*' stands only in a final '/*' or a leading '*.'");
        }
        if is_never_normal(path) || (prefix.is_some() && path.ends_with('/')) {
            return Err("empty and dot segments never match");
        }
        Ok(match prefix {
            Some(prefix) => Self::Prefix(prefix.into()),
            None => Self::Exact(path.into()),
        })
    }

    /// Whether a filter with this pattern applies to `path`, decoded and within its context.
    pub fn applies_to(&self, path: &str) -> bool {
        match self {
            Self::ContextRoot => path.is_empty(),
            Self::Default => path == "/",
            Self::Exact(exact) => path == &**exact,
            Self::Prefix(prefix) => path
                .strip_prefix(&**prefix)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/')),
            Self::Extension(extension) => extension_of(path) == Some(extension),
        }
    }
}

impl fmt::Display for UrlPattern {
    /// The spelling that [`parse`](UrlPattern::parse) reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ContextRoot => Ok(()),
            Self::Default => f.write_str("/"),
            Self::Exact(path) => f.write_str(path),
            Self::Prefix(prefix) => write!(f, "{prefix}/*"),
            Self::Extension(extension) => write!(f, "*.{extension}"),
        }
    }
}

/// What follows the last dot of the last segment of `path`; `None` without a dot there.
pub(crate) fn extension_of(path: &str) -> Option<&str> {
    let dot = path.bytes().rposition(|byte| matches!(byte, b'.' | b'/'))?;
    path[dot..].strip_prefix('.')
}

/// Whether a path, which starts with a slash unless it is empty, has empty or dot segments inside.
pub(crate) fn is_never_normal(path: &str) -> bool {
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        if matches!(segment, "." | "..") || (segment.is_empty() && !is_last) {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_five_spellings_are_told_apart_and_written_back() {
        let check = |text: &str, expected: UrlPattern| {
            assert_eq!(UrlPattern::parse(text), Ok(expected.clone()));
            assert_eq!(expected.to_string(), text);
        };
        check("", UrlPattern::ContextRoot);
        check("/", UrlPattern::Default);
        check("/a", UrlPattern::Exact("/a".into()));
        check("/a/", UrlPattern::Exact("/a/".into()));
        check("/*", UrlPattern::Prefix("".into()));
        check("/a/b/*", UrlPattern::Prefix("/a/b".into()));
        check("*.do", UrlPattern::Extension("do".into()));
    }

    #[test]
    fn other_spellings_are_refused() {
        for text in [
            "abc", "*", "*.", "a/*", "*.a/b", "*.*", "/a/*.do", "/a*", "/*/b", "*.tar.gz", "//",
            "/a//*", "//*", "/a//b", "/./a", "/a/..", "/../*",
        ] {
            assert!(UrlPattern::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn filter_patterns_apply_by_whole_segments_and_extensions() {
        let check = |pattern: &str, path: &str, expected: bool| {
            let pattern = UrlPattern::parse(pattern).expect("a good pattern");
            assert_eq!(pattern.applies_to(path), expected, "{pattern} {path}");
        };
        check("/*", "", true);
        check("/*", "/a/b", true);
        check("/a/*", "/a", true);
        check("/a/*", "/a/b", true);
        check("/a/*", "/ab", false);
        check("/a", "/a", true);
        check("/a", "/A", false);
        check("*.do", "/x/y.do", true);
        check("*.do", "/x.do/y", false);
        check("*.do", "/x.DO", false);
        check("/", "/", true);
        check("/", "/a", false);
        check("", "", true);
        check("", "/", false);
    }
}
