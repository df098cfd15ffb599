//! Tests of compaction. The broker crashes at each moment of a cleaning, and during the restart after such a crash.
//! Other tests truncate the log, or remove its segments, while it is being cleaned.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use bytes::Bytes;
use fullbore_wire::batch::{BatchBuilder, Compression, RecordIter, Stamp, batches};
use fullbore_wire::{Records, Uuid};

use crate::partitions::{Acks, AppendTerms, Origin, Partitions, Replica, led_by};
use crate::replica::data_dir::cleanings::Ending;
use crate::replica::state::LogState;
use fullbore_config::{BrokerConfig, CleanupPolicy, Properties, Ratio, TopicConfig};
use fullbore_host::disk_space::DiskSpace;
use fullbore_log::cleaner::error::CleanError;
use fullbore_log::steps::watch;
use fullbore_log::validation::ValidBatch;

mod transactions;

const NOW: i64 = 1_700_000_000_000;
const KEYS: u8 = 7;

/// Keys and values of the records of a log, by offset.
type Rows = BTreeMap<i64, (u8, Vec<u8>)>;

fn settings() -> (BrokerConfig, TopicConfig) {
    let (mut broker, _) = BrokerConfig::from_properties(&Properties::default()).expect("valid");
    let settings = &mut broker.storage;
    settings.cleaner.threads = 0;
    // The test's own thread opens the partitions, because `watch` reports only the file changes of this thread.
    settings.recovery_threads = 0;
    settings.cleaner.io_buffer_bytes = 0;
    let config = TopicConfig {
        segment_bytes: 1500,
        index_interval_bytes: 100,
        cleanup: CleanupPolicy { delete: false, compact: true },
        min_cleanable_dirty_ratio: Ratio(0.0),
        ..broker.topics.defaults.clone()
    };
    (broker, config)
}

fn open(dir: &Path, segment_bytes: u64) -> (Arc<Partitions>, Arc<Replica>) {
    let (settings, config) = settings();
    let logs = Partitions::open(dir, &settings).expect("opened");
    let config = TopicConfig { segment_bytes, ..config };
    logs.put_topic("t", Uuid([1; 16]), &led_by(1, 1), &Arc::new(config), Origin::Kept);
    let partition = logs.find(&Uuid([1; 16]), 0).expect("it has just been told of");
    (logs, partition)
}

/// Appends batches of an idempotent producer and batches without a producer, and returns their records.
fn fill(partition: &Arc<Replica>) -> Rows {
    let mut rows = Rows::new();
    let (mut sequence, mut offset) = (0, 0);
    for n in 0..40_u8 {
        let is_idempotent = n % 3 == 0 && n < 34;
        let stamp = Stamp { producer_id: 9, producer_epoch: 0, base_sequence: sequence };
        let mut builder = BatchBuilder::new(Default::default(), Compression::None, None);
        for at in 0..4 {
            let key = (n.wrapping_mul(5).wrapping_add(at)) % KEYS;
            let value = vec![n; 30 + usize::from(n % 5) * 10];
            builder.append(NOW + i64::from(n), Some(&[key]), Some(&value), &[]);
            rows.insert(offset, (key, value));
            offset += 1;
        }
        sequence += if is_idempotent { 4 } else { 0 };
        let (bytes, _) = builder.seal(if is_idempotent { stamp } else { Stamp::NONE }).expect("sealed");
        let _ = partition
            .append(&ValidBatch::unchecked(&bytes), AppendTerms::in_turn(Acks::Leader, NOW))
            .expect("appended");
    }
    rows
}

fn read(partition: &Replica) -> Rows {
    let mut rows = Rows::new();
    let mut offset = 0;
    loop {
        let read = partition.read(offset, 1 << 20, true).expect("read");
        let Records::File(slice) = read.records else {
            assert_eq!(offset, read.high_watermark);
            return rows;
        };
        let mut bytes = vec![0; slice.len as usize];
        slice.file.read_exact_at(&mut bytes, slice.position).expect("read");
        for batch in batches(&Bytes::from(bytes)) {
            let batch = batch.expect("a batch");
            batch.check_crc().expect("a checksum");
            assert!(batch.last_offset() >= offset);
            offset = batch.last_offset() + 1;
            for record in RecordIter::new(batch.payload(), batch.record_count()) {
                let record = record.expect("a record");
                let row = (record.key.expect("a key")[0], record.value.expect("a value").to_vec());
                assert_eq!(rows.insert(record.offset(&batch), row), None, "an offset is there twice");
            }
        }
    }
}

