//! What a request is for at the moment: the client's target, or that of a dispatch, a forward, an
//! include or an error page (Servlet section 9). What changes is kept, so that it comes back.

use std::{borrow::Cow, mem};

use ringcat_engine::{few::Few, sync::Arc};

use crate::{
    dispatch::{DispatchTarget, DispatcherType},
    mapper::Mapping,
    request::{Attribute, Request},
    request_wrapper::RequestWrapper,
};

/// What a dispatch or forward replaced of the client's request.
#[derive(Clone)]
pub(crate) struct Dispatched {
    pub(crate) request_uri: String,
    /// The query string, if a dispatch or forward brought one.
    pub(crate) query: Option<String>,
    pub(crate) original_path: String,
    pub(crate) original_mapping: Mapping,
}

/// What the target of a dispatch gets of the request that `start_async_with` was called on.
#[derive(Clone)]
pub(crate) struct Kept {
    wrappers: Few<std::sync::Arc<dyn RequestWrapper>>,
    query: Option<String>,
    queries: Few<String>,
}

/// What a forward or include replaced, for when it returns.
pub(crate) struct Place {
    path: String,
    mapping: Option<Mapping>,
    dispatched: Option<Box<Dispatched>>,
    dispatcher: DispatcherType,
    query_count: usize,
    /// The attributes that told of a place before, where this one changed them.
    attributes: Option<PlaceAttributes>,
}

/// The attributes of a prefix: what they are, or what they were.
struct PlaceAttributes {
    prefix: &'static str,
    values: [Option<Attribute>; PLACE_ATTRIBUTES.len()],
}

/// The attributes that tell of a place, behind a prefix.
const PLACE_ATTRIBUTES: [&str; 6] =
    ["request_uri", "context_path", "servlet_path", "path_info", "query_string", "mapping"];

const FORWARD: &str = "jakarta.servlet.forward.";
const INCLUDE: &str = "jakarta.servlet.include.";
const ASYNC: &str = "jakarta.servlet.async.";

impl Request {
    /// Keeps what the request is here, with `wrappers` on top, for the target of a dispatch.
    pub(crate) fn keep_for_dispatch(&mut self, wrappers: &[std::sync::Arc<dyn RequestWrapper>]) {
        let note = &mut *self.note;
        let seldom = note.seldom_mut();
        let mut kept = seldom.wrappers.clone();
        kept.extend_from_slice(wrappers);
        let query = seldom.dispatched.as_ref().and_then(|dispatched| dispatched.query.clone());
        seldom.kept =
            Some(Box::new(Kept { wrappers: kept, query, queries: seldom.queries.clone() }));
    }

    /// Becomes the request that an asynchronous dispatch makes of it (Servlet section 9.7).
    pub(crate) fn enter_dispatch(&mut self, target: DispatchTarget) {
        let Some(mapping) = self.note.mapping else { return };
        if self.note.seldom().dispatched.is_none() {
            let own = self.own_attributes(ASYNC, mapping);
            self.put_attributes(own);
        }
        let note = &mut *self.note;
        let path = mem::replace(&mut note.path, target.path);
        let seldom = note.seldom_mut();
        let (original_path, original_mapping) = match seldom.dispatched.take() {
            Some(before) => (before.original_path, before.original_mapping),
            None => (path, mapping),
        };
        let Kept { wrappers, query, mut queries } = match seldom.kept.take() {
            Some(kept) => *kept,
            None => Kept { wrappers: Few::default(), query: None, queries: Few::default() },
        };
        queries.extend(target.query.clone());
        seldom.dispatched = Some(Box::new(Dispatched {
            request_uri: target.request_uri,
            query: target.query.or(query),
            original_path,
            original_mapping,
        }));
        seldom.queries = queries;
        seldom.wrappers = wrappers;
        note.mapping = Some(target.mapping);
        note.dispatcher = DispatcherType::Async;
        note.parameters = None;
    }

