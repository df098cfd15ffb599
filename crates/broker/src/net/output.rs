//! Writes frames to a connection. Parts in memory are sent with one vectored write, and ranges of logs with sendfile.
//!
//! Short ranges of logs are copied, and sent in one write with the parts around them. A response from many partitions
//! then costs one system call per 64 KiB rather than one per range. With TLS, logs are read in chunks of limited size,
//! and a frame is sent in TLS records of the largest size.
//!
//! If a frame cannot be written completely, the connection is closed. This happens, for example, if a segment is
//! removed before the client has read it. While a client does not read, a copy of a log is kept for at most
//! [`HOLD_MAX`]. Only with TLS, one chunk is kept until the client reads it. A part in memory is freed as soon as the
//! socket has accepted it.

use super::idleness::Idleness;
use super::stream::ClientStream;
use bytes::Bytes;
use fullbore_host::files::is_removed;
use fullbore_host::unread_responses::ResponseRoom;
use fullbore_log::direct_io::{self, DirectReads};
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

/// Maximum number of slices in one vectored write.
const SLICES_MAX: usize = 64;
/// Maximum number of bytes of logs that are copied for one write. If a frame has at most this many, all of its ranges
/// are copied.
const COPY_MAX: usize = 64 * 1024;
/// Maximum size of a copied range in a frame with more than [`COPY_MAX`] bytes of logs. For a longer range, sendfile is
/// cheaper than the copy.
const RANGE_COPIED_MAX: usize = 8 * 1024;
/// Maximum number of bytes in one sendfile call, so that the thread can serve other connections in between.
const SENDFILE_MAX: usize = 1024 * 1024;
/// How long a chunk of a log stays in memory while its client does not accept the rest of it. The chunk is then freed,
/// and the rest is read again later.
const HOLD_MAX: Duration = Duration::from_millis(100);
/// Maximum number of bytes that are read from a log and encrypted at once.
const ENCRYPT_MAX: usize = 64 * 1024;

/// The counters that are updated while a frame is sent.
pub struct Progress<'a> {
    /// Receives a note each time the client has accepted a part of the frame.
    pub idleness: &'a Idleness,
    /// The frame's share of the budget for unread responses, or `None` if the frame does not count there.
    pub room: Option<&'a ResponseRoom>,
}

impl Progress<'_> {
    fn moved(&self) {
        self.idleness.moved();
    }

    /// Frees the parts that were sent completely, and returns the remaining ones. `sent` counts the sent bytes from the
    /// first part. After the call, it counts them from the first remaining part.
    fn free<'p>(&self, parts: &'p mut [Part], sent: &mut usize) -> &'p mut [Part] {
        let (mut count, mut freed) = (0, 0);
        while let Some(part) = parts.get_mut(count)
            && part.len() <= *sent
        {
            *sent -= part.len();
            freed += part.len();
            *part = Part::Bytes(Bytes::new());
            count += 1;
        }
        if let Some(room) = self.room.filter(|_| freed > 0) {
            room.shrink(freed);
        }
        &mut parts[count..]
    }
}

/// Writes a frame, and frees its parts as they are sent.
///
/// # Errors
/// Returns an error of the connection or of the log file. A part of the frame may already have been sent, so the
/// connection must be closed.
pub async fn write(
    stream: &ClientStream,
    frame: &mut Frame,
    progress: &Progress<'_>,
    cold: &DirectReads,
) -> io::Result<()> {
    match stream {
        ClientStream::Plain(socket) => write_plain(socket, frame, progress, cold).await,
        // Boxed, so that the task of a connection without TLS has no memory for the TLS write.
        ClientStream::Tls(stream) => Box::pin(write_tls(stream, frame, progress, cold)).await,
    }
}

