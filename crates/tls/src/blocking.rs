//! A client's TLS session over a blocking socket, for use by a single thread.

use crate::client::Connector;
use crate::session::Session;
use bytes::{Buf, BytesMut};
use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// A client's connection on which the handshake is done.
pub struct BlockingStream {
    socket: TcpStream,
    session: Session,
    /// Decrypted bytes that the caller has not read yet.
    plain: BytesMut,
}

impl BlockingStream {
    /// Does the handshake with the broker at `address` (`host:port`). The whole handshake takes at most `within`,
    /// however slowly the broker sends. The socket's read timeout is not restored afterwards, so the caller must set
    /// its own.
    ///
    /// # Errors
    /// Returns an error whose text explains why the handshake failed.
    pub fn connect(socket: TcpStream, connector: &Connector, address: &str, within: Duration) -> io::Result<Self> {
        let mut session = connector.session(address)?;
        let began = Instant::now();
        loop {
            session.send(&mut &socket)?;
            if !session.is_handshaking() {
                return Ok(BlockingStream { socket, session, plain: BytesMut::new() });
            }
            let left = within.saturating_sub(began.elapsed());
            if left.is_zero() {
                return Err(io::Error::new(io::ErrorKind::TimedOut, format!("no TLS handshake in {within:?}")));
            }
            socket.set_read_timeout(Some(left))?;
            match session.shake(|bytes| (&socket).read(bytes)) {
                Ok(()) => {}
                // The read timeout has passed, or a signal has arrived. The loop checks the remaining time.
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(error) => {
                    // If the session has queued a TLS alert with the reason for the failure, this sends the alert to
                    // the peer.
                    let _ = session.send(&mut &socket);
                    return Err(error);
                }
            }
        }
    }

    /// Returns the socket that the session runs over.
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }
}

impl Read for BlockingStream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        while self.plain.is_empty() {
            // None means that no record is complete yet, so the loop reads more.
            if let Some(0) = self.session.read(|bytes| (&self.socket).read(bytes), &mut self.plain)? {
                return Ok(0);
            }
        }
        let read = bytes.len().min(self.plain.len());
        self.plain.copy_to_slice(&mut bytes[..read]);
        Ok(read)
    }
}

impl Write for BlockingStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    /// Encrypts the bytes of all slices, and sends all ciphertext before it returns.
    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let taken = self.session.encrypt(slices)?;
        self.session.send(&mut &self.socket)?;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.session.send(&mut &self.socket)
    }
}

impl Drop for BlockingStream {
    fn drop(&mut self) {
        self.session.close();
        // Send the close_notify only if the socket accepts it without blocking, because the broker may be gone or may
        // not read.
        let _ = self.socket.set_nonblocking(true);
        let _ = self.session.send(&mut &self.socket);
    }
}