/// Checks that the newest record of each key is still in the log, that no record has changed, and that the log still
/// knows the producer.
fn check(partition: &Replica, written: &Rows) {
    let found = read(partition);
    for (offset, row) in &found {
        assert_eq!(written.get(offset), Some(row), "at {offset}");
    }
    for key in 0..KEYS {
        let newest = written.iter().rfind(|(_, row)| row.0 == key);
        assert_eq!(found.iter().rfind(|(_, row)| row.0 == key), newest, "key {key}");
    }
    let offsets = partition.offsets().expect("offsets");
    assert_eq!((offsets.log_start, offsets.log_end), (0, written.len() as i64));
    let state = partition.lock();
    let crate::replica::state::LogState::Open(log) = &state.log else { panic!("open") };
    let known: Vec<_> = log.producers().iter().map(|state| (state.producer_id, state.last_sequence)).collect();
    assert_eq!(known, [(9, 47)]);
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("created");
    for entry in fs::read_dir(from).expect("listed") {
        let path = entry.expect("listed").path();
        let target = to.join(path.file_name().expect("a name"));
        if path.is_dir() {
            copy(&path, &target);
        } else {
            fs::copy(&path, &target).expect("copied");
        }
    }
}

/// Runs `done`, and copies `dir` after each change of a file, as if the broker had crashed at that moment. Returns the
/// result of `done` and the paths of the copies.
fn crashes<T>(dir: &Path, copies: &Path, done: impl FnOnce() -> T) -> (T, Vec<PathBuf>) {
    let made = Rc::new(RefCell::new(Vec::new()));
    let (dir, copies, list) = (dir.to_owned(), copies.to_owned(), made.clone());
    let look = move || {
        let to = copies.join(format!("{}", list.borrow().len()));
        copy(&dir, &to);
        list.borrow_mut().push(to);
    };
    let result = watch(look, done);
    (result, made.take())
}

#[test]
fn a_crash_at_any_moment_leaves_the_old_segments_or_the_new() {
    // The log has segments of 1500 bytes. With a size of 4000 bytes, several segments are merged into one; with 700
    // bytes, one is split into several.
    for segment_bytes in [4000, 700] {
        // Use a directory in memory if possible: this test is only about names, and a disk would flush each renaming.
        let memory = Path::new("/dev/shm");
        let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let directory = tempfile::tempdir_in(parent).expect("temporary directory");
        let dir = directory.path().join("data");
        fs::create_dir(&dir).expect("created");
        let (logs, partition) = open(&dir, 1500);
        let written = fill(&partition);
        drop((logs, partition));
        let (logs, partition) = open(&dir, segment_bytes);
        check(&partition, &written);
        let copies = directory.path().join("copies");
        let (has_cleaned, left) = crashes(&dir, &copies, || logs.clean_dirtiest(NOW));
        assert!(has_cleaned && left.len() > 40, "{} moments", left.len());
        check(&partition, &written);
        let after = read(&partition);
        assert!(after.len() < written.len() / 4);
        drop((logs, partition));

        let mut again = 0;
        for dir in left {
            let copies = dir.with_extension("again");
            let ((logs, partition), left) = crashes(&dir, &copies, || {
                let (logs, partition) = open(&dir, segment_bytes);
                check(&partition, &written);
                (logs, partition)
            });
            while logs.clean_dirtiest(NOW) {}
            assert_eq!(read(&partition), after, "cleaned in the end");
            assert_eq!(names_left(&dir), Vec::<String>::new());
            again += left.len();
            for dir in left {
                let (_logs, partition) = open(&dir, segment_bytes);
                check(&partition, &written);
            }
            let _ = fs::remove_dir_all(copies);
        }
        assert!(again > 100, "{again} crashes after crashes");
    }
}

