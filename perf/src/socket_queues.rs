//! What waits in the kernel between client and server on loopback, from `/proc/net/tcp`: it tells
//! without the help of either whether the server has taken all that was sent to it, and whether it
//! has answered.

use std::{fs, io};

/// Queues of the sockets of one server port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SocketQueues {
    /// Connections that wait to be accepted.
    pub(crate) unaccepted_count: u64,
    /// Established connections, seen from the server.
    pub(crate) established_count: u64,
    /// Bytes that the server has not received.
    pub(crate) unread_by_server_bytes: u64,
    /// Bytes that clients have not received.
    pub(crate) unread_by_client_bytes: u64,
}

/// The state `TCP_ESTABLISHED`.
const ESTABLISHED: &str = "01";
/// The state `TCP_LISTEN`.
const LISTEN: &str = "0A";

impl SocketQueues {
    /// The queues of an IPv4 port of this machine now.
    ///
    /// # Errors
    /// `/proc/net/tcp` cannot be read.
    pub(crate) fn of_port(port: u16) -> io::Result<Self> {
        Ok(Self::parse(&fs::read_to_string("/proc/net/tcp")?, port))
    }

    fn parse(table: &str, port: u16) -> Self {
        let mut queues = Self::default();
        for entry in table.lines().filter_map(Entry::parse) {
            if entry.local_port == port && entry.state == LISTEN {
                // The receive queue of a listening socket is its backlog.
                queues.unaccepted_count += entry.receive_queue;
            } else if entry.local_port == port && entry.state == ESTABLISHED {
                queues.established_count += 1;
                queues.unread_by_server_bytes += entry.receive_queue;
            } else if entry.remote_port == port {
                queues.unread_by_client_bytes += entry.receive_queue;
                // What the peer has not acknowledged is on its way to it.
                queues.unread_by_server_bytes += entry.send_queue;
            }
        }
        queues
    }
}

/// A line of the table.
struct Entry<'line> {
    local_port: u16,
    remote_port: u16,
    state: &'line str,
    send_queue: u64,
    receive_queue: u64,
}

impl<'line> Entry<'line> {
    /// `None` for the line of headers.
    fn parse(line: &'line str) -> Option<Self> {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let local_port = port(fields.next()?)?;
        let remote_port = port(fields.next()?)?;
        let state = fields.next()?;
        let (send, receive) = fields.next()?.split_once(':')?;
        let send_queue = u64::from_str_radix(send, 16).ok()?;
        let receive_queue = u64::from_str_radix(receive, 16).ok()?;
        Some(Self { local_port, remote_port, state, send_queue, receive_queue })
    }
}

/// The port of `0100007F:1F90`.
fn port(address: &str) -> Option<u16> {
    u16::from_str_radix(address.split_once(':')?.1, 16).ok()
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write,
        net::{TcpListener, TcpStream},
    };

    use super::*;

    const TABLE: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when\n\
        0: 0100007F:1F90 00000000:0000 0A 00000000:00000003 00:00000000 00000000\n\
        1: 0100007F:1F90 0100007F:9000 01 00000000:00000010 00:00000000 00000000\n\
        2: 0100007F:9000 0100007F:1F90 01 00000002:00000005 00:00000000 00000000\n\
        3: 0100007F:1F90 0100007F:9001 06 00000000:00000000 03:00000000 00000000\n\
        4: 0100007F:9000 0100007F:1F91 01 00000007:00000007 00:00000000 00000000\n";

    #[test]
    fn tells_servers_clients_and_strangers_apart() {
        let expected = SocketQueues {
            unaccepted_count: 3,
            established_count: 1,
            unread_by_server_bytes: 0x12,
            unread_by_client_bytes: 5,
        };
        assert_eq!(SocketQueues::parse(TABLE, 0x1F90), expected);
        assert_eq!(SocketQueues::parse("", 1), SocketQueues::default());
    }

    #[test]
    fn reads_the_kernels_table() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut client = TcpStream::connect(address).unwrap();
        let (_server, _) = listener.accept().unwrap();
        client.write_all(b"12345").unwrap();
        let queues = SocketQueues::of_port(address.port()).unwrap();
        assert_eq!((queues.established_count, queues.unread_by_server_bytes), (1, 5));
        assert_eq!((queues.unaccepted_count, queues.unread_by_client_bytes), (0, 0));
    }
}
