//! A request that lets go of its thread: a thread of the application ends it.
//!
//!     cargo run --release -p ringcat --example async_thread [ADDR:PORT]
//!     curl http://127.0.0.1:8080/later

#![allow(clippy::disallowed_methods, reason = "an application may have threads of its own")]

use std::{thread, time::Duration};

use ringcat::{
    AsyncEvent, AsyncListener, Connector, Context, HttpServlet, Methods, Request, Response, Result,
    Server,
};

/// Answers in a second. No thread of the container waits: the parked request is an entry in its
/// core's waiting set, and `complete()` wakes the core.
struct Later;

impl HttpServlet for Later {
    fn methods(&self) -> Methods {
        Methods::GET
    }

    fn async_supported(&self) -> bool {
        true
    }

    fn do_get(&self, req: &mut Request, res: &mut Response) -> Result<()> {
        res.set_content_type("text/plain");
        let context = req.start_async()?;
        context.set_timeout(Duration::from_secs(5))?;
        context.add_listener(Apology)?;
        thread::spawn(move || -> Result<()> {
            thread::sleep(Duration::from_secs(1));
            context.response()?.write("done\n")?;
            // An error from here on says that the timeout was faster, or the client has left.
            context.complete()
        });
        Ok(())
    }
}

/// Answers for the thread, should it not be in time.
struct Apology;

impl AsyncListener for Apology {
    fn on_timeout(&mut self, event: &mut AsyncEvent<'_>) -> Result<()> {
        event.response()?.send_error(503, Some("it takes too long, try again"))?;
        event.context().complete()
    }
}

fn main() -> Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    Server::builder()
        .connector(Connector::http(address))
        .context(Context::new("").servlet("/later", Later))
        .run()
}
