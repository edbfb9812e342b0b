//! What stands round a servlet: filters, in the order of their declaration, and their chain.
//! Stands for `Filter` and `ApplicationFilterChain`.

use crate::{
    container::{ContextNode, WrapperNode},
    error::Result,
    guard::guard,
    request::Request,
    response::Response,
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
    pub(crate) context: &'a ContextNode,
    pub(crate) wrapper: &'a WrapperNode,
    pub(crate) filters: &'a [usize],
}

impl FilterChain<'_> {
    /// Calls the next filter, or the servlet. A panic in there comes back as an error.
    ///
    /// # Errors
    /// What the rest of the way failed with.
    pub fn next(self, req: &mut Request, res: &mut Response) -> Result<()> {
        let Self { context, wrapper, filters } = self;
        let Some((first, rest)) = filters.split_first() else {
            req.clear_async_support_unless(wrapper.is_async_supported);
            return guard(|| wrapper.servlet.service(req, res));
        };
        let filter = &context.filters[*first];
        req.clear_async_support_unless(filter.is_async_supported);
        guard(|| filter.filter.filter(req, res, FilterChain { context, wrapper, filters: rest }))
    }
}
