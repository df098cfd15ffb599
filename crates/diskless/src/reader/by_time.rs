//! Answers ListOffsets by time for diskless partitions: the first record that is not older than a given time, and the
//! record with the largest timestamp.
//!
//! The row of each extent has the largest timestamp of all records from the start of the partition to the end of the
//! extent. A binary search therefore finds the first extent that may have the record. It runs for all partitions of a
//! request together. However, a record dated in the future raises this value for all later extents, even after its
//! deletion. From the found extent on, each batch is therefore checked by its own largest timestamp.
//!
//! Invariant: an answer is never a record before the log start. Dropping the future ends all look-ups of a request.

use std::ops::Range;
use std::sync::Arc;

use fullbore_rules::commit::{BatchRun, DisklessPartitionId, PackedBatch};
use futures_util::stream::{self, StreamExt};

use super::{Place, Reader, ReaderShared};
use crate::index::{RUNS_AT_ONCE, TimeSearch};
use crate::partition_view::PartitionView;
use fullbore_db::StoreError;
use fullbore_host::long_work::LongWork;
use fullbore_log::partition::error::ReadError;
use fullbore_log::partition::read::{Isolation, TimeQuery, TimestampOffset};
use fullbore_log::times::{self, DecompressionAllowance};

/// Maximum number of extents in a page.
const RUNS_LOOKED_AT: usize = 64;
/// Maximum number of partitions of a request whose batches are read at the same time. Each of them may wait for a GET.
const LOOK_UPS: usize = 8;

/// The result of a query: `None` if no record matches.
type Found = Result<Option<TimestampOffset>, ReadError>;

/// A query about one partition.
struct LookUp<'a> {
    shared: &'a ReaderShared,
    long: &'a LongWork,
    partition: &'a PartitionView,
    number: DisklessPartitionId,
    /// The timestamp in ms from which on a record may match.
    since_ms: i64,
    /// True if the query is for the largest timestamp.
    is_largest: bool,
    /// The largest timestamp that the partition ever had, in ms.
    ever_ms: i64,
    log_start: i64,
    /// The offset after the last record that a consumer may read, at the isolation level of the request.
    end: i64,
    /// How much the look-up may still decompress.
    allowance: DecompressionAllowance,
}

/// Reads the extents of a partition page by page.
struct Pages {
    /// The first offset of the next page.
    from: i64,
    /// The extent that begins at `from`, if it has been read already.
    first: Option<BatchRun>,
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
    /// Answers all `queries` of a request, in order. Finds the extents of all partitions together, and reads the
    /// batches of [`LOOK_UPS`] partitions at a time. Decompresses one batch of a partition at a time, with a permit for
    /// `long` work.
    ///
    /// Returns a [`ReadError`] for each partition whose part of the index or of the store cannot be read.
    pub async fn offsets_by_time(
        &self,
        queries: &[(Arc<PartitionView>, TimeQuery)],
        isolation: Isolation,
        long: &LongWork,
    ) -> Vec<Found> {
        let mut answers: Vec<Found> = queries.iter().map(|_| Ok(None)).collect();
        let mut look_ups = Vec::with_capacity(queries.len());
        for (at, (partition, query)) in queries.iter().enumerate() {
            match LookUp::new(&self.shared, long, partition, *query, isolation) {
                Some(look_up) => look_ups.push((at, look_up)),
                None => answers[at] = Err(ReadError::Storage),
            }
        }
        let searches = look_ups.iter().map(|(_, look_up)| look_up.search()).collect();
        let firsts = match self.shared.finder.first_runs_at(searches).await {
            Ok(firsts) => firsts,
            Err(error) => {
                self.fail(&mut answers, look_ups.iter().map(|(at, _)| *at), &error);
                return answers;
            }
        };
        let there = look_ups.into_iter().zip(firsts).filter_map(|((at, look_up), first)| Some((at, look_up, first?)));
        let mut there: Vec<_> = there.collect();
        while !there.is_empty() {
            // Only the extents of these partitions are in memory.
            let rest = there.split_off(there.len().min(RUNS_AT_ONCE));
            let places = there.iter().map(|(_, look_up, first)| (look_up.number, *first)).collect();
            let runs = match self.shared.finder.runs_at(places).await {
                Ok(runs) => runs,
                Err(error) => {
                    // The index would fail for the rest too, but perhaps only after a time-out each.
                    self.fail(&mut answers, there.iter().chain(&rest).map(|(at, ..)| *at), &error);
                    return answers;
                }
            };
            let mut under_way = Vec::with_capacity(there.len());
            for ((at, look_up, first), run) in there.into_iter().zip(runs) {
                let pages = Pages { from: first, first: run.filter(|run| run.base_offset == first) };
                under_way.push(async move { (at, look_up.run(pages).await) });
            }
            let mut done = stream::iter(under_way).buffer_unordered(LOOK_UPS);
            while let Some((at, found)) = done.next().await {
                answers[at] = found;
            }
            there = rest;
        }
        answers
    }

    /// Sets the answers at these positions to the error of the index, which is logged once.
    fn fail(&self, answers: &mut [Found], at: impl Iterator<Item = usize>, error: &StoreError) {
        let why = self.shared.find_failed(error);
        at.for_each(|at| answers[at] = Err(why));
    }
}

