//! Frames into a connection: one vectored write for what is in memory, sendfile for what is in a log. With TLS a frame
//! becomes records as large as they may be, which leave together; what is in a log is read in bounded pieces.
//!
//! Invariant: a frame is written whole or the connection is closed.

use super::idleness::Idleness;
use super::stream::Stream;
use crate::cold::Cold;
use fullbore_wire::{FileSlice, Frame, Part};
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

/// Slices of one vectored write.
const SLICES_MAX: usize = 64;
/// Bytes of one sendfile call: short enough that other connections of the thread get their turn.
const SENDFILE_MAX: usize = 1024 * 1024;
/// A piece that was read for a client waits for it no longer; the rest is read again.
const HOLD_MAX: Duration = Duration::from_millis(100);
/// Bytes that are encrypted at once, and of a log are read at once for it.
const ENCRYPT_MAX: usize = 64 * 1024;

/// Writes the frame, and tells whenever the client has taken some of it.
///
/// # Errors
/// What the connection or the log file says; part of the frame may be out, so the connection must be closed.
pub async fn write(stream: &Stream, frame: &Frame, idleness: &Idleness, cold: &Cold) -> io::Result<()> {
    match stream {
        Stream::Plain(socket) => write_plain(socket, frame, idleness, cold).await,
        // Boxed, so that it takes no room in a plain connection's task.
        Stream::Tls(stream) => Box::pin(write_tls(stream, frame, idleness, cold)).await,
    }
}

async fn write_plain(stream: &TcpStream, frame: &Frame, idleness: &Idleness, cold: &Cold) -> io::Result<()> {
    let mut parts = frame.parts.as_slice();
    while let [first, rest @ ..] = parts {
        match first {
            Part::File(slice) => {
                send_file(stream, slice, idleness, cold).await?;
                parts = rest;
            }
            Part::Bytes(_) => {
                let run = parts.iter().take_while(|part| matches!(part, Part::Bytes(_))).count();
                let (memory, rest) = parts.split_at(run);
                send_memory(stream, memory, !rest.is_empty(), idleness).await?;
                parts = rest;
            }
        }
    }
    Ok(())
}

/// Writes parts that are all in memory. With `more` to come the kernel holds a last short packet back for it.
async fn send_memory(stream: &TcpStream, parts: &[Part], more: bool, idleness: &Idleness) -> io::Result<()> {
    let flags = SendFlags::NOSIGNAL | if more { SendFlags::MORE } else { SendFlags::empty() };
    let total: usize = parts.iter().map(Part::len).sum();
    let mut sent = 0;
    while sent < total {
        match try_send(stream, parts, sent, flags) {
            Ok(count) => sent += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                stream.writable().await?;
                continue;
            }
            Err(error) => return Err(error),
        }
        idleness.moved();
    }
    Ok(())
}

/// Not a part of the future above, which would hold the slices for as long as the client does not read.
fn try_send(stream: &TcpStream, parts: &[Part], sent: usize, flags: SendFlags) -> io::Result<usize> {
    let mut storage = [IoSlice::new(&[]); SLICES_MAX];
    let slices = unsent(parts, sent, usize::MAX, &mut storage);
    stream.try_io(Interest::WRITABLE, || Ok(sendmsg(stream, slices, &mut SendAncillaryBuffer::default(), flags)?))
}

/// What is left of `parts` after `sent` bytes, as far as `storage` and `max` bytes go.
fn unsent<'s, 'p>(
    parts: &'p [Part],
    mut sent: usize,
    mut max: usize,
    storage: &'s mut [IoSlice<'p>; SLICES_MAX],
) -> &'s mut [IoSlice<'p>] {
    let mut used = 0;
    for part in parts {
        let Part::Bytes(bytes) = part else { continue };
        if sent >= bytes.len() {
            sent -= bytes.len();
            continue;
        }
        let left = &bytes[sent..];
        storage[used] = IoSlice::new(&left[..left.len().min(max)]);
        max -= storage[used].len();
        sent = 0;
        used += 1;
        if used == SLICES_MAX || max == 0 {
            break;
        }
    }
    &mut storage[..used]
}

