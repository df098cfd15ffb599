//! Compares a compacted log with a plain map after cleanings, restarts and crashes. The newest record of each key must
//! stay at its offset, nothing may be added, and every offset must be readable.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use fullbore_broker::partitions::{Acks, AppendTerms, Replica, ValidBatch};
use fullbore_config::{CleanupPolicy, Ratio, TimestampType};
use fullbore_log::partition::read::Isolation;
use fullbore_wire::batch::{BatchBuilder, BatchView, Compression, Header, RecordIter, Stamp, batches, decompress};
use proptest::prelude::*;

use crate::directory::*;

const KEYS: u8 = 6;
const DELETE_RETENTION_MS: i64 = 1000;
const CODECS: [Compression; 5] =
    [Compression::None, Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd];

/// A record as its key, value and timestamp.
type Row = (u8, Option<Vec<u8>>, i64);

#[derive(Clone, Debug)]
enum Step {
    /// Appends a batch of a producer (3 means none), with a codec and these records. Each record is its key and the
    /// length of its value (0 means a tombstone).
    Append(usize, usize, Vec<(u8, u8)>),
    Clean,
    Wait(i64),
    Restart,
    Crash,
    /// Crashes and then loses the snapshots of the producers.
    CrashWithoutSnapshots,
    DeleteBefore(u8),
    SegmentBytes(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let records = prop::collection::vec((0..KEYS, 0_u8..40), 1..6);
    prop_oneof![
        12 => (0_usize..4, 0..CODECS.len(), records).prop_map(|(who, codec, rows)| Step::Append(who, codec, rows)),
        3 => Just(Step::Clean),
        2 => (1_i64..1500).prop_map(Step::Wait),
        1 => Just(Step::Restart),
        1 => Just(Step::Crash),
        1 => Just(Step::CrashWithoutSnapshots),
        1 => (0_u8..=255).prop_map(Step::DeleteBefore),
        1 => (450_u64..2500).prop_map(Step::SegmentBytes),
    ]
}

struct World {
    directory: Directory,
    partition: Arc<Replica>,
    history: Vec<Row>,
    now_ms: i64,
    log_start: i64,
    /// The last batch of each producer, with its offset.
    last: HashMap<usize, (BytesMut, i64)>,
    sequences: [i32; 3],
    /// The time at which the record at each offset was appended.
    appended_ms: Vec<i64>,
}

fn compacted(segment_bytes: u64, map_bytes: usize) -> Directory {
    let mut directory = Directory::new().with(|config| {
        config.segment_bytes = segment_bytes;
        config.index_interval_bytes = 60;
        config.cleanup = CleanupPolicy { delete: false, compact: true };
        config.min_cleanable_dirty_ratio = Ratio(0.0);
        config.delete_retention_ms = DELETE_RETENTION_MS;
        config.file_delete_delay_ms = 0;
    });
    directory.settings.storage.cleaner.threads = 0;
    directory.settings.storage.cleaner.dedupe_buffer_bytes = map_bytes;
    directory.settings.storage.cleaner.io_buffer_bytes = 0;
    directory.crash();
    directory
}

impl World {
    fn new(segment_bytes: u64, map_bytes: usize, append_time: bool) -> World {
        let mut directory = compacted(segment_bytes, map_bytes);
        if append_time {
            directory.config.message_timestamp_type = TimestampType::LogAppendTime;
        }
        let partition = directory.partition();
        let mut world = World {
            directory,
            partition,
            history: Vec::new(),
            now_ms: NOW,
            log_start: 0,
            last: HashMap::new(),
            sequences: [0; 3],
            appended_ms: Vec::new(),
        };
        world.append(3, 0, &[(0, 1)]);
        world
    }

