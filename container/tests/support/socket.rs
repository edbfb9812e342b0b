//! Clients and servers on sockets of the kernel.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    time::Duration,
};

use ringcat::{Connector, Context, RunningServer, Server, ServerBuilder, ServerReport};

use super::{
    PATIENCE,
    answer::Answer,
    client::{Conversation, Stream},
    wait_until,
};

/// A client on a socket of the kernel.
pub(crate) type Client = Conversation<TcpStream>;

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        Self::over_socket(TcpStream::connect_timeout(&address, PATIENCE).unwrap())
    }

    /// A client with a small receive buffer, so that a server that is not read from notices soon.
    pub(crate) fn connect_narrow(address: SocketAddr) -> Self {
        let socket =
            socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.set_recv_buffer_size(16 * 1024).unwrap();
        socket.connect(&address.into()).unwrap();
        Self::over_socket(socket.into())
    }

    fn over_socket(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self::over(stream)
    }
}

impl Stream for TcpStream {
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)
    }

    fn receive(&mut self, into: &mut Vec<u8>) -> io::Result<usize> {
        let mut piece = [0; 64 * 1024];
        let count = loop {
            match self.read(&mut piece) {
                // A read with a timeout is not restarted by the kernel.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                result => break result?,
            }
        };
        into.extend_from_slice(&piece[..count]);
        Ok(count)
    }

    fn shutdown_write(&self) {
        self.shutdown(Shutdown::Write).unwrap();
    }

    fn reset(self) {
        let socket = socket2::Socket::from(self);
        socket.set_linger(Some(Duration::ZERO)).unwrap();
    }
}

/// A server in this process, drained when it is dropped.
pub(crate) struct TestServer(Option<RunningServer>);

impl TestServer {
    /// One core, one context.
    pub(crate) fn start(context: Context) -> Self {
        Self::of(builder(context))
    }

    pub(crate) fn of(builder: ServerBuilder) -> Self {
        Self(Some(builder.start().unwrap()))
    }

    fn running(&self) -> &RunningServer {
        self.0.as_ref().unwrap()
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.running().local_addr()
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(self.address())
    }

    /// One GET on a connection of its own.
    pub(crate) fn get(&self, target: &str) -> Answer {
        self.client().get(target)
    }

    pub(crate) fn report(&self) -> ServerReport {
        self.running().report()
    }

    /// Waits until requests were parked so many times.
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
        if let Some(server) = self.0.take() {
            server.stop();
        }
    }
}

/// A server of one core that listens on a port of its own; a drain gives up after two seconds.
pub(crate) fn builder(context: Context) -> ServerBuilder {
    builder_at(Connector::http("127.0.0.1:0").allowed_trailer("*"), context)
}

/// As [`builder`], with a connector of the test's own.
pub(crate) fn builder_at(connector: Connector, context: Context) -> ServerBuilder {
    Server::builder()
        .connector(connector)
        .cores(1)
        .drain_timeout(Duration::from_secs(2))
        .context(context)
}
