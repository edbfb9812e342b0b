//! Where a request goes beside its own servlet: a forward on the way to it, an include of its
//! content, the page for its errors, a target in another application.

use ringcat::{AsyncContext, Context, DispatcherType, Error, Request, Response, Result, Servlet};
use ringcat_engine::sim::world::{self, chance};

use crate::{
    application::{BlockingTarget, Callback, Target, maybe_fail, name_answer},
    foreign::decide,
    plan::{Plan, tagged},
    run::run,
};

/// The path of the other application.
const OTHER: &str = "/other";

/// The other application: targets of dispatches.
pub(crate) fn other_context() -> Context {
    Context::new(OTHER).named_servlet("other-target", &["/target/*"], Target).named_servlet(
        "other-blocking-target",
        &["/blocking-target/*"],
        BlockingTarget,
    )
}

/// Sends a request to a servlet that answers it, in this application or in the other one.
pub(crate) fn dispatch_away(context: &AsyncContext, number: u64, plan: &Plan) -> Result<()> {
    let path = match plan.answer_bytes % 5 {
        1 => format!("/blocking-target/{number}"),
        _ => format!("/target/{number}"),
    };
    match plan.answer_bytes % 3 {
        1 => context.dispatch_in(OTHER, &path),
        _ => context.dispatch_to(&path),
    }
}

/// Leads to the servlet that the rest of the path names.
pub(crate) struct Forwarder;

impl Servlet for Forwarder {
    fn service(&self, req: &mut Request, res: &mut Response) -> Result<()> {
        let target = req.path_info().unwrap_or_default().to_owned();
        let result = req.request_dispatcher(&target)?.forward(req, res);
        let is_back = req.servlet_path() == "/forward" && req.path_info() == Some(&*target);
        let has_left = req.attribute("jakarta.servlet.forward.request_uri").is_none();
        if !is_back || !has_left {
            world::fail(format!(
                "the forward to {target} did not come back: {}",
                req.servlet_path()
            ));
        }
        result
    }

    fn is_async_supported(&self) -> bool {
        true
    }
}

/// Writes the rest of an answer into the response of another servlet.
pub(crate) struct Included;

impl Servlet for Included {
    fn service(&self, req: &mut Request, res: &mut Response) -> Result<()> {
        let number = req.parameter("number")?.unwrap_or_default().parse();
        let number: u64 = number.map_err(|_| Error::illegal_argument("no number"))?;
        let start = req.parameter("start")?.unwrap_or_default().parse();
        let start: usize = start.map_err(|_| Error::illegal_argument("no start"))?;
        if req.dispatcher_type() != DispatcherType::Include || req.servlet_path() != "/plain" {
            world::fail(format!("request {number} is included from {}", req.servlet_path()));
        }
        // Neither has an effect here.
        res.set_status(404);
        res.set_header("X-Id", "nobody")?;
        let len = run().plan(number).answer_bytes - start;
        res.write(tagged(number, false, start, len))
    }

    fn is_async_supported(&self) -> bool {
        true
    }
}

/// The second half of an answer comes from another servlet.
pub(crate) fn include_rest(
    req: &mut Request,
    res: &mut Response,
    number: u64,
    plan: &Plan,
) -> Result<()> {
    name_answer(res, number, plan)?;
    if plan.announces_length {
        res.set_content_length(plan.answer_bytes as u64);
    }
    let start = plan.answer_bytes / 2;
    res.write(tagged(number, false, 0, start))?;
    let path = format!("/included?number={number}&start={start}");
    req.request_dispatcher(&path)?.include(req, res)?;
    if req.parameter("start")?.is_some() || req.dispatcher_type() == DispatcherType::Include {
        world::fail(format!("request {number} is still in its include"));
    }
    Ok(())
}

/// The page for whatever goes wrong.
pub(crate) struct Oops;

impl Servlet for Oops {
    fn service(&self, req: &mut Request, res: &mut Response) -> Result<()> {
        let text = |name: &str| {
            let value = req.attribute(name)?;
            value.downcast_ref::<String>().cloned()
        };
        let uri = text("jakarta.servlet.error.request_uri").unwrap_or_default();
        let mine = req.attribute("mine").and_then(|mine| mine.downcast_ref::<u64>().copied());
        if req.dispatcher_type() != DispatcherType::Error || req.method() != "GET" {
            world::fail(format!("an error page is called as {:?}", req.dispatcher_type()));
        }
        // What failed early has no number yet.
        let Some(number) = mine else { return res.write("oops") };
        if !uri.ends_with(&format!("/{number}")) {
            world::fail(format!("the error page of request {number} is told of {uri}"));
        }
        let _callback = Callback::enter(number);
        res.set_header("X-Id", number.to_string())?;
        maybe_fail(number)?;
        res.write("oops")?;
        let record = run().record(number);
        if let Ok(context) = req.async_context()
            && record.plan.is_open_to_pages
            && chance(96)
        {
            if record.plan.is_open_to_dispatches() && chance(128) {
                run().change(number, |record| record.is_sent_on_by_page = true);
                res.reset_buffer()?;
                let sent = dispatch_away(&context, number, &record.plan);
                decide(number, record.round, "dispatch of an error page", sent);
            } else {
                decide(number, record.round, "complete of an error page", context.complete());
            }
        }
        Ok(())
    }

    fn is_async_supported(&self) -> bool {
        true
    }
}
