//! Tests of logs whose last writes are torn or lost, and of epoch files that do not belong to the log.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::BytesMut;
use fullbore_config::{BrokerConfig, Properties, TopicConfig};
use fullbore_wire::batch::{BatchBuilder, BatchView, Compression, HEADER_LEN, Stamp};

use crate::Log;
use crate::error::StorageError;
use crate::recovery::RecoveryHint;
use crate::recovery::walk::BLOCK;
use crate::validation::ValidBatch;

const KILL: RecoveryHint =
    RecoveryHint { clean: false, may_have_gaps: true, others_are_complete: true, ..RecoveryHint::NOTHING };
const EPOCHS: &str = "leader-epoch-checkpoint";

fn config() -> TopicConfig {
    BrokerConfig::from_properties(&Properties::default()).expect("valid").0.topics.defaults
}

/// Returns a batch of `len` bytes, with one record.
fn batch(len: usize) -> BytesMut {
    let mut builder = BatchBuilder::new(BytesMut::new(), Compression::None, None);
    builder.append(0, None, Some(&vec![7; len - HEADER_LEN - 9]), &[]);
    let bytes = builder.seal(Stamp::NONE).expect("sealed").0;
    assert_eq!(bytes.len(), len);
    bytes
}

fn open(dir: &Path, known: RecoveryHint) -> Result<Log, StorageError> {
    Log::open(&Arc::from(dir), known, 0, &config())
}

/// Returns a directory with a log that has batches of these sizes, each in the leader epoch of the same index.
fn written(sizes: &[usize], epochs: &[i32]) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("temporary directory");
    let mut log = open(directory.path(), RecoveryHint::NOTHING).expect("opened");
    for (len, epoch) in sizes.iter().zip(epochs) {
        log.append(&ValidBatch::unchecked(&batch(*len)), *epoch, 0, &config()).expect("appended");
    }
    let path = directory.path().join("00000000000000000000.log");
    (directory, path)
}

/// The first batch ends 30 bytes before the second block, and the other two are larger than a block.
const SIZES: [usize; 3] = [2 * BLOCK as usize - 30, 1000, 1000];

/// Changes the bytes of a log with the batches [`SIZES`].
fn damaged(damage: impl FnOnce(&mut Vec<u8>)) -> (tempfile::TempDir, PathBuf, Vec<u8>) {
    let (directory, path) = written(&SIZES, &[0; 3]);
    let mut bytes = fs::read(&path).expect("read");
    damage(&mut bytes);
    fs::write(&path, &bytes).expect("written");
    (directory, path, bytes)
}

#[test]
fn kill_tears_the_last_write_the_log_is_cut_after_the_last_whole_batch() {
    let block = BLOCK as usize;
    for (blocks, left) in [(2, 1), (3, 1), (4, 2), (5, 2)] {
        let (directory, path, _) = damaged(|bytes| bytes.truncate(blocks * block));
        let log = open(directory.path(), KILL).expect("cut off");
        assert_eq!(log.log_end, left, "{blocks} blocks");
        let whole: usize = SIZES[..left as usize].iter().sum();
        assert_eq!(fs::metadata(path).expect("there").len(), whole as u64);
    }
}

/// A kill leaves none of these ends. The records are lost here, but may be on another replica.
#[test]
fn disk_loses_writes_before_a_kill_the_log_is_refused_as_long_as_others_have_the_records() {
    type Damage = fn(&mut Vec<u8>);
    let second = SIZES[0];
    let damages: [(&str, i64, Damage); 8] = [
        ("two batches of zeros", 1, |bytes| bytes[SIZES[0]..].fill(0)),
        ("the second half of the last batch is zeros", 2, |bytes| {
            let from = bytes.len() - 500;
            bytes[from..].fill(0);
        }),
        ("zeros up to the end of a block", 1, |bytes| {
            bytes[SIZES[0]..].fill(0);
            bytes.truncate(2 * BLOCK as usize);
        }),
        ("a whole batch with a wrong checksum", 2, |bytes| *bytes.last_mut().expect("not empty") ^= 1),
        ("cut within a block", 1, |bytes| bytes.truncate(SIZES[0] + 100)),
        ("cut within a header", 1, |bytes| bytes.truncate(SIZES[0] + 1)),
        ("a batch with an earlier offset", 2, |bytes| {
            let at = SIZES[0] + SIZES[1];
            bytes[at..][..8].copy_from_slice(&1_i64.to_be_bytes());
            bytes.truncate(5 * BLOCK as usize);
        }),
        ("everything is zeros", 0, |bytes| bytes.fill(0)),
    ];
    for (name, end, damage) in damages {
        let (directory, path, bytes) = damaged(damage);
        for _ in 0..2 {
            match open(directory.path(), KILL) {
                Err(StorageError::EndLost { path: named, position, .. }) => {
                    let positions = [0, second, second + SIZES[1]];
                    assert_eq!((&named, position), (&path, positions[end as usize] as u64), "{name}");
                }
                other => panic!("{name} is not refused: {other:?}"),
            }
            assert!(fs::read(&path).expect("read") == bytes, "{name}: nothing is changed");
        }
        let alone = RecoveryHint { others_are_complete: false, ..KILL };
        assert_eq!(open(directory.path(), alone).expect("cut off").log_end, end, "{name}");
    }
}

