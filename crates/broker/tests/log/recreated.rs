//! A topic that has the name of a deleted one: nothing of the older one reaches it, neither its folder, what the
//! checkpoints say, nor who was still at work on it.

use std::fs;
use std::sync::Arc;

use fullbore_broker::partitions::{Origin, Partitions, led_by};
use fullbore_config::CleanupPolicy;
use fullbore_wire::Uuid;
use rustix::fs::{CWD, FileType, Mode, OFlags, RenameFlags, mknodat, renameat_with};

use crate::folder::*;

const NEXT: Uuid = Uuid([8; 16]);

/// Deletes the topic and makes it again under another id.
fn make_again(folder: &Folder) -> Arc<fullbore_broker::partitions::Replica> {
    folder.logs.delete_topic(ID);
    folder.logs.put_topic((TOPIC, NEXT), &led_by(1, 1), &Arc::new(folder.config.clone()), Origin::New);
    folder.logs.find(&NEXT, 0).expect("it has just been told of")
}

#[test]
fn what_was_flushed_of_a_deleted_topic_is_not_believed_of_the_next_one() {
    let mut folder = Folder::new();
    let old = folder.partition();
    (0..50).for_each(|_| _ = offset(&old, &plain(1, &[1; 100])));
    drop(old);
    // The checkpoint says that 50 records were flushed.
    folder.restart();
    let next = make_again(&folder);
    (0..10).for_each(|_| _ = offset(&next, &plain(1, &[2; 100])));
    drop(next);
    let log = folder.file("00000000000000000000.log");
    let mut bytes = fs::read(&log).expect("read");
    *bytes.last_mut().expect("not empty") ^= 1;
    fs::write(&log, bytes).expect("damaged");
    folder.kill();
    let next = folder.partition_of(TOPIC, NEXT, 0);
    assert_eq!(next.offsets().expect("recovered").log_end, 9, "the torn tail is found and cut off");
    assert_eq!(read_all(&next, 0).len(), 9);
}

#[test]
fn the_log_start_of_a_deleted_topic_hides_nothing_of_the_next_one() {
    let mut folder = Folder::new();
    let old = folder.partition();
    (0..50).for_each(|_| _ = offset(&old, &plain(1, b"v")));
    old.delete_records_before(40).expect("moved");
    folder.logs.keep_log_starts(&[old]).expect("kept");
    let next = make_again(&folder);
    (0..45).for_each(|_| _ = offset(&next, &plain(1, b"v")));
    drop(next);
    // Or the batches would say it themselves.
    fs::remove_file(folder.file("leader-epoch-checkpoint")).expect("removed");
    folder.kill();
    let next = folder.partition_of(TOPIC, NEXT, 0);
    let offsets = next.offsets().expect("recovered");
    assert_eq!((offsets.log_start, offsets.log_end), (0, 45));
}

#[test]
fn a_hundred_lives_of_one_name_leave_one_folder() {
    let folder = Folder::new().with(|config| config.file_delete_delay_ms = 0);
    let mut id = ID;
    for life in 101..=200 {
        let partition = folder.partition_of(TOPIC, id, 0);
        // Some never have a folder.
        if life % 3 > 0 {
            assert_eq!(offset(&partition, &plain(1, b"v")), 0, "life {life}");
        }
        folder.logs.delete_topic(id);
        assert!(folder.logs.find(&id, 0).is_none());
        id = Uuid([life; 16]);
    }
    let last = folder.partition_of(TOPIC, id, 0);
    assert_eq!(offset(&last, &plain(1, b"v")), 0);
    wait_until("the folders of all others are gone", || folder.partition_folders() == 1);
    assert_eq!(read_all(&last, 0).len(), 1);
}

#[test]
fn a_cleaning_gives_up_with_its_topic_and_writes_nothing_into_the_next_ones_folder() {
    let mut folder = Folder::new().with(|config| {
        config.segment_bytes = 2000;
        config.cleanup = CleanupPolicy { delete: false, compact: true };
        config.min_cleanable_dirty_ratio = fullbore_config::Ratio(0.0);
        config.file_delete_delay_ms = 0;
    });
    folder.settings.storage.cleaner.threads = 0;
    // An hour for each segment.
    folder.settings.storage.cleaner.io_max_bytes_per_second = 0.5;
    folder.crash();
    let old = folder.partition();
    (0..100).for_each(|_| _ = offset(&old, &plain(1, &[1; 100])));
    let logs = folder.logs.clone();
    let cleaning = std::thread::spawn(move || logs.clean_dirtiest(NOW));
    wait_until("the cleaning has begun", || folder.logs.cleaner_status().bytes_read > 0);
    let next = make_again(&folder);
    (0..100).for_each(|_| _ = offset(&next, &plain(1, &[2; 100])));
    assert!(cleaning.join().expect("no panic"), "there was something to clean");
    let status = folder.logs.cleaner_status();
    assert_eq!((status.runs, status.failures), (0, 0));
    assert!(folder.files("cleaned").is_empty() && folder.files("swap").is_empty());
    assert_eq!(read_all(&next, 0).len(), 100);
}