    fn append(&mut self, who: usize, codec: usize, rows: &[(u8, u8)]) {
        let stamp = match self.sequences.get(who) {
            Some(&base_sequence) => Stamp { producer_id: who as i64, producer_epoch: 1, base_sequence },
            None => Stamp::NONE,
        };
        let mut builder = BatchBuilder::new(BytesMut::new(), CODECS[codec], None);
        let base_offset = self.history.len() as i64;
        let is_append_time = self.directory.config.message_timestamp_type == TimestampType::LogAppendTime;
        for (at, &(key, len)) in rows.iter().enumerate() {
            let value = (len > 0).then(|| vec![len ^ key; usize::from(len)]);
            let timestamp = self.now_ms - i64::from(len % 7);
            let header = Header { key: b"at", value: Some(&[at as u8]) };
            builder.append(timestamp, Some(&[key]), value.as_deref(), &[header][..at % 2]);
            self.history.push((key, value, if is_append_time { self.now_ms } else { timestamp }));
            self.appended_ms.push(self.now_ms);
        }
        let bytes = builder.seal(stamp).expect("sealed").0;
        let batch = BatchView::first(&bytes).expect("a batch");
        let batch = ValidBatch::of(batch, &self.partition.config(), self.now_ms).expect("valid");
        let terms = AppendTerms::in_turn(Acks::Leader, self.now_ms);
        let step = self.partition.append(&batch, terms).expect("appended");
        let appended = step.into_written().expect("written").appended;
        assert_eq!(appended.base_offset, base_offset);
        if let Some(sequence) = self.sequences.get_mut(who) {
            *sequence += rows.len() as i32;
            self.last.insert(who, (bytes, base_offset));
        }
    }

    fn clean(&mut self) {
        while self.directory.logs.clean_dirtiest(self.now_ms) {}
        assert_eq!(self.directory.logs.cleaner_status().failures, 0);
        self.check_clean();
    }

    /// Checks that each key occurs only once in the closed segments.
    fn check_clean(&self) {
        let active_base: i64 = self.directory.files(".log").last().expect("one")[..20].parse().expect("an offset");
        let mut newest = HashMap::new();
        for (offset, row) in self.history.iter().enumerate().take(active_base as usize) {
            newest.insert(row.0, offset as i64);
        }
        for (offset, (key, ..)) in self.records().into_iter().filter(|record| record.0 < active_base) {
            assert_eq!(newest[&key], offset, "key {key} is there twice");
        }
    }

    /// Returns every record of the log with its offset.
    fn records(&self) -> Vec<(i64, Row)> {
        let mut rows = Vec::new();
        let mut offset = self.log_start;
        loop {
            let read = self.partition.read(offset, 1 << 20, true).expect("read");
            if read.records.is_empty() {
                assert_eq!(read.high_watermark, self.history.len() as i64);
                return rows;
            }
            for batch in batches(&bytes(&read.records)) {
                let batch = batch.expect("a batch");
                batch.check_crc().expect("a checksum");
                assert!(batch.last_offset() >= offset, "{offset} was asked for");
                offset = batch.last_offset() + 1;
                rows.extend(rows_of(&batch).into_iter().filter(|row| row.0 >= self.log_start));
            }
        }
    }

    fn check(&self) {
        let offsets = self.partition.offsets().expect("offsets");
        assert_eq!((offsets.log_start, offsets.log_end), (self.log_start, self.history.len() as i64));
        let records = self.records();
        assert!(records.is_sorted_by(|one, next| one.0 < next.0), "offsets ascend");
        let mut found = HashMap::new();
        for (offset, row) in &records {
            assert_eq!(&self.history[*offset as usize], row, "at {offset}");
            found.insert(row.0, *offset);
        }
        for key in 0..KEYS {
            let Some(newest) = self.history.iter().rposition(|row| row.0 == key) else { continue };
            let is_tombstone = self.history[newest].1.is_none();
            let may_be_gone = is_tombstone && self.now_ms >= self.appended_ms[newest] + DELETE_RETENTION_MS;
            match found.get(&key) {
                Some(&offset) => assert_eq!(offset, newest as i64, "the newest of key {key}"),
                None => assert!(may_be_gone || (newest as i64) < self.log_start, "key {key} at {newest} is lost"),
            }
        }
        for offset in self.log_start..self.history.len() as i64 {
            let read = self.partition.read(offset, 1, true).expect("read");
            let bytes = bytes(&read.records);
            let first = batches(&bytes).next().map(|batch| batch.expect("a batch").last_offset());
            assert!(first.is_some_and(|last| last >= offset), "nothing at {offset}");
        }
        self.check_times(&records);
    }

