//! Decompresses batches to check their records, with limits on memory and time.
//!
//! `validate` decides which batches are decompressed. Most are decompressed chunk by chunk, and only checked. The
//! records are kept in memory only if they must be compressed again, or if a chunk would be large. Because a few bytes
//! may decompress to gigabytes, each batch has a limit. There is only one permit for large batches, so they are
//! decompressed one at a time. A batch that waits for this permit does not hold a slot for long work, so that other
//! work goes on.
//!
//! Invariant: each slot of [`LongWork`](fullbore_host::long_work::LongWork) and each worker uses at most twice
//! [`SMALL_MAX`] of memory. In addition, there is at most one large batch, which uses at most as much as its topic
//! allows, up to 256 MiB.

use super::refused::{RefusedBatch, of_decompression};
use bytes::Bytes;
use fullbore_config::TopicConfig;
use fullbore_wire::batch::{
    BatchError, BatchView, CheckedRecords, Compression, Decompressor, HEADER_LEN, decompress_sent,
};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Maximum size of a decompressed batch in any topic, without its header.
pub const DECOMPRESSED_MAX: usize = 256 << 20;
/// Maximum size of a batch in any topic, as it is stored. The cleaner reads no larger one.
pub const BATCH_BYTES_MAX: usize = HEADER_LEN + DECOMPRESSED_MAX;
/// Maximum size of a decompressed batch in a topic with a small max.message.bytes.
const DECOMPRESSED_LEAST: usize = 64 << 20;
/// Maximum size of a decompressed batch that needs no permit.
const SMALL_MAX: usize = Decompressor::MEMORY_MAX;
/// Maximum number of unused decompressors that are kept.
const DECOMPRESSORS_KEPT: usize = 8;
/// How many bytes a request may decompress on a thread that serves connections. They take half a millisecond or less.
const SHORT_MAX: usize = 512 << 10;
/// Decompressing a byte of gzip takes as long as this many bytes of other codecs.
const GZIP: usize = 4;

/// The broker's decompressors, and the permit for decompressing a large batch.
pub struct Decompression {
    permit: Semaphore,
    decompressors: Mutex<Vec<Decompressor>>,
}

impl Default for Decompression {
    fn default() -> Self {
        Decompression { permit: Semaphore::new(1), decompressors: Mutex::default() }
    }
}

/// The permit to decompress a large batch and to use its records. Dropping this value returns the permit.
pub struct LargeBatchPermit<'a> {
    _permit: SemaphorePermit<'a>,
}

/// The reason why validation does not return a batch: an error, or something that the caller must wait for.
pub enum Invalid {
    /// The batch is refused. The producer gets this error.
    Refused(RefusedBatch),
    /// The batch becomes large when it is decompressed, so the caller needs the permit.
    Large,
    /// The validation takes longer than other connections should have to wait, so it needs a slot for long work.
    Long,
}

impl<E: Into<RefusedBatch>> From<E> for Invalid {
    fn from(why: E) -> Self {
        Invalid::Refused(why.into())
    }
}

impl Decompression {
    fn check(&self, batch: &BatchView<'_>, bytes_max: usize) -> Result<CheckedRecords, BatchError> {
        let mut decompressor = self.decompressors.lock().pop().unwrap_or_default();
        let checked = decompressor.check(batch, bytes_max);
        decompressor.trim();
        let mut decompressors = self.decompressors.lock();
        if decompressors.len() < DECOMPRESSORS_KEPT {
            decompressors.push(decompressor);
        }
        checked
    }

    /// Waits for the permit, which is given in the order of the requests. The caller must not hold a slot for long
    /// work.
    pub async fn permit(&self) -> LargeBatchPermit<'_> {
        LargeBatchPermit { _permit: self.permit.acquire().await.expect("never closed") }
    }
}

/// How many bytes a request may still decompress.
pub struct DecompressionBudget {
    /// How many bytes may still be decompressed, counted in bytes of a fast codec; `None` if the request has no limit.
    short_left: Option<usize>,
}

impl DecompressionBudget {
    /// Returns the budget for a thread that serves connections.
    pub fn short() -> DecompressionBudget {
        DecompressionBudget { short_left: Some(SHORT_MAX) }
    }

    /// Returns a budget without a limit for the request. Only the limit of each batch applies.
    pub fn long() -> DecompressionBudget {
        DecompressionBudget { short_left: None }
    }
}

/// Everything that is needed to decompress a batch.
pub struct Decompressing<'a> {
    pub decompression: &'a Decompression,
    /// The permit for a large batch, if the caller has it.
    pub permit: Option<&'a LargeBatchPermit<'a>>,
    pub budget: &'a mut DecompressionBudget,
}

impl Decompressing<'_> {
    /// Decompresses a batch only to check its records, without keeping them. `most` is the maximum number of bytes
    /// after decompression. Returns `None` if the caller must use [`Decompressing::decompress`] instead, because a
    /// chunk is too large or the caller already has the permit.
    ///
    /// # Errors
    /// Returns [`Invalid::Long`] if the budget is too small, and [`Invalid::Refused`] if the records are damaged or too
    /// large.
    pub fn check(
        &mut self,
        batch: &BatchView<'_>,
        codec: Compression,
        most: usize,
    ) -> Result<Option<CheckedRecords>, Invalid> {
        if self.permit.is_some() {
            return Ok(None);
        }
        let a_byte = if codec == Compression::Gzip { GZIP } else { 1 };
        let now = self.budget.short_left.map_or(most, |left| most.min(left / a_byte));
        let checked = self.decompression.check(batch, now);
        if let Some(left) = &mut self.budget.short_left {
            // If a batch fails, the number of decompressed bytes is unknown. Assume that the batch used up the budget.
            *left = checked.as_ref().map_or(0, |checked| left.saturating_sub(checked.bytes.saturating_mul(a_byte)));
        }
        match checked {
            Ok(checked) => Ok(Some(checked)),
            Err(BatchError::TooLarge(_)) if now < most => Err(Invalid::Long),
            Err(BatchError::Memory(_)) => Ok(None),
            Err(error) => Err(Invalid::Refused(of_decompression(error))),
        }
    }

    /// Returns the decompressed records of a batch, which must not exceed `most` bytes.
    ///
    /// # Errors
    /// Returns [`Invalid::Long`] on a thread that serves connections. Returns [`Invalid::Large`] if the batch is large
    /// and the permit is missing. Returns [`Invalid::Refused`] if the records are damaged or too large.
    pub fn decompress(&self, batch: &BatchView<'_>, codec: Compression, most: usize) -> Result<Bytes, Invalid> {
        if self.budget.short_left.is_some() {
            return Err(Invalid::Long);
        }
        let now = if self.permit.is_some() { most } else { most.min(SMALL_MAX) };
        decompress_sent(codec, batch.payload(), now).map_err(|error| match error {
            BatchError::TooLarge(_) if now < most => Invalid::Large,
            error => Invalid::Refused(of_decompression(error)),
        })
    }
}

/// Returns the maximum size of a decompressed batch in this topic.
pub fn decompressed_max(config: &TopicConfig) -> usize {
    config.max_message_bytes.saturating_mul(2).clamp(DECOMPRESSED_LEAST, DECOMPRESSED_MAX)
}
