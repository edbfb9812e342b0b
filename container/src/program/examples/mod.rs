//! The examples application.
//!
//! | module | what it is |
//! |---|---|
//! | [`application`] | which example is where |
//! | [`article`] | the articles' asynchronous servlets |
//! | [`plain`] | echo, status, stream and the like: what a probe of the protocol needs |
//! | [`delay`] | answers later, all from one thread |
//! | [`sleep`] | answers later, by an `async fn` on the core |
//! | [`live`] | a list that all visitors see grow: server-sent events and long polling |

mod application;
mod article;
mod delay;
mod live;
mod plain;
mod sleep;

pub(crate) use application::contexts;