    fn check_times(&self, records: &[(i64, Row)]) {
        let largest = records.iter().map(|(_, row)| row.2).max();
        let found =
            self.partition.max_timestamp(Isolation::ReadUncommitted).expect("looked up").map(|found| found.timestamp);
        assert_eq!(found, largest, "the largest timestamp from {} on", self.log_start);
        for time in records.iter().map(|(_, row)| row.2).chain([NOW + 1, self.now_ms]) {
            let expected = records.iter().find(|(_, row)| row.2 >= time).map(|(offset, row)| (*offset, row.2));
            let found = self.partition.offset_for_timestamp(Isolation::ReadUncommitted, time).expect("looked up");
            let found = found.map(|found| (found.offset, found.timestamp));
            // With LogAppendTime, the records of a batch share one timestamp. A lookup returns the batch's first
            // offset, even if the record there was compacted away. So the test only checks that both searches find a
            // record.
            match self.directory.config.message_timestamp_type {
                TimestampType::CreateTime => assert_eq!(found, expected, "time {time}"),
                TimestampType::LogAppendTime => assert_eq!(found.is_some(), expected.is_some(), "time {time}"),
            }
        }
    }

    /// Checks that a retry of each producer's last batch is recognised and that its next batch is accepted.
    fn check_producers(&mut self) {
        for (who, (bytes, base_offset)) in self.last.clone() {
            let appended = append(&self.partition, &bytes).expect("known");
            assert_eq!(appended.base_offset, base_offset, "a retry of producer {who}");
            self.append(who, 0, &[(who as u8, 9)]);
        }
    }

    fn reopen(&mut self, without_snapshots: bool) {
        self.partition = self.directory.crash();
        if without_snapshots {
            for name in self.directory.files(".snapshot") {
                std::fs::remove_file(self.directory.file(&name)).expect("removed");
            }
        }
        if self.log_start > 0 {
            // The checkpoint of the log start is written only once a minute and at a clean stop. After a crash the log
            // start may be older, so the test deletes the records again.
            self.partition.delete_records_before(self.log_start).expect("deleted");
        }
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Append(who, codec, rows) => self.append(*who, *codec, rows),
            Step::Clean => self.clean(),
            Step::Wait(ms) => self.now_ms += ms,
            Step::Restart => {
                self.directory.logs.close();
                self.reopen(false);
            }
            Step::Crash => self.reopen(false),
            Step::CrashWithoutSnapshots => self.reopen(true),
            Step::SegmentBytes(bytes) => {
                self.directory.config.segment_bytes = *bytes;
                self.partition = self.directory.partition();
            }
            Step::DeleteBefore(part) => {
                let span = self.history.len() as i64 - self.log_start;
                self.log_start += span * i64::from(*part) / 1024;
                if !self.history.is_empty() {
                    self.partition.delete_records_before(self.log_start).expect("deleted");
                }
            }
        }
    }
}

fn rows_of(batch: &BatchView<'_>) -> Vec<(i64, Row)> {
    if batch.record_count() == 0 {
        assert!(batch.payload().is_empty());
        return Vec::new();
    }
    let payload: Bytes = decompress(batch.compression().expect("a codec"), batch.payload(), 1 << 20).expect("opens");
    let row = |record: Result<fullbore_wire::batch::Record<'_>, _>| {
        let record = record.expect("a record");
        let key = record.key.expect("a key")[0];
        (record.offset(batch), (key, record.value.map(<[u8]>::to_vec), record.timestamp(batch)))
    };
    RecordIter::new(&payload, batch.record_count()).map(row).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]
    #[test]
    fn newest_record_of_each_key_stays_at_its_offset(
        segment_bytes in 450_u64..2500,
        map_slots in 2_usize..12,
        append_time in prop::bool::weighted(0.2),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut world = World::new(segment_bytes, map_slots * 24, append_time);
        for step in &steps {
            world.take(step);
            if !matches!(step, Step::Append(..) | Step::Wait(_)) {
                world.check();
            }
        }
        world.check_producers();
        world.clean();
        world.check();
    }
}

