//! From the bytes of a request target to decoded, normalised text: paths, path parameters, query
//! strings and forms, and back for dispatches. Each byte is decoded once, whatever is ambiguous is
//! refused, and nothing is kept: every function works on the bytes it is given. Stands for
//! `CoyoteAdapter.parsePathParameters` and `normalize`, `UDecoder`, `URLEncoder`, `Parameters`.

use std::borrow::Cow;
use std::fmt;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode, utf8_percent_encode};

/// How a connector reads paths. The default is the strict reading of Servlet 6.1, section 3.5.2.
#[derive(Clone, Debug)]
pub struct UriPolicy {
    /// What `%2F` means. Default: [`EncodedSeparator::Reject`].
    pub encoded_solidus: EncodedSeparator,
    /// What `%5C` means. Default: [`EncodedSeparator::Decode`], after which
    /// [`allow_backslash`](Self::allow_backslash) decides.
    pub encoded_backslash: EncodedSeparator,
    /// Whether a backslash is a solidus. If not, which is the default, it is refused.
    pub allow_backslash: bool,
    /// Whether to refuse what front-ends and back-ends read differently: encoded dot segments, dot
    /// segments with parameters, empty segments with parameters, encoded control characters.
    /// Default: true.
    pub reject_suspicious: bool,
    /// Bytes accepted raw in a path beyond those of RFC 3986. Default: none.
    pub relaxed_path: ByteSet,
    /// Bytes accepted raw in a query beyond those of RFC 3986. Default: none.
    pub relaxed_query: ByteSet,
    /// How escaped bytes become characters. Default: UTF-8.
    pub encoding: UriEncoding,
}

impl UriPolicy {
    /// The reading of paths that the application gives to a dispatcher: any character may stand
    /// raw, odd spellings are resolved rather than refused, an encoded solidus is a solidus.
    pub const DISPATCH: Self = Self {
        encoded_solidus: EncodedSeparator::Decode,
        encoded_backslash: EncodedSeparator::Decode,
        allow_backslash: false,
        reject_suspicious: false,
        relaxed_path: ByteSet::ALL,
        relaxed_query: ByteSet::ALL,
        encoding: UriEncoding::Utf8,
    };
}

impl Default for UriPolicy {
    fn default() -> Self {
        Self {
            encoded_solidus: EncodedSeparator::Reject,
            encoded_backslash: EncodedSeparator::Decode,
            allow_backslash: false,
            reject_suspicious: true,
            relaxed_path: ByteSet::EMPTY,
            relaxed_query: ByteSet::EMPTY,
            encoding: UriEncoding::Utf8,
        }
    }
}

/// What to make of an encoded path separator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncodedSeparator {
    /// Refuse the request with 400.
    Reject,
    /// Decode it before the path is normalised, so that it separates segments.
    Decode,
    /// Leave it encoded in the decoded path; `%25` then stays encoded too, since the two could not
    /// be told apart otherwise.
    PassThrough,
}

/// The character encoding of escaped bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UriEncoding {
    /// UTF-8; invalid and overlong sequences are refused.
    Utf8,
    /// ISO-8859-1: every byte is a character.
    Iso8859_1,
}

/// A set of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteSet([u64; 4]);

impl ByteSet {
    /// No byte.
    pub const EMPTY: Self = Self([0; 4]);
    /// Every byte.
    pub const ALL: Self = Self([u64::MAX; 4]);

    /// The set of the bytes of `bytes`.
    pub const fn of(bytes: &[u8]) -> Self {
        let mut set = Self::EMPTY;
        let mut index = 0;
        while index < bytes.len() {
            set.0[(bytes[index] >> 6) as usize] |= 1 << (bytes[index] & 63);
            index += 1;
        }
        set
    }

    /// The set for `relaxed_path` or `relaxed_query` from a configured list of characters.
    ///
    /// # Errors
    /// The first character that may not be relaxed; those that may are `"<>[\]^{|}` and the
    /// backquote.
    pub fn relaxed(characters: &str) -> Result<Self, char> {
        const RELAXABLE: ByteSet = ByteSet::of(b"\"<>[\\]^`{|}");
        let allowed = |c: &char| u8::try_from(*c).is_ok_and(|byte| RELAXABLE.contains(byte));
        match characters.chars().find(|c| !allowed(c)) {
            Some(refused) => Err(refused),
            None => Ok(Self::of(characters.as_bytes())),
        }
    }

