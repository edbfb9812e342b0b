//! What completions of connections and files mean: state first, then the event, then the next
//! submission. No borrow of the connections is held while the handler runs.

use std::cell::RefMut;

use super::{
    backend::NativeBackend,
    connection::{Arming, Brought, Connection, Step, WriteSide, departure},
    execute,
    ring::Completion,
    send::Progress,
    sockets::slab_key,
    user_data::UserData,
};
use crate::{
    backend::{CoreHandler, Departure, Errno, Event},
    key::ConnKey,
    slab::SlabKey,
};

impl NativeBackend {
    /// A receive brought something.
    pub(super) fn on_recv<H: CoreHandler>(
        &mut self,
        conn: ConnKey,
        completion: Completion,
        handler: &mut H,
    ) {
        // Taken also if nobody hears of the bytes: its drop gives the buffer back.
        let lease = self.lease(completion);
        let has_more = completion.has_more();
        let mut connection = self.connection(conn);
        connection.in_flight -= u32::from(!has_more);
        let brought = connection.receive.on_completion(
            completion.result,
            has_more,
            completion.is_socket_nonempty(),
        );
        connection.watch.is_end_known |= brought == Brought::EndOfStream;
        let (is_closing, is_starved) = (connection.is_closing, connection.receive.is_starved);
        drop(connection);
        if is_closing {
            drop(lease);
            self.settle(conn, handler);
            return;
        }
        match brought {
            Brought::Bytes => {
                let lease = lease.expect("received bytes come in a buffer");
                self.deliver(Event::Received(conn, lease), handler);
            }
            Brought::EndOfStream => self.deliver(Event::Eof(conn), handler),
            Brought::Error(errno) => {
                self.deliver(Event::RecvFailed(conn, Errno(errno)), handler);
            }
            Brought::Nothing if is_starved => self.starve(conn),
            Brought::Nothing => {}
        }
        if !has_more {
            self.rearm(conn);
        }
    }

    /// The cancellation of a receive completed.
    pub(super) fn on_recv_cancel<H: CoreHandler>(
        &mut self,
        conn: ConnKey,
        result: i32,
        handler: &mut H,
    ) {
        let mut connection = self.connection(conn);
        connection.in_flight -= 1;
        connection.receive.arming = connection.receive.arming.after_cancellation(result);
        drop(connection);
        self.step_receive(conn);
        self.settle(conn, handler);
    }

    /// A send ended, or a part of it.
    pub(super) fn on_send<H: CoreHandler>(&mut self, conn: ConnKey, result: i32, handler: &mut H) {
        let mut connection = self.connection(conn);
        connection.in_flight -= 1;
        let is_closing = connection.is_closing;
        let sending = connection.sending.as_mut().expect("a send in flight is in its slot");
        let progress = sending.on_completion(result);
        if progress == Progress::Short && !is_closing {
            drop(connection);
            self.stats.short_sends.add(1);
            self.submit_send(conn);
            return;
        }
        let sending = connection.sending.take();
        if connection.write == WriteSide::Ending && !is_closing {
            execute::end_write_side(&mut connection);
        }
        drop(connection);
        let chunks = sending.map(|sending| sending.into_chunks(&mut self.gathers));
        match (progress, chunks) {
            (Progress::Done, Some(chunks)) if !is_closing => {
                self.deliver(Event::Sent(conn, chunks), handler);
            }
            (Progress::Failed(errno), _) if !is_closing => {
                self.deliver(Event::SendFailed(conn, Errno(errno)), handler);
            }
            (Progress::Done | Progress::Short | Progress::Failed(_), _) => {
                self.settle(conn, handler);
            }
        }
    }

    /// A watch saw something, or ended.
    pub(super) fn on_watch<H: CoreHandler>(
        &mut self,
        conn: ConnKey,
        completion: Completion,
        handler: &mut H,
    ) {
        let mut connection = self.connection(conn);
        if !completion.has_more() {
            connection.in_flight -= 1;
            connection.watch.arming = Arming::Idle;
        }
        if connection.is_closing {
            drop(connection);
            self.settle(conn, handler);
            return;
        }
        let how = departure(completion.result, connection.write);
        let is_news = completion.result >= 0 && connection.watch.is_news(how);
        if is_news {
            connection.watch.is_wanted = false;
            connection.watch.is_end_known |= how == Departure::EndOfStream;
        }
        drop(connection);
        // Cancelled if it goes on without need; armed again if it ended too early.
        self.step_watch(conn);
        if is_news {
            self.deliver(Event::PeerGone(conn, how), handler);
        }
    }

    /// The cancellation of a watch completed.
    pub(super) fn on_watch_cancel<H: CoreHandler>(
        &mut self,
        conn: ConnKey,
        result: i32,
        handler: &mut H,
    ) {
        let mut connection = self.connection(conn);
        connection.in_flight -= 1;
        connection.watch.arming = connection.watch.arming.after_cancellation(result);
        drop(connection);
        self.step_watch(conn);
        self.settle(conn, handler);
    }

    /// The descriptor is closed; whatever the kernel says of it, it is gone.
    pub(super) fn on_close<H: CoreHandler>(&mut self, conn: ConnKey, result: i32, handler: &mut H) {
        debug_assert_ne!(result, -libc::EBADF, "{conn:?} was closed by somebody else");
        self.connection(conn).in_flight -= 1;
        self.settle(conn, handler);
    }

    /// A connect ended.
    pub(super) fn on_connect<H: CoreHandler>(
        &mut self,
        conn: ConnKey,
        result: i32,
        handler: &mut H,
    ) {
        let mut connection = self.connection(conn);
        connection.in_flight -= 1;
        let connecting = connection.connecting.take().expect("a connect in flight is in its slot");
        drop(connection);
        let token = connecting.token;
        self.connecting.remove(&token);
        if result < 0 || connecting.is_cancelled {
            let failed = self.sockets.remove(conn);
            // The handler never heard of the connection: its slot and descriptor go at once.
            drop(failed);
            self.acceptors.on_closed();
            if !connecting.is_cancelled {
                let errno = Errno(-result);
                self.deliver(Event::ConnectFailed { token, errno }, handler);
            }
        } else {
            self.deliver(Event::Connected { conn, token }, handler);
        }
    }

    /// A file operation ended.
    pub(super) fn on_file<H: CoreHandler>(&mut self, name: UserData, result: i32, handler: &mut H) {
        let key = SlabKey { slot: name.slot, stamp: name.stamp };
        let file = self.files.remove(key).expect("an operation in flight is in its slot");
        self.deliver(file.into_event(result), handler);
    }

    /// The connection of an operation in flight.
    #[inline]
    fn connection(&self, conn: ConnKey) -> RefMut<'_, Connection> {
        RefMut::map(self.sockets.connections.borrow_mut(), |connections| {
            connections.get_mut(slab_key(conn)).expect("a slot outlives its operations")
        })
    }

    /// Arms a receive that ended by itself again, if bytes are still wanted.
    pub(super) fn rearm(&mut self, conn: ConnKey) {
        if self.step_receive(conn) == Step::Arm {
            self.stats.rearms.add(1);
        }
    }

    /// Frees the slot if that was the last operation of a connection that closes.
    fn settle<H: CoreHandler>(&mut self, conn: ConnKey, handler: &mut H) {
        let connections = self.sockets.connections.borrow();
        if !connections.get(slab_key(conn)).is_some_and(Connection::is_done) {
            return;
        }
        drop(connections);
        drop(self.sockets.remove(conn));
        self.acceptors.on_closed();
        self.deliver(Event::Closed(conn), handler);
    }
}
