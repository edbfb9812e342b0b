//! The answer to the container's asks on an HTTP/1.1 connection. One a core: a call takes the
//! connection's out-queue and the exchange's encoder and cell in, and gives them back when it is
//! over. Since `process` never nests, one call at a time is all there is.

use std::{
    cell::{Cell, RefCell},
    net::SocketAddr,
    rc::Rc,
    time::Duration,
};

use ringcat_engine::{
    backend::{Errno, Io},
    current::ExchangeName,
    key::{ConnKey, CoreId},
    out_queue::OutQueue,
    sync::Arc,
    timestamp::{Clock, Timestamp},
};

use crate::{
    action_code::{ActionCode, ActionError, ActionHook},
    async_cell::{AsyncCell, CellLimits, Doorbell, Operation},
    async_state_machine::Flag,
    exchange_key::ExchangeKey,
    http11::{
        date::DateCache, head::Head, response_encoder::ResponseEncoder, response_head::CONTINUE,
    },
    request::Request,
};

/// Answers the asks of a core's calls.
pub(crate) struct Http11Hook<O: Operation> {
    core: CoreId,
    io: Rc<dyn Io>,
    /// std's, since loom's cannot hold a `dyn` value.
    doorbell: std::sync::Arc<dyn Doorbell>,
    cell_limits: CellLimits,
    date: RefCell<DateCache>,
    date_due: Cell<Timestamp>,
    call: RefCell<Option<CallState<O>>>,
    spare_cells: RefCell<Vec<Arc<AsyncCell<O>>>>,
}

/// What a call needs of its connection and exchange.
pub(crate) struct CallState<O: Operation> {
    pub(crate) conn: ConnKey,
    pub(crate) key: ExchangeKey,
    pub(crate) out: OutQueue,
    pub(crate) encoder: ResponseEncoder,
    pub(crate) cell: Option<Arc<AsyncCell<O>>>,
    pub(crate) is_ack_due: bool,
    pub(crate) is_peer_closed: bool,
    pub(crate) errno: Option<Errno>,
    pub(crate) credit_bytes: usize,
    pub(crate) deferred: Vec<O>,
    /// The turn's storage of a head that a future does not need any more.
    pub(crate) head_storage: Option<Box<Head>>,
    pub(crate) is_inbound_ended: bool,
}

impl<O: Operation> CallState<O> {
    /// Sends what the connection takes without waiting.
    fn send_now(&mut self, io: &dyn Io) -> Result<(), ActionError> {
        if let Some(errno) = self.errno {
            return Err(ActionError::Io(errno));
        }
        self.out.send_now(io, self.conn).map_err(|errno| {
            self.errno = Some(errno);
            if let Some(cell) = &self.cell {
                cell.set_flag(Flag::IoError);
            }
            ActionError::Io(errno)
        })
    }
}

/// Cells that are kept for reuse, at most.
const SPARE_CELLS_MAX: usize = 64;

/// The clock's date is formatted again after this time.
const DATE_PERIOD: Duration = Duration::from_millis(500);

impl<O: Operation + 'static> Http11Hook<O> {
    pub(crate) fn new(
        core: CoreId,
        io: Rc<dyn Io>,
        doorbell: std::sync::Arc<dyn Doorbell>,
        cell_limits: CellLimits,
    ) -> Self {
        let date = DateCache::new(io.clock().unix_time().as_secs());
        Self {
            core,
            io,
            doorbell,
            cell_limits,
            date: RefCell::new(date),
            date_due: Cell::new(Timestamp::ZERO),
            call: RefCell::new(None),
            spare_cells: RefCell::default(),
        }
    }

    /// A call begins.
    pub(crate) fn enter(&self, now: Timestamp, call: CallState<O>) {
        if now >= self.date_due.get() {
            self.date_due.set(now + DATE_PERIOD);
            self.date.borrow_mut().update(self.io.clock().unix_time().as_secs());
        }
        let before = self.call.borrow_mut().replace(call);
        assert!(before.is_none(), "calls of one core do not nest");
    }

    /// The call is over.
    pub(crate) fn leave(&self) -> CallState<O> {
        self.call.borrow_mut().take().expect("enter came before leave")
    }

    /// A cell that nobody refers to any more may serve another exchange; one with a handle left
    /// stays closed for ever.
    pub(crate) fn keep_cell(&self, mut cell: Arc<AsyncCell<O>>) {
        let mut spare = self.spare_cells.borrow_mut();
        if spare.len() < SPARE_CELLS_MAX && Arc::get_mut(&mut cell).is_some() {
            spare.push(cell);
        }
    }

    /// A fresh cell for an exchange.
    pub(crate) fn new_cell(&self, key: ExchangeKey) -> Arc<AsyncCell<O>> {
        let name = ExchangeName { core: self.core, key: key.to_u64() };
        if let Some(mut cell) = self.spare_cells.borrow_mut().pop()
            && let Some(spare) = Arc::get_mut(&mut cell)
        {
            spare.reset(name, key);
            return cell;
        }
        Arc::new(AsyncCell::new(name, key, std::sync::Arc::clone(&self.doorbell), self.cell_limits))
    }
}

