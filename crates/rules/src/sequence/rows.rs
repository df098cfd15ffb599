//! Bugs that other implementations had with sequences and producer ids. There is at least one test for each, and its
//! name has the number of the bug's row in the project's test plan. Rows 4, 5, 10, 13 and 15 need a log, a connection
//! or transactions.

mod made_again;

use std::time::Instant;

use super::*;
use SequenceRefusal::*;
use Verdict::*;

const DAY_MS: i64 = 86_400_000;

/// A partition without a log, which has only the producer state and the next offset.
struct Partition {
    producers: Producers,
    log_end_offset: i64,
    window: usize,
}

impl Partition {
    fn new(window: usize) -> Partition {
        Partition { producers: Producers::default(), log_end_offset: 0, window }
    }

    /// Returns a partition that has 100 records of another producer.
    fn written(window: usize) -> Partition {
        Partition { log_end_offset: 100, ..Partition::new(window) }
    }

    fn produce(&mut self, stamp: Stamp) -> Verdict {
        let verdict = self.producers.check(&stamp, self.log_end_offset);
        if verdict == Append {
            let offset = self.log_end_offset;
            self.producers.append(&stamp, offset, offset * 10, 0, self.window);
            self.log_end_offset += i64::from(stamp.record_count);
        }
        verdict
    }

    /// Appends `batches` batches of 3 records, beginning with sequence 0, as producer 7 in epoch 0.
    fn fill(&mut self, batches: i32) {
        for n in 0..batches {
            assert_eq!(self.produce(third(n)), Append);
        }
    }

    fn restart(&mut self) {
        let mut producers = Producers::default();
        producers.restore(self.producers.snapshot(), 0, self.producers.window());
        self.producers = producers;
    }
}

fn stamp(producer_id: i64, producer_epoch: i16, base_sequence: i32, record_count: i32) -> Stamp {
    Stamp { producer_id, producer_epoch, base_sequence, record_count }
}

/// Returns the `n`-th batch of producer 7, if each has three records.
fn third(n: i32) -> Stamp {
    stamp(7, 0, n * 3, 3)
}

/// Returns a snapshot entry of producer 7 in epoch 0.
fn entry(last_sequence: i32, last_offset: i64, offset_delta: i32, timestamp: i64) -> SnapshotEntry {
    SnapshotEntry {
        producer_id: 7,
        producer_epoch: 0,
        last_sequence,
        last_offset,
        offset_delta,
        timestamp,
        coordinator_epoch: -1,
        current_txn_first_offset: -1,
    }
}

fn original(n: i32) -> Verdict {
    Duplicate { base_offset: i64::from(n) * 3, timestamp: i64::from(n) * 30 }
}

#[test]
fn row_1_first_sequence_on_an_unwritten_partition_must_be_zero() {
    let mut partition = Partition::new(5);
    assert_eq!(partition.produce(stamp(7, 0, 17, 5)), Refuse(OutOfOrderSequence));
    assert_eq!(partition.log_end_offset, 0);
    assert_eq!(partition.produce(stamp(7, 0, 0, 17)), Append);
    assert_eq!(partition.produce(stamp(7, 0, 17, 5)), Append);
}

#[test]
fn row_1_partition_emptied_by_delete_records_accepts_any_first_sequence() {
    assert_eq!(Partition::written(5).produce(stamp(7, 0, 17, 5)), Append);
}

#[test]
fn row_2_retry_of_each_batch_in_the_window_gets_its_original_offset() {
    for window in [5, 20, 64, 1024] {
        let mut partition = Partition::new(window);
        let count = window as i32;
        partition.fill(count);
        for n in 0..count {
            assert_eq!(partition.produce(third(n)), original(n));
        }
    }
}

#[test]
fn row_2_batch_older_than_the_window_is_a_duplicate_and_not_out_of_order() {
    for window in [5, 64, 1024] {
        let mut partition = Partition::new(window);
        partition.fill(window as i32 + 1);
        assert_eq!(partition.produce(third(0)), Refuse(DuplicateSequence));
        assert_eq!(partition.produce(third(1)), original(1));
        partition.restart();
        assert_eq!(partition.produce(third(0)), Refuse(DuplicateSequence));
    }
}

