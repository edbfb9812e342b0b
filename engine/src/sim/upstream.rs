//! Servers outside of the one under test, to which its cores connect. An actor listens on an
//! address and accepts; its end of a connection is that of a client, whose peer is a core.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    net::SocketAddr,
    rc::Rc,
    time::Duration,
};

use super::{
    network::{ClientSocket, Link, Port},
    scheduler::ActorId,
    world,
};

/// Who listens, in one run.
#[derive(Default)]
pub(crate) struct Upstreams(RefCell<Vec<Rc<Listening>>>);

struct Listening {
    address: SocketAddr,
    backlog: RefCell<VecDeque<ClientSocket>>,
    actor: Cell<Option<ActorId>>,
}

/// Listens on an address, for as long as it lives.
pub struct Upstream(Rc<Listening>);

impl Upstream {
    /// Listens; what connected before was refused.
    ///
    /// # Panics
    /// Outside a run, or if somebody listens there already.
    pub fn listen(address: SocketAddr) -> Self {
        let world = world::world();
        let mut upstreams = world.upstreams.0.borrow_mut();
        let is_taken = upstreams.iter().any(|other| other.address == address);
        assert!(!is_taken, "somebody listens on {address} already");
        let listening =
            Rc::new(Listening { address, backlog: RefCell::default(), actor: Cell::new(None) });
        upstreams.push(Rc::clone(&listening));
        Self(listening)
    }

    /// The next connection; `None` if none comes within `timeout`.
    pub fn accept(&self, timeout: Duration) -> Option<ClientSocket> {
        let deadline = world::now().unwrap_or_default() + timeout;
        loop {
            if let Some(socket) = self.0.backlog.borrow_mut().pop_front() {
                return Some(socket);
            }
            if world::now().unwrap_or_default() >= deadline {
                return None;
            }
            self.0.actor.set(world::running());
            world::park(Some(deadline));
            self.0.actor.set(None);
        }
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        let world = world::world();
        world.upstreams.0.borrow_mut().retain(|other| !Rc::ptr_eq(other, &self.0));
    }
}

/// Connects a core to whoever listens on an address; its end of the connection.
pub(crate) fn connect(address: SocketAddr, port: &Rc<Port>) -> Option<Rc<Link>> {
    let world = world::world();
    let upstreams = world.upstreams.0.borrow();
    let listening = upstreams.iter().find(|listening| listening.address == address)?;
    let socket = ClientSocket::of_upstream(Rc::clone(port), address);
    let link = socket.link();
    listening.backlog.borrow_mut().push_back(socket);
    if let Some(actor) = listening.actor.get() {
        world::unpark(actor);
    }
    Some(link)
}
