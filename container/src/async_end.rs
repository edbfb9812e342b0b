//! The end of an asynchronous request: its listeners are told, once, and it leaves its application.

use ringcat_engine::canary::{self, Canary};

use crate::{guard::guard_drop_each, request::Request, request_listener, response::Response};

/// `on_complete` of all listeners, once: whoever was told is forgotten.
pub(crate) fn tell_complete(request: &mut Request, response: &mut Response) {
    response.inner.is_suspended = false;
    let times = if canary::has(Canary::CompletedTwice) { 2 } else { 1 };
    for _ in 0..times {
        request.fire(Some(&mut *response), None, "on_complete", |listener, event| {
            listener.on_complete(event)
        });
    }
    guard_drop_each("dropping a listener", Vec::from(std::mem::take(&mut request.note.listeners)));
    request_listener::tell_destroyed(request);
}
