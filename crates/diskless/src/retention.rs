//! Decides from which offset on retention keeps the records of a partition, by their total size and by their age.
//!
//! `housekeeping` decides when retention runs, and `partition` moves the log start.
//!
//! After the log start has moved, the index removes the extents before it later, in small steps. Until then, the size
//! of the partition includes these extents. The search by size therefore begins at the first extent in the index, not
//! at the log start. Invariant: extents that wait for their removal do not move the log start again, even if several
//! brokers check the partition.

use std::ops::Range;

use fullbore_rules::commit::{BatchRun, DisklessPartitionId, drawn_ms};

use super::index::RunFinder;
use super::partition_view::PartitionView;

/// Maximum number of extents that one query returns.
const RUNS_LOOKED_AT: usize = 64;

/// Returns the offset from which on records are kept. Only whole extents are removed: those that exceed the size limit
/// `bytes_max`, and those with only records older than `since_ms`. Returns `None` if the index does not have the
/// partition, fails, or removes extents during the search.
pub async fn kept_from(
    finder: &RunFinder,
    partition: &PartitionView,
    bytes_max: Option<u64>,
    since_ms: Option<i64>,
) -> Option<i64> {
    let number = partition.number()?;
    let offsets = partition.offsets();
    let mut from = offsets.log_start;
    if let Some(since_ms) = since_ms {
        from = young_from(finder, number, from..offsets.log_end, since_ms).await?;
    }
    if let Some(max) = bytes_max {
        from = from.max(within(finder, partition, max).await?);
    }
    Some(from)
}

/// Returns the offset of the oldest extent with a record of `since_ms` or later, or the log end if there is none. The
/// caller keeps this extent and all later ones, as Kafka does with segments. Returns `None` if the index fails.
///
/// The search looks at the extents one after another. An index by time cannot replace it, because a record may have a
/// timestamp in the future, or none. All extents before the result are removed, so each is looked at only once. Usually
/// nothing is removed, so the first query reads one extent. After that, the index skips extents that are too old as a
/// whole, without reading their batches.
async fn young_from(finder: &RunFinder, number: DisklessPartitionId, log: Range<i64>, since_ms: i64) -> Option<i64> {
    let (mut from, mut count) = (log.start, 1);
    while from < log.end {
        let runs = finder.runs_from(number, from, count).await.ok()?;
        let Some(last) = runs.last() else { break };
        if let Some(young) = runs.iter().find(|run| has_since(run, log.start, since_ms)) {
            return Some(young.base_offset.clamp(log.start, log.end));
        }
        if last.end_offset() <= from && count > 1 {
            // The index has no later extents.
            break;
        }
        from = from.max(last.end_offset());
        count = RUNS_LOOKED_AT;
        if let Some(next) = finder.skip_old(number, from, since_ms).await.ok()? {
            from = from.max(next);
        }
    }
    Some(from.min(log.end))
}

/// Returns true if the extent has a batch that ends after the log start and is as new as `since_ms`. A batch without
/// timestamps is as old as its object. Kafka then uses the modification time of the segment.
fn has_since(run: &BatchRun, log_start: i64, since_ms: i64) -> bool {
    let drawn_ms = drawn_ms(run.object);
    run.placed().any(|(_, base_offset, batch)| {
        let time_ms = if batch.max_timestamp < 0 { drawn_ms } else { batch.max_timestamp };
        time_ms >= since_ms && base_offset + i64::from(batch.record_count) > log_start
    })
}