impl<O: Operation + 'static> ActionHook<O> for Http11Hook<O> {
    fn action(&self, code: ActionCode<'_>) -> Result<(), ActionError> {
        let mut call = self.call.borrow_mut();
        let call = call.as_mut().expect("asks come from inside a call");
        if let Some(errno) = call.errno {
            return match code {
                ActionCode::CloseNow => {
                    call.encoder.give_up();
                    Ok(())
                }
                _ => Err(ActionError::Io(errno)),
            };
        }
        match code {
            ActionCode::Commit { response, is_complete } => {
                // A client that still waits for 100 and gets a final answer keeps its body, so
                // the connection ends, and the client is told.
                call.encoder.keep_alive &= !call.is_ack_due;
                let date = self.date.borrow();
                call.encoder.commit(response, is_complete, date.as_bytes(), &mut call.out);
                if let Some(cell) = &call.cell {
                    cell.set_flag(Flag::Committed);
                }
            }
            ActionCode::Write(bytes) => call.encoder.write(bytes, &mut call.out),
            ActionCode::WriteShared(bytes) => call.encoder.write_shared(bytes, &mut call.out),
            ActionCode::Flush => call.send_now(&*self.io)?,
            ActionCode::Close => call.encoder.finish(&mut call.out),
            ActionCode::CloseNow => call.encoder.give_up(),
            ActionCode::Ack => {
                if std::mem::take(&mut call.is_ack_due) && !call.encoder.is_committed() {
                    call.out.tail().extend_from_slice(CONTINUE);
                }
            }
        }
        let queued_bytes = call.out.len_bytes();
        let limit_bytes = self.cell_limits.backlog_bytes_max as usize;
        if queued_bytes > limit_bytes {
            return Err(ActionError::Backlog { queued_bytes, limit_bytes });
        }
        Ok(())
    }

    fn drain_output(&self) -> Result<bool, ActionError> {
        let mut call = self.call.borrow_mut();
        let call = call.as_mut().expect("asks come from inside a call");
        if !call.out.is_empty() {
            call.send_now(&*self.io)?;
        }
        Ok(call.out.is_empty())
    }

    fn async_cell(&self, request: &mut Request) -> Arc<AsyncCell<O>> {
        let mut call = self.call.borrow_mut();
        let call = call.as_mut().expect("asks come from inside a call");
        if let Some(cell) = &call.cell {
            return Arc::clone(cell);
        }
        let cell = self.new_cell(call.key);
        cell.set_head(|| request.head.share());
        if call.encoder.is_committed() {
            cell.set_flag(Flag::Committed);
        }
        if request.ends_on_peer_close {
            cell.set_flag(Flag::EndsOnPeerClose);
        }
        if call.is_peer_closed {
            cell.set_flag(Flag::PeerClosed);
        }
        call.cell = Some(Arc::clone(&cell));
        cell
    }

    fn detach(&self, request: &mut Request) -> Arc<AsyncCell<O>> {
        let cell = self.async_cell(request);
        let mut call = self.call.borrow_mut();
        let call = call.as_mut().expect("asks come from inside a call");
        let storage = request.head.give_back(true);
        call.head_storage = call.head_storage.take().or(storage);
        request.uses_inbound = true;
        // A reader that is inside right now gets the rest with the next look.
        if cell.push_inbound(request.body.available()).is_some() {
            request.body.clear_available();
            if request.body.is_finished() && !std::mem::replace(&mut call.is_inbound_ended, true) {
                cell.set_trailers(request.trailers().to_vec());
                cell.finish_inbound();
            }
        }
        cell
    }

    fn existing_cell(&self) -> Option<Arc<AsyncCell<O>>> {
        self.call.borrow().as_ref().and_then(|call| call.cell.clone())
    }

    fn clock(&self) -> Clock {
        self.io.clock()
    }

    fn note_applied(&self, credit_bytes: usize) {
        if let Some(call) = self.call.borrow_mut().as_mut() {
            call.credit_bytes += credit_bytes;
        }
    }

    fn defer(&self, operation: O) {
        if let Some(call) = self.call.borrow_mut().as_mut() {
            call.deferred.push(operation);
        }
    }

    fn take_deferred(&self) -> Vec<O> {
        let mut call = self.call.borrow_mut();
        call.as_mut().map(|call| std::mem::take(&mut call.deferred)).unwrap_or_default()
    }

    fn is_output_closed(&self) -> bool {
        self.call.borrow().as_ref().is_some_and(|call| call.encoder.is_finished())
    }

    fn local_address(&self) -> Option<SocketAddr> {
        let conn = self.call.borrow().as_ref().map(|call| call.conn)?;
        self.io.local_address(conn)
    }
}
