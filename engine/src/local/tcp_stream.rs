//! A TCP connection of a core to somebody else, over the core's own ring. It stays on its core.

use std::{
    fmt,
    future::poll_fn,
    io,
    net::SocketAddr,
    rc::Rc,
    task::{Context, Poll},
};

use super::services::{LocalServices, OUTSIDE};
use crate::slab::SlabKey;

/// An outgoing TCP connection, for futures on the core that opened it.
///
/// Up to 64 KiB wait to be read, then the peer is held back; up to 64 KiB wait to be sent, then the
/// writer waits. Dropping it closes the connection at once: what was written and has not left may
/// be cut, [`TcpStream::flush`] or [`TcpStream::shutdown`] say when it has.
pub struct TcpStream {
    services: Rc<LocalServices>,
    key: SlabKey,
}

impl TcpStream {
    /// Connects to an address. Dropping the future gives the attempt up. It has no limit of its
    /// own but the kernel's: [`timeout`](super::sleep::timeout) gives it one.
    ///
    /// # Errors
    /// As connect(2): refused, unreachable, no descriptor left.
    ///
    /// # Panics
    /// On a thread that is no core's.
    pub async fn connect(address: SocketAddr) -> io::Result<Self> {
        let services = LocalServices::current().expect(OUTSIDE);
        let key = services.connect(address);
        // From here on its drop gives up what was begun.
        let stream = Self { services, key };
        poll_fn(|cx| stream.services.poll_connected(stream.key, cx)).await?;
        Ok(stream)
    }

    /// The other end.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.services.peer_of(self.key)
    }

    /// Reads what is there, or waits for it; 0 is the end of the stream.
    ///
    /// # Errors
    /// The connection failed.
    pub async fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        poll_fn(|cx| self.poll_read(cx, buffer)).await
    }

    /// Takes some of `bytes` to be sent, and waits while it can take none.
    ///
    /// # Errors
    /// The connection failed, or was shut down.
    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        poll_fn(|cx| self.poll_write(cx, bytes)).await
    }

    /// Takes all of `bytes` to be sent.
    ///
    /// # Errors
    /// As [`TcpStream::write`].
    pub async fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let count = self.write(bytes).await?;
            bytes = &bytes[count..];
        }
        Ok(())
    }

    /// Waits until all that was written is with the kernel.
    ///
    /// # Errors
    /// The connection failed.
    pub async fn flush(&mut self) -> io::Result<()> {
        poll_fn(|cx| self.poll_flush(cx)).await
    }

    /// Ends the sending side behind what was written. Reading goes on.
    ///
    /// # Errors
    /// The connection failed.
    pub async fn shutdown(&mut self) -> io::Result<()> {
        poll_fn(|cx| self.poll_shutdown(cx)).await
    }

    /// As [`TcpStream::read`].
    ///
    /// # Errors
    /// As there.
    pub fn poll_read(&mut self, cx: &Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        if buffer.is_empty() {
            return Poll::Ready(Ok(0));
        }
        self.poll_read_with(cx, &mut |waiting| {
            let count = waiting.len().min(buffer.len());
            buffer[..count].copy_from_slice(&waiting[..count]);
            count
        })
    }

    /// Lends what waits to `copy`, which answers how much of it is used up.
    pub(super) fn poll_read_with(
        &mut self,
        cx: &Context<'_>,
        copy: &mut dyn FnMut(&[u8]) -> usize,
    ) -> Poll<io::Result<usize>> {
        self.services.poll_read(self.key, cx, copy)
    }

    /// As [`TcpStream::write`].
    ///
    /// # Errors
    /// As there.
    pub fn poll_write(&mut self, cx: &Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.services.poll_write(self.key, cx, bytes)
    }

    /// As [`TcpStream::flush`].
    ///
    /// # Errors
    /// As there.
    pub fn poll_flush(&mut self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        self.services.poll_flush(self.key, cx)
    }

    /// As [`TcpStream::shutdown`].
    ///
    /// # Errors
    /// As there.
    pub fn poll_shutdown(&mut self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        self.services.poll_shutdown(self.key, cx)
    }
}

impl Drop for TcpStream {
    fn drop(&mut self) {
        self.services.drop_stream(self.key);
    }
}

impl fmt::Debug for TcpStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpStream").field("peer", &self.peer_addr()).finish_non_exhaustive()
    }
}
