//! A piece of a file in memory, for all its readers.
//!
//! Invariant: at most [`PIECES_MAX`] pieces are read or held at a time; a further read waits until one is released.

use super::direct::{Buffer, Buffers, PIECE_MAX};
use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Most pieces in memory. A disk serves no more at a time, and a further read would only wait behind these.
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
    /// Reads the bytes of the file from `from` to `end`; fewer at the file's end.
    pub async fn read(&self, file: Arc<File>, from: u64, end: u64) -> io::Result<Arc<Piece>> {
        let place = Arc::clone(&self.places).acquire_owned().await.expect("the semaphore is never closed");
        let buffers = self.buffers.clone();
        // The thread owns permit and buffer, since it continues after the connection is closed.
        let read = tokio::task::spawn_blocking(move || {
            let mut buffer = buffers.take();
            let filled = buffer.fill(&file, from, (end - from) as usize)?;
            Ok(Arc::new(Piece { from, buffer, filled, _place: place }))
        });
        read.await.map_err(io::Error::other)?
    }
}

/// Bytes of a file from `from` on.
pub struct Piece {
    pub from: u64,
    buffer: Buffer,
    filled: Range<usize>,
    _place: OwnedSemaphorePermit,
}

impl Piece {
    /// Returns the end of the piece in the file.
    pub fn end(&self) -> u64 {
        self.from + self.filled.len() as u64
    }
}

/// Bytes of a piece, whose memory other readers may share.
pub struct PieceSlice {
    pub(super) piece: Arc<Piece>,
    range: Range<usize>,
}

impl PieceSlice {
    /// Returns up to `len` bytes of the piece from `position` on; none if the piece ends before it.
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
