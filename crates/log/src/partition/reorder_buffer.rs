//! Keeps batches that arrived out of order, until the batches before them arrive. With each batch, the buffer keeps the
//! sender of its answer. Classic and diskless partitions both use this buffer.
//!
//! [`fullbore_rules::sequence::parking`] decides which batches may wait and which leaves next. After each append, the
//! parked batches that follow it are appended under the same lock, so that no other batch comes in between.
//!
//! The buffer has copies of the batches, because the connection reads its next requests into the memory of the
//! originals. The copies count against this buffer's budget and not against the connection's. A connection with many
//! waiting batches can therefore still read the missing ones.
//!
//! A batch of a diskless topic also holds the memory permit for its upload, so that it need not wait for one when it
//! leaves the buffer.
//!
//! Invariant: the number of counted bytes is that of the batches in the buffer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use fullbore_rules::sequence::parking::{Freed, Parking, fits};
use fullbore_rules::sequence::{SequenceRefusal, Stamp};
use tokio::time::Instant;

use super::error::AppendError;
use super::memory_budget::MemoryPermit;
use super::outcome::{Acks, AppendAnswer, Appended, AwaitedAnswer, WrittenBatch};
use super::terms::AppendTerms;
use crate::validation::ValidBatch;
use fullbore_config::ReorderConfig;
use fullbore_host::metrics::Metrics;

/// Estimated memory of a waiting batch in addition to its own bytes: entries in maps, its answer, and the waiting
/// response.
pub const BATCH_COST: usize = 512;

pub const OUT_OF_ORDER: AppendError = AppendError::Sequence(SequenceRefusal::OutOfOrderSequence);
const FENCED: AppendError = AppendError::Sequence(SequenceRefusal::InvalidProducerEpoch);

/// Maximum time between the end of a batch's wait and its refusal.
const REFUSED_WITHIN: Duration = Duration::from_secs(1);

/// The broker's budget for batches that arrive out of order, and how much of it is used.
#[derive(Debug)]
pub struct ReorderBuffer {
    batches_max: usize,
    bytes_max: usize,
    wait_ms: u64,
    bytes: AtomicUsize,
    closed: AtomicBool,
    /// The time at which the broker created this buffer. All times in the buffer are milliseconds since then.
    started: Instant,
    metrics: Metrics,
}

impl ReorderBuffer {
    /// Creates an empty buffer.
    pub fn new(config: &ReorderConfig, metrics: Metrics) -> Arc<ReorderBuffer> {
        Arc::new(ReorderBuffer {
            batches_max: config.batches_max,
            bytes_max: config.bytes_max,
            wait_ms: config.wait_ms,
            bytes: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            started: Instant::now(),
            metrics,
        })
    }

    /// Returns the time by which a batch that is parked now has left the buffer or was refused.
    pub fn until(&self) -> Instant {
        let now = Instant::now();
        let refused = now.checked_add(Duration::from_millis(self.wait_ms)).unwrap_or(now);
        refused + REFUSED_WITHIN
    }

    /// Returns the maximum number of parked batches, as Produce responses report it. 0 if the buffer is disabled.
    pub fn batches_max(&self) -> i32 {
        i32::try_from(self.batches_max).unwrap_or(i32::MAX)
    }

    /// Stops the parking of batches. A batch that is already parked gets its answer when its partition stops.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    /// Returns true once no more batches are parked.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Returns the number of bytes that are used now.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::SeqCst)
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Reserves `bytes` for a batch of a producer whose parked batches already have `own` bytes. Returns `None` if the
    /// bytes do not fit into the budget, which is the smaller of `max` and the setting.
    fn hold(self: &Arc<Self>, own: usize, bytes: usize, max: usize) -> Option<HeldBytes> {
        let max = self.bytes_max.min(max);
        let add = |used| fits(own, bytes, used, max).then(|| used + bytes);
        self.bytes.fetch_update(Ordering::SeqCst, Ordering::SeqCst, add).ok()?;
        self.metrics.parked(bytes);
        Some(HeldBytes { reordering: self.clone(), bytes })
    }
}

/// Bytes that are counted until this is dropped.
#[derive(Debug)]
pub struct HeldBytes {
    reordering: Arc<ReorderBuffer>,
    bytes: usize,
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.reordering.bytes.fetch_sub(self.bytes, Ordering::SeqCst);
        self.reordering.metrics.unparked(self.bytes);
    }
}

