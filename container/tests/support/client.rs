//! A raw client that says exactly what it is told to, and waits for nothing longer than
//! [`PATIENCE`](super::PATIENCE).

use std::io::{self, ErrorKind};

use super::answer::{Answer, request};

/// What the bytes of a client go over.
pub(crate) trait Stream {
    /// Sends all.
    fn send(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Waits for some bytes and appends them; 0 is the end.
    fn receive(&mut self, into: &mut Vec<u8>) -> io::Result<usize>;
    fn shutdown_write(&self);
    fn reset(self);
}

/// One connection of a client.
pub(crate) struct Conversation<S> {
    stream: S,
    received: Vec<u8>,
}

impl<S: Stream> Conversation<S> {
    pub(crate) fn over(stream: S) -> Self {
        Self { stream, received: Vec::new() }
    }

    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        self.stream.send(bytes.as_ref()).unwrap();
        self
    }

    /// Sends if the connection still takes it.
    pub(crate) fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.stream.send(bytes.as_ref()).is_ok()
    }

    /// Sends a request without content, its line without the version: `GET /x`.
    pub(crate) fn ask(&mut self, line: &str) -> &mut Self {
        self.send(request(line, &[], ""))
    }

    /// Sends a request with content and the fields given.
    pub(crate) fn ask_with(&mut self, line: &str, fields: &[&str], content: &str) -> &mut Self {
        self.send(request(line, fields, content))
    }

    pub(crate) fn get(&mut self, target: &str) -> Answer {
        self.ask(&format!("GET {target}")).answer()
    }

    /// Receives a response to anything but HEAD.
    pub(crate) fn answer(&mut self) -> Answer {
        let mut answer = self.answer_to_head();
        let has_content = answer.status >= 200 && !matches!(answer.status, 204 | 304);
        if !has_content {
            return answer;
        }
        let length = answer.field("Content-Length").map(|length| length.parse().unwrap());
        if answer.field("Transfer-Encoding") == Some("chunked") {
            answer.is_whole = self.receive_chunks(&mut answer.body);
        } else if let Some(length) = length {
            answer.is_whole = self.receive_length(length, &mut answer.body);
        } else {
            while self.fill() {}
            answer.body = std::mem::take(&mut self.received);
        }
        answer
    }

    /// Receives a head, which is all that HEAD is answered with.
    pub(crate) fn answer_to_head(&mut self) -> Answer {
        self.try_head().expect("the connection ended before a response")
    }

    /// Receives a response; `None` if the connection ended or was reset before its first byte.
    pub(crate) fn answer_or_end(&mut self) -> Option<Answer> {
        if self.received.is_empty() && !self.fill() {
            return None;
        }
        Some(self.answer())
    }

    fn try_head(&mut self) -> Option<Answer> {
        let end = loop {
            let end = self.received.windows(4).position(|window| window == b"\r\n\r\n");
            if let Some(end) = end {
                break end;
            }
            if !self.fill() {
                assert!(self.received.is_empty(), "half a head: {:?}", self.received_text());
                return None;
            }
        };
        let head = String::from_utf8(self.received.drain(..end + 4).collect()).unwrap();
        let mut lines = head.trim_end().split("\r\n");
        let status_line = lines.next().unwrap();
        assert!(status_line.starts_with("HTTP/1.1 "), "{status_line}");
        let status = status_line[9..12].parse().unwrap();
        let fields = lines
            .map(|line| line.split_once(": ").unwrap_or_else(|| panic!("no field: {line:?}")))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        Some(Answer { status, fields, body: Vec::new(), is_whole: true })
    }

    /// Receives until `text` has come, and takes everything up to its end.
    pub(crate) fn receive_until(&mut self, text: &str) -> String {
        loop {
            let found = self.received.windows(text.len()).position(|part| part == text.as_bytes());
            if let Some(start) = found {
                let taken = self.received.drain(..start + text.len()).collect();
                return String::from_utf8(taken).unwrap();
            }
            assert!(self.fill(), "the end came before {text:?}: {:?}", self.received_text());
        }
    }

    /// The connection ends, without another byte.
    pub(crate) fn expect_close(&mut self) {
        assert!(!self.fill() && self.received.is_empty(), "{:?}", self.received_text());
    }

    pub(crate) fn shutdown_write(&self) {
        self.stream.shutdown_write();
    }

    /// Closes the connection with a reset.
    pub(crate) fn reset(self) {
        self.stream.reset();
    }

    /// Receives something; `false` at the end of the stream or a reset.
    fn fill(&mut self) -> bool {
        match self.stream.receive(&mut self.received) {
            Ok(count) => count > 0,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => false,
            Err(error) => panic!("{error} after {} bytes", self.received.len()),
        }
    }

    fn receive_length(&mut self, length: usize, body: &mut Vec<u8>) -> bool {
        let mut is_open = true;
        while self.received.len() < length && is_open {
            is_open = self.fill();
        }
        body.extend(self.received.drain(..length.min(self.received.len())));
        is_open
    }

    fn receive_chunks(&mut self, body: &mut Vec<u8>) -> bool {
        loop {
            let Some(line) = self.chunk_line() else { return false };
            let length = usize::from_str_radix(&line, 16).unwrap();
            if length > 0 && !self.receive_length(length, body) {
                return false;
            }
            match self.chunk_line() {
                Some(line) => assert_eq!(line, "", "a chunk ends with a line end"),
                None => return false,
            }
            if length == 0 {
                return true;
            }
        }
    }

    fn chunk_line(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.received.windows(2).position(|window| window == b"\r\n") {
                let line: Vec<u8> = self.received.drain(..end + 2).collect();
                return Some(String::from_utf8(line[..end].to_vec()).unwrap());
            }
            if !self.fill() {
                return None;
            }
        }
    }

    fn received_text(&self) -> String {
        String::from_utf8_lossy(&self.received).into_owned()
    }
}
