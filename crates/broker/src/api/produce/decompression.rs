//! Compressed batches opened to look at their records: how much memory that may take.
//!
//! Not the decision whether one must be opened, which is in `validate`. A few bytes may hold gigabytes: each batch has a limit,
//! and those that open to much take turns. Invariant: at any time at most [`SMALL_MAX`] for each place of
//! [`LongWork`](crate::long_work::LongWork), 64 MiB in all, and one batch of what its topic allows, 256 MiB at most.

use crate::classic::OPENED_MAX;
use crate::config::TopicConfig;
use bytes::Bytes;
use fullbore_wire::batch::{BatchError, BatchView, Compression, decompress};
use parking_lot::{Mutex, MutexGuard};

/// What any batch may open to, in bytes.
const DECOMPRESSED_LEAST: usize = 64 << 20;
/// What a batch may open to beside all others.
const SMALL_MAX: usize = 4 << 20;

/// Whose turn it is to open a large batch, in one broker.
#[derive(Default)]
pub struct Decompression {
    large: Mutex<()>,
}

/// A batch's records without compression.
pub struct Decompressed<'a> {
    pub records: Bytes,
    _turn: Option<MutexGuard<'a, ()>>,
}

impl Decompression {
    /// Opens a batch to at most so many bytes. May wait for others that open large ones.
    ///
    /// # Errors
    /// [`BatchError::TooLarge`], [`BatchError::Decompress`].
    pub fn of(&self, batch: &BatchView<'_>, codec: Compression, most: usize) -> Result<Decompressed<'_>, BatchError> {
        match decompress(codec, batch.payload(), most.min(SMALL_MAX)) {
            Err(BatchError::TooLarge(_)) if most > SMALL_MAX => {
                let turn = self.large.lock();
                Ok(Decompressed { records: decompress(codec, batch.payload(), most)?, _turn: Some(turn) })
            }
            small => Ok(Decompressed { records: small?, _turn: None }),
        }
    }
}

/// What a batch of a topic may open to, in bytes.
pub fn decompressed_max(config: &TopicConfig) -> usize {
    config.max_message_bytes.saturating_mul(2).clamp(DECOMPRESSED_LEAST, OPENED_MAX)
}
