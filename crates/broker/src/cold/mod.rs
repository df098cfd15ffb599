//! Ranges of a log that are not in memory: read by threads made for waiting, around the page cache, into buffers that are
//! used again.
//!
//! No thread that serves connections waits for a disk, and a consumer that is far behind neither pushes out of memory what
//! others are about to read nor costs fresh pages, of which every first touch is a fault (on a virtual machine one of the
//! host, too). A file is read in pieces of 1 MiB that stay for a moment: the next request of the same reader begins in the last
//! one, and several readers at one place share it. Whoever reads on has the next piece read meanwhile.
//!
//! No promise: the kernel may take a page back after it was looked at, and then sendfile waits.
//! Invariant: at most [`PIECES_MAX`] pieces are read or held at one time; whoever comes then waits for one. A piece has
//! whole batches of the log only, which never change.

mod direct;
mod shelf;

pub use direct::read_exact;

use direct::Buffer;
use shelf::{SHELF, Slot};
use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::sync::Arc;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Bytes of a piece, at most: a disk is slower by half in pieces of a quarter of it.
const PIECE_MAX: usize = 1024 * 1024;
/// Pieces in memory. A disk serves no more at once; what waits longer than this is behind others that wait for it.
const PIECES_MAX: usize = 24;

static PIECES: Semaphore = Semaphore::const_new(PIECES_MAX);

/// What was read of a file, from `from` on.
struct Piece {
    from: u64,
    buffer: Buffer,
    filled: Range<usize>,
    _place: SemaphorePermit<'static>,
}

impl Piece {
    /// Bytes of the file from `from` up to `end`; fewer at the file's end.
    async fn read(file: Arc<File>, from: u64, end: u64) -> io::Result<Arc<Piece>> {
        let place = PIECES.acquire().await.expect("the semaphore is never closed");
        // Place and buffer go along: the thread waits on when the connection is gone.
        let read = tokio::task::spawn_blocking(move || {
            let mut buffer = Buffer::take();
            let filled = buffer.fill(&file, from, (end - from) as usize)?;
            Ok(Arc::new(Piece { from, buffer, filled, _place: place }))
        });
        read.await.map_err(io::Error::other)?
    }

    fn end(&self) -> u64 {
        self.from + self.filled.len() as u64
    }
}

/// Bytes of a file, in memory that others may read as well.
pub struct Part {
    piece: Arc<Piece>,
    range: Range<usize>,
}

impl Part {
    /// Up to `len` bytes from `position` on, which is none where the piece ends before it.
    fn of(piece: Arc<Piece>, position: u64, len: usize) -> Part {
        let start = (piece.filled.start + (position - piece.from) as usize).min(piece.filled.end);
        let end = (start + len).min(piece.filled.end);
        Part { range: start..end, piece }
    }
}

impl Deref for Part {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.piece.buffer.bytes()[self.range.clone()]
    }
}

/// Up to `len` bytes of the file, at least one and at most [`PIECE_MAX`], if they are not in memory; fewer at the end of a piece,
/// none at the file's. `None` when they are, which costs one short system call. What lies before `settled`, which is at
/// least `position + len`, must not change any more.
///
/// # Errors
/// Of the file.
pub async fn read(file: &Arc<File>, position: u64, len: usize, settled: u64) -> io::Result<Option<Part>> {
    let len = len.min(PIECE_MAX);
    if direct::is_resident(file, position, len) {
        return Ok(None);
    }
    let upto = position + len as u64;
    let piece = match piece_at(file, position, upto, settled) {
        // Boxed, so that the task of a connection has no room for what happens seldom.
        Some(slot) => Box::pin(slot.piece()).await?,
        // The shelf is others'. What is asked for is read, and no more.
        None => {
            let upto = upto.min(shelf::end_of(position));
            Box::pin(Piece::read(Arc::clone(file), direct::boundary_before(position), upto)).await?
        }
    };
    Ok(Some(Part::of(piece, position, len)))
}

/// Copies what lies at `position` if a reader has just had it read: the number of bytes, 0 if not. Waits for nothing.
pub fn peek(file: &File, position: u64, buffer: &mut [u8]) -> usize {
    let Some(piece) = SHELF.lock().read_at(file, position) else { return 0 };
    let part = Part::of(piece, position, buffer.len());
    buffer[..part.len()].copy_from_slice(&part);
    part.len()
}

/// The slot with the byte at `position`, if the shelf has room. What follows is read, too, for who reads on.
fn piece_at(file: &Arc<File>, position: u64, upto: u64, settled: u64) -> Option<Arc<Slot>> {
    let end = shelf::end_of(position);
    let next = end..shelf::end_of(end).min(settled);
    // Before the lock. What is in memory comes from there.
    let is_next_cold = !next.is_empty() && !direct::is_resident(file, next.start, (next.end - next.start) as usize);
    let (slot, next) = {
        let mut shelf = SHELF.lock();
        let slot = shelf.slot_at(file, position, settled)?;
        let reads_on = is_next_cold && (upto > end || shelf.has_before(&slot));
        let next = if reads_on { shelf.slot_after(&slot, settled) } else { None };
        (slot, next)
    };
    if let Some(next) = next {
        tokio::spawn(read_ahead(next));
    }
    Some(slot)
}

/// Reads a piece that nobody has asked for yet. If it cannot be, whoever asks learns why.
async fn read_ahead(slot: Arc<Slot>) {
    let _ = slot.piece().await;
}

#[cfg(test)]
pub use direct::is_resident;
#[cfg(test)]
mod tests;
