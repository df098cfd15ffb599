//! Ranges of a log that are not in memory: read by threads made for waiting, around the page cache, into buffers that are
//! used again.
//!
//! No thread that serves connections waits for a disk, and a consumer that is far behind neither pushes out of memory what
//! others are about to read nor costs fresh pages, of which every first touch is a fault (on a virtual machine one of the
//! host, too). Not a cache, and no promise: the kernel may take a page back after it was looked at, and then sendfile waits.
//! Invariant: at most [`PIECES_MAX`] pieces are read or held at one time; whoever comes then waits for one.

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::ops::{Deref, Range};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Bytes of a piece, at most: a disk is slower by half in pieces of a quarter of it.
const PIECE_MAX: usize = 1024 * 1024;
/// Pieces in memory. A disk serves no more at once; what waits longer than this is behind others that wait for it.
const PIECES_MAX: usize = 16;
/// Buffers kept for the next piece.
const KEPT_MAX: usize = 4;
/// Where in a file and in memory direct reads begin and end: what disks and file systems ask for at most.
const ALIGNMENT: usize = 4096;

static PIECES: Semaphore = Semaphore::const_new(PIECES_MAX);
static KEPT: Mutex<Vec<Buffer>> = Mutex::new(Vec::new());

/// Bytes of a file, in memory of its own.
pub struct Piece {
    buffer: Option<Buffer>,
    filled: Range<usize>,
    _place: SemaphorePermit<'static>,
}

impl Deref for Piece {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.buffer.as_ref().map_or(&[], |buffer| &buffer.bytes()[self.filled.clone()])
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let mut kept = KEPT.lock();
        if kept.len() < KEPT_MAX {
            kept.extend(self.buffer.take());
        }
    }
}

/// Up to `len` bytes of the file, at least one and at most [`PIECE_MAX`], if they are not in memory; fewer at the file's
/// end. `None` when they are, which costs one short system call.
///
/// # Errors
/// Of the file.
pub async fn read(file: &Arc<File>, position: u64, len: usize) -> io::Result<Option<Piece>> {
    let len = len.min(PIECE_MAX);
    if is_resident(file, position, len) {
        return Ok(None);
    }
    let place = PIECES.acquire().await.expect("the semaphore is never closed");
    let file = Arc::clone(file);
    // Place and buffer go along: the thread waits on when the connection is gone.
    let read = tokio::task::spawn_blocking(move || {
        let mut buffer = KEPT.lock().pop().unwrap_or_else(Buffer::new);
        let filled = buffer.fill(&file, position, len)?;
        Ok(Piece { buffer: Some(buffer), filled, _place: place })
    });
    read.await.map_err(io::Error::other)?.map(Some)
}

/// Room for a piece and what is around it to the next boundaries.
struct Buffer {
    memory: Vec<u8>,
    /// Where in `memory` a boundary is.
    aligned: usize,
}

impl Buffer {
    fn new() -> Self {
        let memory = vec![0; PIECE_MAX + 3 * ALIGNMENT];
        let aligned = memory.as_ptr().align_offset(ALIGNMENT);
        Buffer { memory, aligned }
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[self.aligned..]
    }

    /// Where the bytes from `position` on are then: `len` of them, or as many as the file has.
    fn fill(&mut self, file: &File, position: u64, len: usize) -> io::Result<Range<usize>> {
        let before = (position % ALIGNMENT as u64) as usize;
        let wanted = (before + len).next_multiple_of(ALIGNMENT);
        let room = &mut self.memory[self.aligned..][..wanted];
        let from = position - before as u64;
        let read = match read_around(file, from, room) {
            // Not every file system has it.
            Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOENT) => file.read_at(room, from)?,
            read => read?,
        };
        Ok(before..read.clamp(before, before + len))
    }
}

/// Reads without the page cache; what waits there to be written is written first.
fn read_around(file: &File, position: u64, room: &mut [u8]) -> Result<usize, Errno> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let direct = rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty())?;
    loop {
        match rustix::io::pread(&direct, &mut *room, position) {
            Err(Errno::INTR) => {}
            read => return read,
        }
    }
}

/// Whether the range can be read without a disk. Yes, where the system does not tell: then sendfile waits, as it would.
fn is_resident(file: &File, position: u64, len: usize) -> bool {
    match pages_in_memory(file, position, len as u64) {
        Ok(pages) => pages >= pages_of(position, len as u64),
        Err(_) => is_byte_resident(file, position + len as u64 - 1),
    }
}

/// Of a system without cachestat(2). To look begins to read ahead there.
fn is_byte_resident(file: &File, position: u64) -> bool {
    let mut byte = [0];
    let read = preadv2(file, &mut [IoSliceMut::new(&mut byte)], position, ReadWriteFlags::NOWAIT);
    read != Err(Errno::AGAIN)
}

