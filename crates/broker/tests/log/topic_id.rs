//! Tests a partition's directory whose file with the topic id is lost, empty or damaged. The records might belong to
//! another topic, so they are neither used nor removed.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use fullbore_broker::partitions::{AppendError, ReadError};
use fullbore_wire::Uuid;

use crate::directory::*;

const METADATA: &str = "partition.metadata";
const SEGMENT: &str = "00000000000000000000.log";

/// A function that damages the file, and the description of this damage in the error.
type Damage = (fn(&Path), &'static str);

const KINDS: [Damage; 3] = [
    (|file| fs::remove_file(file).expect("removed"), "the file is missing"),
    (|file| fs::write(file, "").expect("written"), "the file is empty"),
    (|file| fs::write(file, "xx\n").expect("written"), "the file has no topic id"),
];

/// Appends three records, stops the broker cleanly, and damages the file.
fn damaged(damage: fn(&Path)) -> Directory {
    let mut directory = Directory::new();
    offset(&directory.partition(), &plain(3, b"v"));
    directory.restart();
    directory.logs.close();
    damage(&directory.file(METADATA));
    directory
}

/// Returns the directories that were set aside.
fn set_aside(directory: &Directory) -> Vec<PathBuf> {
    let entries = fs::read_dir(&directory.dir).expect("listed").map(|entry| entry.expect("listed").path());
    entries.filter(|path| path.to_string_lossy().ends_with("-stray")).collect()
}

#[test]
fn directory_without_its_topic_id_is_refused_unchanged_until_the_id_is_back() {
    for (damage, why) in KINDS {
        let mut directory = damaged(damage);
        let log = fs::read(directory.file(SEGMENT)).expect("read");
        let began = Instant::now();
        let partition = directory.crash();
        assert_eq!(
            append(&partition, &plain(1, b"v")).map(|done| done.base_offset),
            Err(AppendError::Storage),
            "{why}"
        );
        assert_eq!(partition.offsets().map(|offsets| offsets.log_end), Err(ReadError::Storage), "{why}");
        assert_eq!((directory.logs.refused_partitions(), set_aside(&directory).len()), (1, 0), "{why}");
        assert_eq!(fs::read(directory.file(SEGMENT)).expect("read"), log, "{why}");
        let error = partition.open_failure_since(began);
        let reported = error.expect("it has failed").to_string();
        assert!(reported.contains(why) && reported.contains(&format!("`topic_id: {ID}`")), "{reported}");
        // Now the test repairs the file as the error recommends.
        fs::write(directory.file(METADATA), format!("version: 0\ntopic_id: {ID}\n")).expect("written");
        let partition = directory.crash();
        assert_eq!(partition.offsets().expect("opened").log_end, 3, "{why}");
        assert_eq!(offset(&partition, &plain(1, b"v")), 3, "{why}");
    }
}

#[test]
fn records_without_topic_id_are_not_used_by_a_topic_that_was_created_again() {
    for (damage, why) in KINDS {
        let mut directory = damaged(damage);
        directory.kill();
        let again = directory.partition_of(TOPIC, Uuid([8; 16]), 0);
        assert_eq!(again.offsets().map(|offsets| offsets.log_end), Err(ReadError::Storage), "{why}");
        fs::rename(directory.file(SEGMENT).parent().expect("a directory"), directory.dir.join("away")).expect("moved");
        directory.kill();
        let again = directory.partition_of(TOPIC, Uuid([8; 16]), 0);
        assert_eq!(offset(&again, &plain(1, b"v")), 0, "{why}");
    }
}

#[test]
fn directory_without_topic_id_and_without_records_gets_the_id_again() {
    for (damage, why) in KINDS {
        let mut directory = Directory::new();
        offset(&directory.partition(), &plain(3, b"v"));
        directory.restart();
        directory.logs.close();
        // A crash during the creation of the directory leaves such files.
        fs::write(directory.file(SEGMENT), "").expect("emptied");
        fs::remove_file(directory.dir.join("replication-offset-checkpoint")).expect("removed");
        damage(&directory.file(METADATA));
        let partition = directory.crash();
        assert_eq!(offset(&partition, &plain(1, b"v")), 0, "{why}");
        let text = fs::read_to_string(directory.file(METADATA)).expect("read");
        assert_eq!(text, format!("version: 0\ntopic_id: {ID}\n"), "{why}");
    }
}

#[test]
fn power_loss_before_the_first_flush_sets_a_directory_without_topic_id_aside() {
    for (damage, why) in KINDS {
        let mut directory = Directory::new();
        offset(&directory.partition(), &plain(3, b"v"));
        directory.kill();
        let log = fs::read(directory.file(SEGMENT)).expect("read");
        damage(&directory.file(METADATA));
        let partition = directory.power_cut();
        assert_eq!(offset(&partition, &plain(1, b"v")), 0, "{why}");
        let aside = set_aside(&directory).pop().expect("set aside");
        assert_eq!(fs::read(aside.join(SEGMENT)).expect("kept"), log, "{why}");
    }
}

#[test]
fn power_loss_after_a_flush_refuses_a_directory_without_topic_id() {
    for (damage, why) in KINDS {
        let mut directory = Directory::new();
        offset(&directory.partition(), &plain(3, b"v"));
        let partition = directory.restart();
        offset(&partition, &plain(1, b"v"));
        directory.kill();
        damage(&directory.file(METADATA));
        let partition = directory.power_cut();
        assert_eq!(partition.offsets().map(|offsets| offsets.log_end), Err(ReadError::Storage), "{why}");
        assert!(set_aside(&directory).is_empty(), "{why}");
    }
}

#[test]
fn deleted_partition_without_topic_id_keeps_its_records_and_frees_its_name() {
    for (damage, why) in KINDS {
        let mut directory = damaged(damage);
        let log = fs::read(directory.file(SEGMENT)).expect("read");
        let partition = directory.crash();
        assert!(partition.offsets().is_err(), "{why}");
        directory.logs.delete_topic(ID);
        let again = directory.partition_of(TOPIC, Uuid([8; 16]), 0);
        assert_eq!(offset(&again, &plain(1, b"v")), 0, "{why}");
        let aside = set_aside(&directory).pop().expect("set aside");
        assert_eq!(fs::read(aside.join(SEGMENT)).expect("kept"), log, "{why}");
    }
}
