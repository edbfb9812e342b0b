//! The protocol layer of ringcat: HTTP/1.1 over bytes in and bytes out, the asynchronous state
//! machine, and the bookkeeping of exchanges. It opens no socket or file, reads no clock and
//! starts no thread.
#![forbid(unsafe_code)]

pub mod async_cell;
pub mod async_state_machine;
pub mod exchange_key;
pub mod http11;
pub mod protocol_error;
pub mod response_fields;
