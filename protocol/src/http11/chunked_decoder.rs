//! Content in chunks, in whatever pieces it comes (RFC 9112 section 7.1). Lines end in CRLF and
//! follow the grammar to the letter: every leniency here has served to hide a request in the
//! content of another. Extensions are read and ignored; trailers are kept apart from the header
//! fields. (Tomcat: `ChunkedInputFilter`.)

use memchr::memchr;

use super::field_line::field_line;
use super::octet_class::{is_token, is_value};
use crate::protocol_error::ProtocolError;

/// How far one step of a decoder came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// Octets of the input that are done with.
    pub consumed: usize,
    /// The content is over; what is not consumed belongs to the next message.
    pub done: bool,
}

/// Decodes one chunked content and its trailers.
///
/// ```text
/// Size --CR--> SizeLf --LF--> Data --> DataCr --> DataLf --> Size
///  |                  `-- size 0 --> Trailers --> Done      (CR also ends ExtName, ExtToken and
///  |                                                         ExtQuotedEnd)
///  `--> SizeBlank --;--> ExtStart --> ExtName --=--> ExtValueStart --> ExtToken | ExtQuoted
///                        ^--;-- ExtName, ExtNameBlank, ExtToken, ExtQuotedEnd, ExtValueBlank
/// ```
#[derive(Debug, Default)]
pub struct ChunkedDecoder {
    state: State,
    /// The size being read, then the octets of the chunk that are still to come.
    size: u64,
    /// Digits of the size being read.
    digits: u8,
    extension_bytes: usize,
    trailer_bytes: usize,
    /// The trailer line whose end has not come.
    line: Vec<u8>,
    trailers: Vec<(Vec<u8>, Vec<u8>)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Size,
    /// Space behind the size, which is legal only in front of `;`.
    SizeBlank,
    SizeLf,
    /// Behind `;`.
    ExtStart,
    ExtName,
    /// Space behind a name, legal in front of `;` and `=`.
    ExtNameBlank,
    /// Behind `=`.
    ExtValueStart,
    ExtToken,
    ExtQuoted,
    ExtEscaped,
    /// Behind a closing quote.
    ExtQuotedEnd,
    /// Space behind a value, legal in front of `;`.
    ExtValueBlank,
    Data,
    DataCr,
    DataLf,
    Trailers,
    Done,
    Refused(ProtocolError),
}

impl ChunkedDecoder {
    /// A decoder at the start of the content. Holds no memory until a trailer comes.
    pub const fn new() -> Self {
        Self {
            state: State::Size,
            size: 0,
            digits: 0,
            extension_bytes: 0,
            trailer_bytes: 0,
            line: Vec::new(),
            trailers: Vec::new(),
        }
    }

    /// Decodes what has come and appends at most `out_max` octets of content to `out`. It stops
    /// at the end of the input, at the end of the content, or where content waits and `out_max`
    /// is used up; the caller gives what was not consumed again. Content, trailers and verdict do
    /// not depend on how the input was cut.
    ///
    /// # Errors
    /// 400 for what is no chunked content and for more than 8,192 octets of extensions; 431 for
    /// more than 8,192 octets or 100 fields of trailers. After an error every call repeats it.
    pub fn decode(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
        out_max: usize,
    ) -> Result<Decoded, ProtocolError> {
        self.advance(input, out, out_max).inspect_err(|&error| self.state = State::Refused(error))
    }

    /// Has the end of the content been decoded, trailers included?
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Takes the trailer fields in their order, names in lower case. Fields that frame, route or
    /// authenticate are not among them (RFC 9110 section 6.5.1). Complete once the content is.
    pub fn take_trailers(&mut self) -> Vec<(Vec<u8>, Vec<u8>)> {
        std::mem::take(&mut self.trailers)
    }

    fn advance(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
        out_max: usize,
    ) -> Result<Decoded, ProtocolError> {
        let mut at = 0;
        let mut room = out_max;
        while at < input.len() {
            match self.state {
                State::Done => break,
                State::Refused(error) => return Err(error),
                State::Data => {
                    let rest = input.len() - at;
                    let due = usize::try_from(self.size).unwrap_or(usize::MAX);
                    let len = due.min(rest).min(room);
                    if len == 0 {
                        break;
                    }
                    out.extend_from_slice(&input[at..at + len]);
                    at += len;
                    room -= len;
                    self.size -= len as u64;
                    if self.size == 0 {
                        self.state = State::DataCr;
                    }
                }
                State::Trailers => at += self.read_trailers(&input[at..])?,
                _ => {
                    self.state = self.read_octet(input[at])?;
                    at += 1;
                }
            }
        }
        if let State::Refused(error) = self.state {
            return Err(error);
        }
        Ok(Decoded { consumed: at, done: self.state == State::Done })
    }

