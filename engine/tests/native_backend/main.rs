//! The native backend on a real ring, over loopback.

#![allow(clippy::unwrap_used, reason = "a test")]
#![allow(missing_docs, reason = "a test")]
#![allow(unreachable_pub, reason = "a test")]

mod echo;
mod harness;