/// Returns the end of the oldest extents that can be removed while the partition keeps at least `bytes_max` bytes.
/// Returns `None` if the index fails, or if extents are removed during the search.
async fn within(finder: &RunFinder, partition: &PartitionView, bytes_max: u64) -> Option<i64> {
    let number = partition.number()?;
    let Some(first) = finder.runs_from(number, 0, 1).await.ok()?.pop() else { return Some(0) };
    // Read the row after the first extent. If the index removes extents in between, the search below does not find the
    // first extent, and returns `None`.
    let row = finder.partitions(vec![number]).await.ok()?.pop()?;
    partition.moved(&row, Vec::new());
    let mut over = u64::try_from(row.bytes).unwrap_or(0).saturating_sub(bytes_max);
    let mut end = first.base_offset;
    while over > 0 {
        let runs = finder.runs_from(number, end, RUNS_LOOKED_AT).await.ok()?;
        runs.first().filter(|run| run.base_offset == end)?;
        for run in &runs {
            let size = u64::from(run.bytes());
            if size > over {
                return Some(end);
            }
            over -= size;
            end = run.end_offset();
        }
    }
    Some(end)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use fullbore_rules::commit::{BatchKind, ObjectBatch};
    use fullbore_rules::sequence::{NO_PRODUCER_ID, Stamp};
    use fullbore_wire::Uuid;

    use super::super::index::counted::Counted;
    use super::super::index::{Index, IndexStore, PartitionRow, SqliteIndex, UploadedObject};
    use super::*;
    use fullbore_config::{BrokerConfig, Properties};

    fn row_of(store: &SqliteIndex) -> PartitionRow {
        store.partitions()[0]
    }

    #[tokio::test]
    async fn deleted_runs_are_still_in_the_index_retention_counts_them_once() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let open = || SqliteIndex::open(directory.path()).expect("opened");
        let mut store = open();
        let row = store.create("topic", Uuid([1; 16]), 1).expect("made")[0];
        let objects = store.register(4, 0).expect("registered");
        let stamp = Stamp { producer_id: NO_PRODUCER_ID, producer_epoch: 0, base_sequence: 0, record_count: 1 };
        let batch = ObjectBatch {
            partition: row.id,
            position: 0,
            size: 100,
            stamp,
            max_timestamp: 7,
            kind: BatchKind::Plain,
            confirmation: None,
        };
        let uploaded: Vec<_> = objects.iter().map(|id| UploadedObject { id: *id, batches: vec![batch] }).collect();
        Index::new(open(), 5).commit(&uploaded, 0).expect("committed");

        let (config, _) = BrokerConfig::from_properties(&Properties::default()).expect("valid");
        let view = || PartitionView::new("topic".into(), Uuid([1; 16]), 0, Arc::new(config.topics.defaults.clone()));
        let (here, elsewhere) = (view(), view());
        [&here, &elsewhere].iter().for_each(|view| view.make_ready(&row_of(&store)));
        let finder = RunFinder::open(directory.path()).expect("opened");
        assert_eq!(kept_from(&finder, &here, Some(200), None).await, Some(2));
        let moved = store.move_log_start(row.id, 2).expect("moved").expect("it is there");
        here.moved(&moved, Vec::new());
        for runs_cleared in [0, 1, 2] {
            for view in [&here, &elsewhere] {
                let from = kept_from(&finder, view, Some(200), None).await.expect("known");
                assert!(from <= 2, "from {from} with {runs_cleared} of 2 runs cleared");
            }
            store.clear(1, 0).expect("cleared");
        }
        assert_eq!((here.size(), kept_from(&finder, &here, Some(100), None).await), (200, Some(3)));
    }

    /// Creates a partition that has an object with one record for each of `times`. The objects are registered at the
    /// given time.
    fn partition_of(directory: &Path, times: &[i64], registered_ms: i64) -> (SqliteIndex, PartitionView) {
        let mut store = SqliteIndex::open(directory).expect("opened");
        let row = store.create("topic", Uuid([1; 16]), 1).expect("made")[0];
        let stamp = Stamp { producer_id: NO_PRODUCER_ID, producer_epoch: 0, base_sequence: 0, record_count: 1 };
        let objects = store.register(times.len(), registered_ms).expect("registered");
        let uploaded = |(id, max_timestamp): (&i64, &i64)| {
            let batch = ObjectBatch {
                partition: row.id,
                position: 0,
                size: 100,
                stamp,
                max_timestamp: *max_timestamp,
                kind: BatchKind::Plain,
                confirmation: None,
            };
            UploadedObject { id: *id, batches: vec![batch] }
        };
        let uploaded: Vec<_> = objects.iter().zip(times).map(uploaded).collect();
        Index::new(SqliteIndex::open(directory).expect("opened"), 5).commit(&uploaded, 0).expect("committed");
        let (config, _) = BrokerConfig::from_properties(&Properties::default()).expect("valid");
        let view = PartitionView::new("topic".into(), Uuid([1; 16]), 0, Arc::new(config.topics.defaults));
        view.make_ready(&row_of(&store));
        (store, view)
    }

    #[tokio::test]
    async fn a_timestamp_in_the_future_keeps_nothing_once_its_record_is_deleted() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        // The partition gets more extents than one query returns.
        let times: Vec<i64> = [10, 1_000_000].into_iter().chain(20..120).collect();
        let (mut store, view) = partition_of(directory.path(), &times, 0);
        let row = row_of(&store);
        let finder = RunFinder::open(directory.path()).expect("opened");
        assert_eq!(kept_from(&finder, &view, None, Some(100)).await, Some(1), "it is the oldest that is left");
        view.moved(&store.move_log_start(row.id, 2).expect("moved").expect("it is there"), Vec::new());
        for (since_ms, from) in [(5, 2), (21, 3), (100, 82), (119, 101), (120, 102)] {
            assert_eq!(kept_from(&finder, &view, None, Some(since_ms)).await, Some(from), "since {since_ms}");
        }
    }

    /// Regression: the search read the batches of all extents, 64 extents at a time.
    #[tokio::test]
    async fn thousands_of_extents_are_old_few_calls_find_the_first_to_keep() {
        const UPLOADED_MS: i64 = 1_700_000_000_000;
        let directory = tempfile::tempdir().expect("a temporary directory");
        let times: Vec<i64> = (0..2_500).chain([UPLOADED_MS + 5, 5, -1]).collect();
        let (_, view) = partition_of(directory.path(), &times, UPLOADED_MS);
        let (finder, calls) = Counted::finder(directory.path());
        for (since_ms, from) in [(UPLOADED_MS + 1, 2_500), (UPLOADED_MS + 6, 2_503)] {
            assert_eq!(kept_from(&finder, &view, None, Some(since_ms)).await, Some(from), "since {since_ms}");
        }
        assert!(calls.load(Ordering::Relaxed) < 20, "{calls:?}");
        // The objects are as new as these times, so the index skips no extent.
        for (since_ms, from) in [(2_000, 2_000), (UPLOADED_MS, 2_500)] {
            assert_eq!(kept_from(&finder, &view, None, Some(since_ms)).await, Some(from), "since {since_ms}");
        }
    }

    /// Records without timestamps (-1) are kept by the time of their object.
    #[tokio::test]
    async fn records_without_timestamps_are_kept_since_their_upload() {
        const UPLOADED_MS: i64 = 1_700_000_000_000;
        let directory = tempfile::tempdir().expect("a temporary directory");
        let times: Vec<i64> = [10, -1, -5, UPLOADED_MS + 10].into_iter().chain([-1; 100]).collect();
        let (mut store, view) = partition_of(directory.path(), &times, UPLOADED_MS);
        let finder = RunFinder::open(directory.path()).expect("opened");
        for (since_ms, from) in [(5, 0), (11, 1), (UPLOADED_MS, 1), (UPLOADED_MS + 1, 3), (UPLOADED_MS + 11, 104)] {
            assert_eq!(kept_from(&finder, &view, None, Some(since_ms)).await, Some(from), "since {since_ms}");
        }
        view.moved(&store.move_log_start(row_of(&store).id, 4).expect("moved").expect("it is there"), Vec::new());
        assert_eq!(kept_from(&finder, &view, None, Some(UPLOADED_MS)).await, Some(4));
    }
}
