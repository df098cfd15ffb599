//! Frames into a connection: one vectored write for what is in memory, sendfile for what is in a log. Little of a log is copied into the
//! write of what is around it, and so reaches the other side as one. With TLS a frame becomes
//! records as large as they may be, which leave together; what is in a log is read in bounded pieces.
//!
//! Invariants: a frame is written whole or the connection is closed; no copy is kept for a client that does not read.

use super::idleness::Idleness;
use super::stream::ClientStream;
use crate::cold::{self, Cold};
use fullbore_wire::{FileSlice, Frame, Part};
use rustix::io::{ReadWriteFlags, preadv2};
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use std::cell::RefCell;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::unix::fs::FileExt;
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

/// Slices of one vectored write.
const SLICES_MAX: usize = 64;
/// Bytes of logs in a frame that are copied: with more, sendfile costs less than the copy.
const COPY_MAX: usize = 64 * 1024;
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
pub async fn write(stream: &ClientStream, frame: &Frame, idleness: &Idleness, cold: &Cold) -> io::Result<()> {
    match stream {
        ClientStream::Plain(socket) => write_plain(socket, frame, idleness, cold).await,
        // Boxed, so that it takes no room in a plain connection's task.
        ClientStream::Tls(stream) => Box::pin(write_tls(stream, frame, idleness, cold)).await,
    }
}