/// The operator has moved away a damaged segment and those after it, as docs/troubleshooting.md recommends. The log
/// must open without them, although compaction has left gaps in it.
#[test]
fn compacted_log_without_its_last_segment_opens_after_a_kill() {
    let mut world = World::new(400, 1 << 20, false);
    for key in 1..20 {
        world.append(3, 0, &[(key % KEYS, 3)]);
        world.append(3, 0, &[(0, 3)]);
    }
    world.clean();
    let logs = world.directory.files(".log");
    let active: i64 = logs.last().expect("one")[..20].parse().expect("an offset");
    let left: Vec<_> = world.records().into_iter().filter(|record| record.0 < active).collect();
    let last = left.last().expect("some").0;
    assert!(left.iter().rev().zip(0..).any(|(record, nth)| record.0 != last - nth), "no gap: nothing is tried here");
    for name in std::fs::read_dir(world.directory.file("")).expect("listed") {
        let path = name.expect("listed").path();
        if path.file_stem().is_some_and(|stem| *stem == *format!("{active:020}")) {
            std::fs::remove_file(path).expect("moved away");
        }
    }
    world.partition = world.directory.crash();
    world.history.truncate(last as usize + 1);
    assert_eq!(world.records(), left);
}

#[test]
fn records_are_cleaned_after_the_minimum_lag_and_by_the_maximum_lag_without_writes() {
    let mut directory = compacted(1 << 20, 1 << 20);
    directory.config.min_cleanable_dirty_ratio = Ratio(1.0);
    directory.config.min_compaction_lag_ms = 1000;
    directory.config.max_compaction_lag_ms = 5000;
    let partition = directory.partition();
    for n in 0..20 {
        offset(&partition, &timed(Stamp::NONE, Compression::None, &[NOW + n], b"value"));
    }
    let records = |partition: &Replica| {
        let (mut count, mut offset) = (0, 0);
        while offset < partition.offsets().expect("offsets").log_end {
            let bytes = bytes(&partition.read(offset, 1 << 20, true).expect("read").records);
            let batch = BatchView::first(&bytes).expect("a batch");
            (count, offset) = (count + batch.record_count(), batch.last_offset() + 1);
        }
        count
    };
    assert!(!directory.logs.clean_dirtiest(NOW + 5000), "not yet too old");
    assert!(directory.logs.clean_dirtiest(NOW + 5001), "its oldest record is, and its segment is closed for that");
    assert_eq!((records(&partition), partition.offsets().expect("offsets").log_end), (1, 20));
    assert!(!directory.logs.clean_dirtiest(NOW + 60_000), "there is nothing new");

    directory.config.max_compaction_lag_ms = i64::MAX;
    directory.config.min_cleanable_dirty_ratio = Ratio(0.0);
    directory.config.segment_bytes = 300;
    let partition = directory.partition();
    for n in 20..40 {
        offset(&partition, &timed(Stamp::NONE, Compression::None, &[NOW + n], b"value"));
    }
    assert!(!directory.logs.clean_dirtiest(NOW + 1020), "all of them are too new");
    directory.logs.keep_records_until(NOW + 1040);
    assert!(!directory.logs.clean_dirtiest(NOW + 1039), "no record may be deleted now");
    directory.logs.keep_records_until(NOW + 1039);
    assert!(directory.logs.clean_dirtiest(NOW + 1039));
    assert!(records(&partition) < 21);
}