#[test]
fn row_2_batch_from_before_a_producer_was_forgotten_is_no_certain_duplicate() {
    let mut partition = Partition::written(5);
    for n in 10..20 {
        assert_eq!(partition.produce(third(n)), Append);
    }
    assert_eq!(partition.produce(third(10)), Refuse(DuplicateSequence));
    assert_eq!(partition.produce(third(9)), Refuse(OutOfOrderSequence));
    assert_eq!(partition.produce(stamp(7, 0, 29, 2)), Refuse(OutOfOrderSequence));
    partition.restart();
    assert_eq!(partition.produce(third(10)), Refuse(DuplicateSequence));
    assert_eq!(partition.produce(third(9)), Refuse(OutOfOrderSequence));
}

#[test]
fn row_2_gaps_and_partial_overlaps_are_out_of_order() {
    let mut partition = Partition::new(5);
    partition.fill(10);
    for (base_sequence, record_count) in [(31, 1), (29, 3), (27, 6), (24, 6), (24, 2), (13, 4), (0, 30)] {
        let odd = stamp(7, 0, base_sequence, record_count);
        assert_eq!(partition.produce(odd), Refuse(OutOfOrderSequence), "{odd:?}");
    }
    assert_eq!(partition.produce(third(10)), Append);
}

#[test]
fn row_3_duplicate_keeps_offset_and_timestamp_after_other_writes() {
    let mut partition = Partition::new(5);
    partition.fill(5);
    for other in 100..200 {
        assert_eq!(partition.produce(stamp(other, 0, 0, 9)), Append);
    }
    assert_eq!(partition.produce(stamp(NO_PRODUCER_ID, -1, -1, 4)), Append);
    partition.restart();
    for n in 0..5 {
        assert_eq!(partition.produce(third(n)), original(n));
    }
}

#[test]
fn row_7_restart_keeps_the_whole_window() {
    for window in [5, 64, 1024] {
        let mut partition = Partition::new(window);
        let count = 2 * window as i32;
        partition.fill(count);
        partition.restart();
        for n in count - window as i32..count {
            assert_eq!(partition.produce(third(n)), original(n));
        }
        assert_eq!(partition.produce(third(count)), Append);
    }
}

#[test]
fn row_7_window_configured_smaller_drains_across_a_restart() {
    let mut partition = Partition::new(64);
    partition.fill(64);
    partition.restart();
    partition.window = 5;
    (64..128).for_each(|n| assert_eq!(partition.produce(third(n)), Append));
    assert_eq!(partition.produce(third(64)), original(64));
    assert_eq!(partition.produce(third(128)), Append);
    assert_eq!(partition.produce(third(123)), Refuse(DuplicateSequence));
    assert_eq!(partition.produce(third(124)), original(124));
}

#[test]
fn row_7_window_not_full_at_a_restart_fills_to_its_old_size() {
    let mut partition = Partition::new(64);
    partition.fill(10);
    assert_eq!(partition.producers.window(), 64);
    partition.restart();
    partition.window = 5;
    (10..64).for_each(|n| assert_eq!(partition.produce(third(n)), Append));
    assert_eq!(partition.produce(third(0)), original(0));
    (64..75).for_each(|n| assert_eq!(partition.produce(third(n)), Append));
    assert_eq!((partition.produce(third(0)), partition.producers.window()), (Refuse(DuplicateSequence), 5));
}

#[test]
fn row_7_replay_after_the_snapshot_restores_the_same_state() {
    let mut partition = Partition::new(5);
    partition.fill(6);
    let snapshot: Vec<_> = partition.producers.snapshot().collect();
    (6..9).for_each(|n| assert_eq!(partition.produce(third(n)), Append));

    let mut restored = Producers::default();
    restored.restore(snapshot, 0, 5);
    for n in 4..9 {
        let offset = i64::from(n) * 3;
        restored.append(&third(n), offset, offset * 10, 0, 5);
    }
    assert!(restored.snapshot().eq(partition.producers.snapshot()));
}

