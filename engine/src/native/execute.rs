//! What the handler's commands do. Nothing here calls the handler: an event that a command causes
//! at once waits for the next turn, which then does not wait.

use std::{
    net::Shutdown,
    os::fd::{AsFd, AsRawFd, IntoRawFd, RawFd},
};

use super::{
    backend::NativeBackend,
    connection::{Connecting, Connection, Shots, Step, WriteSide},
    file::FileOperation,
    operation::{First, Operation},
    send::Sending,
    socket_calls,
    sockets::slab_key,
    user_data::{Kind, UserData},
};
use crate::{
    backend::{Command, ConnectRequest, Errno, Event, FileRequest, Stream},
    buffer::Chunks,
    key::ConnKey,
};

impl NativeBackend {
    /// Executes what the handler queued, in order. Commands for a connection that is closing or
    /// gone reach nobody.
    #[inline]
    pub(super) fn execute_commands(&mut self) {
        if self.commands.is_empty() {
            return;
        }
        let mut commands = std::mem::take(&mut self.commands);
        for command in commands.drain() {
            self.execute(command);
        }
        // Nothing queued meanwhile, since the handler did not run; the memory goes back.
        self.commands = commands;
    }

    fn execute(&mut self, command: Command) {
        match command {
            Command::Demand(conn, is_demanded) => self.demand(conn, is_demanded),
            Command::Watch(conn) => self.watch(conn),
            Command::Send(conn, chunks) => self.send(conn, chunks),
            Command::ShutdownWrite(conn) => self.shut_down_write(conn),
            Command::Close(conn) => self.close(conn),
            Command::Connect(request) => self.connect(request),
            Command::CancelConnect { token } => self.cancel_connect(token),
            Command::File(request) => self.start_file(request),
            Command::PauseAccept => self.acceptors.is_paused = true,
            Command::ResumeAccept => self.acceptors.is_paused = false,
            Command::StopAccept => self.acceptors.is_stopping = true,
            Command::Handoff(conn) => self.hand_off(conn),
            Command::Adopt(stream) => self.adopt(stream),
            Command::Stop => self.is_stopped = true,
        }
    }

    /// Runs `f` on a connection unless it is closing or gone.
    fn with_open<R>(&self, conn: ConnKey, f: impl FnOnce(&mut Connection) -> R) -> Option<R> {
        let mut connections = self.sockets.connections.borrow_mut();
        let connection = connections.get_mut(slab_key(conn))?;
        (!connection.is_closing).then(|| f(connection))
    }

    fn demand(&mut self, conn: ConnKey, is_demanded: bool) {
        self.with_open(conn, |connection| {
            connection.receive.is_demanded = is_demanded;
            connection.watch.is_wanted &= !is_demanded;
        });
        self.step_receive(conn);
        if is_demanded {
            self.step_watch(conn);
        }
    }

    fn watch(&mut self, conn: ConnKey) {
        self.with_open(conn, |connection| connection.watch.is_wanted = true);
        self.step_watch(conn);
    }

    /// Submits what the connection's receiving side needs now, and says what.
    pub(super) fn step_receive(&mut self, conn: ConnKey) -> Step {
        let mut connections = self.sockets.connections.borrow_mut();
        let Some(connection) = connections.get_mut(slab_key(conn)) else { return Step::Stay };
        let step = connection.receive.step(self.shots, connection.is_closing);
        connection.receive.arming = connection.receive.arming.after(step);
        let name = UserData::of(Kind::Recv, conn);
        let operation = match step {
            Step::Stay => return step,
            Step::Arm => {
                let first =
                    if connection.receive.is_drained { First::Poll } else { First::Receive };
                receive_operation(self.shots, connection.raw_fd(), name, first)
            }
            Step::Cancel => {
                self.stats.cancels.add(1);
                Operation::cancel(name, UserData::of(Kind::RecvCancel, conn))
            }
        };
        connection.in_flight += 1;
        self.ring.push(operation);
        step
    }

    /// Submits what the connection's watch needs now.
    pub(super) fn step_watch(&mut self, conn: ConnKey) {
        let mut connections = self.sockets.connections.borrow_mut();
        let Some(connection) = connections.get_mut(slab_key(conn)) else { return };
        let step = connection.watch.step(connection.is_closing);
        connection.watch.arming = connection.watch.arming.after(step);
        let name = UserData::of(Kind::Watch, conn);
        let operation = match step {
            Step::Stay => return,
            // The kernel adds the end of stream to the events of every poll. Once that is known,
            // a single poll would complete with it again at once, for ever; a multishot one
            // does so once and then waits for what changes.
            Step::Arm if connection.watch.is_end_known => {
                Operation::poll_multi(connection.raw_fd(), DEPARTURES, name)
            }
            Step::Arm => Operation::poll_once(connection.raw_fd(), DEPARTURES, name),
            Step::Cancel => {
                self.stats.cancels.add(1);
                Operation::cancel(name, UserData::of(Kind::WatchCancel, conn))
            }
        };
        connection.in_flight += 1;
        self.ring.push(operation);
    }

    fn send(&mut self, conn: ConnKey, chunks: Chunks) {
        let mut connections = self.sockets.connections.borrow_mut();
        let Some(connection) = connections.get_mut(slab_key(conn)) else { return };
        if connection.is_closing {
            return;
        }
        assert!(connection.sending.is_none(), "{conn:?} has a send under way");
        connection.sending = Some(Sending::new(chunks));
        drop(connections);
        self.submit_send(conn);
    }

