//! A piece of a file in memory, for whoever reads it.
//!
//! Invariant: at most [`PIECES_MAX`] are read or held at one time; whoever comes then waits for one.

use super::direct::{Buffer, PIECE_MAX};
use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::sync::Arc;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Pieces in memory. A disk serves no more at once; what waits longer than this is behind others that wait for it.
pub const PIECES_MAX: usize = 24;

static PIECES: Semaphore = Semaphore::const_new(PIECES_MAX);

/// What was read of a file, from `from` on.
pub struct Piece {
    pub from: u64,
    buffer: Buffer,
    filled: Range<usize>,
    _place: SemaphorePermit<'static>,
}

impl Piece {
    /// Bytes of the file from `from` up to `end`; fewer at the file's end.
    pub async fn read(file: Arc<File>, from: u64, end: u64) -> io::Result<Arc<Piece>> {
        let place = PIECES.acquire().await.expect("the semaphore is never closed");
        // Place and buffer go along: the thread waits on when the connection is gone.
        let read = tokio::task::spawn_blocking(move || {
            let mut buffer = Buffer::take();
            let filled = buffer.fill(&file, from, (end - from) as usize)?;
            Ok(Arc::new(Piece { from, buffer, filled, _place: place }))
        });
        read.await.map_err(io::Error::other)?
    }

    /// Where in the file it ends.
    pub fn end(&self) -> u64 {
        self.from + self.filled.len() as u64
    }
}

/// Bytes of a file, in memory that others may read as well.
pub struct Part {
    pub(super) piece: Arc<Piece>,
    range: Range<usize>,
}

impl Part {
    /// Up to `len` bytes from `position` on, which is none where the piece ends before it.
    pub fn of(piece: Arc<Piece>, position: u64, len: usize) -> Part {
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

/// Where the piece with the byte at `position` ends.
pub fn end_of(position: u64) -> u64 {
    (position / PIECE_MAX as u64 + 1) * PIECE_MAX as u64
}
