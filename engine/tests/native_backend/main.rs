//! The native backend on a real ring, over loopback.

#![allow(clippy::unwrap_used, reason = "a test")]

mod connections;
mod denied;
mod echo;
mod engines;
mod harness;
mod pitfalls;
mod whole_core;
