//! Threads that are no core's: they write, complete, dispatch, and keep handles for too long.

use std::{cell::Cell, rc::Rc, time::Duration};

use ringcat::{AsyncContext, AsyncHandle, Error, ErrorKind, Result};
use ringcat_engine::sim::world::{self, chance, draw};

use crate::{
    application::{Listener, Offset, take_piece},
    checkers::Seen,
    places::dispatch_away,
    plan::{End, Plan, tagged},
    run::{Moment, Record, run},
};

/// Bytes that a response may have under way before writers wait: the default of the server.
const HIGH_WATER_BYTES: usize = 64 << 10;

/// What a response holds besides: its buffer, heads, what one send carries on top.
const SLACK_BYTES: usize = 32 << 10;

/// How long a round may take.
pub(crate) fn timeout_of(plan: &Plan) -> Duration {
    match plan.end {
        end if end.is_timed() => plan.timeout,
        End::Peer if !run().is_flood() => plan.timeout,
        _ => Duration::from_secs(120),
    }
}

/// Notes that a call decided how a round ends, if it did.
pub(crate) fn decide(number: u64, round: u32, call: &'static str, result: Result<()>) {
    match result {
        Ok(()) => {
            world::record(call, number, u64::from(round));
            run().see(&Seen::EndDecided { number, round });
        }
        Err(error) if error.kind() == ErrorKind::IllegalState => {}
        Err(error) => world::fail(format!("{call} of request {number}: {error}")),
    }
}

/// A pause of any length up to `longest`, or none.
fn linger(longest: Duration) {
    if longest > Duration::ZERO {
        world::sleep(longest);
    } else {
        world::give_way("comes later");
    }
}

/// Writes the answer and completes. What comes back turns true when it is done.
pub(crate) fn spawn_writer(
    name: (u64, u32),
    context: AsyncContext,
    delay: Duration,
) -> Rc<Cell<bool>> {
    let is_done = Rc::new(Cell::new(false));
    let done = Rc::clone(&is_done);
    world::spawn("writer", move || {
        linger(delay);
        write_and_complete(name, &context);
        done.set(true);
    });
    is_done
}

pub(crate) fn write_and_complete((number, round): (u64, u32), context: &AsyncContext) {
    if write_answer(number, context).is_ok() {
        decide(number, round, "complete of a writer", context.complete());
    }
}

fn write_answer(number: u64, context: &AsyncContext) -> Result<()> {
    let begun = run().record(number);
    let plan = begun.plan;
    let response = context.response()?;
    response.set_header("X-Id", number.to_string())?;
    if plan.has_extra {
        response.set_header("X-Extra", number.to_string())?;
    }
    let mut offset = 0;
    while offset < plan.answer_bytes {
        let len = plan.piece_bytes().min(plan.answer_bytes - offset).min(16 << 10);
        let piece = tagged(number, false, offset, len);
        if plan.tries {
            let mut waits = 0;
            while let Err(error) = response.try_write(piece.clone()) {
                waits += 1;
                if error.kind() != ErrorKind::WouldBlock || waits > 20_000 {
                    return Err(error);
                }
                world::sleep(Duration::from_micros(draw(50, 5000)));
            }
        } else {
            let begun = Moment::now();
            let written = response.write(piece);
            run().see(&Seen::WriteEnded { number, begun });
            written.inspect_err(|error| check_timeout(number, offset, error))?;
        }
        offset += len;
        check_credit(number, offset, &begun);
        if plan.flushes {
            response.flush()?;
            let may_change_head = response.set_status(203).is_ok();
            run().see(&Seen::Flushed { number, end: offset, may_change_head });
            // Nothing else that it does must be needed for the bytes to leave. (A servlet that
            // joins its writer would hold its core as long.)
            if plan.end != End::EagerForeign && chance(24) {
                world::sleep(Duration::from_micros(draw(1, 400_000)));
            }
        }
        if chance(32) {
            world::give_way("between two writes");
        }
    }
    Ok(())
}

/// While a callback of the request runs, another bound holds: nobody may wait for the owner then.
/// What is written to an answer in error is dropped, and never arrives.
fn check_credit(number: u64, written_bytes: usize, begun: &Record) {
    let record = run().record(number);
    let is_dropped = begun.plan.is_impolite || record.may_be_in_error();
    if is_dropped || begun.callbacks_running > 0 || record.callbacks_begun > begun.callbacks_begun {
        return;
    }
    see_under_way(number, written_bytes, &record);
}

/// The same for a future that writes its own answer: it waits although its callback runs.
pub(crate) fn see_credit(number: u64, written_bytes: usize, begun: &Record) {
    let record = run().record(number);
    if !begun.plan.is_impolite && !record.may_be_in_error() {
        see_under_way(number, written_bytes, &record);
    }
}

fn see_under_way(number: u64, written_bytes: usize, record: &Record) {
    let under_way = written_bytes.saturating_sub(record.received_bytes);
    let bound = HIGH_WATER_BYTES + (16 << 10) + record.window_bytes + SLACK_BYTES;
    run().see(&Seen::Written { number, under_way, bound });
}

/// A write that timed out was right to do so only if the client took nothing.
fn check_timeout(number: u64, written_bytes: usize, error: &Error) {
    let is_timeout = error.kind() == ErrorKind::Io && error.to_string().contains("timed out");
    let record = run().record(number);
    let under_way = written_bytes.saturating_sub(record.received_bytes + record.window_bytes);
    let has_room = under_way < HIGH_WATER_BYTES / 2 && !record.plan.is_impolite;
    if is_timeout && has_room && !record.is_excused {
        world::fail(format!(
            "a writer of request {number} waited in vain for credit that is there"
        ));
    }
}

