//! Reads answers out of what a client received, wherever the pieces were cut, and has every byte
//! of their content checked.

use crate::{checkers::Seen, plan::Plan, run::run};

/// An answer that is whole.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// The request that it says it answers.
    pub(crate) named: Option<u64>,
    /// Whose field it has that not every answer has.
    pub(crate) extra: Option<u64>,
    pub(crate) content_bytes: usize,
    pub(crate) closes: bool,
}

/// How far an answer is.
#[derive(Debug)]
pub(crate) enum Progress {
    Incomplete,
    /// The client is to send the content.
    Continue,
    Whole(Answer),
    Broken(String),
}

/// How the content of an answer ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    None,
    Length(usize),
    Chunked,
    UntilClose,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Head,
    /// Bytes of the content, or of the chunk, that are left.
    Content(usize),
    ChunkSize,
    ChunkEnd,
    LastLine,
}

/// Reads one answer after the other.
#[derive(Debug)]
pub(crate) struct AnswerReader {
    received: Vec<u8>,
    taken: usize,
    stage: Stage,
    framing: Framing,
    status: u16,
    named: Option<u64>,
    extra: Option<u64>,
    closes: bool,
    content_bytes: usize,
    is_tagged: bool,
}

impl Default for AnswerReader {
    fn default() -> Self {
        Self {
            received: Vec::new(),
            taken: 0,
            stage: Stage::Head,
            framing: Framing::None,
            status: 0,
            named: None,
            extra: None,
            closes: false,
            content_bytes: 0,
            is_tagged: false,
        }
    }
}

impl AnswerReader {
    /// Where received bytes go.
    pub(crate) fn window(&mut self) -> &mut Vec<u8> {
        self.received.drain(..std::mem::take(&mut self.taken));
        &mut self.received
    }

    pub(crate) fn rest(&self) -> String {
        String::from_utf8_lossy(&self.received[self.taken..]).into_owned()
    }

    /// How far the present answer is, in words.
    pub(crate) fn progress(&self) -> String {
        let Self { stage, framing, status, content_bytes, .. } = self;
        format!("{status} {framing:?} {stage:?} after {content_bytes} bytes of content")
    }

    pub(crate) fn has_rest(&self) -> bool {
        self.taken < self.received.len()
    }

    /// Content of the present answer so far.
    pub(crate) fn content_bytes(&self) -> usize {
        self.content_bytes
    }

    /// Goes on with the answer to a request.
    pub(crate) fn advance(&mut self, number: u64, plan: &Plan, is_end: bool) -> Progress {
        loop {
            let step = match self.stage {
                Stage::Head => match self.take_head(plan) {
                    Ok(true) if self.status == 100 => {
                        self.stage = Stage::Head;
                        self.framing = Framing::None;
                        return Progress::Continue;
                    }
                    step => step,
                },
                Stage::Content(left) => self.take_content(number, left, is_end),
                Stage::ChunkSize => self.take_chunk_size(),
                Stage::ChunkEnd => self.take_empty_line(Stage::ChunkSize),
                Stage::LastLine => match self.take_empty_line(Stage::Head) {
                    Ok(true) => return self.whole(),
                    step => step,
                },
            };
            match step {
                Ok(true) if self.stage == Stage::Content(0) => match self.framing {
                    Framing::Chunked => self.stage = Stage::ChunkEnd,
                    Framing::None | Framing::Length(_) => return self.whole(),
                    Framing::UntilClose => {}
                },
                Ok(true) => {}
                Ok(false) if is_end && self.framing == Framing::UntilClose => return self.whole(),
                Ok(false) => return Progress::Incomplete,
                Err(why) => return Progress::Broken(why),
            }
        }
    }

    fn whole(&mut self) -> Progress {
        self.stage = Stage::Head;
        Progress::Whole(Answer {
            status: self.status,
            named: self.named,
            extra: self.extra,
            content_bytes: std::mem::take(&mut self.content_bytes),
            closes: self.closes,
        })
    }

    fn take_head(&mut self, plan: &Plan) -> Result<bool, String> {
        let rest = &self.received[self.taken..];
        let Some(end) = rest.windows(4).position(|window| window == b"\r\n\r\n") else {
            return Ok(false);
        };
        let head = std::str::from_utf8(&rest[..end]).map_err(|error| error.to_string())?;
        let mut lines = head.split("\r\n");
        let status_line = lines.next().unwrap_or("");
        let status = status_line.strip_prefix("HTTP/1.1 ").and_then(|line| line.get(..3));
        let status = status.and_then(|status| status.parse().ok());
        self.status = status.ok_or_else(|| format!("no status line: {status_line:?}"))?;
        self.named = None;
        self.extra = None;
        self.closes = false;
        self.framing = Framing::UntilClose;
        for line in lines {
            let (name, value) =
                line.split_once(": ").ok_or_else(|| format!("no field: {line:?}"))?;
            if name.eq_ignore_ascii_case("x-id") {
                self.named = value.parse().ok();
            } else if name.eq_ignore_ascii_case("x-extra") {
                self.extra = value.parse().ok();
            } else if name.eq_ignore_ascii_case("content-length") {
                let length = value.parse().map_err(|_| format!("no length: {value:?}"))?;
                self.framing = Framing::Length(length);
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                self.framing = Framing::Chunked;
            } else if name.eq_ignore_ascii_case("connection") {
                self.closes = value.eq_ignore_ascii_case("close");
            }
        }
        self.taken += end + 4;
        if plan.is_head {
            self.framing = Framing::None;
        }
        self.is_tagged = self.status == 200;
        self.stage = match self.framing {
            Framing::None => Stage::Content(0),
            Framing::Length(length) => Stage::Content(length),
            Framing::Chunked => Stage::ChunkSize,
            Framing::UntilClose => Stage::Content(usize::MAX),
        };
        Ok(true)
    }

    fn take_content(&mut self, number: u64, left: usize, is_end: bool) -> Result<bool, String> {
        let rest = &self.received[self.taken..];
        if rest.is_empty() {
            let _ = is_end;
            return Ok(false);
        }
        let count = rest.len().min(left);
        if self.is_tagged {
            let bytes = &rest[..count];
            run().see(&Seen::Downloaded { number, offset: self.content_bytes, bytes });
        }
        self.taken += count;
        self.content_bytes += count;
        self.stage = Stage::Content(left - count);
        Ok(true)
    }

    fn take_line(&mut self) -> Option<String> {
        let rest = &self.received[self.taken..];
        let end = rest.windows(2).position(|window| window == b"\r\n")?;
        let line = String::from_utf8_lossy(&rest[..end]).into_owned();
        self.taken += end + 2;
        Some(line)
    }

    fn take_chunk_size(&mut self) -> Result<bool, String> {
        let Some(line) = self.take_line() else { return Ok(false) };
        let size = usize::from_str_radix(&line, 16).map_err(|_| format!("no size: {line:?}"))?;
        self.stage = if size == 0 { Stage::LastLine } else { Stage::Content(size) };
        Ok(true)
    }

    fn take_empty_line(&mut self, next: Stage) -> Result<bool, String> {
        match self.take_line() {
            None => Ok(false),
            Some(line) if line.is_empty() => {
                self.stage = next;
                Ok(true)
            }
            Some(line) => Err(format!("{line:?} where an empty line belongs")),
        }
    }
}
