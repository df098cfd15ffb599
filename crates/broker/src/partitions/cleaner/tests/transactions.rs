//! Tests the compaction of logs with transactions: the records that consumers read, the markers that must stay, and a
//! crash at each moment.

mod model;

use std::collections::HashSet;

use fullbore_log::Verification;
use fullbore_log::partition::outcome::AppendStep;
use fullbore_log::partition::read::Isolation;
use fullbore_log::txn_index::AbortedTransaction;
use fullbore_rules::sequence::Marker;
use fullbore_wire::batch::{BatchView, EndTransactionMarker};

use super::*;

/// The delete.retention.ms of the topic.
const RETENTION_MS: i64 = 1000;

/// Keys and values of records, by offset. The value of a tombstone is `None`.
type Taken = BTreeMap<i64, (u8, Option<Vec<u8>>)>;

/// The header of a batch in a log.
#[derive(Clone, Debug, PartialEq, Eq)]
struct BatchFacts {
    base_offset: i64,
    last_offset: i64,
    producer_id: i64,
    is_transactional: bool,
    /// True for a commit marker and false for an abort marker. `None` for data, and for a marker whose record was
    /// removed.
    is_commit: Option<bool>,
    is_control: bool,
    record_count: i32,
    horizon_ms: Option<i64>,
}

impl BatchFacts {
    fn of(batch: &BatchView<'_>) -> BatchFacts {
        let marker = if batch.is_control() { EndTransactionMarker::read(batch).expect("a marker") } else { None };
        BatchFacts {
            base_offset: batch.base_offset(),
            last_offset: batch.last_offset(),
            producer_id: batch.producer_id(),
            is_transactional: batch.is_transactional(),
            is_commit: marker.map(|marker| marker.is_commit),
            is_control: batch.is_control(),
            record_count: batch.record_count(),
            horizon_ms: batch.delete_horizon_ms(),
        }
    }
}

fn open_with(dir: &Path, segment_bytes: u64, map_bytes: Option<usize>) -> (Arc<Partitions>, Arc<Replica>) {
    let (mut settings, config) = settings();
    if let Some(bytes) = map_bytes {
        settings.storage.cleaner.dedupe_buffer_bytes = bytes;
    }
    let logs = Partitions::open(dir, &settings).expect("opened");
    let config = TopicConfig { segment_bytes, delete_retention_ms: RETENTION_MS, ..config };
    logs.put_topic("t", Uuid([1; 16]), &led_by(1, 1), &Arc::new(config), Origin::Kept);
    let partition = logs.find(&Uuid([1; 16]), 0).expect("it has just been told of");
    (logs, partition)
}

/// Appends a batch of `records` and returns its base offset.
fn put(partition: &Arc<Replica>, stamp: Stamp, is_transactional: bool, records: &[(u8, Option<Vec<u8>>)]) -> i64 {
    let builder = BatchBuilder::new(Default::default(), Compression::None, None);
    let mut builder = if is_transactional { builder.transactional() } else { builder };
    for (key, value) in records {
        builder.append(NOW, Some(&[*key]), value.as_deref(), &[]);
    }
    let base_offset = partition.offsets().expect("offsets").log_end;
    let (bytes, _) = builder.seal(stamp).expect("sealed");
    let verified_at = partition.verification_time(stamp.producer_id);
    let terms =
        AppendTerms { verification: Verification::Verified, verified_at, ..AppendTerms::in_turn(Acks::Leader, NOW) };
    let step = partition.append(&ValidBatch::unchecked(&bytes), terms).expect("appended");
    assert!(!matches!(step, AppendStep::Blocked(_)), "the coordinator was asked");
    base_offset
}

fn stamp(producer_id: i64, producer_epoch: i16, base_sequence: i32) -> Stamp {
    Stamp { producer_id, producer_epoch, base_sequence }
}

fn end(partition: &Arc<Replica>, producer_id: i64, producer_epoch: i16, is_commit: bool) {
    let marker = Marker { producer_id, producer_epoch, coordinator_epoch: 0, is_commit };
    partition.append_marker(&marker, 0, None, NOW).expect("ended");
}

/// Appends records without a producer until `count` more segments are closed.
fn fill_segments(partition: &Arc<Replica>, count: usize) {
    let active = || match &partition.lock().log {
        LogState::Open(log) => log.active_base_offset(),
        _ => panic!("it is open"),
    };
    for _ in 0..count {
        let before = active();
        while active() == before {
            put(partition, Stamp::NONE, false, &[(250, Some(vec![0; 60]))]);
        }
    }
}