/// The out-of-order batches of one partition.
#[derive(Debug, Default)]
pub struct OutOfOrderBatches {
    batches: Parking<OutOfOrderBatch>,
    /// True while a task runs that removes batches whose wait has ended.
    is_watched: bool,
}

/// A batch that arrived out of order.
#[derive(Debug)]
pub struct OutOfOrderBatch {
    batch: ValidBatch<'static>,
    acks: Acks,
    ends_transaction: bool,
    answer: AppendAnswer,
    held: HeldBytes,
    later: Option<MemoryPermit>,
    /// True if the first wait ended while no client waited for the answer. The next copy of the batch is then refused.
    is_late: bool,
}

/// The memory permit for the batch's upload, which the batch holds while it is parked.
#[derive(Debug)]
pub struct LaterRoom {
    pub room: MemoryPermit,
    /// Maximum number of bytes that the permits of out-of-order batches may hold. This is less than the whole memory
    /// budget, so that the missing batches still get permits.
    pub early_bytes_max: usize,
}

impl OutOfOrderBatch {
    pub fn batch(&self) -> &ValidBatch<'static> {
        &self.batch
    }

    pub fn acks(&self) -> Acks {
        self.acks
    }

    /// Returns the batch's [`AppendTerms::ends_transaction`].
    pub fn ends_transaction(&self) -> bool {
        self.ends_transaction
    }

    /// Returns the batch, its answer, and the permit for its upload. The caller must send the answer.
    pub fn into_parts(self) -> (ValidBatch<'static>, AppendAnswer, Option<MemoryPermit>) {
        (self.batch, self.answer, self.later)
    }

    /// Answers that the batch is in the leader's log.
    pub fn written(self, written: &WrittenBatch) {
        self.answer.written(written);
    }

    /// Answers that the batch had been appended before.
    pub fn was_appended(self, appended: Appended) {
        self.answer.was_appended(appended);
    }

    /// Refuses the batch.
    pub fn refuse(self, error: AppendError) {
        self.answer.failed(error);
    }
}

/// Batches that have waited too long.
pub struct Expired {
    batches: Vec<OutOfOrderBatch>,
    reordering: Arc<ReorderBuffer>,
}

impl Expired {
    /// Removes the batches for which `is_one` returns true. Returns these batches, and the others.
    pub fn split(mut self, is_one: impl Fn(&Stamp) -> bool) -> (Vec<OutOfOrderBatch>, Expired) {
        let (some, others) = self.batches.into_iter().partition(|early| is_one(&early.batch.stamp()));
        self.batches = others;
        (some, self)
    }

    /// Refuses each batch with the error that `error_of` returns for its stamp. Must be called without a lock.
    pub fn refuse(self, error_of: impl Fn(&Stamp) -> AppendError) {
        self.reordering.metrics.reorder_expired(self.batches.len());
        for early in self.batches {
            let error = error_of(&early.batch.stamp());
            early.refuse(error);
        }
    }
}

impl OutOfOrderBatches {
    /// Returns true if the caller must start the task that removes batches whose wait has ended. Returns false while
    /// that task runs.
    pub fn wants_watch(&mut self) -> bool {
        !self.batches.is_empty() && !std::mem::replace(&mut self.is_watched, true)
    }

    pub fn is_watched(&self) -> bool {
        self.is_watched
    }

    /// Removes and returns the batch that follows an appended batch; `None` if it is not parked. Batches of an older
    /// epoch are refused.
    pub fn next_after(&mut self, stamp: &Stamp) -> Option<OutOfOrderBatch> {
        let Freed { fenced, next } = self.batches.appended(stamp);
        refuse_all(fenced, FENCED);
        next
    }

    /// Refuses all batches of a producer.
    pub fn give_up(&mut self, producer_id: i64, error: AppendError) {
        refuse_all(self.batches.give_up(producer_id), error);
    }

    /// Removes and returns all batches of a producer.
    pub fn take_all(&mut self, producer_id: i64) -> Vec<OutOfOrderBatch> {
        self.batches.give_up(producer_id).into_iter().collect()
    }

    /// Returns true if a batch of this producer is parked.
    pub fn has(&self, producer_id: i64) -> bool {
        self.batches.has(producer_id)
    }

