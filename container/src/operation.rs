//! What other threads ask of an exchange: the operations of a cell's list, in call order.

use bytes::Bytes;
use ringcat_protocol::async_cell::Operation;

use crate::{
    async_listener::{AddedListener, ReadListener, WriteListener},
    dispatch::DispatchTarget,
};

/// One ask.
pub enum ContainerOperation {
    /// Content.
    Write(Bytes),
    /// Put what was written on its way.
    Flush,
    /// Set the status.
    Status(u16),
    /// Set a field.
    SetHeader(String, Vec<u8>),
    /// Add a field.
    AddHeader(String, Vec<u8>),
    /// Remove a field.
    RemoveHeader(String),
    /// Announce the content length.
    ContentLength(u64),
    /// Drop what is buffered, fields and status too.
    Reset,
    /// Drop what is buffered.
    ResetBuffer,
    /// Set the size of the buffer.
    BufferSize(usize),
    /// Answer with an error report.
    SendError(u16, Option<String>),
    /// The application failed; a report with this status is due.
    Failed(u16),
    /// The application's part is over.
    Finish,
    /// Add a listener to the present round.
    AddListener(AddedListener),
    /// Set the read listener.
    SetReadListener(Box<dyn ReadListener>),
    /// Set the write listener.
    SetWriteListener(Box<dyn WriteListener>),
    /// End the content: what is buffered is sent, nothing follows.
    Close,
    /// A round was begun; comes with the transition.
    RoundBegan,
    /// Where the exchange is dispatched to; comes with the transition.
    Dispatch(DispatchTarget),
    /// A task of `AsyncContext::start` failed.
    TaskFailed(crate::error::Error),
}

impl Operation for ContainerOperation {
    fn credit_bytes(&self) -> usize {
        match self {
            Self::Write(bytes) => bytes.len(),
            Self::Flush
            | Self::Status(_)
            | Self::SetHeader(..)
            | Self::AddHeader(..)
            | Self::RemoveHeader(_)
            | Self::ContentLength(_)
            | Self::Reset
            | Self::ResetBuffer
            | Self::BufferSize(_)
            | Self::SendError(..)
            | Self::Failed(_)
            | Self::Finish
            | Self::AddListener(_)
            | Self::SetReadListener(_)
            | Self::SetWriteListener(_)
            | Self::Close
            | Self::RoundBegan
            | Self::Dispatch(_)
            | Self::TaskFailed(_) => 0,
        }
    }

    /// What only an uncommitted response takes is refused under the lock that the commit needs.
    fn changes_head(&self) -> bool {
        matches!(
            self,
            Self::Status(_)
                | Self::SetHeader(..)
                | Self::AddHeader(..)
                | Self::RemoveHeader(_)
                | Self::ContentLength(_)
                | Self::Reset
                | Self::ResetBuffer
                | Self::BufferSize(_)
                | Self::SendError(..)
        )
    }

    fn commits(&self) -> bool {
        matches!(self, Self::Flush | Self::Close)
    }
}

impl ContainerOperation {
    /// Whether the operation concerns the response, and not request or round.
    pub(crate) fn is_of_response(&self) -> bool {
        !matches!(
            self,
            Self::AddListener(_)
                | Self::SetReadListener(_)
                | Self::SetWriteListener(_)
                | Self::RoundBegan
                | Self::Dispatch(_)
                | Self::TaskFailed(_)
        )
    }
}
