//! ringcat: a servlet container in Rust on thread-per-core io_uring rings.
#![forbid(unsafe_code)]

pub mod access_log;
pub mod cookie;
pub mod error;
pub mod error_report;
pub mod mapper;
pub mod methods;
pub mod uri;
pub mod url_pattern;