/// Truncates the whole log and writes it again, with the same keys and sizes but other values. Runs on another thread,
/// because `watch` does not report the file changes of other threads.
fn write_again(partition: &Arc<Replica>) -> JoinHandle<Rows> {
    let partition = Arc::clone(partition);
    std::thread::spawn(move || {
        let config = settings().1;
        let mut rows = Rows::new();
        let _no_names_change = partition.hold_names();
        let mut state = partition.lock_as_it_is();
        let LogState::Open(log) = &mut state.log else { panic!("it is open") };
        log.truncate_to(0, NOW, &config).expect("cut off");
        for n in 0..40_u8 {
            let mut builder = BatchBuilder::new(Default::default(), Compression::None, None);
            for at in 0..4 {
                let key = (n.wrapping_mul(5).wrapping_add(at)) % KEYS;
                let value = vec![n + 100; 30 + usize::from(n % 5) * 10];
                builder.append(NOW + i64::from(n), Some(&[key]), Some(&value), &[]);
                rows.insert(rows.len() as i64, (key, value));
            }
            let (bytes, _) = builder.seal(Stamp::NONE).expect("sealed");
            log.append(&ValidBatch::unchecked(&bytes), 0, NOW, &config).expect("appended");
        }
        rows
    })
}

#[test]
fn log_truncated_and_written_again_during_a_cleaning_keeps_the_new_records() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let (logs, partition) = open(directory.path(), 1500);
    fill(&partition);
    let again = Rc::new(RefCell::new(None));
    let (dir, of, rows) = (directory.path().to_owned(), Arc::clone(&partition), Rc::clone(&again));
    let look = move || {
        // Now the cleaner has read the segments and is about to replace them.
        let is_read = |name: &String| {
            let len = fs::metadata(dir.join("t-0").join(name)).map(|file| file.len());
            name.ends_with(".log.cleaned") && len.is_ok_and(|len| len > 0)
        };
        if rows.borrow().is_none() && names_left(&dir).iter().any(is_read) {
            *rows.borrow_mut() = Some(write_again(&of).join().expect("no panic"));
        }
    };
    assert!(watch(look, || logs.clean_dirtiest(NOW)));
    let written = again.take().expect("it was cut off meanwhile");
    assert_eq!(read(&partition), written, "nothing of it was cleaned");
    assert_eq!(names_left(directory.path()), Vec::<String>::new());
}

fn is_old_log(name: &str) -> bool {
    name.contains(".log.") && name.ends_with(".deleted")
}

#[test]
fn a_log_cleaned_twice_within_the_delay_keeps_each_of_its_old_files() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let (logs, partition) = open(directory.path(), 1500);
    fill(&partition);
    let old_files =
        || names_in(directory.path()).into_iter().filter(|name| is_old_log(name)).collect::<BTreeSet<String>>();
    assert!(logs.clean_dirtiest(NOW));
    let first = old_files();
    for key in (0..KEYS).cycle().take(60) {
        let mut builder = BatchBuilder::new(Default::default(), Compression::None, None);
        builder.append(NOW, Some(&[key]), Some(&[1; 50]), &[]);
        let (bytes, _) = builder.seal(Stamp::NONE).expect("sealed");
        let _ = partition
            .append(&ValidBatch::unchecked(&bytes), AppendTerms::in_turn(Acks::Leader, NOW))
            .expect("appended");
    }
    assert!(logs.clean_dirtiest(NOW));
    let both = old_files();
    let of_the_first_segment = both.iter().filter(|name| name.starts_with("00000000000000000000."));
    assert_eq!(of_the_first_segment.count(), 2);
    assert!(both.is_superset(&first), "{first:?} {both:?}");
}

#[test]
fn log_whose_segments_are_removed_during_a_cleaning_stays_cleanable() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let (logs, partition) = open(directory.path(), 1500);
    let end = fill(&partition).len() as i64;
    let removed = Rc::new(RefCell::new(false));
    let (dir, of, done) = (directory.path().to_owned(), Arc::clone(&partition), Rc::clone(&removed));
    let look = move || {
        let is_begun = |name: &String| name.ends_with(".log.cleaned");
        if !*done.borrow() && names_left(&dir).iter().any(is_begun) {
            *done.borrow_mut() = true;
            let (of, dir) = (Arc::clone(&of), dir.clone());
            let removes = std::thread::spawn(move || {
                let mut state = of.lock_as_it_is();
                let LogState::Open(log) = &mut state.log else { panic!("it is open") };
                let full = DiskSpace::open(&dir, 0);
                full.note_full();
                log.delete_before(end, NOW, &full).expect("deleted");
            });
            removes.join().expect("no panic");
        }
    };
    assert!(watch(look, || logs.clean_dirtiest(NOW)));
    assert!(*removed.borrow());
    let status = logs.cleaner_status();
    assert_eq!((status.runs, status.failures, status.uncleanable_partitions), (0, 0, 0));
    assert_eq!(names_left(directory.path()), Vec::<String>::new());
}