    /// Becomes the request for the target of a forward, or for an error page.
    pub(crate) fn enter_forward(
        &mut self,
        target: &DispatchTarget,
        dispatcher: DispatcherType,
    ) -> Place {
        let is_first = self.attribute(&format!("{FORWARD}request_uri")).is_none();
        let own = self.note.mapping.filter(|_| is_first);
        let own = own.map(|mapping| self.own_attributes(FORWARD, mapping));
        let attributes = own.map(|own| self.put_attributes(own));
        let note = &mut *self.note;
        let before = note.take(|seldom| seldom.dispatched.take());
        let (query, original_path, original_mapping) = match &before {
            Some(before) => {
                (before.query.clone(), before.original_path.clone(), before.original_mapping)
            }
            None => (None, note.path.clone(), note.mapping.unwrap_or(target.mapping)),
        };
        note.seldom_mut().dispatched = Some(Box::new(Dispatched {
            request_uri: target.request_uri.clone(),
            query: target.query.clone().or(query),
            original_path,
            original_mapping,
        }));
        let place = Place {
            path: mem::replace(&mut note.path, target.path.clone()),
            mapping: note.mapping.replace(target.mapping),
            dispatched: before,
            dispatcher: mem::replace(&mut note.dispatcher, dispatcher),
            query_count: note.seldom().queries.len(),
            attributes,
        };
        self.nest(target);
        place
    }

    /// The target of an include runs: paths stay, attributes tell of it.
    pub(crate) fn enter_include(&mut self, target: &DispatchTarget) -> Place {
        let attributes = self.put_attributes(self.include_attributes(target));
        let note = &mut *self.note;
        let place = Place {
            path: note.path.clone(),
            mapping: note.mapping,
            dispatched: note.seldom().dispatched.clone(),
            dispatcher: mem::replace(&mut note.dispatcher, DispatcherType::Include),
            query_count: note.seldom().queries.len(),
            attributes: Some(attributes),
        };
        self.nest(target);
        place
    }

    fn nest(&mut self, target: &DispatchTarget) {
        let note = &mut *self.note;
        note.seldom_mut().queries.extend(target.query.clone());
        note.parameters = None;
        note.nesting += 1;
    }

    /// The target of a forward or include returned.
    pub(crate) fn leave_place(&mut self, before: Place) {
        let Place { path, mapping, dispatched, dispatcher, query_count, attributes } = before;
        let note = &mut *self.note;
        note.path = path;
        note.mapping = mapping;
        let seldom = note.seldom_mut();
        seldom.dispatched = dispatched;
        seldom.queries.truncate(query_count);
        note.dispatcher = dispatcher;
        note.parameters = None;
        note.nesting -= 1;
        if let Some(attributes) = attributes {
            self.put_attributes(attributes);
        }
    }

    /// What the request is for now, as attributes.
    fn own_attributes(&self, prefix: &'static str, mapping: Mapping) -> PlaceAttributes {
        let path = &self.note.path;
        let values = [
            text(Some(self.request_uri().into_owned())),
            text(Some(self.context_path().to_owned())),
            text(Some(mapping.servlet_path(path).to_owned())),
            text(mapping.path_info(path).map(str::to_owned)),
            text(self.query_string().map(Cow::into_owned)),
            Some(Arc::new(mapping.values(path)) as Attribute),
        ];
        PlaceAttributes { prefix, values }
    }

    /// The target of an include, as attributes.
    fn include_attributes(&self, target: &DispatchTarget) -> PlaceAttributes {
        let (path, mapping) = (&target.path, target.mapping);
        let values = [
            text(Some(target.request_uri.clone())),
            text(Some(self.tree().context(mapping.context).path.clone())),
            text(Some(mapping.servlet_path(path).to_owned())),
            text(mapping.path_info(path).map(str::to_owned)),
            text(target.query.clone()),
            Some(Arc::new(mapping.values(path)) as Attribute),
        ];
        PlaceAttributes { prefix: INCLUDE, values }
    }

    /// Puts attributes of a place; what was there before comes back.
    fn put_attributes(&mut self, attributes: PlaceAttributes) -> PlaceAttributes {
        let PlaceAttributes { prefix, mut values } = attributes;
        for (name, value) in PLACE_ATTRIBUTES.iter().zip(&mut values) {
            *value = self.swap_attribute(&format!("{prefix}{name}"), value.take());
        }
        PlaceAttributes { prefix, values }
    }
}

fn text(value: Option<String>) -> Option<Attribute> {
    value.map(|value| Arc::new(value) as Attribute)
}
