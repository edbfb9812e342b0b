//! The servlets that every article on asynchronous servlets shows, with the lines they print.
#![expect(clippy::disallowed_methods, reason = "sleeping and threads are what the examples show")]

use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use ringcat::{
    AsyncContext, AsyncEvent, AsyncListener, Context, DispatcherType, Error, HttpServlet, Methods,
    ReadListener, Request, Response, Result, ServiceMode,
};

/// Declares the articles' servlets.
pub(crate) fn declare(context: Context) -> Context {
    context
        .named_servlet("sync", &["/sync"], Sync { mode: ServiceMode::Collected })
        .named_servlet("sync-blocking", &["/sync-blocking"], Sync { mode: ServiceMode::Blocking })
        .named_servlet("async-slow", &["/async-slow"], AsyncSlow)
        .named_servlet("async", &["/async"], Async)
        .named_servlet("noasync", &["/noasync"], NoAsync)
        .named_servlet("timeout", &["/timeout"], Timeout)
        .named_servlet("upload", &["/upload"], Upload)
}

/// Sleeps two seconds: on its core, on purpose, or on a worker thread where it is declared
/// blocking.
struct Sync {
    mode: ServiceMode,
}

impl HttpServlet for Sync {
    fn methods(&self) -> Methods {
        Methods::GET
    }

    fn mode(&self) -> ServiceMode {
        self.mode
    }

    fn do_get(&self, req: &mut Request, res: &mut Response) -> Result<()> {
        let n = req.parameter("n")?.unwrap_or("-").to_owned();
        let begun = Instant::now();
        tracing::info!("sync n={n}: begin");
        thread::sleep(Duration::from_secs(2));
        tracing::info!("sync n={n}: end after {} ms", begun.elapsed().as_millis());
        res.set_content_type("text/plain");
        res.write(format!("sync n={n} done by {}\n", thread_name()))
    }
}

/// Two seconds without a thread of the container.
struct AsyncSlow;

impl HttpServlet for AsyncSlow {
    fn methods(&self) -> Methods {
        Methods::GET
    }

    fn async_supported(&self) -> bool {
        true
    }

    fn do_get(&self, req: &mut Request, res: &mut Response) -> Result<()> {
        let n = req.parameter("n")?.unwrap_or("-").to_owned();
        res.set_content_type("text/plain");
        let context = req.start_async()?;
        tracing::info!("async-slow n={n}: started");
        spawn(move || {
            thread::sleep(Duration::from_secs(2));
            tracing::info!("async-slow n={n}: complete()");
            context.response()?.write(format!("async-slow n={n} done by {}\n", thread_name()))?;
            context.complete()
        })?;
        tracing::info!("async-slow: service() returns, the thread is free");
        Ok(())
    }
}

/// After a second an own thread completes, or dispatches back with a result.
struct Async;

impl HttpServlet for Async {
    fn methods(&self) -> Methods {
        Methods::GET
    }

    fn async_supported(&self) -> bool {
        true
    }

    fn do_get(&self, req: &mut Request, res: &mut Response) -> Result<()> {
        res.set_content_type("text/plain");
        if req.dispatcher_type() == DispatcherType::Async {
            let result = req.attribute("result");
            let result = result.and_then(|result| result.downcast_ref::<u32>().copied());
            let result = result.unwrap_or_default();
            tracing::info!("async: dispatched back, result={result}");
            return res.write(format!("dispatched back, result={result}\n"));
        }
        let dispatches = req.parameter("mode")? == Some("dispatch");
        let context = req.start_async()?;
        context.add_listener(Told("async"))?;
        tracing::info!("async: started, dispatches={dispatches}");
        if dispatches {
            req.set_attribute("result", 42_u32);
        }
        spawn(move || {
            thread::sleep(Duration::from_secs(1));
            if dispatches {
                tracing::info!("async: dispatch()");
                return context.dispatch();
            }
            tracing::info!("async: complete()");
            context.response()?.write(format!("completed by {}\n", thread_name()))?;
            context.complete()
        })?;
        tracing::info!("async: service() returns, the thread is free");
        Ok(())
    }
}

/// Starts async although it is not declared asynchronous.
struct NoAsync;

impl HttpServlet for NoAsync {
    fn methods(&self) -> Methods {
        Methods::GET
    }

    fn do_get(&self, req: &mut Request, res: &mut Response) -> Result<()> {
        let context = req.start_async()?;
        res.write("asynchronous without being declared so\n")?;
        context.complete()
    }
}

