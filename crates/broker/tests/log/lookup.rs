//! Looks up batches by offset and by time, and compares the results with a search of the whole log.

use fullbore_broker::partitions::{EpochEnd, ReadError, Replica, TimestampOffset};
use fullbore_log::partition::read::Isolation;
use fullbore_wire::batch::{BatchView, Compression, Stamp, batches};
use proptest::prelude::*;

use crate::directory::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn every_offset_is_found_with_and_without_restart(
        sizes in prop::collection::vec((1usize..5, 0usize..600), 1..150),
        segment_bytes in 700u64..20_000,
        index_interval_bytes in 0u64..3000,
        max_bytes in 1u32..5000,
        clean in any::<bool>(),
    ) {
        let mut directory = Directory::new().with(|config| {
            config.segment_bytes = segment_bytes.max(3000);
            config.index_interval_bytes = index_interval_bytes;
        });
        let partition = directory.partition();
        for (records, size) in &sizes {
            offset(&partition, &plain(*records, &vec![1; *size]));
        }
        drop(partition);
        for reopened in [false, true] {
            let partition = match (reopened, clean) {
                (false, _) => directory.partition(),
                (true, true) => directory.restart(),
                (true, false) => directory.crash(),
            };
            let end = partition.offsets().expect("open").log_end;
            prop_assert_eq!(end, sizes.iter().map(|(records, _)| *records as i64).sum::<i64>());
            for offset in 0..end {
                let read = partition.read(offset, max_bytes, true).expect("read");
                let bytes = bytes(&read.records);
                let first = BatchView::first(&bytes).expect("a whole batch");
                first.check_crc().expect("a valid checksum");
                prop_assert!(first.base_offset() <= offset && offset <= first.last_offset());
                prop_assert!(bytes.len() <= (max_bytes as usize).max(first.size()));
                let whole: usize = batches(&bytes).map(|batch| batch.expect("a batch").size()).sum();
                prop_assert!(whole > 0);
                let strict = partition.read(offset, max_bytes, false).expect("read").records;
                prop_assert_eq!(strict.is_empty(), first.size() > max_bytes as usize);
            }
            prop_assert!(partition.read(end, max_bytes, true).expect("the end").records.is_empty());
            prop_assert_eq!(partition.read(end + 1, max_bytes, true).err(), Some(ReadError::OffsetOutOfRange));
            prop_assert_eq!(partition.read(-1, max_bytes, true).err(), Some(ReadError::OffsetOutOfRange));
        }
    }

    #[test]
    fn every_time_is_found_with_and_without_restart(
        times in prop::collection::vec(prop::collection::vec(0i64..500, 1..4), 1..80),
        segment_bytes in 300u64..5000,
        index_interval_bytes in 0u64..1000,
        codec in prop::sample::select(vec![Compression::None, Compression::Lz4]),
        clean in any::<bool>(),
    ) {
        let mut directory = Directory::new().with(|config| {
            config.segment_bytes = segment_bytes;
            config.index_interval_bytes = index_interval_bytes;
        });
        let partition = directory.partition();
        for timestamps in &times {
            offset(&partition, &timed(Stamp::NONE, codec, timestamps, b"v"));
        }
        drop(partition);
        let records: Vec<i64> = times.concat();
        for reopened in [false, true] {
            let partition = match (reopened, clean) {
                (false, _) => directory.partition(),
                (true, true) => directory.restart(),
                (true, false) => directory.crash(),
            };
            for wanted in -1..501 {
                let linear = records.iter().position(|timestamp| *timestamp >= wanted);
                let expected = linear.map(|at| TimestampOffset { offset: at as i64, timestamp: records[at], leader_epoch: 0 });
                prop_assert_eq!(partition.offset_for_timestamp(Isolation::ReadUncommitted, wanted).expect("read"), expected, "time {}", wanted);
            }
            let newest = *records.iter().max().expect("records");
            let at = records.iter().position(|timestamp| *timestamp == newest).expect("there") as i64;
            let found = partition.max_timestamp(Isolation::ReadUncommitted).expect("read").expect("records");
            prop_assert_eq!((found.offset, found.timestamp), (at, newest));
        }
    }
}

#[test]
fn batch_that_cannot_be_decompressed_is_found_by_its_header() {
    let directory = Directory::new().with(|config| config.max_message_bytes = 10_000);
    let partition = directory.partition();
    offset(&partition, &plain(1, b"older"));
    let bomb = timed(Stamp::NONE, Compression::Gzip, &[NOW + 1, NOW + 2], &[0; 200_000]);
    assert_eq!(offset(&partition, &bomb), 1);
    let mut corrupt = timed(Stamp::NONE, Compression::Zstd, &[NOW + 4, NOW + 5], &[0; 100]);
    corrupt[61..].fill(0xaa);
    fullbore_wire::batch::restamp(&mut corrupt, Stamp::NONE);
    assert_eq!(offset(&partition, &corrupt), 3);
    let found =
        |time| partition.offset_for_timestamp(Isolation::ReadUncommitted, time).expect("answered").expect("found");
    let answer = |offset, timestamp| TimestampOffset { offset, timestamp, leader_epoch: 0 };
    assert_eq!(found(NOW), answer(0, NOW));
    assert_eq!(found(NOW + 2), answer(1, NOW + 2));
    assert_eq!(found(NOW + 4), answer(3, NOW + 5));
    assert_eq!(partition.max_timestamp(Isolation::ReadUncommitted).expect("answered"), Some(answer(3, NOW + 5)));
}

