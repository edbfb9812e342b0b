//! The container's part of an exchange: where it was mapped, what it went through, its listeners.
//! It sits in the exchange, is created once, and recycled with it.

use std::{collections::BTreeMap, mem};

use ringcat_engine::{few::Few, sync::Arc};

use crate::{
    async_context::AsyncContext,
    async_listener::{AddedListener, ReadListener, WriteListener},
    async_support::Barring,
    container::ContainerTree,
    dispatch::{DispatchTarget, DispatcherType},
    error::Error,
    guard::{guard_drop, guard_drop_each},
    mapper::{ContextIndex, Mapping},
    request::Attribute,
    request_place::{Dispatched, Kept},
    request_wrapper::RequestWrapper,
    servlet_task::TaskOutcome,
};

/// The container's part of an exchange; recycled with it.
#[derive(Default)]
#[expect(
    clippy::box_collection,
    reason = "what most parked requests lack takes 8 bytes of each, an empty collection 24"
)]
pub struct RequestNote {
    pub(crate) tree: Option<Arc<ContainerTree>>,
    /// The decoded path that `mapping` cuts.
    pub(crate) path: String,
    /// Until there is a context, whose cell has them from then on.
    pub(crate) attributes: Option<Box<BTreeMap<String, Attribute>>>,
    pub(crate) parameters: Option<Box<Vec<(String, String)>>>,
    pub(crate) context: Option<AsyncContext>,
    pub(crate) listeners: Few<AddedListener>,
    pub(crate) filters: Few<usize>,
    /// Elements that the request went through and that do not support async.
    pub(crate) barred_by: Few<Barring>,
    /// What most requests do without; see [`RequestNote::seldom`].
    seldom: Option<Box<Seldom>>,
    pub(crate) mapping: Option<Mapping>,
    /// Forwards, includes and error pages that the request is in.
    pub(crate) nesting: u32,
    /// The application whose request listeners were told.
    pub(crate) entered_context: Option<ContextIndex>,
    /// The application that counts the request as under way.
    pub(crate) counted_in: Option<ContextIndex>,
    pub(crate) dispatcher: DispatcherType,
    /// Whether another thread may hold an `AsyncHandle`.
    pub(crate) has_handle: bool,
    pub(crate) is_error_told: bool,
    pub(crate) is_all_data_read_sent: bool,
    /// The last answer of `is_ready` was no: a read has to wait for the listener's next call.
    pub(crate) was_unready: bool,
}

/// What a request has that was dispatched, wrapped or refused, that failed, or that streams. A
/// parked request that did none of it does not pay for the places.
#[derive(Default)]
pub(crate) struct Seldom {
    /// Where an asynchronous dispatch sent the request, if one did.
    pub(crate) dispatched: Option<Box<Dispatched>>,
    /// What the target of a dispatch keeps of the request as it was; nothing if that is none.
    pub(crate) kept: Option<Box<Kept>>,
    /// Query strings that dispatches, forwards and includes brought, the newest last.
    pub(crate) queries: Few<String>,
    pub(crate) wrappers: Few<std::sync::Arc<dyn RequestWrapper>>,
    pub(crate) refusal: Option<Refusal>,
    pub(crate) error: Option<Arc<Error>>,
    /// The parameters of the form, once it was read: the content does not come again.
    pub(crate) form: Option<Vec<(String, String)>>,
    /// Those of the last round, while a worker that began another one has the request.
    pub(crate) previous_listeners: Few<AddedListener>,
    pub(crate) dispatch_target: Option<Box<DispatchTarget>>,
    pub(crate) read_listener: Option<Box<dyn ReadListener>>,
    pub(crate) write_listener: Option<Box<dyn WriteListener>>,
    /// What became of the future that ran the request.
    pub(crate) task_outcome: Option<Box<TaskOutcome>>,
}

impl Seldom {
    const NONE: &'static Self = &Self {
        dispatched: None,
        kept: None,
        queries: Few::none(),
        wrappers: Few::none(),
        refusal: None,
        error: None,
        form: None,
        previous_listeners: Few::none(),
        dispatch_target: None,
        read_listener: None,
        write_listener: None,
        task_outcome: None,
    };

    /// Drops what the application owns where its panic is caught.
    fn drop_guarded(self) {
        let Self { task_outcome, previous_listeners, read_listener, write_listener, .. } = self;
        if let Some(outcome) = task_outcome {
            guard_drop("dropping an error", outcome);
        }
        guard_drop_each("dropping a listener", Vec::from(previous_listeners));
        if let Some(listener) = read_listener {
            guard_drop("dropping a read listener", listener);
        }
        if let Some(listener) = write_listener {
            guard_drop("dropping a write listener", listener);
        }
    }
}

