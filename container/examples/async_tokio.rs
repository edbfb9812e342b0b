//! Any runtime may end a request: here a tokio task does, beside the cores that serve.
//!
//!     cargo run --release -p ringcat --example async_tokio [ADDR:PORT]
//!     curl 'http://127.0.0.1:8080/sum?a=1&b=2'

use std::time::Duration;

use ringcat::{
    AsyncContext, Connector, Context, Error, HttpServlet, Methods, Request, Response, Result,
    Server, ShutdownSignals,
};
use tokio::runtime::{Handle, Runtime};

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
        .context(Context::new("").servlet("/sum", Sum { tokio: runtime.handle().clone() }))
        .start()?;
    println!("{}", server.run_until(signals));
    Ok(())
}
