//! State keys: what ops can ask of request, response, context and server.

use std::sync::Arc;

use ringcat::{Error, Request, mapper::MappingValues};

use crate::{
    application::{Scope, Stop, kind_of},
    run::lock,
};

/// The value of a key; none where there is nothing, or nobody to ask.
pub(crate) fn value(scope: &mut Scope<'_>, key: &str) -> Result<Option<String>, Stop> {
    if let Some((head, name)) = key.split_once(':') {
        return named(scope, head, name);
    }
    let text = |flag: bool| Some(flag.to_string());
    if key.starts_with("in_") || key == "out_ready" || key == "committed" {
        return stream(scope, key).map(text);
    }
    let run = Arc::clone(&scope.run);
    Ok(match key {
        "started" => match (&scope.request, &scope.context) {
            (Some(request), _) => text(request.is_async_started()),
            (None, Some(context)) => text(context.is_started()?),
            (None, None) => None,
        },
        "timeout" => Some(scope.need_context()?.timeout()?.as_millis().to_string()),
        "has_original" => text(scope.need_context()?.has_original_request_and_response()?),
        "peer_closed" => text(scope.need_context()?.peer_closed()),
        "status" => scope.response.as_ref().map(|response| response.status().to_string()),
        "thread" => Some(thread_kind().to_owned()),
        "throwable" => scope.event.as_ref().map(|event| event.error.unwrap_or("none").to_owned()),
        "supplied" => {
            let is_supplied = scope.event.as_ref().map(|event| event.is_supplied);
            is_supplied.map(|given| if given { "given" } else { "own" }.to_owned())
        }
        "same_context" => text(*lock(&run.remembered) == scope.context),
        _ => scope.request.as_deref().and_then(|request| of_request(request, key)),
    })
}

fn of_request(request: &Request, key: &str) -> Option<String> {
    match key {
        "dispatcher" => Some(request.dispatcher_type().to_string()),
        "supported" => Some(request.is_async_supported().to_string()),
        "method" => Some(request.method().to_owned()),
        "uri" => Some(request.request_uri().into_owned()),
        "context_path" => Some(request.context_path().to_owned()),
        "app_path" => Some(request.servlet_context_path().to_owned()),
        "servlet_path" => Some(request.servlet_path().to_owned()),
        "path_info" => request.path_info().map(str::to_owned),
        "query" => request.query_string().map(std::borrow::Cow::into_owned),
        "mapping" => request.mapping_values().map(|mapping| mapping.to_string()),
        _ => None,
    }
}

/// Questions about input and output.
fn stream(scope: &mut Scope<'_>, key: &str) -> Result<bool, Stop> {
    let context = scope.context.clone();
    let context = || context.ok_or_else(|| Error::illegal_state("no round was started here"));
    Ok(match (key, &mut scope.request, &mut scope.response) {
        ("in_ready", Some(request), _) => request.is_ready(),
        ("in_ready", None, _) => context()?.request()?.is_ready(),
        ("in_finished", Some(request), _) => request.is_finished(),
        ("in_finished", None, _) => context()?.request()?.is_finished(),
        ("out_ready", _, Some(response)) => response.is_ready(),
        ("out_ready", _, None) => context()?.response()?.is_ready(),
        (_, _, Some(response)) => response.is_committed(),
        (_, _, None) => context()?.response()?.is_committed(),
    })
}

fn named(scope: &mut Scope<'_>, head: &str, name: &str) -> Result<Option<String>, Stop> {
    Ok(match head {
        "attr" => attribute(scope, name),
        "async" => attribute(scope, &format!("jakarta.servlet.async.{name}")),
        "error" => attribute(scope, &format!("jakarta.servlet.error.{name}")),
        "count" => Some(scope.run.journal.counter(name).to_string()),
        "variant" => Some(scope.run.variant(name).to_owned()),
        "stat" => {
            let report = scope.run.with_server(|server| Ok(server.report()));
            Some(report.map_err(Stop::Fault)?.answered.to_string())
        }
        "param" => match scope.request.as_deref_mut() {
            Some(request) => request.parameter(name)?.map(str::to_owned),
            None => scope.need_context()?.request()?.parameter(name)?,
        },
        "header" => match scope.request.as_deref() {
            Some(request) => request.header(name).map(std::borrow::Cow::into_owned),
            None => {
                let request = scope.need_context()?.request()?;
                request.header(name).map(std::borrow::Cow::into_owned)
            }
        },
        "trailer" => {
            let request = scope.request.as_deref();
            request.and_then(|request| request.trailer(name)).map(std::borrow::Cow::into_owned)
        }
        other => return Err(Stop::Fault(format!("no such key: {other}:{name}"))),
    })
}

/// An attribute as text.
fn attribute(scope: &Scope<'_>, name: &str) -> Option<String> {
    let value = match (&scope.request, &scope.context) {
        (Some(request), _) => request.attribute(name),
        (None, Some(context)) => context.attribute(name),
        (None, None) => None,
    }?;
    if let Some(error) = value.downcast_ref::<Arc<Error>>() {
        return Some(kind_of(error).to_owned());
    }
    let text = value.downcast_ref::<String>().cloned();
    let text = text.or_else(|| value.downcast_ref::<bool>().map(bool::to_string));
    let text = text.or_else(|| value.downcast_ref::<i64>().map(i64::to_string));
    let text = text.or_else(|| value.downcast_ref::<u16>().map(u16::to_string));
    text.or_else(|| value.downcast_ref::<MappingValues>().map(MappingValues::to_string))
}

/// Who runs this, by the name of the thread.
fn thread_kind() -> &'static str {
    let thread = std::thread::current();
    match thread.name() {
        Some(name) if name.contains("-uring-core-") => "owner",
        Some(name) if name.contains("worker") => "pool",
        Some(_) | None => "worker",
    }
}