async fn write_plain(
    stream: &TcpStream,
    frame: &mut Frame,
    progress: &Progress<'_>,
    cold: &DirectReads,
) -> io::Result<()> {
    let range_max = range_copied_max(&frame.parts);
    let mut parts = frame.parts.as_mut_slice();
    while !parts.is_empty() {
        let count = run_copied(parts, range_max);
        let run = &parts[..count];
        if !run.iter().any(|part| matches!(part, Part::File(_))) {
            parts = send_first(stream, parts, progress, cold).await?;
            continue;
        }
        // Waits until the socket has space. Otherwise the copy below might be useless.
        stream.writable().await?;
        let mut unsent = match send_copied(stream, run, count < parts.len()) {
            Ok(None) => run.to_vec(),
            Ok(Some(sent)) => {
                progress.moved();
                behind(run, sent)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        };
        // `unsent` has its own references to the bytes. Drops the references of the frame, so that each part is freed
        // as soon as it is sent.
        parts[..count].fill_with(|| Part::Bytes(Bytes::new()));
        if !unsent.is_empty() {
            // Boxed, because otherwise the task of every connection would permanently contain memory for this future.
            Box::pin(send_uncopied(stream, &mut unsent, progress, cold)).await?;
        }
        parts = &mut parts[count..];
    }
    Ok(())
}

/// Sends parts without copying them. This is used if the client does not accept all of them at once, or if a range of a
/// log is not in the page cache.
async fn send_uncopied(
    stream: &TcpStream,
    mut parts: &mut [Part],
    progress: &Progress<'_>,
    cold: &DirectReads,
) -> io::Result<()> {
    while !parts.is_empty() {
        parts = send_first(stream, parts, progress, cold).await?;
    }
    Ok(())
}

/// Sends the first part without a copy if it is a range of a log. Otherwise sends all parts in memory up to the next
/// range. Returns the remaining parts.
async fn send_first<'p>(
    stream: &TcpStream,
    parts: &'p mut [Part],
    progress: &Progress<'_>,
    cold: &DirectReads,
) -> io::Result<&'p mut [Part]> {
    if let Some(Part::File(slice)) = parts.first() {
        send_file(stream, slice, progress, cold).await?;
        return Ok(&mut parts[1..]);
    }
    let run = parts.iter().take_while(|part| matches!(part, Part::Bytes(_))).count();
    let (memory, rest) = parts.split_at_mut(run);
    send_memory(stream, memory, !rest.is_empty(), progress).await?;
    Ok(rest)
}

/// Returns the maximum size of a range that is copied in this frame.
fn range_copied_max(parts: &[Part]) -> usize {
    let in_logs: usize = parts.iter().map(len_in_log).sum();
    if in_logs <= COPY_MAX { COPY_MAX } else { RANGE_COPIED_MAX }
}

fn len_in_log(part: &Part) -> usize {
    if let Part::File(slice) = part { slice.len as usize } else { 0 }
}

/// Returns how many parts the next write contains. None of them is a range above `range_max`, and together they have at
/// most [`COPY_MAX`] bytes of logs.
fn run_copied(parts: &[Part], range_max: usize) -> usize {
    let mut in_logs = 0;
    let is_copied = |part: &&Part| {
        in_logs += len_in_log(part);
        len_in_log(part) <= range_max && in_logs <= COPY_MAX
    };
    parts.iter().take(SLICES_MAX).take_while(is_copied).count()
}

