//! The steps of an asynchronous event, on the owner: reading and writing with listeners, errors of
//! connection and content, timeouts. Stands for the cases of `CoyoteAdapter.asyncDispatch`.

use ringcat_engine::sync::Arc;
use ringcat_protocol::{
    async_cell::Advance,
    async_state_machine::{AsyncState, Event, Flag, Side},
    protocol_error::BODY_CUT,
};

use crate::{
    async_error::{self, Fire},
    async_listener::{ReadListener, WriteListener},
    error::{Error, Result},
    guard::{guard, guard_drop},
    request::Request,
    response::Response,
};

/// Calls `on_all_data_read`, once, when everything was read.
pub(crate) fn read_all_if_due(request: &mut Request, response: &mut Response) -> bool {
    let keeps_listener =
        || request.cell().is_some_and(|cell| cell.word().state().keeps_listeners());
    let is_due = request.inner.has_read_listener
        && keeps_listener()
        && request.is_finished()
        && !request.is_read_elsewhere()
        && !request.note.is_all_data_read_sent;
    if !is_due {
        return true;
    }
    request.note.is_all_data_read_sent = true;
    request.inner.is_read_due = false;
    call_read_listener(request, response, |listener, request, response| {
        listener.on_all_data_read(request, response)
    })
}

/// One call of the read listener; what it fails with goes to its own `on_error`, and on.
fn call_read_listener(
    request: &mut Request,
    response: &mut Response,
    call: fn(&mut dyn ReadListener, &mut Request, &mut Response) -> Result<()>,
) -> bool {
    let Some(mut listener) = request.note.take(|seldom| seldom.read_listener.take()) else {
        return true;
    };
    request.note.was_unready = false;
    let result = request.in_callback(|request| guard(|| call(&mut *listener, request, response)));
    let Err(error) = result else {
        request.note.seldom_mut().read_listener.get_or_insert(listener);
        return true;
    };
    tracing::debug!("a read listener failed: {error}");
    let told = guard(|| listener.on_error(request, response, &error));
    log_failure("on_error of a read listener", told);
    guard_drop("dropping a read listener", listener);
    request.inner.has_read_listener = false;
    response.close_now();
    let error = Some(Arc::new(error));
    async_error::set_error_state(request, response, error, Fire::OnError);
    false
}

/// The read step of an asynchronous event.
pub(crate) fn read_step(request: &mut Request, response: &mut Response) -> bool {
    let started = request.cell().and_then(|cell| async_error::advance(&cell, Event::Operation));
    // Refused: another thread completed or dispatched just now, and nobody is told.
    if started.is_none_or(|effects| effects.refused) {
        return true;
    }
    let has_content = request.cell().is_some_and(|cell| cell.inbound_len() > 0);
    let is_broken = request.inner.body_error().is_some();
    let is_told = std::mem::take(&mut request.inner.is_read_due) && (has_content || is_broken);
    let is_fine = !is_told
        || call_read_listener(request, response, |listener, req, res| {
            listener.on_data_available(req, res)
        });
    if is_fine && is_told && is_broken && request.is_input_broken() {
        // The listener met the error and kept it to it
        error_step(request, response);
        return false;
    }
    is_fine && read_all_if_due(request, response)
}

/// The write step of an asynchronous event.
pub(crate) fn write_step(request: &mut Request, response: &mut Response) -> bool {
    let Some(cell) = request.cell() else { return true };
    let started = async_error::advance(&cell, Event::Operation);
    if started.is_none_or(|effects| effects.refused) {
        return true;
    }
    cell.clear_flag(Flag::WriteOwed);
    let Some(mut listener) = request.note.take(|seldom| seldom.write_listener.take()) else {
        return true;
    };
    let result =
        request.in_callback(|request| guard(|| listener.on_write_possible(request, response)));
    let error = match result {
        // What it kept to itself is found all the same.
        Ok(()) if cell.word().state() == AsyncState::Error => connection_lost(),
        Ok(()) => {
            request.note.seldom_mut().write_listener.get_or_insert(listener);
            return read_all_if_due(request, response);
        }
        Err(error) => error,
    };
    tracing::debug!("a write listener failed: {error}");
    tell_write_listener(listener, request, response, &error);
    response.close_now();
    let error = Some(Arc::new(error));
    async_error::set_error_state(request, response, error, Fire::OnError);
    false
}

