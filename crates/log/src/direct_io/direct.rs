//! Reads files without the page cache, and checks whether parts of a file are in the cache.

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Maximum number of bytes in a piece. If pieces had a quarter of this size, disks would have only half the throughput.
pub const PIECE_MAX: usize = 1024 * 1024;
/// Maximum number of buffers that are kept for later use.
const KEPT_MAX: usize = 4;
/// Direct reads must be aligned to this number of bytes, both in the file and in memory. No disk or file system
/// requires a larger alignment.
const ALIGNMENT: usize = 4096;

/// Returns the last aligned position at or before `position`. A direct read can begin there.
pub fn boundary_before(position: u64) -> u64 {
    position - position % ALIGNMENT as u64
}

/// A pool of buffers. The memory of a dropped buffer is used again.
#[derive(Clone, Default)]
pub struct Buffers {
    kept: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Buffers {
    /// Returns a buffer, with memory from the pool if there is any.
    pub fn take(&self) -> Buffer {
        let memory = self.kept.lock().pop().unwrap_or_else(|| vec![0; PIECE_MAX + 3 * ALIGNMENT]);
        let aligned = memory.as_ptr().align_offset(ALIGNMENT);
        Buffer { memory, aligned, of: self.clone() }
    }

    /// Fills `room` with the bytes from `position` on. Bytes that are not in the page cache are read without it.
    /// Blocks.
    pub fn read_exact(&self, file: &File, position: u64, room: &mut [u8]) -> io::Result<()> {
        let mut buffer = None;
        for (at, part) in room.chunks_mut(PIECE_MAX).enumerate() {
            let position = position + (at * PIECE_MAX) as u64;
            if is_resident(file, position, part.len()) {
                file.read_exact_at(part, position)?;
                continue;
            }
            let buffer = buffer.get_or_insert_with(|| self.take());
            let filled = buffer.fill(file, position, part.len())?;
            if filled.len() < part.len() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            part.copy_from_slice(&buffer.bytes()[filled]);
        }
        Ok(())
    }
}

/// Memory for a piece, and for the bytes around it that alignment requires.
pub struct Buffer {
    memory: Vec<u8>,
    /// The index of the first aligned byte in `memory`.
    aligned: usize,
    /// The pool to which the memory returns.
    of: Buffers,
}

impl Buffer {
    pub fn bytes(&self) -> &[u8] {
        &self.memory[self.aligned..]
    }

    /// Reads `len` bytes from `position` on, or fewer at the end of the file. Returns their range in the buffer.
    pub fn fill(&mut self, file: &File, position: u64, len: usize) -> io::Result<Range<usize>> {
        let before = (position % ALIGNMENT as u64) as usize;
        let wanted = (before + len).next_multiple_of(ALIGNMENT);
        let room = &mut self.memory[self.aligned..][..wanted];
        let from = position - before as u64;
        let read = match read_around(file, from, room) {
            // If the file system has no direct reads, or no descriptor is free, read through the open file instead.
            Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOENT | Errno::MFILE | Errno::NFILE) => {
                file.read_at(room, from)?
            }
            read => read?,
        };
        Ok(before..read.clamp(before, before + len))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut kept = self.of.kept.lock();
        if kept.len() < KEPT_MAX {
            kept.push(std::mem::take(&mut self.memory));
        }
    }
}

/// Reads without the page cache. If pages in the range are dirty, the system first writes them to the disk.
pub fn read_around(file: &File, position: u64, room: &mut [u8]) -> Result<usize, Errno> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let direct = rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty())?;
    loop {
        match rustix::io::pread(&direct, &mut *room, position) {
            Err(Errno::INTR) => {}
            read => return read,
        }
    }
}

/// Returns true if the range can be read without the disk. Also returns true if the system cannot find this out. In
/// that case sendfile may wait for the disk, as it would without this check.
pub fn is_resident(file: &File, position: u64, len: usize) -> bool {
    match pages_in_memory(file, position, len as u64) {
        Ok(pages) => pages >= pages_of(position, len as u64),
        Err(_) => is_byte_resident(file, position + len as u64 - 1),
    }
}

/// Returns true if a byte can be read without the disk. This is the fallback for systems without cachestat(2). The
/// check has a side effect: the kernel begins to read ahead.
fn is_byte_resident(file: &File, position: u64) -> bool {
    let mut byte = [0];
    let read = preadv2(file, &mut [IoSliceMut::new(&mut byte)], position, ReadWriteFlags::NOWAIT);
    read != Err(Errno::AGAIN)
}

/// Returns the number of pages that the range touches.
fn pages_of(position: u64, len: u64) -> u64 {
    let page = rustix::param::page_size() as u64;
    (position + len).div_ceil(page) - position / page
}

/// Returns how many pages of the range are in the page cache. Uses cachestat(2) of Linux 6.5, which has no side
/// effects.
fn pages_in_memory(file: &File, position: u64, len: u64) -> io::Result<u64> {
    /// The number of the system call, which is the same on every architecture that Rust supports on Linux.
    const CACHESTAT: libc::c_long = 451;
    let range = [position, len];
    // struct cachestat: pages cached, dirty, in writeback, evicted, recently evicted.
    let mut found = [0_u64; 5];
    // SAFETY: the call reads a struct of two 64-bit numbers and writes one of five. Both exist until it returns.
    let returned = unsafe { libc::syscall(CACHESTAT, file.as_raw_fd(), range.as_ptr(), found.as_mut_ptr(), 0) };
    if returned == 0 { Ok(found[0]) } else { Err(io::Error::last_os_error()) }
}
