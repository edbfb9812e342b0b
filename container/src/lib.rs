//! ringcat: a servlet container in Rust on a thread-per-core io_uring engine.
//!
//! Servlets, filters, valves and contexts as the Servlet specification knows them, in Rust's
//! shape, and requests that *let go of the thread* while they wait:
//!
//! ```no_run
//! use std::{thread, time::Duration};
//!
//! use ringcat::{Connector, Context, HttpServlet, Methods, Request, Response, Result, Server};
//!
//! /// Answers in a second; holds no thread meanwhile.
//! struct Later;
//!
//! impl HttpServlet for Later {
//!     fn methods(&self) -> Methods {
//!         Methods::GET
//!     }
//!
//!     fn async_supported(&self) -> bool {
//!         true
//!     }
//!
//!     fn do_get(&self, req: &mut Request, _res: &mut Response) -> Result<()> {
//!         let context = req.start_async()?;
//!         thread::spawn(move || -> Result<()> {
//!             thread::sleep(Duration::from_secs(1));
//!             context.response()?.write("done\n")?;
//!             context.complete()
//!         });
//!         Ok(())
//!     }
//! }
//!
//! fn main() -> Result<()> {
//!     Server::builder()
//!         .connector(Connector::http("127.0.0.1:8080").async_timeout(Duration::from_secs(30)))
//!         .context(Context::new("/app").servlet("/later", Later))
//!         .run()
//! }
//! ```
//!
//! [`guide`] tells how requests let go of the thread, and what is called when.
//!
//! | module | what it is |
//! |---|---|
//! | [`server`] | connectors, hosts, start and drain |
//! | [`service`] | what a server serves, for the cores of any backend |
//! | [`context`] | an application: servlets, filters, patterns |
//! | [`servlet`], [`filter`], [`valve`] | what applications and operators write |
//! | [`request`], [`response`] | what they are called with |
//! | [`async_servlet`], [`async_io`] | servlets that are an `async fn`, and what they await |
//! | [`async_context`], [`async_listener`] | requests that let go of the thread |
//! | [`time`], [`net`], [`task`] | timers, TCP streams and tasks on a core |
//! | [`mapper`], [`uri`], [`url_pattern`] | from the target to the servlet |
//! | [`access_log`], [`error_report`] | what a request leaves behind |
#![forbid(unsafe_code)]

pub mod access_log;
pub mod async_context;
mod async_end;
mod async_error;
pub mod async_handle;
pub mod async_io;
pub mod async_listener;
pub mod async_servlet;
mod async_steps;
mod async_support;
pub mod container;
pub mod context;
pub mod cookie;
pub mod coyote_adapter;
pub mod dispatch;
pub mod error;
mod error_pages;
pub mod error_report;
pub mod filter;
mod guard;
pub mod guide;
pub mod mapper;
pub mod methods;
pub mod net;
pub mod operation;
pub mod request;
pub mod request_dispatcher;
pub mod request_listener;
pub mod request_note;
mod request_place;
mod request_rounds;
pub mod request_wrapper;
pub mod response;
pub mod server;
pub mod server_report;
pub mod service;
pub mod servlet;
mod servlet_task;
pub mod task;
pub mod time;
pub mod uri;
pub mod url_pattern;
pub mod valve;
mod watchdog;

pub use crate::{
    access_log::{AccessLog, AccessLogFormat, AccessLogTarget},
    async_context::{AsyncContext, AsyncRequest, AsyncResponse, Content},
    async_handle::AsyncHandle,
    async_io::Cancellation,
    async_listener::{AsyncEvent, AsyncListener, ReadListener, WriteListener},
    async_servlet::AsyncServlet,
    context::Context,
    cookie::Cookie,
    dispatch::DispatcherType,
    error::{Error, ErrorKind, Result},
    filter::{Filter, FilterChain},
    methods::Methods,
    request::Request,
    request_dispatcher::RequestDispatcher,
    request_listener::RequestListener,
    request_wrapper::RequestWrapper,
    response::Response,
    server::{Connector, Host, RunningServer, Server, ServerBuilder},
    server_report::{DeadlineReport, ServerReport},
    service::Service,
    servlet::{HttpServlet, ServiceMode, Servlet},
    valve::{Next, Valve},
};
pub use ringcat_engine::signals::Signals as ShutdownSignals;

/// The README's example is compiled with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
