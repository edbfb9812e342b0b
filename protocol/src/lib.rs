//! The protocol layer of ringcat: HTTP/1.1 over bytes in and bytes out, the asynchronous state
//! machine, and the bookkeeping of exchanges. It opens no socket or file, reads no clock and
//! starts no thread. Stands for Tomcat's Coyote.
//!
//! A map of the crate:
//!
//! | module | what it is |
//! |---|---|
//! | [`protocol_handler`] | a core's connections as exchanges: pool, process loop, parking |
//! | [`http11`] | the HTTP/1.1 processor and its parser, decoder and encoder |
//! | [`async_state_machine`] | the 13 states, one pure transition function |
//! | [`async_cell`] | the part of an exchange that other threads touch |
//! | [`exchange_table`], [`waiting_set`], [`exchange_key`] | who is under way, who is parked, and their names |
//! | [`adapter`], [`action_code`] | what goes up to the container, and what it asks for |
//! | [`exchange`], [`request`], [`response`], [`response_fields`] | what an owner of an exchange owns |
#![forbid(unsafe_code)]

pub mod action_code;
pub mod adapter;
pub mod async_cell;
pub mod async_state_machine;
mod async_word;
pub mod exchange;
pub mod exchange_key;
pub mod exchange_table;
pub mod http11;
pub mod message;
pub mod protocol_error;
pub mod protocol_handler;
pub mod request;
pub mod response;
pub mod response_fields;
pub mod waiting_set;

pub use ringcat_engine::connection_handler::{SocketEvent, SocketState};