/// Nothing leaves before all of it is encrypted, or as much as the session holds.
async fn write_tls(stream: &fullbore_tls::Stream, frame: &Frame, idleness: &Idleness, cold: &Cold) -> io::Result<()> {
    let mut parts = frame.parts.as_slice();
    while let [first, rest @ ..] = parts {
        if let Part::File(slice) = first {
            encrypt_file(stream, slice, idleness, cold).await?;
            parts = rest;
            continue;
        }
        let run = parts.iter().take_while(|part| matches!(part, Part::Bytes(_))).count();
        let (memory, rest) = parts.split_at(run);
        encrypt_memory(stream, memory, idleness).await?;
        parts = rest;
    }
    stream.flush().await?;
    idleness.moved();
    Ok(())
}

async fn encrypt_memory(stream: &fullbore_tls::Stream, parts: &[Part], idleness: &Idleness) -> io::Result<()> {
    let total: usize = parts.iter().map(Part::len).sum();
    let mut sent = 0;
    while sent < total {
        let mut storage = [IoSlice::new(&[]); SLICES_MAX];
        let slices = unsent(parts, sent, ENCRYPT_MAX, &mut storage);
        sent += slices.iter().map(|slice| slice.len()).sum::<usize>();
        stream.write(slices).await?;
        idleness.moved();
    }
    Ok(())
}

async fn encrypt_file(
    stream: &fullbore_tls::Stream,
    slice: &FileSlice,
    idleness: &Idleness,
    cold: &Cold,
) -> io::Result<()> {
    let mut left = slice.len as usize;
    let mut position = slice.position;
    let mut bytes = vec![0; left.min(ENCRYPT_MAX)];
    while left > 0 {
        let room = &mut bytes[..left.min(ENCRYPT_MAX)];
        let len = match cold.read(&slice.file, position, room.len(), slice.settled).await? {
            // Copied, since a client may let it wait.
            Some(part) => {
                room[..part.len()].copy_from_slice(&part);
                part.len()
            }
            None => match slice.file.read_at(room, position) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read?,
            },
        };
        if len == 0 {
            return Err(too_short());
        }
        stream.write(&mut [IoSlice::new(&room[..len])]).await?;
        idleness.moved();
        left -= len;
        position += len as u64;
    }
    Ok(())
}

fn too_short() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the log file is shorter than its index says")
}

async fn send_file(stream: &TcpStream, slice: &FileSlice, idleness: &Idleness, cold: &Cold) -> io::Result<()> {
    let mut position = slice.position;
    let end = slice.position + u64::from(slice.len);
    while position < end {
        let count = usize::try_from(end - position).unwrap_or(SENDFILE_MAX).min(SENDFILE_MAX);
        // First room in the socket, then the bytes: a client that does not read would else have them brought in vain.
        stream.writable().await?;
        if let Some(piece) = cold.read(&slice.file, position, count, slice.settled).await? {
            position += send_piece(stream, &piece).await? as u64;
            idleness.moved();
            continue;
        }
        let send = || Ok(rustix::fs::sendfile(stream, &slice.file, Some(&mut position), count)?);
        match stream.try_io(Interest::WRITABLE, send) {
            Ok(0) => return Err(too_short()),
            Ok(_) => idleness.moved(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Sends as much of the piece as the client takes before others need the memory; how much that was.
async fn send_piece(stream: &TcpStream, piece: &[u8]) -> io::Result<usize> {
    if piece.is_empty() {
        return Err(too_short());
    }
    let held_until = Instant::now() + HOLD_MAX;
    let mut sent = 0;
    while sent < piece.len() {
        match stream.try_io(Interest::WRITABLE, || Ok(rustix::net::send(stream, &piece[sent..], SendFlags::NOSIGNAL)?))
        {
            Ok(count) => sent += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                match timeout_at(held_until, stream.writable()).await {
                    Ok(writable) => writable?,
                    Err(_) => break,
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(sent)
}
