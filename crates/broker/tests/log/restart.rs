//! Tests the state of the log after clean and unclean restarts.

use std::collections::HashSet;
use std::fs;

use fullbore_broker::partitions::{AppendError, Partitions, ReadError};
use fullbore_wire::{ErrorCode, Uuid};

use crate::directory::*;

/// Checks two producers: retries of the batches in their windows get the same offsets, older batches are recognised as
/// duplicates, and gaps are refused.
fn check_windows(directory: &Directory, batches: i32) {
    let partition = directory.partition();
    let window = directory.config.producer_state_batches_to_retain as i32;
    for producer_id in [1, 2] {
        for n in batches - window..batches {
            let expected = i64::from(n) * 4 + (producer_id - 1) * 2;
            assert_eq!(offset(&partition, &idempotent(producer_id, 0, n * 2, 2)), expected);
        }
        let old = append(&partition, &idempotent(producer_id, 0, 0, 2)).expect_err("old");
        assert_eq!(old.code(), ErrorCode::DUPLICATE_SEQUENCE_NUMBER);
        let gap = append(&partition, &idempotent(producer_id, 0, batches * 2 + 1, 2)).expect_err("a gap");
        assert_eq!(gap.code(), ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER);
    }
    assert_eq!(partition.offsets().expect("open").log_end, i64::from(batches) * 4);
}

/// Restarts cleanly and uncleanly, with intact, damaged and old snapshots of the producers. Checks the producers after
/// each restart.
fn check_restarts(window: usize, segment_bytes: u64) {
    let mut directory = Directory::new().with(|config| {
        config.segment_bytes = segment_bytes;
        config.producer_state_batches_to_retain = window;
    });
    let partition = directory.crash();
    for n in 0..100 {
        for producer_id in [1, 2] {
            offset(&partition, &idempotent(producer_id, 0, n * 2, 2));
        }
    }
    drop(partition);
    check_windows(&directory, 100);
    directory.crash();
    check_windows(&directory, 100);
    directory.restart();
    check_windows(&directory, 100);
    directory.restart();
    for snapshot in directory.files("snapshot") {
        fs::write(directory.file(&snapshot), b"torn").expect("written");
    }
    check_windows(&directory, 100);
    directory.crash();
    check_windows(&directory, 100);
}

#[test]
fn windows_of_5_and_64_batches_survive_any_restart() {
    for window in [5, 64] {
        for segment_bytes in [1 << 30, 1000, 10_000] {
            check_restarts(window, segment_bytes);
        }
    }
}

#[test]
fn clean_shutdown_leaves_a_marker_that_the_next_start_removes() {
    let mut directory = Directory::new();
    offset(&directory.partition(), &plain(3, b"v"));
    let marker = directory.dir.join(".kafka_cleanshutdown");
    assert!(!marker.exists());
    directory.logs.close();
    assert!(marker.exists());
    let points = fs::read_to_string(directory.dir.join("recovery-point-offset-checkpoint")).expect("read");
    assert_eq!(points, "0\n1\ntopic 0 3\n");
    assert_eq!(
        append(&directory.partition(), &plain(1, b"v")).err().map(|error| error.code()),
        Some(ErrorCode::NOT_LEADER_OR_FOLLOWER)
    );
    let partition = directory.crash();
    assert!(!marker.exists());
    assert_eq!(partition.offsets().expect("open").log_end, 3);
    assert_eq!(offset(&partition, &plain(1, b"v")), 3);
}

/// A snapshot has an entry for each batch in the producer's window, so here its size is 138 KB. Most of the tiny
/// segments must therefore be closed without a snapshot. A restarted broker must recognise retries even so.
#[test]
fn segments_tiny_and_windows_large_snapshots_are_rare_and_no_retry_is_written_twice() {
    let mut directory = Directory::new().with(|config| {
        config.segment_bytes = 1000;
        config.producer_state_batches_to_retain = 10_000;
    });
    let partition = directory.partition();
    let written = |sequence: i32| offset(&partition, &idempotent(1, 0, sequence, 1));
    (0..3000).for_each(|sequence| assert_eq!(written(sequence), i64::from(sequence)));
    let newest: HashSet<_> = (3000..3200)
        .map(|sequence| {
            written(sequence);
            directory.files("snapshot").last().cloned()
        })
        .collect();
    assert!(newest.len() <= 2, "{newest:?}");
    drop(partition);
    let partition = directory.crash();
    for sequence in [0, 1500, 3199] {
        assert_eq!(offset(&partition, &idempotent(1, 0, sequence, 1)), i64::from(sequence));
    }
    assert_eq!(offset(&partition, &idempotent(1, 0, 3200, 1)), 3200);
}

#[test]
fn unfinished_files_of_a_crash_are_removed() {
    let mut directory = Directory::new().with(|config| config.segment_bytes = 1000);
    let partition = directory.partition();
    (0..10).for_each(|_| _ = append(&partition, &plain(1, &[1; 400])).expect("appended"));
    // The flusher removes the snapshots of flushed segments, and may already have removed the first ones. All later
    // ones must stay, since a restarted broker may need any of them to find the aborted transactions.
    let (written, kept) = ([2, 4, 6, 8].map(|offset| format!("{offset:020}.snapshot")), directory.files("snapshot"));
    assert_eq!(directory.files("log").len(), 5);
    assert!(kept.len() >= 2 && written.ends_with(&kept), "{kept:?}");
    let leftovers = [
        "00000000000000000010.snapshot.tmp",
        "producer-window-checkpoint.tmp",
        "00000000000000000099.index",
        "00000000000000000099.timeindex",
        "00000000000000000099.log.deleted",
    ];
    leftovers.iter().for_each(|name| fs::write(directory.file(name), b"left").expect("written"));
    let partition = directory.crash();
    assert_eq!(read_all(&partition, 0).len(), 10);
    for name in leftovers {
        assert!(!directory.file(name).exists(), "{name}");
    }
}

