//! An `async fn` servlet that follows the plan of its request: it reads and writes by awaiting,
//! waits for wakes of other threads, and is dropped when somebody else ends its round.

use std::{
    cell::RefCell,
    future::{Future, pending, poll_fn},
    io,
    pin::{Pin, pin},
    rc::Rc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use ringcat::{AsyncContext, AsyncServlet, Request, Response, Result, net::TcpStream, time};
use ringcat_engine::sim::world::{self, chance, draw};

use crate::{
    application::{
        Callback, Listener, answer, be_impolite, check_fresh, check_upload, maybe_fail,
        name_answer, number_of, pause, run_round,
    },
    checkers::Seen,
    foreign,
    plan::{End, Plan, find_strange, tagged},
    run::{Moment, now, run},
    upstream,
};

/// The servlet.
pub(crate) struct Futures;

impl AsyncServlet for Futures {
    async fn service(&self, req: &mut Request, res: &mut Response) -> Result<()> {
        let number = number_of(req)?;
        let mut serving = pin!(serve(req, res, number));
        // A callback is what runs between two waits.
        poll_fn(|cx| {
            let _callback = Callback::enter(number);
            let polled = serving.as_mut().poll(cx);
            if polled.is_pending() {
                note_parked(number);
            }
            polled
        })
        .await
    }
}

/// Where the round began, so that its timeout is not expected earlier than it is set.
fn note_parked(number: u64) {
    run().change(number, |record| {
        if let (Some(since), None) = (record.future_since, record.parked_after) {
            record.parked_after = Some(since.elapsed());
        }
    });
}

/// Lives as long as the future: whoever ends the round drops it before listeners hear of that.
struct Riding(u64);

impl Drop for Riding {
    fn drop(&mut self) {
        let record = run().record(self.0);
        if record.is_completed || record.has_timed_out || record.has_erred {
            world::fail(format!("the future of request {} outlived its round: {record:?}", self.0));
        }
    }
}

async fn serve(req: &mut Request, res: &mut Response, number: u64) -> Result<()> {
    let _riding = Riding(number);
    let plan = run().plan(number);
    check_fresh(req, number);
    if plan.end == End::Inside && plan.upload_bytes == 0 {
        return serve_in_own_round(req, res, number, &plan).await;
    }
    run().change(number, |record| record.round = 1);
    let timeout = foreign::timeout_of(&plan);
    let listener = Listener::new(number, 1, timeout);
    let since = Moment::now();
    let context = req.start_async()?;
    context.set_timeout(timeout)?;
    context.add_listener(listener)?;
    run().change(number, |record| record.future_since = Some(since));
    if plan.is_impolite {
        run().keep_context(number, context.clone());
    }
    take_upload(req, number).await?;
    maybe_fail(number)?;
    if plan.end == End::Inside {
        wait(number, &plan).await;
        write_answer(res, number, &plan).await?;
        foreign::decide(number, 1, "complete in a future", context.complete());
        return maybe_fail(number);
    }
    run_round(req, res, &context, (number, 1))?;
    be_impolite(req, (number, 1));
    maybe_fail(number)?;
    if chance(64) {
        // Whoever ends the round does so without a future.
        return Ok(());
    }
    wait(number, &plan).await;
    maybe_fail(number)?;
    pending().await
}

/// The round that the container begins at the first wait, and ends with the future.
async fn serve_in_own_round(
    req: &mut Request,
    res: &mut Response,
    number: u64,
    plan: &Plan,
) -> Result<()> {
    maybe_fail(number)?;
    if chance(64) {
        return answer(res, number, plan);
    }
    Wait::new(Duration::ZERO).await;
    let context = req.async_context()?;
    context.set_timeout(Duration::ZERO)?;
    context.add_listener(Listener::new(number, 1, Duration::MAX))?;
    run().change(number, |record| record.round = 1);
    join(&context, number, plan).await;
    write_answer(res, number, plan).await?;
    maybe_fail(number)
}

/// Waits for a wake, and meanwhile for a departure that mostly does not come.
async fn join(context: &AsyncContext, number: u64, plan: &Plan) {
    let cancellation = context.cancellation();
    let mut wait = pin!(wait(number, plan));
    let mut cancelled = pin!(cancellation.cancelled());
    let mut is_cancelled = false;
    poll_fn(|cx| {
        is_cancelled = is_cancelled || cancelled.as_mut().poll(cx).is_ready();
        if is_cancelled && !cancellation.is_cancelled() {
            world::fail("a cancellation was ready and is not there");
        }
        wait.as_mut().poll(cx)
    })
    .await;
}

async fn take_upload(req: &mut Request, number: u64) -> Result<()> {
    let mut offset = 0;
    let mut piece = [0; 4096];
    loop {
        let read = req.read_async(&mut piece).await;
        let count =
            read.inspect_err(|_| run().change(number, |record| record.has_failed = true))?;
        if count == 0 {
            break;
        }
        run().see(&Seen::Uploaded { number, offset, bytes: &piece[..count] });
        offset += count;
        pause();
    }
    check_upload(number, offset);
    Ok(())
}

async fn write_answer(res: &mut Response, number: u64, plan: &Plan) -> Result<()> {
    name_answer(res, number, plan)?;
    let mut offset = 0;
    while offset < plan.answer_bytes {
        let len = plan.piece_bytes().min(plan.answer_bytes - offset).min(16 << 10);
        let begun = run().record(number);
        let written = res.write_async(tagged(number, false, offset, len)).await;
        written.inspect_err(|_| run().change(number, |record| record.has_failed = true))?;
        offset += len;
        foreign::see_credit(number, offset, &begun);
        if plan.flushes {
            res.flush().inspect_err(|_| run().change(number, |record| record.has_failed = true))?;
        }
        if chance(16) {
            wait(number, plan).await;
        }
    }
    Ok(())
}

/// Some waits: for other threads, for the clock, for another server.
async fn wait(number: u64, plan: &Plan) {
    for _ in 0..plan.pieces % 3 {
        match () {
            () if chance(80) => rest(plan.delay / 2).await,
            () if chance(80) => {
                // Whatever becomes of the other server, the request goes on.
                let asked = time::timeout(Duration::from_secs(2), ask_upstream(number)).await;
                world::record("asked upstream", number, u64::from(matches!(asked, Ok(Ok(())))));
            }
            () => Wait::new(plan.delay / 2).await,
        }
    }
}

/// Sleeps, never too short.
async fn rest(duration: Duration) {
    let begun = now();
    time::sleep(duration).await;
    if now().saturating_since(begun) < duration {
        world::fail(format!("a sleep of {duration:?} was over before"));
    }
}

/// Has the other server send back what it is sent: nobody else's bytes may be among them.
async fn ask_upstream(number: u64) -> io::Result<()> {
    let mut stream = TcpStream::connect(upstream::address()).await?;
    let len = if chance(24) { draw(1, 30_000) } else { draw(1, 400) } as usize;
    stream.write_all(&tagged(number, true, 0, len)).await?;
    let (mut offset, mut piece) = (0, [0; 2000]);
    while offset < len {
        let count = stream.read(&mut piece).await?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if let Some(at) = find_strange(number, true, offset, &piece[..count]) {
            world::fail(format!("byte {at} of what request {number} asked upstream is strange"));
        }
        offset += count;
    }
    stream.shutdown().await
}

/// Ready when another thread says so.
struct Wait(Rc<RefCell<(bool, Option<Waker>)>>);

impl Wait {
    fn new(longest: Duration) -> Self {
        let state = Rc::<RefCell<(bool, Option<Waker>)>>::default();
        let given = Rc::clone(&state);
        world::spawn("waker", move || {
            for is_last in [false, true] {
                world::sleep(Duration::from_nanos(draw(0, longest.as_nanos() as u64)));
                let waker = {
                    let mut state = given.borrow_mut();
                    state.0 = is_last;
                    state.1.clone()
                };
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
        });
        Self(state)
    }
}

impl Future for Wait {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        {
            let mut state = self.0.borrow_mut();
            if state.0 {
                return Poll::Ready(());
            }
            state.1 = Some(cx.waker().clone());
        }
        // The wake may come while the future is still being polled.
        pause();
        Poll::Pending
    }
}
