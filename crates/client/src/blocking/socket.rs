//! A blocking socket to a broker, plain or TLS.
//!
//! Invariant: bytes written in one call leave at once.

use crate::error::{ClientError, unknown_host};
use crate::security::Security;
use fullbore_tls::BlockingStream;
use fullbore_wire::split_host_port;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

/// Time limit for connecting to an address. The TLS handshake has the same limit of its own.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Default time limit for each read and each write (Kafka's request.timeout.ms). A broker that sends nothing while a
/// response is due, or that reads nothing of a request, is given up after this time.
pub(super) const READ_TIMEOUT: Duration = Duration::from_secs(30);

pub(super) enum Socket {
    Plain(TcpStream),
    Tls(Box<BlockingStream>),
}

impl Socket {
    /// Connects to `host:port`, including the TLS handshake. The attempt at each address of the host, and the
    /// handshake, may take the shorter of [`CONNECT_TIMEOUT`] and `patience`. Later reads and writes may take
    /// `patience`.
    pub(super) fn open(address: &str, security: &Security, patience: Duration) -> Result<Socket, ClientError> {
        let of_connect = |source| ClientError::Connect { address: address.to_owned(), source };
        let of_tls = |source| ClientError::Handshake { address: address.to_owned(), source };
        let connector = security.connector().map_err(|error| of_tls(io::Error::other(error)))?;
        let socket = connect_to(resolve(address).map_err(of_connect)?, patience).map_err(of_connect)?;
        let Some(connector) = connector else { return Ok(Socket::Plain(socket)) };
        let stream =
            BlockingStream::connect(socket, &connector, address, patience.min(CONNECT_TIMEOUT)).map_err(of_tls)?;
        stream.socket().set_read_timeout(Some(patience)).map_err(of_connect)?;
        Ok(Socket::Tls(Box::new(stream)))
    }

    /// Returns the TCP connection under the socket.
    pub(super) fn tcp(&self) -> &TcpStream {
        match self {
            Socket::Plain(socket) => socket,
            Socket::Tls(stream) => stream.socket(),
        }
    }

    /// Returns true if a new connection to `address` would reach the same peer as this socket. `own` is the address
    /// that this socket was opened to. With TLS, `address` must equal `own`, because SNI may send two names of one IP
    /// address to different listeners.
    pub(super) fn leads_to(&self, address: &str, own: &str) -> bool {
        match self {
            Socket::Tls(_) => own.eq_ignore_ascii_case(address),
            // If the name does not resolve, the new connection will report the error.
            Socket::Plain(socket) => match (socket.peer_addr(), resolve(address)) {
                (Ok(peer), Ok(targets)) => is_first(peer, targets),
                _ => false,
            },
        }
    }
}

/// Returns the addresses that `host:port` resolves to now.
fn resolve(address: &str) -> io::Result<impl Iterator<Item = SocketAddr>> {
    let place = split_host_port(address).ok_or(io::ErrorKind::InvalidInput)?;
    place.to_socket_addrs().map_err(|error| unknown_host(&error))
}

/// Returns true if `peer` is the first of these addresses. A new connection would use the first one.
fn is_first(peer: SocketAddr, mut targets: impl Iterator<Item = SocketAddr>) -> bool {
    targets.next() == Some(peer)
}

/// Connects to the first of these addresses that accepts.
fn connect_to(targets: impl Iterator<Item = SocketAddr>, patience: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::other("the name has no address");
    for candidate in targets {
        match TcpStream::connect_timeout(&candidate, patience.min(CONNECT_TIMEOUT)) {
            Ok(socket) => {
                socket.set_nodelay(true)?;
                socket.set_read_timeout(Some(patience))?;
                socket.set_write_timeout(Some(patience))?;
                return Ok(socket);
            }
            Err(source) => last = source,
        }
    }
    Err(last)
}

impl Read for Socket {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Plain(socket) => socket.read(bytes),
            Socket::Tls(stream) => stream.read(bytes),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Plain(socket) => socket.write(bytes),
            Socket::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Socket::Plain(socket) => socket.flush(),
            Socket::Tls(stream) => stream.flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_leads_to_every_name_of_its_peer_only() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let own = format!("127.0.0.1:{port}");
        let socket = Socket::open(&own, &Security::default(), READ_TIMEOUT).expect("connected");
        assert!(socket.leads_to(&own, &own));
        assert!(socket.leads_to(&format!("localhost:{port}"), &own));
        for other in [format!("127.0.0.1:{}", port ^ 1), format!("127.0.0.2:{port}"), "no port".to_owned()] {
            assert!(!socket.leads_to(&other, &own), "{other}");
        }
    }

    #[test]
    fn a_name_of_two_addresses_connects_to_the_live_one_and_leads_to_its_first() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let alive = listener.local_addr().expect("bound");
        let gone = SocketAddr::from(([127, 0, 0, 2], alive.port()));
        let socket = connect_to([gone, alive].into_iter(), READ_TIMEOUT).expect("the second is there");
        let peer = socket.peer_addr().expect("connected");
        assert_eq!(peer, alive);
        assert!(is_first(peer, [alive, gone].into_iter()));
        assert!(!is_first(peer, [gone, alive].into_iter()), "the first may be back, and another broker");
        assert!(!is_first(peer, [].into_iter()));
    }

    #[test]
    fn a_blocking_socket_has_nagle_off() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound").to_string();
        let socket = Socket::open(&address, &Security::default(), READ_TIMEOUT).expect("connected");
        assert!(socket.tcp().nodelay().expect("a socket"));
    }
}
