//! A live list: what one visitor posts, all others see at once, by server-sent events or by long
//! polling. Who waits is a parked request; no thread waits with it, and a post wakes all of them.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use ringcat::{
    AsyncContext, AsyncEvent, AsyncListener, Context, Error, HttpServlet, Methods, Request,
    Response, Result,
};

/// Entries that are kept for those who come later.
const KEPT_MAX: usize = 50;

/// Characters of an entry.
const ENTRY_MAX: usize = 200;

/// How long a poll waits before it answers that there is nothing.
const POLL_TIMEOUT: Duration = Duration::from_secs(25);

/// Declares the page and what it asks for.
pub(super) fn declare(context: Context) -> Context {
    let board = Arc::new(Board::default());
    let (posts, polls) = (Arc::clone(&board), Arc::clone(&board));
    context
        .get("/live", |_req, res| {
            res.set_content_type("text/html;charset=utf-8");
            res.write(include_str!("../../../assets/live.html"))
        })
        .post("/live/post", move |req, res| {
            let text = req.parameter("text")?.unwrap_or("").trim().to_owned();
            if text.is_empty() || text.chars().count() > ENTRY_MAX {
                let why = format!("write 1 to {ENTRY_MAX} characters into the field text");
                return res.send_error(400, Some(&why));
            }
            posts.post(&text);
            res.set_status(204);
            Ok(())
        })
        .named_servlet("live-events", &["/live/events"], Events(board))
        .named_servlet("live-poll", &["/live/poll"], Poll(polls))
}

/// What was posted, and who waits for more.
#[derive(Default)]
struct Board {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Numbers and texts, the newest last.
    entries: VecDeque<(u64, String)>,
    last_number: u64,
    streams: Vec<(u64, AsyncContext)>,
    polls: Vec<(u64, AsyncContext)>,
    last_waiter: u64,
}

impl State {
    /// The entries behind a number, a line each.
    fn after(&self, number: u64) -> Vec<&(u64, String)> {
        self.entries.iter().filter(|(own, _)| *own > number).collect()
    }
}

fn event((number, text): &(u64, String)) -> String {
    // A line end would begin another field.
    format!("id: {number}\ndata: {}\n\n", text.replace(['\r', '\n'], " "))
}

fn line((number, text): &(u64, String)) -> String {
    format!("{number} {}\n", text.replace(['\r', '\n'], " "))
}

impl Board {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps an entry and tells all who wait. Never waits itself: whoever does not read is let go.
    fn post(&self, text: &str) {
        let mut state = self.lock();
        state.last_number += 1;
        let entry = (state.last_number, text.to_owned());
        let (streams, polls) = (state.streams.clone(), std::mem::take(&mut state.polls));
        let (event, line) = (event(&entry), line(&entry));
        state.entries.push_back(entry);
        if state.entries.len() > KEPT_MAX {
            state.entries.pop_front();
        }
        drop(state);
        for (_, context) in streams {
            if let Err(error) = send(&context, &event) {
                tracing::info!(target: "live", "a stream ends: {error}");
                end(&context);
            }
        }
        for (_, context) in polls {
            if let Err(error) = context.response().and_then(|res| res.try_write(&*line)) {
                tracing::info!(target: "live", "a poll is lost: {error}");
            }
            end(&context);
        }
    }
}

fn send(context: &AsyncContext, text: &str) -> Result<()> {
    let response = context.response()?;
    response.try_write(text)?;
    response.flush()
}

fn end(context: &AsyncContext) {
    if let Err(error) = context.complete() {
        tracing::debug!(target: "live", "it had ended: {error}");
    }
}

/// Takes a request that has ended off the board.
struct Leaving {
    board: Arc<Board>,
    waiter: u64,
}

impl AsyncListener for Leaving {
    fn on_timeout(&mut self, event: &mut AsyncEvent<'_>) -> Result<()> {
        event.response()?.set_status(204);
        event.context().complete()
    }

    fn on_complete(&mut self, _event: &mut AsyncEvent<'_>) -> Result<()> {
        let mut state = self.board.lock();
        state.streams.retain(|(waiter, _)| *waiter != self.waiter);
        state.polls.retain(|(waiter, _)| *waiter != self.waiter);
        Ok(())
    }
}

fn number(text: Option<&str>) -> Result<u64> {
    match text {
        None | Some("") => Ok(0),
        Some(text) => text.trim().parse().map_err(|_| {
            Error::protocol_violation(400, format!("{text:?} is no number of an entry"))
        }),
    }
}

/// A stream of events that ends with its client.
struct Events(Arc<Board>);

impl HttpServlet for Events {
    fn methods(&self) -> Methods {
        Methods::GET
    }

    fn async_supported(&self) -> bool {
        true
    }

    /// Nothing but the end of its connection says that a reader has left.
    fn end_on_peer_close(&self) -> Option<bool> {
        Some(true)
    }

    fn do_get(&self, req: &mut Request, res: &mut Response) -> Result<()> {
        let seen = number(req.header("Last-Event-ID").as_deref())?;
        res.set_content_type("text/event-stream");
        res.set_header("Cache-Control", "no-store")?;
        let context = req.start_async()?;
        context.set_timeout(Duration::ZERO)?;
        let mut state = self.0.lock();
        for entry in state.after(seen) {
            res.write(event(entry))?;
        }
        state.last_waiter += 1;
        let waiter = state.last_waiter;
        state.streams.push((waiter, context.clone()));
        drop(state);
        context.add_listener(Leaving { board: Arc::clone(&self.0), waiter })?;
        // The comment makes the browser see that the stream is open.
        res.write(": open\n\n")?;
        res.flush()
    }
}

/// Answers with what came after a number, at once or when something comes.
struct Poll(Arc<Board>);

impl HttpServlet for Poll {
    fn methods(&self) -> Methods {
        Methods::GET
    }

    fn async_supported(&self) -> bool {
        true
    }

    fn do_get(&self, req: &mut Request, res: &mut Response) -> Result<()> {
        let seen = number(req.parameter("after")?)?;
        res.set_content_type("text/plain;charset=utf-8");
        res.set_header("Cache-Control", "no-store")?;
        let mut state = self.0.lock();
        let lines: String = state.after(seen).into_iter().map(line).collect();
        if !lines.is_empty() {
            return res.write(lines);
        }
        req.set_end_on_peer_close(true);
        let context = req.start_async()?;
        context.set_timeout(POLL_TIMEOUT)?;
        state.last_waiter += 1;
        let waiter = state.last_waiter;
        state.polls.push((waiter, context.clone()));
        drop(state);
        context.add_listener(Leaving { board: Arc::clone(&self.0), waiter })
    }
}