    /// Whether `byte` is in the set.
    pub const fn contains(&self, byte: u8) -> bool {
        self.0[(byte >> 6) as usize] & (1 << (byte & 63)) != 0
    }
}

/// Why a request target was refused: always the peer's mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UriError {
    /// The status to answer: 400.
    pub status: u16,
    /// What was wrong, lower case, without the peer's bytes.
    pub reason: &'static str,
}

impl UriError {
    const fn new(reason: &'static str) -> Self {
        Self { status: 400, reason }
    }
}

impl fmt::Display for UriError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason)
    }
}

impl std::error::Error for UriError {}

/// The bytes that may stand raw in a path: RFC 3986's characters without those that end or
/// structure it. Square brackets are in, as many clients send them unescaped.
const PATH_BYTES: ByteSet = ByteSet::of(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~!$&'()*+,=:@/[]",
);

/// The bytes that may stand raw in a query: those of a path and `;`, `?`, `%`.
const QUERY_BYTES: ByteSet = ByteSet::of(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~!$&'()*+,=:@/[];?%",
);

/// Decodes and normalises the path of a request target, without its query, into `out`, which is
/// cleared first and holds valid UTF-8 that starts with `/` afterwards.
///
/// In this order per segment: parameters (`;…`) are cut off, escapes decoded once, empty segments
/// collapsed, dot segments resolved (RFC 3986 section 5.2.4, but a dot segment at the end leaves no
/// slash). A path of plain segments is one scan and one copy. `out` grows to the length of `raw` at
/// most (twice that under ISO-8859-1), so a reused one is not reallocated.
///
/// # Errors
/// 400 for what `policy` refuses, a missing leading slash, a byte that must be escaped, a broken
/// escape, NUL, invalid UTF-8, and `..` above the root. `out` then holds nothing of use.
///
/// ```
/// use ringcat::uri::{UriPolicy, decode_path};
///
/// let mut path = Vec::new();
/// decode_path(b"/app;v=1//a%20b/x/../y", &UriPolicy::default(), &mut path)?;
/// assert_eq!(path, b"/app/a b/y");
/// # Ok::<(), ringcat::uri::UriError>(())
/// ```
pub fn decode_path(raw: &[u8], policy: &UriPolicy, out: &mut Vec<u8>) -> Result<(), UriError> {
    out.clear();
    if raw.first() != Some(&b'/') {
        return Err(UriError::new("the path does not start with a slash"));
    }
    if is_plain(raw) {
        out.extend_from_slice(raw);
        return Ok(());
    }
    let mut decoder = PathDecoder::new(policy, out);
    let mut rest = &raw[1..];
    while let Some((&byte, after)) = rest.split_first() {
        rest = match byte {
            b'/' => {
                decoder.end_segment(Place::Inner)?;
                after
            }
            b';' => {
                decoder.has_parameters = true;
                skip_parameters(after, policy)?
            }
            b'%' => {
                let (escape, after) = split_escape(after).ok_or(BROKEN_ESCAPE)?;
                decoder.push_escaped(escape, &rest[..3])?;
                after
            }
            raw_byte => {
                decoder.push_raw(raw_byte)?;
                after
            }
        };
    }
    decoder.end_segment(Place::Last)
}

const BROKEN_ESCAPE: UriError = UriError::new("a broken percent escape in the path");

/// Whether decoding and normalising would change nothing.
fn is_plain(raw: &[u8]) -> bool {
    let mut previous = 0;
    for &byte in raw {
        let is_odd_start = previous == b'/' && matches!(byte, b'/' | b'.');
        if is_odd_start || !PATH_BYTES.contains(byte) {
            return false;
        }
        previous = byte;
    }
    true
}

/// Checks the parameters of a segment and returns what follows them.
fn skip_parameters<'a>(mut rest: &'a [u8], policy: &UriPolicy) -> Result<&'a [u8], UriError> {
    while let Some((&byte, after)) = rest.split_first() {
        rest = match byte {
            b'/' => break,
            b'%' => match split_escape(after).ok_or(BROKEN_ESCAPE)? {
                (0, _) => return Err(UriError::new("a NUL in a path parameter")),
                (_, after) => after,
            },
            b';' => after,
            raw_byte => {
                check_raw(raw_byte, policy)?;
                after
            }
        };
    }
    Ok(rest)
}

fn check_raw(byte: u8, policy: &UriPolicy) -> Result<(), UriError> {
    if PATH_BYTES.contains(byte) || policy.relaxed_path.contains(byte) {
        Ok(())
    } else {
        Err(UriError::new("a byte in the path that must be escaped"))
    }
}