#[test]
fn partition_not_opened_after_a_crash_is_recovered_after_later_clean_runs() {
    let mut directory = Directory::new();
    let partition = directory.partition();
    offset(&partition, &plain(1, b"v"));
    offset(&partition, &plain(1, b"v"));
    drop(partition);
    let path = directory.file("00000000000000000000.log");
    directory.logs =
        fullbore_broker::partitions::Partitions::open(&directory.dir, &directory.settings).expect("opened");
    directory.logs.close();
    let len = fs::metadata(&path).expect("there").len();
    fs::File::options().write(true).open(&path).expect("opened").set_len(len - 1).expect("cut");
    let partition = directory.crash();
    assert_eq!(partition.offsets().expect("recovered").log_end, 1);
}

#[test]
fn partition_is_recovered_after_a_crash_without_a_request() {
    let mut directory = Directory::new();
    offset(&directory.partition(), &plain(1, &[0; 100]));
    let path = directory.file("00000000000000000000.log");
    let whole = fs::metadata(&path).expect("there").len();
    fs::File::options().write(true).open(&path).expect("opened").set_len(whole + 10).expect("torn");
    drop(directory.crash());
    wait_until("the torn tail is cut off", || fs::metadata(&path).expect("there").len() == whole);
}

#[test]
fn directory_of_another_topic_id_is_set_aside() {
    let mut directory = Directory::new();
    offset(&directory.partition(), &plain(3, b"v"));
    directory.restart();
    directory.logs =
        fullbore_broker::partitions::Partitions::open(&directory.dir, &directory.settings).expect("opened");
    let other = directory.partition_of(TOPIC, Uuid([9; 16]), 0);
    assert_eq!(offset(&other, &plain(1, b"v")), 0);
    let aside = fs::read_dir(&directory.dir).expect("listed").filter(|entry| {
        let name = entry.as_ref().expect("listed").file_name();
        name.to_string_lossy().ends_with("-stray")
    });
    assert_eq!(aside.count(), 1);
}

#[test]
fn ten_thousand_partitions_open_nothing_at_start() {
    let mut directory = Directory::new();
    for topic in 0..20 {
        for index in 0..10 {
            let partition = directory.partition_of(&format!("t{topic}"), Uuid([topic; 16]), index);
            offset(&partition, &plain(1, b"v"));
        }
    }
    assert!(open_files_in(&directory.dir) > 0, "the count sees files");
    directory.restart();
    for topic in 0..20 {
        for index in 0..500 {
            directory.partition_of(&format!("t{topic}"), Uuid([topic; 16]), index);
        }
    }
    assert_eq!(open_files_in(&directory.dir), 0);
    let one = directory.partition_of("t3", Uuid([3; 16]), 4);
    assert_eq!(one.offsets().expect("opened").log_end, 1);
}

/// Returns how many files below `dir` this process has open. `dir` itself does not count, since the broker keeps it
/// open.
fn open_files_in(dir: &std::path::Path) -> usize {
    let open =
        fs::read_dir("/proc/self/fd").expect("listed").filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    open.filter(|file| file.starts_with(dir) && file != dir).count()
}

#[test]
fn stopped_log_refuses_batches() {
    let directory = Directory::new();
    let partition = directory.partition();
    offset(&partition, &plain(1, b"v"));
    directory.logs.close();
    directory.logs.close();
    assert_eq!(append(&partition, &plain(1, b"v")).expect_err("stopped"), AppendError::Gone);
}

#[test]
fn directories_of_unknown_partitions_are_listed() {
    let mut directory = Directory::new();
    offset(&directory.partition(), &plain(1, b"v"));
    for name in ["zz-0", "a.b-c-12", "no-number", "k-0.5ab-stray"] {
        fs::create_dir(directory.dir.join(name)).expect("made");
    }
    directory.restart();
    assert_eq!(directory.logs.strays().expect("listed"), ["a.b-c-12", "zz-0"]);
}

/// The metadata were restored from an older copy, in which the topic had only one partition.
#[test]
fn partitions_that_their_topic_lacks_are_set_aside_and_begin_anew_once_they_are_added() {
    let mut directory = Directory::new();
    for round in 1..3 {
        (0..2).for_each(|index| _ = offset(&directory.partition_of(TOPIC, ID, index), &plain(1, b"v")));
        directory.restart();
        directory.logs.close();
        directory.logs = Partitions::open(&directory.dir, &directory.settings).expect("opened");
        let of = |id| move |name: &str| (name == TOPIC).then_some((id, 1));
        assert!(directory.logs.set_unknown_aside(of(Uuid([9; 16]))).expect("listed").is_empty(), "another topic");
        let renamed = directory.logs.set_unknown_aside(of(ID)).expect("renamed");
        assert_eq!(renamed.len(), 1, "{renamed:?}");
        assert_eq!(directory.partition().offsets().expect("open").log_end, round, "the topic has this one");
        assert_eq!(directory.partition_of(TOPIC, ID, 1).offsets().expect("open").log_end, 0);
        assert_eq!(directory.partition_directories(), 1 + round as usize, "the records are kept");
    }
}

#[test]
fn stopping_broker_opens_no_log() {
    let mut directory = Directory::new();
    offset(&directory.partition(), &plain(1, b"v"));
    let partition = directory.restart();
    directory.logs.dismiss_waiting();
    assert_eq!(partition.offsets(), Err(ReadError::Gone));
    directory.logs.close();
    assert_eq!(directory.restart().offsets().expect("open").log_end, 1);
}
