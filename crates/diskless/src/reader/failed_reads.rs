//! Converts failures of the index and of the store to the errors that readers get.
//!
//! Failures are logged here, at a limited rate. Batches whose bytes are missing or stay wrong are reported as lost. The
//! error contains the offset after them, at which a reader can continue. A consumer can only skip lost batches, as
//! `fullbore consume` does with `--skip-bad-batches`.

use fullbore_rules::commit::{BatchRun, PackedBatch};

use super::{Place, ReaderShared, WRONG_MAX};
use crate::objects::ObjectError;
use crate::partition_view::PartitionView;
use fullbore_log::partition::error::ReadError;

impl ReaderShared {
    /// Drops wrong bytes of a batch from the cache, so that they are fetched again. Returns the error for the reader: a
    /// storage error, or, from the `WRONG_MAX`th GET with wrong bytes on, the loss of the batch.
    pub(super) fn is_wrong(&self, partition: &PartitionView, place: Place) -> ReadError {
        let Place { object, position, base_offset, end_offset, .. } = place;
        if self.fetcher.forget(object, place.range()) < WRONG_MAX {
            return ReadError::Storage;
        }
        let why = format!("the object {object:016x} does not have the bytes at {position} that a broker put there");
        partition.lost(base_offset..end_offset, &why);
        ReadError::Lost { from: base_offset, next: end_offset }
    }

    /// Returns the error for a reader of an extent whose fetch has failed. If the object is missing or too short,
    /// reports the batches from the first missing one on as lost, and logs this.
    pub(super) fn run_failed(&self, partition: &PartitionView, run: &BatchRun, error: &ObjectError) -> ReadError {
        let end = match *error {
            ObjectError::NotFound(_) => 0,
            ObjectError::Short { end, .. } => end,
            _ => return self.fetch_failed(error),
        };
        let is_there = |(position, _, batch): &(u32, i64, &PackedBatch)| position.saturating_add(batch.size) <= end;
        let first = run.placed().find(|placed| !is_there(placed));
        let lost = first.map_or(run.base_offset, |(_, base_offset, _)| base_offset)..run.end_offset();
        partition.lost(lost.clone(), &error.to_string());
        ReadError::Lost { from: lost.start, next: lost.end }
    }

    pub(super) fn fetch_failed(&self, error: &ObjectError) -> ReadError {
        if let Some(left_out) = self.failures.due() {
            tracing::error!(%error, left_out, "cannot fetch records from the object store: consumers get KAFKA_STORAGE_ERROR and retry; check the store");
        }
        ReadError::Storage
    }

    pub(super) fn find_failed(&self, error: &fullbore_db::StoreError) -> ReadError {
        if let Some(left_out) = self.failures.due() {
            tracing::error!(%error, left_out, "cannot search the index of diskless topics: consumers get KAFKA_STORAGE_ERROR and retry; check the index");
        }
        ReadError::Storage
    }
}