/// A batch of 15 MB whose header has a later timestamp than its records.
fn large_with_a_late_header() -> Vec<u8> {
    let mut batch = timed(Stamp::NONE, Compression::Zstd, &[NOW + 1], &[0; 15_000_000]);
    batch[35..43].copy_from_slice(&(NOW + 9).to_be_bytes());
    fullbore_wire::batch::restamp(&mut batch, Stamp::NONE);
    batch.to_vec()
}

#[test]
fn headers_late_in_some_batches_the_record_behind_them_is_found() {
    let directory = Directory::new();
    let partition = directory.partition();
    let late = large_with_a_late_header();
    (0..2).for_each(|_| _ = offset(&partition, &late));
    offset(&partition, &timed(Stamp::NONE, Compression::None, &[NOW + 5], b"v"));
    let found = partition.offset_for_timestamp(Isolation::ReadUncommitted, NOW + 5).expect("answered");
    assert_eq!(found, Some(TimestampOffset { offset: 2, timestamp: NOW + 5, leader_epoch: 0 }));
}

#[test]
fn headers_late_in_many_batches_a_search_opens_a_limited_number() {
    let directory = Directory::new();
    let partition = directory.partition();
    let late = large_with_a_late_header();
    (0..8).for_each(|_| _ = offset(&partition, &late));
    let found = partition.offset_for_timestamp(Isolation::ReadUncommitted, NOW + 5).expect("answered");
    assert_eq!(found, Some(TimestampOffset { offset: 5, timestamp: NOW + 9, leader_epoch: 0 }));
}

#[test]
fn lost_or_foreign_index_is_rebuilt_at_the_next_start() {
    let mut directory = Directory::new().with(|config| {
        config.segment_bytes = 20_000;
        config.index_interval_bytes = 100;
    });
    let partition = directory.partition();
    (0..300).for_each(|_| _ = append(&partition, &plain(1, &[1; 200])).expect("appended"));
    let before = read_all(&partition, 0);
    drop(partition);
    directory.logs.close();
    let index = directory.file("00000000000000000000.index");
    let good = std::fs::read(&index).expect("read");
    for damage in ["gone", "odd", "foreign", "zeros"] {
        match damage {
            "gone" => std::fs::remove_file(&index).expect("removed"),
            "odd" => std::fs::write(&index, &good[..good.len() - 3]).expect("written"),
            "foreign" => std::fs::write(&index, [0, 0, 0, 9, 0, 0, 0, 9].repeat(10)).expect("written"),
            _ => std::fs::write(&index, vec![0; good.len()]).expect("written"),
        }
        let partition = directory.crash();
        // The log was closed cleanly, so a damaged index must not change what is read.
        assert_eq!(read_all(&partition, 0), before, "{damage}");
        drop(partition);
        directory.logs.close();
        assert_eq!(std::fs::read(&index).expect("read"), good, "{damage}");
    }
}

#[test]
fn end_of_an_epoch_is_the_start_of_the_next_even_without_the_file() {
    let mut directory = Directory::new();
    let partition = directory.partition();
    for epoch in [0, 0, 2, 5] {
        lead(&partition, epoch);
        offset(&partition, &plain(2, b"v"));
    }
    drop(partition);
    for lose in [false, true] {
        if lose {
            std::fs::remove_file(directory.file("leader-epoch-checkpoint")).expect("removed");
        }
        let partition = directory.crash();
        lead(&partition, 5);
        let ends = [(0, 0, 4), (1, 0, 4), (2, 2, 6), (4, 2, 6), (5, 5, 8), (6, -1, -1)];
        for (requested, leader_epoch, end_offset) in ends {
            let end = partition.epoch_end_offset(requested).expect("open");
            assert_eq!(end, EpochEnd { leader_epoch, end_offset }, "epoch {requested}");
        }
    }
}

#[test]
fn earliest_offset_has_the_epoch_of_its_record() {
    let mut directory = Directory::new();
    let partition = directory.partition();
    let earliest = |partition: &Replica| {
        let TimestampOffset { offset, timestamp, leader_epoch } = partition.earliest().expect("open");
        assert_eq!(timestamp, -1);
        (offset, leader_epoch)
    };
    lead(&partition, 3);
    assert_eq!(earliest(&partition), (0, 3), "nothing is written, and the next record is of this epoch");
    for epoch in [3, 5, 9] {
        lead(&partition, epoch);
        offset(&partition, &plain(2, b"v"));
    }
    assert_eq!(earliest(&partition), (0, 3));
    for (log_start, epoch) in [(1, 3), (2, 5), (4, 9)] {
        partition.delete_records_before(log_start).expect("deleted");
        assert_eq!(earliest(&partition), (log_start, epoch));
    }
    drop(partition);
    let partition = directory.crash();
    lead(&partition, 12);
    assert_eq!(earliest(&partition), (4, 9));
    partition.delete_records_before(6).expect("deleted");
    assert_eq!(earliest(&partition), (6, 12), "no record is left");
}
