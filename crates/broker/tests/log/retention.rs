//! Tests retention and deletions of records.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use fullbore_broker::partitions::{Acks, AppendError, AppendTerms, ReadError, Replica};
use fullbore_log::partition::read::Isolation;
use fullbore_rules::sequence::SequenceRefusal;
use fullbore_wire::Uuid;
use fullbore_wire::batch::{Compression, Stamp};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};

use crate::directory::*;

/// Returns a directory in which retention is checked every millisecond. Two batches fill a segment.
fn directory() -> Directory {
    let mut directory = Directory::new().with(|config| {
        config.segment_bytes = 1000;
        config.retention_ms = None;
        config.file_delete_delay_ms = 0;
    });
    directory.logs.close();
    directory.settings.storage.retention_check_interval_ms = 1;
    directory.crash();
    directory
}

fn fill(partition: &Arc<Replica>, timestamps: impl IntoIterator<Item = i64>) {
    for timestamp in timestamps {
        offset(partition, &timed(Stamp::NONE, Compression::None, &[timestamp], &[1; 400]));
    }
}

fn log_start(partition: &Replica) -> i64 {
    partition.offsets().expect("open").log_start
}

fn wall_clock() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.expect("after 1970").as_millis() as i64
}

#[test]
fn segments_past_retention_are_removed_and_later_their_files() {
    let directory = directory().with(|config| config.retention_ms = Some(3_600_000));
    let partition = directory.partition();
    let now = wall_clock();
    fill(&partition, (0..6).map(|_| now - 7_200_000).chain((0..4).map(|_| now)));
    wait_until("old segments are gone", || log_start(&partition) == 6);
    wait_until("their files are gone", || directory.files("").iter().all(|name| !name.ends_with("deleted")));
    assert_eq!(directory.files(".log")[0], "00000000000000000006.log");
    assert_eq!(partition.read(5, 100, true).err(), Some(ReadError::OffsetOutOfRange));
    assert_eq!(read_all(&partition, 6).len(), 4);
}

/// Retention must remove nothing before the time that was passed to `keep_records_until`, because its settings may be
/// older than the records.
#[test]
fn records_are_kept_until_the_time_that_is_set_and_then_removed() {
    let mut directory = directory().with(|config| config.retention_ms = Some(3_600_000));
    directory.logs.close();
    directory.settings.storage.high_watermark_checkpoint_interval_ms = 1;
    directory.kill();
    directory.logs.keep_records_until(i64::MAX);
    let partition = directory.partition();
    fill(&partition, (0..6).map(|_| wall_clock() - 7_200_000));
    let other = directory.partition_of("other", Uuid([8; 16]), 0);
    fill(&other, (0..2).map(|_| NOW));
    // Each round of housekeeping writes this file after it has checked the retention.
    let high_watermarks = directory.dir.join("replication-offset-checkpoint");
    wait_until("a round has passed", || fs::read_to_string(&high_watermarks).is_ok_and(|text| text.contains("other")));
    assert_eq!(log_start(&partition), 0);
    directory.logs.keep_records_until(wall_clock());
    wait_until("old segments are gone", || log_start(&partition) == 6);
}

#[test]
fn active_segment_past_retention_is_removed_and_offsets_continue() {
    let mut directory = directory().with(|config| config.retention_ms = Some(3_600_000));
    let partition = directory.partition();
    fill(&partition, (0..3).map(|_| wall_clock() - 7_200_000));
    offset(&partition, &idempotent(5, 0, 0, 1));
    wait_until("everything is gone", || log_start(&partition) == 4);
    assert_eq!(offset(&partition, &idempotent(5, 0, 0, 1)), 3, "the producer is still known");
    drop(partition);
    let partition = directory.crash();
    assert_eq!(offset(&partition, &idempotent(5, 0, 0, 1)), 3, "and after a crash");
    assert_eq!(offset(&partition, &idempotent(5, 0, 1, 1)), 4);
}

/// Because the windows are large, not every new segment has a snapshot of the producers. Segments after the newest
/// snapshot must still be removed once their records are deleted. The producers must then survive a crash.
#[test]
fn segments_after_the_newest_snapshot_are_retired_their_producers_survive_a_crash() {
    let mut directory = directory().with(|config| config.producer_state_batches_to_retain = 10_000);
    let partition = directory.partition();
    (0..3000).for_each(|sequence| _ = offset(&partition, &idempotent(1, 0, sequence, 1)));
    let last = (0..200).map(|sequence| offset(&partition, &idempotent(2, 0, sequence, 1))).max();
    partition.delete_records_before(3100).expect("deleted");
    wait_until("old segments are gone", || !directory.files(".log").contains(&format!("{:020}.log", 0)));
    wait_until("their files are gone", || directory.files("").iter().all(|name| !name.ends_with("deleted")));
    drop(partition);
    let partition = directory.crash();
    assert_eq!(offset(&partition, &idempotent(1, 0, 2999, 1)), 2999);
    assert_eq!(Some(offset(&partition, &idempotent(2, 0, 199, 1))), last);
}

#[test]
fn a_partition_keeps_about_its_retention_bytes() {
    let directory = directory().with(|config| config.retention_bytes = Some(2500));
    let partition = directory.partition();
    fill(&partition, (0..20).map(|_| NOW));
    let size = |name: &String| std::fs::metadata(directory.file(name)).map_or(0, |file| file.len());
    let kept = || directory.files(".log").iter().map(size).sum::<u64>();
    wait_until("the excess is gone", || log_start(&partition) > 0 && kept() < 2500 + 1000);
    assert!(kept() >= 2500, "{} bytes kept", kept());
}

