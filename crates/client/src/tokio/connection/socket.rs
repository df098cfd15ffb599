//! A socket to a broker in two halves, plain or TLS. Other modules need not distinguish them.
//!
//! Invariant: a frame is written as a whole. Its parts are gathered into as few system calls as possible, or with TLS
//! into TLS records of the maximum size.

use crate::config::ClientConfig;
use crate::error::unknown_host;
use bytes::BytesMut;
use fullbore_wire::{Frame, Part, split_host_port};
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

/// Maximum number of parts of a frame in one system call (IOV_MAX is 1024).
const SLICES_MAX: usize = 128;

pub(super) enum Reading {
    Plain(OwnedReadHalf),
    Tls(Arc<fullbore_tls::Stream>),
}

pub(super) enum Writing {
    Plain(OwnedWriteHalf),
    Tls(Arc<fullbore_tls::Stream>),
}

/// An open socket, after the TLS handshake if there is one.
pub(super) struct Opened {
    pub(super) reading: Reading,
    pub(super) writing: Writing,
    /// The address that the name resolved to.
    pub(super) peer: SocketAddr,
}

/// The reason why a socket could not be opened.
pub(super) enum SocketFailure {
    Connect(io::Error),
    Tls(io::Error),
}

/// Connects to `host:port`, including the TLS handshake. Both together may take connect_timeout.
pub(super) async fn open(address: &str, config: &ClientConfig) -> Result<Opened, SocketFailure> {
    let connector = config.security.connector().map_err(|error| SocketFailure::Tls(io::Error::other(error)))?;
    let within = config.connect_timeout;
    let deadline = tokio::time::Instant::now() + within;
    let late = |what: &str| io::Error::new(io::ErrorKind::TimedOut, format!("{what} in {within:?}"));
    let connected = tokio::time::timeout_at(deadline, open_socket(address, config)).await;
    let socket = connected.unwrap_or_else(|_| Err(late("no answer"))).map_err(SocketFailure::Connect)?;
    let peer = socket.peer_addr().map_err(SocketFailure::Connect)?;
    let (reading, writing) = match connector {
        None => {
            let (reading, writing) = socket.into_split();
            (Reading::Plain(reading), Writing::Plain(writing))
        }
        Some(connector) => {
            let handshake = fullbore_tls::Stream::connect(socket, &connector, address);
            let shaken = tokio::time::timeout_at(deadline, handshake).await;
            let stream =
                Arc::new(shaken.unwrap_or_else(|_| Err(late("no TLS handshake"))).map_err(SocketFailure::Tls)?);
            (Reading::Tls(stream.clone()), Writing::Tls(stream))
        }
    };
    Ok(Opened { reading, writing, peer })
}

/// Returns the addresses that `host:port` resolves to now.
pub(super) async fn resolve(address: &str, config: &ClientConfig) -> io::Result<Vec<SocketAddr>> {
    let address = config.detours.get(address).map_or(address, String::as_str);
    let place = split_host_port(address).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(tokio::net::lookup_host(place).await.map_err(|error| unknown_host(&error))?.collect())
}

async fn open_socket(address: &str, config: &ClientConfig) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for target in resolve(address, config).await? {
        let socket = if target.is_ipv4() { tokio::net::TcpSocket::new_v4()? } else { tokio::net::TcpSocket::new_v6()? };
        // Setting a size turns off the kernel's autotuning, so this is done only if the user has configured a size.
        if let Some(bytes) = config.send_buffer_bytes {
            socket.set_send_buffer_size(bytes)?;
        }
        if let Some(bytes) = config.receive_buffer_bytes {
            socket.set_recv_buffer_size(bytes)?;
        }
        match socket.connect(target).await {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

impl Reading {
    /// Appends received bytes to the buffer and returns how many there were, or 0 at the end of the stream. Safe to
    /// cancel.
    pub(super) async fn read_buf(&mut self, buffer: &mut BytesMut) -> io::Result<usize> {
        match self {
            Reading::Plain(socket) => socket.read_buf(buffer).await,
            Reading::Tls(stream) => stream.read_buf(buffer).await,
        }
    }
}

impl Writing {
    /// Writes a whole frame. Without TLS, the bytes of batches are not copied.
    pub(super) async fn write_frame(&mut self, frame: &Frame) -> io::Result<()> {
        match self {
            Writing::Plain(socket) => write_plain(socket, frame).await,
            Writing::Tls(stream) => write_tls(stream, frame).await,
        }
    }
}

async fn write_plain(socket: &mut OwnedWriteHalf, frame: &Frame) -> io::Result<()> {
    let (mut part, mut offset) = (0, 0);
    while part < frame.parts.len() {
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let mut count = 0;
        for (i, piece) in frame.parts[part..].iter().take(SLICES_MAX).enumerate() {
            let bytes = memory(piece)?;
            slices[i] = IoSlice::new(&bytes[if i == 0 { offset } else { 0 }..]);
            count += 1;
        }
        let mut written = socket.write_vectored(&slices[..count]).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        while part < frame.parts.len() && written >= frame.parts[part].len() - offset {
            written -= frame.parts[part].len() - offset;
            (part, offset) = (part + 1, 0);
        }
        offset += written;
    }
    Ok(())
}

async fn write_tls(stream: &fullbore_tls::Stream, frame: &Frame) -> io::Result<()> {
    for pieces in frame.parts.chunks(SLICES_MAX) {
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        for (slice, piece) in slices.iter_mut().zip(pieces) {
            *slice = IoSlice::new(memory(piece)?);
        }
        stream.write(&mut slices[..pieces.len()]).await?;
    }
    stream.flush().await
}

fn memory(piece: &Part) -> io::Result<&[u8]> {
    match piece {
        Part::Bytes(bytes) => Ok(bytes),
        Part::File(_) => Err(io::Error::new(io::ErrorKind::InvalidInput, "a client sends no files")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::{TcpListener, TcpSocket};

    #[tokio::test]
    async fn a_socket_has_nagle_off_and_the_systems_buffers_unless_configured() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let target = listener.local_addr().expect("bound");
        let sizes = |socket: TcpStream| {
            let is_prompt = socket.nodelay().expect("a socket");
            let socket = TcpSocket::from_std_stream(socket.into_std().expect("a socket"));
            (is_prompt, socket.send_buffer_size().expect("a socket"), socket.recv_buffer_size().expect("a socket"))
        };
        let of =
            async |config: &ClientConfig| sizes(open_socket(&target.to_string(), config).await.expect("connected"));

        let (_, sent, received) = sizes(TcpStream::connect(target).await.expect("connected"));
        assert_eq!(of(&ClientConfig::default()).await, (true, sent, received));
        let sized =
            ClientConfig { send_buffer_bytes: Some(20_000), receive_buffer_bytes: Some(30_000), ..Default::default() };
        // Linux doubles the requested size, to allow for its own overhead.
        assert_eq!(of(&sized).await, (true, 40_000, 60_000));
    }
}
