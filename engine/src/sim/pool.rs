//! A worker pool whose threads are actors: each job runs on one of its own, some time later.

use std::time::Duration;

use super::{
    fault::Fault,
    world::{self, draw, hits},
};
use crate::{
    current::Current,
    worker_pool::{Job, Pool},
};

/// The pool of a run.
#[derive(Debug, Default)]
pub struct SimPool;

impl Pool for SimPool {
    fn try_submit(&self, job: Job) -> Result<(), Job> {
        if hits(Fault::PoolFull) {
            return Err(job);
        }
        world::spawn("worker", move || {
            if hits(Fault::LateWorker) {
                world::sleep(Duration::from_micros(draw(1, 20_000)));
            }
            let current = Current { core: None, is_worker: true, exchange: None };
            current.scope(job);
        });
        Ok(())
    }
}
