//! A piece of a file in memory, for whoever reads it.
//!
//! Invariant: at most [`PIECES_MAX`] are read or held at one time; whoever comes then waits for one.

use super::direct::{Buffer, Buffers, PIECE_MAX};
use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Pieces in memory. A disk serves no more at once; what waits longer than this is behind others that wait for it.
pub const PIECES_MAX: usize = 24;

/// Permits and memory for reads of pieces.
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
    /// Bytes of the file from `from` up to `end`; fewer at the file's end.
    pub async fn read(&self, file: Arc<File>, from: u64, end: u64) -> io::Result<Arc<Piece>> {
        let place = Arc::clone(&self.places).acquire_owned().await.expect("the semaphore is never closed");
        let buffers = self.buffers.clone();
        // Place and buffer go along: the thread waits on when the connection is gone.
        let read = tokio::task::spawn_blocking(move || {
            let mut buffer = buffers.take();
            let filled = buffer.fill(&file, from, (end - from) as usize)?;
            Ok(Arc::new(Piece { from, buffer, filled, _place: place }))
        });
        read.await.map_err(io::Error::other)?
    }
}

/// Bytes of a file, from `from` on.
pub struct Piece {
    pub from: u64,
    buffer: Buffer,
    filled: Range<usize>,
    _place: OwnedSemaphorePermit,
}

impl Piece {
    /// Returns its end in the file.
    pub fn end(&self) -> u64 {
        self.from + self.filled.len() as u64
    }
}

/// Bytes of a file, in memory that others may read as well.
pub struct PieceSlice {
    pub(super) piece: Arc<Piece>,
    range: Range<usize>,
}

impl PieceSlice {
    /// Up to `len` bytes from `position` on, which is none where the piece ends before it.
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

/// Returns the end of the piece with the byte at `position`.
pub fn end_of(position: u64) -> u64 {
    (position / PIECE_MAX as u64 + 1) * PIECE_MAX as u64
}
