//! A client's connection, plain or TLS, with the operations that the rest of the path needs.
//!
//! Not here: frames (`input`, `output`) and certificates (`tls`). Invariant: a plain connection is only its socket, so
//! that TLS does not make it more expensive.

use bytes::{BufMut, BytesMut};
use std::io;
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::sleep;

/// Interval of polls for the peer's close while unread bytes are in front of it.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Connection that is ready for requests.
pub enum ClientStream {
    /// Plain text.
    Plain(TcpStream),
    /// TLS after its handshake.
    Tls(Box<fullbore_tls::Stream>),
}

impl ClientStream {
    /// Waits until there is something to read, or the end. May return early.
    pub async fn readable(&self) -> io::Result<()> {
        match self {
            ClientStream::Plain(socket) => socket.readable().await,
            ClientStream::Tls(stream) => stream.readable().await,
        }
    }

    /// Waits until the peer has closed its side. Bytes that the peer sent before stay unread.
    pub async fn closed(&self) {
        let socket = self.socket();
        loop {
            match socket.ready(Interest::READABLE).await {
                Ok(ready) if !ready.is_read_closed() => {}
                _ => return,
            }
            // The unread bytes belong to the reader. The close behind them can only be found by polling.
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Acknowledges the received bytes at once. A client with Nagle's algorithm holds its next small write back until
    /// then, and systems delay acknowledgements by up to 40 ms.
    pub fn acknowledge(&self) {
        // If this call fails, the client only sends the rest of the frame later.
        let _ = rustix::net::sockopt::set_tcp_quickack(self.socket(), true);
    }

    /// Shuts the connection down in both directions, whatever its users do.
    pub fn shut_down(&self) {
        // Fails if the connection has ended.
        let _ = rustix::net::shutdown(self.socket(), rustix::net::Shutdown::Both);
    }

    fn socket(&self) -> &TcpStream {
        match self {
            ClientStream::Plain(socket) => socket,
            ClientStream::Tls(stream) => stream.socket(),
        }
    }

    /// Reads available bytes into `buffer` without waiting, and reserves for them: up to `want` bytes of a plain
    /// connection, up to 64 KiB of TLS. Returns 0 at the end of the stream.
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

/// Reads once. If fewer than `want` bytes come, the socket is empty, and its readiness in tokio is cleared. The next
/// wait then begins at once, without a further read that finds nothing.
fn read_what_came(socket: &TcpStream, buffer: &mut BytesMut, want: usize) -> io::Result<usize> {
    let mut read = None;
    // Clears only the readiness seen before the read: bytes that arrive later set it again.
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
