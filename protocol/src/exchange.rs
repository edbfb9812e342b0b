//! One request with its response: what parks, and what moves between owners. Recycled boxes of
//! plain data, `Send`; at any time one owner has them: the processor on its core, a call into the
//! adapter, or a worker thread that runs a blocking servlet.

use crate::{request::Request, response::Response};

/// Request, response and the container's part.
///
/// The three boxes are apart so that an owner can wrap each by value for the length of a call
/// without copying what is inside.
#[derive(Debug)]
pub struct Exchange<N> {
    /// The request.
    pub request: Box<Request>,
    /// The response.
    pub response: Box<Response>,
    /// The container's note: created once, found by position, recycled with the exchange.
    pub note: Box<N>,
}
