//! Connections in memory. The server's end is moved by a core's backend, the client's by an actor;
//! between them lie two queues of bytes, of limited length. Doing something at one end wakes
//! whoever waits at the other.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    io,
    net::{Ipv4Addr, SocketAddr},
    rc::Rc,
    time::Duration,
};

use super::{
    fault::Fault,
    scheduler::ActorId,
    world::{self, hits},
};
use crate::key::{ConnKey, CoreId};

/// Bytes that a direction holds unless its window is narrow.
const WINDOW_BYTES: usize = 256 * 1024;

/// All connections of a run, by the core that they arrive at.
#[derive(Default)]
pub(crate) struct Network {
    ports: RefCell<Vec<Rc<Port>>>,
    connects: Cell<u64>,
}

/// Where connections of one core arrive, and what its backend has to look at.
pub(crate) struct Port {
    pub(crate) core: CoreId,
    /// The actor that runs the core.
    pub(crate) actor: Cell<Option<ActorId>>,
    pub(crate) backlog: RefCell<VecDeque<Rc<Link>>>,
    /// Connections at which something happened.
    pub(crate) dirty: RefCell<VecDeque<ConnKey>>,
    pub(crate) is_woken: Cell<bool>,
    pub(crate) is_listening: Cell<bool>,
}

impl Port {
    /// Has the core look.
    pub(crate) fn ring(&self) {
        if let Some(actor) = self.actor.get() {
            world::unpark(actor);
        }
    }
}

impl Network {
    /// The port of a core, made at its first use.
    pub(crate) fn port(&self, core: CoreId) -> Rc<Port> {
        let mut ports = self.ports.borrow_mut();
        while ports.len() <= usize::from(core.0) {
            let number = u16::try_from(ports.len()).expect("few cores");
            ports.push(Rc::new(Port {
                core: CoreId(number),
                actor: Cell::new(None),
                backlog: RefCell::default(),
                dirty: RefCell::default(),
                is_woken: Cell::new(false),
                is_listening: Cell::new(false),
            }));
        }
        Rc::clone(&ports[usize::from(core.0)])
    }

    fn choose(&self) -> Option<Rc<Port>> {
        let ports = self.ports.borrow();
        let open: Vec<_> = ports.iter().filter(|port| port.is_listening.get()).collect();
        if open.is_empty() {
            return None;
        }
        Some(Rc::clone(open[world::draw_len(0, open.len() - 1)]))
    }
}

/// Clients that connected so far.
pub fn connects() -> u64 {
    world::world().network.connects.get()
}

/// One direction of a connection.
#[derive(Default)]
pub(crate) struct Pipe {
    pub(crate) bytes: VecDeque<u8>,
    pub(crate) window_bytes: usize,
    /// The sender ended it.
    pub(crate) is_ended: bool,
    /// Bytes that the reader took.
    pub(crate) taken_bytes: u64,
}

impl Pipe {
    /// Takes the first `count` bytes out.
    pub(crate) fn take(&mut self, count: usize, into: &mut Vec<u8>) {
        let (front, back) = self.bytes.as_slices();
        let from_front = front.len().min(count);
        into.extend_from_slice(&front[..from_front]);
        into.extend_from_slice(&back[..count - from_front]);
        self.bytes.drain(..count);
        self.taken_bytes += count as u64;
    }

    pub(crate) fn room(&self) -> usize {
        self.window_bytes.saturating_sub(self.bytes.len())
    }
}

/// A connection.
pub(crate) struct Link {
    pub(crate) port: Rc<Port>,
    pub(crate) peer: SocketAddr,
    /// Whether the core made it, to somebody else.
    pub(crate) is_outgoing: bool,
    /// The server's name for it, from accept to close.
    pub(crate) conn: Cell<Option<ConnKey>>,
    /// From client to server.
    pub(crate) up: RefCell<Pipe>,
    /// From server to client.
    pub(crate) down: RefCell<Pipe>,
    pub(crate) is_reset_by_client: Cell<bool>,
    pub(crate) is_reset_by_server: Cell<bool>,
    /// The server closed its end: what the client sends finds nobody.
    pub(crate) is_server_gone: Cell<bool>,
    pub(crate) is_client_gone: Cell<bool>,
    /// Whether the port has it among its dirty ones.
    pub(crate) is_queued: Cell<bool>,
    client: Cell<Option<ActorId>>,
}