/// Reads the log to the end. Returns the records that a consumer receives, and the headers of all batches.
fn consume(partition: &Replica, isolation: Isolation, max_bytes: u32) -> (Taken, Vec<BatchFacts>) {
    let (mut rows, mut all) = (Taken::new(), Vec::new());
    let mut offset = partition.offsets().expect("offsets").log_start;
    loop {
        let read = partition.read_whole(isolation, offset, max_bytes, true).expect("read");
        let Records::File(slice) = read.records else { return (rows, all) };
        let mut bytes = vec![0; slice.len as usize];
        slice.file.read_exact_at(&mut bytes, slice.position).expect("read");
        let mut aborted = read.aborted.unwrap_or_default();
        aborted.sort_by_key(|transaction| std::cmp::Reverse(transaction.first_offset));
        let mut passed_over = HashSet::new();
        for batch in batches(&Bytes::from(bytes)) {
            let batch = batch.expect("a batch");
            batch.check_crc().expect("a checksum");
            let begun = |transaction: &AbortedTransaction| transaction.first_offset <= batch.last_offset();
            while aborted.last().is_some_and(begun) {
                passed_over.extend(aborted.pop().map(|transaction| transaction.producer_id));
            }
            let facts = BatchFacts::of(&batch);
            if facts.is_commit == Some(false) {
                passed_over.remove(&batch.producer_id());
            }
            let is_aborted = batch.is_transactional() && passed_over.contains(&batch.producer_id());
            all.push(facts);
            if batch.is_control() || (isolation == Isolation::ReadCommitted && is_aborted) {
                continue;
            }
            for record in RecordIter::new(batch.payload(), batch.record_count()) {
                let record = record.expect("a record");
                let row = (record.key.expect("a key")[0], record.value.map(<[u8]>::to_vec));
                let at = record.offset(&batch);
                if at >= offset {
                    assert_eq!(rows.insert(at, row), None, "an offset is there twice");
                }
            }
        }
        offset = read.end_offset.expect("whole batches");
    }
}

fn raw(partition: &Replica) -> Vec<BatchFacts> {
    consume(partition, Isolation::ReadUncommitted, 1 << 20).1
}

/// Returns the entries of the indexes of aborted transactions, from the log start to the log end.
fn aborted_in(partition: &Replica) -> Vec<AbortedTransaction> {
    let state = partition.lock();
    let LogState::Open(log) = &state.log else { panic!("it is open") };
    log.plan_aborted(log.log_start()).read(log.log_end()).expect("read")
}

/// Returns the names of the index files of aborted transactions, except those that will be deleted.
fn index_files(dir: &Path) -> Vec<String> {
    names_in(dir).into_iter().filter(|name| name.contains(".txnindex") && !name.ends_with(".deleted")).collect()
}

fn value(n: u8) -> Option<Vec<u8>> {
    Some(vec![n; 40])
}

#[test]
fn open_transaction_ends_a_cleaning_before_its_segment() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let (logs, partition) = open_with(directory.path(), 600, None);
    put(&partition, Stamp::NONE, false, &[(1, value(1))]);
    fill_segments(&partition, 2);
    let first = put(&partition, stamp(7, 0, 0), true, &[(1, value(2))]);
    fill_segments(&partition, 3);
    while logs.clean_dirtiest(NOW) {}
    let rows = consume(&partition, Isolation::ReadUncommitted, 1 << 20).0;
    assert_eq!((rows.get(&0), rows.get(&first)), (Some(&(1, value(1))), Some(&(1, value(2)))));
    let end_of_clean = logs.cleaner.cleanings().checkpoint_if_free(&partition.key()).flatten().expect("cleaned");
    assert!(0 < end_of_clean && end_of_clean <= first, "{end_of_clean}");
    let others = rows.range(end_of_clean..).filter(|(_, row)| row.0 == 250).count();
    assert!(others > 10, "what follows is as it was");
    // After the transaction has ended, the rest of the log can be cleaned.
    end(&partition, 7, 0, true);
    fill_segments(&partition, 1);
    while logs.clean_dirtiest(NOW) {}
    let rows = consume(&partition, Isolation::ReadCommitted, 1 << 20).0;
    assert_eq!((rows.get(&0), rows.get(&first)), (None, Some(&(1, value(2)))));
}