#[test]
fn log_truncated_while_cleaned_segments_replace_others_keeps_the_new_records() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let (logs, partition) = open(directory.path(), 1500);
    fill(&partition);
    let again = Rc::new(RefCell::new(None));
    let (dir, of, writes) = (directory.path().to_owned(), Arc::clone(&partition), Rc::clone(&again));
    let look = move || {
        let is_old = |name: &String| is_old_log(name);
        if writes.borrow().is_none() && names_in(&dir).iter().any(is_old) {
            let writes_again = write_again(&of);
            // The truncation must wait for the replacement. If it did not wait, the thread would end within this time.
            let until = Instant::now() + Duration::from_millis(300);
            while !writes_again.is_finished() && Instant::now() < until {
                sleep(Duration::from_millis(5));
            }
            *writes.borrow_mut() = Some(writes_again);
        }
    };
    assert!(watch(look, || logs.clean_dirtiest(NOW)));
    let written = again.take().expect("it was cut off meanwhile").join().expect("no panic");
    assert_eq!(read(&partition), written);
    drop((logs, partition));
    let (_logs, partition) = open(directory.path(), 1500);
    assert_eq!(read(&partition), written, "after a restart");
}

#[test]
fn log_with_a_missing_file_is_not_cleaned_for_a_while() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let (logs, partition) = open(directory.path(), 1500);
    fill(&partition);
    fs::remove_file(directory.path().join("t-0/00000000000000000000.log")).expect("removed");
    assert!(logs.clean_dirtiest(NOW), "it was tried");
    assert!(!logs.clean_dirtiest(NOW), "or its thread would never rest, and no other log be cleaned");
    let status = logs.cleaner_status();
    assert_eq!((status.failures, status.uncleanable_partitions), (1, 1));
}

#[test]
fn deleted_topic_leaves_no_state_of_compaction_to_the_next_of_its_name() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let (logs, partition) = open(directory.path(), 1500);
    fill(&partition);
    let (cleaner, key) = (&logs.cleaner, partition.key());
    partition.retire();
    cleaner.cleanings().forget(&key);
    for result in [Ok(100), Err(CleanError::Unsettled(std::io::Error::other("its directory has another name")))] {
        cleaner.done(&partition, result);
        assert_eq!(cleaner.cleanings().checkpoint_if_free(&key), Some(None));
    }
}

#[test]
fn truncated_log_is_clean_up_to_its_new_end_at_most() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let (logs, partition) = open(directory.path(), 1500);
    let end = fill(&partition).len() as i64;
    assert!(logs.clean_dirtiest(NOW));
    let (cleanings, key) = (logs.cleaner.cleanings(), partition.key());
    let clean_to = cleanings.checkpoint_if_free(&key).flatten().expect("it is clean up to there");
    cleanings.cut_off(&key, clean_to);
    assert_eq!(cleanings.checkpoint_if_free(&key), Some(Some(clean_to)));
    cleanings.cut_off(&key, clean_to - 1);
    assert_eq!(cleanings.checkpoint_if_free(&key), Some(Some(clean_to - 1)));
    // If the log is truncated during a cleaning, the checkpoint must not lie beyond the new log end afterwards.
    assert!(cleanings.begin(key.clone(), partition.topic_id(), partition.as_ref()));
    cleanings.cut_off(&key, 3);
    cleanings.ended(key.clone(), || false, Some(Ending::CleanTo(end)));
    assert_eq!(cleanings.checkpoint_if_free(&key), Some(Some(3)));
    // The checkpoint lies beyond the log end, as if the broker had been killed after a truncation, before it wrote the
    // checkpoint. The opening of the log must lower the checkpoint.
    assert!(cleanings.begin(key.clone(), partition.topic_id(), partition.as_ref()));
    cleanings.ended(key.clone(), || false, Some(Ending::CleanTo(end + 1)));
    drop((logs, partition));
    let (logs, partition) = open(directory.path(), 1500);
    read(&partition);
    assert_eq!(logs.cleaner.cleanings().checkpoint_if_free(&key), Some(Some(end)));
}

/// Returns the names of the partition's files.
fn names_in(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir.join("t-0")).expect("listed").map(|entry| entry.expect("listed").file_name());
    names.map(|name| name.into_string().expect("text")).collect()
}

/// Returns the names of the files that remain of an unfinished cleaning.
fn names_left(dir: &Path) -> Vec<String> {
    names_in(dir).into_iter().filter(|name| name.ends_with(".cleaned") || name.ends_with(".swap")).collect()
}
