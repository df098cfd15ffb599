//! Decompression of batches for the check of their records, with limits of memory and time.
//!
//! Not here: the decision to decompress a batch, which is in `validate`. Most batches are decompressed piece by piece,
//! and only checked. The records are kept as a whole if they must be compressed again, or if a piece would be large. A
//! few bytes may decompress to gigabytes: each batch has a limit, and large batches are decompressed one at a time,
//! each under the only permit. A batch that waits for this permit holds no permit for long work, so that other work
//! goes on.
//!
//! Invariant: each permit of [`LongWork`](fullbore_host::long_work::LongWork) and each worker uses memory of at most
//! twice [`SMALL_MAX`]. In addition, one large batch at a time uses at most the size that its topic allows, up to 256
//! MiB.

use super::refused::{RefusedBatch, of_decompression};
use bytes::Bytes;
use fullbore_config::TopicConfig;
use fullbore_wire::batch::{BatchError, BatchView, CheckedRecords, Compression, Opener, decompress_sent};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Most bytes of a decompressed batch of any topic.
pub const OPENED_MAX: usize = 256 << 20;
/// Most bytes of a decompressed batch in a topic with a small max.message.bytes.
const DECOMPRESSED_LEAST: usize = 64 << 20;
/// Most bytes of a decompressed batch that needs no permit.
const SMALL_MAX: usize = Opener::MEMORY_MAX;
/// Most openers that are kept while no batch needs them.
const OPENERS_KEPT: usize = 8;
/// Most bytes that a request may decompress on a thread that serves connections: half a millisecond or less.
const SHORT_MAX: usize = 512 << 10;
/// Cost of a byte of gzip, in bytes of other codecs.
const GZIP: usize = 4;

/// Openers of the broker, and the permit to decompress a large batch.
pub struct Decompression {
    turn: Semaphore,
    openers: Mutex<Vec<Opener>>,
}

impl Default for Decompression {
    fn default() -> Self {
        Decompression { turn: Semaphore::new(1), openers: Mutex::default() }
    }
}

/// Permit to decompress a large batch and to work with its records, until it is dropped.
pub struct LargeBatchPermit<'a> {
    _permit: SemaphorePermit<'a>,
}

/// Reason why validation returns no batch.
pub enum Invalid {
    /// Refusal that the producer receives.
    Refused(RefusedBatch),
    /// The batch becomes large, and needs the permit.
    Large,
    /// The batch takes longer than other connections should wait.
    Long,
}

impl<E: Into<RefusedBatch>> From<E> for Invalid {
    fn from(why: E) -> Self {
        Invalid::Refused(why.into())
    }
}

impl Decompression {
    fn check(&self, batch: &BatchView<'_>, bytes_max: usize) -> Result<CheckedRecords, BatchError> {
        let mut opener = self.openers.lock().pop().unwrap_or_default();
        let checked = opener.check(batch, bytes_max);
        opener.trim();
        let mut openers = self.openers.lock();
        if openers.len() < OPENERS_KEPT {
            openers.push(opener);
        }
        checked
    }

    /// Waits for the permit: first come, first served. Must be called without a permit for long work.
    pub async fn turn(&self) -> LargeBatchPermit<'_> {
        LargeBatchPermit { _permit: self.turn.acquire().await.expect("never closed") }
    }
}

/// Bytes that a request may still decompress.
pub struct OpeningBudget {
    /// Bytes of a fast codec that are left; `None` if the request has no such limit.
    short_left: Option<usize>,
}

impl OpeningBudget {
    /// Returns the budget on a thread that serves connections.
    pub fn short() -> OpeningBudget {
        OpeningBudget { short_left: Some(SHORT_MAX) }
    }

    /// Returns a budget that is limited only by the limit of each batch.
    pub fn long() -> OpeningBudget {
        OpeningBudget { short_left: None }
    }
}

/// Means to decompress a batch.
pub struct Opening<'a> {
    pub decompression: &'a Decompression,
    /// Permit for a large batch, if the batch has needed it.
    pub turn: Option<&'a LargeBatchPermit<'a>>,
    pub budget: &'a mut OpeningBudget,
}

impl Opening<'_> {
    /// Checks the records of a batch, at most `most` bytes without compression, and does not keep them. Returns None if
    /// the caller must call [`Opening::open`]: a piece is too large, or the caller already holds the permit.
    ///
    /// # Errors
    /// [`Invalid::Long`] if the budget does not suffice; [`Invalid::Refused`] if the records are damaged or too large.
    pub fn check(
        &mut self,
        batch: &BatchView<'_>,
        codec: Compression,
        most: usize,
    ) -> Result<Option<CheckedRecords>, Invalid> {
        if self.turn.is_some() {
            return Ok(None);
        }
        let a_byte = if codec == Compression::Gzip { GZIP } else { 1 };
        let now = self.budget.short_left.map_or(most, |left| most.min(left / a_byte));
        let checked = self.decompression.check(batch, now);
        if let Some(left) = &mut self.budget.short_left {
            // The work of a failed batch is unknown, so it uses up the budget.
            *left = checked.as_ref().map_or(0, |checked| left.saturating_sub(checked.bytes.saturating_mul(a_byte)));
        }
        match checked {
            Ok(checked) => Ok(Some(checked)),
            Err(BatchError::TooLarge(_)) if now < most => Err(Invalid::Long),
            Err(BatchError::Memory(_)) => Ok(None),
            Err(error) => Err(Invalid::Refused(of_decompression(error))),
        }
    }

    /// Returns a batch's records without compression, at most `most` bytes. A large batch needs the permit.
    ///
    /// # Errors
    /// [`Invalid::Long`] on a thread that serves connections; [`Invalid::Large`] if the permit is missing;
    /// [`Invalid::Refused`] if the records are damaged or too large.
    pub fn open(&self, batch: &BatchView<'_>, codec: Compression, most: usize) -> Result<Bytes, Invalid> {
        if self.budget.short_left.is_some() {
            return Err(Invalid::Long);
        }
        let now = if self.turn.is_some() { most } else { most.min(SMALL_MAX) };
        decompress_sent(codec, batch.payload(), now).map_err(|error| match error {
            BatchError::TooLarge(_) if now < most => Invalid::Large,
            error => Invalid::Refused(of_decompression(error)),
        })
    }
}

/// Returns the most bytes of a decompressed batch of a topic.
pub fn decompressed_max(config: &TopicConfig) -> usize {
    config.max_message_bytes.saturating_mul(2).clamp(DECOMPRESSED_LEAST, OPENED_MAX)
}
