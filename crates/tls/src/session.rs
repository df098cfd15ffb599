//! A TLS session without its socket. The caller passes functions that receive and send ciphertext, and exchanges
//! plaintext with the session.
//!
//! Invariant: ciphertext is sent in the order in which it was made, whichever task sends it.

use crate::explain;
use bytes::BytesMut;
use rustls::{Connection, Side};
use std::cell::RefCell;
use std::io::{self, BufRead, IoSlice, Write};

/// How many bytes are read from a socket at a time. Four full TLS records fit.
const READ_BYTES: usize = 64 * 1024;
/// Maximum size of the ciphertext that waits to be sent, in bytes. These are sixteen full TLS records, which are sent
/// in one vectored write.
const UNSENT_MAX: usize = 256 * 1024;

thread_local! {
    /// The buffer for the ciphertext of a read. All sessions of a thread share it, because it is not in use between two
    /// calls.
    static CIPHERTEXT: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_BYTES].into_boxed_slice());
}

/// The TLS session of a connection, on either side.
pub(crate) struct Session {
    tls: Connection,
    side: Side,
    /// Plaintext that arrived in the same read as the end of the handshake.
    early: BytesMut,
    /// The first byte from the peer, which shows whether the peer uses TLS.
    first: Option<u8>,
    ended: bool,
}

impl Session {
    pub(crate) fn new(mut tls: Connection) -> Self {
        tls.set_buffer_limit(Some(UNSENT_MAX));
        let side = if matches!(tls, Connection::Client(_)) { Side::Client } else { Side::Server };
        Session { tls, side, early: BytesMut::new(), first: None, ended: false }
    }

    pub(crate) fn is_handshaking(&self) -> bool {
        self.tls.is_handshaking()
    }

    /// Returns true if the first byte from the peer looks like TLS. Only then can the peer read an alert.
    pub(crate) fn has_spoken_tls(&self) -> bool {
        explain::is_tls(self.first)
    }

    /// Returns true if there is ciphertext to be sent.
    pub(crate) fn wants_write(&self) -> bool {
        self.tls.wants_write()
    }

    /// Returns true if a read would return without waiting for the socket: plaintext is available, or the session has
    /// ended.
    pub(crate) fn has_plaintext(&self) -> bool {
        !self.early.is_empty() || self.ended
    }

    /// Reads once from the socket, and appends the decrypted bytes to `plain`. Returns how many bytes were added. This
    /// is 0 at the end of the session, and None if no record is complete yet.
    ///
    /// # Errors
    /// Fails if the socket or the session fails.
    pub(crate) fn read(
        &mut self,
        receive: impl FnMut(&mut [u8]) -> io::Result<usize>,
        plain: &mut BytesMut,
    ) -> io::Result<Option<usize>> {
        let had = plain.len();
        if self.early.is_empty() && !self.ended {
            self.receive(receive, plain)?;
        }
        if !self.early.is_empty() {
            plain.unsplit(std::mem::take(&mut self.early));
        }
        match plain.len() - had {
            0 if self.ended => Ok(Some(0)),
            0 => Ok(None),
            read => Ok(Some(read)),
        }
    }

    /// Reads once from the socket during the handshake.
    ///
    /// # Errors
    /// Fails if the socket or the session fails, and with UnexpectedEof if the connection ends before the handshake is
    /// complete.
    pub(crate) fn shake(&mut self, receive: impl FnMut(&mut [u8]) -> io::Result<usize>) -> io::Result<()> {
        let mut early = std::mem::take(&mut self.early);
        let received = self.receive(receive, &mut early);
        self.early = early;
        received?;
        match self.ended && self.is_handshaking() {
            true => Err(io::Error::new(io::ErrorKind::UnexpectedEof, explain::ended(self.side, self.first))),
            false => Ok(()),
        }
    }

    fn receive(
        &mut self,
        mut receive: impl FnMut(&mut [u8]) -> io::Result<usize>,
        plain: &mut BytesMut,
    ) -> io::Result<()> {
        CIPHERTEXT.with_borrow_mut(|ciphertext| {
            let received = receive(ciphertext)?;
            // A connection that ends without a close_notify also ends the session. If a Kafka frame was cut off, its
            // length shows this.
            self.ended |= received == 0;
            self.first = self.first.or(ciphertext[..received].first().copied());
            let mut rest = &ciphertext[..received];
            while !rest.is_empty() && !self.ended {
                self.tls.read_tls(&mut rest)?;
                let state = self.tls.process_new_packets().map_err(|error| {
                    io::Error::new(io::ErrorKind::InvalidData, explain::error(&error, self.side, self.first))
                })?;
                self.ended |= state.peer_has_closed();
                self.drain(plain)?;
            }
            Ok(())
        })
    }

    fn drain(&mut self, plain: &mut BytesMut) -> io::Result<()> {
        let mut reader = self.tls.reader();
        loop {
            let read = match reader.fill_buf() {
                Ok([]) => return Ok(()),
                Ok(bytes) => {
                    plain.extend_from_slice(bytes);
                    bytes.len()
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            reader.consume(read);
        }
    }

    /// Encrypts bytes of `plain` until the limit of unsent ciphertext is reached, in TLS records of the maximum size.
    /// Returns how many bytes were encrypted.
    ///
    /// # Errors
    /// Fails if the session has failed.
    pub(crate) fn encrypt(&mut self, plain: &[IoSlice<'_>]) -> io::Result<usize> {
        self.tls.writer().write_vectored(plain)
    }

    /// Sends all ciphertext that waits to be sent.
    ///
    /// # Errors
    /// Fails if the socket fails. After WouldBlock, the caller can call again to send the rest.
    pub(crate) fn send(&mut self, socket: &mut dyn Write) -> io::Result<()> {
        while self.wants_write() {
            if self.tls.write_tls(socket)? == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }

    /// Queues a close_notify.
    pub(crate) fn close(&mut self) {
        self.tls.send_close_notify();
    }
}
