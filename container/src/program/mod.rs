//! The parts of the server program.
//!
//! | module | what it is |
//! |---|---|
//! | [`options`] | the command line |
//! | [`log_sink`] | where log lines go, and how they look |
//! | [`welcome`] | the page at `/` |
//! | [`examples`] | the examples application |

pub(crate) mod examples;
pub(crate) mod log_sink;
pub(crate) mod options;
pub(crate) mod welcome;
