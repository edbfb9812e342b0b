//! Sends a request on to another servlet of its application, or takes that servlet's output into
//! the response. Stands for `RequestDispatcher` and `ApplicationDispatcher`.

use crate::{
    dispatch::{DispatchTarget, DispatcherType},
    error::{Error, Result},
    request::Request,
    response::Response,
    servlet::ServiceMode,
};

/// The way to another servlet of the application (Servlet section 9). From
/// [`Request::request_dispatcher`].
#[derive(Clone, Debug)]
pub struct RequestDispatcher {
    target: DispatchTarget,
}

impl RequestDispatcher {
    pub(crate) fn new(target: DispatchTarget) -> Self {
        Self { target }
    }

    /// Lets the target answer instead: what was buffered is dropped, status and fields stay, and
    /// the target sees a request for itself (`jakarta.servlet.forward.*` tell what the client asked
    /// for). When it returns, the response is over, unless it started async.
    ///
    /// # Errors
    /// Illegal state: the response is committed. Unsupported: the target is a blocking servlet and
    /// this is a core, which never waits. And whatever the target fails with.
    pub fn forward(&self, req: &mut Request, res: &mut Response) -> Result<()> {
        if res.is_committed() {
            return Err(Error::illegal_state("forward: the response is committed already"));
        }
        self.check_thread(req)?;
        res.reset_buffer()?;
        self.forward_as(DispatcherType::Forward, req, res)?;
        if !req.is_async() {
            res.end_content();
        }
        Ok(())
    }

    /// Takes the target's content into the response. The target cannot change status or fields; it
    /// sees the paths of the including request, and its own in `jakarta.servlet.include.*`.
    ///
    /// # Errors
    /// As [`RequestDispatcher::forward`], but for a committed response.
    pub fn include(&self, req: &mut Request, res: &mut Response) -> Result<()> {
        self.check_thread(req)?;
        let tree = req.tree();
        let before = req.enter_include(&self.target);
        let was_included = std::mem::replace(&mut res.is_included, true);
        let result = tree.run_chain(&self.target, DispatcherType::Include, req, res);
        res.is_included = was_included;
        req.leave_place(before);
        result
    }

    /// Runs the target as what the request is for now.
    pub(crate) fn forward_as(
        &self,
        dispatcher: DispatcherType,
        req: &mut Request,
        res: &mut Response,
    ) -> Result<()> {
        let tree = req.tree();
        let before = req.enter_forward(&self.target, dispatcher);
        let result = tree.run_chain(&self.target, dispatcher, req, res);
        req.leave_place(before);
        result
    }

    /// A core runs no servlet that may block.
    pub(crate) fn check_thread(&self, req: &Request) -> Result<()> {
        let tree = req.tree();
        match tree.wrapper(self.target.mapping) {
            Some(wrapper) if wrapper.mode == ServiceMode::Blocking && req.is_on_core() => {
                Err(Error::unsupported(format!(
                    "servlet {} blocks and cannot run on a core: forward to it from a blocking \
                     servlet, or dispatch to it by an AsyncContext",
                    wrapper.name
                )))
            }
            Some(_) | None => Ok(()),
        }
    }
}