#[test]
fn power_loss_takes_unflushed_writes_the_log_is_cut_off() {
    let (directory, ..) = damaged(|bytes| bytes[SIZES[0]..].fill(0));
    assert_eq!(open(directory.path(), RecoveryHint { rebooted: true, ..KILL }).expect("cut off").log_end, 1);
}

/// A segment is begun only after the last write to the one before it.
#[test]
fn end_of_an_earlier_segment_is_torn_the_disk_has_lost_writes() {
    let (directory, ..) = damaged(|bytes| bytes.truncate(3 * BLOCK as usize));
    File::create(directory.path().join("00000000000000000003.log")).expect("made");
    assert!(matches!(open(directory.path(), KILL), Err(StorageError::EndLost { .. })));
}

#[test]
fn epoch_file_is_an_older_copy_the_epochs_of_the_batches_count() {
    for older in ["0\n1\n0 0\n", "0\n2\n0 0\n2 1\n", "0\n0\n", "0\n3\n0 0\n2 1\n4 4\n", "0\n3\n0 0\n2 1\n9 2\n"] {
        let (directory, _) = written(&[200; 5], &[0, 2, 2, 4, 5]);
        let file = directory.path().join(EPOCHS);
        let newest = fs::read_to_string(&file).expect("read");
        assert_eq!(newest, "0\n4\n0 0\n2 1\n4 3\n5 4\n");
        fs::write(&file, older).expect("written");
        let log = open(directory.path(), KILL).expect("opened");
        assert_eq!(log.epochs.starts(), [(0, 0), (2, 1), (4, 3), (5, 4)], "{older:?}");
        assert_eq!(fs::read_to_string(&file).expect("read"), newest, "{older:?}");
    }
}

/// Only the last segment is read after a kill, but an epoch may have begun in an earlier one.
#[test]
fn epoch_file_lacks_an_epoch_of_an_earlier_segment_all_batches_are_read() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let small = TopicConfig { segment_bytes: 450, ..config() };
    let mut log = Log::open(&Arc::from(directory.path()), RecoveryHint::NOTHING, 0, &small).expect("opened");
    for epoch in [0, 1, 1, 1, 1, 2] {
        log.append(&ValidBatch::unchecked(&batch(200)), epoch, 0, &small).expect("appended");
    }
    assert_eq!(log.segments.len(), 3);
    drop(log);
    fs::write(directory.path().join(EPOCHS), "0\n1\n0 0\n").expect("written");
    let log = open(directory.path(), RecoveryHint { recovery_point: 4, ..KILL }).expect("opened");
    assert_eq!(log.epochs.starts(), [(0, 0), (1, 1), (2, 5)]);
}

/// A leader has compacted its log, so its follower lacks the first batches of the epochs, and all of epoch 1.
#[test]
fn log_has_gaps_where_epochs_begin_the_epoch_file_is_believed() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let mut log = open(directory.path(), RecoveryHint::NOTHING).expect("opened");
    for (offset, epoch) in [(0_i64, 0_i32), (5, 2), (9, 2)] {
        let mut bytes = batch(200);
        bytes[..8].copy_from_slice(&offset.to_be_bytes());
        bytes[12..16].copy_from_slice(&epoch.to_be_bytes());
        let view = BatchView::first(&bytes).expect("a batch");
        log.append_as_they_are(&bytes, &[view], 0, &config()).expect("appended");
    }
    drop(log);
    let file = directory.path().join(EPOCHS);
    let text = "0\n3\n0 0\n1 2\n2 3\n";
    fs::write(&file, text).expect("written");
    let log = open(directory.path(), KILL).expect("opened");
    assert_eq!(log.epochs.starts(), [(0, 0), (1, 2), (2, 3)]);
    assert_eq!(fs::read_to_string(&file).expect("read"), text);
}
