//! Any runtime may take part: here a tokio task, beside the cores that serve, ends a request; and
//! an `async fn` servlet awaits one on its core.
//!
//!     cargo run --release -p ringcat --example async_tokio [ADDR:PORT]
//!     curl 'http://127.0.0.1:8080/sum?a=1&b=2'
//!     curl 'http://127.0.0.1:8080/awaited?a=1&b=2'

use std::{
    pin::Pin,
    task::{Context as TaskContext, Poll},
    time::Duration,
};

use ringcat::{
    AsyncContext, AsyncServlet, Connector, Context, Error, HttpServlet, Methods, Request, Response,
    Result, Server, ShutdownSignals,
};
use tokio::{
    runtime::{Handle, Runtime},
    task::JoinHandle,
};

/// Gives its work to tokio and lets go of the thread.
struct Sum {
    tokio: Handle,
}

impl HttpServlet for Sum {
    fn methods(&self) -> Methods {
        Methods::GET
    }

    fn async_supported(&self) -> bool {
        true
    }

    fn do_get(&self, req: &mut Request, res: &mut Response) -> Result<()> {
        let (a, b) = (number(req, "a")?, number(req, "b")?);
        res.set_content_type("text/plain");
        let context = req.start_async()?;
        self.tokio.spawn(async move {
            if let Err(error) = answer(&context, a, b).await {
                eprintln!("the request was over: {error}");
            }
        });
        Ok(())
    }
}

/// Awaits the work on its core, which serves others meanwhile, and answers from there.
struct Awaited {
    tokio: Handle,
}

impl AsyncServlet for Awaited {
    async fn service(&self, req: &mut Request, res: &mut Response) -> Result<()> {
        let (a, b) = (number(req, "a")?, number(req, "b")?);
        let work = self.tokio.spawn(async move {
            tokio::time::sleep(Duration::from_millis(100)).await;
            a.wrapping_add(b)
        });
        // Whoever drops this future, a client that leaves say, gives the work up.
        let sum = AbortOnDrop(work).await?;
        res.set_content_type("text/plain");
        res.write(format!("{sum}\n"))
    }
}

/// A task that nobody wants any more ends.
struct AbortOnDrop<T>(JoinHandle<T>);

impl<T> Future for AbortOnDrop<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Result<T>> {
        Pin::new(&mut self.0).poll(cx).map(|joined| joined.map_err(Error::app))
    }
}

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn answer(context: &AsyncContext, a: i64, b: i64) -> Result<()> {
    // Stands for a call to another service.
    tokio::time::sleep(Duration::from_millis(100)).await;
    context.response()?.try_write(format!("{}\n", a.wrapping_add(b)))?;
    context.complete()
}

fn number(req: &mut Request, name: &str) -> Result<i64> {
    let value = req.parameter(name)?.unwrap_or("0").parse();
    value.map_err(|_| Error::protocol_violation(400, format!("parameter {name} is no number")))
}

fn main() -> Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    // Before the runtime starts its threads, or a signal could end the process without a drain.
    let signals = ShutdownSignals::block()?;
    let runtime = Runtime::new()?;
    let server = Server::builder()
        .connector(Connector::http(address))
        .context(
            Context::new("")
                .servlet("/sum", Sum { tokio: runtime.handle().clone() })
                .async_servlet("/awaited", Awaited { tokio: runtime.handle().clone() }),
        )
        .start()?;
    println!("{}", server.run_until(signals));
    Ok(())
}
