//! Tests the state of a log after a power loss. Whole batches may follow a hole in the log, and are truncated together
//! with it. Flushed records are not lost.

use std::fs;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use fullbore_broker::partitions::{AppendError, Partitions, Replica};
use fullbore_wire::{ErrorCode, Uuid};

use crate::directory::*;

const SEGMENT: &str = "00000000000000000000.log";
/// The value of `producer.state.batches.to.retain`.
const WINDOW: i32 = 5;
const LIST: &str = "unrecovered-checkpoint";

/// Writes batches of one record by one producer. Returns the end position of each batch in the first segment.
fn written(directory: &Directory, sequences: Range<i32>) -> Vec<usize> {
    let partition = directory.partition();
    let mut ends = Vec::new();
    for n in sequences {
        offset(&partition, &idempotent(1, 0, n, 1));
        ends.push(fs::metadata(directory.file(SEGMENT)).expect("there").len() as usize);
    }
    ends
}

/// Overwrites a range of a file with zeros. Returns the contents before and after.
fn punch(directory: &Directory, name: &str, hole: Range<usize>) -> (Vec<u8>, Vec<u8>) {
    let path = directory.file(name);
    let whole = fs::read(&path).expect("read");
    let mut damaged = whole.clone();
    damaged[hole].fill(0);
    fs::write(path, &damaged).expect("written");
    (whole, damaged)
}

fn assert_refused(partition: &Arc<Replica>, what: &str) {
    let sent = append(partition, &plain(1, b"v"));
    assert_eq!(sent.map(|appended| appended.base_offset), Err(AppendError::Storage), "{what}");
}

/// Checks that the log has `kept` batches, recognises retries of the last ones, and accepts new batches.
fn assert_goes_on(partition: &Arc<Replica>, kept: i32) {
    assert_eq!(partition.offsets().expect("recovered").log_end, i64::from(kept));
    assert_eq!(read_all(partition, 0).len(), kept as usize);
    for n in (kept - WINDOW).max(0)..kept {
        assert_eq!(offset(partition, &idempotent(1, 0, n, 1)), i64::from(n), "a duplicate");
    }
    let gap = append(partition, &idempotent(1, 0, kept + 1, 1)).expect_err("a gap");
    assert_eq!(gap.code(), ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER);
    assert_eq!(offset(partition, &idempotent(1, 0, kept, 1)), i64::from(kept), "the next one");
}

fn listed(directory: &Directory) -> String {
    fs::read_to_string(directory.dir.join(LIST)).expect("there")
}

#[test]
fn hole_after_a_power_loss_is_truncated_and_later_records_are_set_aside() {
    let mut directory = Directory::new();
    let ends = written(&directory, 0..20);
    let (_, damaged) = punch(&directory, SEGMENT, ends[6]..ends[7]);
    assert_refused(&directory.crash(), "in the same boot");
    assert_eq!(fs::read(directory.file(SEGMENT)).expect("read"), damaged, "nothing is changed");

    let partition = directory.power_cut();
    assert_goes_on(&partition, 7);
    assert_eq!(directory.files("aside-1"), ["00000000000000000007.log.aside-1"]);
    let aside = fs::read(directory.file("00000000000000000007.log.aside-1")).expect("read");
    assert!(aside == damaged[ends[6]..], "the bytes from the cut on");
    assert_eq!(read_all(&directory.crash(), 0).len(), 8);
    assert_eq!(read_all(&directory.restart(), 0).len(), 8);
    assert_eq!(directory.files("aside-1").len(), 1, "it stays");
}

#[test]
fn garbage_at_any_position_counts_as_a_hole() {
    let mut directory = Directory::new();
    let ends = written(&directory, 0..20);
    let whole = fs::read(directory.file(SEGMENT)).expect("read");
    for from in [0, 1, 60, 61, ends[0] - 1, ends[0], ends[8] + 5, ends[17]] {
        for filler in [0, 0xff, 2] {
            let mut damaged = whole.clone();
            damaged[from..from + 90].fill(filler);
            fs::write(directory.file(SEGMENT), &damaged).expect("written");
            // Bytes that already were equal to the filler are not damaged.
            let first_bad = whole.iter().zip(&damaged).position(|(was, is)| was != is).expect("they differ");
            let kept = ends.iter().filter(|end| **end <= first_bad).count();
            let partition = directory.power_cut();
            assert_eq!(partition.offsets().expect("recovered").log_end, kept as i64, "{filler} from {from}");
        }
    }
}

#[test]
fn damage_before_the_recovery_point_is_refused() {
    let mut directory = Directory::new();
    written(&directory, 0..10);
    directory.restart();
    let ends = written(&directory, 10..20);
    let start = |n: usize| if n == 10 { ends[0] - (ends[1] - ends[0]) } else { ends[n - 11] };
    let (whole, damaged) = punch(&directory, SEGMENT, start(10) - 50..start(10));
    assert_refused(&directory.power_cut(), "the last flushed batch");
    assert_eq!(fs::read(directory.file(SEGMENT)).expect("read"), damaged, "nothing is changed");

    fs::write(directory.file(SEGMENT), whole).expect("restored");
    punch(&directory, SEGMENT, start(10)..start(11));
    assert_goes_on(&directory.power_cut(), 10);
}

