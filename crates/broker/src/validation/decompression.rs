//! Compressed batches opened to look at their records: how much memory that may take.
//!
//! Not the decision whether one must be opened, which is in `validate`. A few bytes may hold gigabytes: each batch has a limit,
//! and those that open to much take turns. Who waits for a turn has no place for long work meanwhile: others' work goes on.
//!
//! Invariant: at any time at most [`SMALL_MAX`] for each place of [`LongWork`](crate::long_work::LongWork), 64 MiB in all, and one
//! batch of what its topic allows, 256 MiB at most.

use crate::config::TopicConfig;
use bytes::Bytes;
use fullbore_wire::batch::{BatchError, BatchView, Compression, decompress};
use tokio::sync::{Semaphore, SemaphorePermit};

/// The most bytes that any batch may open to, wherever it is opened.
pub const OPENED_MAX: usize = 256 << 20;
/// What a batch of any topic may open to, in bytes.
const DECOMPRESSED_LEAST: usize = 64 << 20;
/// What a batch may open to beside all others.
const SMALL_MAX: usize = 4 << 20;

/// Whose turn it is to open a large batch, in one broker.
pub struct Decompression {
    turn: Semaphore,
}

impl Default for Decompression {
    fn default() -> Self {
        Decompression { turn: Semaphore::new(1) }
    }
}

/// The right to open a large batch and to work with its records, until it is dropped.
pub struct LargeBatchPermit<'a> {
    _permit: SemaphorePermit<'a>,
}

/// Why a batch was not opened.
#[derive(Debug)]
pub enum Unopened {
    /// The batch opens to much, and must have its turn.
    Large,
    /// The batch cannot be opened at all.
    Refused(BatchError),
}

impl Decompression {
    /// Waits for its turn: first come, first served. To be called without a place for long work.
    pub async fn turn(&self) -> LargeBatchPermit<'_> {
        LargeBatchPermit { _permit: self.turn.acquire().await.expect("never closed") }
    }
}

/// A batch's records without compression, which are at most so many bytes; of many only in turn.
///
/// # Errors
/// [`Unopened`]; with a turn always [`Unopened::Refused`].
pub fn open(
    batch: &BatchView<'_>,
    codec: Compression,
    most: usize,
    turn: Option<&LargeBatchPermit<'_>>,
) -> Result<Bytes, Unopened> {
    let now = if turn.is_some() { most } else { most.min(SMALL_MAX) };
    decompress(codec, batch.payload(), now).map_err(|error| match error {
        BatchError::TooLarge(_) if now < most => Unopened::Large,
        error => Unopened::Refused(error),
    })
}

/// What a batch of a topic may open to, in bytes.
pub fn decompressed_max(config: &TopicConfig) -> usize {
    config.max_message_bytes.saturating_mul(2).clamp(DECOMPRESSED_LEAST, OPENED_MAX)
}
