//! The I/O traits of other crates, so that their clients run on a core. They use what is their
//! own: no runtime is behind them.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use super::tcp_stream::TcpStream;

#[cfg(feature = "compat-hyper")]
impl hyper::rt::Read for TcpStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buf: hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let read = self.poll_read_with(cx, &mut |waiting| {
            let count = waiting.len().min(buf.remaining());
            buf.put_slice(&waiting[..count]);
            count
        });
        read.map_ok(|_count| ())
    }
}

#[cfg(feature = "compat-hyper")]
impl hyper::rt::Write for TcpStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Self::poll_write(&mut self, cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Self::poll_flush(&mut self, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Self::poll_shutdown(&mut self, cx)
    }
}

#[cfg(feature = "compat-futures")]
impl futures_io::AsyncRead for TcpStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        Self::poll_read(&mut self, cx, buf)
    }
}

#[cfg(feature = "compat-futures")]
impl futures_io::AsyncWrite for TcpStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Self::poll_write(&mut self, cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Self::poll_flush(&mut self, cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Self::poll_shutdown(&mut self, cx)
    }
}