#[test]
fn closed_partition_is_opened_when_its_retention_is_due() {
    let mut directory = directory();
    fill(&directory.partition(), (0..20).map(|_| NOW));
    directory.config.retention_bytes = Some(1000);
    drop(directory.restart());
    wait_until("the excess is gone", || directory.files(".log").len() <= 2);
}

#[test]
fn retention_of_other_logs_continues_while_one_is_being_opened() {
    let mut directory = directory();
    fill(&directory.partition(), (0..20).map(|_| NOW));
    directory.logs.close();
    let epochs = directory.file("leader-epoch-checkpoint");
    fs::remove_file(&epochs).expect("removed");
    // Opening the log hangs at this named pipe, because a reader of a pipe blocks until a writer opens it.
    mknodat(CWD, &epochs, FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("a named pipe");
    directory.config.retention_bytes = Some(1000);
    drop(directory.crash());
    let mut pipe = None;
    wait_until("the log is being opened", || {
        pipe = rustix::fs::open(&epochs, OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()).ok();
        pipe.is_some()
    });
    let other = directory.partition_of("other", Uuid([9; 16]), 0);
    fill(&other, (0..20).map(|_| NOW));
    wait_until("the other's excess is gone", || log_start(&other) > 0);
    drop(pipe);
    wait_until("and then its own", || directory.files(".log").len() <= 2);
}

#[test]
fn deleted_records_are_gone_at_once_and_after_a_restart() {
    let mut directory = directory();
    let partition = directory.partition();
    fill(&partition, (0..10).map(|_| NOW));
    let before = partition.read(0, 1 << 20, true).expect("read");
    assert_eq!(partition.delete_records_before(5).expect("moved"), 5);
    assert_eq!(partition.read(4, 100, true).err(), Some(ReadError::OffsetOutOfRange));
    assert_eq!(partition.delete_records_before(3).expect("not back"), 5);
    assert_eq!(partition.delete_records_before(11).err(), Some(ReadError::OffsetOutOfRange));
    wait_until("whole segments are gone", || directory.files(".log")[0] == "00000000000000000004.log");
    assert_eq!(bytes(&before.records).len() as u32, before.records.len() as u32, "a slice being sent still is");
    drop(partition);
    let partition = directory.restart();
    assert_eq!(log_start(&partition), 5);
    assert_eq!(
        partition.offset_for_timestamp(Isolation::ReadUncommitted, 0).expect("read").map(|found| found.offset),
        Some(5)
    );
    assert_eq!(partition.delete_records_before(-1).expect("all"), 10);
    assert_eq!(offset(&partition, &idempotent(9, 0, 17, 1)), 10, "an emptied partition takes any first sequence");
}

/// A segment whose records have no timestamps is as old as its file, as in Kafka's `LogSegment.largestTimestamp`.
#[test]
fn segments_whose_records_have_no_timestamp_are_as_old_as_their_files() {
    let mut directory = directory().with(|config| config.retention_ms = Some(3_600_000));
    let mut partition = directory.partition();
    fill(&partition, [-1; 8]);
    let age = |directory: &Directory, base: i64| {
        let file =
            std::fs::File::options().write(true).open(directory.file(&format!("{base:020}.log"))).expect("there");
        file.set_modified(std::time::SystemTime::now() - Duration::from_secs(7200)).expect("set");
    };
    for base in [0, 2, 4] {
        age(&directory, base);
        wait_until("the old segment is gone, and no other", || log_start(&partition) == base + 2);
        assert_eq!(read_all(&partition, base + 2).len() as i64, 6 - base);
        drop(partition);
        partition = directory.restart();
        assert_eq!(log_start(&partition), base + 2);
    }
}

#[test]
fn larger_log_start_of_two_concurrent_deletions_stays_on_disk() {
    let mut directory = Directory::new();
    let partition = directory.partition();
    (0..20).for_each(|_| _ = offset(&partition, &plain(1, b"v")));
    // Both deletions move the log start. Only then do they write the checkpoint, one after the other.
    partition.delete_records_before(5).expect("moved");
    partition.delete_records_before(10).expect("moved");
    directory.logs.keep_log_starts(std::slice::from_ref(&partition)).expect("kept by the other");
    directory.logs.keep_log_starts(std::slice::from_ref(&partition)).expect("kept");
    drop(partition);
    directory.kill();
    assert_eq!(directory.partition().offsets().expect("recovered").log_start, 10);
}

#[test]
fn producers_past_the_broker_limit_are_removed_longest_idle_first() {
    let mut directory = Directory::new();
    directory.logs.close();
    directory.settings.storage.producers_max = 10;
    let partitions = [directory.crash(), directory.partition_of("another", Uuid([31; 16]), 0)];
    for (now_ms, partition) in (NOW..).zip(&partitions) {
        for producer_id in 0..8 {
            let batch = idempotent(producer_id, 0, 0, 1);
            let terms = AppendTerms::in_turn(Acks::Leader, now_ms);
            let _ = partition.append(&valid(partition, &batch).expect("valid"), terms).expect("appended");
        }
    }
    let known = |partition: &Replica| partition.producers().expect("open").len();
    wait_until("there are too many for a round", || known(&partitions[0]) + known(&partitions[1]) <= 10);
    assert_eq!(known(&partitions[1]), 8);
    let left = partitions[0].producers().expect("open");
    assert!(left.len() <= 2 && left.last().is_none_or(|newest| newest.producer_id == 7), "{left:?}");
    assert_eq!(offset(&partitions[0], &idempotent(0, 0, 5, 1)), 8, "a forgotten one goes on with any sequence");
    let gap = append(&partitions[1], &idempotent(0, 0, 5, 1)).expect_err("a gap is still known");
    assert_eq!(gap, AppendError::Sequence(SequenceRefusal::OutOfOrderSequence));
}