thread_local! {
    /// The buffer into which ranges of logs are copied for one write.
    static COPY: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Sends as much of the parts as the socket accepts at once, and returns the number of bytes sent. Copies the ranges of
/// logs, which have at most [`COPY_MAX`] bytes. Returns `None` if one of them is not in the page cache. With `more`,
/// the kernel does not send a short last packet before the next write.
fn send_copied(stream: &TcpStream, parts: &[Part], more: bool) -> io::Result<Option<usize>> {
    let flags = SendFlags::NOSIGNAL | if more { SendFlags::MORE } else { SendFlags::empty() };
    let send = || {
        COPY.with_borrow_mut(|copy| {
            copy.resize(COPY_MAX, 0);
            if !copy_logs(parts, copy) {
                return Ok(None);
            }
            let (mut storage, mut copied) = ([IoSlice::new(&[]); SLICES_MAX], copy.as_slice());
            for (slice, part) in storage.iter_mut().zip(parts) {
                *slice = IoSlice::new(match part {
                    Part::Bytes(bytes) => bytes,
                    Part::File(file) => copied.split_off(..file.len as usize).unwrap_or_default(),
                });
            }
            let slices = &storage[..parts.len()];
            Ok(Some(sendmsg(stream, slices, &mut SendAncillaryBuffer::default(), flags)?))
        })
    };
    stream.try_io(Interest::WRITABLE, send)
}

/// Copies the ranges of logs one after another. Returns false if one of them is not in the page cache.
fn copy_logs(parts: &[Part], mut copy: &mut [u8]) -> bool {
    parts.iter().all(|part| {
        let Part::File(slice) = part else { return true };
        let Some(room) = copy.split_off_mut(..slice.len as usize) else { return false };
        let (position, len) = (slice.position, room.len());
        let mut read = || preadv2(&slice.file, &mut [IoSliceMut::new(room)], position, ReadWriteFlags::NOWAIT);
        // First checks that the range is in the page cache, because a failed read would start the kernel's read-ahead.
        // If the range cannot be read without waiting, `send_uncopied` sends it.
        len == 0 || direct_io::is_resident(&slice.file, position, len) && read() == Ok(len)
    })
}

/// Returns the parts that are left after the first `sent` bytes.
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

/// Writes parts that are all in memory, and frees them as they are sent. With `more`, the kernel does not send a short
/// last packet before the next write.
async fn send_memory(
    stream: &TcpStream,
    mut parts: &mut [Part],
    more: bool,
    progress: &Progress<'_>,
) -> io::Result<()> {
    let flags = SendFlags::NOSIGNAL | if more { SendFlags::MORE } else { SendFlags::empty() };
    let mut sent = 0;
    while !parts.is_empty() {
        match try_send(stream, parts, sent, flags) {
            Ok(count) => sent += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                stream.writable().await?;
                continue;
            }
            Err(error) => return Err(error),
        }
        progress.moved();
        parts = progress.free(parts, &mut sent);
    }
    Ok(())
}

/// Sends once. This is a separate function, so that the array of slices does not become part of the caller's future,
/// which exists while the client does not read.
fn try_send(stream: &TcpStream, parts: &[Part], sent: usize, flags: SendFlags) -> io::Result<usize> {
    let mut storage = [IoSlice::new(&[]); SLICES_MAX];
    let slices = unsent(parts, sent, usize::MAX, &mut storage);
    stream.try_io(Interest::WRITABLE, || Ok(sendmsg(stream, slices, &mut SendAncillaryBuffer::default(), flags)?))
}

/// Returns slices of the parts in memory, without their first `sent` bytes. Stops at `max` bytes, or when `storage` is
/// full.
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

/// Encrypts and writes one part after another. Returns once the socket has accepted all of them.
async fn write_tls(
    stream: &fullbore_tls::Stream,
    frame: &mut Frame,
    progress: &Progress<'_>,
    cold: &DirectReads,
) -> io::Result<()> {
    let mut parts = frame.parts.as_mut_slice();
    while !parts.is_empty() {
        if let Some(Part::File(slice)) = parts.first() {
            encrypt_file(stream, slice, progress, cold).await?;
            parts = &mut parts[1..];
            continue;
        }
        let run = parts.iter().take_while(|part| matches!(part, Part::Bytes(_))).count();
        let (memory, rest) = parts.split_at_mut(run);
        encrypt_memory(stream, memory, progress).await?;
        parts = rest;
    }
    stream.flush().await?;
    progress.moved();
    Ok(())
}

async fn encrypt_memory(
    stream: &fullbore_tls::Stream,
    mut parts: &mut [Part],
    progress: &Progress<'_>,
) -> io::Result<()> {
    let mut sent = 0;
    while !parts.is_empty() {
        {
            let mut storage = [IoSlice::new(&[]); SLICES_MAX];
            let slices = unsent(parts, sent, ENCRYPT_MAX, &mut storage);
            sent += slices.iter().map(|slice| slice.len()).sum::<usize>();
            stream.write(slices).await?;
        }
        progress.moved();
        parts = progress.free(parts, &mut sent);
    }
    Ok(())
}

