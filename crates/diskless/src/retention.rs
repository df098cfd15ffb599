//! Decides from which offset on retention keeps the records of a partition, by their total size and by their age.
//!
//! `housekeeping` decides when retention runs, and `partition` moves the log start.
//!
//! After the log start has moved, the index removes the extents before it later, in small steps. Until then, the size
//! of the partition includes these extents. The search by size therefore begins at the first extent in the index, not
//! at the log start. Invariant: extents that wait for their removal do not move the log start again, even if several
//! brokers check the partition.

use std::ops::Range;

use fullbore_rules::commit::{BatchRun, DisklessPartitionId};

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
async fn young_from(finder: &RunFinder, number: DisklessPartitionId, log: Range<i64>, since_ms: i64) -> Option<i64> {
    let (log_start, log_end) = (log.start, log.end);
    let found = finder.first_run_at(number, log_start..log_end, since_ms).await.ok()?;
    let mut from = found.map_or(log_end, |run| run.base_offset.max(log_start));
    // The search compares `since_ms` with the largest timestamp up to the end of each extent. A record dated in the
    // future raises this timestamp for all later extents, even after its deletion. Check each extent by its own
    // records, too.
    while from < log_end {
        let runs = finder.runs_from(number, from, RUNS_LOOKED_AT).await.ok()?;
        let Some(last) = runs.last() else { break };
        if let Some(young) = runs.iter().find(|run| has_since(run, log_start, since_ms)) {
            return Some(young.base_offset.clamp(log_start, log_end));
        }
        from = last.end_offset();
    }
    Some(from.min(log_end))
}

/// Returns true if the extent has a batch that ends after the log start and has a timestamp of at least `since_ms`.
fn has_since(run: &BatchRun, log_start: i64, since_ms: i64) -> bool {
    run.placed().any(|(_, base_offset, batch)| {
        batch.max_timestamp >= since_ms && base_offset + i64::from(batch.record_count) > log_start
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
    use std::sync::Arc;

    use fullbore_rules::commit::{BatchKind, ObjectBatch};
    use fullbore_rules::sequence::{NO_PRODUCER_ID, Stamp};
    use fullbore_wire::Uuid;

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

    #[tokio::test]
    async fn a_timestamp_in_the_future_keeps_nothing_once_its_record_is_deleted() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut store = SqliteIndex::open(directory.path()).expect("opened");
        let row = store.create("topic", Uuid([1; 16]), 1).expect("made")[0];
        let stamp = Stamp { producer_id: NO_PRODUCER_ID, producer_epoch: 0, base_sequence: 0, record_count: 1 };
        // The partition gets more extents than one query returns.
        let times: Vec<i64> = [10, 1_000_000].into_iter().chain(20..120).collect();
        let objects = store.register(times.len(), 0).expect("registered");
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
        let uploaded: Vec<_> = objects.iter().zip(&times).map(uploaded).collect();
        Index::new(SqliteIndex::open(directory.path()).expect("opened"), 5).commit(&uploaded, 0).expect("committed");
        let (config, _) = BrokerConfig::from_properties(&Properties::default()).expect("valid");
        let view = PartitionView::new("topic".into(), Uuid([1; 16]), 0, Arc::new(config.topics.defaults));
        view.make_ready(&row_of(&store));
        let finder = RunFinder::open(directory.path()).expect("opened");
        assert_eq!(kept_from(&finder, &view, None, Some(100)).await, Some(1), "it is the oldest that is left");
        view.moved(&store.move_log_start(row.id, 2).expect("moved").expect("it is there"), Vec::new());
        for (since_ms, from) in [(5, 2), (21, 3), (100, 82), (119, 101), (120, 102)] {
            assert_eq!(kept_from(&finder, &view, None, Some(since_ms)).await, Some(from), "since {since_ms}");
        }
    }
}