/// Nobody ends the request in time; `handle=complete`: its listener does then.
struct Timeout;

impl HttpServlet for Timeout {
    fn methods(&self) -> Methods {
        Methods::GET
    }

    fn async_supported(&self) -> bool {
        true
    }

    fn do_get(&self, req: &mut Request, res: &mut Response) -> Result<()> {
        res.set_content_type("text/plain");
        let handles = req.parameter("handle")? == Some("complete");
        let context = req.start_async()?;
        context.set_timeout(Duration::from_secs(2))?;
        if handles {
            context.add_listener(Handler)?;
        } else {
            context.add_listener(Told("timeout"))?;
        }
        spawn(move || {
            thread::sleep(Duration::from_secs(4));
            match context.complete() {
                Ok(()) => tracing::info!("timeout: complete() after 4 s"),
                Err(error) => tracing::info!("timeout: complete() after 4 s is too late: {error}"),
            }
            Ok(())
        })
    }
}

/// Completes the request when its time is over.
struct Handler;

impl AsyncListener for Handler {
    fn on_timeout(&mut self, event: &mut AsyncEvent<'_>) -> Result<()> {
        tracing::info!("timeout: onTimeout() handles it");
        event.response()?.write("timed out, handled in onTimeout()\n")?;
        event.context().complete()
    }

    fn on_complete(&mut self, _event: &mut AsyncEvent<'_>) -> Result<()> {
        tracing::info!("timeout: onComplete()");
        Ok(())
    }
}

/// Prints what it is told.
struct Told(&'static str);

impl AsyncListener for Told {
    fn on_timeout(&mut self, _event: &mut AsyncEvent<'_>) -> Result<()> {
        tracing::info!("{}: onTimeout()", self.0);
        Ok(())
    }

    fn on_error(&mut self, event: &mut AsyncEvent<'_>) -> Result<()> {
        match event.error() {
            Some(error) => tracing::info!("{}: onError(): {error}", self.0),
            None => tracing::info!("{}: onError()", self.0),
        }
        Ok(())
    }

    fn on_complete(&mut self, _event: &mut AsyncEvent<'_>) -> Result<()> {
        tracing::info!("{}: onComplete()", self.0);
        Ok(())
    }
}

/// Reads its content as it comes.
struct Upload;

impl HttpServlet for Upload {
    fn methods(&self) -> Methods {
        Methods::POST
    }

    fn async_supported(&self) -> bool {
        true
    }

    fn mode(&self) -> ServiceMode {
        ServiceMode::Streaming
    }

    fn do_post(&self, req: &mut Request, res: &mut Response) -> Result<()> {
        res.set_content_type("text/plain");
        let context = req.start_async()?;
        req.set_read_listener(Counting { context, total: 0, calls: 0 })
    }
}

/// Counts what it reads.
struct Counting {
    context: AsyncContext,
    total: usize,
    calls: usize,
}

impl ReadListener for Counting {
    fn on_data_available(&mut self, request: &mut Request, _response: &mut Response) -> Result<()> {
        self.calls += 1;
        let mut buffer = [0; 8192];
        let mut read = 0;
        while request.is_ready() {
            match request.read(&mut buffer)? {
                0 => break,
                count => read += count,
            }
        }
        self.total += read;
        tracing::info!("upload: onDataAvailable() call {}: {read} bytes", self.calls);
        Ok(())
    }

    fn on_all_data_read(&mut self, _request: &mut Request, response: &mut Response) -> Result<()> {
        tracing::info!("upload: onAllDataRead(): {} bytes in {} calls", self.total, self.calls);
        response.write(format!("read {} bytes\n", self.total))?;
        self.context.complete()
    }

    fn on_error(
        &mut self,
        _request: &mut Request,
        _response: &mut Response,
        error: &Error,
    ) -> Result<()> {
        tracing::info!("upload: onError(): {error}");
        Ok(())
    }
}

/// Runs `task` on a thread of its own, as the articles do.
fn spawn(task: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
    static NUMBER: AtomicU64 = AtomicU64::new(1);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    thread::Builder::new().name(format!("own-thread-{number}")).spawn(move || {
        if let Err(error) = task() {
            tracing::info!("the request was over: {error}");
        }
    })?;
    Ok(())
}

fn thread_name() -> String {
    thread::current().name().unwrap_or("unnamed").to_owned()
}
