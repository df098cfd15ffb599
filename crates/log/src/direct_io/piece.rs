//! A piece of a file in memory, which several readers can share.
//!
//! Invariant: at most [`PIECES_MAX`] pieces are in memory or being read. Further reads wait until a piece is released.

use super::direct::{Buffer, Buffers, PIECE_MAX};
use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Maximum number of pieces in memory. A disk does not serve more reads at the same time, so a further read would only
/// wait in the disk's queue.
pub const PIECES_MAX: usize = 24;

/// The permits and the memory for reading pieces.
#[derive(Clone)]
pub struct Pieces {
    places: Arc<Semaphore>,
    pub buffers: Buffers,
}

impl Default for Pieces {
    fn default() -> Self {
        Pieces { places: Arc::new(Semaphore::new(PIECES_MAX)), buffers: Buffers::default() }
    }
}

impl Pieces {
    /// Reads the bytes of the file from `from` to `end`, or fewer if the file ends before `end`.
    pub async fn read(&self, file: Arc<File>, from: u64, end: u64) -> io::Result<Arc<Piece>> {
        let place = Arc::clone(&self.places).acquire_owned().await.expect("the semaphore is never closed");
        let buffers = self.buffers.clone();
        // The blocking thread owns the permit and the buffer, because its read continues even if the connection is
        // closed.
        let read = tokio::task::spawn_blocking(move || {
            let mut buffer = buffers.take();
            let filled = buffer.fill(&file, from, (end - from) as usize)?;
            Ok(Arc::new(Piece { from, buffer, filled, _place: place }))
        });
        read.await.map_err(io::Error::other)?
    }
}

/// Bytes of a file, beginning at `from`.
pub struct Piece {
    pub from: u64,
    buffer: Buffer,
    filled: Range<usize>,
    _place: OwnedSemaphorePermit,
}

impl Piece {
    /// Returns the position in the file at which the piece ends.
    pub fn end(&self) -> u64 {
        self.from + self.filled.len() as u64
    }
}

/// A part of a piece. Other readers may use the same piece.
pub struct PieceSlice {
    pub(super) piece: Arc<Piece>,
    range: Range<usize>,
}

impl PieceSlice {
    /// Returns up to `len` bytes of the piece from `position` on. The result is empty if the piece ends before
    /// `position`.
    pub fn of(piece: Arc<Piece>, position: u64, len: usize) -> PieceSlice {
        let start = (piece.filled.start + (position - piece.from) as usize).min(piece.filled.end);
        let end = (start + len).min(piece.filled.end);
        PieceSlice { range: start..end, piece }
    }
}

impl Deref for PieceSlice {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.piece.buffer.bytes()[self.range.clone()]
    }
}

/// Returns the end of the piece that contains the byte at `position`.
pub fn end_of(position: u64) -> u64 {
    (position / PIECE_MAX as u64 + 1) * PIECE_MAX as u64
}
