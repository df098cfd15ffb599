//! A topic is created with the name of a deleted one. The deleted topic must not affect it, neither through its
//! directory and checkpoints nor through work in progress.

use std::fs;
use std::sync::Arc;

use fullbore_broker::partitions::{Origin, Partitions, led_by};
use fullbore_config::CleanupPolicy;
use fullbore_wire::Uuid;
use rustix::fs::{CWD, FileType, Mode, OFlags, RenameFlags, mknodat, renameat_with};

use crate::directory::*;

const NEXT: Uuid = Uuid([8; 16]);

/// Deletes the topic and creates it again with another id.
fn make_again(directory: &Directory) -> Arc<fullbore_broker::partitions::Replica> {
    directory.logs.delete_topic(ID);
    directory.logs.put_topic(TOPIC, NEXT, &led_by(1, 1), &Arc::new(directory.config.clone()), Origin::New);
    directory.logs.find(&NEXT, 0).expect("it has just been told of")
}

#[test]
fn recovery_point_of_a_deleted_topic_is_not_used_for_its_successor() {
    let mut directory = Directory::new();
    let old = directory.partition();
    (0..50).for_each(|_| _ = offset(&old, &plain(1, &[1; 100])));
    drop(old);
    // After this restart, the checkpoint has the recovery point 50.
    directory.restart();
    let next = make_again(&directory);
    (0..10).for_each(|_| _ = offset(&next, &plain(1, &[2; 100])));
    drop(next);
    let log = directory.file("00000000000000000000.log");
    let mut bytes = fs::read(&log).expect("read");
    *bytes.last_mut().expect("not empty") ^= 1;
    fs::write(&log, bytes).expect("damaged");
    directory.kill();
    let next = directory.partition_of(TOPIC, NEXT, 0);
    assert_eq!(next.offsets().expect("recovered").log_end, 9, "the torn tail is found and cut off");
    assert_eq!(read_all(&next, 0).len(), 9);
}

#[test]
fn log_start_of_a_deleted_topic_is_not_used_for_its_successor() {
    let mut directory = Directory::new();
    let old = directory.partition();
    (0..50).for_each(|_| _ = offset(&old, &plain(1, b"v")));
    old.delete_records_before(40).expect("moved");
    directory.logs.keep_log_starts(&[old]).expect("kept");
    let next = make_again(&directory);
    (0..45).for_each(|_| _ = offset(&next, &plain(1, b"v")));
    drop(next);
    // Without this file, a restarted broker takes the log start from `log-start-offset-checkpoint`.
    fs::remove_file(directory.file("leader-epoch-checkpoint")).expect("removed");
    directory.kill();
    let next = directory.partition_of(TOPIC, NEXT, 0);
    let offsets = next.offsets().expect("recovered");
    assert_eq!((offsets.log_start, offsets.log_end), (0, 45));
}

#[test]
fn topic_recreated_a_hundred_times_leaves_one_directory() {
    let directory = Directory::new().with(|config| config.file_delete_delay_ms = 0);
    let mut id = ID;
    for life in 101..=200 {
        let partition = directory.partition_of(TOPIC, id, 0);
        // A third of the topics get no record, and therefore have no directory.
        if life % 3 > 0 {
            assert_eq!(offset(&partition, &plain(1, b"v")), 0, "life {life}");
        }
        directory.logs.delete_topic(id);
        assert!(directory.logs.find(&id, 0).is_none());
        id = Uuid([life; 16]);
    }
    let last = directory.partition_of(TOPIC, id, 0);
    assert_eq!(offset(&last, &plain(1, b"v")), 0);
    wait_until("the directories of all others are gone", || directory.partition_directories() == 1);
    assert_eq!(read_all(&last, 0).len(), 1);
}

#[test]
fn cleaning_of_a_deleted_topic_ends_without_writing_to_its_successor() {
    let mut directory = Directory::new().with(|config| {
        config.segment_bytes = 2000;
        config.cleanup = CleanupPolicy { delete: false, compact: true };
        config.min_cleanable_dirty_ratio = fullbore_config::Ratio(0.0);
        config.file_delete_delay_ms = 0;
    });
    directory.settings.storage.cleaner.threads = 0;
    // At this rate, cleaning a segment would take an hour.
    directory.settings.storage.cleaner.io_max_bytes_per_second = 0.5;
    directory.crash();
    let old = directory.partition();
    (0..100).for_each(|_| _ = offset(&old, &plain(1, &[1; 100])));
    let logs = directory.logs.clone();
    let cleaning = std::thread::spawn(move || logs.clean_dirtiest(NOW));
    wait_until("the cleaning has begun", || directory.logs.cleaner_status().bytes_read > 0);
    let next = make_again(&directory);
    (0..100).for_each(|_| _ = offset(&next, &plain(1, &[2; 100])));
    assert!(cleaning.join().expect("no panic"), "there was something to clean");
    let status = directory.logs.cleaner_status();
    assert_eq!((status.runs, status.failures), (0, 0));
    assert!(directory.files("cleaned").is_empty() && directory.files("swap").is_empty());
    assert_eq!(read_all(&next, 0).len(), 100);
}

