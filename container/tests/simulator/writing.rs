//! A write listener of the application: writes as the connection takes it, then completes.

use ringcat::{AsyncContext, Error, Request, Response, Result, WriteListener};
use ringcat_engine::sim::world;

use crate::{
    application::{Callback, maybe_fail, pause},
    foreign::decide,
    plan::tagged,
    run::run,
};

pub(crate) struct Writing {
    number: u64,
    round: u32,
    context: AsyncContext,
    offset: usize,
    /// The last answer of `is_ready` was no, or the listener was just set: a call is owed.
    is_owed: bool,
}

impl Writing {
    pub(crate) fn new((number, round): (u64, u32), context: AsyncContext) -> Self {
        Self { number, round, context, offset: 0, is_owed: true }
    }
}

impl WriteListener for Writing {
    fn on_write_possible(&mut self, _req: &mut Request, res: &mut Response) -> Result<()> {
        let number = self.number;
        let _callback = Callback::enter(number);
        if !std::mem::take(&mut self.is_owed) {
            world::fail(format!("the write listener of request {number} was owed no call"));
        }
        let plan = run().plan(number);
        let fails = |_: &Error| run().change(number, |record| record.has_failed = true);
        while self.offset < plan.answer_bytes {
            if !res.is_ready() {
                self.is_owed = true;
                return maybe_fail(number);
            }
            let len = plan.piece_bytes().min(plan.answer_bytes - self.offset);
            res.write(tagged(number, false, self.offset, len)).inspect_err(fails)?;
            self.offset += len;
            if plan.flushes && res.is_ready() {
                res.flush().inspect_err(fails)?;
            }
            pause();
        }
        maybe_fail(number)?;
        decide(number, self.round, "complete of a write listener", self.context.complete());
        Ok(())
    }

    fn on_error(&mut self, _req: &mut Request, _res: &mut Response, _error: &Error) -> Result<()> {
        run().change(self.number, |record| record.has_failed = true);
        Ok(())
    }
}