impl Link {
    /// A connection of which neither end knows yet.
    fn new(port: Rc<Port>, peer: SocketAddr, is_outgoing: bool) -> Rc<Self> {
        let window = || {
            let is_narrow = hits(Fault::NarrowWindow);
            if is_narrow { world::draw_len(64, 4096) } else { WINDOW_BYTES }
        };
        let pipe = || RefCell::new(Pipe { window_bytes: window(), ..Pipe::default() });
        Rc::new(Self {
            port,
            peer,
            is_outgoing,
            conn: Cell::new(None),
            up: pipe(),
            down: pipe(),
            is_reset_by_client: Cell::new(false),
            is_reset_by_server: Cell::new(false),
            is_server_gone: Cell::new(false),
            is_client_gone: Cell::new(false),
            is_queued: Cell::new(false),
            client: Cell::new(None),
        })
    }

    /// Something happened at the client's end.
    fn touch_server(&self) {
        self.queue();
        self.port.ring();
    }

    /// Has the backend look at the connection in its next turn.
    pub(crate) fn queue(&self) {
        if let Some(conn) = self.conn.get()
            && !self.is_queued.replace(true)
        {
            self.port.dirty.borrow_mut().push_back(conn);
        }
    }

    /// Something happened at the server's end.
    pub(crate) fn touch_client(&self) {
        if let Some(client) = self.client.get() {
            world::unpark(client);
        }
    }

    /// Whether nothing can be sent to the client any more.
    pub(crate) fn is_broken(&self) -> bool {
        self.is_reset_by_client.get() || self.is_client_gone.get()
    }
}

/// The client's end of a connection. Dropping it closes it.
pub struct ClientSocket {
    link: Rc<Link>,
}

/// What a client sees of a connection that the server reset.
fn reset() -> io::Error {
    io::ErrorKind::ConnectionReset.into()
}

impl ClientSocket {
    /// Connects to a core that listens, whichever is drawn.
    ///
    /// # Errors
    /// `ConnectionRefused` if none listens.
    pub fn connect() -> io::Result<Self> {
        let world = world::world();
        let port = world.network.choose().ok_or(io::ErrorKind::ConnectionRefused)?;
        Ok(Self::connect_to_port(port))
    }

