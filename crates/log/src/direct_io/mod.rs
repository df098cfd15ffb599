//! Reads of log ranges that are not in memory: on blocking threads, around the page cache, into reused buffers.
//!
//! No thread that serves connections waits for a disk. A consumer that is far behind does not evict pages that others
//! are about to read. The reads reuse buffers, because the first touch of a new page is a page fault, on a virtual
//! machine also one of the host. A file is read in pieces of 1 MiB that stay in memory for about a second. The next
//! request of the same reader begins in the last piece, and several readers at one position share it. While a reader
//! reads on, its next piece is read ahead.
//!
//! One wait is still possible: the kernel may evict a page after the probe, and sendfile then waits for the disk.
//! Invariant: at most [`PIECES_MAX`](piece::PIECES_MAX) pieces are read or held at a time; a further read waits until
//! one is released. A piece has only bytes of whole batches, which never change.

mod direct;
mod ghosts;
mod piece;
mod read_ahead_cache;

pub use direct::is_resident;
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

/// Reads of one broker around the page cache.
pub struct DirectReads {
    pieces: Pieces,
    ghosts: Arc<Ghosts>,
    shelf: Arc<Mutex<ReadAheadCache>>,
}

impl fmt::Debug for DirectReads {
    /// Formats no contents.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("DirectReads").finish_non_exhaustive()
    }
}

impl Default for DirectReads {
    fn default() -> Self {
        DirectReads { pieces: Pieces::default(), ghosts: Arc::default(), shelf: ReadAheadCache::new() }
    }
}

impl DirectReads {
    /// Returns the ghosts, to which each read from the disk is reported.
    pub fn ghosts(&self) -> &Arc<Ghosts> {
        &self.ghosts
    }

    /// Returns bytes of the file from `position` on, if they are not in memory: at most `len` (at least 1), and at most
    /// [`PIECE_MAX`]. Returns fewer at the end of a piece, and none at the end of the file.
    ///
    /// Returns None if the bytes are in memory; that probe costs one short system call. Bytes before `settled`, which
    /// is at least `position + len`, must not change any more.
    ///
    /// # Errors
    /// [`io::Error`] if the file cannot be read.
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
            // The future is boxed, so that a connection's task needs no memory for this rare case.
            Some(slot) => Box::pin(slot.piece(&self.pieces)).await?,
            // The whole cache is in use by other readers: only the requested bytes are read.
            None => {
                let upto = upto.min(end_of(position));
                Box::pin(self.pieces.read(Arc::clone(file), direct::boundary_before(position), upto)).await?
            }
        };
        Ok(Some(PieceSlice::of(piece, position, len)))
    }

    /// Copies bytes from `position` on into `buffer` if a cached piece has them. Returns their number; 0 if no piece
    /// has them. Does not wait.
    pub fn peek(&self, file: &File, position: u64, buffer: &mut [u8]) -> usize {
        let Some(piece) = self.shelf.lock().read_at(file, position) else { return 0 };
        let part = PieceSlice::of(piece, position, buffer.len());
        buffer[..part.len()].copy_from_slice(&part);
        part.len()
    }

    /// Returns the slot with the byte at `position`; None if the cache is full. If the reader reads on, the next piece
    /// is read ahead.
    fn piece_at(&self, file: &Arc<File>, position: u64, upto: u64, settled: u64) -> Option<Arc<Slot>> {
        let end = end_of(position);
        let next = end..end_of(end).min(settled);
        // The page cache is probed before the lock is taken. Bytes in memory are not read ahead.
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

    /// Fills `room` with the bytes from `position` on, from the page cache if they are there, else around it. Blocks.
    ///
    /// # Errors
    /// I/O errors of the file; UnexpectedEof if it ends within the range.
    pub fn read_exact(&self, file: &File, position: u64, room: &mut [u8]) -> io::Result<()> {
        self.pieces.buffers.read_exact(file, position, room)
    }
}

/// Reads a piece before a reader requests it. After an error, the reader's own request fails with the cause.
async fn read_ahead(pieces: Pieces, slot: Arc<Slot>) {
    let _ = slot.piece(&pieces).await;
}

#[cfg(test)]
mod tests;
