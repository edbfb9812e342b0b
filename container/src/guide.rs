//! # Letting go of the thread
//!
//! A servlet that waits holds its core, and a core that waits serves nobody. So a request that has
//! to wait lets go: [`Request::start_async`] keeps it open when `service` returns, as an entry in a
//! table of its core and a timer, two KiB with its connection, without a thread or task. Whoever
//! has the [`AsyncContext`] ends it later, from any thread.
//!
//! ```
//! use std::thread;
//! use ringcat::{Context, Request, Response, Result, Servlet};
//!
//! struct Later;
//! impl Servlet for Later {
//!     fn service(&self, req: &mut Request, _res: &mut Response) -> Result<()> {
//!         let context = req.start_async()?;
//!         thread::spawn(move || {
//!             // … whatever takes its time …
//!             let done = context.response().and_then(|response| response.write("done\n"));
//!             done.and_then(|()| context.complete())
//!         });
//!         Ok(())
//!     }
//!     fn is_async_supported(&self) -> bool {
//!         true
//!     }
//! }
//! let app = Context::new("/app").servlet("/later", Later);
//! # drop(app);
//! ```
//!
//! A servlet says that it may do so ([`Servlet::is_async_supported`]), and so must the filters and
//! valves before it; otherwise `start_async` is an illegal state, and a warning names who bars it.
//!
//! ## Three ways to end a round
//!
//! | call | what follows |
//! |---|---|
//! | [`AsyncContext::complete`] | what was written is sent, the request is over |
//! | [`AsyncContext::dispatch`], [`dispatch_to`](AsyncContext::dispatch_to) | the request goes to a servlet once more, which answers it or begins another round |
//! | none in time | `on_timeout` of the listeners; if none of them ends the round, 500 |
//!
//! They may be called by several threads at once: one of them ends the round, the others get an
//! illegal state and change nothing. A handle outlives its request without harm; later calls are
//! refused, also when the slot serves somebody else.
//!
//! ## Listeners
//!
//! ```
//! use std::time::Duration;
//! use ringcat::{AsyncEvent, AsyncListener, Request, Response, Result};
//!
//! struct Patience;
//! impl AsyncListener for Patience {
//!     fn on_timeout(&mut self, event: &mut AsyncEvent<'_>) -> Result<()> {
//!         event.response()?.send_error(503, Some("it takes too long, try again"))?;
//!         event.context().complete()
//!     }
//! }
//!
//! fn service(req: &mut Request, _res: &mut Response) -> Result<()> {
//!     let context = req.start_async()?;
//!     context.set_timeout(Duration::from_secs(5))?;
//!     context.add_listener(Patience)
//! }
//! # let _ = service;
//! ```
//!
//! What is called when, and where. *Owner* is the core of the request's connection; no two calls of
//! one request run at the same time, and one that fails or panics is logged and stops no other.
//!
//! | call | after which event | on which thread | how often | may end the round |
//! |---|---|---|---|---|
//! | [`on_timeout`](AsyncListener::on_timeout) | the round took longer than its timeout; a drain or the stop of the application ran out of patience | owner | at most once a round | yes |
//! | [`on_error`](AsyncListener::on_error) | the servlet failed after `start_async`, the client reset the connection, a thread met a broken connection, a read or write listener failed | owner | at most once a round | yes |
//! | [`on_complete`](AsyncListener::on_complete) | the request has ended, whichever way | owner; the worker thread, if a blocking servlet was the last target of a dispatch | exactly once a request | it has ended; the response may still be written |
//! | [`on_start_async`](AsyncListener::on_start_async) | the target of a dispatch began another round | owner | once a round but the first | yes; add yourself again to stay |
//! | [`on_data_available`](ReadListener::on_data_available) | content is there, or its end by an error, and a call is owed | owner | once for each `is_ready` that was no, and first | yes |
//! | [`on_all_data_read`](ReadListener::on_all_data_read) | all content was read | owner | once | yes |
//! | [`on_write_possible`](WriteListener::on_write_possible) | all that was written has left, and a call is owed | owner | once for each `is_ready` that was no, and first | yes |
//! | [`ReadListener::on_error`], [`WriteListener::on_error`] | reading or writing failed, or a call of the listener did | owner, before the `on_error` of the round | once | yes |
//! | [`on_request_initialized`](RequestListener::on_request_initialized), [`on_request_destroyed`](RequestListener::on_request_destroyed) | the request enters its application; it leaves it, after `on_complete` | where the servlet runs; owner | once a request | no |
//!
//! ## Servlets that are an `async fn`
//!
//! An [`AsyncServlet`] answers with a future on the request's core. It awaits content, room for its
//! answer, a timer, another server, or whatever a waker of another runtime brings on, and holds its
//! core only in between. Its future need not be `Send`.
//!
//! ```
//! use std::time::Duration;
//! use ringcat::{Context, Methods, Result};
//!
//! let app = Context::new("/app")
//!     .async_get("/later", async |_req, res| {
//!         ringcat::time::sleep(Duration::from_secs(1)).await;
//!         res.write("done\n")
//!     })
//!     .async_method(Methods::POST, "/upper", async |req, res| {
//!         let mut piece = [0; 4096];
//!         loop {
//!             match req.read_async(&mut piece).await? {
//!                 0 => return Ok(()),
//!                 count => res.write_async(piece[..count].to_ascii_uppercase()).await?,
//!             }
//!         }
//!     });
//! # drop(app);
//! ```
//!
//! A future that is ready at its first poll is a plain servlet: nothing is asynchronous. At its
//! first wait a round begins for it, in which [`Request::async_context`] answers, and which
//! completes when the future is ready; an error or panic after that goes to the listeners first.
//! Who calls [`Request::start_async`] in a future has a round of its own and ends it itself.
//!
//! | what happens | what becomes of the future |
//! |---|---|
//! | it returns | the request is completed; filters and valves returned long before, at its first wait |
//! | the round times out, by [`Connector::async_timeout`](crate::Connector::async_timeout) or [`AsyncContext::set_timeout`] | dropped on its core, then `on_timeout` |
//! | the client resets the connection, or ends its stream where that counts as the end | dropped, then `on_error` |
//! | another thread calls `complete` or `dispatch` | dropped, then what was asked for; what it wrote is sent |
//! | it panics | dropped, then `on_error`; the core lives |
//!
//! A client that only ended its sending side changes nothing by itself; a future that wants to know
//! awaits [`Cancellation::cancelled`].
//!
//! ## Reading and writing without a thread
//!
//! A [`ReadListener`] is called when there is content, a [`WriteListener`] when there is room. Each
//! works as long as `is_ready` says yes; a no is the promise of another call. A body of any size
//! passes through bounded memory.
//!
//! ```
//! use ringcat::{AsyncContext, ReadListener, Request, Response, Result};
//!
//! struct Count {
//!     context: AsyncContext,
//!     bytes: usize,
//! }
//! impl ReadListener for Count {
//!     fn on_data_available(&mut self, req: &mut Request, _res: &mut Response) -> Result<()> {
//!         let mut piece = [0; 8192];
//!         while req.is_ready() && !req.is_finished() {
//!             self.bytes += req.read(&mut piece)?;
//!         }
//!         Ok(())
//!     }
//!     fn on_all_data_read(&mut self, _req: &mut Request, res: &mut Response) -> Result<()> {
//!         res.write(format!("{} bytes\n", self.bytes))?;
//!         self.context.complete()
//!     }
//! }
//!
//! // In a servlet whose mode is `ServiceMode::Streaming`:
//! fn service(req: &mut Request, _res: &mut Response) -> Result<()> {
//!     let context = req.start_async()?;
//!     req.set_read_listener(Count { context, bytes: 0 })
//! }
//! # let _ = service;
//! ```
//!
//! ## Writing from other threads
//!
//! [`AsyncContext::response`] is for any thread. Calls take effect in call order over all clones,
//! before whatever ends the request. A response may have 64 KiB on the way to a client that does
//! not read: then [`write`](AsyncResponse::write) waits on a thread of the application, and is
//! refused on a core, where nothing may wait; [`try_write`](AsyncResponse::try_write) never waits,
//! and [`write_async`](AsyncResponse::write_async) waits in a future, of any executor.
//!
//! ## The client that leaves
//!
//! A parked request learns within a second, and without a write, what its client did. A reset is an
//! error: `on_error`, then `on_complete`. A client that only ended its sending side may still want
//! its answer, so that changes [`AsyncContext::peer_closed`] and nothing else, unless the request
//! asked for more: its connector ([`Connector::end_on_peer_close`](crate::Connector)), its servlet
//! ([`Servlet::end_on_peer_close`]), or itself ([`Request::set_end_on_peer_close`]). A stream of
//! events does.

#[cfg(doc)]
use crate::{
    AsyncContext, AsyncListener, AsyncResponse, AsyncServlet, Cancellation, ReadListener, Request,
    RequestListener, Servlet, WriteListener,
};