    /// Connects to one core.
    ///
    /// # Errors
    /// `ConnectionRefused` if it does not listen.
    pub fn connect_to(core: CoreId) -> io::Result<Self> {
        let port = world::world().network.port(core);
        if !port.is_listening.get() {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        Ok(Self::connect_to_port(port))
    }

    fn connect_to_port(port: Rc<Port>) -> Self {
        let world = world::world();
        let number = world.network.connects.get();
        world.network.connects.set(number + 1);
        let host = Ipv4Addr::from_bits(0x0a00_0000 | u32::try_from(number >> 16).unwrap_or(0));
        let peer = SocketAddr::from((host, (number & 0xffff) as u16));
        let link = Link::new(port, peer, false);
        link.port.backlog.borrow_mut().push_back(Rc::clone(&link));
        link.port.ring();
        world::record("connects", number, u64::from(link.port.core.0));
        Self { link }
    }

    /// The far end of a connection that a core makes to `address`.
    pub(crate) fn of_upstream(port: Rc<Port>, address: SocketAddr) -> Self {
        Self { link: Link::new(port, address, true) }
    }

    pub(crate) fn link(&self) -> Rc<Link> {
        Rc::clone(&self.link)
    }

    /// The client's address.
    pub fn local_addr(&self) -> SocketAddr {
        self.link.peer
    }

    /// Puts what fits on its way, without waiting; 0 if nothing does.
    ///
    /// # Errors
    /// `ConnectionReset` if the server closed or reset the connection.
    pub fn try_send(&self, bytes: &[u8]) -> io::Result<usize> {
        let link = &self.link;
        if link.is_reset_by_server.get() {
            return Err(reset());
        }
        if link.is_server_gone.get() {
            // The answer to bytes that nobody waits for is a reset, which destroys what is unread.
            link.is_reset_by_server.set(true);
            if hits(Fault::CloseResets) {
                link.down.borrow_mut().bytes.clear();
            }
            return Err(reset());
        }
        let mut up = link.up.borrow_mut();
        let count = bytes.len().min(up.room());
        up.bytes.extend(&bytes[..count]);
        drop(up);
        if count > 0 {
            world::record("client sends", count as u64, u64::from(link.peer.port()));
            link.touch_server();
        }
        Ok(count)
    }

    /// Takes what has arrived, up to `limit` bytes. `None` if nothing has yet; 0 is the end.
    ///
    /// # Errors
    /// `ConnectionReset` if the server reset the connection and all before that was taken.
    pub fn try_receive(&self, into: &mut Vec<u8>, limit: usize) -> Option<io::Result<usize>> {
        let link = &self.link;
        let mut down = link.down.borrow_mut();
        let count = down.bytes.len().min(limit);
        if count > 0 {
            down.take(count, into);
            drop(down);
            world::record("client receives", count as u64, u64::from(link.peer.port()));
            link.touch_server();
            return Some(Ok(count));
        }
        if link.is_reset_by_server.get() {
            return Some(Err(reset()));
        }
        down.is_ended.then_some(Ok(0))
    }

    /// Sends all, and waits where the server does not read.
    ///
    /// # Errors
    /// As [`Self::try_send`]; `TimedOut` after `timeout` without progress.
    pub fn send(&self, mut bytes: &[u8], timeout: Duration) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.try_send(bytes)? {
                0 => self.wait(timeout)?,
                count => bytes = &bytes[count..],
            }
        }
        Ok(())
    }

    /// Waits for bytes and takes up to `limit` of them; 0 is the end.
    ///
    /// # Errors
    /// As [`Self::try_receive`]; `TimedOut` after `timeout` without any.
    pub fn receive(
        &self,
        into: &mut Vec<u8>,
        limit: usize,
        timeout: Duration,
    ) -> io::Result<usize> {
        loop {
            if let Some(result) = self.try_receive(into, limit) {
                return result;
            }
            self.wait(timeout)?;
        }
    }

    /// Waits until something happened at the server's end, or for `timeout`.
    ///
    /// # Errors
    /// `TimedOut`.
    pub fn wait(&self, timeout: Duration) -> io::Result<()> {
        let deadline = world::now().unwrap_or_default() + timeout;
        self.link.client.set(world::running());
        world::record("client waits", u64::from(self.link.peer.port()), 0);
        world::park(Some(deadline));
        self.link.client.set(None);
        if world::now().unwrap_or_default() >= deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(())
    }

    /// Ends the sending side.
    pub fn shut_down_write(&self) {
        self.link.up.borrow_mut().is_ended = true;
        self.link.touch_server();
    }

    /// Closes with a reset: what the server has not received is lost.
    pub fn reset(self) {
        self.link.is_reset_by_client.set(true);
        self.link.up.borrow_mut().bytes.clear();
        self.link.down.borrow_mut().bytes.clear();
        world::record("client resets", u64::from(self.link.peer.port()), 0);
    }

    /// Bytes that the client took so far and those that it can take now.
    pub fn arrived_bytes(&self) -> u64 {
        let down = self.link.down.borrow();
        down.taken_bytes + down.bytes.len() as u64
    }

    /// Whether the server ended its sending side, or reset the connection.
    pub fn is_ended(&self) -> bool {
        self.link.down.borrow().is_ended || self.link.is_reset_by_server.get()
    }

    /// Bytes that the connection holds on the way to the client, at most.
    pub fn window_bytes(&self) -> usize {
        self.link.down.borrow().window_bytes
    }
}

impl Drop for ClientSocket {
    fn drop(&mut self) {
        let link = &self.link;
        // Unread answers turn a close into a reset.
        if !link.down.borrow().bytes.is_empty() {
            link.is_reset_by_client.set(true);
            link.up.borrow_mut().bytes.clear();
        }
        link.up.borrow_mut().is_ended = true;
        link.is_client_gone.set(true);
        link.touch_server();
    }
}
