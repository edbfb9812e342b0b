//! The loop of the native backend. A turn: one enter (submit what is queued, wait if nothing is to
//! do), the completions copied out, each dispatched; then the core's own work, its timers, and what
//! the turn left to submit.
//!
//! Commands are executed right after the callback that queued them, which is the earliest moment
//! that keeps their order, and lets nothing but `Closed` follow a `Close` within a batch. They only
//! queue submissions; the kernel is entered once a turn, by the loop.
//!
//! Steady state allocates nothing: slots, queues, batch and vectors are reused.

use std::{
    collections::{HashMap, VecDeque},
    fmt, io,
    os::fd::{AsFd, AsRawFd},
    rc::Rc,
    time::Duration,
};

use super::{
    accept::{self, Acceptors},
    buffer_ring::BufferRing,
    connection::Shots,
    file::FileOperation,
    listen::Listener,
    operation::Operation,
    options::{NativeOptions, RecvMode},
    probe::Capabilities,
    ring::{Completion, Ring, Setup, Wait},
    send::GatherPool,
    sockets::{Sockets, slab_key},
    stats::NativeStats,
    user_data::{Kind, UserData},
};
use crate::{
    backend::{Backend, Commands, CoreHandler, Event, Io},
    event_fd::EventFd,
    key::ConnKey,
    slab::Slab,
    sync::Arc,
    timestamp::Timestamp,
};

/// A core's io_uring with everything that it serves. Lives and ends on the thread that opened it.
///
/// Dropping it cancels what is in flight and waits for it, a second at most; memory that the
/// kernel might still touch after that is leaked.
pub struct NativeBackend {
    // The ring is dropped first: its memory rules end with it.
    pub(super) ring: Ring,
    pub(super) sockets: Rc<Sockets>,
    buffers: Rc<BufferRing>,
    pub(super) shots: Shots,
    pub(super) acceptors: Acceptors,
    /// Receivers that found no buffer, oldest first.
    starved: VecDeque<ConnKey>,
    pub(super) files: Slab<FileOperation>,
    /// Connects in flight, by token.
    pub(super) connecting: HashMap<u64, ConnKey>,
    pub(super) gathers: GatherPool,
    pub(super) commands: Commands,
    /// Events that commands caused at once; delivered first in the next turn.
    pub(super) deferred: VecDeque<Event>,
    wake: Arc<EventFd>,
    batch: Vec<Completion>,
    /// Read once a turn.
    pub(super) now: Timestamp,
    pub(super) is_stopped: bool,
    pub(super) stats: Rc<NativeStats>,
}

impl NativeBackend {
    /// Opens the ring of a core, on the core's thread. `wake` ends the loop's wait; it is polled
    /// and never read.
    ///
    /// # Errors
    /// An option is out of range (`InvalidInput`), or the kernel refused; `ENOMEM` stands for the
    /// locked memory limit.
    pub fn open(
        capabilities: &Capabilities,
        options: &NativeOptions,
        listeners: Vec<Listener>,
        wake: Arc<EventFd>,
    ) -> io::Result<Self> {
        options.check()?;
        let stats = Rc::new(NativeStats::default());
        let sockets = Rc::new(Sockets::new());
        let ring = open_ring(capabilities.setup(), &stats)?;
        let count = options.recv_bufs_on(capabilities.has_no_iowait);
        let buffers = BufferRing::new(count, options.recv_buf_bytes)?;
        let shots = match (options.recv_mode, capabilities.has_fair_multishot) {
            (RecvMode::Multi, _) | (RecvMode::Auto, true) => Shots::Multi,
            (RecvMode::Single, _) | (RecvMode::Auto, false) => Shots::Single,
        };
        let backend = Self {
            ring,
            sockets,
            buffers,
            shots,
            acceptors: Acceptors::new(listeners, options)?,
            starved: VecDeque::new(),
            files: Slab::with_stamp_mask(ConnKey::STAMP_MASK),
            connecting: HashMap::new(),
            gathers: GatherPool::default(),
            commands: Commands::default(),
            deferred: VecDeque::new(),
            wake,
            batch: Vec::with_capacity(BATCH_MAX),
            now: Timestamp::ZERO,
            is_stopped: false,
            stats,
        };
        // SAFETY: the backend owns both, and its drop either awaits all operations of the ring
        // before the buffers go, or leaks a share of the buffers.
        unsafe { backend.buffers.register(&backend.ring.submitter()) }?;
        Ok(backend)
    }

