//! The result of a record. It is a future that needs no memory of its own, only a reference to the outcome of its
//! batch.
//!
//! Invariant: each record of a batch gets exactly one result. A later result never replaces it.

use crate::error::ProduceError;
use crate::scope::TransactionScope;
use parking_lot::Mutex;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

/// The position of a record in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordMetadata {
    /// The partition.
    pub partition: i32,
    /// The offset of the record, or -1 if the broker did not return it. This is the case with acks=0, and if the broker
    /// recognised a retry but no longer knew the offset of the batch.
    pub offset: i64,
    /// The timestamp in milliseconds since 1970: the record's own, or the broker's if the topic uses LogAppendTime.
    pub timestamp: i64,
}

/// The result that consecutive records of a batch have in common.
#[derive(Clone, Debug)]
struct ResultRun {
    first: u32,
    records: u32,
    result: Result<Written, ProduceError>,
}

/// The position of consecutive records in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    /// The offset of the first record, or -1.
    pub(crate) base_offset: i64,
    /// The broker's timestamp, or -1.
    pub(crate) log_append_time: i64,
}

impl Written {
    /// The position of records that are in the log at an unknown offset.
    pub(crate) const NOWHERE: Written = Written { base_offset: -1, log_append_time: -1 };
}

#[derive(Debug, Default)]
struct BatchResults {
    parts: Vec<ResultRun>,
    wakers: Vec<Waker>,
    /// How many records have a result.
    resolved: u32,
    /// The number of records, or `None` while the batch is open.
    records: Option<u32>,
    completed_at: Option<Instant>,
}

/// The outcome that the records of a batch share.
#[derive(Debug)]
pub(crate) struct BatchOutcome {
    pub(crate) partition: i32,
    pub(crate) opened_at: Instant,
    /// The transaction of the records.
    transaction: Option<Arc<TransactionScope>>,
    /// How many parts of the batch may be in the log without a result. A batch that was not split is one part.
    doubts: AtomicUsize,
    finished: AtomicBool,
    state: Mutex<BatchResults>,
}

/// The guard of [`BatchOutcome::doubt`].
pub(crate) struct Doubt(Arc<BatchOutcome>);

impl Drop for Doubt {
    fn drop(&mut self) {
        self.0.doubts.fetch_sub(1, Ordering::Relaxed);
    }
}

impl BatchOutcome {
    pub(crate) fn new(partition: i32, opened_at: Instant, transaction: Option<Arc<TransactionScope>>) -> Arc<Self> {
        Arc::new(BatchOutcome {
            partition,
            opened_at,
            transaction,
            doubts: AtomicUsize::new(0),
            finished: AtomicBool::new(false),
            state: Mutex::default(),
        })
    }

    /// Marks a part of the batch as possibly written, until the guard is dropped.
    pub(crate) fn doubt(self: &Arc<Self>) -> Doubt {
        self.doubts.fetch_add(1, Ordering::Relaxed);
        Doubt(self.clone())
    }

    /// Returns true if a part without a result may be in the log.
    pub(crate) fn is_possibly_written(&self) -> bool {
        self.doubts.load(Ordering::Relaxed) > 0
    }

    /// Returns the transaction of the records, or `None` without one.
    pub(crate) fn transaction(&self) -> Option<&Arc<TransactionScope>> {
        self.transaction.as_ref()
    }

    /// Returns the number of the records' transaction, or 0 without one.
    pub(crate) fn transaction_number(&self) -> u64 {
        self.transaction.as_ref().map_or(0, |transaction| transaction.number)
    }

    fn note_failure(&self, error: &ProduceError) {
        if let Some(transaction) = &self.transaction {
            transaction.record_failed(error);
        }
    }

    /// Closes the batch with this number of records.
    pub(crate) fn close(&self, records: u32) {
        self.state.lock().records = Some(records);
    }

    /// Sets the result of `records` records, beginning with the record at index `first`. Does nothing if every record
    /// of the batch already has a result.
    pub(crate) fn complete(&self, first: u32, records: u32, result: Result<Written, ProduceError>, now: Instant) {
        let mut state = self.state.lock();
        if self.is_finished() {
            return;
        }
        if let Err(error) = &result {
            self.note_failure(error);
        }
        state.parts.push(ResultRun { first, records, result });
        state.resolved += records;
        self.settle(state, now);
    }

    /// Sets this error as the result of every record without a result.
    pub(crate) fn fail_rest(&self, error: ProduceError, now: Instant) {
        let mut state = self.state.lock();
        if self.is_finished() {
            return;
        }
        self.note_failure(&error);
        // A look-up returns the first matching entry, so this entry applies only to records without an earlier one.
        state.parts.push(ResultRun { first: 0, records: u32::MAX, result: Err(error) });
        state.resolved = u32::MAX;
        self.settle(state, now);
    }

