//! The HTTP/1.1 processor.
//!
//! | file | what it is |
//! |---|---|
//! | [`processor`] | its state, its life, the process loop |
//! | [`receive`] | heads and bodies in |
//! | [`call`] | calls into the adapter, and the end of an exchange |
//! | [`rounds`] | asynchronous rounds |
//! | [`delegated`] | an exchange that a worker thread has |
//! | [`pending`] | an exchange that a future on its core has |
//! | [`turn`] | what an event comes with |

mod call;
mod delegated;
mod pending;
#[expect(clippy::module_inception, reason = "a file is named after its main type")]
mod processor;
mod receive;
mod rounds;
mod turn;

pub(crate) use processor::Http11Processor;
pub(crate) use turn::{Cx, Turn};
