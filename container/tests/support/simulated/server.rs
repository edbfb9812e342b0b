//! Clients and servers on connections of the simulator.

use std::{cell::Cell, io, rc::Rc, sync::Arc, time::Duration};

use ringcat::{
    Connector, Context, Host, Server, ServerBuilder, ServerReport, Valve,
    request_note::RequestNote, service::Service,
};
use ringcat_engine::{
    core_context::CoreTimeouts,
    sim::{
        engine::{CoreEnd, SimEngine, SimEngineOptions},
        network::ClientSocket,
        pool::SimPool,
    },
};
use ringcat_protocol::message::Message;

use super::actors::strangers;
use crate::support::{Answer, Conversation, PATIENCE, Stream, wait_until};

/// Bytes that a client takes at once, at most.
const PIECE_BYTES: usize = 64 * 1024;

/// A client on a connection of the simulator, whose window is smaller than a kernel's.
pub(crate) type Client = Conversation<Connection>;

/// A client's end of a simulated connection.
pub(crate) struct Connection {
    socket: ClientSocket,
    /// What had to be taken before the server went on reading. A kernel has room for that much.
    arrived: Vec<u8>,
}

impl Stream for Connection {
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let count = self.socket.try_send(rest)?;
            rest = &rest[count..];
            let is_stuck = count == 0
                && !matches!(
                    self.socket.try_receive(&mut self.arrived, PIECE_BYTES),
                    Some(Ok(1..))
                );
            if is_stuck {
                self.socket.wait(PATIENCE)?;
            }
        }
        Ok(())
    }

    fn receive(&mut self, into: &mut Vec<u8>) -> io::Result<usize> {
        if self.arrived.is_empty() {
            return self.socket.receive(into, PIECE_BYTES, PATIENCE);
        }
        let count = self.arrived.len();
        into.append(&mut self.arrived);
        Ok(count)
    }

    fn shutdown_write(&self) {
        self.socket.shut_down_write();
    }

    fn reset(self) {
        self.socket.reset();
    }
}

impl Client {
    /// Connects to any core of the server that listens.
    pub(crate) fn connect() -> Self {
        let socket = ClientSocket::connect().unwrap();
        Self::over(Connection { socket, arrived: Vec::new() })
    }
}

/// Whether no core listens.
pub(crate) fn is_refused() -> bool {
    ClientSocket::connect().is_err()
}

/// Waits until no core listens any more.
pub(crate) fn await_refusal() {
    wait_until("connections are refused", is_refused);
}

/// A server under construction: the product's builder, and what it would say to the engine.
pub(crate) struct Builder {
    server: ServerBuilder,
    engine: SimEngineOptions,
    drain_timeout: Duration,
}

/// A server of one core; a drain gives up after two seconds.
pub(crate) fn builder(context: Context) -> Builder {
    builder_at(Connector::http("127.0.0.1:80").allowed_trailer("*"), context)
}

/// As [`builder`], with a connector of the test's own. Its address is nowhere listened at.
pub(crate) fn builder_at(connector: Connector, context: Context) -> Builder {
    let timeouts = CoreTimeouts::default();
    Builder {
        server: Server::builder().connector(connector).context(context),
        engine: SimEngineOptions { core_count: 1, timeouts, connections_max: 65_536 },
        drain_timeout: Duration::from_secs(2),
    }
}

/// Settings that are the product's affair alone.
macro_rules! passed_on {
    ($($name:ident: $type:ty,)*) => {
        $(pub(crate) fn $name(mut self, value: $type) -> Self {
            self.server = self.server.$name(value);
            self
        })*
    };
}

/// Timeouts of connections.
macro_rules! timeouts {
    ($($name:ident: $field:ident,)*) => {
        $(pub(crate) fn $name(mut self, timeout: Duration) -> Self {
            self.engine.timeouts.$field = timeout;
            self.server = self.server.$name(timeout);
            self
        })*
    };
}