#[test]
fn without_a_readable_recovery_point_nothing_is_truncated() {
    let mut directory = Directory::new();
    written(&directory, 0..10);
    directory.restart();
    let ends = written(&directory, 10..20);
    punch(&directory, SEGMENT, ends[3]..ends[4]);
    fs::write(directory.dir.join("recovery-point-offset-checkpoint"), "nonsense").expect("damaged");
    assert_refused(&directory.power_cut(), "anything may have been flushed");
}

#[test]
fn unreadable_boot_id_counts_as_the_same_boot() {
    let mut directory = Directory::new();
    let ends = written(&directory, 0..10);
    punch(&directory, SEGMENT, ends[3]..ends[4]);
    for damaged in ["nonsense", ""] {
        fs::write(directory.dir.join("boot-id"), damaged).expect("damaged");
        assert_refused(&directory.crash(), damaged);
    }
    fs::remove_file(directory.dir.join("boot-id")).expect("there");
    assert_refused(&directory.crash(), "no file");
    assert!(directory.dir.join("boot-id").exists());
}

#[test]
fn segments_after_a_hole_are_set_aside_each_time() {
    let mut directory = Directory::new().with(|config| config.segment_bytes = 1000);
    let value = [7; 700];
    let partition = directory.partition();
    (0..8).for_each(|n| assert_eq!(offset(&partition, &plain(1, &value)), n));
    drop(partition);
    let before: Vec<Vec<u8>> =
        directory.files(".log").iter().map(|name| fs::read(directory.file(name)).expect("read")).collect();
    assert_eq!(before.len(), 8, "a segment for each");
    let (_, damaged) = punch(&directory, "00000000000000000003.log", 100..200);

    let partition = directory.power_cut();
    assert_eq!(partition.offsets().expect("recovered").log_end, 3);
    assert_eq!(directory.files(".log").len(), 4, "the one with the hole is empty now");
    let expected: Vec<String> = (3..8).map(|base| format!("{base:020}.log.aside-1")).collect();
    assert_eq!(directory.files("aside-1"), expected);
    for (name, base) in expected.iter().zip(3..) {
        let found = fs::read(directory.file(name)).expect("read");
        assert!(found == if base == 3 { &damaged[..] } else { &before[base] }, "{name}");
    }
    for gone in [4, 7].map(|base: i64| format!("{base:020}")) {
        for kind in ["index", "timeindex", "snapshot"] {
            assert!(!directory.file(&format!("{gone}.{kind}")).exists(), "{gone}.{kind}");
        }
    }
    (3..7).for_each(|n| assert_eq!(offset(&partition, &plain(1, &value)), n));
    drop(partition);
    punch(&directory, "00000000000000000003.log", 100..200);
    let partition = directory.power_cut();
    assert_eq!(partition.offsets().expect("recovered").log_end, 3);
    assert_eq!((directory.files("aside-1").len(), directory.files("aside-2").len()), (5, 4));
    assert_eq!(offset(&partition, &plain(1, &value)), 3);
}

/// A log file is missing or empty, although the next one is complete. The log must end before the lost file.
#[test]
fn segment_that_ends_too_early_counts_as_a_hole() {
    for lost in ["the file", "everything in it"] {
        let mut directory = Directory::new().with(|config| config.segment_bytes = 1000);
        let partition = directory.partition();
        (0..6).for_each(|n| assert_eq!(offset(&partition, &plain(1, &[7; 700])), n));
        drop(partition);
        let path = directory.file("00000000000000000003.log");
        match lost {
            "the file" => fs::remove_file(path).expect("there"),
            _ => fs::write(path, []).expect("emptied"),
        }
        let partition = directory.power_cut();
        assert_eq!(partition.offsets().expect("recovered").log_end, 3, "{lost}");
        assert_eq!(directory.files("aside-1").len(), 2);
        assert_eq!(offset(&partition, &plain(1, b"v")), 3);
        assert_eq!(read_all(&directory.crash(), 0).len(), 4);
    }
}

#[test]
fn segment_missing_after_a_kill_is_named_and_the_log_opens_without_the_later_ones() {
    let mut directory = Directory::new().with(|config| config.segment_bytes = 1000);
    let partition = directory.partition();
    (0..6).for_each(|n| assert_eq!(offset(&partition, &plain(1, &[7; 700])), n));
    drop(partition);
    fs::remove_file(directory.file("00000000000000000003.log")).expect("there");
    let began = Instant::now();
    let partition = directory.crash();
    assert_refused(&partition, "a missing file");
    let refusal = partition.open_failure_since(began).expect("refused").to_string();
    for part in [
        "offsets 3 to 3 are missing",
        "00000000000000000003.log is gone",
        "move 00000000000000000004.log and all later",
    ] {
        assert!(refusal.contains(part), "{refusal}");
    }
    drop(partition);
    for later in [4, 5] {
        fs::remove_file(directory.file(&format!("{later:020}.log"))).expect("there");
    }
    assert_eq!(read_all(&directory.crash(), 0).len(), 3);
}

