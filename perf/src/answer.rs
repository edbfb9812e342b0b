//! Reads one HTTP/1.1 response, byte for byte. It understands what a server under test sends to a
//! GET: content by length or in chunks.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::TcpStream,
};

/// Bytes of a line at most.
const LINE_BYTES_MAX: u64 = 16 * 1024;
/// Bytes of content at most, in all or in one chunk.
const CONTENT_BYTES_MAX: usize = 64 * 1024 * 1024;

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// The status code.
    pub(crate) status: u16,
    /// The content, chunks put together.
    pub(crate) content: Vec<u8>,
    /// All bytes as they came.
    pub(crate) raw: Vec<u8>,
}

/// The head of a GET; `padding_bytes` of a field of no meaning make it as long as that of a
/// browser.
pub(crate) fn request_head(path: &str, host: &str, padding_bytes: usize) -> Vec<u8> {
    let mut head = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n");
    if padding_bytes > 0 {
        head += &format!("X-Padding: {}\r\n", "p".repeat(padding_bytes));
    }
    head += "\r\n";
    head.into_bytes()
}

/// Sends a head and reads its answer.
///
/// # Errors
/// As [`Answer::read`].
pub(crate) fn exchange(connection: &mut BufReader<TcpStream>, head: &[u8]) -> io::Result<Answer> {
    connection.get_mut().write_all(head)?;
    Answer::read(connection)
}

impl Answer {
    /// Reads the next response, and nothing after it.
    ///
    /// # Errors
    /// `UnexpectedEof` if the connection ends before the response, `InvalidData` if it is no
    /// response, and what reading gives.
    pub(crate) fn read(stream: &mut impl BufRead) -> io::Result<Self> {
        let mut raw = Vec::new();
        let status = parse_status(read_line(stream, &mut raw)?)?;
        let mut framing = Framing::Length(0);
        loop {
            let line = read_line(stream, &mut raw)?;
            if line.is_empty() {
                break;
            }
            if let Some(found) = Framing::parse(line)? {
                framing = found;
            }
        }
        let mut content = Vec::new();
        match framing {
            Framing::Length(len) => read_content(stream, len, &mut raw, &mut content)?,
            Framing::Chunked => loop {
                let line = read_line(stream, &mut raw)?;
                let len = usize::from_str_radix(line, 16).map_err(|_| invalid("chunk", line))?;
                read_content(stream, len, &mut raw, &mut content)?;
                let end = read_line(stream, &mut raw)?;
                if !end.is_empty() {
                    return Err(invalid("end of a chunk", end));
                }
                if len == 0 {
                    break;
                }
            },
        }
        Ok(Self { status, content, raw })
    }
}

/// How the content ends.
#[derive(Clone, Copy)]
enum Framing {
    Length(usize),
    Chunked,
}

impl Framing {
    /// `None` for a field that says nothing about it.
    fn parse(line: &str) -> io::Result<Option<Self>> {
        let (name, value) = line.split_once(':').ok_or_else(|| invalid("field", line))?;
        let value = value.trim();
        if name.eq_ignore_ascii_case("content-length") {
            let len = value.parse().map_err(|_| invalid("content length", line))?;
            return Ok(Some(Self::Length(len)));
        }
        let is_chunked =
            name.eq_ignore_ascii_case("transfer-encoding") && value.eq_ignore_ascii_case("chunked");
        Ok(is_chunked.then_some(Self::Chunked))
    }
}

/// Reads a line; the text is without its end.
fn read_line<'raw>(stream: &mut impl BufRead, raw: &'raw mut Vec<u8>) -> io::Result<&'raw str> {
    let start = raw.len();
    stream.take(LINE_BYTES_MAX).read_until(b'\n', raw)?;
    let line = str::from_utf8(&raw[start..]).map_err(|_| invalid("line", "not UTF-8"))?;
    if line.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    line.strip_suffix("\r\n").ok_or_else(|| invalid("line", line))
}

fn read_content(
    stream: &mut impl BufRead,
    len: usize,
    raw: &mut Vec<u8>,
    content: &mut Vec<u8>,
) -> io::Result<()> {
    if len > CONTENT_BYTES_MAX {
        return Err(invalid("content", &format!("{len} bytes, at most {CONTENT_BYTES_MAX}")));
    }
    let start = raw.len();
    raw.resize(start + len, 0);
    stream.read_exact(&mut raw[start..])?;
    content.extend_from_slice(&raw[start..]);
    Ok(())
}

fn parse_status(line: &str) -> io::Result<u16> {
    let code = line.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3));
    code.and_then(|code| code.parse().ok()).ok_or_else(|| invalid("status line", line))
}

fn invalid(what: &str, text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not a {what}: {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> io::Result<(u16, String, usize)> {
        let mut rest = bytes;
        let answer = Answer::read(&mut rest)?;
        assert_eq!(answer.raw, bytes[..bytes.len() - rest.len()], "all that was taken");
        Ok((answer.status, String::from_utf8(answer.content).unwrap(), rest.len()))
    }

    #[test]
    fn reads_one_answer_and_leaves_the_next() {
        let check = |bytes: &[u8], status, content: &str| {
            let twice = bytes.repeat(2);
            assert_eq!(read(&twice).unwrap(), (status, content.to_owned(), bytes.len()));
        };
        check(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\ndone\n", 200, "done\n");
        check(b"HTTP/1.1 204 No Content\r\nDate: x\r\n\r\n", 204, "");
        check(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\ndon\r\n1\r\ne\r\n0\r\n\r\n",
            200,
            "done",
        );
    }

    #[test]
    fn refuses_what_is_cut_or_no_answer() {
        let whole = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\ndone\n";
        for end in 0..whole.len() {
            assert!(read(&whole[..end]).is_err(), "cut at {end}");
        }
        let check = |bytes: &[u8]| {
            assert_eq!(read(bytes).unwrap_err().kind(), io::ErrorKind::InvalidData, "{bytes:?}");
        };
        check(b"HTTP/1.0 200 OK\r\n\r\n");
        check(b"HTTP/1.1 abc\r\n\r\n");
        check(b"HTTP/1.1 200 OK\r\nnonsense\r\n\r\n");
        check(b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n");
        check(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n");
    }

    #[test]
    fn a_request_head_is_padded() {
        assert_eq!(request_head("/a", "b", 0), b"GET /a HTTP/1.1\r\nHost: b\r\n\r\n");
        let padded = request_head("/a", "b", 3);
        assert_eq!(padded, b"GET /a HTTP/1.1\r\nHost: b\r\nX-Padding: ppp\r\n\r\n");
    }
}
