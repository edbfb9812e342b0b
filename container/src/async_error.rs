//! Errors of asynchronous requests: the round's error event, `on_error`, the report, and the end
//! by the container where nobody else ends the request. Stands for `AsyncContextImpl.setErrorState`
//! (Servlet section 2.3.3.3, "error dispatch").

use ringcat_engine::{socket::Failure, sync::Arc};
use ringcat_protocol::{
    async_cell::{Advance, AsyncCell, Look},
    async_state_machine::{AsyncState, Effects, Event, Flag, Side},
    response::ErrorState,
};

use crate::{
    error::{Error, ErrorKind},
    error_pages,
    operation::ContainerOperation,
    request::Request,
    response::Response,
};

/// Which listeners hear of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fire {
    /// All of the round, by `on_error`.
    OnError,
    /// None: they heard of it as a timeout.
    Nothing,
}

/// The round is in error: the state says so, listeners hear of it, and if none of them completes
/// or dispatches, the container answers 500 and completes.
pub(crate) fn set_error_state(
    request: &mut Request,
    response: &mut Response,
    error: Option<Arc<Error>>,
    fire: Fire,
) {
    let Some(cell) = request.cell() else { return };
    request.take_in(response);
    if error.is_some() {
        request.note.seldom_mut().error.clone_from(&error);
    }
    let is_io = request.note.seldom().error.as_deref().is_some_and(|e| e.kind() == ErrorKind::Io);
    let is_lost = is_io && request.has_connection_failed();
    if is_lost {
        let is_early = cell.word().has(Flag::FailedBeforeExit);
        match (is_early, request.inner.body_error().is_some()) {
            (false, _) => response.log_as(500),
            (true, true) => response.log_as(400),
            // The status says how far it came.
            (true, false) => {}
        }
    }
    advance(&cell, Event::Error(Side::Request));
    if fire == Fire::OnError && !std::mem::replace(&mut request.note.is_error_told, true) {
        let error = error.as_deref();
        request.fire(Some(&mut *response), error, "on_error", |listener, event| {
            listener.on_error(event)
        });
        cell.set_flag(Flag::OthersBarred);
    }
    if cell.word().state() == AsyncState::Error {
        let status = match request.note.seldom().error.as_deref() {
            Some(error) if error.kind() != ErrorKind::Io => error.status(),
            Some(_) | None => 500,
        };
        // A client that is gone gets no report, and the status stays what it was.
        if !is_lost {
            // A report that was asked for already says more.
            if !response.is_error_report_due() {
                response.set_failed(status);
            }
            // A page of the application may end the request, or dispatch it.
            error_pages::render(request, response);
        }
    }
    if cell.word().state() == AsyncState::Error {
        if let Err(error) = cell.call(Some(Event::Complete(Side::Request)), None, Look::Never) {
            tracing::debug!("a request in error was completed already: {error}");
        }
    } else if request.is_async_dispatching() {
        // A listener dispatched: this is not an error any longer.
        response.inner.error = ErrorState::None;
        request.note.take(|seldom| seldom.error.take());
    } else if request.is_async_completing() && !response.inner.is_committed {
        // A listener ended it, and what it wrote is the answer.
        response.set_error_reported();
    }
}

/// Makes a transition of the owner's, whatever flags change meanwhile; `None` if the state does
/// not allow it.
pub(crate) fn advance(cell: &AsyncCell<ContainerOperation>, event: Event) -> Option<Effects> {
    let mut word = cell.word();
    loop {
        match cell.advance(word, event) {
            Ok(effects) => return Some(effects),
            Err(Advance::Changed(now)) => word = now,
            Err(Advance::Illegal(illegal)) => {
                tracing::debug!("{illegal}");
                return None;
            }
        }
    }
}

/// What an application is told of a failed connection.
pub(crate) fn failure_error(failure: Failure) -> Error {
    let error: std::io::Error = match failure {
        Failure::System(errno) => errno.into(),
        Failure::ReadTimeout(_) | Failure::WriteTimeout => std::io::ErrorKind::TimedOut.into(),
    };
    error.into()
}