    /// Submits the rest of the connection's send.
    pub(super) fn submit_send(&mut self, conn: ConnKey) {
        let mut connections = self.sockets.connections.borrow_mut();
        let Some(connection) = connections.get_mut(slab_key(conn)) else { return };
        let fd = connection.raw_fd();
        let Some(sending) = &mut connection.sending else { return };
        let name = UserData::of(Kind::Send, conn);
        // SAFETY: the slot keeps `sending` until the send's completion (`on_send`): a slot with an
        // operation in flight is not freed, and a backend that cannot await its operations leaks
        // its slots.
        let operation = unsafe { sending.operation(fd, name, &mut self.gathers) };
        connection.in_flight += 1;
        self.ring.push(operation);
    }

    fn shut_down_write(&mut self, conn: ConnKey) {
        self.with_open(conn, |connection| {
            if connection.sending.is_some() {
                connection.write = WriteSide::Ending;
            } else if connection.write == WriteSide::Open {
                end_write_side(connection);
            }
        });
    }

    /// Ends the connection. A close alone would leave operations in flight for ever and the peer
    /// without a FIN, so what is in flight is ended first, by ending both directions.
    fn close(&mut self, conn: ConnKey) {
        let fd = self.with_open(conn, |connection| {
            connection.is_closing = true;
            let fd = connection.fd.take().expect("given away only when closing");
            if connection.in_flight > 0 {
                socket_calls::shut_down(fd.as_fd(), Shutdown::Both);
            }
            connection.in_flight += 1;
            fd
        });
        if let Some(fd) = fd {
            let name = UserData::of(Kind::Close, conn);
            self.ring.push(Operation::close(fd.into_raw_fd(), name));
            self.step_watch(conn);
        }
    }

    fn connect(&mut self, request: ConnectRequest) {
        let ConnectRequest { token, address } = request;
        let fd = match socket_calls::stream_socket(address) {
            Ok(fd) => fd,
            Err(error) => {
                let errno = Errno(error.raw_os_error().unwrap_or(libc::EINVAL));
                self.deferred.push_back(Event::ConnectFailed { token, errno });
                return;
            }
        };
        let raw_fd = fd.as_raw_fd();
        let connecting =
            Box::new(Connecting { token, address: address.into(), is_cancelled: false });
        let (pointer, len) = (connecting.address.as_ptr(), connecting.address.len());
        let mut connection = Connection::new(fd, None);
        connection.connecting = Some(connecting);
        connection.in_flight = 1;
        let conn = self.insert(connection);
        self.sockets.outgoing.set(self.sockets.outgoing.get() + 1);
        let name = UserData::of(Kind::Connect, conn);
        // SAFETY: the address is in a box that the slot owns until the connect's completion
        // (`on_connect`).
        let operation = unsafe { Operation::connect(raw_fd, pointer.cast(), len, name) };
        self.ring.push(operation);
        self.connecting.insert(token, conn);
    }

    /// Gives up a connect. Its slot and descriptor go with its completion, whichever that is.
    fn cancel_connect(&mut self, token: u64) {
        let Some(conn) = self.connecting.get(&token).copied() else { return };
        self.with_open(conn, |connection| {
            if let Some(connecting) = &mut connection.connecting {
                connecting.is_cancelled = true;
            }
        });
        // Who hears of the cancellation itself has nothing to do.
        let name = UserData::of_index(Kind::Nop, 0);
        self.ring.push(Operation::cancel(UserData::of(Kind::Connect, conn), name));
    }

    fn start_file(&mut self, request: FileRequest) {
        let key = self.files.insert(FileOperation::new(request));
        let file = self.files.get_mut(key).expect("just inserted");
        // SAFETY: the slab keeps the operation until its completion (`on_file`), or leaks it.
        let operation = unsafe { file.operation(key) };
        self.ring.push(operation);
    }

    fn hand_off(&mut self, conn: ConnKey) {
        let idle = self.with_open(conn, |connection| connection.in_flight == 0);
        match idle {
            None => return,
            Some(is_idle) => assert!(is_idle, "{conn:?} has operations here and cannot move"),
        }
        let removed = self.sockets.remove(conn);
        let connection = removed.expect("found above");
        let fd = connection.fd.expect("not closing");
        let event = match (connection.listener, socket_calls::peer_address(&fd)) {
            (Some(listener), Some(peer)) => Event::Detached(conn, Stream { fd, listener, peer }),
            // Reset meanwhile: there is nothing to give away.
            (Some(_), None) => Event::Closed(conn),
            (None, _) => panic!("{conn:?} was not accepted"),
        };
        self.acceptors.on_closed();
        self.deferred.push_back(event);
    }

    fn adopt(&mut self, stream: Stream) {
        let Stream { fd, listener, peer } = stream;
        let conn = self.insert(Connection::new(fd, Some(listener)));
        self.deferred.push_back(Event::Accepted { conn, listener, peer });
    }
}

/// Sends the FIN.
pub(super) fn end_write_side(connection: &mut Connection) {
    connection.write = WriteSide::Ended;
    if let Some(fd) = &connection.fd {
        socket_calls::shut_down(fd.as_fd(), Shutdown::Write);
    }
}

#[inline]
fn receive_operation(shots: Shots, fd: RawFd, name: UserData, first: First) -> Operation {
    match shots {
        Shots::Multi => Operation::recv_multi(fd, name),
        Shots::Single => Operation::recv_once(fd, name, first),
    }
}

/// What a watch polls for.
const DEPARTURES: i32 = (libc::POLLRDHUP | libc::POLLERR | libc::POLLHUP) as i32;
