//! A TLS session over a tokio socket. It is used by shared reference, so one task can read while another one writes.
//!
//! Invariant: the session's lock is held for at most one system call, and never across an await.

use crate::client::Connector;
use crate::server::Acceptor;
use crate::session::Session;
use bytes::BytesMut;
use parking_lot::Mutex;
use std::io::{self, IoSlice, Write};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// How long this end keeps reading after it has refused a handshake, so that the peer can read the alert.
const LINGER_MAX: Duration = Duration::from_secs(1);
/// Maximum number of bytes that this end still reads after it has refused a handshake.
const LINGER_BYTES: usize = 64 * 1024;

/// A connection on which the TLS handshake is done.
pub struct Stream {
    socket: TcpStream,
    session: Mutex<Session>,
}

/// A writer that never waits. It writes as many bytes as the socket takes at once.
struct Trying<'a>(&'a TcpStream);

impl Write for Trying<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write_vectored(slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Stream {
    /// Does the broker's part of the handshake with a client. The caller sets the time limit.
    ///
    /// # Errors
    /// Returns an error whose text explains why the handshake failed. If the client uses TLS, an alert was sent to it.
    pub async fn accept(socket: TcpStream, acceptor: &Acceptor) -> io::Result<Stream> {
        let session = acceptor.session()?;
        Stream::handshake(socket, session).await
    }

    /// Does the client's part of the handshake with the broker at `address` (`host:port`). The caller sets the time
    /// limit.
    ///
    /// # Errors
    /// Returns an error whose text explains why the handshake failed.
    pub async fn connect(socket: TcpStream, connector: &Connector, address: &str) -> io::Result<Stream> {
        let session = connector.session(address)?;
        Stream::handshake(socket, session).await
    }

    async fn handshake(socket: TcpStream, session: Session) -> io::Result<Stream> {
        let mut stream = Stream { socket, session: Mutex::new(session) };
        match stream.shake().await {
            Ok(()) => Ok(stream),
            Err(error) => {
                stream.refuse(error.kind() == io::ErrorKind::InvalidData).await;
                Err(error)
            }
        }
    }

    async fn shake(&self) -> io::Result<()> {
        loop {
            self.flush().await?;
            if !self.session.lock().is_handshaking() {
                return Ok(());
            }
            self.socket.readable().await?;
            match self.session.lock().shake(|bytes| self.socket.try_read(bytes)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => result?,
            }
        }
    }

    /// Sends the alert, and then reads until the peer closes the connection. If this end closed first, a reset could
    /// discard the alert before the peer has read it.
    async fn refuse(&mut self, has_alert: bool) {
        if !has_alert || !self.session.lock().has_spoken_tls() {
            return;
        }
        let lingering = async {
            self.flush().await?;
            self.socket.shutdown().await?;
            let mut left = LINGER_BYTES;
            let mut bytes = [0; 4096];
            while left > 0 {
                self.socket.readable().await?;
                match self.socket.try_read(&mut bytes) {
                    Ok(0) => break,
                    Ok(read) => left = left.saturating_sub(read),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
            }
            Ok::<(), io::Error>(())
        };
        // An error means that the peer is already gone.
        let _ = tokio::time::timeout(LINGER_MAX, lingering).await;
    }

    /// Returns the socket that the session runs over.
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Waits until plaintext is available or the stream has ended. May also return when neither is the case.
    ///
    /// # Errors
    /// Fails if the socket fails.
    pub async fn readable(&self) -> io::Result<()> {
        if self.session.lock().has_plaintext() {
            return Ok(());
        }
        self.socket.readable().await
    }

    /// Appends the available plaintext to `plain` without waiting. Returns how many bytes were added, at most 64 KiB.
    /// Returns 0 at the end of the stream.
    ///
    /// # Errors
    /// Fails with WouldBlock if no record is complete yet. Any other error is one of the session or the socket.
    pub fn try_read_buf(&self, plain: &mut BytesMut) -> io::Result<usize> {
        let mut session = self.session.lock();
        let read = session.read(|bytes| self.socket.try_read(bytes), plain);
        if session.wants_write() {
            // Send an alert or the response to a key update, as much as the socket accepts now. The next write sends
            // the rest.
            let _ = session.send(&mut Trying(&self.socket));
        }
        read?.ok_or_else(|| io::ErrorKind::WouldBlock.into())
    }

    /// Waits for plaintext and appends it to `plain`. Returns how many bytes were added, which is 0 at the end of the
    /// stream.
    ///
    /// # Errors
    /// Fails if the session or the socket fails.
    pub async fn read_buf(&self, plain: &mut BytesMut) -> io::Result<usize> {
        loop {
            self.readable().await?;
            match self.try_read_buf(plain) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
        }
    }

    /// Encrypts all of `plain`. Ciphertext is sent here only if the limit of unsent ciphertext is reached, and
    /// [`Stream::flush`] sends the rest.
    ///
    /// # Errors
    /// Fails if the session or the socket fails.
    pub async fn write(&self, mut plain: &mut [IoSlice<'_>]) -> io::Result<()> {
        loop {
            IoSlice::advance_slices(&mut plain, 0);
            if plain.is_empty() {
                return Ok(());
            }
            let taken = self.session.lock().encrypt(plain)?;
            IoSlice::advance_slices(&mut plain, taken);
            if !plain.is_empty() {
                self.flush().await?;
            }
        }
    }

    /// Sends all ciphertext.
    ///
    /// # Errors
    /// Fails if the socket fails.
    pub async fn flush(&self) -> io::Result<()> {
        loop {
            match self.session.lock().send(&mut Trying(&self.socket)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
            self.socket.writable().await?;
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let session = self.session.get_mut();
        if !session.has_spoken_tls() {
            return;
        }
        session.close();
        // If the socket takes no bytes now, the connection ends without a close_notify.
        let _ = session.send(&mut Trying(&self.socket));
    }
}
