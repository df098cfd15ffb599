//! A client's connection, plain or TLS: the few things the rest of the way needs to do with it.
//!
//! Not here: frames (`input`, `output`) and certificates (`tls`). Invariant: a plain connection is its socket and
//! nothing else, so that it costs what it did without TLS.

use bytes::{BufMut, BytesMut};
use std::io;
use tokio::net::TcpStream;

/// One connection, ready for requests.
pub enum Stream {
    /// Bytes go as they are.
    Plain(TcpStream),
    /// After its handshake.
    Tls(Box<fullbore_tls::Stream>),
}

impl Stream {
    /// Waits until there is something to read, or the end. May be wrong.
    pub async fn readable(&self) -> io::Result<()> {
        match self {
            Stream::Plain(socket) => socket.readable().await,
            Stream::Tls(stream) => stream.readable().await,
        }
    }

    /// Adds what has come to `buffer` without waiting, and reserves for it: up to `want` bytes of a plain connection, up
    /// to 64 KiB of TLS; 0 at the end of the stream.
    pub fn try_read_buf(&self, buffer: &mut BytesMut, want: usize) -> io::Result<usize> {
        match self {
            Stream::Plain(socket) => {
                buffer.reserve(want);
                socket.try_read_buf(&mut buffer.limit(want))
            }
            Stream::Tls(stream) => {
                buffer.reserve(want);
                stream.try_read_buf(buffer)
            }
        }
    }
}
