//! Compressed batches opened to look at their records: how much memory and time that may take.
//!
//! Not the decision whether one must be opened, which is in `validate`. Most are only checked, piece by piece; records
//! are kept to be compressed anew, or where a piece would be large. A few bytes may hold gigabytes: each batch has a
//! limit, and those that open to much take turns. Who waits for a turn has no place for long work meanwhile: others'
//! work goes on.
//!
//! Invariant: at any time at most
//! [`SMALL_MAX`] twice for each place of [`LongWork`](fullbore_host::long_work::LongWork) and each worker, and one
//! batch of what its topic allows, 256 MiB at most.

use super::refused::{RefusedBatch, of_decompression};
use bytes::Bytes;
use fullbore_config::TopicConfig;
use fullbore_wire::batch::{BatchError, BatchView, CheckedRecords, Compression, Opener, decompress_sent};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};

/// The most bytes that any batch may open to, wherever it is opened.
pub const OPENED_MAX: usize = 256 << 20;
/// Bytes that a batch of any topic may open to.
const DECOMPRESSED_LEAST: usize = 64 << 20;
/// Bytes that a batch may open to beside all others.
const SMALL_MAX: usize = Opener::MEMORY_MAX;
/// Openers that are kept while no batch needs them.
const OPENERS_KEPT: usize = 8;
/// Bytes that a request may open before it leaves the threads that serve connections: half a millisecond or less.
const SHORT_MAX: usize = 512 << 10;
/// How many times as long a byte takes with gzip as with other codecs.
const GZIP: usize = 4;

/// The broker's openers, and the turn to open a large batch.
pub struct Decompression {
    turn: Semaphore,
    openers: Mutex<Vec<Opener>>,
}

impl Default for Decompression {
    fn default() -> Self {
        Decompression { turn: Semaphore::new(1), openers: Mutex::default() }
    }
}

/// The right to open a large batch and to work with its records, until it is dropped.
pub struct LargeBatchPermit<'a> {
    _permit: SemaphorePermit<'a>,
}

/// Why there is nothing to be appended.
pub enum Invalid {
    /// The producer's answer.
    Refused(RefusedBatch),
    /// The batch opens to much, and must have its turn.
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

    /// Waits for its turn: first come, first served. To be called without a place for long work.
    pub async fn turn(&self) -> LargeBatchPermit<'_> {
        LargeBatchPermit { _permit: self.turn.acquire().await.expect("never closed") }
    }
}

/// The bytes that a request may still open.
pub struct OpeningBudget {
    /// In bytes of a fast codec; `None` where no other connection waits.
    short_left: Option<usize>,
}

impl OpeningBudget {
    /// The budget on a thread that serves connections.
    pub fn short() -> OpeningBudget {
        OpeningBudget { short_left: Some(SHORT_MAX) }
    }

    /// No bound but each batch's own.
    pub fn long() -> OpeningBudget {
        OpeningBudget { short_left: None }
    }
}

/// The means by which a batch is opened.
pub struct Opening<'a> {
    pub decompression: &'a Decompression,
    /// The right to open a large batch, where the batch has needed it.
    pub turn: Option<&'a LargeBatchPermit<'a>>,
    pub budget: &'a mut OpeningBudget,
}

impl Opening<'_> {
    /// Walks the records of a batch, which take at most `most` bytes, without keeping them. Returns None for a batch
    /// that only [`Opening::open`] can open.
    ///
    /// # Errors
    /// [`Invalid`].
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
            // A batch that fails is not known to have been little work.
            *left = checked.as_ref().map_or(0, |checked| left.saturating_sub(checked.bytes.saturating_mul(a_byte)));
        }
        match checked {
            Ok(checked) => Ok(Some(checked)),
            Err(BatchError::TooLarge(_)) if now < most => Err(Invalid::Long),
            Err(BatchError::Memory(_)) => Ok(None),
            Err(error) => Err(Invalid::Refused(of_decompression(error))),
        }
    }

    /// Returns a batch's records without compression, at most `most` bytes; many only in turn.
    ///
    /// # Errors
    /// [`Invalid`].
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

/// Returns the bytes that a batch of a topic may open to.
pub fn decompressed_max(config: &TopicConfig) -> usize {
    config.max_message_bytes.saturating_mul(2).clamp(DECOMPRESSED_LEAST, OPENED_MAX)
}