impl Builder {
    passed_on! {
        context: Context,
        host: Host,
        valve: impl Valve,
        body_bytes_max: u64,
        head_bytes_max: usize,
        header_fields_max: usize,
        target_bytes_max: usize,
        swallow_bytes_max: u64,
        keep_alive_requests_max: u32,
        requests_max: usize,
    }

    timeouts! {
        connection_timeout: connection,
        keep_alive_timeout: keep_alive,
        head_timeout: head,
        body_timeout: body,
        write_timeout: write,
    }

    pub(crate) fn cores(mut self, count: u16) -> Self {
        self.engine.core_count = count;
        self
    }

    pub(crate) fn connections_max(mut self, count: usize) -> Self {
        self.engine.connections_max = count;
        self
    }

    pub(crate) fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.drain_timeout = timeout;
        self
    }
}

/// A server of this simulation, drained when it is dropped. There is one at a time, since all
/// listen at the same place.
pub(crate) struct TestServer(Option<Running>);

struct Running {
    engine: SimEngine<Message<RequestNote>>,
    service: Rc<Service>,
    drain_timeout: Duration,
    /// Exchanges that cores knew when they ended.
    exchanges_left: Rc<Cell<usize>>,
}

impl TestServer {
    /// One core, one context.
    pub(crate) fn start(context: Context) -> Self {
        Self::of(builder(context))
    }

    pub(crate) fn of(builder: Builder) -> Self {
        assert!(is_refused(), "another server is running");
        let service = Rc::new(builder.server.assemble(Arc::new(SimPool)).unwrap());
        let exchanges_left = Rc::new(Cell::new(0));
        let (core_service, left) = (Rc::clone(&service), Rc::clone(&exchanges_left));
        let engine = SimEngine::start(
            builder.engine,
            move |seat, io| core_service.core_handler(seat, io),
            move |_, handler| left.set(left.get() + handler.exchange_count()),
        );
        let drain_timeout = builder.drain_timeout;
        Self(Some(Running { engine, service, drain_timeout, exchanges_left }))
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect()
    }

    /// One GET on a connection of its own.
    pub(crate) fn get(&self, target: &str) -> Answer {
        self.client().get(target)
    }

    pub(crate) fn report(&self) -> ServerReport {
        self.0.as_ref().unwrap().report()
    }

    /// Waits until requests were parked so many times.
    #[track_caller]
    pub(crate) fn await_parked(&self, times: u64) {
        wait_until("the request is parked", || self.report().parked >= times);
    }

    /// Drains the server; what tests observe afterwards has ended.
    pub(crate) fn stop(mut self) -> ServerReport {
        self.0.take().unwrap().stop()
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        match self.0.take() {
            // A drain waits, and an actor that unwinds must not: the run has failed anyway.
            Some(running) if std::thread::panicking() => std::mem::forget(running),
            Some(running) => drop(running.stop()),
            None => {}
        }
    }
}

impl Running {
    fn report(&self) -> ServerReport {
        self.service.report(self.engine.seats())
    }

    fn stop(self) -> ServerReport {
        self.engine.drain();
        let cores = self.engine.wait(self.drain_timeout);
        let is_in_time = cores.is_some();
        let cores = cores.or_else(|| {
            self.engine.end_drain();
            self.engine.wait(PATIENCE)
        });
        let cores = cores.expect("the cores end");
        wait_until("the workers end", || strangers() == 0);
        let report = self.report();
        assert_eq!(self.exchanges_left.get(), 0, "exchanges are left");
        let gone = report.connections_closed + report.connections_cut;
        assert_eq!(report.connections_accepted, gone, "connections are left: {report:?}");
        // Past the limit the timer of the cut is left, and what it cut.
        let is_empty = |core: &CoreEnd| {
            (report.connections_cut > 0 || core.sockets == 0)
                && (!is_in_time || core.timers == 0)
                && core.held == 0
        };
        assert!(cores.iter().all(is_empty), "something is left: {cores:?}");
        self.service.destroy();
        report
    }
}
