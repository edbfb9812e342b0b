//! HTTP/1.1 as pure functions: bytes in, values out. Nothing here opens a socket, reads a clock
//! or knows a servlet; the processor feeds it what has arrived and sends what it encodes.
//!
//! | file | what it decides |
//! | --- | --- |
//! | [`head`] | where a head ends, its request line and fields (RFC 9112 sections 2 to 5) |
//! | [`target`] | the form of the request target, its path and query (RFC 9112 section 3.2) |
//! | [`authority`] | host and port, of a target or of Host (RFC 3986 section 3.2) |
//! | [`framing`](mod@framing) | content length, Host, persistence, Expect (RFC 9112 section 6) |
//! | [`body_decoder`] | the content itself, whatever its framing |
//! | [`chunked_decoder`] | chunks, their extensions, trailers (RFC 9112 section 7.1) |
//! | [`response_head`] | how a response is framed and written (RFC 9112 sections 4, 6, 7.1) |
//! | [`options`] | limits and timeouts |
//! | `processor` | runs one connection's exchanges |
//! | `hook` | answers the container's asks |
//! | `response_encoder` | the sending half of one exchange |
//! | [`date`] | the Date field, formatted once a second (RFC 9110 section 5.6.7) |
//!
//! A request goes through [`HeadParser::parse`], [`parse_target`], [`framing()`] and a
//! [`BodyDecoder`], in this order. Each refuses what it cannot read in one way only: a
//! [`ProtocolError`](crate::protocol_error::ProtocolError) is answered and ends the connection.

pub mod authority;
pub mod body_decoder;
pub mod chunked_decoder;
pub mod date;
pub(crate) mod field_line;
pub mod framing;
pub mod head;
pub(crate) mod hook;
pub(crate) mod octet_class;
pub mod options;
pub(crate) mod processor;
pub(crate) mod response_encoder;
pub mod response_head;
pub mod target;

pub use authority::Authority;
pub use body_decoder::BodyDecoder;
pub use chunked_decoder::{ChunkedDecoder, Decoded};
pub use date::DateCache;
pub use framing::{BodyLength, Framing, framing};
pub use head::{Head, HeadLimits, HeadParser, HeadProgress, Span, Version};
pub use response_head::{
    CONTINUE, ConnectionField, ResponseFraming, ResponseHead, ResponseShape, encode_chunk,
    encode_head, encode_last_chunk, reason_phrase, response_framing,
};
pub use target::{Scheme, Target, TargetForm, parse_target};
