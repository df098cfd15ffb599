//! Checks that consumers can read a compressed batch. The payload is decompressed piece by piece, and the records in
//! each piece are checked at once.
//!
//! Callers that need the records use `compression`. Invariant: a check takes at most [`Decompressor::MEMORY_MAX`] and a
//! few buffers of memory, however large the decompressed batch is. Every batch that is accepted here can be read by
//! `decompress`.

mod gzip;
mod lz4;
mod snappy;
mod walk;
mod zstd;

pub use self::lz4::pieces as lz4_pieces;
pub use self::snappy::{XERIAL_HEADER, blocks, decompress_block, decompressed_len};
pub use self::walk::{CheckedRecords, check_records};

use self::walk::RecordWalk;
use self::zstd::ZstdDecoder;
use super::view::{BatchError, BatchView, Compression};

/// Maximum number of bytes that gzip or zstd decompresses at a time. No zstd block is larger.
const PIECE: usize = 128 << 10;
/// Maximum size of a buffer that is kept for the next batch, in bytes.
const BLOCK_KEPT: usize = 256 << 10;
/// Maximum memory of a zstd decoder that is kept for the next batch, in bytes.
const CONTEXT_KEPT: usize = 3 << 20;

/// A decoder and buffers, which are reused for the next batch.
#[derive(Default)]
pub struct Decompressor {
    zstd: Option<ZstdDecoder>,
    /// A buffer of [`PIECE`] bytes; empty until gzip or zstd needs it.
    piece: Vec<u8>,
    /// A buffer for a block of LZ4 or snappy.
    block: Vec<u8>,
}

impl Decompressor {
    /// Maximum size of a block or window, in bytes.
    pub const MEMORY_MAX: usize = self::zstd::WINDOW_MAX;

    /// Decompresses the records of a batch to at most `bytes_max` bytes, and checks them.
    ///
    /// # Errors
    /// Returns [`BatchError::Malformed`] or [`BatchError::Record`] if consumers cannot read the batch, and
    /// [`BatchError::TooLarge`] if it exceeds `bytes_max`. Returns [`BatchError::Memory`] if it needs more memory than
    /// allowed here, so that the caller must use [`decompress`](super::decompress).
    pub fn check(&mut self, batch: &BatchView<'_>, bytes_max: usize) -> Result<CheckedRecords, BatchError> {
        let (mut walk, input) = (RecordWalk::new(batch, bytes_max), batch.payload());
        let mut take = |piece: &[u8]| walk.push(piece);
        match batch.compression()? {
            Compression::None => take(input)?,
            Compression::Gzip => {
                self.piece.resize(PIECE, 0);
                gzip::pieces(input, &mut self.piece, &mut take)?;
            }
            Compression::Snappy => {
                for block in blocks(input) {
                    let block = block?;
                    let len = decompressed_len(block)?;
                    if len > bytes_max {
                        return Err(BatchError::TooLarge(bytes_max));
                    }
                    if len > Self::MEMORY_MAX {
                        return Err(BatchError::Memory(Self::MEMORY_MAX));
                    }
                    if self.block.len() < len {
                        self.block = vec![0; len];
                    }
                    decompress_block(block, &mut self.block[..len])?;
                    take(&self.block[..len])?;
                }
            }
            Compression::Lz4 => lz4::pieces(input, &mut self.block, &mut take)?,
            Compression::Zstd => {
                self.piece.resize(PIECE, 0);
                self.zstd.get_or_insert_default().pieces(input, &mut self.piece, &mut take)?;
            }
        }
        walk.finish()
    }

    /// Frees buffers and a decoder that are larger than usual batches need.
    pub fn trim(&mut self) {
        if self.block.len() > BLOCK_KEPT {
            self.block = Vec::new();
        }
        self.zstd.take_if(|zstd| zstd.memory() > CONTEXT_KEPT);
    }
}
