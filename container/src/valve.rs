//! The container's own steps round an application: valves on engine, host, context and wrapper,
//! run in this order, the basic step of each level last. Stands for `Valve` and `Pipeline`.

use crate::{
    async_support::Barring,
    container::{ContainerTree, Level},
    error::Result,
    guard::guard,
    mapper::Mapping,
    request::Request,
    response::Response,
};

/// A step of a pipeline. One instance serves all cores, at the same time.
///
/// A valve may look at request and response, answer itself, call [`Next::invoke`] once, and look
/// at the response afterwards. It must not keep the request, must not call `invoke` twice, and
/// must not block a core.
pub trait Valve: Send + Sync + 'static {
    /// The name in warnings and logs.
    fn name(&self) -> &str;

    /// Handles one request.
    ///
    /// # Errors
    /// As [`Servlet::service`](crate::servlet::Servlet::service).
    fn invoke(&self, req: &mut Request, res: &mut Response, next: Next<'_>) -> Result<()>;

    /// Whether requests through this valve may become asynchronous.
    fn async_supported(&self) -> bool {
        true
    }

    /// Looks at the head before any content is read; a status given here refuses the request, so
    /// that its content need not be taken. By default it lets everything through.
    fn check_head(&self, _req: &Request) -> Option<u16> {
        None
    }
}

/// The rest of the pipelines.
pub struct Next<'a> {
    pub(crate) tree: &'a ContainerTree,
    pub(crate) mapping: Mapping,
    pub(crate) level: Level,
    pub(crate) index: usize,
}

impl<'a> Next<'a> {
    /// The beginning of the engine's pipeline.
    pub(crate) fn first(tree: &'a ContainerTree, mapping: Mapping) -> Self {
        Self { tree, mapping, level: Level::Engine, index: 0 }
    }

    /// Calls the next valve, or what stands at the end of the pipelines.
    ///
    /// # Errors
    /// What the rest of the way failed with.
    pub fn invoke(self, req: &mut Request, res: &mut Response) -> Result<()> {
        let Self { tree, mapping, level, index } = self;
        let Some(valve) = tree.valves(level, mapping).get(index) else {
            return tree.basic(level, mapping, req, res);
        };
        req.bar_async_unless(valve.is_async_supported, || Barring::Valve { level, mapping, index });
        guard(|| valve.valve.invoke(req, res, Next { tree, mapping, level, index: index + 1 }))
    }
}