    /// The state behind an octet of a chunk's frame.
    fn read_octet(&mut self, octet: u8) -> Result<State, ProtocolError> {
        use State::{
            Data, DataCr, DataLf, Done, ExtEscaped, ExtName, ExtNameBlank, ExtQuoted, ExtQuotedEnd,
            ExtStart, ExtToken, ExtValueBlank, ExtValueStart, Refused, Size, SizeBlank, SizeLf,
            Trailers,
        };
        let next = match (self.state, octet) {
            (Size, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => return self.read_digit(octet),
            (Size, _) if self.digits == 0 => None,
            (Size, b' ' | b'\t') => Some(SizeBlank),
            (Size | ExtName | ExtToken | ExtQuotedEnd, b'\r') => return Ok(SizeLf),
            (SizeLf, b'\n') => return Ok(self.end_size_line()),
            (
                Size | SizeBlank | ExtName | ExtNameBlank | ExtToken | ExtQuotedEnd | ExtValueBlank,
                b';',
            ) => Some(ExtStart),
            (SizeBlank | ExtStart | ExtNameBlank | ExtValueStart | ExtValueBlank, b' ' | b'\t') => {
                Some(self.state)
            }
            (ExtStart | ExtName, _) if is_token(octet) => Some(ExtName),
            (ExtName, b' ' | b'\t') => Some(ExtNameBlank),
            (ExtName | ExtNameBlank, b'=') => Some(ExtValueStart),
            (ExtValueStart | ExtToken, _) if is_token(octet) => Some(ExtToken),
            (ExtValueStart, b'"') => Some(ExtQuoted),
            (ExtQuoted, b'"') => Some(ExtQuotedEnd),
            (ExtQuoted, b'\\') => Some(ExtEscaped),
            (ExtQuoted | ExtEscaped, _) if is_value(octet) => Some(ExtQuoted),
            (ExtToken | ExtQuotedEnd, b' ' | b'\t') => Some(ExtValueBlank),
            (DataCr, b'\r') => return Ok(DataLf),
            (DataLf, b'\n') => return Ok(Size),
            (
                Size | SizeBlank | SizeLf | ExtStart | ExtName | ExtNameBlank | ExtValueStart
                | ExtToken | ExtQuoted | ExtEscaped | ExtQuotedEnd | ExtValueBlank | Data | DataCr
                | DataLf | Trailers | Done | Refused(_),
                _,
            ) => None,
        };
        let Some(state) = next else {
            return Err(ProtocolError::bad_request(match self.state {
                DataCr | DataLf => "chunk does not end where its size says",
                Size => "malformed chunk size",
                _ => "malformed end of a chunk size or extension",
            }));
        };
        // What is left are blanks and extensions: bounded over the whole content, since each
        // chunk of one octet may carry some.
        self.extension_bytes += 1;
        if self.extension_bytes > EXTENSION_BYTES_MAX {
            return Err(ProtocolError::bad_request("chunk extensions too large"));
        }
        Ok(state)
    }

    fn read_digit(&mut self, octet: u8) -> Result<State, ProtocolError> {
        let digit = char::from(octet).to_digit(16).expect("the caller matched a hex digit");
        self.digits += 1;
        // Bounded with its leading zeros; the value also fits a signed number.
        if self.digits > SIZE_DIGITS_MAX || self.size > (i64::MAX as u64) >> 4 {
            return Err(ProtocolError::bad_request("chunk size too large"));
        }
        self.size = self.size << 4 | u64::from(digit);
        Ok(State::Size)
    }

    fn end_size_line(&mut self) -> State {
        self.digits = 0;
        if self.size == 0 { State::Trailers } else { State::Data }
    }

    /// Reads trailer lines up to the end of the input or the empty line; how much it read.
    fn read_trailers(&mut self, input: &[u8]) -> Result<usize, ProtocolError> {
        let room = TRAILER_BYTES_MAX - self.trailer_bytes;
        let len = memchr(b'\n', input).map_or(input.len(), |index| index + 1);
        if len > room {
            return Err(ProtocolError::new(431, "trailers too large"));
        }
        self.trailer_bytes += len;
        self.line.extend_from_slice(&input[..len]);
        match self.line.as_slice() {
            b"\r\n" => {
                self.line = Vec::new();
                self.state = State::Done;
            }
            [line @ .., b'\r', b'\n'] => {
                let field = field_line(line)?;
                if self.trailers.len() >= TRAILERS_MAX {
                    return Err(ProtocolError::new(431, "too many trailers"));
                }
                let name = line[..field.name_len].to_ascii_lowercase();
                if !is_banned_trailer(&name) {
                    self.trailers.push((name, line[field.value].to_vec()));
                }
                self.line.clear();
            }
            [.., b'\n'] => return Err(ProtocolError::bad_request("line ends without CR")),
            [..] => {}
        }
        Ok(len)
    }
}

/// Is a field of this lower-case name without effect, or even harmful, in a trailer section?
pub(crate) fn is_banned_trailer(name: &[u8]) -> bool {
    BANNED_TRAILERS.iter().any(|banned| banned.as_bytes() == name)
}

/// Fields that frame, route, modify or authenticate a message (RFC 9110 section 6.5.1).
const BANNED_TRAILERS: &[&str] = &[
    "authorization",
    "cache-control",
    "connection",
    "content-encoding",
    "content-length",
    "content-range",
    "content-type",
    "cookie",
    "expect",
    "forwarded",
    "host",
    "keep-alive",
    "max-forwards",
    "proxy-authenticate",
    "proxy-authorization",
    "range",
    "set-cookie",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "www-authenticate",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
];

/// Octets of blanks and extensions in all size lines of one content.
const EXTENSION_BYTES_MAX: usize = 8192;

/// Octets of the trailer section.
const TRAILER_BYTES_MAX: usize = 8192;

/// Fields of the trailer section.
const TRAILERS_MAX: usize = 100;

/// Digits of a chunk size, leading zeros included.
const SIZE_DIGITS_MAX: u8 = 16;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use proptest::prelude::*;