    fn settle(&self, mut state: parking_lot::MutexGuard<'_, BatchResults>, now: Instant) {
        if state.records.is_some_and(|records| state.resolved >= records) || state.resolved == u32::MAX {
            state.completed_at = Some(now);
            self.finished.store(true, Ordering::Release);
        }
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Returns true if every record has its result.
    pub(crate) fn is_finished(&self) -> bool {
        self.finished.load(Ordering::Acquire)
    }

    /// Resolves when every record has its result.
    pub(crate) async fn finished(&self) {
        std::future::poll_fn(|cx| {
            let mut state = self.state.lock();
            if self.is_finished() {
                return Poll::Ready(());
            }
            add_waker(&mut state.wakers, cx);
            Poll::Pending
        })
        .await;
    }
}

fn add_waker(wakers: &mut Vec<Waker>, cx: &Context<'_>) {
    if !wakers.iter().rev().take(4).any(|waker| waker.will_wake(cx.waker())) {
        wakers.push(cx.waker().clone());
    }
}

/// The future result of a record. Dropping it changes nothing, and the record is still sent.
#[derive(Debug)]
#[must_use = "a record may fail; await its delivery, or drop it on purpose"]
pub struct Delivery {
    pub(crate) outcome: Arc<BatchOutcome>,
    pub(crate) index: u32,
    pub(crate) timestamp: i64,
}

impl Delivery {
    /// Returns the partition of the record.
    pub fn partition(&self) -> i32 {
        self.outcome.partition
    }

    /// Returns true if both records are in the same batch. They then get their results at the same time, unless the
    /// batch is split. A tool that measures millions of records a second can thus check one delivery per batch, with
    /// [`Delivery::failures`].
    pub fn same_batch(&self, other: &Delivery) -> bool {
        Arc::ptr_eq(&self.outcome, &other.outcome)
    }

    /// Returns when the last record of the batch got its result, or `None` if some records have none.
    pub fn completed_at(&self) -> Option<Instant> {
        self.outcome.state.lock().completed_at
    }

    /// Returns the result, or `None` while there is none.
    pub fn try_result(&self) -> Option<Result<RecordMetadata, ProduceError>> {
        self.result(&self.outcome.state.lock())
    }

    /// Checks `records` consecutive records of the batch, beginning `skip` records after this one. Returns how many
    /// have failed, and the first error. A record without a result has not failed. If the batch was split, its records
    /// may have different results.
    pub fn failures(&self, skip: u32, records: u32) -> (u32, Option<ProduceError>) {
        let state = self.outcome.state.lock();
        let from = self.index + skip;
        if let [whole] = &state.parts[..]
            && whole.result.is_ok()
        {
            return (0, None);
        }
        let errors = (from..from + records).filter_map(|index| part_of(&state, index)?.result.as_ref().err());
        errors.fold((0, None), |(count, first), error| (count + 1, first.or_else(|| Some(error.clone()))))
    }

    fn result(&self, state: &BatchResults) -> Option<Result<RecordMetadata, ProduceError>> {
        let part = part_of(state, self.index)?;
        Some(part.result.clone().map(|written| RecordMetadata {
            partition: self.outcome.partition,
            offset: match written.base_offset {
                -1 => -1,
                base => base + i64::from(self.index - part.first),
            },
            timestamp: if written.log_append_time >= 0 { written.log_append_time } else { self.timestamp },
        }))
    }
}

/// Returns the entry with the result of record `index`, or `None` if the record has no result yet.
fn part_of(state: &BatchResults, index: u32) -> Option<&ResultRun> {
    state.parts.iter().find(|part| (part.first..part.first.saturating_add(part.records)).contains(&index))
}

impl Future for Delivery {
    type Output = Result<RecordMetadata, ProduceError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.outcome.state.lock();
        match self.result(&state) {
            Some(result) => Poll::Ready(result),
            None => {
                add_waker(&mut state.wakers, cx);
                Poll::Pending
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivery(outcome: &Arc<BatchOutcome>, index: u32) -> Delivery {
        Delivery { outcome: outcome.clone(), index, timestamp: 7 }
    }

    #[test]
    fn parts_of_a_batch_have_their_own_offsets_and_errors() {
        let now = Instant::now();
        let outcome = BatchOutcome::new(3, now, None);
        outcome.close(5);
        let written = Written { base_offset: 100, log_append_time: -1 };
        outcome.complete(0, 2, Ok(written), now);
        assert!(!outcome.is_finished());
        assert_eq!(delivery(&outcome, 1).try_result().unwrap().unwrap().offset, 101);
        assert!(delivery(&outcome, 2).try_result().is_none());
        outcome.complete(2, 1, Ok(Written { base_offset: -1, log_append_time: 9 }), now);
        let third = delivery(&outcome, 2).try_result().unwrap().unwrap();
        assert_eq!((third.offset, third.timestamp), (-1, 9));
        outcome.fail_rest(ProduceError::Closed { possibly_written: true }, now);
        assert!(outcome.is_finished());
        assert!(delivery(&outcome, 4).try_result().unwrap().is_err());
        assert!(delivery(&outcome, 0).try_result().unwrap().is_ok());
        outcome.complete(3, 2, Ok(written), now);
        assert!(delivery(&outcome, 4).try_result().unwrap().is_err(), "the first result stays");
    }
}