/// Pages that the range touches.
fn pages_of(position: u64, len: u64) -> u64 {
    let page = rustix::param::page_size() as u64;
    (position + len).div_ceil(page) - position / page
}

/// Pages of the range in the page cache: cachestat(2), of Linux 6.5, which looks and does nothing else.
fn pages_in_memory(file: &File, position: u64, len: u64) -> io::Result<u64> {
    /// The number of the call on every architecture Rust and Linux share.
    const CACHESTAT: libc::c_long = 451;
    let range = [position, len];
    // struct cachestat: pages cached, dirty, in writeback, evicted, recently evicted.
    let mut found = [0_u64; 5];
    // SAFETY: the call reads a struct of two and writes one of five 64-bit numbers; both live until it returns.
    let returned = unsafe { libc::syscall(CACHESTAT, file.as_raw_fd(), range.as_ptr(), found.as_mut_ptr(), 0) };
    if returned == 0 { Ok(found[0]) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Advice, fadvise};

    const LEN: usize = (3 << 20) + 1234;

    fn written() -> (tempfile::TempDir, Arc<File>, Vec<u8>) {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).expect("temporary folder");
        let path = folder.path().join("log");
        let bytes: Vec<u8> = (0..LEN as u32).map(|at| at.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
        std::fs::write(&path, &bytes).expect("written");
        let file = Arc::new(File::open(&path).expect("opened"));
        file.sync_all().expect("on disk");
        (folder, file, bytes)
    }

    #[tokio::test]
    async fn what_is_in_memory_is_left_to_sendfile_and_what_is_not_comes_as_it_is_in_the_file() {
        let (_folder, file, bytes) = written();
        assert!(read(&file, 0, LEN).await.expect("read").is_none(), "just written");
        fadvise(&*file, 0, None, Advice::DontNeed).expect("advice is taken");
        if is_resident(&file, 0, LEN) {
            eprintln!("files here are always in memory: nothing is shown");
            return;
        }
        for (position, len) in [(0, 1), (1, 4095), (4095, 2), (70_000, 300_000), (1 << 20, PIECE_MAX), (5, PIECE_MAX)] {
            let piece = read(&file, position as u64, len).await.expect("read").expect("not in memory");
            assert!(*piece == bytes[position..position + len], "{len} from {position}");
        }
        let piece = read(&file, 1 << 20, LEN).await.expect("read").expect("not in memory");
        assert!(*piece == bytes[1 << 20..2 << 20], "a piece at most");
        let piece = read(&file, LEN as u64 - 10, 10).await.expect("read").expect("not in memory");
        assert!(*piece == bytes[LEN - 10..], "the end");
        assert!(!is_resident(&file, 1 << 20, 1), "and the page cache holds no more than before");
    }

    #[test]
    fn a_buffer_is_filled_from_anywhere_in_a_file() {
        let (_folder, file, bytes) = written();
        let mut buffer = Buffer::new();
        for (position, len) in [(0, 1), (4097, 100_000), (LEN - 10, 10), (LEN - 10, 50), (LEN, 1), (LEN + 9000, 1)] {
            let filled = buffer.fill(&file, position as u64, len).expect("filled");
            let expected = bytes.get(position..).unwrap_or_default();
            assert!(buffer.bytes()[filled] == expected[..expected.len().min(len)], "{len} from {position}");
        }
    }

    #[test]
    fn a_file_without_direct_reads_is_read_all_the_same() {
        let file = File::open("/proc/version").expect("Linux");
        assert!(read_around(&file, 0, &mut Buffer::new().memory).is_err(), "or nothing is shown");
        let mut buffer = Buffer::new();
        let filled = buffer.fill(&file, 1, 4).expect("filled");
        assert_eq!(&buffer.bytes()[filled], b"inux");
    }

    #[tokio::test]
    async fn more_pieces_than_may_be_held_come_one_after_another() {
        let (_folder, file, bytes) = written();
        let reads = (0..3 * PIECES_MAX).map(|at| {
            let (file, expected) = (Arc::clone(&file), bytes[at * 1000..][..1000].to_vec());
            async move {
                fadvise(&*file, 0, None, Advice::DontNeed).expect("advice is taken");
                let piece = read(&file, at as u64 * 1000, 1000).await.expect("read");
                assert!(piece.is_none_or(|piece| *piece == expected));
            }
        });
        let reads: Vec<_> = reads.map(tokio::spawn).collect();
        for read in reads {
            read.await.expect("no panic");
        }
    }
}