impl<'a> LookUp<'a> {
    /// Prepares a query. Returns `None` if the index has not created the partition yet.
    fn new(
        shared: &'a ReaderShared,
        long: &'a LongWork,
        partition: &'a PartitionView,
        query: TimeQuery,
        isolation: Isolation,
    ) -> Option<LookUp<'a>> {
        let number = partition.number()?;
        // Read the timestamp before the bounds. The record with this timestamp is then before the log end, or was
        // deleted.
        let ever_ms = partition.largest_timestamp();
        let bounds = partition.bounds();
        let (log_start, end) = (bounds.offsets.log_start, bounds.end(isolation));
        let (since_ms, is_largest) = match query {
            TimeQuery::Since(since_ms) => (since_ms, false),
            // While a transaction is open, the consumer may not be allowed to see the record with the largest
            // timestamp, so all extents must be read.
            TimeQuery::Largest if end < bounds.offsets.log_end => (i64::MIN, true),
            TimeQuery::Largest => (ever_ms, true),
        };
        let allowance = DecompressionAllowance::default();
        Some(LookUp { shared, long, partition, number, since_ms, is_largest, ever_ms, log_start, end, allowance })
    }

    /// Returns the search for the first extent that may have the record.
    fn search(&self) -> TimeSearch {
        TimeSearch::new(self.number, self.log_start..self.end, self.since_ms)
    }

    /// Answers the query by the extents in `pages`.
    async fn run(mut self, pages: Pages) -> Found {
        if self.is_largest { self.largest(pages).await } else { self.first_since(pages, self.since_ms).await }
    }

    /// Returns the next page. After the last page, returns an empty one.
    async fn next(&self, pages: &mut Pages) -> Result<Vec<BatchRun>, ReadError> {
        let runs = match pages.first.take() {
            Some(first) => vec![first],
            None if pages.from >= self.end => return Ok(Vec::new()),
            None => {
                let runs = self.shared.finder.runs_from(self.number, pages.from, RUNS_LOOKED_AT).await;
                runs.map_err(|error| self.shared.find_failed(&error))?
            }
        };
        pages.from = runs.last().map_or(self.end, BatchRun::end_offset);
        Ok(runs)
    }

    /// Returns the first record in `pages`, at or after the log start, whose timestamp is at least `since_ms`. Returns
    /// `None` if all records are older.
    async fn first_since(&mut self, mut pages: Pages, since_ms: i64) -> Found {
        loop {
            let runs = self.next(&mut pages).await?;
            if runs.is_empty() {
                return Ok(None);
            }
            let batches = runs.iter().flat_map(|run| kept(run, self.log_start..self.end));
            let places: Vec<_> =
                batches.filter(|(_, batch)| batch.max_timestamp >= since_ms).map(|(place, _)| place).collect();
            for place in places {
                if let Some(found) = self.record_in(place, since_ms).await? {
                    return Ok(Some(found));
                }
            }
        }
    }

    /// Returns the first record of a batch, at or after the log start, whose timestamp is at least `since_ms`.
    async fn record_in(&mut self, place: Place, since_ms: i64) -> Found {
        let bytes = self.shared.batch(self.partition, place).await?;
        let (log_start, opened_max) = (self.log_start, self.partition.config().max_message_bytes);
        let allowance = &mut self.allowance;
        let search = || times::first_record_at(&bytes, since_ms, log_start, opened_max, allowance);
        Ok(self.long.run(search).await.filter(|found| found.offset < self.end))
    }

    /// Returns the first record at or after the log start that has the largest timestamp. Returns `None` if there are
    /// no records. All extents must be read if the record with the largest timestamp ever is deleted, or may belong to
    /// an open transaction.
    async fn largest(&mut self, mut pages: Pages) -> Found {
        let mut largest: Option<(i64, Place)> = None;
        'pages: loop {
            let runs = self.next(&mut pages).await?;
            if runs.is_empty() {
                break;
            }
            for (place, batch) in runs.iter().flat_map(|run| kept(run, self.log_start..self.end)) {
                if largest.is_some_and(|(known_ms, _)| batch.max_timestamp <= known_ms) {
                    continue;
                }
                let of_batch = self.largest_in(place, batch).await?;
                if let Some(of_batch) = of_batch.filter(|at| largest.is_none_or(|(known_ms, _)| *at > known_ms)) {
                    largest = Some((of_batch, place));
                }
                if largest.is_some_and(|(known_ms, _)| known_ms >= self.ever_ms) {
                    break 'pages;
                }
            }
        }
        let Some((largest_ms, place)) = largest else { return Ok(None) };
        match self.record_in(place, largest_ms).await? {
            Some(found) => Ok(Some(found)),
            None => self.first_since(Pages { from: place.end_offset, first: None }, largest_ms).await,
        }
    }

    /// Returns the largest timestamp of a batch. Reads the batch only if it contains the log start.
    async fn largest_in(&self, place: Place, batch: PackedBatch) -> Result<Option<i64>, ReadError> {
        if place.base_offset >= self.log_start {
            return Ok(Some(batch.max_timestamp));
        }
        let bytes = self.shared.batch(self.partition, place).await?;
        let opened_max = self.partition.config().max_message_bytes;
        Ok(self.long.run(|| times::largest_at(&bytes, self.log_start, opened_max)).await)
    }
}