/// The byte of the two hexadecimal digits at the front, and what follows them.
fn split_escape(digits: &[u8]) -> Option<(u8, &[u8])> {
    let (&[high, low], after) = digits.split_first_chunk()?;
    let high = char::from(high).to_digit(16)?;
    let low = char::from(low).to_digit(16)?;
    let byte = u8::try_from(high * 16 + low).expect("two hexadecimal digits are a byte");
    Some((byte, after))
}

/// Where a segment stands in its path.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Inner,
    Last,
}

/// The slow path of [`decode_path`]: `out` always ends with the current segment, in front of which
/// stand a slash and only normalised segments.
struct PathDecoder<'a> {
    policy: &'a UriPolicy,
    out: &'a mut Vec<u8>,
    /// Where the current segment starts in `out`.
    start: usize,
    has_parameters: bool,
    has_encoded_dot: bool,
    has_high_byte: bool,
}

impl<'a> PathDecoder<'a> {
    fn new(policy: &'a UriPolicy, out: &'a mut Vec<u8>) -> Self {
        out.push(b'/');
        let start = out.len();
        let (has_parameters, has_encoded_dot, has_high_byte) = (false, false, false);
        Self { policy, out, start, has_parameters, has_encoded_dot, has_high_byte }
    }

    fn push_raw(&mut self, byte: u8) -> Result<(), UriError> {
        if byte == b'\\' {
            return self.push_backslash();
        }
        check_raw(byte, self.policy)?;
        self.push(byte)
    }

    /// Adds the byte that `escape`, three bytes long, stands for.
    fn push_escaped(&mut self, byte: u8, escape: &[u8]) -> Result<(), UriError> {
        let kept = EncodedSeparator::PassThrough;
        match (byte, self.policy.encoded_solidus, self.policy.encoded_backslash) {
            (b'/', EncodedSeparator::Reject, _) => {
                return Err(UriError::new("an encoded solidus in the path"));
            }
            (b'/', EncodedSeparator::Decode, _) => return self.end_segment(Place::Inner),
            (b'\\', _, EncodedSeparator::Reject) => {
                return Err(UriError::new("an encoded backslash in the path"));
            }
            (b'\\', _, EncodedSeparator::Decode) => return self.push_backslash(),
            (b'%', solidus, backslash) if solidus != kept && backslash != kept => {
                return self.push(byte);
            }
            (b'/' | b'\\' | b'%', _, _) => {
                self.out.extend_from_slice(escape);
                return Ok(());
            }
            (b'.', _, _) => self.has_encoded_dot = true,
            (_, _, _) => {}
        }
        self.push(byte)
    }

    fn push_backslash(&mut self) -> Result<(), UriError> {
        if self.policy.allow_backslash {
            self.end_segment(Place::Inner)
        } else {
            Err(UriError::new("a backslash in the path"))
        }
    }

    fn push(&mut self, byte: u8) -> Result<(), UriError> {
        if byte == 0 || (byte.is_ascii_control() && self.policy.reject_suspicious) {
            return Err(UriError::new("a control character in the path"));
        }
        self.has_high_byte |= !byte.is_ascii();
        self.out.push(byte);
        Ok(())
    }

    /// Judges the segment that ends here and normalises it into what stands before it.
    fn end_segment(&mut self, place: Place) -> Result<(), UriError> {
        let is_disguised = self.has_parameters || self.has_encoded_dot;
        let is_refused = is_disguised && self.policy.reject_suspicious;
        match &self.out[self.start..] {
            // The end of a directory's path may carry parameters: a session id does.
            b"" if is_refused && place == Place::Inner => {
                return Err(UriError::new("an empty segment with parameters in the path"));
            }
            b"." | b".." if is_refused => {
                return Err(UriError::new("a disguised dot segment in the path"));
            }
            b"" => {}
            b"." => self.drop_segments(1, place)?,
            b".." => self.drop_segments(2, place)?,
            _ => {
                if self.has_high_byte {
                    self.decode_characters()?;
                }
                if place == Place::Inner {
                    self.out.push(b'/');
                }
            }
        }
        self.start = self.out.len();
        (self.has_parameters, self.has_encoded_dot, self.has_high_byte) = (false, false, false);
        Ok(())
    }

