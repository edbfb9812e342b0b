//! The container's part of an exchange: where it was mapped, what it went through, its listeners.
//! It sits in the exchange, is created once, and recycled with it.

use std::collections::BTreeMap;

use ringcat_engine::sync::Arc;

use crate::{
    async_context::AsyncContext,
    async_listener::{AddedListener, ReadListener, WriteListener},
    async_support::Barring,
    container::ContainerTree,
    dispatch::{DispatchTarget, DispatcherType},
    error::Error,
    few::Few,
    guard::{guard_drop, guard_drop_each},
    mapper::{ContextIndex, Mapping},
    request::Attribute,
    request_place::{Dispatched, Kept},
    request_wrapper::RequestWrapper,
    servlet_task::TaskOutcome,
};

/// The container's part of an exchange; recycled with it.
#[derive(Default)]
pub struct RequestNote {
    pub(crate) tree: Option<Arc<ContainerTree>>,
    pub(crate) mapping: Option<Mapping>,
    /// The decoded path that `mapping` cuts.
    pub(crate) path: String,
    /// Where an asynchronous dispatch sent the request, if one did.
    pub(crate) dispatched: Option<Box<Dispatched>>,
    pub(crate) dispatcher: DispatcherType,
    /// What the target of a dispatch keeps of the request as it was; nothing if that is none.
    pub(crate) kept: Option<Box<Kept>>,
    /// Query strings that dispatches, forwards and includes brought, the newest last.
    pub(crate) queries: Few<String>,
    /// Forwards, includes and error pages that the request is in.
    pub(crate) nesting: u32,
    pub(crate) wrappers: Few<std::sync::Arc<dyn RequestWrapper>>,
    /// Elements that the request went through and that do not support async.
    pub(crate) barred_by: Few<Barring>,
    pub(crate) refusal: Option<Box<Refusal>>,
    pub(crate) error: Option<Arc<Error>>,
    /// Until there is a context, whose cell has them from then on.
    pub(crate) attributes: BTreeMap<String, Attribute>,
    pub(crate) parameters: Option<Box<[(String, String)]>>,
    /// The parameters of the form, once it was read: the content does not come again.
    pub(crate) form: Option<Box<[(String, String)]>>,
    pub(crate) context: Option<AsyncContext>,
    /// Whether another thread may hold an `AsyncHandle`.
    pub(crate) has_handle: bool,
    pub(crate) listeners: Vec<AddedListener>,
    /// Those of the last round, while a worker that began another one has the request.
    pub(crate) previous_listeners: Few<AddedListener>,
    pub(crate) is_error_told: bool,
    pub(crate) dispatch_target: Option<Box<DispatchTarget>>,
    pub(crate) read_listener: Option<Box<dyn ReadListener>>,
    pub(crate) write_listener: Option<Box<dyn WriteListener>>,
    pub(crate) is_all_data_read_sent: bool,
    /// The last answer of `is_ready` was no: a read has to wait for the listener's next call.
    pub(crate) was_unready: bool,
    pub(crate) filters: Vec<usize>,
    /// The application whose request listeners were told.
    pub(crate) entered_context: Option<ContextIndex>,
    /// The application that counts the request as under way.
    pub(crate) counted_in: Option<ContextIndex>,
    /// What became of the future that ran the request.
    pub(crate) task_outcome: Option<Box<TaskOutcome>>,
}

impl RequestNote {
    /// A note that tells where the request is, for who looks at it while a future has the note.
    pub(crate) fn copy_of_place(&self) -> Self {
        Self {
            tree: self.tree.clone(),
            mapping: self.mapping,
            path: self.path.clone(),
            dispatched: self.dispatched.clone(),
            dispatcher: self.dispatcher,
            queries: self.queries.clone(),
            nesting: self.nesting,
            wrappers: self.wrappers.clone(),
            context: self.context.clone(),
            counted_in: self.counted_in,
            ..Self::default()
        }
    }

    /// The forwards and filters that the request was in have returned: it is where `outer` says.
    pub(crate) fn return_to(&mut self, outer: Self) {
        self.mapping = outer.mapping;
        self.path = outer.path;
        self.dispatched = outer.dispatched;
        self.dispatcher = outer.dispatcher;
        self.queries = outer.queries;
        self.nesting = outer.nesting;
        self.wrappers = outer.wrappers;
        self.parameters = None;
    }

    /// Makes the note ready for the next exchange. What the application owns is dropped where its
    /// panic is caught.
    pub(crate) fn recycle(&mut self) {
        let Self {
            tree: _,
            mapping,
            path,
            dispatched,
            dispatcher,
            kept,
            queries,
            nesting,
            wrappers,
            barred_by,
            refusal,
            error,
            attributes,
            parameters,
            form,
            context,
            has_handle,
            listeners,
            previous_listeners,
            is_error_told,
            dispatch_target,
            read_listener,
            write_listener,
            is_all_data_read_sent,
            was_unready,
            filters,
            entered_context,
            counted_in,
            task_outcome,
        } = self;
        if let Some(outcome) = task_outcome.take() {
            guard_drop("dropping an error", outcome);
        }
        *entered_context = None;
        *counted_in = None;
        *has_handle = false;
        *mapping = None;
        path.clear();
        *dispatched = None;
        *dispatcher = DispatcherType::Request;
        *kept = None;
        queries.clear();
        *nesting = 0;
        wrappers.clear();
        barred_by.clear();
        *refusal = None;
        *is_error_told = false;
        *dispatch_target = None;
        *is_all_data_read_sent = false;
        *was_unready = false;
        *parameters = None;
        *form = None;
        if let Some(context) = context.take() {
            let left = context.parts.cell.take_attributes();
            guard_drop_each("dropping an attribute", left.into_values());
        }
        filters.clear();
        *error = None;
        if !attributes.is_empty() {
            guard_drop_each("dropping an attribute", std::mem::take(attributes).into_values());
        }
        guard_drop_each("dropping a listener", listeners.drain(..));
        guard_drop_each("dropping a listener", Vec::from(std::mem::take(previous_listeners)));
        if let Some(listener) = read_listener.take() {
            guard_drop("dropping a read listener", listener);
        }
        if let Some(listener) = write_listener.take() {
            guard_drop("dropping a write listener", listener);
        }
    }
}

// Every parked request has one.
const _: () = assert!(size_of::<RequestNote>() <= 312);

/// Why a request is answered without its servlet.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub(crate) status: u16,
    pub(crate) allow: Option<String>,
    pub(crate) location: Option<String>,
}
