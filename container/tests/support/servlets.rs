//! Servlets made of closures.

use ringcat::{AsyncContext, Request, Response, Result, ServiceMode, Servlet};

use super::channel::{Receiver, channel};

/// A closure as a servlet for all methods.
pub(crate) struct Scripted<F> {
    service: F,
    mode: ServiceMode,
    is_async: bool,
}

/// A servlet that may start async.
pub(crate) fn parking<F>(service: F) -> Scripted<F>
where
    F: Fn(&mut Request, &mut Response) -> Result<()> + Send + Sync + 'static,
{
    Scripted { service, mode: ServiceMode::Collected, is_async: true }
}

/// A servlet that may start async, called at the end of the head.
pub(crate) fn streaming<F>(service: F) -> Scripted<F>
where
    F: Fn(&mut Request, &mut Response) -> Result<()> + Send + Sync + 'static,
{
    Scripted { service, mode: ServiceMode::Streaming, is_async: true }
}

/// A servlet that may start async, called on a worker thread.
pub(crate) fn blocking<F>(service: F) -> Scripted<F>
where
    F: Fn(&mut Request, &mut Response) -> Result<()> + Send + Sync + 'static,
{
    Scripted { service, mode: ServiceMode::Blocking, is_async: true }
}

/// A servlet that starts async and gives the context to the test.
pub(crate) fn handing_over() -> (impl Servlet, Receiver<AsyncContext>) {
    let (sender, receiver) = channel();
    let servlet = parking(move |req, _res| {
        sender.send(req.start_async()?);
        Ok(())
    });
    (servlet, receiver)
}

impl<F> Servlet for Scripted<F>
where
    F: Fn(&mut Request, &mut Response) -> Result<()> + Send + Sync + 'static,
{
    fn service(&self, req: &mut Request, res: &mut Response) -> Result<()> {
        (self.service)(req, res)
    }

    fn is_async_supported(&self) -> bool {
        self.is_async
    }

    fn mode(&self) -> ServiceMode {
        self.mode
    }
}
