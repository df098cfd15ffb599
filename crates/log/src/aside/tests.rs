//! Tests of logs that are refused, of logs that are cut off, and of crashes at every step while records are set aside.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bytes::BytesMut;
use fullbore_wire::batch::{BatchBuilder, Compression, Stamp};

use crate::Log;
use crate::error::StorageError;
use crate::recovery::RecoveryHint;
use crate::steps::watch;
use crate::validation::ValidBatch;
use fullbore_config::{BrokerConfig, CleanupPolicy, Properties, TopicConfig};

const POWER_CUT: RecoveryHint = RecoveryHint { clean: false, rebooted: true, ..RecoveryHint::NOTHING };
const KILL: RecoveryHint = RecoveryHint { rebooted: false, ..POWER_CUT };
/// Number of batches. Each has one record.
const BATCHES: usize = 12;
/// Number of batches in every segment except the last.
const IN_SEGMENT: usize = 3;

fn config() -> TopicConfig {
    let (broker, _) = BrokerConfig::from_properties(&Properties::default()).expect("valid");
    TopicConfig { segment_bytes: (IN_SEGMENT * batch(0).len()) as u64, ..broker.topics.defaults }
}

fn batch(n: usize) -> BytesMut {
    let mut builder = BatchBuilder::new(BytesMut::new(), Compression::None, None);
    builder.append(0, None, Some(&[n as u8; 200]), &[]);
    builder.seal(Stamp { producer_id: 5, producer_epoch: 0, base_sequence: n as i32 }).expect("sealed").0
}

fn open(dir: &Path, known: RecoveryHint) -> Result<Log, StorageError> {
    Log::open(&Arc::from(dir), known, 0, &config())
}

/// Returns the leader epoch of batch `n`. The epochs begin at the batches 0, 2 and 7.
fn epoch(n: usize) -> i32 {
    i32::from(n >= 2) + i32::from(n >= 7)
}

fn append(log: &mut Log, n: usize) -> i64 {
    let bytes = batch(n);
    log.append(&ValidBatch::unchecked(&bytes), epoch(n), 0, &config()).expect("appended").base_offset
}

/// Returns a directory with four segments of three batches each.
fn written() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("temporary directory");
    let mut log = open(directory.path(), RecoveryHint::NOTHING).expect("opened");
    (0..BATCHES).for_each(|n| assert_eq!(append(&mut log, n), n as i64));
    directory
}

fn segment(dir: &Path, base: usize) -> PathBuf {
    dir.join(format!("{base:020}.log"))
}

/// Overwrites a part of batch `n` with zeros, in the segment that begins with batch `base`. Returns the segment's path.
fn punch(dir: &Path, base: usize, n: usize) -> PathBuf {
    let (path, len) = (segment(dir, base), batch(0).len());
    let mut bytes = fs::read(&path).expect("read");
    bytes[(n - base) * len + 100..][..80].fill(0);
    fs::write(&path, bytes).expect("written");
    path
}

fn files(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(dir).expect("listed").map(|entry| entry.expect("listed"));
    let read = |path: PathBuf| fs::read(path).expect("read");
    let mut files: Vec<_> =
        entries.map(|entry| (entry.file_name().into_string().expect("text"), read(entry.path()))).collect();
    files.sort();
    files
}

fn copy(from: &Path) -> tempfile::TempDir {
    let to = tempfile::tempdir().expect("temporary directory");
    files(from).iter().for_each(|(name, bytes)| fs::write(to.path().join(name), bytes).expect("written"));
    to
}

/// Checks that the log is refused, that the error names the file and the position, and that no file is changed.
fn assert_refused(dir: &Path, known: RecoveryHint, path: &Path, position: usize) {
    let before = files(dir);
    match open(dir, known) {
        Err(StorageError::Corrupt { path: named, position: at, .. }) => {
            assert_eq!((named.as_path(), at), (path, position as u64));
        }
        other => panic!("not refused: {other:?}"),
    }
    assert!(files(dir) == before, "nothing is changed");
}

#[test]
fn bad_batches_before_good_ones_are_refused_by_file_and_byte_unless_after_a_power_loss() {
    let directory = written();
    let dir = directory.path();
    let path = punch(dir, 3, 4);
    let len = batch(0).len();
    assert_refused(dir, KILL, &path, len);
    // The bad batch was flushed, so the log must be refused, even after a power loss. The batch is before the recovery
    // point, but recovery finds it because it also verifies the last page before this point.
    assert_refused(dir, RecoveryHint { recovery_point: 5, ..POWER_CUT }, &path, len);
    let log = open(dir, RecoveryHint { recovery_point: 4, ..POWER_CUT }).expect("cut");
    assert_eq!((log.log_end, log.recovery_point(), log.segments.len()), (4, 4, 2));
}

