//! Searches extents by time, in many partitions at once.
//!
//! A binary search works because `max_timestamp_so_far` never falls as offsets grow. One statement does a step for all
//! partitions that are still searched. It covers at most [`SEARCHES_AT_ONCE`] partitions, so that other searches can
//! run in between.
//!
//! Invariant: a search halves its range with each step, so it ends after at most 64 steps.

use std::ops::Range;

use fullbore_rules::commit::{BatchRun, DisklessPartitionId};

use super::RunFinder;
use fullbore_db::StoreError;

/// Maximum number of partitions in one statement of a search.
const SEARCHES_AT_ONCE: usize = 1_000;
/// Maximum number of complete extents that one call returns. An extent may have 100,000 batches.
pub const RUNS_AT_ONCE: usize = 64;

/// A partition and an offset in it.
pub type RunPlace = (DisklessPartitionId, i64);

/// The columns of an extent that a search by time needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunTime {
    pub base_offset: i64,
    pub max_timestamp_so_far: i64,
}

/// A search for the first extent in a range of offsets whose `max_timestamp_so_far` is at least a given timestamp.
#[derive(Clone, Debug)]
pub struct TimeSearch {
    partition: DisklessPartitionId,
    timestamp_ms: i64,
    /// Every extent that begins before this offset is too old.
    low: i64,
    /// The search is over when `low` reaches this offset. `found`, if any, begins here.
    high: i64,
    found: Option<i64>,
}

impl TimeSearch {
    /// Creates a search among the extents with records in `offsets`.
    pub fn new(partition: DisklessPartitionId, offsets: Range<i64>, timestamp_ms: i64) -> TimeSearch {
        TimeSearch { partition, timestamp_ms, low: offsets.start, high: offsets.end, found: None }
    }

    /// Returns the place of the next step, or `None` if the search is over.
    fn next(&self) -> Option<RunPlace> {
        (self.low < self.high).then(|| (self.partition, self.low + (self.high - self.low) / 2))
    }

    /// Narrows the range. `run` is the last extent that begins at or before `middle`, the place of this step.
    fn narrow(&mut self, middle: i64, run: Option<RunTime>) {
        match run {
            Some(run) if run.max_timestamp_so_far >= self.timestamp_ms => {
                self.high = run.base_offset;
                self.found = Some(run.base_offset);
            }
            _ => self.low = middle + 1,
        }
    }
}

impl RunFinder {
    /// Returns the first offset of the extent that each search finds, in the order of `searches`. Returns `None` for a
    /// partition without such an extent.
    ///
    /// # Errors
    /// Returns a [`StoreError`] if the index cannot be read.
    pub async fn first_runs_at(&self, mut searches: Vec<TimeSearch>) -> Result<Vec<Option<i64>>, StoreError> {
        for searches in searches.chunks_mut(SEARCHES_AT_ONCE) {
            loop {
                let (mut open, mut places) = (Vec::new(), Vec::new());
                for search in searches.iter_mut() {
                    if let Some(place) = search.next() {
                        places.push(place);
                        open.push((search, place.1));
                    }
                }
                if places.is_empty() {
                    break;
                }
                let runs = self.find(move |finder| finder.last_times(&places)).await?;
                open.into_iter().zip(runs).for_each(|((search, middle), run)| search.narrow(middle, run));
            }
        }
        Ok(searches.iter().map(|search| search.found).collect())
    }

    /// Returns the extents that contain these places, in order. Returns `None` for an extent that was removed. The
    /// caller must pass at most [`RUNS_AT_ONCE`] places.
    ///
    /// # Errors
    /// Returns a [`StoreError`] if the index cannot be read.
    pub async fn runs_at(&self, places: Vec<RunPlace>) -> Result<Vec<Option<BatchRun>>, StoreError> {
        debug_assert!(places.len() <= RUNS_AT_ONCE, "{} places", places.len());
        self.find(move |finder| finder.last_runs(&places)).await
    }
}

#[cfg(test)]
mod tests {
    use fullbore_rules::commit::{ObjectBatch, drawn_ms};
    use fullbore_schedules::Random;

    use super::super::postgres::tests::PostgresBackEnd;
    use super::super::tests::{BackEnd, NOW, Opened, SqliteBackEnd, batch, by, on_each_back_end};
    use super::*;

    on_each_back_end! {
        partitions_have_random_extents_their_searches_agree_with_a_scan
    }

    fn partitions_have_random_extents_their_searches_agree_with_a_scan<B: BackEnd>() {
        let (mut opened, mut random) = (Opened::<B>::new(7), Random::new(7));
        let partitions = opened.partitions.clone();
        for _ in 0..40 {
            let object = opened.object();
            let mut batches = Vec::new();
            // The first partition stays empty, and each object has batches for only some of the others.
            for partition in partitions.iter().skip(1) {
                for _ in 0..random.below(4) {
                    let max_timestamp = if random.below(9) == 0 { -1 } else { NOW + random.between(0, 60) };
                    let position = 100 * batches.len() as u32;
                    batches.push(by(-1, ObjectBatch { max_timestamp, ..batch(*partition, position, 0) }));
                }
            }
            opened.commit(object, &batches);
        }
        let mut source = opened.back_end.finder();
        let runs: Vec<_> = partitions.iter().map(|id| source.runs_from(*id, 0, 100).expect("read")).collect();
        for (partition, runs) in partitions.iter().zip(&runs) {
            for _ in 0..20 {
                let from = random.between(0, runs.last().map_or(0, BatchRun::end_offset) + 2);
                let since = random.between(NOW - 2, NOW + 62);
                let mut later = runs.iter().filter(|run| run.base_offset >= from);
                let last = later.clone().next_back();
                let is_new = |run: &&BatchRun| run.max_timestamp_so_far >= since || drawn_ms(run.object) >= since;
                let expected = later.find(is_new).or(last).map(|run| run.base_offset);
                assert_eq!(source.skip_old(*partition, from, since), Ok(expected), "from {from}, since {since}");
            }
        }
        let finder = RunFinder::over(vec![source]);
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        for _ in 0..50 {
            let (mut searches, mut expected) = (Vec::new(), Vec::new());
            for (partition, runs) in partitions.iter().zip(&runs) {
                let ends = runs.last().map_or(0, BatchRun::end_offset);
                let (start, since) = (random.between(0, ends + 2), random.between(NOW - 2, NOW + 62));
                let end = start + random.between(0, ends + 2);
                searches.push(TimeSearch::new(*partition, start..end, since));
                let mut inside = runs.iter().filter(|run| run.end_offset() > start && run.base_offset < end);
                let first = inside.find(|run| run.max_timestamp_so_far >= since && start < end);
                expected.push(first.map(|run| run.base_offset));
            }
            let found = runtime.block_on(finder.first_runs_at(searches.clone())).expect("read");
            // An extent that ends before the range may be found if the range begins after the last extent.
            for (at, search) in searches.iter().enumerate() {
                let is_past = runs[at].last().is_none_or(|last| last.end_offset() <= search.low);
                assert!(found[at] == expected[at] || is_past, "{search:?}: {found:?} instead of {expected:?}");
            }
            let places: Vec<_> = partitions.iter().zip(&found).filter_map(|(id, at)| Some((*id, (*at)?))).collect();
            let whole = runtime.block_on(finder.runs_at(places.clone())).expect("read");
            let whole: Vec<_> = whole.into_iter().flatten().map(|run| (run.partition, run.base_offset)).collect();
            assert_eq!(whole, places);
        }
    }
}
