//! What stands round a servlet: filters, in the order of their declaration, and their chain.
//! Stands for `Filter` and `ApplicationFilterChain`.

use crate::{
    async_support::Barring,
    container::{ContainerTree, ServletKind},
    error::Result,
    guard::guard,
    mapper::Mapping,
    request::Request,
    request_wrapper::RequestWrapper,
    response::Response,
    servlet_task,
};

/// Sees requests on their way to servlets and responses on their way back. One instance serves
/// all cores, at the same time; the rules for blocking are those of the servlet it stands before.
pub trait Filter: Send + Sync + 'static {
    /// Handles one request; [`FilterChain::next`] goes on, not calling it answers here.
    ///
    /// # Errors
    /// As [`Servlet::service`](crate::servlet::Servlet::service).
    fn filter(&self, req: &mut Request, res: &mut Response, chain: FilterChain<'_>) -> Result<()>;

    /// Whether a servlet behind this filter may start async (Servlet section 2.3.3.3).
    fn async_supported(&self) -> bool {
        false
    }
}

/// The rest of the way to the servlet.
pub struct FilterChain<'a> {
    pub(crate) tree: &'a ContainerTree,
    /// Of the servlet.
    pub(crate) mapping: Mapping,
    pub(crate) filters: &'a [usize],
}

impl FilterChain<'_> {
    /// Calls the next filter, or the servlet. A panic in there comes back as an error.
    ///
    /// # Errors
    /// What the rest of the way failed with.
    pub fn next(self, req: &mut Request, res: &mut Response) -> Result<()> {
        let Self { tree, mapping, filters } = self;
        let Some((index, rest)) = filters.split_first() else {
            let Some(wrapper) = tree.wrapper(mapping) else { return Ok(()) };
            req.bar_async_unless(wrapper.is_async_supported, || Barring::Servlet(mapping));
            return match &wrapper.servlet {
                ServletKind::Plain(servlet) => guard(|| servlet.service(req, res)),
                ServletKind::Async(_) => servlet_task::run(mapping, req, res),
            };
        };
        let (context, index) = (mapping.context, *index);
        let filter = &tree.context(context).filters[index];
        req.bar_async_unless(filter.is_async_supported, || Barring::Filter { context, index });
        guard(|| filter.filter.filter(req, res, FilterChain { tree, mapping, filters: rest }))
    }

    /// As [`FilterChain::next`]; the rest of the way sees the request through `wrapper`.
    ///
    /// # Errors
    /// What the rest of the way failed with.
    pub fn next_wrapped(
        self,
        wrapper: std::sync::Arc<dyn RequestWrapper>,
        req: &mut Request,
        res: &mut Response,
    ) -> Result<()> {
        let count = req.push_wrappers(&[wrapper]);
        let result = self.next(req, res);
        req.pop_wrappers(count);
        result
    }
}