    /// Returns the stamps of a producer's batches, in any order.
    pub fn stamps_of(&self, producer_id: i64) -> Vec<Stamp> {
        self.batches.stamps_of(producer_id).collect()
    }

    /// Removes and returns the batch with this stamp; `None` if it is not parked.
    pub fn take(&mut self, stamp: &Stamp) -> Option<OutOfOrderBatch> {
        self.batches.take_out(stamp)
    }

    /// Removes and returns the batches whose wait has ended. Also returns when the next wait ends; `None` if no batch
    /// is left.
    ///
    /// If no client waits for the answer to a batch, the batch stays parked for a second wait. A copy that its producer
    /// sends during the second wait is refused at once ([`OutOfOrderBatches::take_late`]).
    pub fn expire(&mut self, reordering: &Arc<ReorderBuffer>) -> (Expired, Option<Instant>) {
        let now_ms = reordering.now_ms();
        let is_unnoticed = |early: &OutOfOrderBatch| !early.is_late && !early.answer.is_awaited();
        let (unnoticed, batches): (Vec<_>, Vec<_>) = self.batches.expire(now_ms).into_iter().partition(is_unnoticed);
        for early in unnoticed {
            let (stamp, bytes) = (early.batch.stamp(), early.held.bytes);
            let due_ms = now_ms.saturating_add(reordering.wait_ms);
            // `park` refuses parked batches of an older epoch. There are none here, so it returns no batches.
            self.batches.park(&stamp, OutOfOrderBatch { is_late: true, ..early }, bytes, due_ms);
        }
        let due_ms = self.batches.next_due_ms();
        let due = due_ms.and_then(|due_ms| reordering.started.checked_add(Duration::from_millis(due_ms)));
        (Expired { batches, reordering: reordering.clone() }, due)
    }

    /// Removes the batch with this stamp if its first wait ended while no client waited. Returns true in that case. The
    /// caller must then refuse the copy that has just arrived.
    pub fn take_late(&mut self, stamp: &Stamp, reordering: &ReorderBuffer) -> bool {
        let is_late = self.batches.find(stamp).is_some_and(|same| same.is_late);
        if is_late {
            drop(self.batches.take_out(stamp));
            reordering.metrics.reorder_expired(1);
        }
        is_late
    }

    /// Parks an out-of-order batch. `later` has the permit for its upload.
    ///
    /// # Errors
    /// Returns [`AppendError`] if the batch cannot be parked. If there is no room, refuses parked batches of the same
    /// producer and epoch first, beginning with the highest sequence.
    pub fn park(
        &mut self,
        batch: &ValidBatch<'_>,
        terms: &AppendTerms<'_>,
        reordering: &Arc<ReorderBuffer>,
        later: Option<LaterRoom>,
    ) -> Result<AwaitedAnswer, AppendError> {
        let stamp = batch.stamp();
        if let Some(same) = self.batches.find(&stamp) {
            return Ok(same.answer.join(OUT_OF_ORDER));
        }
        let bytes = batch.view().size() + BATCH_COST;
        let max = later.as_ref().map_or(usize::MAX, |later| later.early_bytes_max);
        let held = loop {
            let own = self.batches.room_for(&stamp, reordering.batches_max).map_err(AppendError::Sequence)?;
            if let Some(held) = own.and_then(|own| reordering.hold(own, bytes, max)) {
                break held;
            }
            self.batches.take_farther(&stamp).ok_or(OUT_OF_ORDER)?.refuse(OUT_OF_ORDER);
        };
        let view = batch.view();
        let (answer, awaited) = AppendAnswer::new(view.size(), view.record_count(), &reordering.metrics);
        let later = later.map(|later| later.room);
        let &AppendTerms { acks, ends_transaction, .. } = terms;
        let batch = batch.to_owned();
        let early = OutOfOrderBatch { batch, acks, ends_transaction, answer, held, later, is_late: false };
        let due_ms = reordering.now_ms().saturating_add(reordering.wait_ms);
        let fenced = self.batches.park(&stamp, early, bytes, due_ms);
        refuse_all(fenced, FENCED);
        Ok(awaited)
    }

    /// Refuses all batches with the same error.
    pub fn refuse(self, error: AppendError) {
        refuse_all(self.batches.into_items(), error);
    }
}

fn refuse_all(batches: impl IntoIterator<Item = OutOfOrderBatch>, error: AppendError) {
    batches.into_iter().for_each(|early| early.refuse(error));
}