#[test]
fn records_of_an_aborted_transaction_supersede_nothing_and_are_removed() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let (logs, partition) = open_with(directory.path(), 600, None);
    put(&partition, Stamp::NONE, false, &[(1, value(1))]);
    let aborted = put(&partition, stamp(7, 0, 0), true, &[(1, value(2)), (2, value(2))]);
    end(&partition, 7, 0, false);
    let committed = put(&partition, stamp(7, 0, 2), true, &[(3, value(3))]);
    fill_segments(&partition, 1);
    end(&partition, 7, 0, true);
    fill_segments(&partition, 1);
    while logs.clean_dirtiest(NOW) {}
    let (rows, found) = consume(&partition, Isolation::ReadUncommitted, 1 << 20);
    assert_eq!((rows.get(&0), rows.get(&committed)), (Some(&(1, value(1))), Some(&(3, value(3)))));
    assert_eq!((rows.get(&aborted), rows.get(&(aborted + 1))), (None, None));
    assert!(found.iter().all(|batch| batch.base_offset != aborted), "its producer has gone on");
}

/// A transaction is aborted, and the first cleaning removes its data. Later cleanings must first remove the
/// transaction's entry from the index. They must keep its marker until the delete horizon.
#[test]
fn marker_without_data_is_removed_after_the_delete_horizon_and_its_entry_before() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let (logs, partition) = open_with(directory.path(), 600, None);
    put(&partition, stamp(7, 0, 0), true, &[(1, value(1))]);
    end(&partition, 7, 0, false);
    put(&partition, stamp(7, 0, 1), true, &[(1, value(2))]);
    end(&partition, 7, 0, true);
    let marker = || raw(&partition).into_iter().find(|batch| batch.base_offset == 1);
    let clean = |now_ms| {
        fill_segments(&partition, 1);
        while logs.clean_dirtiest(now_ms) {}
    };
    clean(NOW);
    assert_eq!(marker().map(|batch| (batch.is_commit, batch.horizon_ms)), Some((Some(false), None)));
    assert_eq!(aborted_in(&partition).len(), 1, "a reader may have the data before it");
    assert_eq!(index_files(directory.path()), ["00000000000000000000.txnindex"]);
    clean(NOW + 10);
    let horizon = NOW + 10 + RETENTION_MS;
    assert_eq!(marker().map(|batch| (batch.is_commit, batch.horizon_ms)), Some((Some(false), Some(horizon))));
    assert_eq!((aborted_in(&partition), index_files(directory.path())), (vec![], vec![]));
    clean(horizon - 1);
    assert!(marker().is_some());
    clean(horizon);
    assert_eq!(marker(), None);
    let last = raw(&partition).into_iter().filter(|batch| batch.producer_id == 7).collect::<Vec<_>>();
    assert_eq!(last.iter().map(|batch| batch.base_offset).collect::<Vec<_>>(), [2, 3], "its data is there");
}

#[test]
fn producer_with_only_a_marker_left_keeps_its_epoch_without_a_snapshot() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let (logs, partition) = open_with(directory.path(), 600, None);
    put(&partition, stamp(7, 3, 0), true, &[(1, value(1))]);
    let marker = Marker { producer_id: 7, producer_epoch: 4, coordinator_epoch: 0, is_commit: true };
    partition.append_marker(&marker, 2, None, NOW).expect("ended");
    put(&partition, Stamp::NONE, false, &[(1, value(2))]);
    for now_ms in [NOW, NOW + 1, NOW + 1 + RETENTION_MS, NOW + 2 * RETENTION_MS] {
        fill_segments(&partition, 1);
        while logs.clean_dirtiest(now_ms) {}
    }
    let left: Vec<_> = raw(&partition).into_iter().filter(|batch| batch.producer_id == 7).collect();
    assert_eq!(left.len(), 1);
    assert_eq!((left[0].base_offset, left[0].is_control, left[0].record_count), (1, true, 0));
    drop((logs, partition));
    forget_snapshots(directory.path());
    let (logs, partition) = open_with(directory.path(), 600, None);
    raw(&partition);
    assert_eq!(producers(&partition), [(7, 4, -1, None)]);
    // Once the producer has written a later batch, its earlier batch without records must be removed.
    put(&partition, stamp(7, 4, 0), false, &[(9, value(9))]);
    fill_segments(&partition, 1);
    while logs.clean_dirtiest(NOW + 3 * RETENTION_MS) {}
    assert!(raw(&partition).iter().all(|batch| !batch.is_control));
}

fn forget_snapshots(dir: &Path) {
    for name in names_in(dir).into_iter().filter(|name| name.ends_with(".snapshot")) {
        fs::remove_file(dir.join("t-0").join(name)).expect("removed");
    }
}

/// Returns each producer's id, epoch, last sequence, and the first offset of its open transaction.
fn producers(partition: &Replica) -> Vec<(i64, i16, i32, Option<i64>)> {
    let state = partition.lock();
    let LogState::Open(log) = &state.log else { return Vec::new() };
    let fields = log
        .producers()
        .iter()
        .map(|producer| (producer.producer_id, producer.producer_epoch, producer.last_sequence, producer.open_from));
    let mut found: Vec<_> = fields.collect();
    found.sort_unstable();
    found
}

