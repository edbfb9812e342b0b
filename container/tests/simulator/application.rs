//! The application of a run: servlets that follow the plan of their request, and listeners.

use std::{
    panic::resume_unwind,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use ringcat::{
    AsyncContext, AsyncEvent, AsyncListener, Context, DispatcherType, Error, ReadListener, Request,
    Response, Result, ServiceMode, Servlet,
};
use ringcat_engine::{
    current::Current,
    sim::{
        fault::Fault,
        world::{self, chance, hits},
    },
    timestamp::Timestamp,
};

use crate::{
    checkers::Seen,
    foreign::{self, decide},
    futures::Futures,
    places::{Forwarder, Included, Oops, dispatch_away, include_rest},
    plan::{End, Kind, Plan, tagged},
    run::{Moment, now, run},
    writing::Writing,
};

/// The application under test.
pub(crate) fn context() -> Context {
    Context::new("")
        .named_servlet("plain", &["/plain/*"], Plain)
        .named_servlet("async", &["/async/*"], Asynchronous { mode: ServiceMode::Collected })
        .named_servlet("blocking", &["/blocking/*"], Asynchronous { mode: ServiceMode::Blocking })
        .named_servlet("reader", &["/reader/*"], Reader)
        .named_async_servlet("future", &["/future/*"], Futures)
        .named_servlet("target", &["/target/*"], Target)
        .named_servlet("blocking-target", &["/blocking-target/*"], BlockingTarget)
        .named_servlet("forward", &["/forward/*"], Forwarder)
        .named_servlet("included", &["/included"], Included)
        .named_servlet("oops", &["/oops"], Oops)
        .default_error_page("/oops")
        .cross_context(true)
}

/// A callback of the application, for as long as this lives.
pub(crate) struct Callback(u64);

impl Callback {
    pub(crate) fn enter(number: u64) -> Self {
        world::record("callback begins", number, 0);
        run().see(&Seen::CallbackBegan { number });
        run().change(number, |record| {
            record.callbacks_begun += 1;
            record.callbacks_running += 1;
        });
        Self(number)
    }
}

impl Drop for Callback {
    fn drop(&mut self) {
        world::record("callback ends", self.0, 0);
        run().change(self.0, |record| {
            record.callbacks_running -= 1;
            record.quiet_since = Some(Moment::now());
        });
        run().see(&Seen::CallbackEnded { number: self.0 });
    }
}

/// Lets others run in the middle of a callback, as they do on real machines.
pub(crate) fn pause() {
    if chance(24) {
        world::give_way("pauses in a callback");
    }
}

/// Makes calls that are illegal in this callback, and has another thread make some.
pub(crate) fn be_impolite(req: &mut Request, name: (u64, u32)) {
    let (number, _) = name;
    let Some(context) = run().context(number) else { return };
    if chance(128) {
        foreign::spawn_impolite(name, context.clone());
        world::give_way("lets an impolite thread go first");
    }
    let is_in_round = !run().record(number).is_dispatched;
    if is_in_round && chance(128) && req.start_async().is_ok() {
        world::fail(format!("request {number} started async inside a round"));
    }
    if chance(64) {
        let started = context.start(|| Ok(()));
        world::record("start in a callback", number, u64::from(started.is_ok()));
    }
}

/// Makes calls that are illegal because the round is decided.
fn repeat_the_end(number: u64) {
    let Some(context) = run().context(number) else { return };
    let calls = [
        ("complete", context.complete()),
        ("dispatch", context.dispatch()),
        ("start", context.start(|| Ok(()))),
    ];
    for (call, result) in calls {
        if result.is_ok() {
            world::fail(format!("{call} of request {number} was taken after its end was decided"));
        }
    }
}

/// The number of the request's plan.
pub(crate) fn number_of(req: &Request) -> Result<u64> {
    let info = req.path_info().unwrap_or("");
    info.trim_start_matches('/')
        .parse()
        .map_err(|_| Error::illegal_argument(format!("no plan has the number {info:?}")))
}

/// Fails or panics if that is what hits.
pub(crate) fn maybe_fail(number: u64) -> Result<()> {
    if hits(Fault::CallbackFails) {
        run().change(number, |record| record.has_failed = true);
        return Err(Error::servlet("a failure on purpose"));
    }
    if hits(Fault::CallbackPanics) {
        run().change(number, |record| record.has_failed = true);
        resume_unwind(Box::new("a panic on purpose"));
    }
    Ok(())
}

/// Reads all content.
fn take_upload(req: &mut Request, number: u64) -> Result<()> {
    let mut offset = 0;
    let mut piece = [0; 4096];
    loop {
        let count = req.read(&mut piece).inspect_err(|_| {
            // The client left in the middle, or sent too slowly.
            run().change(number, |record| record.has_failed = true);
        })?;
        if count == 0 {
            break;
        }
        run().see(&Seen::Uploaded { number, offset, bytes: &piece[..count] });
        offset += count;
    }
    check_upload(number, offset);
    Ok(())
}

pub(crate) fn check_upload(number: u64, len: usize) {
    let expected = run().plan(number).upload_bytes;
    if len != expected {
        world::fail(format!("request {number} sent {expected} bytes, its servlet got {len}"));
    }
}

pub(crate) fn name_answer(res: &mut Response, number: u64, plan: &Plan) -> Result<()> {
    if plan.has_extra {
        res.set_header("X-Extra", number.to_string())?;
    }
    res.set_header("X-Id", number.to_string())
}

/// Storage is used again: nothing of an earlier request may be left in this one.
pub(crate) fn check_fresh(req: &mut Request, number: u64) {
    if req.attribute("mine").is_some() {
        world::fail(format!("request {number} has an attribute of another one"));
    }
    req.set_attribute("mine", number);
}

/// Writes the whole answer.
pub(crate) fn answer(res: &mut Response, number: u64, plan: &Plan) -> Result<()> {
    name_answer(res, number, plan)?;
    if plan.announces_length {
        res.set_content_length(plan.answer_bytes as u64);
    }
    let mut offset = 0;
    while offset < plan.answer_bytes {
        let len = plan.piece_bytes().min(plan.answer_bytes - offset);
        let written = res.write(tagged(number, false, offset, len));
        written.inspect_err(|_| run().change(number, |record| record.has_failed = true))?;
        offset += len;
        if plan.flushes {
            res.flush().inspect_err(|_| run().change(number, |record| record.has_failed = true))?;
        }
        pause();
    }
    Ok(())
}

/// Ends a request that waits for a callback of another one.
fn help_peer() {
    if run().is_flood() || !chance(128) {
        return;
    }
    let Some((number, context)) = run().take_peer() else { return };
    let round = run().record(number).round;
    let plan = run().plan(number);
    // On a core a write never waits: what finds no room is left out, and the answer is short.
    let written = context
        .response()
        .and_then(|response| response.write(tagged(number, false, 0, plan.answer_bytes)));
    if written.is_ok() {
        decide(number, round, "complete of a peer", context.complete());
    }
}

struct Plain;

impl Servlet for Plain {
    fn service(&self, req: &mut Request, res: &mut Response) -> Result<()> {
        let number = number_of(req)?;
        let _callback = Callback::enter(number);
        let plan = run().plan(number);
        check_fresh(req, number);
        help_peer();
        take_upload(req, number)?;
        maybe_fail(number)?;
        if plan.includes {
            include_rest(req, res, number, &plan)?;
        } else {
            answer(res, number, &plan)?;
        }
        maybe_fail(number)
    }
}

/// The target of dispatches.
pub(crate) struct Target;

impl Servlet for Target {
    fn service(&self, req: &mut Request, res: &mut Response) -> Result<()> {
        answer_dispatch(req, res)
    }

    fn is_async_supported(&self) -> bool {
        true
    }
}

/// A target that runs on a worker.
pub(crate) struct BlockingTarget;

impl Servlet for BlockingTarget {
    fn service(&self, req: &mut Request, res: &mut Response) -> Result<()> {
        answer_dispatch(req, res)
    }

    fn is_async_supported(&self) -> bool {
        true
    }

    fn mode(&self) -> ServiceMode {
        ServiceMode::Blocking
    }
}

fn answer_dispatch(req: &mut Request, res: &mut Response) -> Result<()> {
    let number = number_of(req)?;
    let _callback = Callback::enter(number);
    if req.dispatcher_type() != DispatcherType::Async {
        world::fail(format!("request {number} came to the target without a dispatch"));
    }
    let plan = run().plan(number);
    let record = run().change(number, |record| {
        record.is_dispatched = true;
        *record
    });
    check_attributes(req, number, &plan, record.has_left_note);
    repeat_the_end(number);
    if plan.end == End::TargetFails {
        return Err(Error::servlet("a target that fails"));
    }
    maybe_fail(number)?;
    // Whoever holds a handle may end any round; here it would count for the last one.
    if !plan.may_be_cut() && !record.is_sent_on_by_page && chance(64) {
        // In a round of its own, which knows nothing of what the last one went through.
        let round = run().change(number, |record| {
            record.round += 1;
            record.round
        });
        let context = req.start_async()?;
        context.set_timeout(Duration::ZERO)?;
        context.add_listener(Listener::new(number, round, Duration::MAX))?;
        answer(res, number, &plan)?;
        return context.complete();
    }
    answer(res, number, &plan)
}

/// What the target of a dispatch is told: what the client asked for, what the dispatcher left.
fn check_attributes(req: &Request, number: u64, plan: &Plan, has_left_note: bool) {
    let text = |name: &str| {
        let value = req.attribute(name)?;
        value.downcast_ref::<String>().cloned()
    };
    let original = text("jakarta.servlet.async.request_uri");
    let expected = plan.target(number);
    if original.as_ref() != Some(&expected) {
        world::fail(format!("request {number} was asked for as {expected}, not {original:?}"));
    }
    let note = req.attribute("note").and_then(|note| note.downcast_ref::<u64>().copied());
    if has_left_note && note != Some(number) {
        world::fail(format!("request {number} lost the attribute of its dispatcher: {note:?}"));
    }
    let mine = req.attribute("mine").and_then(|mine| mine.downcast_ref::<u64>().copied());
    if mine.is_some_and(|mine| mine != number) {
        world::fail(format!("request {number} has the attribute of {mine:?}"));
    }
}

/// Rounds of a request that is dispatched to itself.
const ROUNDS: u32 = 3;

struct Asynchronous {
    mode: ServiceMode,
}

impl Servlet for Asynchronous {
    fn service(&self, req: &mut Request, res: &mut Response) -> Result<()> {
        let number = number_of(req)?;
        let _callback = Callback::enter(number);
        let plan = run().plan(number);
        help_peer();
        let rounds = run().record(number).round;
        if rounds > 0 && plan.end != End::Rounds {
            world::fail(format!("request {number} came back to its servlet, not to the target"));
        }
        if rounds == 0 {
            check_fresh(req, number);
            take_upload(req, number)?;
            maybe_fail(number)?;
        }
        pause();
        if self.mode == ServiceMode::Blocking && plan.pieces.is_multiple_of(2) {
            return answer(res, number, &plan);
        }
        if plan.end == End::Handle {
            foreign::spawn_starter(number, req.async_handle()?);
            world::give_way("lets a foreign thread start first");
            return maybe_fail(number);
        }
        let round = run().change(number, |record| {
            record.round += 1;
            record.round
        });
        let timeout = foreign::timeout_of(&plan);
        let listener = Listener::new(number, round, timeout);
        let since = listener.since;
        let context = req.start_async()?;
        if plan.sets_timeout_late && self.mode == ServiceMode::Collected {
            context.set_timeout(Duration::ZERO)?;
            foreign::spawn_timeout(number, context.clone(), timeout, since);
        } else {
            context.set_timeout(timeout)?;
        }
        context.add_listener(listener)?;
        if plan.is_impolite {
            run().keep_context(number, context.clone());
        }
        if plan.is_impolite && chance(64) {
            be_impolite(req, (number, round));
        }
        run_round(req, res, &context, (number, round))?;
        pause();
        be_impolite(req, (number, round));
        if self.mode == ServiceMode::Collected {
            run().change(number, |record| {
                record.parked_after = record.parked_after.max(Some(since.elapsed()));
            });
        }
        maybe_fail(number)
    }

    fn is_async_supported(&self) -> bool {
        true
    }

    fn mode(&self) -> ServiceMode {
        self.mode
    }
}

pub(crate) fn run_round(
    req: &mut Request,
    res: &mut Response,
    context: &AsyncContext,
    (number, round): (u64, u32),
) -> Result<()> {
    let plan = run().plan(number);
    let name = (number, round);
    if plan.has_rivals {
        foreign::spawn_rival(name, context.clone(), plan.delay);
    }
    if plan.stays_stale && round == 1 {
        foreign::spawn_stale(number, context.clone());
    }
    match plan.end {
        End::Inside => {
            answer(res, number, &plan)?;
            decide(number, round, "complete in service", context.complete());
            repeat_the_end(number);
        }
        End::DispatchInside | End::TargetFails => {
            let sent = dispatch_away(context, number, &plan);
            decide(number, round, "dispatch in service", sent);
            repeat_the_end(number);
        }
        End::Foreign | End::TimeoutRace => {
            foreign::spawn_writer(name, context.clone(), plan.delay);
        }
        End::EagerForeign => {
            let writer = foreign::spawn_writer(name, context.clone(), Duration::ZERO);
            world::give_way("lets a foreign thread go first");
            // Who joins its own writer must not wait for ever: writers do not wait for it.
            while plan.pieces == 3 && !writer.get() {
                world::sleep(Duration::from_micros(20));
            }
        }
        End::ForeignDispatch | End::TimeoutDispatchRace => {
            foreign::spawn_dispatcher(name, context.clone(), plan.delay);
        }
        End::EagerDispatch => {
            foreign::spawn_dispatcher(name, context.clone(), Duration::ZERO);
            world::give_way("lets a foreign thread go first");
        }
        End::Rounds if round < ROUNDS => {
            foreign::spawn_redispatcher(name, context.clone(), plan.delay / 4);
        }
        End::Rounds => {
            answer(res, number, &plan)?;
            decide(number, round, "complete in a round", context.complete());
        }
        End::Peer => run().leave_to_peers(number, context.clone()),
        End::Handle => world::fail(format!("request {number} is started by a thread")),
        End::WriteListener => {
            name_answer(res, number, &plan)?;
            res.set_write_listener(Writing::new(name, context.clone()))?;
        }
        End::PoolTask => {
            let task = context.clone();
            context
                .start(move || {
                    foreign::write_and_complete(name, &task);
                    Ok(())
                })
                .inspect_err(|_| {
                    // The pool is full: the request fails.
                    run().change(number, |record| record.has_failed = true);
                })?;
        }
        End::TimeoutUnhandled | End::TimeoutCompletes | End::TimeoutDispatches => {}
        End::FailsAfterStart | End::FailsAndCompletes | End::FailsAndDispatches => {
            if req.method() == "POST" {
                resume_unwind(Box::new("a panic after the start"));
            }
            return Err(Error::servlet("a failure after the start"));
        }
    }
    Ok(())
}

/// Told of what happens to an asynchronous request.
pub(crate) struct Listener {
    number: u64,
    round: u32,
    begun: Timestamp,
    since: Moment,
    timeout: Duration,
}

impl Listener {
    /// For a round that begins now.
    pub(crate) fn new(number: u64, round: u32, timeout: Duration) -> Self {
        Self { number, round, begun: now(), since: Moment::now(), timeout }
    }
}

/// Listeners run on the core that owns their request, whoever else has it meanwhile.
fn check_owner(number: u64) {
    let current = Current::get();
    if current.core.is_none() || current.is_worker {
        world::fail(format!("a listener of request {number} runs on {current:?}"));
    }
}

/// The end of a request may also be told on the worker that has it: the target of a dispatch did
/// not begin another round.
fn check_delegate(number: u64) {
    let current = Current::get();
    if current.exchange.is_none() || current.core.is_none() && !current.is_worker {
        world::fail(format!("on_complete of request {number} runs on {current:?}"));
    }
}

impl AsyncListener for Listener {
    fn on_start_async(&mut self, _event: &mut AsyncEvent<'_>) -> Result<()> {
        check_owner(self.number);
        maybe_fail(self.number)
    }

    fn on_timeout(&mut self, event: &mut AsyncEvent<'_>) -> Result<()> {
        let Self { number, round, begun, since, timeout } = *self;
        check_owner(number);
        let _callback = Callback::enter(number);
        let after = now().saturating_since(begun);
        run().see(&Seen::TimedOut { number, after, own: since.elapsed(), timeout });
        let plan = run().plan(number);
        run().change(number, |record| record.has_timed_out = true);
        pause();
        maybe_fail(number)?;
        be_impolite(event.request(), (number, round));
        let context = event.context().clone();
        match plan.end {
            End::TimeoutCompletes | End::Peer => {
                // A peer may have written all and not completed yet.
                if plan.end == End::TimeoutCompletes {
                    answer(event.response()?, number, &plan)?;
                }
                decide(number, round, "complete in on_timeout", context.complete());
                repeat_the_end(number);
                be_impolite(event.request(), (number, round));
            }
            End::TimeoutDispatches => {
                let sent = dispatch_away(&context, number, &plan);
                decide(number, round, "dispatch in on_timeout", sent);
                repeat_the_end(number);
                be_impolite(event.request(), (number, round));
            }
            _ => {}
        }
        Ok(())
    }

    fn on_error(&mut self, event: &mut AsyncEvent<'_>) -> Result<()> {
        let Self { number, round, .. } = *self;
        check_owner(number);
        let _callback = Callback::enter(number);
        let plan = run().plan(number);
        let erred_round = run().change(number, |record| {
            record.has_erred = true;
            std::mem::replace(&mut record.erred_round, round)
        });
        if erred_round == round {
            world::fail(format!("request {number} was told twice of an error in round {round}"));
        }
        pause();
        be_impolite(event.request(), (number, round));
        let context = event.context().clone();
        match plan.end {
            End::FailsAndCompletes => {
                decide(number, round, "complete in on_error", context.complete());
                be_impolite(event.request(), (number, round));
            }
            End::FailsAndDispatches => {
                let sent = dispatch_away(&context, number, &plan);
                decide(number, round, "dispatch in on_error", sent);
                be_impolite(event.request(), (number, round));
                if plan.pieces == 6 {
                    // The report of this error comes in place of the dispatch.
                    event.response()?.send_error(500, None)?;
                }
            }
            _ => {}
        }
        maybe_fail(number)
    }

    fn on_complete(&mut self, event: &mut AsyncEvent<'_>) -> Result<()> {
        let number = self.number;
        check_delegate(number);
        let _callback = Callback::enter(number);
        run().see(&Seen::Completed { number, is_peer_closed: event.context().peer_closed() });
        run().change(number, |record| {
            record.is_completed = true;
            record.completed_at = Some(Moment::now());
        });
        repeat_the_end(self.number);
        run().forget_context(self.number);
        pause();
        maybe_fail(self.number)
    }
}

/// Reads by a listener.
struct Reader;

impl Servlet for Reader {
    fn service(&self, req: &mut Request, _res: &mut Response) -> Result<()> {
        let number = number_of(req)?;
        let _callback = Callback::enter(number);
        let plan = run().plan(number);
        maybe_fail(number)?;
        run().change(number, |record| record.round = 1);
        let timeout = foreign::timeout_of(&plan).max(Duration::from_secs(5));
        let listener = Listener::new(number, 1, timeout);
        let context = req.start_async()?;
        context.set_timeout(timeout)?;
        context.add_listener(listener)?;
        if plan.has_rivals && plan.is_open_to_dispatches() && chance(192) {
            foreign::spawn_dispatcher((number, 1), context.clone(), plan.delay);
        } else if plan.has_rivals {
            foreign::spawn_rival((number, 1), context.clone(), plan.delay);
        }
        if plan.is_impolite {
            run().keep_context(number, context.clone());
        }
        req.set_read_listener(Reading { number, context, offset: Offset::default() })
    }

    fn is_async_supported(&self) -> bool {
        true
    }

    fn mode(&self) -> ServiceMode {
        ServiceMode::Streaming
    }
}

/// A piece of a content was read.
pub(crate) fn take_piece(number: u64, offset: &AtomicUsize, bytes: &[u8]) {
    let at = offset.fetch_add(bytes.len(), Ordering::Relaxed);
    run().see(&Seen::Uploaded { number, offset: at, bytes });
}

/// How far a content was read, by the listener or by threads.
pub(crate) type Offset = Arc<AtomicUsize>;

struct Reading {
    number: u64,
    context: AsyncContext,
    offset: Offset,
}

impl ReadListener for Reading {
    fn on_data_available(&mut self, req: &mut Request, _res: &mut Response) -> Result<()> {
        let number = self.number;
        let _callback = Callback::enter(number);
        if run().plan(number).pieces.is_multiple_of(3) {
            foreign::spawn_reader(number, self.context.clone(), self.offset.clone());
            return maybe_fail(number);
        }
        let mut piece = [0; 3000];
        while req.is_ready() && !req.is_finished() {
            let count = req.read(&mut piece)?;
            if count == 0 {
                break;
            }
            take_piece(number, &self.offset, &piece[..count]);
            pause();
        }
        be_impolite(req, (number, 1));
        maybe_fail(number)
    }

    fn on_all_data_read(&mut self, req: &mut Request, res: &mut Response) -> Result<()> {
        let number = self.number;
        let _callback = Callback::enter(number);
        run().see(&Seen::AllDataRead { number });
        check_upload(number, self.offset.load(Ordering::Relaxed));
        let plan = run().plan(number);
        debug_assert_eq!(plan.kind, Kind::Reader);
        maybe_fail(number)?;
        if plan.is_open_to_dispatches() {
            let sent = dispatch_away(&self.context, number, &plan);
            decide(number, 1, "dispatch of a reader", sent);
        } else {
            answer(res, number, &plan)?;
            decide(number, 1, "complete of a reader", self.context.complete());
        }
        repeat_the_end(number);
        be_impolite(req, (number, 1));
        Ok(())
    }

    fn on_error(&mut self, _req: &mut Request, _res: &mut Response, _error: &Error) -> Result<()> {
        run().change(self.number, |record| record.has_failed = true);
        Ok(())
    }
}
