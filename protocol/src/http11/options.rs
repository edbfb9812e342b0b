//! Limits of HTTP/1.1 connections. Each has a name, a default and a status.

use std::time::Duration;

use crate::{async_cell::CellLimits, http11::head::HeadLimits};

/// Limits and timeouts of the HTTP/1.1 protocol.
#[derive(Clone, Copy, Debug)]
pub struct Http11Options {
    /// Limits of a request's head: 414, 431.
    pub head: HeadLimits,
    /// Requests of one connection, after which it closes; the last answer says so. 0, the default,
    /// is no limit.
    pub keep_alive_requests_max: u32,
    /// Requests of one core that are under way, parked ones included; one more is 503. 65,536.
    pub requests_max: usize,
    /// Unread content that is swallowed after the response, in bytes; past it the connection
    /// closes. 2 MiB.
    pub swallow_bytes_max: u64,
    /// Decoded content that waits for a reader on the core before receiving stops, in bytes; for
    /// one on another thread [`CellLimits::high_water_bytes`] counts. 64 KiB.
    pub body_high_water_bytes: usize,
    /// How long an asynchronous round may take, unless the application says otherwise. 30 s;
    /// zero means for ever.
    pub async_timeout: Duration,
    /// Bounds of what other threads may queue.
    pub cell: CellLimits,
}

impl Default for Http11Options {
    fn default() -> Self {
        Self {
            head: HeadLimits::default(),
            keep_alive_requests_max: 0,
            requests_max: 65_536,
            swallow_bytes_max: 2 * 1024 * 1024,
            body_high_water_bytes: 64 * 1024,
            async_timeout: Duration::from_secs(30),
            cell: CellLimits::default(),
        }
    }
}
