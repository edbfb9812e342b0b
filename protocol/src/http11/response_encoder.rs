//! The sending half of one exchange: frames a response for its version, and knows whether what
//! was sent is a whole message. Stands for Tomcat's `Http11OutputBuffer` with its output filters.

use bytes::Bytes;
use ringcat_engine::out_queue::OutQueue;

use crate::{
    http11::{
        head::Version,
        response_head::{
            ConnectionField, ResponseFraming, ResponseHead, ResponseShape, encode_chunk,
            encode_head, encode_last_chunk, response_framing,
        },
    },
    response::Response,
};

/// Frames one response. A small value that moves between a processor and its core's hook.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResponseEncoder {
    pub(crate) version: Version,
    pub(crate) is_head: bool,
    pub(crate) keep_alive: bool,
    writing: Writing,
}

/// Where the response is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writing {
    /// The head is not fixed yet.
    Head,
    /// Content of a declared length, this much of it still to come.
    Length { remaining_bytes: u64 },
    /// Chunked content.
    Chunked,
    /// Content that the end of the connection ends.
    UntilClose,
    /// The response has no content on the wire (HEAD, 204, 304); what is written is dropped.
    Nothing,
    /// The message is whole.
    Finished,
    /// The message was given up; the connection must not go on.
    Broken,
}

impl Default for ResponseEncoder {
    fn default() -> Self {
        Self { version: Version::Http11, is_head: false, keep_alive: true, writing: Writing::Head }
    }
}

impl ResponseEncoder {
    /// An encoder for the answer to a request.
    pub(crate) fn new(version: Version, is_head: bool, keep_alive: bool) -> Self {
        Self { version, is_head, keep_alive, writing: Writing::Head }
    }

    /// Whether the message is whole.
    pub(crate) fn is_finished(&self) -> bool {
        self.writing == Writing::Finished
    }

    /// Whether the head was encoded.
    pub(crate) fn is_committed(&self) -> bool {
        self.writing != Writing::Head
    }

    /// Encodes the head. `is_complete`: the response's buffer holds all its content.
    pub(crate) fn commit(
        &mut self,
        response: &mut Response,
        is_complete: bool,
        date: &[u8; 29],
        out: &mut OutQueue,
    ) {
        assert!(self.writing == Writing::Head, "a response is committed once");
        let is_usable = !drops_connection(response.status) && !response.fields.has_close_option();
        let shape = ResponseShape {
            request_version: self.version,
            is_head: self.is_head,
            status: response.status,
            declared_len: response.content_length.or_else(|| response.fields.content_length()),
            known_len: is_complete.then_some(response.buffer.len() as u64),
            keep_alive: self.keep_alive && is_usable,
        };
        let (framing, keep_alive) = response_framing(&shape);
        self.keep_alive = keep_alive;
        let head = ResponseHead {
            status: response.status,
            reason: None,
            fields: &response.fields,
            framing,
            connection: ConnectionField::of(self.version, keep_alive),
            date,
        };
        encode_head(out.tail(), &head);
        response.is_committed = true;
        self.writing = match framing {
            _ if !shape.allows_content() => Writing::Nothing,
            ResponseFraming::ContentLength(length) => Writing::Length { remaining_bytes: length },
            ResponseFraming::Chunked => Writing::Chunked,
            ResponseFraming::UntilClose => Writing::UntilClose,
            ResponseFraming::None => Writing::Nothing,
        };
    }

    /// Encodes content.
    pub(crate) fn write(&mut self, bytes: &[u8], out: &mut OutQueue) {
        match &mut self.writing {
            Writing::Length { remaining_bytes } => {
                let count =
                    bytes.len().min(usize::try_from(*remaining_bytes).unwrap_or(usize::MAX));
                out.tail().extend_from_slice(&bytes[..count]);
                *remaining_bytes -= count as u64;
            }
            Writing::Chunked if !bytes.is_empty() => encode_chunk(out.tail(), bytes),
            Writing::UntilClose => out.tail().extend_from_slice(bytes),
            Writing::Chunked | Writing::Nothing | Writing::Finished | Writing::Broken => {}
            Writing::Head => panic!("content before the head"),
        }
    }