async fn encrypt_file(
    stream: &fullbore_tls::Stream,
    slice: &FileSlice,
    progress: &Progress<'_>,
    cold: &DirectReads,
) -> io::Result<()> {
    let mut left = slice.len as usize;
    let mut position = slice.position;
    let mut bytes = vec![0; left.min(ENCRYPT_MAX)];
    while left > 0 {
        let room = &mut bytes[..left.min(ENCRYPT_MAX)];
        let len = match cold.read(&slice.file, position, room.len(), slice.settled).await? {
            // The bytes are copied, so that the chunk can be freed even if the client is slow.
            Some(part) => {
                room[..part.len()].copy_from_slice(&part);
                part.len()
            }
            None => match slice.file.read_at(room, position) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    cold.failed().note(&slice.file, position, room.len(), &error, false);
                    return Err(error);
                }
                Ok(len) => len,
            },
        };
        if len == 0 {
            return Err(too_short(slice));
        }
        stream.write(&mut [IoSlice::new(&room[..len])]).await?;
        progress.moved();
        left -= len;
        position += len as u64;
    }
    Ok(())
}

fn too_short(slice: &FileSlice) -> io::Error {
    let why = if is_removed(&slice.file) {
        "the segment was deleted before the client read the rest of its response"
    } else {
        "the log file is shorter than its index"
    };
    io::Error::new(io::ErrorKind::UnexpectedEof, why)
}

async fn send_file(
    stream: &TcpStream,
    slice: &FileSlice,
    progress: &Progress<'_>,
    cold: &DirectReads,
) -> io::Result<()> {
    let mut position = slice.position;
    let end = slice.position + u64::from(slice.len);
    while position < end {
        let count = usize::try_from(end - position).unwrap_or(SENDFILE_MAX).min(SENDFILE_MAX);
        // Waits until the socket has space, so that nothing is read from the log for a client that does not read.
        stream.writable().await?;
        if let Some(piece) = cold.read(&slice.file, position, count, slice.settled).await? {
            if piece.is_empty() {
                return Err(too_short(slice));
            }
            position += send_piece(stream, &piece).await? as u64;
            progress.moved();
            continue;
        }
        let send = || Ok(rustix::fs::sendfile(stream, &slice.file, Some(&mut position), count)?);
        match stream.try_io(Interest::WRITABLE, send) {
            Ok(0) => return Err(too_short(slice)),
            Ok(_) => progress.moved(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                cold.failed().note(&slice.file, position, count, &error, false);
                return Err(error);
            }
        }
    }
    Ok(())
}

