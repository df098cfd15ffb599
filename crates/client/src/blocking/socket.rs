//! A blocking socket to a broker, plain or TLS.
//!
//! Invariant: what is written in one call leaves at once.

use crate::error::ClientError;
use crate::security::Security;
use fullbore_tls::BlockingStream;
use fullbore_wire::split_host_port;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// How long a connect may take, and after it a TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a broker may be silent while an answer is due, or take nothing of a request (Kafka's request.timeout.ms).
const READ_TIMEOUT: Duration = Duration::from_secs(30);

pub(super) enum Socket {
    Plain(TcpStream),
    Tls(Box<BlockingStream>),
}

impl Socket {
    /// Connects to `host:port`, through the TLS handshake where there is one.
    pub(super) fn open(address: &str, security: &Security) -> Result<Socket, ClientError> {
        let of_connect = |source| ClientError::Connect { address: address.to_owned(), source };
        let of_tls = |source| ClientError::Handshake { address: address.to_owned(), source };
        let connector = security.connector().map_err(|error| of_tls(io::Error::other(error)))?;
        let socket = connect(address).map_err(of_connect)?;
        let Some(connector) = connector else { return Ok(Socket::Plain(socket)) };
        let stream = BlockingStream::connect(socket, &connector, address, CONNECT_TIMEOUT).map_err(of_tls)?;
        stream.socket().set_read_timeout(Some(READ_TIMEOUT)).map_err(of_connect)?;
        Ok(Socket::Tls(Box::new(stream)))
    }

    /// The TCP connection below.
    pub(super) fn tcp(&self) -> &TcpStream {
        match self {
            Socket::Plain(socket) => socket,
            Socket::Tls(stream) => stream.socket(),
        }
    }
}

fn connect(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::other("the name has no address");
    let target = split_host_port(address).ok_or(io::ErrorKind::InvalidInput)?;
    for candidate in target.to_socket_addrs()? {
        match TcpStream::connect_timeout(&candidate, CONNECT_TIMEOUT) {
            Ok(socket) => {
                socket.set_nodelay(true)?;
                socket.set_read_timeout(Some(READ_TIMEOUT))?;
                socket.set_write_timeout(Some(READ_TIMEOUT))?;
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
    fn nagle_is_off() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound").to_string();
        let socket = Socket::open(&address, &Security::default()).expect("connected");
        assert!(socket.tcp().nodelay().expect("a socket"));
    }
}