    /// The counters; they can be kept when [`Backend::run`] takes the backend.
    pub fn stats(&self) -> Rc<NativeStats> {
        Rc::clone(&self.stats)
    }

    /// Calls the handler, then does what it asks.
    #[inline]
    pub(super) fn deliver<H: CoreHandler>(&mut self, event: Event, handler: &mut H) {
        handler.on(self.now, event, &mut self.commands);
        self.execute_commands();
    }

    fn arm_wake(&mut self) {
        let name = UserData::of_index(Kind::Wake, 0);
        let fd = self.wake.as_fd().as_raw_fd();
        self.ring.push(Operation::poll_multi(fd, i32::from(libc::POLLIN), name));
    }

    /// Submits and, if nothing is to do, waits.
    fn enter<H: CoreHandler>(&mut self, has_work: bool, handler: &mut H) -> io::Result<()> {
        let has_work = has_work || self.has_work();
        let is_waiting = !has_work && handler.may_sleep();
        let wait = if is_waiting { self.wait_until(handler.next_deadline()) } else { Wait::No };
        self.buffers.publish();
        let entered = self.ring.enter(wait);
        if is_waiting {
            handler.awake();
        }
        entered
    }

    fn wait_until(&self, handler_deadline: Option<Timestamp>) -> Wait {
        let deadlines = [handler_deadline, self.acceptors.next_deadline()];
        let next = deadlines.into_iter().flatten().min().filter(|at| *at != Timestamp::NEVER);
        let Some(at) = next else { return Wait::For(None) };
        match at.saturating_since(self.sockets.time()) {
            Duration::ZERO => Wait::No,
            left => Wait::For(Some(left)),
        }
    }

    /// Whether the next turn has something to do without any completion.
    fn has_work(&self) -> bool {
        !self.deferred.is_empty()
            || !self.starved.is_empty() && self.buffers.at_home() > 0
            || self.acceptors.has_work(self.sockets.accepted_len())
    }

    /// One turn after its enter; whether the handler has work left.
    fn turn<H: CoreHandler>(&mut self, handler: &mut H) -> bool {
        self.now = self.sockets.time();
        self.acceptors.begin_turn(self.now);
        self.dispatch_all(handler);
        if self.is_stopped {
            return false;
        }
        let has_work = handler.run_ready(self.now, &mut self.commands);
        self.execute_commands();
        if self.is_stopped {
            return false;
        }
        self.deliver(Event::Timeout, handler);
        self.feed_starved();
        self.step_acceptors();
        has_work
    }

    fn dispatch_all<H: CoreHandler>(&mut self, handler: &mut H) {
        let mut batch = std::mem::take(&mut self.batch);
        batch.clear();
        // Copied out before any handler runs: the kernel has room for what they cause.
        let has_more = self.ring.reap(&mut batch, BATCH_MAX);
        self.sockets.has_unreaped.set(has_more);
        while let Some(event) = self.deferred.pop_front() {
            if !self.is_stopped {
                self.deliver(event, handler);
            }
        }
        for completion in &batch {
            if self.is_stopped {
                discard(*completion);
            } else {
                self.dispatch(*completion, handler);
            }
        }
        self.batch = batch;
        self.run_acceptors(handler);
    }

    #[inline]
    fn dispatch<H: CoreHandler>(&mut self, completion: Completion, handler: &mut H) {
        let name = UserData::unpack(completion.user_data).expect("every submission has a name");
        let conn = name.conn();
        match name.kind {
            Kind::Recv => self.on_recv(conn, completion, handler),
            Kind::Send => self.on_send(conn, completion.result, handler),
            Kind::RecvCancel => self.on_recv_cancel(conn, completion.result, handler),
            Kind::Watch => self.on_watch(conn, completion, handler),
            Kind::WatchCancel => self.on_watch_cancel(conn, completion.result, handler),
            Kind::Close => self.on_close(conn, completion.result, handler),
            Kind::Connect => self.on_connect(conn, completion.result, handler),
            Kind::Accept => self.on_accept(name.slot, completion, handler),
            Kind::AcceptCancel => self.on_accept_cancel(name.slot, completion.result),
            Kind::Wake => self.on_wake(completion, handler),
            Kind::File => self.on_file(name, completion.result, handler),
            Kind::CancelAll | Kind::Nop => {}
        }
    }

