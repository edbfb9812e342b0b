//! The address of a peer in less memory than `SocketAddr` takes: every connection and every parked
//! request has one.

use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// A `SocketAddr` without the flow label, which the kernel gives for no accepted connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddress {
    ip: IpAddr,
    port: u16,
    /// Of a link-local IPv6 address: the interface.
    scope_id: u32,
}

impl From<SocketAddr> for PeerAddress {
    fn from(address: SocketAddr) -> Self {
        let scope_id = match address {
            SocketAddr::V4(_) => 0,
            SocketAddr::V6(address) => address.scope_id(),
        };
        Self { ip: address.ip(), port: address.port(), scope_id }
    }
}

impl From<PeerAddress> for SocketAddr {
    fn from(address: PeerAddress) -> Self {
        match address.ip {
            IpAddr::V4(ip) => SocketAddrV4::new(ip, address.port).into(),
            IpAddr::V6(ip) => SocketAddrV6::new(ip, address.port, 0, address.scope_id).into(),
        }
    }
}

const _: () = assert!(size_of::<PeerAddress>() == 24);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comes_back_as_it_was() {
        for text in ["127.0.0.1:80", "[2001:db8::1]:65535", "[fe80::1%7]:1"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(SocketAddr::from(PeerAddress::from(address)), address);
        }
    }
}