    use super::*;

    type Content = (Vec<u8>, Vec<(Vec<u8>, Vec<u8>)>, usize);

    /// Feeds the pieces; content, trailers and octets consumed, or `None` while more is due.
    fn decode<'a>(
        pieces: impl IntoIterator<Item = &'a [u8]>,
        out_max: usize,
    ) -> Result<Option<Content>, u16> {
        let (mut decoder, mut out, mut total) = (ChunkedDecoder::new(), Vec::new(), 0);
        for piece in pieces {
            let mut at = 0;
            loop {
                let before = out.len();
                let decoded = decoder
                    .decode(&piece[at..], &mut out, out_max)
                    .map_err(|error| error.status)?;
                assert!(out.len() - before <= out_max);
                at += decoded.consumed;
                total += decoded.consumed;
                assert_eq!(decoded.done, decoder.is_done());
                if decoded.done {
                    return Ok(Some((out, decoder.take_trailers(), total)));
                }
                if decoded.consumed == 0 {
                    break;
                }
            }
            assert_eq!(at, piece.len());
        }
        Ok(None)
    }

    fn check(input: &[u8], expected: Result<Option<Content>, u16>) {
        let name = input.escape_ascii();
        assert_eq!(decode([input], usize::MAX), expected, "{name}");
        for cut in 0..=input.len().min(3000) {
            let (one, two) = input.split_at(cut);
            assert_eq!(decode([one, two], usize::MAX), expected, "{name} cut at {cut}");
        }
        assert_eq!(decode(input.chunks(1), 1), expected, "{name} octet by octet");
        assert_eq!(decode([input], 1), expected, "{name} one octet of room");
    }

    fn check_content(input: &[u8], content: &[u8]) {
        check(input, Ok(Some((content.to_vec(), Vec::new(), input.len()))));
    }

    #[test]
    fn content() {
        check_content(b"0\r\n\r\n", b"");
        check_content(b"5\r\nhello\r\n000\r\n\r\n", b"hello");
        check_content(b"2\r\nhe\r\n1\r\nl\r\n2\r\nlo\r\n0\r\n\r\n", b"hello");
        check_content(b"0A\r\n0123456789\r\na\r\n0123456789\r\n0\r\n\r\n", b"01234567890123456789");
        check_content(b"b\r\na\r\n0\r\n\r\nbcd\r\n0\r\n\r\n", b"a\r\n0\r\n\r\nbcd");
        check_content(b"5;a;b=c;d=\"x;\\\"y\\\" z\"\r\nhello\r\n0;e\r\n\r\n", b"hello");
        check_content(b"5 ;\ta = b \t; c\r\nhello\r\n0\r\n\r\n", b"hello");
    }

    #[test]
    fn stops_behind_the_content() {
        check(b"1\r\na\r\n0\r\n\r\nGET ", Ok(Some((b"a".to_vec(), Vec::new(), 11))));
    }

    #[test]
    fn waits_for_the_end() {
        let whole = b"5;a=\"b\"\r\nhello\r\n0\r\nA: b\r\n\r\n";
        for len in 0..whole.len() {
            check(&whole[..len], Ok(None));
        }
        check(b"7fffffffffffffff\r\nab", Ok(None));
    }

    #[test]
    fn trailers() {
        let input = b"0\r\nX-Trailer: v \r\nCookie: a\r\nx:\r\n\r\n";
        let fields = vec![(b"x-trailer".to_vec(), b"v".to_vec()), (b"x".to_vec(), Vec::new())];
        check(input, Ok(Some((Vec::new(), fields, input.len()))));
        for line in [
            &b"garbage\r\n"[..],
            b"X : v\r\n",
            b"X: v\n",
            b"X: a\rb\r\n",
            b"X: a\0\r\n",
            b" X: v\r\n",
            b"\n",
            b"\r\r\n",
            b"GET / HTTP/1.1\r\n",
        ] {
            check(&[b"0\r\n", line, b"\r\n"].concat(), Err(400));
        }
    }

    #[test]
    fn malformed_frames() {
        for input in [
            &b"\r\n"[..],
            b"g",
            b"+5\r\n",
            b"-0\r\n",
            b"0x5\r\n",
            b"5h\r\n",
            b" 5\r\n",
            b"\t5",
            b"0_5",
            b"5.0",
            b"5,5",
            b"\"5\"",
            b"5\0",
            b"5\xa0",
            b"0 5",
            b"5\x0b",
            b"5=a",
            b"5 a",
            b"5 \r\n",
            b"5;\r\n",
            b"5; \r\n",
            b"5;=b",
            b"5;a=\r\n",
            b"5;a=b=c",
            b"5;a=\"b\r\n",
            b"5;a=\"b\"c",
            b"5;a@b",
            b"5;a\0",
            b"5;a=\x01",
            b"5;\xe9",
            b"5;a\rb",
            b"5;a\n",
            b"5;a \r\n",
            b"5;a=b \r\n",
            b"5;a=\"\n",
            b"5\n",
            b"5\rh",
            b"5\r\r\n",
            b"1\r\na\n",
            b"1\r\na\rX",
            b"1\r\na0",
            b"1\r\na\r\n\r\n",
            b"1\r\nab",
            b"00000000000000005",
            b"8000000000000000",
            b"ffffffffffffffff",
            b"10000000000000000",
        ] {
            check(input, Err(400));
        }
    }

    #[test]
    fn limits() {
        let extension = |len: usize| [b"0;", &b"a".repeat(len - 1)[..], b"\r\n\r\n"].concat();
        check_content(&extension(EXTENSION_BYTES_MAX), b"");
        check(&extension(EXTENSION_BYTES_MAX + 1), Err(400));
        check(&b"1;aaaaaaa\r\nx\r\n".repeat(EXTENSION_BYTES_MAX / 8 + 1), Err(400));
        check(&[b"0\r\nX: ", &b"v".repeat(TRAILER_BYTES_MAX)[..], b"\r\n\r\n"].concat(), Err(431));
        check(&[b"0\r\n", &b"X: v\r\n".repeat(TRAILERS_MAX + 1)[..], b"\r\n"].concat(), Err(431));
    }

    #[test]
    fn an_error_stays() {
        let (mut decoder, mut out) = (ChunkedDecoder::new(), Vec::new());
        let error = decoder.decode(b"1\r\nabc", &mut out, 9).unwrap_err();
        assert_eq!(decoder.decode(b"\r\n0\r\n\r\n", &mut out, 9), Err(error));
        assert_eq!(decoder.decode(b"", &mut out, 9), Err(error));
        assert!(!decoder.is_done());
    }

    proptest! {
        #[test]
        fn any_chunks_any_pieces(
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 0..6),
            piece_len in 1_usize..20,
            out_max in 1_usize..20,
        ) {
            let mut wire = Vec::new();
            for chunk in &chunks {
                super::super::encode_chunk(&mut wire, chunk);
            }
            super::super::encode_last_chunk(&mut wire, None);
            let expected = Ok(Some((chunks.concat(), Vec::new(), wire.len())));
            prop_assert_eq!(decode(wire.chunks(piece_len), out_max), expected);
        }

        #[test]
        fn garbage_in_any_pieces(
            input in "([0-3;a= \"\r\n]|\r\n|0\r\n\r\n|A: b\r\n){0,30}",
            piece_len in 1_usize..9,
        ) {
            let input = input.as_bytes();
            prop_assert_eq!(
                decode(input.chunks(piece_len), 3),
                decode([input], usize::MAX)
            );
        }
    }
}
