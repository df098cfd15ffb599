//! Tests small files, such as indexes, that contradict the log. They may cost time, but no result may change.

use std::fs;
use std::time::Instant;

use fullbore_broker::partitions::Partitions;
use fullbore_log::partition::read::Isolation;
use fullbore_wire::batch::{BatchView, Compression, Stamp};

use crate::directory::*;

const INDEX: &str = "00000000000000000000.index";
const TIMES: &str = "00000000000000000000.timeindex";
const BATCHES: i64 = 60;

/// Returns a log that was stopped cleanly. Each batch has one record, the timestamps are a millisecond apart, and
/// nearly every batch has an index entry.
fn stopped() -> Directory {
    let directory = Directory::new().with(|config| config.index_interval_bytes = 0);
    let partition = directory.partition();
    for n in 0..BATCHES {
        offset(&partition, &timed(Stamp::NONE, Compression::None, &[NOW + n], b"value"));
    }
    drop(partition);
    directory.logs.close();
    directory
}

/// Checks that every record is found both by offset and by time.
fn check(directory: &mut Directory) {
    let partition = directory.crash();
    for n in 0..BATCHES {
        let read = bytes(&partition.read(n, 1, true).expect("read").records);
        assert_eq!(BatchView::first(&read).expect("a batch").base_offset(), n);
        let found =
            partition.offset_for_timestamp(Isolation::ReadUncommitted, NOW + n).expect("looked up").expect("found");
        assert_eq!(found.offset, n, "by time");
    }
    let newest = partition.max_timestamp(Isolation::ReadUncommitted).expect("looked up").expect("found");
    assert_eq!((newest.offset, newest.timestamp), (BATCHES - 1, NOW + BATCHES - 1));
}

/// Decreases a number in most entries of a file. An entry has `len` bytes, with the number at position `at`.
fn lessen(directory: &Directory, name: &str, len: usize, at: usize) {
    let mut bytes = fs::read(directory.file(name)).expect("read");
    let count = bytes.len() / len;
    // The last entry stays unchanged, because opening the log would notice the change.
    for entry in bytes.chunks_exact_mut(len).take(count - 1).skip(5) {
        let old = u32::from_be_bytes(entry[at..at + 4].try_into().expect("4 bytes"));
        entry[at..at + 4].copy_from_slice(&(old - 5).to_be_bytes());
    }
    fs::write(directory.file(name), bytes).expect("damaged");
}

#[test]
fn index_that_is_a_directory_is_named_and_rebuilt_once_the_directory_is_away() {
    for name in [INDEX, TIMES, "00000000000000000000.txnindex"] {
        let mut directory = stopped();
        let _ = fs::remove_file(directory.file(name));
        fs::create_dir(directory.file(name)).expect("made");
        fs::write(directory.file(name).join("notes"), "mine").expect("written");
        let began = Instant::now();
        let partition = directory.crash();
        assert!(partition.offsets().is_err(), "{name}");
        let reported = partition.open_failure_since(began).expect("it has failed").to_string();
        assert!(
            reported.starts_with(&format!("{}: it is a directory; ", directory.file(name).display())),
            "{reported}"
        );
        fs::rename(directory.file(name), directory.dir.join("away")).expect("moved");
        assert_eq!(partition.offsets().expect("tried again").log_end, BATCHES, "{name}");
        check(&mut directory);
    }
}

#[test]
fn index_entry_with_a_wrong_offset_skips_no_record() {
    let mut directory = stopped();
    lessen(&directory, INDEX, 8, 0);
    check(&mut directory);
}

#[test]
fn time_index_entry_with_a_wrong_time_skips_no_record() {
    let mut directory = stopped();
    lessen(&directory, TIMES, 12, 4);
    check(&mut directory);
}

/// Retention takes the age of a segment from the last entry of its time index. After the cut, this entry is too old, so
/// the index must be rebuilt.
#[test]
fn time_index_cut_between_two_entries_is_rebuilt() {
    for entries in [1, 10, 40] {
        let mut directory = stopped();
        let bytes = fs::read(directory.file(TIMES)).expect("read");
        fs::write(directory.file(TIMES), &bytes[..entries * 12]).expect("cut");
        check(&mut directory);
    }
}

#[test]
fn log_start_known_to_the_epochs_only_hides_no_record() {
    let mut directory = stopped();
    fs::write(directory.file("leader-epoch-checkpoint"), "0\n1\n0 40\n").expect("damaged");
    check(&mut directory);
    assert_eq!(directory.partition().offsets().expect("open").log_start, 0);
}

#[test]
fn acknowledged_log_start_survives_the_loss_of_either_file() {
    for name in ["leader-epoch-checkpoint", "../log-start-offset-checkpoint"] {
        let mut directory = Directory::new();
        let partition = directory.partition();
        (0..9).for_each(|n| assert_eq!(offset(&partition, &plain(1, b"v")), n));
        partition.delete_records_before(4).expect("moved");
        directory.logs.keep_log_starts(std::slice::from_ref(&partition)).expect("written");
        drop(partition);
        fs::write(directory.file(name), "nonsense").expect("damaged");
        assert_eq!(directory.crash().offsets().expect("open").log_start, 4, "{name}");
    }
}

/// The file `unrecovered-checkpoint` lists the logs that have not been recovered since a crash. Here the last stop was
/// clean, but the file cannot be read, so the log must be recovered as after a crash.
#[test]
fn damaged_list_of_unrecovered_partitions_counts_as_an_unclean_shutdown() {
    let mut directory = Directory::new();
    let partition = directory.partition();
    (0..2).for_each(|n| assert_eq!(offset(&partition, &plain(1, b"v")), n));
    drop(partition);
    directory.logs = Partitions::open(&directory.dir, &directory.settings).expect("opened");
    directory.logs.close();
    let path = directory.file("00000000000000000000.log");
    let mut bytes = fs::read(&path).expect("read");
    *bytes.last_mut().expect("not empty") ^= 1;
    fs::write(&path, bytes).expect("damaged");
    fs::write(directory.dir.join("unrecovered-checkpoint"), "nonsense").expect("damaged");
    assert_eq!(directory.crash().offsets().expect("recovered").log_end, 1);
}

/// After a clean stop, records are checked only while an index is rebuilt. The test therefore removes the time index.
#[test]
fn offset_out_of_range_after_a_clean_stop_causes_no_panic() {
    let mut directory = stopped();
    let path = directory.file("00000000000000000000.log");
    let mut bytes = fs::read(&path).expect("read");
    bytes[1] = 0x10;
    fs::write(&path, bytes).expect("damaged");
    fs::remove_file(directory.file(TIMES)).expect("removed");
    let refused = directory.crash().read(0, 1, true);
    assert!(refused.is_err(), "records follow the damage");
}
