//! A machine that stopped, and what it leaves of a log: whole batches may follow a hole, and are cut off with it; what
//! was flushed is as safe as ever.

use std::fs;
use std::ops::Range;
use std::sync::Arc;

use fullbore_broker::partitions::{AppendError, Partitions, Replica};
use fullbore_wire::{ErrorCode, Uuid};

use crate::folder::*;

const SEGMENT: &str = "00000000000000000000.log";
/// producer.state.batches.to.retain
const WINDOW: i32 = 5;
const LIST: &str = "unrecovered-checkpoint";

/// Batches of one record and one producer, and where in the first segment each of them ends.
fn written(folder: &Folder, sequences: Range<i32>) -> Vec<usize> {
    let partition = folder.partition();
    let mut ends = Vec::new();
    for n in sequences {
        offset(&partition, &idempotent(1, 0, n, 1));
        ends.push(fs::metadata(folder.file(SEGMENT)).expect("there").len() as usize);
    }
    ends
}

/// Zeros where a batch was; the file as it was before and is now.
fn punch(folder: &Folder, name: &str, hole: Range<usize>) -> (Vec<u8>, Vec<u8>) {
    let path = folder.file(name);
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

/// The log holds `kept` batches, knows the last of them, and goes on after them.
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

fn listed(folder: &Folder) -> String {
    fs::read_to_string(folder.dir.join(LIST)).expect("there")
}

#[test]
fn a_hole_is_cut_off_after_a_power_cut_and_what_follows_it_is_set_aside() {
    let mut folder = Folder::new();
    let ends = written(&folder, 0..20);
    let (_, damaged) = punch(&folder, SEGMENT, ends[6]..ends[7]);
    assert_refused(&folder.crash(), "in the same boot");
    assert_eq!(fs::read(folder.file(SEGMENT)).expect("read"), damaged, "nothing is changed");

    let partition = folder.power_cut();
    assert_goes_on(&partition, 7);
    assert_eq!(folder.files("aside-1"), ["00000000000000000007.log.aside-1"]);
    let aside = fs::read(folder.file("00000000000000000007.log.aside-1")).expect("read");
    assert!(aside == damaged[ends[6]..], "the bytes from the cut on");
    assert_eq!(read_all(&folder.crash(), 0).len(), 8);
    assert_eq!(read_all(&folder.restart(), 0).len(), 8);
    assert_eq!(folder.files("aside-1").len(), 1, "it stays");
}

#[test]
fn garbage_is_a_hole_like_any_other_wherever_it_begins() {
    let mut folder = Folder::new();
    let ends = written(&folder, 0..20);
    let whole = fs::read(folder.file(SEGMENT)).expect("read");
    for from in [0, 1, 60, 61, ends[0] - 1, ends[0], ends[8] + 5, ends[17]] {
        for filler in [0, 0xff, 2] {
            let mut damaged = whole.clone();
            damaged[from..from + 90].fill(filler);
            fs::write(folder.file(SEGMENT), &damaged).expect("written");
            // A byte may be the filler by chance.
            let first_bad = whole.iter().zip(&damaged).position(|(was, is)| was != is).expect("they differ");
            let kept = ends.iter().filter(|end| **end <= first_bad).count();
            let partition = folder.power_cut();
            assert_eq!(partition.offsets().expect("recovered").log_end, kept as i64, "{filler} from {from}");
        }
    }
}

#[test]
fn what_was_flushed_before_the_hole_is_refused_if_it_is_bad() {
    let mut folder = Folder::new();
    written(&folder, 0..10);
    folder.restart();
    let ends = written(&folder, 10..20);
    let start = |n: usize| if n == 10 { ends[0] - (ends[1] - ends[0]) } else { ends[n - 11] };
    let (whole, damaged) = punch(&folder, SEGMENT, start(10) - 50..start(10));
    assert_refused(&folder.power_cut(), "the last flushed batch");
    assert_eq!(fs::read(folder.file(SEGMENT)).expect("read"), damaged, "nothing is changed");

    fs::write(folder.file(SEGMENT), whole).expect("restored");
    punch(&folder, SEGMENT, start(10)..start(11));
    assert_goes_on(&folder.power_cut(), 10);
}

#[test]
fn without_a_readable_list_of_what_was_flushed_nothing_is_cut_off() {
    let mut folder = Folder::new();
    written(&folder, 0..10);
    folder.restart();
    let ends = written(&folder, 10..20);
    punch(&folder, SEGMENT, ends[3]..ends[4]);
    fs::write(folder.dir.join("recovery-point-offset-checkpoint"), "nonsense").expect("damaged");
    assert_refused(&folder.power_cut(), "anything may have been flushed");
}

#[test]
fn a_boot_that_is_not_known_is_this_one() {
    let mut folder = Folder::new();
    let ends = written(&folder, 0..10);
    punch(&folder, SEGMENT, ends[3]..ends[4]);
    for damaged in ["nonsense", ""] {
        fs::write(folder.dir.join("boot-id"), damaged).expect("damaged");
        assert_refused(&folder.crash(), damaged);
    }
    fs::remove_file(folder.dir.join("boot-id")).expect("there");
    assert_refused(&folder.crash(), "no file");
    assert!(folder.dir.join("boot-id").exists());
}

#[test]
fn segments_after_the_hole_are_set_aside_with_it_and_so_once_more() {
    let mut folder = Folder::new().with(|config| config.segment_bytes = 1000);
    let value = [7; 700];
    let partition = folder.partition();
    (0..8).for_each(|n| assert_eq!(offset(&partition, &plain(1, &value)), n));
    drop(partition);
    let before: Vec<Vec<u8>> =
        folder.files(".log").iter().map(|name| fs::read(folder.file(name)).expect("read")).collect();
    assert_eq!(before.len(), 8, "a segment for each");
    let (_, damaged) = punch(&folder, "00000000000000000003.log", 100..200);

    let partition = folder.power_cut();
    assert_eq!(partition.offsets().expect("recovered").log_end, 3);
    assert_eq!(folder.files(".log").len(), 4, "the one with the hole is empty now");
    let expected: Vec<String> = (3..8).map(|base| format!("{base:020}.log.aside-1")).collect();
    assert_eq!(folder.files("aside-1"), expected);
    for (name, base) in expected.iter().zip(3..) {
        let found = fs::read(folder.file(name)).expect("read");
        assert!(found == if base == 3 { &damaged[..] } else { &before[base] }, "{name}");
    }
    for gone in [4, 7].map(|base: i64| format!("{base:020}")) {
        for kind in ["index", "timeindex", "snapshot"] {
            assert!(!folder.file(&format!("{gone}.{kind}")).exists(), "{gone}.{kind}");
        }
    }
    (3..7).for_each(|n| assert_eq!(offset(&partition, &plain(1, &value)), n));
    drop(partition);
    punch(&folder, "00000000000000000003.log", 100..200);
    let partition = folder.power_cut();
    assert_eq!(partition.offsets().expect("recovered").log_end, 3);
    assert_eq!((folder.files("aside-1").len(), folder.files("aside-2").len()), (5, 4));
    assert_eq!(offset(&partition, &plain(1, &value)), 3);
}

/// The end of a file may be lost, or all of it, while a later one is there.
#[test]
fn a_segment_that_ends_too_early_is_a_hole_as_well() {
    for lost in ["the file", "everything in it"] {
        let mut folder = Folder::new().with(|config| config.segment_bytes = 1000);
        let partition = folder.partition();
        (0..6).for_each(|n| assert_eq!(offset(&partition, &plain(1, &[7; 700])), n));
        drop(partition);
        let path = folder.file("00000000000000000003.log");
        match lost {
            "the file" => fs::remove_file(path).expect("there"),
            _ => fs::write(path, []).expect("emptied"),
        }
        let partition = folder.power_cut();
        assert_eq!(partition.offsets().expect("recovered").log_end, 3, "{lost}");
        assert_eq!(folder.files("aside-1").len(), 2);
        assert_eq!(offset(&partition, &plain(1, b"v")), 3);
        assert_eq!(read_all(&folder.crash(), 0).len(), 4);
    }
}

/// Nobody has looked at the partition when the broker that came after the power cut ends, in whatever way.
#[test]
fn a_partition_not_opened_after_a_power_cut_is_still_cut_later() {
    for stops in [true, false] {
        let mut folder = Folder::new();
        let ends = written(&folder, 0..20);
        punch(&folder, SEGMENT, ends[6]..ends[7]);
        fs::write(folder.dir.join("boot-id"), "00000000-0000-4000-8000-000000000000\n").expect("written");
        for _ in 0..3 {
            folder.logs = Partitions::open(&folder.dir, &folder.settings).expect("opened");
            if stops {
                folder.logs.close();
            }
        }
        assert_goes_on(&folder.crash(), 7);
    }
}

#[test]
fn a_partition_that_was_recovered_is_damaged_by_no_power_cut_before_that() {
    let mut folder = Folder::new();
    written(&folder, 0..20);
    drop(folder.power_cut());
    assert_eq!(listed(&folder), "0\n1\ntopic 0 1\n");
    wait_until("it is off the list", || listed(&folder) == "0\n0\n");
    let ends = written(&folder, 20..40);
    punch(&folder, SEGMENT, ends[6]..ends[7]);
    assert_refused(&folder.crash(), "after a kill");
    assert_goes_on(&folder.power_cut(), 27);
}

/// The clean stop has written everything there was, and that was whole.
#[test]
fn damage_after_a_clean_stop_is_no_power_cuts_even_to_a_partition_not_opened_since_a_kill() {
    let mut folder = Folder::new();
    let ends = written(&folder, 0..20);
    folder.logs = Partitions::open(&folder.dir, &folder.settings).expect("opened");
    folder.logs.close();
    punch(&folder, SEGMENT, ends[6]..ends[7]);
    assert_refused(&folder.power_cut(), "stopped in between");
}

#[test]
fn what_was_set_aside_goes_with_its_topic() {
    let mut folder = Folder::new().with(|config| config.file_delete_delay_ms = 0);
    let ends = written(&folder, 0..20);
    punch(&folder, SEGMENT, ends[6]..ends[7]);
    assert_goes_on(&folder.power_cut(), 7);
    assert_eq!(folder.files("aside-1").len(), 1);
    folder.logs.delete_topic(ID);
    wait_until("the folder is gone", || folder.partition_folders() == 0);
    let again = folder.partition_of(TOPIC, Uuid([8; 16]), 0);
    assert_eq!(offset(&again, &plain(1, b"v")), 0);
}

#[test]
fn damage_before_a_clean_stop_is_not_a_later_power_cuts() {
    let mut folder = Folder::new();
    let ends = written(&folder, 0..20);
    punch(&folder, SEGMENT, ends[6]..ends[7]);
    assert_eq!(folder.logs.refused_partitions(), 0);
    assert_refused(&folder.crash(), "after a kill");
    assert_eq!((folder.logs.refused_partitions(), folder.logs.failed_partitions()), (1, 0));
    assert_refused(&folder.restart(), "the clean stop had everything written");
    assert_refused(&folder.restart(), "and once more");
    assert_refused(&folder.power_cut(), "of a partition that was never opened a later power cut takes nothing");
}

/// What the machine had flushed was lost with it; what is appended then was not flushed, whatever the checkpoint said
/// before.
#[test]
fn a_torn_tail_after_a_power_cut_that_took_flushed_records_is_cut_off() {
    let mut folder = Folder::new();
    let ends = written(&folder, 0..10);
    folder.kill();
    let points = folder.dir.join("recovery-point-offset-checkpoint");
    fs::write(&points, format!("0\n1\n{TOPIC} 0 10\n")).expect("written");
    let file = fs::File::options().write(true).open(folder.file(SEGMENT)).expect("there");
    file.set_len(ends[4] as u64).expect("cut off");
    let partition = folder.power_cut();
    assert_eq!(partition.offsets().expect("opened").log_end, 5);
    wait_until("it is off the list", || listed(&folder) == "0\n0\n");
    offset(&partition, &idempotent(1, 0, 5, 1));
    offset(&partition, &idempotent(1, 0, 6, 1));
    folder.kill();
    let size = fs::metadata(folder.file(SEGMENT)).expect("there").len();
    file.set_len(size - 1).expect("torn");
    assert_goes_on(&folder.crash(), 6);
}
