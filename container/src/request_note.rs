//! The container's part of an exchange: where it was mapped, what it went through, its listeners.
//! It sits in the exchange, is created once, and recycled with it.

use std::collections::BTreeMap;

use ringcat_engine::sync::Arc;

use crate::{
    async_context::AsyncContext,
    async_listener::{AsyncListener, ReadListener},
    container::ContainerTree,
    dispatch::{DispatchTarget, DispatcherType},
    error::Error,
    guard::{guard_drop, guard_drop_each},
    mapper::Mapping,
    request::Attribute,
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
    pub(crate) lacks_async_support: bool,
    pub(crate) refusal: Option<Box<Refusal>>,
    pub(crate) error: Option<Arc<Error>>,
    /// Until there is a context, whose cell has them from then on.
    pub(crate) attributes: BTreeMap<String, Attribute>,
    pub(crate) parameters: Option<Vec<(String, String)>>,
    /// The parameters of the form, once it was read: the content does not come again.
    pub(crate) form: Option<Vec<(String, String)>>,
    pub(crate) context: Option<AsyncContext>,
    pub(crate) listeners: Vec<Box<dyn AsyncListener>>,
    /// Those of the last round, while a worker that began another one has the request.
    pub(crate) previous_listeners: Vec<Box<dyn AsyncListener>>,
    pub(crate) is_error_told: bool,
    pub(crate) dispatch_target: Option<Box<DispatchTarget>>,
    pub(crate) read_listener: Option<Box<dyn ReadListener>>,
    pub(crate) is_all_data_read_sent: bool,
    pub(crate) filters: Vec<usize>,
}

impl RequestNote {
    /// Makes the note ready for the next exchange. What the application owns is dropped where its
    /// panic is caught.
    pub(crate) fn recycle(&mut self) {
        let Self {
            tree: _,
            mapping,
            path,
            dispatched,
            dispatcher,
            lacks_async_support,
            refusal,
            error,
            attributes,
            parameters,
            form,
            context,
            listeners,
            previous_listeners,
            is_error_told,
            dispatch_target,
            read_listener,
            is_all_data_read_sent,
            filters,
        } = self;
        *mapping = None;
        path.clear();
        *dispatched = None;
        *dispatcher = DispatcherType::Request;
        *lacks_async_support = false;
        *refusal = None;
        *is_error_told = false;
        *dispatch_target = None;
        *is_all_data_read_sent = false;
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
        guard_drop_each("dropping a listener", previous_listeners.drain(..));
        if let Some(listener) = read_listener.take() {
            guard_drop("dropping a read listener", listener);
        }
    }
}

/// What an asynchronous dispatch replaced.
pub(crate) struct Dispatched {
    pub(crate) request_uri: String,
    pub(crate) query: Option<String>,
    pub(crate) original_path: String,
    pub(crate) original_mapping: Mapping,
}

/// Why a request is answered without its servlet.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub(crate) status: u16,
    pub(crate) allow: Option<String>,
    pub(crate) location: Option<String>,
}