#[test]
fn a_folder_of_which_the_system_does_not_say_whose_it_is_is_not_taken_for_another_topics() {
    let mut folder = Folder::new();
    let partition = folder.partition();
    (0..5).for_each(|_| _ = offset(&partition, &plain(1, b"v")));
    drop(partition);
    let (metadata, away) = (folder.file("partition.metadata"), folder.dir.join("away"));
    fs::rename(&metadata, &away).expect("moved");
    // Refused as a lack of descriptors or a bad sector is; a file that is not there says something.
    fs::create_dir(&metadata).expect("made");
    folder.kill();
    let partition = folder.partition();
    assert!(partition.offsets().is_err());
    // In one step: a thread may be at the folder still, and a folder that does not say whose it is would be set aside.
    renameat_with(CWD, &metadata, CWD, &away, RenameFlags::EXCHANGE).expect("moved back");
    assert_eq!(partition.offsets().expect("tried again").log_end, 5);
    assert_eq!(read_all(&partition, 0).len(), 5);
}

#[test]
fn ten_thousand_lives_of_one_name_that_wait_for_a_slow_disk_are_deleted_one_after_the_other() {
    let mut folder = Folder::new().with(|config| config.file_delete_delay_ms = 0);
    offset(&folder.partition(), &plain(1, b"v"));
    let (epochs, mode) = (folder.file("leader-epoch-checkpoint"), Mode::from_raw_mode(0o600));
    fs::remove_file(&epochs).expect("removed");
    // Whoever opens it to read waits until somebody opens it to write.
    mknodat(CWD, &epochs, FileType::Fifo, mode, 0).expect("a named pipe");
    folder.settings.storage.recovery_threads = 1;
    folder.logs = Partitions::open(&folder.dir, &folder.settings).expect("opened");
    folder.partition();
    let mut pipe = None;
    wait_until("the log is being opened", || {
        pipe = rustix::fs::open(&epochs, OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()).ok();
        pipe.is_some()
    });
    let mut id = ID;
    for life in 0..10_000_u128 {
        folder.logs.delete_topic(id);
        id = Uuid((life | 1 << 100).to_be_bytes());
        folder.logs.put_topic((TOPIC, id), &led_by(1, 1), &Arc::new(folder.config.clone()), Origin::New);
    }
    let last = folder.logs.find(&id, 0).expect("it has just been told of");
    let writing = std::thread::spawn(move || offset(&last, &plain(1, b"v")));
    drop(pipe);
    assert_eq!(writing.join().expect("no panic"), 0);
    wait_until("the first one's folder is gone", || folder.partition_folders() == 1);
}

#[test]
fn how_far_a_deleted_topic_was_clean_is_not_said_of_the_next_one_after_a_kill() {
    let mut folder = Folder::new().with(|config| {
        config.segment_bytes = 2000;
        config.cleanup = CleanupPolicy { delete: false, compact: true };
        config.min_cleanable_dirty_ratio = fullbore_config::Ratio(0.0);
    });
    folder.settings.storage.cleaner.threads = 0;
    folder.crash();
    let old = folder.partition();
    (0..100).for_each(|_| _ = offset(&old, &plain(1, &[1; 100])));
    assert!(folder.logs.clean_dirtiest(NOW), "there is something to clean");
    drop(old);
    let said = |folder: &Folder| fs::read_to_string(folder.dir.join("cleaner-offset-checkpoint")).expect("written");
    assert!(said(&folder).contains(TOPIC));
    // The deletion was decided, and the broker killed before it was carried out.
    folder.kill();
    folder.logs.put_topic((TOPIC, NEXT), &led_by(1, 1), &Arc::new(folder.config.clone()), Origin::New);
    let next = folder.logs.find(&NEXT, 0).expect("it has just been told of");
    assert_eq!(offset(&next, &plain(1, b"v")), 0);
    assert!(!said(&folder).contains(TOPIC), "{}", said(&folder));
}
