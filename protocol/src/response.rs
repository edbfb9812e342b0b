//! A response as the protocol layer sees it: status, fields, the buffer in front of the commit.
//! Plain data and `Send`. Stands for Tomcat's `org.apache.coyote.Response`.

use crate::response_fields::ResponseFields;

/// Bytes that a response gathers before it commits, by default.
pub const BUFFER_BYTES: u32 = 8192;

/// A response.
#[derive(Debug)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// The text that `send_error` gave, for the error report: apart, since few have one and each
    /// parked response has the field.
    pub message: Option<Box<String>>,
    /// Header fields.
    pub fields: ResponseFields,
    /// The content length that the application announced.
    pub content_length: Option<u64>,
    /// Content that was written and not handed over yet.
    pub buffer: Vec<u8>,
    /// When the buffer is handed over, in bytes.
    pub buffer_bytes_max: u32,
    /// Content bytes written so far, those that the peer does not get (HEAD) included.
    pub written_bytes: u64,
    /// Whether the head is fixed and on its way.
    pub is_committed: bool,
    /// Whether the response is complete; later writes are dropped.
    pub is_finished: bool,
    /// Whether `send_error` ended the application's part: what it writes is dropped.
    pub is_suspended: bool,
    /// Whether a write listener writes it.
    pub has_write_listener: bool,
    /// What the access log says in place of the status: the request failed after that was sent.
    pub log_status: Option<u16>,
    /// Whether an error report is due.
    pub error: ErrorState,
}

/// How far a response is in reporting an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ErrorState {
    /// There is none.
    #[default]
    None,
    /// `send_error` was called, or the application failed: a report is due.
    ReportDue,
    /// The report was made.
    Reported,
}

impl Default for Response {
    fn default() -> Self {
        Self {
            status: 200,
            message: None,
            fields: ResponseFields::default(),
            content_length: None,
            buffer: Vec::new(),
            buffer_bytes_max: BUFFER_BYTES,
            written_bytes: 0,
            is_committed: false,
            is_finished: false,
            is_suspended: false,
            has_write_listener: false,
            log_status: None,
            error: ErrorState::None,
        }
    }
}

impl Response {
    pub(crate) fn recycle(&mut self) {
        let Self {
            status,
            message,
            fields,
            content_length,
            buffer,
            buffer_bytes_max,
            written_bytes,
            is_committed,
            is_finished,
            is_suspended,
            has_write_listener,
            log_status,
            error,
        } = self;
        *status = 200;
        *message = None;
        fields.clear();
        *content_length = None;
        buffer.clear();
        *buffer_bytes_max = BUFFER_BYTES;
        *written_bytes = 0;
        *is_committed = false;
        *is_finished = false;
        *is_suspended = false;
        *has_write_listener = false;
        *log_status = None;
        *error = ErrorState::None;
    }

    /// Makes what a parked response keeps exactly as large as its bytes; the storage goes back.
    pub(crate) fn give_back_buffer(&mut self) -> Vec<u8> {
        let exact =
            if self.buffer.is_empty() { Vec::new() } else { self.buffer.as_slice().to_vec() };
        let mut storage = std::mem::replace(&mut self.buffer, exact);
        storage.clear();
        storage
    }

    /// Takes the buffer's storage, its bytes dropped.
    pub(crate) fn take_buffer(&mut self) -> Vec<u8> {
        let mut storage = std::mem::take(&mut self.buffer);
        storage.clear();
        storage
    }

    /// Takes storage on loan, if the response has none of its own.
    pub(crate) fn lend_buffer(&mut self, storage: &mut Vec<u8>) {
        if storage.capacity() > self.buffer.capacity() {
            storage.extend_from_slice(&self.buffer);
            std::mem::swap(&mut self.buffer, storage);
            storage.clear();
        }
    }
}