    /// Encodes content that is shared with the application: framing is ours, the bytes stay.
    pub(crate) fn write_shared(&mut self, mut bytes: Bytes, out: &mut OutQueue) {
        match &mut self.writing {
            Writing::Length { remaining_bytes } => {
                bytes.truncate(usize::try_from(*remaining_bytes).unwrap_or(usize::MAX));
                *remaining_bytes -= bytes.len() as u64;
                out.push_shared(bytes);
            }
            Writing::Chunked if !bytes.is_empty() => {
                out.tail().extend_from_slice(format!("{:x}\r\n", bytes.len()).as_bytes());
                out.push_shared(bytes);
                out.tail().extend_from_slice(b"\r\n");
            }
            Writing::UntilClose => out.push_shared(bytes),
            Writing::Chunked | Writing::Nothing | Writing::Finished | Writing::Broken => {}
            Writing::Head => panic!("content before the head"),
        }
    }

    /// Ends the content. A declared length that was not met leaves the message broken.
    pub(crate) fn finish(&mut self, out: &mut OutQueue) {
        self.writing = match self.writing {
            Writing::Length { remaining_bytes: 0 } | Writing::Nothing => Writing::Finished,
            Writing::Chunked => {
                encode_last_chunk(out.tail(), None);
                Writing::Finished
            }
            Writing::UntilClose => {
                self.keep_alive = false;
                Writing::Finished
            }
            Writing::Length { .. } | Writing::Broken => Writing::Broken,
            Writing::Finished => Writing::Finished,
            Writing::Head => panic!("a response ends after its commit"),
        };
        self.keep_alive &= self.writing == Writing::Finished;
    }

    /// Gives the message up.
    pub(crate) fn give_up(&mut self) {
        if self.writing != Writing::Finished {
            self.writing = Writing::Broken;
        }
        self.keep_alive = false;
    }
}

/// Statuses after which the state of the connection is in doubt, or the client had better start
/// anew (Tomcat's `Http11Processor.statusDropsConnection`).
fn drops_connection(status: u16) -> bool {
    matches!(status, 400 | 408 | 411 | 413 | 414 | 431 | 500 | 501 | 503 | 505)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATE: &[u8; 29] = b"Tue, 15 Nov 1994 08:12:31 GMT";

    fn encode(
        version: Version,
        status: u16,
        declared: Option<u64>,
        parts: &[&str],
    ) -> (String, ResponseEncoder) {
        let mut out = OutQueue::default();
        let mut encoder = ResponseEncoder::new(version, false, true);
        let mut response = Response { status, content_length: declared, ..Response::default() };
        encoder.commit(&mut response, false, DATE, &mut out);
        for part in parts {
            encoder.write(part.as_bytes(), &mut out);
        }
        encoder.finish(&mut out);
        (String::from_utf8(out.tail().clone()).unwrap(), encoder)
    }

    #[test]
    fn content_of_unknown_length_is_chunked_or_ends_with_the_connection() {
        let (wire, encoder) = encode(Version::Http11, 200, None, &["ab", "", "c"]);
        assert!(wire.contains("Transfer-Encoding: chunked\r\n"), "{wire}");
        assert!(wire.ends_with("\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"), "{wire}");
        assert!(encoder.is_finished() && encoder.keep_alive);
        let (wire, encoder) = encode(Version::Http10, 200, None, &["ab"]);
        assert!(wire.ends_with("\r\n\r\nab") && !wire.contains("chunked"), "{wire}");
        assert!(encoder.is_finished() && !encoder.keep_alive);
    }

    #[test]
    fn a_declared_length_is_kept_or_the_message_is_broken() {
        let (wire, encoder) = encode(Version::Http11, 200, Some(3), &["abc", "surplus"]);
        assert!(wire.ends_with("\r\n\r\nabc"), "{wire}");
        assert!(encoder.is_finished() && encoder.keep_alive);
        let (_, encoder) = encode(Version::Http11, 200, Some(5), &["abc"]);
        assert!(!encoder.is_finished() && !encoder.keep_alive);
    }

    #[test]
    fn a_status_without_content_drops_what_is_written() {
        for status in [204, 304] {
            let (wire, encoder) = encode(Version::Http11, status, None, &["abc"]);
            assert!(wire.ends_with("\r\n\r\n") && !wire.contains("abc"), "{wire}");
            assert!(encoder.is_finished() && encoder.keep_alive);
        }
    }
}
