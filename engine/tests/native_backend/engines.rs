//! Whole engines whose handler sends back what it receives.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
};

use ringcat_engine::{
    connection_handler::{ConnectionHandler, SocketEvent, SocketState},
    core_context::CoreContext,
    engine::{Engine, EngineOptions, StartError},
    key::ConnKey,
};

use crate::harness::PATIENCE;

/// Echoes; every batch of bytes is an exchange of its own.
pub(crate) struct Echoes;

impl ConnectionHandler for Echoes {
    type Message = ();

    fn process(
        &mut self,
        cx: &mut CoreContext<()>,
        conn: ConnKey,
        event: SocketEvent,
    ) -> SocketState {
        let Some(socket) = cx.socket_mut(conn) else { return SocketState::Closed };
        let bytes = socket.input.bytes().to_vec();
        socket.input.consume(bytes.len());
        socket.out.tail().extend_from_slice(&bytes);
        if event == SocketEvent::Error || socket.is_eof() {
            SocketState::Closed
        } else {
            SocketState::Open
        }
    }

    fn on_message(&mut self, _: &mut CoreContext<()>, (): ()) {}
    fn on_exchange_deadline(&mut self, _: &mut CoreContext<()>, _: u64) {}
    fn on_sent(&mut self, _: &mut CoreContext<()>, _: ConnKey) {}
    fn on_peer_closed(&mut self, _: &mut CoreContext<()>, _: ConnKey) {}
    fn on_closed(&mut self, _: &mut CoreContext<()>, _: u64) {}
    fn on_drain_limit(&mut self, _: &mut CoreContext<()>) {}
}

/// Starts an engine on a port of its own.
pub(crate) fn start_engine(core_count: usize) -> Result<Engine<()>, StartError> {
    let options = EngineOptions {
        addresses: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
        core_count: Some(core_count),
        ..EngineOptions::default()
    };
    Engine::start(&options, |_, _| Echoes)
}

/// Drains an engine and joins its cores.
pub(crate) fn end_engine(engine: Engine<()>) {
    engine.drain();
    assert!(engine.wait(Some(PATIENCE)), "the drain does not end");
    engine.join();
}

/// A client of the engine.
pub(crate) fn client_of(engine: &Engine<()>) -> TcpStream {
    let stream = TcpStream::connect(engine.addresses()[0]).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Sends bytes and awaits them.
pub(crate) fn round_trip(mut stream: &TcpStream, bytes: &[u8]) {
    stream.write_all(bytes).unwrap();
    let mut back = vec![0; bytes.len()];
    stream.read_exact(&mut back).unwrap();
    assert_eq!(back, bytes);
}
