//! Listening sockets: one a core and address, so that the kernel spreads connections and no core
//! asks another.

use std::{
    io,
    net::{Ipv6Addr, SocketAddr},
    os::fd::OwnedFd,
};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::key::ListenerId;

/// A listening socket of one core.
#[derive(Debug)]
pub struct Listener {
    /// Its descriptor.
    pub fd: OwnedFd,
    /// Where it listens, with the port that the system picked if the configuration left it open.
    pub local_addr: SocketAddr,
    /// Which configured address it stands for.
    pub id: ListenerId,
}

/// Binds every address once for each core, then listens. The outer list is by core, the inner one
/// by address.
///
/// The first socket of an address claims it alone, so a second program on the port is refused;
/// only then is the address opened for the other cores' sockets. All are bound before the first
/// one listens, so that no early connection finds a smaller group than later ones.
///
/// Accepted connections inherit `TCP_NODELAY`. Descriptors are closed on exec.
///
/// # Errors
/// An address cannot be bound or listened on; the text names it. `AddrInUse` if another socket
/// has it.
///
/// # Panics
/// If `cores` is 0 or there are more than 65,536 addresses.
pub fn bind(
    addresses: &[SocketAddr],
    cores: usize,
    backlog: i32,
) -> io::Result<Vec<Vec<Listener>>> {
    assert!(cores > 0, "somebody must accept");
    let mut by_core: Vec<Vec<Listener>> = (0..cores).map(|_| Vec::new()).collect();
    for (index, &address) in addresses.iter().enumerate() {
        let id = ListenerId(u16::try_from(index).expect("at most 65,536 addresses"));
        let is_v6_only = has_v4_twin(address, addresses);
        let sockets = bind_all(address, cores, is_v6_only).map_err(|e| named(address, &e))?;
        for (listeners, socket) in by_core.iter_mut().zip(sockets) {
            let local_addr = local_address(&socket).map_err(|e| named(address, &e))?;
            listeners.push(Listener { fd: socket.into(), local_addr, id });
        }
    }
    for listener in by_core.iter().flatten() {
        let socket = socket2::SockRef::from(&listener.fd);
        socket.listen(backlog).map_err(|e| named(listener.local_addr, &e))?;
    }
    Ok(by_core)
}

fn bind_all(address: SocketAddr, cores: usize, is_v6_only: bool) -> io::Result<Vec<Socket>> {
    let first = unbound(address, is_v6_only)?;
    first.bind(&SockAddr::from(address))?;
    // The kernel looks at the option of the sockets that are there when another one binds.
    first.set_reuse_port(true)?;
    let resolved = SockAddr::from(local_address(&first)?);
    let mut sockets = vec![first];
    for _ in 1..cores {
        let socket = unbound(address, is_v6_only)?;
        socket.set_reuse_port(true)?;
        socket.bind(&resolved)?;
        sockets.push(socket);
    }
    Ok(sockets)
}

fn unbound(address: SocketAddr, is_v6_only: bool) -> io::Result<Socket> {
    // `Socket::new` asks for close-on-exec.
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_tcp_nodelay(true)?;
    if is_v6_only {
        socket.set_only_v6(true)?;
    }
    Ok(socket)
}

/// Whether `[::]` is configured beside `0.0.0.0` on the same port: then it must leave IPv4 alone.
fn has_v4_twin(address: SocketAddr, addresses: &[SocketAddr]) -> bool {
    address.ip() == Ipv6Addr::UNSPECIFIED
        && addresses
            .iter()
            .any(|a| a.is_ipv4() && a.ip().is_unspecified() && a.port() == address.port())
}

fn local_address(socket: &Socket) -> io::Result<SocketAddr> {
    let address = socket.local_addr()?;
    Ok(address.as_socket().expect("an internet socket has an internet address"))
}

fn named(address: SocketAddr, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot listen on {address}: {error}"))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn local(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    #[test]
    fn a_second_program_on_the_port_is_refused_while_the_first_lives() {
        let first = bind(&[local(0)], 2, 16).unwrap();
        let address = first[0][0].local_addr;
        assert_ne!(address.port(), 0);
        assert_eq!(first[1][0].local_addr, address);
        let error = bind(&[address], 2, 16).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert!(error.to_string().contains(&address.to_string()), "{error} names the address");
        drop(first);
        bind(&[address], 2, 16).unwrap();
    }

    #[test]
    fn connections_spread_over_the_cores() {
        let by_core = bind(&[local(0)], 2, 256).unwrap();
        let address = by_core[0][0].local_addr;
        let clients: Vec<_> = (0..200).map(|_| TcpStream::connect(address).unwrap()).collect();
        let counts: Vec<usize> = by_core
            .into_iter()
            .map(|mut listeners| {
                let listener = TcpListener::from(listeners.remove(0).fd);
                listener.set_nonblocking(true).unwrap();
                std::iter::from_fn(|| listener.accept().ok())
                    .inspect(|(stream, _)| assert!(stream.nodelay().unwrap(), "inherited"))
                    .count()
            })
            .collect();
        assert_eq!(counts.iter().sum::<usize>(), clients.len());
        assert!(counts.iter().all(|count| *count > 40), "uneven: {counts:?}");
    }

    #[test]
    fn every_address_has_its_own_id_and_descriptors_are_closed_on_exec() {
        let by_core = bind(&[local(0), local(0)], 1, 16).unwrap();
        let ids: Vec<u16> = by_core[0].iter().map(|listener| listener.id.0).collect();
        assert_eq!(ids, [0, 1]);
        assert_ne!(by_core[0][0].local_addr, by_core[0][1].local_addr);
        use std::os::fd::AsRawFd;
        // SAFETY: the call takes no pointer.
        let flags = unsafe { libc::fcntl(by_core[0][0].fd.as_raw_fd(), libc::F_GETFD) };
        assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
    }

    #[test]
    fn a_v6_wildcard_leaves_v4_to_its_twin() {
        let v4 = SocketAddr::from(([0, 0, 0, 0], 80));
        let v6 = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 80));
        let other = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 81));
        assert!(has_v4_twin(v6, &[v4, v6]));
        assert!(!has_v4_twin(v6, &[v6]));
        assert!(!has_v4_twin(other, &[v4, other]));
        assert!(!has_v4_twin(v4, &[v4, v6]));
    }
}
