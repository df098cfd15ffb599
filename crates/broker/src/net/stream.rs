//! The connection of a client, with or without TLS. Frames are in `input` and `output`, and certificates in `tls`.
//!
//! A connection without TLS only consists of its socket, so the support of TLS does not make it more expensive.

use bytes::{BufMut, BytesMut};
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::sleep;

/// How often the socket is checked for the peer's close while unread bytes precede that close.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// A connection that is ready for requests.
pub enum ClientStream {
    /// A connection without encryption.
    Plain(TcpStream),
    /// A TLS connection after its handshake.
    Tls(Box<fullbore_tls::Stream>),
}

impl ClientStream {
    /// Waits until there is something to read or the peer has closed its side. May also return without either.
    pub async fn readable(&self) -> io::Result<()> {
        match self {
            ClientStream::Plain(socket) => socket.readable().await,
            ClientStream::Tls(stream) => stream.readable().await,
        }
    }

    /// Waits until the peer has closed its side. Does not read the bytes that the peer sent before.
    pub async fn closed(&self) {
        let socket = self.socket();
        loop {
            match socket.ready(Interest::READABLE).await {
                Ok(ready) if !ready.is_read_closed() => {}
                _ => return,
            }
            // Because of unread bytes, the socket stays readable, and waiting for readiness would return at once. Only
            // polling can find a close after these bytes.
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Acknowledges the received bytes at once. Systems may delay this by up to 40 ms, and a client with Nagle's
    /// algorithm holds back its next small write until then.
    pub fn acknowledge(&self) {
        // If this fails, the rest of the frame only arrives later.
        let _ = rustix::net::sockopt::set_tcp_quickack(self.socket(), true);
    }

    /// Shuts down the connection in both directions, even while it is in use.
    pub fn shut_down(&self) {
        // An error means that the connection has already ended.
        let _ = rustix::net::shutdown(self.socket(), rustix::net::Shutdown::Both);
    }

    /// Returns how many bytes the client has acknowledged since it connected. `None` if the system does not count them.
    pub fn bytes_acknowledged(&self) -> Option<u64> {
        fullbore_host::sockets::bytes_acknowledged(self.socket().as_fd())
    }

    fn socket(&self) -> &TcpStream {
        match self {
            ClientStream::Plain(socket) => socket,
            ClientStream::Tls(stream) => stream.socket(),
        }
    }

    /// Reads the available bytes into `buffer` without waiting, after reserving memory for them. Reads at most `want`
    /// bytes, or at most 64 KiB with TLS. Returns 0 at the end of the stream.
    pub fn try_read_buf(&self, buffer: &mut BytesMut, want: usize) -> io::Result<usize> {
        match self {
            ClientStream::Plain(socket) => {
                buffer.reserve(want);
                read_what_came(socket, buffer, want)
            }
            ClientStream::Tls(stream) => {
                buffer.reserve(want);
                stream.try_read_buf(buffer)
            }
        }
    }
}

/// Reads once. If this reads less than `want` bytes, the socket is empty, so tokio's readiness of the socket is
/// cleared. Otherwise the next wait would return at once, and the read after it would find nothing.
fn read_what_came(socket: &TcpStream, buffer: &mut BytesMut, want: usize) -> io::Result<usize> {
    let mut read = None;
    // Only the readiness from before the read is cleared. Bytes that arrive later set it again.
    let looked = socket.try_io(Interest::READABLE, || {
        let count = socket.try_read_buf(&mut buffer.limit(want))?;
        read = Some(count);
        if (1..want).contains(&count) { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
    });
    match read {
        Some(count) => Ok(count),
        None => looked.map(|()| 0),
    }
}