/// Writes transactions of three producers, which cover several segments.
fn fill_transactions(partition: &Arc<Replica>) {
    let mut sequences = [0; 3];
    for n in 0..36_u8 {
        let producer_id = i64::from(n % 3);
        let sequence = &mut sequences[usize::from(n % 3)];
        put(partition, stamp(producer_id, 0, *sequence), true, &[(n % 5, value(n)), (n % 7, value(n + 100))]);
        *sequence += 2;
        if n % 6 > 2 {
            end(partition, producer_id, 0, n % 4 > 1);
        }
    }
    fill_segments(partition, 1);
}

/// Returns true if `batches` contain data of the transaction that `marker` ends.
fn has_data(batches: &[BatchFacts], marker: &BatchFacts) -> bool {
    let is_before = |batch: &&BatchFacts| {
        batch.producer_id == marker.producer_id && batch.base_offset < marker.base_offset && batch.is_transactional
    };
    batches.iter().rfind(is_before).is_some_and(|last| !last.is_control)
}

/// Checks that the indexes list every aborted transaction whose data is not removed yet. They must not list a
/// transaction whose marker has a delete horizon.
fn check_index(partition: &Replica) {
    let (found, entries) = (raw(partition), aborted_in(partition));
    for marker in found.iter().filter(|batch| batch.is_commit == Some(false)) {
        let entry = entries.iter().find(|entry| entry.last_offset == marker.base_offset);
        assert!(entry.is_some() || !has_data(&found, marker), "{marker:?}");
        assert!(entry.is_none() || marker.horizon_ms.is_none(), "{marker:?}");
    }
    let is_marker = |entry: &AbortedTransaction| {
        found.iter().any(|batch| batch.is_commit == Some(false) && batch.base_offset == entry.last_offset)
    };
    assert!(entries.iter().all(is_marker), "{entries:?} without a marker");
}

#[test]
fn cleaning_killed_at_any_moment_leaves_the_committed_records_readable() {
    let memory = Path::new("/dev/shm");
    let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    let directory = tempfile::tempdir_in(parent).expect("temporary directory");
    let dir = directory.path().join("data");
    fs::create_dir(&dir).expect("created");
    let (logs, partition) = open_with(&dir, 700, None);
    fill_transactions(&partition);
    let newest = |rows: &Taken| rows.iter().map(|(at, row)| (row.0, (*at, row.1.clone()))).collect::<BTreeMap<_, _>>();
    let expected = newest(&consume(&partition, Isolation::ReadCommitted, 300).0);
    let known = producers(&partition);
    drop((logs, partition));
    let mut moments = 0;
    for (round, segment_bytes) in [(0, 3000), (1, 400), (2, 3000)] {
        let copies = directory.path().join("copies");
        let (logs, partition) = open_with(&dir, segment_bytes, None);
        raw(&partition);
        fill_segments(&partition, 1);
        // `close` flushes the records and indexes, so the start after a kill trusts them.
        logs.close();
        drop((logs, partition));
        let (logs, partition) = open_with(&dir, segment_bytes, None);
        raw(&partition);
        let (has_cleaned, left) = crashes(&dir, &copies, || logs.clean_dirtiest(NOW + round));
        assert!(has_cleaned);
        drop((logs, partition));
        for dir in left {
            moments += 1;
            let again = dir.with_extension("again");
            let (opened, left) = crashes(&dir, &again, || open_with(&dir, segment_bytes, None));
            for (is_again, dir) in std::iter::once((false, dir)).chain(left.into_iter().map(|dir| (true, dir))) {
                let other = is_again.then(|| open_with(&dir, segment_bytes, None));
                let (_, partition) = other.as_ref().unwrap_or(&opened);
                let mut rows = newest(&consume(partition, Isolation::ReadCommitted, 300).0);
                rows.remove(&250);
                let mut expected = expected.clone();
                expected.remove(&250);
                assert_eq!(rows, expected);
                assert_eq!(producers(partition), known);
                check_index(partition);
                let unfinished = |name: &String| name.ends_with(".swap") || name.ends_with(".cleaned");
                assert!(!index_files(&dir).iter().any(unfinished), "{:?}", index_files(&dir));
            }
            let _ = fs::remove_dir_all(again);
        }
        fs::remove_dir_all(copies).expect("removed");
    }
    assert!(moments > 150, "{moments} moments");
}
