//! Reads around the page cache, and probes of its contents.

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Most bytes of a piece. In pieces of a quarter of this size a disk is slower by half.
pub const PIECE_MAX: usize = 1024 * 1024;
/// Most buffers whose memory is kept for reuse.
const KEPT_MAX: usize = 4;
/// Alignment of direct reads in file and memory: the largest that disks and file systems require.
const ALIGNMENT: usize = 4096;

/// Returns the last aligned position at or before `position`, where a direct read can begin.
pub fn boundary_before(position: u64) -> u64 {
    position - position % ALIGNMENT as u64
}

/// Memory of dropped buffers, kept for the next buffers.
#[derive(Clone, Default)]
pub struct Buffers {
    kept: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Buffers {
    /// Returns a buffer, with memory that was used before if there is any.
    pub fn take(&self) -> Buffer {
        let memory = self.kept.lock().pop().unwrap_or_else(|| vec![0; PIECE_MAX + 3 * ALIGNMENT]);
        let aligned = memory.as_ptr().align_offset(ALIGNMENT);
        Buffer { memory, aligned, of: self.clone() }
    }

    /// Fills `room` with the bytes from `position` on, from the page cache if they are there, else around it. Blocks.
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

/// Memory for a piece and for the bytes around it up to the next boundaries.
pub struct Buffer {
    memory: Vec<u8>,
    /// Offset in `memory` of its first boundary.
    aligned: usize,
    /// Pool that gets the memory back.
    of: Buffers,
}

impl Buffer {
    pub fn bytes(&self) -> &[u8] {
        &self.memory[self.aligned..]
    }

    /// Reads `len` bytes from `position` on, or as many as the file has. Returns their range in the buffer.
    pub fn fill(&mut self, file: &File, position: u64, len: usize) -> io::Result<Range<usize>> {
        let before = (position % ALIGNMENT as u64) as usize;
        let wanted = (before + len).next_multiple_of(ALIGNMENT);
        let room = &mut self.memory[self.aligned..][..wanted];
        let from = position - before as u64;
        let read = match read_around(file, from, room) {
            // Without direct reads on this file system, or without a free descriptor, reads through the open file.
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

/// Reads around the page cache. The system first writes the dirty pages of the range to the disk.
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

/// Returns true if the range can be read without the disk. Also true if the system does not know, since sendfile then
/// waits as it would anyway.
pub fn is_resident(file: &File, position: u64, len: usize) -> bool {
    match pages_in_memory(file, position, len as u64) {
        Ok(pages) => pages >= pages_of(position, len as u64),
        Err(_) => is_byte_resident(file, position + len as u64 - 1),
    }
}

/// Returns true if the byte can be read without the disk. Used on a system without cachestat(2), where the probe also
/// begins a read-ahead of the kernel.
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

/// Returns the number of the range's pages in the page cache, by cachestat(2) of Linux 6.5, which has no other effect.
fn pages_in_memory(file: &File, position: u64, len: u64) -> io::Result<u64> {
    /// Number of the call on every architecture that Rust and Linux share.
    const CACHESTAT: libc::c_long = 451;
    let range = [position, len];
    // struct cachestat: pages cached, dirty, in writeback, evicted, recently evicted.
    let mut found = [0_u64; 5];
    // SAFETY: the call reads a struct of two and writes one of five 64-bit numbers; both live until it returns.
    let returned = unsafe { libc::syscall(CACHESTAT, file.as_raw_fd(), range.as_ptr(), found.as_mut_ptr(), 0) };
    if returned == 0 { Ok(found[0]) } else { Err(io::Error::last_os_error()) }
}