async fn write_plain(stream: &TcpStream, frame: &Frame, idleness: &Idleness, cold: &Cold) -> io::Result<()> {
    let sent = send_copied(stream, &frame.parts)?;
    let unsent;
    let mut parts = frame.parts.as_slice();
    if sent > 0 {
        idleness.moved();
        unsent = behind(parts, sent);
        parts = &unsent;
    }
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

thread_local! {
    /// Where little of a log is copied on its way out.
    static COPY: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Sends a frame with little of a log in it, as much as the socket takes at once; how much that was, which is none if it takes nothing,
/// there is no log in it or more than a little, or what there is of it is not in memory.
fn send_copied(stream: &TcpStream, parts: &[Part]) -> io::Result<usize> {
    let in_logs: usize =
        parts.iter().map(|part| if let Part::File(slice) = part { slice.len as usize } else { 0 }).sum();
    if in_logs == 0 || in_logs > COPY_MAX || parts.len() > SLICES_MAX {
        return Ok(0);
    }
    let send = || {
        COPY.with_borrow_mut(|copy| {
            copy.resize(COPY_MAX, 0);
            if !copy_logs(parts, copy) {
                return Ok(0);
            }
            let (mut storage, mut copied) = ([IoSlice::new(&[]); SLICES_MAX], copy.as_slice());
            for (slice, part) in storage.iter_mut().zip(parts) {
                *slice = IoSlice::new(match part {
                    Part::Bytes(bytes) => bytes,
                    Part::File(file) => copied.split_off(..file.len as usize).unwrap_or_default(),
                });
            }
            let slices = &storage[..parts.len()];
            Ok(sendmsg(stream, slices, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL)?)
        })
    };
    match stream.try_io(Interest::WRITABLE, send) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        sent => sent,
    }
}

/// Copies what is in logs, one part after the other, if all of it is in memory.
fn copy_logs(parts: &[Part], mut copy: &mut [u8]) -> bool {
    parts.iter().all(|part| {
        let Part::File(slice) = part else { return true };
        let Some(room) = copy.split_off_mut(..slice.len as usize) else { return false };
        let (position, len) = (slice.position, room.len());
        let mut read = || preadv2(&slice.file, &mut [IoSliceMut::new(room)], position, ReadWriteFlags::NOWAIT);
        // To try would begin to read ahead. What a file cannot do without waiting is done in the other way.
        len == 0 || cold::is_resident(&slice.file, position, len) && read() == Ok(len)
    })
}

/// What is left of parts of which so many bytes are sent.
fn behind(parts: &[Part], mut sent: usize) -> Vec<Part> {
    let mut left = Vec::new();
    for part in parts {
        let skipped = sent.min(part.len());
        sent -= skipped;
        match part {
            _ if skipped == part.len() => {}
            Part::Bytes(bytes) => left.push(Part::Bytes(bytes.slice(skipped..))),
            Part::File(FileSlice { file, position, len, settled }) => left.push(Part::File(FileSlice {
                file: file.clone(),
                position: position + skipped as u64,
                len: len - u32::try_from(skipped).unwrap_or(*len),
                settled: *settled,
            })),
        }
    }
    left
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

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use std::io::Write;
    use std::sync::Arc;
    use tokio::io::AsyncReadExt;

    /// A log of so many bytes, none of which is like its neighbours, and a socket with its peer.
    async fn log_and_sockets(len: usize) -> (Arc<std::fs::File>, Vec<u8>, TcpStream, TcpStream) {
        let bytes: Vec<u8> = (0..len).map(|at| (at / 251 + at) as u8).collect();
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(&bytes).expect("written");
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let ours = TcpStream::connect(listener.local_addr().expect("bound")).await.expect("connected");
        (Arc::new(file), bytes, ours, listener.accept().await.expect("accepted").0)
    }

    fn frame(file: &Arc<std::fs::File>, ranges: &[(usize, usize)]) -> Frame {
        let mut parts = vec![Part::Bytes(Bytes::from_static(b"header"))];
        for (position, len) in ranges {
            let (position, len) = (*position as u64, *len as u32);
            parts.push(Part::File(FileSlice { file: file.clone(), position, len, settled: position + u64::from(len) }));
            parts.push(Part::Bytes(Bytes::from_static(b"between")));
        }
        Frame { parts }
    }

    fn flat(bytes: &[u8], ranges: &[(usize, usize)]) -> Vec<u8> {
        let parts = ranges.iter().map(|(position, len)| [&bytes[*position..position + len], b"between"].concat());
        [b"header".to_vec(), parts.collect::<Vec<_>>().concat()].concat()
    }

    #[tokio::test]
    async fn what_is_written_is_the_frame_however_much_of_a_log_it_has() {
        let (file, bytes, ours, mut peer) = log_and_sockets(COPY_MAX + 4_000).await;
        let (idleness, cold) = (Idleness::default(), Cold::default());
        let many: Vec<(usize, usize)> = (0..SLICES_MAX).map(|at| (at * 3, at)).collect();
        let cases: [&[(usize, usize)]; 6] =
            [&[], &[(7, 0)], &[(7, 1)], &[(1_000, COPY_MAX)], &[(0, COPY_MAX), (5, 1)], &[(9, 100), (0, 3), (500, 77)]];
        for ranges in cases.into_iter().chain([&many[..20], &many]) {
            write_plain(&ours, &frame(&file, ranges), &idleness, &cold).await.expect("written");
            let expected = flat(&bytes, ranges);
            let mut read = vec![0; expected.len()];
            peer.read_exact(&mut read).await.expect("it comes");
            assert_eq!(read, expected, "{ranges:?}");
        }
    }

    /// Its socket takes part of a frame.
    #[tokio::test]
    async fn a_client_that_reads_late_gets_all_of_it() {
        let (file, bytes, ours, mut peer) = log_and_sockets(COPY_MAX).await;
        rustix::net::sockopt::set_socket_send_buffer_size(&ours, 16 * 1024).expect("set");
        let (idleness, cold) = (Idleness::default(), Cold::default());
        let ranges = [(0, COPY_MAX / 2), (1, COPY_MAX / 2)];
        let expected = flat(&bytes, &ranges).repeat(200);
        let frames = frame(&file, &ranges);
        let writes = async {
            for _ in 0..200 {
                write_plain(&ours, &frames, &idleness, &cold).await.expect("written");
            }
        };
        let reads = async {
            tokio::task::yield_now().await;
            let mut read = vec![0; expected.len()];
            peer.read_exact(&mut read).await.expect("it comes");
            read
        };
        let ((), read) = tokio::join!(writes, reads);
        assert!(read == expected);
    }

    #[test]
    fn what_is_left_begins_behind_what_was_sent() {
        let file = Arc::new(tempfile::tempfile().expect("a file"));
        let frame = frame(&file, &[(10, 100)]);
        let left = |sent| {
            let shown = |part: &Part| match part {
                Part::Bytes(bytes) => (String::from_utf8_lossy(bytes).into_owned(), 0, bytes.len()),
                Part::File(slice) => (String::new(), slice.position, slice.len as usize),
            };
            behind(&frame.parts, sent).iter().map(shown).collect::<Vec<_>>()
        };
        let between = ("between".to_owned(), 0, 7);
        assert_eq!(left(2), [("ader".to_owned(), 0, 4), (String::new(), 10, 100), between.clone()]);
        assert_eq!(left(6), [(String::new(), 10, 100), between.clone()]);
        assert_eq!(left(105), [(String::new(), 109, 1), between.clone()]);
        assert_eq!(left(106), [between]);
        assert_eq!(left(112), [("n".to_owned(), 0, 1)]);
        assert_eq!(left(113), []);
    }
}
