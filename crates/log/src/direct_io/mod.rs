//! Ranges of a log that are not in memory: read by threads made for waiting, around the page cache, into buffers that
//! are used again.
//!
//! No thread that serves connections waits for a disk, and a consumer that is far behind neither pushes out of memory
//! what others are about to read nor costs fresh pages, of which every first touch is a fault (on a virtual machine one
//! of the host, too). A file is read in pieces of 1 MiB that stay for a moment: the next request of the same reader
//! begins in the last one, and several readers at one place share it. Whoever reads on has the next piece read
//! meanwhile.
//!
//! No promise: the kernel may take a page back after it was looked at, and then sendfile waits. Invariant: at most
//! [`PIECES_MAX`](piece::PIECES_MAX) pieces are read or held at one time; whoever comes then waits for one. A piece has
//! whole batches of the log only, which never change.

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
    /// No contents.
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
    /// The ranges that were let go of, among which each read from the disk is looked for.
    pub fn ghosts(&self) -> &Arc<Ghosts> {
        &self.ghosts
    }

    /// Up to `len` bytes of the file, at least one and at most [`PIECE_MAX`], if they are not in memory; fewer at the
    /// end of a piece, none at the file's.
    /// `None` when they are, which costs one short system call. What lies before `settled`, which is at least
    /// `position + len`, must not change any more.
    ///
    /// # Errors
    /// What the file says.
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
            // Boxed, so that the task of a connection has no room for what happens seldom.
            Some(slot) => Box::pin(slot.piece(&self.pieces)).await?,
            // The shelf is others'. What is asked for is read, and no more.
            None => {
                let upto = upto.min(end_of(position));
                Box::pin(self.pieces.read(Arc::clone(file), direct::boundary_before(position), upto)).await?
            }
        };
        Ok(Some(PieceSlice::of(piece, position, len)))
    }

    /// Copies what lies at `position` if a reader has just had it read: the number of bytes, 0 if not. Waits for
    /// nothing.
    pub fn peek(&self, file: &File, position: u64, buffer: &mut [u8]) -> usize {
        let Some(piece) = self.shelf.lock().read_at(file, position) else { return 0 };
        let part = PieceSlice::of(piece, position, buffer.len());
        buffer[..part.len()].copy_from_slice(&part);
        part.len()
    }

    /// The slot with the byte at `position`, if the shelf has room. What follows is read, too, for who reads on.
    fn piece_at(&self, file: &Arc<File>, position: u64, upto: u64, settled: u64) -> Option<Arc<Slot>> {
        let end = end_of(position);
        let next = end..end_of(end).min(settled);
        // Before the lock. What is in memory comes from there.
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

    /// Reads the bytes from `position` on: from memory where they are there, and else around the page cache. Blocks.
    ///
    /// # Errors
    /// What the file says, and UnexpectedEof.
    pub fn read_exact(&self, file: &File, position: u64, room: &mut [u8]) -> io::Result<()> {
        self.pieces.buffers.read_exact(file, position, room)
    }
}

/// Reads a piece that nobody has asked for yet. If it cannot be, whoever asks learns why.
async fn read_ahead(pieces: Pieces, slot: Arc<Slot>) {
    let _ = slot.piece(&pieces).await;
}

#[cfg(test)]
mod tests;
