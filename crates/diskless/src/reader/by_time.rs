//! Answers ListOffsets by time for a diskless partition: the first record that is not older than a given time, and the
//! record with the largest timestamp.
//!
//! The row of each extent has the largest timestamp of all records from the start of the partition to the end of the
//! extent. A binary search therefore finds the first extent that may have the record. However, a record dated in the
//! future raises this value for all later extents, even after its deletion. From the found extent on, each batch is
//! therefore checked by its own largest timestamp.
//!
//! Invariant: an answer is never a record before the log start.

use std::ops::Range;
use std::sync::Arc;

use fullbore_rules::commit::{BatchRun, DisklessPartitionId, PackedBatch};

use super::{Place, Reader, ReaderShared};
use crate::partition_view::PartitionView;
use fullbore_host::long_work::LongWork;
use fullbore_log::partition::error::ReadError;
use fullbore_log::partition::read::{Isolation, TimestampOffset};
use fullbore_log::times::{self, DecompressionAllowance};

/// Maximum number of extents in a page.
const RUNS_LOOKED_AT: usize = 64;

/// Reads the extents of a partition page by page.
struct Runs<'a> {
    shared: &'a ReaderShared,
    number: DisklessPartitionId,
    /// The first offset of the next page.
    from: i64,
    log_start: i64,
    /// The offset after the last record that a consumer may read, at the isolation level of the request.
    end: i64,
}

impl<'a> Runs<'a> {
    /// Returns the pages of extents, from the first extent on that may have a record of `timestamp_ms` or later.
    /// Returns `None` if there is no such extent.
    async fn since(
        shared: &'a ReaderShared,
        partition: &PartitionView,
        isolation: Isolation,
        timestamp_ms: i64,
    ) -> Result<Option<Runs<'a>>, ReadError> {
        let Some(number) = partition.number() else { return Err(ReadError::Storage) };
        let bounds = partition.bounds();
        let (log_start, end) = (bounds.offsets.log_start, bounds.end(isolation));
        let first = shared.finder.first_run_at(number, log_start..end, timestamp_ms).await;
        let first = first.map_err(|error| shared.find_failed(&error))?;
        Ok(first.map(|first| Runs { shared, number, from: first.base_offset, log_start, end }))
    }

    /// Returns the next page. After the last page, returns an empty one.
    async fn next(&mut self) -> Result<Vec<BatchRun>, ReadError> {
        if self.from >= self.end {
            return Ok(Vec::new());
        }
        let runs = self.shared.finder.runs_from(self.number, self.from, RUNS_LOOKED_AT).await;
        let runs = runs.map_err(|error| self.shared.find_failed(&error))?;
        self.from = runs.last().map_or(self.end, BatchRun::end_offset);
        Ok(runs)
    }
}

/// Returns the batches of `run` with records in `offsets`, and the position of each batch.
fn kept(run: &BatchRun, offsets: Range<i64>) -> impl Iterator<Item = (Place, PackedBatch)> {
    let placed = run.placed().map(move |(position, base_offset, batch)| {
        let end_offset = base_offset + i64::from(batch.record_count);
        (Place { object: run.object, position, size: batch.size, base_offset, end_offset }, *batch)
    });
    placed.filter(move |(place, _)| place.end_offset > offsets.start && place.base_offset < offsets.end)
}

impl Reader {
    /// Returns the first record at or after the log start whose timestamp is at least `timestamp_ms`. Returns `None` if
    /// all records are older. Decompresses one batch at a time, with a permit for `long` work.
    ///
    /// # Errors
    /// Returns a [`ReadError`] if the index or the store cannot be read.
    pub async fn offset_for_timestamp(
        &self,
        partition: &Arc<PartitionView>,
        isolation: Isolation,
        timestamp_ms: i64,
        long: &LongWork,
    ) -> Result<Option<TimestampOffset>, ReadError> {
        let since = Runs::since(&self.shared, partition, isolation, timestamp_ms);
        let Some(mut pages) = since.await? else { return Ok(None) };
        let (floor, end, mut allowance) = (pages.log_start, pages.end, DecompressionAllowance::default());
        loop {
            let runs = pages.next().await?;
            if runs.is_empty() {
                return Ok(None);
            }
            let batches = runs.iter().flat_map(|run| kept(run, floor..end));
            for (place, _) in batches.filter(|(_, batch)| batch.max_timestamp >= timestamp_ms) {
                let bytes = self.shared.batch(partition, place).await?;
                let opened_max = partition.config().max_message_bytes;
                let search = || times::first_record_at(&bytes, timestamp_ms, floor, opened_max, &mut allowance);
                let found = long.run(search).await;
                if let Some(found) = found.filter(|found| found.offset < end) {
                    return Ok(Some(found));
                }
            }
        }
    }

    /// Returns the first record at or after the log start that has the largest timestamp. Returns `None` if there are
    /// no records. All extents must be read if the record with the largest timestamp ever is deleted, or may belong to
    /// an open transaction.
    ///
    /// # Errors
    /// Returns a [`ReadError`] if the index or the store cannot be read.
    pub async fn max_timestamp(
        &self,
        partition: &Arc<PartitionView>,
        isolation: Isolation,
        long: &LongWork,
    ) -> Result<Option<TimestampOffset>, ReadError> {
        // Read the timestamp before the bounds. The record with this timestamp is then before the log end, or was
        // deleted.
        let ever = partition.largest_timestamp();
        let bounds = partition.bounds();
        // While a transaction is open, the consumer may not be allowed to see this record, so all extents must be read.
        let since = if bounds.end(isolation) < bounds.offsets.log_end { i64::MIN } else { ever };
        let Some(mut pages) = Runs::since(&self.shared, partition, isolation, since).await? else { return Ok(None) };
        let (floor, end, mut largest) = (pages.log_start, pages.end, None);
        'pages: loop {
            let runs = pages.next().await?;
            if runs.is_empty() {
                break;
            }
            for (place, batch) in runs.iter().flat_map(|run| kept(run, floor..end)) {
                if Some(batch.max_timestamp) <= largest {
                    continue;
                }
                let of_batch = if place.base_offset < floor {
                    let bytes = self.shared.batch(partition, place).await?;
                    let opened_max = partition.config().max_message_bytes;
                    long.run(|| times::largest_at(&bytes, floor, opened_max)).await
                } else {
                    Some(batch.max_timestamp)
                };
                largest = largest.max(of_batch);
                if largest >= Some(ever) {
                    break 'pages;
                }
            }
        }
        match largest {
            Some(largest) => self.offset_for_timestamp(partition, isolation, largest, long).await,
            None => Ok(None),
        }
    }
}