#[test]
fn row_7_replay_refuses_no_batch_of_the_log() {
    let mut partition = Partition::written(5);
    for (n, epoch, base_sequence) in [(0, 3, 40), (1, 3, 90), (2, 3, 7), (3, 1, 12), (4, 1, 13)] {
        let offset = 100 + n;
        partition.producers.append(&stamp(7, epoch, base_sequence, 1), offset, 0, 0, 5);
    }
    let control = stamp(7, 9, -1, 1);
    partition.producers.append(&control, 105, 0, 0, 5);
    assert_eq!(partition.produce(stamp(7, 1, 12, 1)), Duplicate { base_offset: 103, timestamp: 0 });
    assert_eq!(partition.produce(stamp(7, 1, 7, 1)), Refuse(OutOfOrderSequence));
    assert_eq!(partition.produce(stamp(7, 1, 14, 1)), Append);
}

#[test]
fn row_7_last_entry_of_a_producer_is_its_last_batch_as_for_kafka() {
    let mut partition = Partition::new(5);
    partition.fill(7);
    let entries: Vec<_> = partition.producers.snapshot().collect();
    let before_window = entry(5, -1, 5, 60);
    assert_eq!((entries.len(), entries[0]), (6, before_window));
    let last = entry(20, 20, 2, 180);
    assert_eq!(entries.last(), Some(&last));
}

#[test]
fn row_7_snapshot_of_kafka_or_with_odd_entries_is_read_without_harm() {
    let kafka = entry(8, 108, 2, 5);
    let markers_only = SnapshotEntry { producer_id: 8, last_sequence: -1, last_offset: -1, offset_delta: 0, ..kafka };
    let odd = [
        SnapshotEntry { producer_id: -9, ..kafka },
        SnapshotEntry { producer_id: 9, offset_delta: i32::MIN, ..kafka },
        SnapshotEntry { producer_id: 10, offset_delta: i32::MAX, ..kafka },
        SnapshotEntry { producer_id: 11, last_offset: i64::MIN, ..kafka },
        SnapshotEntry { producer_id: 12, last_sequence: i32::MIN, ..kafka },
        SnapshotEntry { producer_id: 13, last_offset: -1, ..kafka },
    ];
    let mut partition = Partition::written(5);
    partition.producers.restore(odd.into_iter().chain([markers_only, kafka]), 0, 5);
    assert_eq!(partition.producers.len(), 2, "of markers only, and of batches");
    assert_eq!(partition.produce(third(2)), Duplicate { base_offset: 106, timestamp: 5 });
    assert_eq!(partition.produce(third(3)), Append);
}

#[test]
fn row_7_only_a_run_that_leads_up_to_its_window_proves_duplicates() {
    let batch = |n: i32| entry(n * 3 + 2, i64::from(n) * 3 + 2, 2, 0);
    let run = SnapshotEntry { last_offset: -1, offset_delta: 5, ..batch(3) };
    let after = |entries: &[SnapshotEntry]| {
        let mut partition = Partition::written(5);
        partition.producers.restore(entries.iter().copied(), 0, 5);
        partition.produce(third(2))
    };
    assert_eq!(after(&[run, batch(4)]), Refuse(DuplicateSequence));
    let other = SnapshotEntry { producer_id: 8, ..run };
    let older = SnapshotEntry { last_sequence: 8, ..run };
    let endless = SnapshotEntry { offset_delta: i32::MIN, ..run };
    for stray in [other, older, endless] {
        assert_eq!(after(&[stray, batch(4)]), Refuse(OutOfOrderSequence), "{stray:?}");
    }
    assert_eq!(after(&[batch(3), run, batch(4)]), Refuse(OutOfOrderSequence));
}

#[test]
fn row_8_expired_producer_continues_with_any_sequence() {
    let mut partition = Partition::new(5);
    partition.fill(9);
    assert_eq!(partition.producers.expire(DAY_MS - 1, DAY_MS), 0);
    assert_eq!(partition.producers.expire(DAY_MS, DAY_MS), 1);
    assert!(partition.producers.is_empty());
    assert_eq!(partition.produce(third(9)), Append);
    assert_eq!(partition.produce(third(8)), Refuse(OutOfOrderSequence));
}

