//! Reads parts of logs that are not in memory. The reads use blocking threads and reused buffers, and bypass the page
//! cache.
//!
//! Threads that serve connections must never wait for the disk, and a consumer that is far behind must not evict pages
//! that others are about to read. Buffers are reused because the first access to a new page is a page fault, and on a
//! virtual machine also a page fault of the host. Files are read in pieces of 1 MiB, which stay in memory for about a
//! second. The next request of the same reader usually begins in the same piece, and several readers at one position
//! can share it. If a reader continues, its next piece is read ahead.
//!
//! In one case a thread may still wait: if the kernel evicts a page after the check, sendfile waits for the disk.
//! Invariant: at most [`PIECES_MAX`](piece::PIECES_MAX) pieces are in memory or being read. Further reads wait until a
//! piece is released. A piece has only bytes of complete batches, which never change.

mod direct;
mod failed;
mod ghosts;
mod piece;
mod read_ahead_cache;

pub use direct::is_resident;
pub use failed::{FailedRead, FailedReads};
pub use ghosts::Ghosts;
pub use piece::PieceSlice;

use direct::PIECE_MAX;
use fullbore_host::task;
use parking_lot::Mutex;
use piece::{Pieces, end_of};
use read_ahead_cache::{ReadAheadCache, Slot};
use std::fmt;
use std::fs::File;
use std::io;
use std::sync::Arc;

/// All reads of a broker that avoid the page cache.
pub struct DirectReads {
    pieces: Pieces,
    ghosts: Arc<Ghosts>,
    shelf: Arc<Mutex<ReadAheadCache>>,
    failed: FailedReads,
}

impl fmt::Debug for DirectReads {
    /// Formats only the name of the type.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("DirectReads").finish_non_exhaustive()
    }
}

impl Default for DirectReads {
    fn default() -> Self {
        let failed = FailedReads::default();
        DirectReads { pieces: Pieces::default(), ghosts: Arc::default(), shelf: ReadAheadCache::new(), failed }
    }
}

impl DirectReads {
    /// Returns the list of file ranges that were dropped from the page cache. Each read from the disk is reported to
    /// it.
    pub fn ghosts(&self) -> &Arc<Ghosts> {
        &self.ghosts
    }

    /// Returns the reads that failed because of the disk. Threads that read through the page cache add their failures
    /// too.
    pub fn failed(&self) -> &FailedReads {
        &self.failed
    }

    /// Returns `None` if the page cache has the bytes. A single short system call finds this out. Otherwise returns
    /// bytes of the file from `position` on, at most `len` and at most [`PIECE_MAX`]. The result is shorter at the end
    /// of a piece, and empty at the end of the file.
    ///
    /// `len` must be at least 1. The file's bytes before position `settled` must not change any more, and `settled`
    /// must be at least `position + len`.
    ///
    /// # Errors
    /// Returns the error of the file.
    pub async fn read(
        &self,
        file: &Arc<File>,
        position: u64,
        len: usize,
        settled: u64,
    ) -> io::Result<Option<PieceSlice>> {
        let len = len.min(PIECE_MAX);
        if direct::is_resident(file, position, len) {
            return Ok(None);
        }
        self.ghosts.read(file, position);
        let upto = position + len as u64;
        let piece = match self.piece_at(file, position, upto, settled) {
            // Box the future, so that the task of a connection needs no memory for this rare case.
            Some(slot) => Box::pin(slot.piece(&self.pieces)).await,
            // All slots of the cache are in use by other readers. Read only the requested bytes, and do not cache them.
            None => {
                let upto = upto.min(end_of(position));
                Box::pin(self.pieces.read(Arc::clone(file), direct::boundary_before(position), upto)).await
            }
        };
        let piece = piece.inspect_err(|error| self.failed.note(file, position, len, error, false))?;
        Ok(Some(PieceSlice::of(piece, position, len)))
    }

    /// Copies bytes from `position` on into `buffer`, if a cached piece has them. Returns the number of copied bytes,
    /// which is 0 if no piece has them. Never reads the disk.
    pub fn peek(&self, file: &File, position: u64, buffer: &mut [u8]) -> usize {
        let Some(piece) = self.shelf.lock().read_at(file, position) else { return 0 };
        let part = PieceSlice::of(piece, position, buffer.len());
        buffer[..part.len()].copy_from_slice(&part);
        part.len()
    }

    /// Returns the slot for the byte at `position`; `None` if the cache is full. Also reads the next piece ahead if the
    /// request ends behind this piece (`upto`), or if the piece before this one is cached.
    fn piece_at(&self, file: &Arc<File>, position: u64, upto: u64, settled: u64) -> Option<Arc<Slot>> {
        let end = end_of(position);
        let next = end..end_of(end).min(settled);
        // Check the page cache before taking the lock. Bytes that are in memory are not read ahead.
        let is_next_cold = !next.is_empty() && !direct::is_resident(file, next.start, (next.end - next.start) as usize);
        let (slot, next) = {
            let mut shelf = self.shelf.lock();
            let slot = shelf.slot_at(file, position, settled)?;
            let reads_on = is_next_cold && (upto > end || shelf.has_before(&slot));
            let next = if reads_on { shelf.slot_after(&slot, settled) } else { None };
            (slot, next)
        };
        if let Some(next) = next {
            task::spawn(read_ahead(self.pieces.clone(), next));
        }
        Some(slot)
    }

    /// Fills `room` with the bytes from `position` on. Bytes that are not in the page cache are read without it.
    /// Blocks. The caller logs the error.
    ///
    /// # Errors
    /// Returns the error of the file, or UnexpectedEof if it ends within the range.
    pub fn read_exact(&self, file: &File, position: u64, room: &mut [u8]) -> io::Result<()> {
        let len = room.len();
        let read = self.try_read_exact(file, position, room);
        read.inspect_err(|error| self.failed.note(file, position, len, error, true))
    }

    /// Reads like [`DirectReads::read_exact`], but does not note a failure.
    ///
    /// # Errors
    /// Returns the error of the file, or UnexpectedEof if it ends within the range.
    pub fn try_read_exact(&self, file: &File, position: u64, room: &mut [u8]) -> io::Result<()> {
        self.pieces.buffers.read_exact(file, position, room)
    }
}

/// Reads a piece before it is requested. Errors are ignored, because the reader's own request will get them.
async fn read_ahead(pieces: Pieces, slot: Arc<Slot>) {
    let _ = slot.piece(&pieces).await;
}

#[cfg(test)]
mod tests;