/// The connection or the body failed under an asynchronous request.
pub(crate) fn error_step(request: &mut Request, response: &mut Response) {
    let error = match (&request.inner.failure, request.inner.body_error()) {
        (Some(failure), _) => Some(async_error::failure_error(*failure)),
        (None, Some(error)) if error == BODY_CUT => Some(connection_lost()),
        (None, Some(error)) => Some(Error::protocol_violation(error.status, error.reason)),
        // A thread or callback met it, and the socket does not know yet.
        (None, None)
            if request.note.seldom().error.is_none() && request.has_connection_failed() =>
        {
            Some(connection_lost())
        }
        // The error of the round itself: it is recorded, or the application's.
        (None, None) => None,
    };
    let is_connection_lost = error.is_some();
    let error: Option<Arc<Error>> = match error {
        Some(error) => Some(Arc::new(error)),
        None => request.note.seldom().error.clone(),
    };
    let seldom = request.note.seldom();
    let has_listener = seldom.read_listener.is_some() || seldom.write_listener.is_some();
    if is_connection_lost
        && has_listener
        && let Some(cell) = request.cell()
    {
        // Their calls are a round of reading or writing, unless a callback failed just now.
        if cell.word().state() == AsyncState::Started {
            async_error::advance(&cell, Event::Operation);
        }
    }
    if is_connection_lost
        && let Some(mut listener) = request.note.take(|seldom| seldom.read_listener.take())
    {
        if let Some(error) = &error {
            let told = guard(|| listener.on_error(request, response, error));
            log_failure("on_error of a read listener", told);
        }
        guard_drop("dropping a read listener", listener);
        request.inner.has_read_listener = false;
    }
    if is_connection_lost
        && let Some(listener) = request.note.take(|seldom| seldom.write_listener.take())
    {
        match &error {
            Some(error) => tell_write_listener(listener, request, response, error),
            None => guard_drop("dropping a write listener", listener),
        }
    }
    if is_connection_lost {
        response.close_now();
    }
    async_error::set_error_state(request, response, error, Fire::OnError);
}

pub(crate) fn timeout_step(request: &mut Request, response: &mut Response) {
    let Some(cell) = request.cell() else { return };
    let fired = async_error::advance(&cell, Event::Timeout);
    if !fired.is_some_and(|effects| effects.fire_on_timeout) {
        return;
    }
    request.fire(Some(&mut *response), None, "on_timeout", |listener, event| {
        listener.on_timeout(event)
    });
    // Another thread may still complete; whoever changes the state first has the last word.
    let is_unhandled = loop {
        let word = cell.word();
        if word.state() != AsyncState::TimingOut {
            break false;
        }
        match cell.advance(word, Event::Error(Side::Request)) {
            Ok(_) => break true,
            Err(Advance::Changed(_)) => {}
            Err(Advance::Illegal(_)) => break false,
        }
    };
    if is_unhandled {
        async_error::set_error_state(request, response, None, Fire::Nothing);
    }
}

fn connection_lost() -> Error {
    std::io::Error::from(std::io::ErrorKind::ConnectionReset).into()
}

fn log_failure(what: &str, result: Result<()>) {
    if let Err(error) = result {
        tracing::error!("{what} failed: {error}");
    }
}

/// The last call of a write listener.
fn tell_write_listener(
    mut listener: Box<dyn WriteListener>,
    request: &mut Request,
    response: &mut Response,
    error: &Error,
) {
    let told = guard(|| listener.on_error(request, response, error));
    log_failure("on_error of a write listener", told);
    guard_drop("dropping a write listener", listener);
    response.inner.has_write_listener = false;
}
