//! A server that is not under test: futures of the application ask it. It answers with what it
//! gets, slowly now and then, and some connections end in the middle.

use std::{io::ErrorKind, net::SocketAddr, time::Duration};

use ringcat_engine::sim::{
    network::ClientSocket,
    upstream::Upstream,
    world::{self, chance, draw},
};

use crate::run::run;

/// Where it listens.
pub(crate) fn address() -> SocketAddr {
    SocketAddr::from(([10, 2, 2, 2], 80))
}

/// Longer than a future waits for an answer, whatever time the run takes from its cores.
const PATIENCE: Duration = Duration::from_secs(20);

/// Serves until the cores of the run have ended.
pub(crate) fn spawn() {
    let upstream = Upstream::listen(address());
    world::spawn("upstream", move || {
        while !run().is_over() {
            if let Some(socket) = upstream.accept(Duration::from_millis(200)) {
                world::spawn("upstream connection", move || serve(socket));
            }
        }
    });
}

fn serve(socket: ClientSocket) {
    let mut bytes = Vec::new();
    loop {
        match chance_of_end() {
            End::Reset => return socket.reset(),
            End::Close => return,
            End::None => {}
        }
        match socket.receive(&mut bytes, 4000, PATIENCE) {
            Ok(1..) => {}
            Err(error) if error.kind() == ErrorKind::TimedOut => {
                world::fail("a future is long over and its connection to another server open");
                return;
            }
            Ok(0) | Err(_) => return,
        }
        if chance(16) {
            world::sleep(Duration::from_micros(draw(0, 40_000)));
        }
        if socket.send(&bytes, PATIENCE).is_err() {
            return;
        }
        bytes.clear();
    }
}

enum End {
    None,
    Close,
    Reset,
}

fn chance_of_end() -> End {
    match () {
        () if chance(4) => End::Reset,
        () if chance(4) => End::Close,
        () => End::None,
    }
}
