//! A TLS session over a blocking socket, for a thread of its own.

use crate::client::Connector;
use crate::session::Session;
use bytes::{Buf, BytesMut};
use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;

/// One client's connection after its handshake.
pub struct BlockingStream {
    socket: TcpStream,
    session: Session,
    /// Decrypted and not yet read.
    plain: BytesMut,
}

impl BlockingStream {
    /// The handshake with the broker at `host:port`. The socket's timeouts bound each step of it.
    ///
    /// # Errors
    /// Why it failed, in words.
    pub fn connect(socket: TcpStream, connector: &Connector, address: &str) -> io::Result<Self> {
        let mut session = connector.session(address)?;
        loop {
            session.send(&mut &socket)?;
            if !session.is_handshaking() {
                return Ok(BlockingStream { socket, session, plain: BytesMut::new() });
            }
            if let Err(error) = session.shake(|bytes| (&socket).read(bytes)) {
                // The alert that says why, if there is one to be sent.
                let _ = session.send(&mut &socket);
                return Err(error);
            }
        }
    }

    /// The socket below.
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }
}

impl Read for BlockingStream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        while self.plain.is_empty() {
            // None: not all of a record yet.
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

    /// Encrypts, and sends what is encrypted: what is written in one call leaves at once.
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
        // Nobody waits for a goodbye: neither for a broker that is gone nor for one that takes nothing.
        let _ = self.socket.set_nonblocking(true);
        let _ = self.session.send(&mut &self.socket);
    }
}
