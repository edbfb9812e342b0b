//! What a peer did wrong: a status to answer and a reason for the log. The connection closes
//! after the answer, since the length of the broken message is in doubt.

use std::fmt;

/// A peer's mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProtocolError {
    /// The status to answer.
    pub status: u16,
    /// What was wrong, lower case, without the peer's bytes.
    pub reason: &'static str,
}

impl ProtocolError {
    /// A malformed message: 400 (RFC 9110 section 15.5.1).
    pub const fn bad_request(reason: &'static str) -> Self {
        Self { status: 400, reason }
    }

    /// A mistake with its own status.
    pub const fn new(status: u16, reason: &'static str) -> Self {
        Self { status, reason }
    }
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.reason, self.status)
    }
}

impl std::error::Error for ProtocolError {}

/// The stream ended before the content did.
pub const BODY_CUT: ProtocolError =
    ProtocolError::bad_request("the connection ended inside the content");
