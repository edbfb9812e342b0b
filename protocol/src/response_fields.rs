//! The header fields of a response, as the application sets them. Kept as the lines that go to
//! the wire, in one buffer. A field that could become two, or end the head, does not get in, so
//! no later step needs to look again. (Tomcat: the response's `MimeHeaders`.)

use std::fmt;

use crate::http11::octet_class::{is_token, is_value, trim_ows};

/// Response header fields in the order they were added. Names are compared without case.
#[derive(Clone, Debug, Default)]
pub struct ResponseFields {
    /// `name: value CRLF`, one after the other.
    lines: Vec<u8>,
    spans: Vec<LineSpan>,
}

/// Where a line is and what of it are name and value. 12 octets.
#[derive(Clone, Copy, Debug)]
struct LineSpan {
    start: u32,
    name_len: u32,
    value_len: u32,
}

impl LineSpan {
    fn name(self, lines: &[u8]) -> &[u8] {
        &lines[self.start as usize..][..self.name_len as usize]
    }

    fn value(self, lines: &[u8]) -> &[u8] {
        &lines[(self.start + self.name_len) as usize + 2..][..self.value_len as usize]
    }

    fn line_len(self) -> u32 {
        self.name_len + self.value_len + 4
    }
}

impl ResponseFields {
    /// No fields, no memory.
    pub const fn new() -> Self {
        Self { lines: Vec::new(), spans: Vec::new() }
    }

    /// Adds a field behind the others, also where the name is there already. White space around
    /// the value is dropped.
    ///
    /// # Errors
    /// If the name is no token, if the value has a control octet other than HTAB, or if all
    /// fields together would pass 65,536 octets. Nothing is added then.
    pub fn add(
        &mut self,
        name: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<(), InvalidField> {
        self.add_line(name.as_ref(), value.as_ref())
    }

    /// Makes this the only field of its name.
    ///
    /// # Errors
    /// As [`ResponseFields::add`]; the old fields stay then.
    pub fn set(
        &mut self,
        name: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<(), InvalidField> {
        let (name, value) = (name.as_ref(), value.as_ref());
        let before = self.spans.len();
        self.add_line(name, value)?;
        self.remove_first(name, before);
        Ok(())
    }

    /// Removes all fields of a name; how many there were.
    pub fn remove(&mut self, name: impl AsRef<[u8]>) -> usize {
        self.remove_first(name.as_ref(), self.spans.len())
    }

    /// Removes all fields and keeps the memory.
    pub fn clear(&mut self) {
        let Self { lines, spans } = self;
        lines.clear();
        spans.clear();
    }

    /// The value of the first field of a name.
    pub fn get(&self, name: impl AsRef<[u8]>) -> Option<&[u8]> {
        let name = name.as_ref();
        self.iter().find(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// The values of all fields of a name.
    pub fn get_all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        self.iter()
            .filter(|(other, _)| other.eq_ignore_ascii_case(name.as_bytes()))
            .map(|(_, value)| value)
    }

    /// Is there a field of this name?
    pub fn contains(&self, name: impl AsRef<[u8]>) -> bool {
        self.get(name).is_some()
    }

    /// All fields: name as written, value.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.spans.iter().map(|span| (span.name(&self.lines), span.value(&self.lines)))
    }

    /// Number of fields.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Are there no fields?
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// The length that the first Content-Length announces, if it is a number below 2^63.
    pub fn content_length(&self) -> Option<u64> {
        let value = self.get("content-length")?;
        if !value.iter().all(u8::is_ascii_digit) {
            return None;
        }
        let number: i64 = std::str::from_utf8(value).ok()?.parse().ok()?;
        u64::try_from(number).ok()
    }

    /// Does a Connection field ask to close the connection after this response?
    pub fn has_close_option(&self) -> bool {
        self.get_all("connection")
            .flat_map(|value| value.split(|&octet| octet == b','))
            .any(|option| trim_ows(option).eq_ignore_ascii_case(b"close"))
    }

    /// Octets of heap memory held.
    pub fn memory_bytes(&self) -> usize {
        self.lines.capacity() + self.spans.capacity() * size_of::<LineSpan>()
    }

    /// All lines, each with its CRLF.
    pub(crate) fn lines(&self) -> &[u8] {
        &self.lines
    }

    /// Each field's name and its line with CRLF.
    pub(crate) fn iter_lines(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.spans.iter().map(|span| {
            let line = &self.lines[span.start as usize..][..span.line_len() as usize];
            (span.name(&self.lines), line)
        })
    }

    fn add_line(&mut self, name: &[u8], value: &[u8]) -> Result<(), InvalidField> {
        let refuse = |kind| Err(InvalidField::new(name, kind));
        if name.is_empty() {
            return refuse(InvalidFieldKind::EmptyName);
        }
        if let Some(position) = name.iter().position(|&octet| !is_token(octet)) {
            return refuse(InvalidFieldKind::NameOctet { position });
        }
        if let Some(position) = value.iter().position(|&octet| !is_value(octet)) {
            return refuse(InvalidFieldKind::ValueOctet { position });
        }
        let value = trim_ows(value);
        let line_len = name.len() + value.len() + 4;
        if self.lines.len() + line_len > LINES_BYTES_MAX {
            return refuse(InvalidFieldKind::TooLarge);
        }
        let fit = |len: usize| u32::try_from(len).expect("the limit is far below");
        self.spans.push(LineSpan {
            start: fit(self.lines.len()),
            name_len: fit(name.len()),
            value_len: fit(value.len()),
        });
        self.lines.reserve(line_len);
        for part in [name, b": ", value, b"\r\n"] {
            self.lines.extend_from_slice(part);
        }
        Ok(())
    }

    /// Removes the fields of a name among the first `count`; how many there were.
    fn remove_first(&mut self, name: &[u8], count: usize) -> usize {
        let mut removed = 0;
        for index in (0..count).rev() {
            let span = self.spans[index];
            if !span.name(&self.lines).eq_ignore_ascii_case(name) {
                continue;
            }
            let start = span.start as usize;
            self.lines.drain(start..start + span.line_len() as usize);
            self.spans.remove(index);
            for later in &mut self.spans[index..] {
                later.start -= span.line_len();
            }
            removed += 1;
        }
        removed
    }
}

/// Octets of all fields of a response, line ends included.
const LINES_BYTES_MAX: usize = 64 * 1024;

/// Why a field is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidFieldKind {
    /// The name is empty.
    EmptyName,
    /// The name has an octet that no token has.
    NameOctet {
        /// Its index in the name.
        position: usize,
    },
    /// The value has a control octet, such as CR, LF or NUL.
    ValueOctet {
        /// Its index in the value as it was given.
        position: usize,
    },
    /// The fields of the response would be too large.
    TooLarge,
}

/// A field that cannot be sent: the application's mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidField {
    name: String,
    kind: InvalidFieldKind,
}

