//! Check of compressed batches for readability by consumers: the payload is decompressed piece by piece and its records
//! are walked.
//!
//! Callers that need the records use `compression`. Invariant: a check takes [`Opener::MEMORY_MAX`] and a few buffers
//! of memory, whatever size the batch becomes. `decompress` reads every batch that it accepts.

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

/// Bytes of a piece of gzip and zstd; no zstd block is larger.
const PIECE: usize = 128 << 10;
/// Most bytes that a buffer keeps for the next batch.
const BLOCK_KEPT: usize = 256 << 10;
/// Most bytes that a decompression context keeps for the next batch.
const CONTEXT_KEPT: usize = 3 << 20;

/// Decoder and buffers, used for one batch after the other.
#[derive(Default)]
pub struct Opener {
    zstd: Option<ZstdDecoder>,
    /// [`PIECE`] bytes, once a codec has needed them.
    piece: Vec<u8>,
    /// Block of LZ4 or snappy.
    block: Vec<u8>,
}

impl Opener {
    /// Most bytes of a block or window.
    pub const MEMORY_MAX: usize = self::zstd::WINDOW_MAX;

    /// Decompresses the records of a batch, at most `bytes_max` bytes, and walks them.
    ///
    /// # Errors
    /// [`BatchError::Malformed`] or [`BatchError::Record`] if consumers cannot read the batch; [`BatchError::TooLarge`]
    /// past `bytes_max`; [`BatchError::Memory`] for a batch that only [`decompress`](super::decompress) can open.
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

    /// Frees memory that only unusual batches need.
    pub fn trim(&mut self) {
        if self.block.len() > BLOCK_KEPT {
            self.block = Vec::new();
        }
        self.zstd.take_if(|zstd| zstd.memory() > CONTEXT_KEPT);
    }
}