    /// Removes the last `count` segments, the current one included, and at the end of the path
    /// also the slash they leave.
    fn drop_segments(&mut self, count: usize, place: Place) -> Result<(), UriError> {
        self.out.truncate(self.start);
        for _ in 1..count {
            // `out` is "/" or ends with the slash behind the segment that goes.
            let before = &self.out[..self.out.len() - 1];
            let slash = before.iter().rposition(|&byte| byte == b'/');
            let slash = slash.ok_or(UriError::new("the path climbs above the root"))?;
            self.out.truncate(slash + 1);
        }
        if place == Place::Last && self.out.len() > 1 {
            self.out.pop();
        }
        Ok(())
    }

    /// Turns the bytes of the current segment into the UTF-8 of its characters.
    fn decode_characters(&mut self) -> Result<(), UriError> {
        let segment = &self.out[self.start..];
        match self.policy.encoding {
            UriEncoding::Utf8 => match std::str::from_utf8(segment) {
                Ok(_) => Ok(()),
                Err(_) => Err(UriError::new("invalid utf-8 in the path")),
            },
            UriEncoding::Iso8859_1 => {
                let text: String = segment.iter().copied().map(char::from).collect();
                self.out.truncate(self.start);
                self.out.extend_from_slice(text.as_bytes());
                Ok(())
            }
        }
    }
}

/// Checks the raw query of a request target: its bytes must be those of RFC 3986 or relaxed ones.
/// Escapes are judged when parameters are asked for.
///
/// # Errors
/// 400 for a byte that must be escaped.
pub fn check_query(raw: &[u8], policy: &UriPolicy) -> Result<(), UriError> {
    let is_good = |&byte: &u8| QUERY_BYTES.contains(byte) || policy.relaxed_query.contains(byte);
    if raw.iter().all(is_good) {
        Ok(())
    } else {
        Err(UriError::new("a byte in the query that must be escaped"))
    }
}

/// The bytes that [`encode_path`] escapes: all but the characters of an RFC 3986 path, of which
/// `;` would start parameters.
const ESCAPED_IN_PATH: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'!')
    .remove(b'$')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'(')
    .remove(b')')
    .remove(b'*')
    .remove(b'+')
    .remove(b',')
    .remove(b'=')
    .remove(b':')
    .remove(b'@')
    .remove(b'/');

/// The request URI of a decoded path: what [`decode_path`] turns back into `decoded`. A literal
/// `?`, `%` or `;` is escaped, so nothing is lost and nothing is decoded twice.
pub fn encode_path(decoded: &str) -> String {
    utf8_percent_encode(decoded, ESCAPED_IN_PATH).to_string()
}

/// The parameters of the segments of a raw path, in order: `;name=value` is `(name, value)`, a
/// parameter without `=` has an empty value, one without a name is passed over. They belong to a
/// path that [`decode_path`] accepted; invalid UTF-8 becomes U+FFFD.
///
/// ```
/// let mut parameters = ringcat::uri::PathParameters::new(b"/a;v=1/b;jsessionid=4F;x");
/// assert_eq!(parameters.value_of("jsessionid").as_deref(), Some("4F"));
/// ```
#[derive(Clone, Debug)]
pub struct PathParameters<'a> {
    rest: &'a [u8],
}

impl<'a> PathParameters<'a> {
    /// Reads the parameters of `raw_path`. A path without any costs one search for `;`.
    pub fn new(raw_path: &'a [u8]) -> Self {
        Self { rest: raw_path }
    }

    /// The value of the first parameter called `name`, from here on.
    pub fn value_of(&mut self, name: &str) -> Option<Cow<'a, str>> {
        self.find(|(candidate, _)| candidate == name).map(|(_, value)| value)
    }
}

impl<'a> Iterator for PathParameters<'a> {
    type Item = (Cow<'a, str>, Cow<'a, str>);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let start = memchr::memchr(b';', self.rest)? + 1;
            let parameter = &self.rest[start..];
            let len = memchr::memchr2(b';', b'/', parameter).unwrap_or(parameter.len());
            self.rest = &parameter[len..];
            let (name, value) = split_pair(&parameter[..len]);
            if !name.is_empty() {
                return Some((decode_lossy(name), decode_lossy(value)));
            }
        }
    }
}

fn decode_lossy(bytes: &[u8]) -> Cow<'_, str> {
    if memchr::memchr(b'%', bytes).is_none() {
        return String::from_utf8_lossy(bytes);
    }
    let decoded: Vec<u8> = percent_decode(bytes).collect();
    Cow::Owned(String::from_utf8_lossy(&decoded).into_owned())
}