#[test]
fn row_8_only_idle_producers_expire_at_any_timestamps() {
    let mut producers = Producers::default();
    producers.append(&stamp(1, 0, 0, 1), 0, i64::MAX, 1_000, 5);
    producers.append(&stamp(2, 0, 0, 1), 1, i64::MIN, 2_000, 5);
    producers.append(&stamp(1, 0, 1, 1), 2, 0, 3_000, 5);
    assert_eq!(producers.expire(3_500, 1_000), 1);
    assert_eq!(producers.iter().map(|p| p.producer_id).collect::<Vec<_>>(), [1]);
    assert_eq!(producers.expire(i64::MIN, 1_000), 0);
}

#[test]
fn row_9_producer_outlives_its_records() {
    // The log start is not used here, because retention and DeleteRecords do not change the producer state.
    let mut partition = Partition::new(5);
    partition.fill(3);
    assert_eq!(partition.produce(third(3)), Append);
    assert_eq!(partition.produce(third(0)), original(0));
}

#[test]
fn row_11_new_epoch_begins_at_zero_and_fences_the_old_one() {
    let mut partition = Partition::new(5);
    partition.fill(2);
    assert_eq!(partition.produce(stamp(7, 1, 6, 3)), Refuse(OutOfOrderSequence));
    assert_eq!(partition.produce(stamp(7, 1, 0, 3)), Append);
    assert_eq!(partition.produce(third(2)), Refuse(InvalidProducerEpoch));
    assert_eq!(partition.produce(third(1)), Refuse(InvalidProducerEpoch));
    assert_eq!(partition.produce(stamp(7, 1, 0, 3)), Duplicate { base_offset: 6, timestamp: 60 });
    partition.restart();
    assert_eq!(partition.produce(third(2)), Refuse(InvalidProducerEpoch));
    assert_eq!(partition.produce(stamp(7, i16::MAX, 0, 1)), Append);
}

#[test]
fn row_12_sequences_wrap_to_zero() {
    for window in [5, 64, 1024] {
        let mut partition = Partition::written(window);
        let at = |n: i32| stamp(7, 0, sequence_add(i32::MAX - 8, n * 5), 5);
        assert!(at(1).last_sequence() < at(1).base_sequence, "batch 1 straddles the wrap");
        let count = window as i32 + 1;
        for n in 0..count {
            assert_eq!(partition.produce(at(n)), Append);
        }
        partition.restart();
        for n in 1..count {
            let base_offset = 100 + i64::from(n) * 5;
            assert_eq!(partition.produce(at(n)), Duplicate { base_offset, timestamp: base_offset * 10 });
        }
        assert_eq!(partition.produce(at(0)), Refuse(DuplicateSequence));
        assert_eq!(partition.produce(at(-1)), Refuse(OutOfOrderSequence));
        assert_eq!(partition.produce(at(count + 1)), Refuse(OutOfOrderSequence));
        assert_eq!(partition.produce(at(count)), Append);
    }
}

#[test]
fn row_12_run_longer_than_all_sequences_proves_half_the_range() {
    let mut partition = Partition::new(5);
    let step = HALF_RANGE / 8;
    for n in 0..40 {
        assert_eq!(partition.produce(stamp(7, 0, sequence_add(0, step.wrapping_mul(n)), step)), Append);
    }
    let back = |n: i32| stamp(7, 0, sequence_add(0, step.wrapping_mul(40 - n)), step);
    assert!(matches!(partition.produce(back(5)), Duplicate { .. }));
    assert_eq!(partition.produce(back(6)), Refuse(DuplicateSequence));
    assert_eq!(partition.produce(back(8)), Refuse(DuplicateSequence));
    assert_eq!(partition.produce(back(9)), Refuse(OutOfOrderSequence));
}

