//! TLS session without its socket. The caller provides functions that receive and send ciphertext, and passes plaintext
//! in and out.
//!
//! This module does no I/O. Invariant: ciphertext leaves in the order in which it was made, whichever task sends it.

use crate::explain;
use bytes::BytesMut;
use rustls::{Connection, Side};
use std::cell::RefCell;
use std::io::{self, BufRead, IoSlice, Write};

/// Most bytes of one read from a socket: four full records.
const READ_BYTES: usize = 64 * 1024;
/// Most bytes of ciphertext that wait to be sent: sixteen full records, sent in one vectored write.
const UNSENT_MAX: usize = 256 * 1024;

thread_local! {
    /// Buffer for the ciphertext of one read. All sessions of a thread share it, since it is unused between two calls.
    static CIPHERTEXT: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_BYTES].into_boxed_slice());
}

/// TLS session of one connection, at either end.
pub(crate) struct Session {
    tls: Connection,
    side: Side,
    /// Plaintext that arrived in the same read as the end of the handshake.
    early: BytesMut,
    /// First byte that the peer sent; shows whether the peer speaks TLS.
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

    /// Returns true if the peer's first byte looks like TLS. Only such a peer can read an alert.
    pub(crate) fn has_spoken_tls(&self) -> bool {
        explain::is_tls(self.first)
    }

    /// Returns true if ciphertext waits to be sent.
    pub(crate) fn wants_write(&self) -> bool {
        self.tls.wants_write()
    }

    /// Returns true if a read returns at once: plaintext waits, or the session has ended.
    pub(crate) fn has_plaintext(&self) -> bool {
        !self.early.is_empty() || self.ended
    }

    /// Reads once from the socket, and adds the decrypted bytes to `plain`. Returns the number of added bytes: 0 at the
    /// end of the session, None if no record is complete yet.
    ///
    /// # Errors
    /// [`io::Error`] if the socket or the session fails.
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
    /// Error of the socket or of the session; UnexpectedEof if the connection ends before the handshake is complete.
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
            // The end of the connection counts as the end of the session, even without a close_notify: a truncated
            // Kafka frame is detected by its length.
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

    /// Encrypts as much of `plain` as fits the limit of unsent ciphertext, in records of the largest size. Returns the
    /// number of encrypted bytes of `plain`.
    ///
    /// # Errors
    /// [`io::Error`] if the session has ended by an error.
    pub(crate) fn encrypt(&mut self, plain: &[IoSlice<'_>]) -> io::Result<usize> {
        self.tls.writer().write_vectored(plain)
    }

    /// Sends ciphertext until none is left.
    ///
    /// # Errors
    /// [`io::Error`] if the socket fails. After WouldBlock, another call sends the rest.
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