/// Sends as much of the chunk as the client accepts within [`HOLD_MAX`]. Returns how many bytes were sent.
async fn send_piece(stream: &TcpStream, piece: &[u8]) -> io::Result<usize> {
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
    use fullbore_host::unread_responses::{Connection, UnreadResponses};
    use std::io::Write;
    use std::sync::Arc;
    use tokio::io::AsyncReadExt;

    /// Returns a log of `len` bytes, its contents, and both ends of a connection. Neighbouring bytes of the contents
    /// differ.
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
    async fn frame_with_any_ranges_of_a_log_is_written_unchanged() {
        let (file, bytes, ours, mut peer) = log_and_sockets(COPY_MAX + 4_000).await;
        let (idleness, cold) = (Idleness::default(), DirectReads::default());
        let progress = Progress { idleness: &idleness, room: None };
        let many: Vec<(usize, usize)> = (0..SLICES_MAX).map(|at| (at * 3, at)).collect();
        let cases: [&[(usize, usize)]; 6] =
            [&[], &[(7, 0)], &[(7, 1)], &[(1_000, COPY_MAX)], &[(0, COPY_MAX), (5, 1)], &[(9, 100), (0, 3), (500, 77)]];
        let short: Vec<(usize, usize)> = (0..200).map(|at| (at * 7, RANGE_COPIED_MAX - at)).collect();
        let mixed = [(3, RANGE_COPIED_MAX), (0, RANGE_COPIED_MAX + 1), (5, 10), (0, COPY_MAX), (9, 0), (8, 1)];
        for ranges in cases.into_iter().chain([&many[..20], &many, &short, &mixed]) {
            write_plain(&ours, &mut frame(&file, ranges), &progress, &cold).await.expect("written");
            let expected = flat(&bytes, ranges);
            let mut read = vec![0; expected.len()];
            peer.read_exact(&mut read).await.expect("it comes");
            assert_eq!(read, expected, "{ranges:?}");
        }
    }

    /// The send buffer is small and accepts only a part of each frame.
    #[tokio::test]
    async fn slow_client_gets_the_whole_frame() {
        let (file, bytes, ours, mut peer) = log_and_sockets(COPY_MAX).await;
        rustix::net::sockopt::set_socket_send_buffer_size(&ours, 16 * 1024).expect("set");
        let (idleness, cold) = (Idleness::default(), DirectReads::default());
        let progress = Progress { idleness: &idleness, room: None };
        let ranges: Vec<_> =
            [(0, COPY_MAX / 2), (1, COPY_MAX / 2)].into_iter().chain((0..9).map(|at| (at, 10_000))).collect();
        let copied = &ranges[..2];
        let expected = [flat(&bytes, copied), flat(&bytes, &ranges)].concat().repeat(100);
        let frames = [frame(&file, copied), frame(&file, &ranges)];
        let writes = async {
            for frame in frames.iter().cycle().take(200) {
                write_plain(&ours, &mut frame.clone(), &progress, &cold).await.expect("written");
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
    fn short_ranges_share_a_write_and_a_long_one_has_its_own() {
        let file = Arc::new(tempfile::tempfile().expect("a file"));
        let runs = |ranges: &[(usize, usize)]| {
            let parts = frame(&file, ranges).parts;
            let (range_max, mut left, mut runs) = (range_copied_max(&parts), parts.as_slice(), Vec::new());
            while !left.is_empty() {
                let run = run_copied(left, range_max);
                runs.push(run);
                left = &left[run.max(1)..];
            }
            runs
        };
        assert_eq!(runs(&[(0, COPY_MAX)]), [3], "a frame with little of a log leaves whole");
        assert_eq!(runs(&[(0, RANGE_COPIED_MAX); 9]), [17, 2]);
        assert_eq!(runs(&[(0, 1000); 100]), [SLICES_MAX, SLICES_MAX, SLICES_MAX, 9]);
        assert_eq!(runs(&[(0, 5), (0, COPY_MAX), (0, 5)]), [3, 0, 3]);
    }

    #[test]
    fn parts_left_begin_after_the_bytes_sent() {
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

    #[test]
    fn sent_part_is_freed_and_needs_no_room() {
        let (all, idleness) = (Arc::new(UnreadResponses::default()), Idleness::default());
        let room = all.room();
        room.hold(6 << 20, Box::new(Silent));
        let progress = Progress { idleness: &idleness, room: Some(&room) };
        let part = |size: usize| Part::Bytes(Bytes::from(vec![0; size]));
        let mut parts = [part(1 << 20), part(2 << 20), part(3 << 20)];
        let mut sent = 1 << 19;
        assert_eq!((progress.free(&mut parts, &mut sent).len(), all.bytes()), (3, 6 << 20), "half of the first part");
        sent = (3 << 20) + 5;
        assert_eq!((progress.free(&mut parts, &mut sent).len(), all.bytes()), (1, 3 << 20));
        assert_eq!((sent, parts.each_ref().map(Part::len)), (5, [0, 0, 3 << 20]));
    }

    struct Silent;

    impl Connection for Silent {
        fn bytes_taken(&self) -> Option<u64> {
            None
        }

        fn evict(&self) {}
    }
}