#[test]
fn row_14_hundred_thousand_producers_stay_fast_and_bounded() {
    let mut partition = Partition::new(1024);
    let started = Instant::now();
    for producer_id in 0..100_000 {
        assert_eq!(partition.produce(stamp(producer_id, 0, 0, 1)), Append);
        assert!(partition.producers.len() <= PRODUCERS_MAX);
    }
    // If eviction took linear time, this would take minutes.
    assert!(started.elapsed().as_secs() < 10);
    assert_eq!(partition.producers.evicted(), 100_000 - PRODUCERS_MAX as u64);
}

#[test]
fn row_14_producers_idle_since_a_time_are_forgotten_up_to_a_count() {
    let mut producers = Producers::default();
    (0..6).for_each(|id| producers.append(&stamp(id, 0, 0, 1), id, 0, 10 * id, 5));
    producers.append(&stamp(0, 0, 1, 1), 6, 0, 60, 5);
    assert_eq!(producers.forget_idle(30, 2), 2, "1 and 2");
    assert_eq!(producers.forget_idle(30, 9), 1, "3");
    let left: Vec<i64> = producers.iter().map(|producer| producer.producer_id).collect();
    assert_eq!((left, producers.evicted()), (vec![4, 5, 0], 3));
    let mut times: Vec<i64> = producers.last_active().collect();
    times.sort_unstable();
    assert_eq!(times, [40, 50, 60]);
}

#[test]
fn row_14_longest_idle_producer_is_evicted_and_no_live_one() {
    let mut partition = Partition { producers: Producers::bounded(3), ..Partition::new(5) };
    partition.fill(1);
    for n in 1..1000 {
        partition.produce(stamp(1000 + i64::from(n), 0, 0, 1));
        partition.produce(stamp(2000 + i64::from(n), 0, 0, 1));
        assert_eq!(partition.produce(third(n)), Append);
        assert!(matches!(partition.produce(third(n - 1)), Duplicate { .. }));
    }
    partition.restart();
    let order: Vec<_> = partition.producers.iter().map(|p| p.producer_id).collect();
    assert_eq!(order, [1999, 2999, 7]);
}

#[test]
fn row_14_limit_of_one_keeps_the_most_recent_producer() {
    let mut partition = Partition { producers: Producers::bounded(0), ..Partition::new(5) };
    for producer_id in 0..10 {
        assert_eq!(partition.produce(stamp(producer_id, 0, 0, 1)), Append);
        let state = partition.producers.iter().next().expect("one producer");
        assert_eq!((partition.producers.len(), state.producer_id), (1, producer_id));
    }
}

#[test]
fn row_16_record_count_other_than_last_offset_delta_plus_one_is_refused() {
    for (record_count, last_offset_delta) in [(156, 157), (156, 156), (156, 154), (0, -1), (0, 0), (i32::MIN, i32::MAX)]
    {
        assert_eq!(Stamp::from_client(7, 0, 0, record_count, last_offset_delta), Err(InvalidRecord));
    }
    assert_eq!(Stamp::from_client(7, 0, 9, 156, 155), Ok(stamp(7, 0, 9, 156)));
}

#[test]
fn row_16_invalid_stamp_is_refused_and_changes_nothing() {
    let mut partition = Partition::new(5);
    partition.fill(2);
    for odd in [
        stamp(7, 0, 6, 0),
        stamp(7, 0, 6, -3),
        stamp(7, 0, 6, i32::MAX),
        stamp(7, 0, 6, i32::MIN),
        stamp(7, 0, -1, 3),
        stamp(7, 0, i32::MIN, 3),
        stamp(7, -1, 6, 3),
        stamp(-2, 0, 0, 3),
    ] {
        assert_eq!(partition.produce(odd), Refuse(InvalidRecord), "{odd:?}");
    }
    assert_eq!(partition.produce(third(2)), Append);
}

#[test]
fn batch_without_producer_id_is_always_appended_and_never_remembered() {
    let mut partition = Partition::new(5);
    for _ in 0..3 {
        assert_eq!(partition.produce(stamp(NO_PRODUCER_ID, -1, -1, 3)), Append);
    }
    assert!(partition.producers.is_empty());
}