#[test]
fn snapshots_indexes_and_epochs_past_the_cut_are_gone() {
    let directory = written();
    let dir = directory.path();
    punch(dir, 3, 4);
    let mut log = open(dir, POWER_CUT).expect("cut");
    let names: Vec<String> = files(dir).into_iter().map(|(name, _)| name).collect();
    let past = |name: &&String| name[..20].parse::<usize>().is_ok_and(|offset| offset > 4);
    let past: Vec<&String> = names.iter().filter(past).collect();
    assert_eq!(past, ["00000000000000000006.log.aside-1", "00000000000000000009.log.aside-1"]);
    let epochs = fs::read_to_string(dir.join("leader-epoch-checkpoint")).expect("read");
    assert_eq!(epochs, "0\n2\n0 0\n1 2\n");
    let states: Vec<_> = log.producers.iter().map(|state| (state.producer_id, state.last_sequence)).collect();
    assert_eq!(states, [(5, 3)]);
    (4..BATCHES).for_each(|n| assert_eq!(append(&mut log, n), n as i64));
    drop(log);
    assert_eq!(open(dir, KILL).expect("whole").log_end, BATCHES as i64);
}

#[test]
fn a_crash_while_records_are_set_aside_loses_none_of_them() {
    let directory = written();
    let dir = directory.path();
    punch(dir, 3, 4);
    let before = files(dir);
    let batches_behind: Vec<BytesMut> = (5..BATCHES).map(batch).collect();
    for (at, moment) in moments_of(dir).iter().enumerate() {
        let dir = moment.path();
        let mut log = open(dir, POWER_CUT).unwrap_or_else(|error| panic!("moment {at}: {error}"));
        assert_eq!(log.log_end, 4, "moment {at}");
        let left = files(dir);
        assert!(left.iter().all(|(name, _)| !name.ends_with(".tmp")), "moment {at}");
        // The log overwrites only the offset and the leader epoch, which are in the first 16 bytes. Compare the bytes
        // after them with those that the producer sent.
        for wanted in &batches_behind {
            let is_in = |bytes: &[u8]| bytes.windows(wanted.len() - 16).any(|found| *found == wanted[16..]);
            let is_kept = left.iter().any(|(name, bytes)| name.contains(".aside-") && is_in(bytes));
            assert!(is_kept, "moment {at}: a batch is lost");
        }
        let kept = |files: &[(String, Vec<u8>)]| {
            files.iter().find(|(name, _)| name.starts_with("00000000000000000000.log")).cloned()
        };
        assert!(kept(&left) == kept(&before), "moment {at}: the first segment is as it was");
        assert_eq!(append(&mut log, 4), 4, "moment {at}");
    }
}

/// Compaction flushes a segment before the segment gets its final name, so a power loss cannot have damaged it.
#[test]
fn damage_in_the_output_of_a_compaction_is_refused_after_a_power_loss_as_well() {
    let directory = written();
    let dir = directory.path();
    let len = batch(0).len();
    let bytes = fs::read(segment(dir, 3)).expect("read");
    let mut left = bytes[len..].to_vec();
    left[len + 100] ^= 1;
    fs::write(segment(dir, 3), left).expect("as if its first batch was superseded, and its last one is bad");
    assert_refused(dir, POWER_CUT, &segment(dir, 3), len);
    let compacted = TopicConfig { cleanup: CleanupPolicy { delete: false, compact: true }, ..config() };
    let opened = Log::open(&Arc::from(dir), POWER_CUT, 0, &compacted);
    assert!(matches!(opened, Err(StorageError::Corrupt { .. })), "{opened:?}");
}

/// Starts a log after a power loss. Returns copies of the directory from before the start, from each step of it, and
/// from after the start.
fn moments_of(dir: &Path) -> Vec<tempfile::TempDir> {
    let moments = Rc::new(RefCell::new(vec![copy(dir)]));
    let look = {
        let (dir, moments) = (dir.to_owned(), Rc::clone(&moments));
        move || moments.borrow_mut().push(copy(&dir))
    };
    watch(look, || open(dir, POWER_CUT)).expect("cut");
    let mut moments = moments.take();
    moments.push(copy(dir));
    assert!(moments.len() > 8, "{} moments", moments.len());
    moments
}

/// The search for the last whole batch begins at the end of the file. The test tries it with long batches and with
/// holes at various positions.
#[test]
fn lost_offsets_are_reported_up_to_the_last_whole_batch() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let config = TopicConfig {
        max_message_bytes: 1 << 20,
        compression: None,
        ..BrokerConfig::from_properties(&Properties::default()).expect("valid").0.topics.defaults
    };
    let mut log = Log::open(&Arc::from(directory.path()), RecoveryHint::NOTHING, 0, &config).expect("opened");
    let mut ends = Vec::new();
    for _ in 0..3 {
        let mut builder = BatchBuilder::new(BytesMut::new(), Compression::None, None);
        (0..2).for_each(|_| builder.append(0, None, Some(&[3; 350_000]), &[]));
        let bytes = builder.seal(Stamp::NONE).expect("sealed").0;
        log.append(&ValidBatch::unchecked(&bytes), 0, 0, &config).expect("appended");
        ends.push(log.segments[0].size);
    }
    for (from, end_offset) in [(0, 6), (1, 6), (ends[0], 6), (ends[1], 6), (ends[1] + 1, 4)] {
        let next_offset = if from > ends[1] { 4 } else { 0 };
        let aside = log.set_aside(&AtomicBool::new(false), 0, from, next_offset).expect("set aside");
        assert_eq!((aside.end_offset, aside.files), (end_offset, 1), "from {from}");
    }
}
