//! Reading and writing in the form that is awaited: what `async fn` servlets do in place of a
//! [`ReadListener`](crate::ReadListener) and [`WriteListener`](crate::WriteListener), and what
//! futures of other threads do with an [`AsyncContext`].

use std::future::poll_fn;

use ringcat_protocol::{action_code::Hook, async_state_machine::Flag};

use crate::{
    async_context::{
        AsyncContext, AsyncRequest, AsyncResponse, Content, note_io_error, read_error,
        write_refused,
    },
    error::{Error, Result},
    operation::ContainerOperation,
    request::{Request, worker_read_error},
    response::Response,
    uri,
};

impl Request {
    /// As [`Request::read`], and waits for content to come; for `async fn` servlets. Elsewhere it
    /// is that call.
    ///
    /// # Errors
    /// The content is broken or the client left.
    pub async fn read_async(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let Hook::Future { cell, .. } = &self.hook else { return self.read(buffer) };
        let read = poll_fn(|cx| cell.poll_read(buffer, cx.waker())).await;
        let read = read.map_err(worker_read_error);
        let count = read.inspect_err(|error| note_io_error(cell, error))?;
        Ok(self.note_read(count, buffer.len()))
    }

    /// Reads the rest of the content as it comes; for `async fn` servlets.
    ///
    /// # Errors
    /// As [`Request::read_async`]; a protocol violation (413) past `bytes_max`.
    pub async fn read_to_end_async(&mut self, bytes_max: usize) -> Result<Vec<u8>> {
        let mut content = Vec::new();
        let mut piece = [0; 8192];
        loop {
            match self.read_async(&mut piece).await? {
                0 => return Ok(content),
                count if content.len() + count > bytes_max => {
                    return Err(Error::protocol_violation(
                        413,
                        "the content is larger than the servlet takes",
                    ));
                }
                count => content.extend_from_slice(&piece[..count]),
            }
        }
    }

    /// Reads a form in the content as it comes, so that [`Request::parameter`] has its fields too;
    /// for `async fn` servlets. Without a form it does nothing.
    ///
    /// # Errors
    /// As [`Request::read_to_end_async`]; a form that cannot be decoded (400).
    pub async fn read_form_async(&mut self, bytes_max: usize) -> Result<()> {
        if self.is_form_unread() {
            let content = self.read_to_end_async(bytes_max).await?;
            self.note.seldom_mut().form = Some(uri::parse_query(&content)?);
            self.note.parameters = None;
        }
        Ok(())
    }
}

impl Response {
    /// As [`Response::write`], and waits while more than the high-water mark (64 KiB) is unsent;
    /// for `async fn` servlets. Elsewhere it is that call.
    ///
    /// # Errors
    /// As [`Response::write`].
    pub async fn write_async(&mut self, content: impl Into<Content>) -> Result<()> {
        let content = content.into().0;
        let Hook::Future { cell, .. } = self.hook.clone() else { return self.write(&content) };
        if let Some(refused) = self.take_refused() {
            return Err(refused);
        }
        if self.inner.is_finished || self.inner.is_suspended {
            return Ok(());
        }
        self.inner.written_bytes += content.len() as u64;
        let mut operation = Some(ContainerOperation::Write(content));
        let written = poll_fn(|cx| cell.poll_write(&mut operation, cx.waker())).await;
        written.map_err(write_refused).inspect_err(|error| note_io_error(&cell, error))
    }
}

impl AsyncRequest {
    /// As [`AsyncRequest::read`], and waits without a thread. Any executor.
    ///
    /// # Errors
    /// Illegal state: the request is over. I/O: the client left, or sent content that breaks its
    /// framing.
    pub async fn read_async(&self, buffer: &mut [u8]) -> Result<usize> {
        self.want_content();
        let read = poll_fn(|cx| self.cell.poll_read(buffer, cx.waker())).await;
        let read = read.map_err(read_error).inspect_err(|error| note_io_error(&self.cell, error));
        if !matches!(read, Ok(1..)) {
            self.leave_bytes();
        }
        read
    }
}

impl AsyncResponse {
    /// As [`AsyncResponse::write`], and waits without a thread while more than the high-water mark
    /// (64 KiB) is unsent. Any executor.
    ///
    /// # Errors
    /// Illegal state: the request is over. I/O: the connection failed.
    pub async fn write_async(&self, content: impl Into<Content>) -> Result<()> {
        let mut operation = Some(ContainerOperation::Write(content.into().0));
        let written = poll_fn(|cx| self.cell.poll_write(&mut operation, cx.waker())).await;
        written.map_err(write_refused).inspect_err(|error| note_io_error(&self.cell, error))
    }
}

impl AsyncContext {
    /// Tells whoever works for this request that its client may be gone; any thread.
    pub fn cancellation(&self) -> Cancellation {
        Cancellation { context: self.clone() }
    }
}

/// Fires when nobody may be there to take the answer any more: the client ended its sending side
/// ([`AsyncContext::peer_closed`]; it may still read), the connection failed, or the request is
/// over. Clones stand for the same request.
///
/// ```
/// use ringcat::{AsyncContext, Result};
///
/// /// Work in steps that gives up when it is for nobody.
/// fn work(context: &AsyncContext, steps: &mut dyn Iterator<Item = String>) -> Result<()> {
///     let cancellation = context.cancellation();
///     for step in steps {
///         if cancellation.is_cancelled() {
///             break;
///         }
///         context.response()?.write(step)?;
///     }
///     context.complete()
/// }
/// # let _ = work;
/// ```
#[derive(Clone, Debug)]
pub struct Cancellation {
    context: AsyncContext,
}

impl Cancellation {
    /// Whether it has fired. It stays so.
    pub fn is_cancelled(&self) -> bool {
        let word = self.context.parts.cell.word();
        word.has(Flag::PeerClosed) || word.has(Flag::IoError) || word.has(Flag::Closed)
    }

    /// Waits until it fires, without a thread. Any executor; within a second of what the client
    /// did.
    pub async fn cancelled(&self) {
        poll_fn(|cx| self.context.parts.cell.poll_client_gone(cx.waker())).await;
    }
}
