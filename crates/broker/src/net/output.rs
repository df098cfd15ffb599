//! Frames into a socket: one vectored write for what is in memory, sendfile for what is in a log.
//!
//! Invariant: a frame is written whole or the connection is closed.

use fullbore_wire::{FileSlice, Frame, Part};
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use std::io::{self, IoSlice};
use tokio::io::Interest;
use tokio::net::TcpStream;

/// Slices of one vectored write.
const SLICES_MAX: usize = 64;
/// Bytes of one sendfile call: short enough that other connections of the thread get their turn.
const SENDFILE_MAX: usize = 1024 * 1024;

/// Writes the frame.
///
/// # Errors
/// Of the socket or the log file; part of the frame may be out, so the connection must be closed.
pub async fn write(stream: &TcpStream, frame: &Frame) -> io::Result<()> {
    let mut parts = frame.parts.as_slice();
    while let [first, rest @ ..] = parts {
        match first {
            Part::File(slice) => {
                send_file(stream, slice).await?;
                parts = rest;
            }
            Part::Bytes(_) => {
                let run = parts.iter().take_while(|part| matches!(part, Part::Bytes(_))).count();
                let (memory, rest) = parts.split_at(run);
                send_memory(stream, memory, !rest.is_empty()).await?;
                parts = rest;
            }
        }
    }
    Ok(())
}

/// Writes parts that are all in memory. With `more` to come the kernel holds a last short packet back for it.
async fn send_memory(stream: &TcpStream, parts: &[Part], more: bool) -> io::Result<()> {
    let flags = SendFlags::NOSIGNAL | if more { SendFlags::MORE } else { SendFlags::empty() };
    let total: usize = parts.iter().map(Part::len).sum();
    let mut sent = 0;
    while sent < total {
        let mut storage = [IoSlice::new(&[]); SLICES_MAX];
        let slices = unsent(parts, sent, &mut storage);
        sent += stream
            .async_io(Interest::WRITABLE, || Ok(sendmsg(stream, slices, &mut SendAncillaryBuffer::default(), flags)?))
            .await?;
    }
    Ok(())
}

/// What is left of `parts` after `sent` bytes, as far as `storage` goes.
fn unsent<'s, 'p>(parts: &'p [Part], mut sent: usize, storage: &'s mut [IoSlice<'p>; SLICES_MAX]) -> &'s [IoSlice<'p>] {
    let mut used = 0;
    for part in parts {
        let Part::Bytes(bytes) = part else { continue };
        if sent >= bytes.len() {
            sent -= bytes.len();
            continue;
        }
        storage[used] = IoSlice::new(&bytes[sent..]);
        sent = 0;
        used += 1;
        if used == SLICES_MAX {
            break;
        }
    }
    &storage[..used]
}

async fn send_file(stream: &TcpStream, slice: &FileSlice) -> io::Result<()> {
    let mut position = slice.position;
    let end = slice.position + u64::from(slice.len);
    while position < end {
        let count = usize::try_from(end - position).unwrap_or(SENDFILE_MAX).min(SENDFILE_MAX);
        let sent = stream
            .async_io(Interest::WRITABLE, || Ok(rustix::fs::sendfile(stream, &slice.file, Some(&mut position), count)?))
            .await?;
        if sent == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the log file is shorter than its index says"));
        }
    }
    Ok(())
}
