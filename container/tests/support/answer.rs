//! What goes over the wire in tests: requests as bytes, and responses as they came.

use std::fmt::Write as _;

/// A response as it came over the wire.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// Whether the message came to its end, and not only the connection.
    pub(crate) is_whole: bool,
}

impl Answer {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let mut fields = self.fields.iter();
        fields.find(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| &**value)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    /// A whole response with this status and this content.
    #[track_caller]
    pub(crate) fn expect(&self, status: u16, text: &str) {
        assert_eq!((self.status, &*self.text(), self.is_whole), (status, text, true));
    }

    /// A whole error report.
    #[track_caller]
    pub(crate) fn expect_report(&self, status: u16) {
        assert_eq!((self.status, self.is_whole), (status, true), "{}", self.text());
        assert!(self.text().contains(&format!("<h1>{status} ")), "{}", self.text());
    }
}

/// A request as bytes; `content` is announced by its length unless it is empty.
pub(crate) fn request(line: &str, fields: &[&str], content: &str) -> String {
    let mut request = format!("{line} HTTP/1.1\r\nHost: localhost\r\n");
    for field in fields {
        write!(request, "{field}\r\n").unwrap();
    }
    if !content.is_empty() {
        write!(request, "Content-Length: {}\r\n", content.len()).unwrap();
    }
    request + "\r\n" + content
}