impl RequestNote {
    /// What the request has of the seldom things.
    pub(crate) fn seldom(&self) -> &Seldom {
        self.seldom.as_deref().unwrap_or(Seldom::NONE)
    }

    /// The places of the seldom things, to put one in.
    pub(crate) fn seldom_mut(&mut self) -> &mut Seldom {
        self.seldom.get_or_insert_default()
    }

    /// The places of the seldom things, to take some out.
    pub(crate) fn seldom_if_there(&mut self) -> Option<&mut Seldom> {
        self.seldom.as_deref_mut()
    }

    /// Takes one of the seldom things.
    pub(crate) fn take<T>(&mut self, take: impl FnOnce(&mut Seldom) -> Option<T>) -> Option<T> {
        self.seldom_if_there().and_then(take)
    }

    pub(crate) fn set_kept(&mut self, kept: Option<Box<Kept>>) {
        if kept.is_some() || self.seldom.is_some() {
            self.seldom_mut().kept = kept;
        }
    }

    pub(crate) fn add_previous_listeners(&mut self, listeners: Few<AddedListener>) {
        if !listeners.is_empty() {
            self.seldom_mut().previous_listeners.extend(Vec::from(listeners));
        }
    }

    pub(crate) fn take_previous_listeners(&mut self) -> Vec<AddedListener> {
        let seldom = self.seldom_if_there();
        seldom.map(|seldom| mem::take(&mut seldom.previous_listeners).into()).unwrap_or_default()
    }

    pub(crate) fn take_attributes(&mut self) -> BTreeMap<String, Attribute> {
        self.attributes.take().map(|attributes| *attributes).unwrap_or_default()
    }

    /// A note that tells where the request is, for who looks at it while a future has the note.
    pub(crate) fn copy_of_place(&self) -> Self {
        let seldom = self.seldom.as_deref().map(|seldom| {
            Box::new(Seldom {
                dispatched: seldom.dispatched.clone(),
                queries: seldom.queries.clone(),
                wrappers: seldom.wrappers.clone(),
                ..Seldom::default()
            })
        });
        Self {
            tree: self.tree.clone(),
            mapping: self.mapping,
            path: self.path.clone(),
            dispatcher: self.dispatcher,
            nesting: self.nesting,
            context: self.context.clone(),
            counted_in: self.counted_in,
            seldom,
            ..Self::default()
        }
    }

    /// The forwards and filters that the request was in have returned: it is where `outer` says.
    pub(crate) fn return_to(&mut self, mut outer: Self) {
        let at = outer.seldom_if_there().map(mem::take).unwrap_or_default();
        if outer.seldom.is_some() || self.seldom.is_some() {
            let seldom = self.seldom_mut();
            seldom.dispatched = at.dispatched;
            seldom.queries = at.queries;
            seldom.wrappers = at.wrappers;
        }
        self.mapping = outer.mapping;
        self.path = outer.path;
        self.dispatcher = outer.dispatcher;
        self.nesting = outer.nesting;
        self.parameters = None;
    }

    /// Makes the note ready for the next exchange. What the application owns is dropped where its
    /// panic is caught.
    pub(crate) fn recycle(&mut self) {
        let Self {
            tree: _,
            mapping,
            path,
            dispatcher,
            nesting,
            attributes,
            parameters,
            context,
            has_handle,
            listeners,
            is_error_told,
            is_all_data_read_sent,
            was_unready,
            filters,
            barred_by,
            entered_context,
            counted_in,
            seldom,
        } = self;
        *entered_context = None;
        *counted_in = None;
        *has_handle = false;
        *mapping = None;
        path.clear();
        *dispatcher = DispatcherType::Request;
        *nesting = 0;
        *is_error_told = false;
        *is_all_data_read_sent = false;
        *was_unready = false;
        *parameters = None;
        filters.clear();
        barred_by.clear();
        if let Some(seldom) = seldom.take() {
            seldom.drop_guarded();
        }
        if let Some(context) = context.take() {
            let left = context.parts.cell.take_attributes();
            guard_drop_each("dropping an attribute", left.into_values());
        }
        if let Some(attributes) = attributes.take() {
            guard_drop_each("dropping an attribute", attributes.into_values());
        }
        if !listeners.is_empty() {
            guard_drop_each("dropping a listener", Vec::from(mem::take(listeners)));
        }
    }
}

// Every parked request has one.
const _: () = assert!(size_of::<RequestNote>() <= 128);

/// Why a request is answered without its servlet.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub(crate) status: u16,
    pub(crate) allow: Option<String>,
    pub(crate) location: Option<String>,
}