impl InvalidField {
    fn new(name: &[u8], kind: InvalidFieldKind) -> Self {
        let start = &name[..name.len().min(NAME_SHOWN_MAX)];
        Self { name: start.escape_ascii().to_string(), kind }
    }

    /// The name of the field, escaped, at most its first 64 octets.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What is wrong and where.
    pub fn kind(&self) -> InvalidFieldKind {
        self.kind
    }
}

impl fmt::Display for InvalidField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.name;
        match self.kind {
            InvalidFieldKind::EmptyName => write!(f, "response field without name"),
            InvalidFieldKind::NameOctet { position } => {
                write!(f, "octet {position} of the response field name \"{name}\" is illegal")
            }
            InvalidFieldKind::ValueOctet { position } => {
                write!(f, "octet {position} of the value of response field {name} is illegal")
            }
            InvalidFieldKind::TooLarge => write!(
                f,
                "response field {name} would make the fields larger than {LINES_BYTES_MAX} octets"
            ),
        }
    }
}

impl std::error::Error for InvalidField {}

/// Octets of a refused name that an error repeats.
const NAME_SHOWN_MAX: usize = 64;

const _: () = assert!(size_of::<LineSpan>() == 12);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;

    fn fields(list: &[(&str, &str)]) -> ResponseFields {
        let mut fields = ResponseFields::new();
        for (name, value) in list {
            fields.add(name, value).unwrap();
        }
        fields
    }

    #[track_caller]
    fn check(fields: &ResponseFields, lines: &str) {
        assert_eq!(fields.lines(), lines.as_bytes());
        let from_parts: Vec<u8> = fields
            .iter()
            .flat_map(|(name, value)| [name, b": ", value, b"\r\n"].concat())
            .collect();
        assert_eq!(from_parts, lines.as_bytes());
        let from_lines: Vec<u8> = fields.iter_lines().flat_map(|(_, line)| line.to_vec()).collect();
        assert_eq!(from_lines, lines.as_bytes());
    }

    #[test]
    fn adds_sets_and_removes() {
        let mut fields = fields(&[("A", "1"), ("b", " 2\t"), ("a", "3"), ("C", "")]);
        check(&fields, "A: 1\r\nb: 2\r\na: 3\r\nC: \r\n");
        assert_eq!(fields.get("a"), Some(&b"1"[..]));
        assert_eq!(fields.get_all("A").collect::<Vec<_>>(), [b"1", b"3"]);
        assert!(fields.contains("c") && !fields.contains("d"));
        fields.set("A", "longer").unwrap();
        check(&fields, "b: 2\r\nC: \r\nA: longer\r\n");
        assert_eq!((fields.remove("B"), fields.remove("x")), (1, 0));
        check(&fields, "C: \r\nA: longer\r\n");
        assert_eq!((fields.len(), fields.is_empty()), (2, false));
        let memory = fields.memory_bytes();
        fields.clear();
        check(&fields, "");
        assert_eq!(fields.memory_bytes(), memory);
    }

    #[test]
    fn setting_again_and_again_takes_no_memory() {
        let mut fields = fields(&[("A", "1")]);
        fields.set("B", "2").unwrap();
        fields.set("B", "2").unwrap();
        let memory = fields.memory_bytes();
        for _ in 0..100_000 {
            fields.set("B", "2").unwrap();
        }
        assert_eq!(fields.memory_bytes(), memory);
    }

    fn check_refused(name: &[u8], value: &[u8], kind: InvalidFieldKind) {
        let mut fields = fields(&[("A", "1")]);
        assert_eq!(fields.add(name, value).unwrap_err().kind(), kind);
        assert_eq!(fields.set(name, value).unwrap_err().kind(), kind);
        check(&fields, "A: 1\r\n");
    }

    #[test]
    fn refuses_what_could_split_a_response() {
        check_refused(b"", b"v", InvalidFieldKind::EmptyName);
        for (name, position) in
            [("X\r\nY", 1), ("X: y", 1), ("X ", 1), (" X", 0), ("X\0", 1), ("\u{e9}", 0)]
        {
            check_refused(name.as_bytes(), b"v", InvalidFieldKind::NameOctet { position });
        }
        for (value, position) in
            [("a\r\nX: y", 1), ("ab\n", 2), ("\r", 0), ("a\0b", 1), ("a\x7f", 1), ("\x0b", 0)]
        {
            check_refused(b"A", value.as_bytes(), InvalidFieldKind::ValueOctet { position });
        }
        check_refused(b"A", &b"v".repeat(65_536), InvalidFieldKind::TooLarge);
        fields(&[("A", "tab\there"), ("B", "caf\u{e9} \u{560d}\u{560a}")]);
    }

    #[test]
    fn an_error_names_field_and_octet() {
        let mut fields = ResponseFields::new();
        let error = fields.add("X-A", "a\nb").unwrap_err();
        assert_eq!(error.name(), "X-A");
        assert_eq!(error.to_string(), "octet 1 of the value of response field X-A is illegal");
        let error = fields.add("X\nA", "a").unwrap_err();
        assert_eq!(error.to_string(), "octet 1 of the response field name \"X\\nA\" is illegal");
    }

    #[test]
    fn reads_the_framing_fields() {
        let length = |value| fields(&[("content-LENGTH", value)]).content_length();
        assert_eq!(length("12"), Some(12));
        for value in ["", "-1", "+1", "1x", "9223372036854775808"] {
            assert_eq!(length(value), None, "{value}");
        }
        assert!(fields(&[("Connection", "x, Close")]).has_close_option());
        assert!(!fields(&[("Connection", "closed"), ("X", "close")]).has_close_option());
    }
}