/// Dispatches to the target.
pub(crate) fn spawn_dispatcher(name: (u64, u32), context: AsyncContext, delay: Duration) {
    let (number, round) = name;
    world::spawn("dispatcher", move || {
        linger(delay);
        let has_left_note = context.set_attribute("note", number).is_ok();
        run().change(number, |record| record.has_left_note |= has_left_note);
        let sent = dispatch_away(&context, number, &run().plan(number));
        decide(number, round, "dispatch of a thread", sent);
    });
}

/// Dispatches to the servlet that the client asked for.
pub(crate) fn spawn_redispatcher(name: (u64, u32), context: AsyncContext, delay: Duration) {
    let (number, round) = name;
    world::spawn("redispatcher", move || {
        linger(delay);
        decide(number, round, "dispatch to itself", context.dispatch());
    });
}

/// Makes calls that may be illegal, at once: starts a task, dispatches, completes.
pub(crate) fn spawn_impolite(name: (u64, u32), context: AsyncContext) {
    let (number, round) = name;
    world::spawn("impolite", move || {
        let plan = run().plan(number);
        if chance(128) {
            // Illegal, or done; or refused by a full pool.
            let started = context.start(|| Ok(()));
            world::record("start of a thread", number, u64::from(started.is_ok()));
        }
        if chance(48) {
            let sent = context.response().and_then(|response| response.send_error(500, None));
            world::record("send_error of a thread", number, u64::from(sent.is_ok()));
        }
        if plan.is_open_to_dispatches() && chance(96) {
            let sent = dispatch_away(&context, number, &plan);
            decide(number, round, "impolite dispatch", sent);
        }
        if chance(64) {
            decide(number, round, "impolite complete", context.complete());
        }
    });
}

/// Completes, whatever the others do.
pub(crate) fn spawn_rival(name: (u64, u32), context: AsyncContext, delay: Duration) {
    let (number, round) = name;
    world::spawn("rival", move || {
        linger(delay.mul_f64(draw(0, 200) as f64 / 100.0));
        decide(number, round, "complete of a rival", context.complete());
    });
}

/// Completes all that wait for a peer, many at a time, as long as clients run.
pub(crate) fn run_flood(mut is_over: impl FnMut() -> bool) {
    while !is_over() {
        world::sleep(Duration::from_millis(50));
        while let Some((number, context)) = run().take_peer() {
            let round = run().record(number).round;
            decide(number, round, "complete of many", context.complete());
        }
    }
}

/// Sets the timeout of a round that has begun `since`; it counts from the round's start all the
/// same.
pub(crate) fn spawn_timeout(number: u64, context: AsyncContext, timeout: Duration, since: Moment) {
    world::spawn("timeout", move || {
        world::sleep(Duration::from_micros(draw(1, 60_000)));
        // Noted before and after: it may have fired by the time the call returns.
        let note = || {
            run().change(number, |record| {
                record.parked_after = record.parked_after.max(Some(since.elapsed()));
            });
        };
        note();
        if context.set_timeout(timeout).is_ok() {
            note();
        }
    });
}

/// Starts async for a servlet that may have returned by then.
pub(crate) fn spawn_starter(number: u64, handle: AsyncHandle) {
    world::spawn("starter", move || {
        linger(Duration::from_micros(draw(0, 40)));
        let Ok(context) = handle.start_async() else { return };
        // Not noted as a round: a servlet that fails may end it before the listener is there, which
        // then is never told.
        let listener = Listener::new(number, 1, Duration::MAX);
        let is_prepared =
            context.set_timeout(Duration::ZERO).and_then(|()| context.add_listener(listener));
        if is_prepared.is_ok() {
            write_and_complete((number, 1), &context);
        }
    });
}

/// Reads what a listener was called for. A read that fails is told to the listener.
pub(crate) fn spawn_reader(number: u64, context: AsyncContext, offset: Offset) {
    world::spawn("reader", move || {
        linger(Duration::from_micros(draw(0, 2000)));
        let mut piece = [0; 3000];
        while let Ok(request) = context.request()
            && request.is_ready()
            && !request.is_finished()
        {
            match request.read(&mut piece) {
                Ok(0) | Err(_) => return,
                Ok(count) => take_piece(number, &offset, &piece[..count]),
            }
        }
    });
}

/// Keeps a handle until the request has ended, and longer.
pub(crate) fn spawn_stale(number: u64, context: AsyncContext) {
    // Once the request was dispatched nobody gets at it any more.
    let Ok(response) = context.response() else { return };
    world::spawn("stale", move || {
        // The client may never see the answer; then nothing is known of the end.
        for _ in 0..200 {
            world::sleep(Duration::from_millis(draw(1, 40)));
            let record = run().record(number);
            if record.is_completed && record.is_answered {
                break;
            }
        }
        let record = run().record(number);
        if !record.is_completed || !record.is_answered {
            return;
        }
        // Its core may stall as long in the middle of the turn that closes the cell.
        let (answered, patience) = (Moment::now(), Duration::from_millis(draw(60, 400)));
        while answered.elapsed() < patience {
            world::sleep(patience.saturating_sub(answered.elapsed()));
        }
        let calls: [(&str, Result<()>); 6] = [
            ("write", response.try_write("stale")),
            ("flush", response.flush()),
            ("set_status", response.set_status(418)),
            ("dispatch", context.dispatch()),
            ("set_attribute", context.set_attribute("stale", 1)),
            ("complete", context.complete()),
        ];
        for (call, result) in calls {
            run().see(&Seen::StaleCall { number, has_acted: result.is_ok(), call });
        }
    });
}