#[test]
fn directory_with_unreadable_metadata_is_not_set_aside() {
    let mut directory = Directory::new();
    let partition = directory.partition();
    (0..5).for_each(|_| _ = offset(&partition, &plain(1, b"v")));
    drop(partition);
    let (metadata, away) = (directory.file("partition.metadata"), directory.dir.join("away"));
    fs::rename(&metadata, &away).expect("moved");
    // A directory of the same name makes the file unreadable, as a bad sector would. Removing the file would not do,
    // because the broker treats a missing file differently.
    fs::create_dir(&metadata).expect("made");
    directory.kill();
    let partition = directory.partition();
    assert!(partition.offsets().is_err());
    // Exchanges the file and the directory in one step. If the file were missing for a moment, a thread that still uses
    // the partition's directory might refuse the partition.
    renameat_with(CWD, &metadata, CWD, &away, RenameFlags::EXCHANGE).expect("moved back");
    assert_eq!(partition.offsets().expect("tried again").log_end, 5);
    assert_eq!(read_all(&partition, 0).len(), 5);
}

#[test]
fn topic_recreated_ten_thousand_times_is_deleted_in_order_after_a_slow_disk() {
    let mut directory = Directory::new().with(|config| config.file_delete_delay_ms = 0);
    offset(&directory.partition(), &plain(1, b"v"));
    let (epochs, mode) = (directory.file("leader-epoch-checkpoint"), Mode::from_raw_mode(0o600));
    fs::remove_file(&epochs).expect("removed");
    // Opening the log hangs at this named pipe, because a reader of a pipe blocks until a writer opens it.
    mknodat(CWD, &epochs, FileType::Fifo, mode, 0).expect("a named pipe");
    directory.settings.storage.recovery_threads = 1;
    directory.logs = Partitions::open(&directory.dir, &directory.settings).expect("opened");
    directory.partition();
    let mut pipe = None;
    wait_until("the log is being opened", || {
        pipe = rustix::fs::open(&epochs, OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()).ok();
        pipe.is_some()
    });
    let mut id = ID;
    for life in 0..10_000_u128 {
        directory.logs.delete_topic(id);
        id = Uuid((life | 1 << 100).to_be_bytes());
        directory.logs.put_topic(TOPIC, id, &led_by(1, 1), &Arc::new(directory.config.clone()), Origin::New);
    }
    let last = directory.logs.find(&id, 0).expect("it has just been told of");
    let writing = std::thread::spawn(move || offset(&last, &plain(1, b"v")));
    drop(pipe);
    assert_eq!(writing.join().expect("no panic"), 0);
    wait_until("the first one's directory is gone", || directory.partition_directories() == 1);
}

#[test]
fn cleaner_checkpoint_of_a_deleted_topic_is_not_used_after_a_kill() {
    let mut directory = Directory::new().with(|config| {
        config.segment_bytes = 2000;
        config.cleanup = CleanupPolicy { delete: false, compact: true };
        config.min_cleanable_dirty_ratio = fullbore_config::Ratio(0.0);
    });
    directory.settings.storage.cleaner.threads = 0;
    directory.crash();
    let old = directory.partition();
    (0..100).for_each(|_| _ = offset(&old, &plain(1, &[1; 100])));
    assert!(directory.logs.clean_dirtiest(NOW), "there is something to clean");
    drop(old);
    let content =
        |directory: &Directory| fs::read_to_string(directory.dir.join("cleaner-offset-checkpoint")).expect("written");
    assert!(content(&directory).contains(TOPIC));
    // The broker is killed after the deletion was decided and before it is carried out.
    directory.kill();
    directory.logs.put_topic(TOPIC, NEXT, &led_by(1, 1), &Arc::new(directory.config.clone()), Origin::New);
    let next = directory.logs.find(&NEXT, 0).expect("it has just been told of");
    assert_eq!(offset(&next, &plain(1, b"v")), 0);
    assert!(!content(&directory).contains(TOPIC), "{}", content(&directory));
}
