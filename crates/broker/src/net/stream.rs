//! A client's connection, plain or TLS: the few things the rest of the way needs to do with it.
//!
//! Not here: frames (`input`, `output`) and certificates (`tls`). Invariant: a plain connection is its socket and
//! nothing else, so that it costs what it did without TLS.

use bytes::{BufMut, BytesMut};
use std::io;
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::sleep;

/// Time between two looks for a close behind what was not read yet.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Connection that is ready for requests.
pub enum ClientStream {
    /// Bytes go as they are.
    Plain(TcpStream),
    /// After its handshake.
    Tls(Box<fullbore_tls::Stream>),
}

impl ClientStream {
    /// Waits until there is something to read, or the end. May be wrong.
    pub async fn readable(&self) -> io::Result<()> {
        match self {
            ClientStream::Plain(socket) => socket.readable().await,
            ClientStream::Tls(stream) => stream.readable().await,
        }
    }

    /// Waits until the peer has closed its side. What it sent before stays to be read.
    pub async fn closed(&self) {
        let socket = self.socket();
        loop {
            match socket.ready(Interest::READABLE).await {
                Ok(ready) if !ready.is_read_closed() => {}
                _ => return,
            }
            // There is something to read, which is not for us: nothing tells of a close behind it but to look again.
            sleep(LOOK_AGAIN).await;
        }
    }

    /// Acknowledges to the peer's system what has come, now: a client with Nagle's algorithm on holds its next small
    /// write back until then, and systems wait up to 40 ms for something to send it along with.
    pub fn acknowledge(&self) {
        // Without it the rest comes, only later.
        let _ = rustix::net::sockopt::set_tcp_quickack(self.socket(), true);
    }

    /// Ends the connection in both directions, whoever uses it.
    pub fn shut_down(&self) {
        // It fails where the connection has ended.
        let _ = rustix::net::shutdown(self.socket(), rustix::net::Shutdown::Both);
    }

    fn socket(&self) -> &TcpStream {
        match self {
            ClientStream::Plain(socket) => socket,
            ClientStream::Tls(stream) => stream.socket(),
        }
    }

    /// Adds what has come to `buffer` without waiting, and reserves for it: up to `want` bytes of a plain connection,
    /// up to 64 KiB of TLS; 0 at the end of the stream.
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

/// Reads once. A read that did not fill the buffer has emptied the socket, which tokio is told at once: the next wait
/// is then a wait, and not a second read that finds nothing while the answer has yet to leave.
fn read_what_came(socket: &TcpStream, buffer: &mut BytesMut, want: usize) -> io::Result<usize> {
    let mut read = None;
    // What comes after this look at the socket's readiness stays noted.
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