fn split_pair(piece: &[u8]) -> (&[u8], &[u8]) {
    match memchr::memchr(b'=', piece) {
        Some(index) => (&piece[..index], &piece[index + 1..]),
        None => (piece, b""),
    }
}

/// Why a query or form cannot be read as parameters: always the peer's mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueryError {
    /// The status to answer: 400.
    pub status: u16,
    /// What was wrong, lower case, without the peer's bytes.
    pub reason: &'static str,
}

impl QueryError {
    const fn new(reason: &'static str) -> Self {
        Self { status: 400, reason }
    }
}

impl fmt::Display for QueryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason)
    }
}

impl std::error::Error for QueryError {}

/// All parameters of a query string in UTF-8, in order.
///
/// # Errors
/// As [`QueryPairs`].
///
/// ```
/// let pairs = ringcat::uri::parse_query(b"a=1&&b=x+y%26z&c")?;
/// let expected = [("a", "1"), ("b", "x y&z"), ("c", "")];
/// assert!(pairs.iter().map(|(n, v)| (n.as_str(), v.as_str())).eq(expected));
/// # Ok::<(), ringcat::uri::QueryError>(())
/// ```
pub fn parse_query(query: &[u8]) -> Result<Vec<(String, String)>, QueryError> {
    QueryPairs::new(query, UriEncoding::Utf8)
        .map(|pair| pair.map(|(name, value)| (name.into_owned(), value.into_owned())))
        .collect()
}

/// The name-value pairs of a query string or of an `application/x-www-form-urlencoded` body, in
/// order: pieces between `&`, split at their first `=`; `+` is a space, `%xx` a byte. Empty pieces
/// are passed over. Nothing is allocated for pairs without `+`, escapes and non-ASCII bytes.
/// The caller counts the pairs against its limit.
///
/// Each item is an error if its piece has no name, a broken escape or invalid UTF-8; the caller
/// ends at the first one.
#[derive(Clone, Debug)]
pub struct QueryPairs<'a> {
    rest: &'a [u8],
    encoding: UriEncoding,
}

impl<'a> QueryPairs<'a> {
    /// Reads `bytes`, whose characters are encoded in `encoding`.
    pub fn new(bytes: &'a [u8], encoding: UriEncoding) -> Self {
        Self { rest: bytes, encoding }
    }
}

impl<'a> Iterator for QueryPairs<'a> {
    type Item = Result<(Cow<'a, str>, Cow<'a, str>), QueryError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.rest.is_empty() {
            let len = memchr::memchr(b'&', self.rest).unwrap_or(self.rest.len());
            let piece = &self.rest[..len];
            self.rest = self.rest.get(len + 1..).unwrap_or_default();
            if piece.is_empty() {
                continue;
            }
            let (name, value) = split_pair(piece);
            if name.is_empty() {
                return Some(Err(QueryError::new("a parameter without a name")));
            }
            let decode = |bytes| decode_component(bytes, self.encoding);
            return Some(decode(name).and_then(|name| Ok((name, decode(value)?))));
        }
        None
    }
}

fn decode_component(bytes: &[u8], encoding: UriEncoding) -> Result<Cow<'_, str>, QueryError> {
    let Some(first) = memchr::memchr2(b'%', b'+', bytes) else {
        return decode_text(Cow::Borrowed(bytes), encoding);
    };
    let mut decoded = Vec::with_capacity(bytes.len());
    decoded.extend_from_slice(&bytes[..first]);
    let mut rest = &bytes[first..];
    while let Some((&byte, after)) = rest.split_first() {
        let (byte, after) = match byte {
            b'%' => split_escape(after)
                .ok_or(QueryError::new("a broken percent escape in a parameter"))?,
            b'+' => (b' ', after),
            other => (other, after),
        };
        decoded.push(byte);
        rest = after;
    }
    decode_text(Cow::Owned(decoded), encoding)
}

fn decode_text(bytes: Cow<'_, [u8]>, encoding: UriEncoding) -> Result<Cow<'_, str>, QueryError> {
    const INVALID: QueryError = QueryError::new("invalid utf-8 in a parameter");
    if encoding == UriEncoding::Iso8859_1 && !bytes.is_ascii() {
        return Ok(Cow::Owned(bytes.iter().copied().map(char::from).collect()));
    }
    match bytes {
        Cow::Borrowed(bytes) => std::str::from_utf8(bytes).map(Cow::Borrowed).map_err(|_| INVALID),
        Cow::Owned(bytes) => String::from_utf8(bytes).map(Cow::Owned).map_err(|_| INVALID),
    }
}
