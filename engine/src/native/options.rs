//! The knobs of the native backend.

use std::io;

/// How bytes are received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RecvMode {
    /// Multishot where the kernel shares a core fairly between connections (6.8), else single.
    #[default]
    Auto,
    /// One submission receives until it is cancelled.
    Multi,
    /// One submission a receive.
    Single,
}

/// The knobs of the native backend; all per core.
#[derive(Clone, Debug)]
pub struct NativeOptions {
    /// Submission queue entries; a power of two. Default 1024. Halved down to 256 where locked
    /// memory is short.
    pub sq_entries: u32,
    /// Completion queue entries; a power of two. Default 4096. Keep it at four times
    /// `sq_entries`: a full completion queue ends multishot operations.
    pub cq_entries: u32,
    /// How bytes are received. Default [`RecvMode::Auto`].
    pub recv_mode: RecvMode,
    /// Size of a receive buffer in bytes. Default 16 KiB.
    pub recv_buf_bytes: u32,
    /// Receive buffers, a power of two of at most 32,768. Default `None`: 256, or 1024 on kernels
    /// before 6.15, where one turn may bring every ready receive.
    pub recv_bufs: Option<u16>,
    /// Connections that wait to be accepted, a listening socket. Default 4096; the kernel cuts it
    /// down to `net.core.somaxconn`.
    pub backlog: i32,
    /// Connections accepted a turn; the rest wait for the next. Default 256.
    pub accept_burst: usize,
    /// Connections open at once. At the limit no more are accepted until one closes; they wait in
    /// the backlog. Default 65,536.
    pub connections_max: usize,
}

impl Default for NativeOptions {
    fn default() -> Self {
        Self {
            sq_entries: 1024,
            cq_entries: 4096,
            recv_mode: RecvMode::Auto,
            recv_buf_bytes: 16 * 1024,
            recv_bufs: None,
            backlog: 4096,
            accept_burst: 256,
            connections_max: 65_536,
        }
    }
}

impl NativeOptions {
    /// Receive buffers on a kernel that has, or has not, `IORING_ENTER_NO_IOWAIT` (6.15).
    pub(crate) fn recv_bufs_on(&self, has_no_iowait: bool) -> u16 {
        self.recv_bufs.unwrap_or(if has_no_iowait { 256 } else { 1024 })
    }

    /// Refuses what no ring can be made of.
    ///
    /// # Errors
    /// `InvalidInput` with the name, the value and what is allowed.
    pub(crate) fn check(&self) -> io::Result<()> {
        check_range("sq_entries", self.sq_entries, 2, 32_768)?;
        check_range("cq_entries", self.cq_entries, 4, 65_536)?;
        check_range("recv_buf_bytes", self.recv_buf_bytes, 1, 1 << 30)?;
        let recv_bufs = self.recv_bufs.unwrap_or(256);
        check_range("recv_bufs", u32::from(recv_bufs), 1, 32_768)?;
        let is_known = [self.sq_entries, self.cq_entries, u32::from(recv_bufs)]
            .into_iter()
            .all(u32::is_power_of_two);
        if !is_known || self.cq_entries < self.sq_entries {
            return Err(invalid(format!(
                "sq_entries {}, cq_entries {} and recv_bufs {recv_bufs} must be powers of two, \
                 cq_entries not below sq_entries",
                self.sq_entries, self.cq_entries
            )));
        }
        if self.accept_burst == 0 || self.connections_max == 0 {
            return Err(invalid("accept_burst and connections_max must be at least 1".to_owned()));
        }
        Ok(())
    }
}

fn check_range(name: &str, value: u32, min: u32, max: u32) -> io::Result<()> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(invalid(format!("{name} is {value}, allowed are {min} to {max}")))
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_values_are_refused_by_name() {
        let good = NativeOptions::default();
        good.check().expect("the defaults are allowed");
        let check = |change: fn(&mut NativeOptions), expected: &str| {
            let mut options = NativeOptions::default();
            change(&mut options);
            let error = options.check().expect_err(expected);
            assert!(error.to_string().contains(expected), "{error} should name {expected}");
        };
        check(|o| o.sq_entries = 0, "sq_entries is 0");
        check(|o| o.sq_entries = 1000, "powers of two");
        check(|o| o.cq_entries = 512, "not below");
        check(|o| o.recv_bufs = Some(33), "recv_bufs 33");
        check(|o| o.recv_bufs = Some(0), "recv_bufs is 0");
        check(|o| o.recv_buf_bytes = 0, "recv_buf_bytes is 0");
        check(|o| o.accept_burst = 0, "accept_burst");
    }

    #[test]
    fn older_kernels_get_more_buffers() {
        let options = NativeOptions::default();
        assert_eq!((options.recv_bufs_on(true), options.recv_bufs_on(false)), (256, 1024));
        let options = NativeOptions { recv_bufs: Some(4), ..options };
        assert_eq!((options.recv_bufs_on(true), options.recv_bufs_on(false)), (4, 4));
    }
}