/// After the power loss, brokers start and stop without opening the partition. When it is first opened, its damage must
/// still be attributed to the power loss.
#[test]
fn partition_first_opened_later_is_still_truncated_after_a_power_loss() {
    for stops in [true, false] {
        let mut directory = Directory::new();
        let ends = written(&directory, 0..20);
        punch(&directory, SEGMENT, ends[6]..ends[7]);
        fs::write(directory.dir.join("boot-id"), "00000000-0000-4000-8000-000000000000\n").expect("written");
        for _ in 0..3 {
            directory.logs = Partitions::open(&directory.dir, &directory.settings).expect("opened");
            if stops {
                directory.logs.close();
            }
        }
        assert_goes_on(&directory.crash(), 7);
    }
}

#[test]
fn damage_to_a_recovered_partition_is_refused_despite_an_earlier_power_loss() {
    let mut directory = Directory::new();
    written(&directory, 0..20);
    drop(directory.power_cut());
    assert_eq!(listed(&directory), "0\n1\ntopic 0 1\n");
    wait_until("it is off the list", || listed(&directory) == "0\n0\n");
    let ends = written(&directory, 20..40);
    punch(&directory, SEGMENT, ends[6]..ends[7]);
    assert_refused(&directory.crash(), "after a kill");
    assert_goes_on(&directory.power_cut(), 27);
}

/// A clean stop flushes all records. Later damage is then not an effect of the power loss, so the log must be refused.
#[test]
fn damage_after_a_clean_stop_is_refused_even_if_not_opened_since_a_kill() {
    let mut directory = Directory::new();
    let ends = written(&directory, 0..20);
    directory.logs = Partitions::open(&directory.dir, &directory.settings).expect("opened");
    directory.logs.close();
    punch(&directory, SEGMENT, ends[6]..ends[7]);
    assert_refused(&directory.power_cut(), "stopped in between");
}

#[test]
fn files_set_aside_are_removed_with_their_topic() {
    let mut directory = Directory::new().with(|config| config.file_delete_delay_ms = 0);
    let ends = written(&directory, 0..20);
    punch(&directory, SEGMENT, ends[6]..ends[7]);
    assert_goes_on(&directory.power_cut(), 7);
    assert_eq!(directory.files("aside-1").len(), 1);
    directory.logs.delete_topic(ID);
    wait_until("the directory is gone", || directory.partition_directories() == 0);
    let again = directory.partition_of(TOPIC, Uuid([8; 16]), 0);
    assert_eq!(offset(&again, &plain(1, b"v")), 0);
}

#[test]
fn damage_before_a_clean_stop_is_refused_after_a_power_loss() {
    let mut directory = Directory::new();
    let ends = written(&directory, 0..20);
    punch(&directory, SEGMENT, ends[6]..ends[7]);
    assert_eq!(directory.logs.refused_partitions(), 0);
    assert_refused(&directory.crash(), "after a kill");
    assert_eq!((directory.logs.refused_partitions(), directory.logs.failed_partitions()), (1, 0));
    assert_refused(&directory.restart(), "the clean stop had everything written");
    assert_refused(&directory.restart(), "and once more");
    assert_refused(&directory.power_cut(), "of a partition that was never opened a later power cut takes nothing");
}

/// A power loss has destroyed records that were flushed, and new records get their offsets. The old checkpoint covers
/// these offsets, but the new records are not flushed. If a kill tears the last new record, it must be truncated.
#[test]
fn torn_tail_after_a_power_loss_of_flushed_records_is_truncated() {
    let mut directory = Directory::new();
    let ends = written(&directory, 0..10);
    directory.kill();
    let points = directory.dir.join("recovery-point-offset-checkpoint");
    fs::write(&points, format!("0\n1\n{TOPIC} 0 10\n")).expect("written");
    let file = fs::File::options().write(true).open(directory.file(SEGMENT)).expect("there");
    file.set_len(ends[4] as u64).expect("cut off");
    let partition = directory.power_cut();
    assert_eq!(partition.offsets().expect("opened").log_end, 5);
    wait_until("it is off the list", || listed(&directory) == "0\n0\n");
    offset(&partition, &idempotent(1, 0, 5, 1));
    offset(&partition, &idempotent(1, 0, 6, 1));
    directory.kill();
    let size = fs::metadata(directory.file(SEGMENT)).expect("there").len();
    file.set_len(size - 1).expect("torn");
    assert_goes_on(&directory.crash(), 6);
}