    fn on_wake<H: CoreHandler>(&mut self, completion: Completion, handler: &mut H) {
        self.stats.wakes.add(1);
        // A full completion queue ends the poll without an error.
        if !completion.has_more() {
            self.arm_wake();
        }
        self.deliver(Event::Woken, handler);
    }

    /// A lease of the buffer that the kernel filled, if it filled one; error results may carry one
    /// too.
    #[inline]
    pub(super) fn lease(&self, completion: Completion) -> Option<crate::buffer::Lease> {
        let buffer = completion.buffer()?;
        self.stats.leases.add(1);
        let len = usize::try_from(completion.result).unwrap_or(0);
        Some(crate::buffer::Lease::from_ring(self.buffers.lease(buffer, len)))
    }

    /// Puts a receiver on the list of those who wait for a buffer.
    pub(super) fn starve(&mut self, conn: ConnKey) {
        self.stats.no_buffers.add(1);
        self.starved.push_back(conn);
    }

    /// Arms starved receivers again, oldest first: as many as there can be buffers. Each brings
    /// bytes, or stays armed and leaves the buffer to the next; or finds that the kernel filled
    /// the buffers for others, whose completions then are on their way.
    fn feed_starved(&mut self) {
        for _ in 0..self.buffers.at_home().min(self.starved.len()) {
            let Some(conn) = self.starved.pop_front() else { return };
            {
                let mut connections = self.sockets.connections.borrow_mut();
                let Some(connection) = connections.get_mut(slab_key(conn)) else { continue };
                connection.receive.is_starved = false;
            }
            self.rearm(conn);
        }
    }

    /// Cancels everything and waits until nothing is in flight; whether that worked in time.
    fn end_operations(&mut self) -> bool {
        self.ring.push(Operation::cancel_all());
        let deadline = self.sockets.time() + END_MAX;
        while self.ring.in_flight() > 0 {
            let left = deadline.saturating_since(self.sockets.time());
            self.buffers.publish();
            if left.is_zero() || self.ring.enter(Wait::For(Some(left))).is_err() {
                return false;
            }
            let mut batch = std::mem::take(&mut self.batch);
            batch.clear();
            self.ring.reap(&mut batch, BATCH_MAX);
            batch.iter().for_each(|completion| discard(*completion));
            self.batch = batch;
        }
        true
    }
}

impl Backend for NativeBackend {
    fn name(&self) -> &'static str {
        "native"
    }

    fn io(&self) -> Rc<dyn Io> {
        Rc::<Sockets>::clone(&self.sockets)
    }

    fn run<H: CoreHandler>(mut self, handler: &mut H) -> io::Result<()> {
        self.now = self.sockets.time();
        self.arm_wake();
        self.step_acceptors();
        let mut has_work = false;
        while !self.is_stopped {
            self.enter(has_work, handler)?;
            has_work = self.turn(handler);
        }
        Ok(())
    }
}

impl Drop for NativeBackend {
    fn drop(&mut self) {
        if self.end_operations() {
            return;
        }
        tracing::error!(in_flight = self.ring.in_flight(), "operations do not end; memory leaks");
        let mut connections = self.sockets.connections.take();
        for key in connections.keys() {
            // Only memory must stay: without its descriptor the peer would wait for ever.
            drop(connections.get_mut(key).and_then(|connection| connection.fd.take()));
        }
        std::mem::forget(connections);
        std::mem::forget(std::mem::take(&mut self.files));
        std::mem::forget(Rc::clone(&self.buffers));
    }
}

impl fmt::Debug for NativeBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NativeBackend")
            .field("in_flight", &self.ring.in_flight())
            .field("shots", &self.shots)
            .field("acceptors", &self.acceptors)
            .finish_non_exhaustive()
    }
}

/// Lets go of what a completion brought that nobody hears of.
fn discard(completion: Completion) {
    let name = UserData::unpack(completion.user_data).expect("every submission has a name");
    if name.kind == Kind::Accept {
        drop(accept::take_accepted(completion));
    }
}

/// Makes a ring; a smaller one where locked memory is short.
fn open_ring(mut setup: Setup, stats: &Rc<NativeStats>) -> io::Result<Ring> {
    loop {
        match Ring::new(setup, stats) {
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => {
                setup = setup.halved().ok_or(error)?;
            }
            made => return made,
        }
    }
}

/// Completions taken out of the queue a turn.
const BATCH_MAX: usize = 1024;

/// How long the end waits for what is in flight.
const END_MAX: Duration = Duration::from_secs(1);
