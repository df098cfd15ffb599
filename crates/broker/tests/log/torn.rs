//! Tests damage at the end and in the middle of a log, as a crash or a bad disk may cause it.

use std::fs;

use fullbore_broker::partitions::AppendError;

use crate::directory::*;

const SEGMENT: &str = "00000000000000000000.log";

/// Writes batches of about 300 bytes. Returns the end position of each batch in the file.
fn written(directory: &Directory, count: usize) -> Vec<u64> {
    let partition = directory.partition();
    let mut ends = Vec::new();
    for n in 0..count {
        offset(&partition, &idempotent(1, 0, n as i32, 1));
        ends.push(fs::metadata(directory.file(SEGMENT)).expect("there").len());
    }
    ends
}

/// Writes the damaged file. Checks that the log keeps the batches that end at or before `from`, and that it accepts new
/// ones.
fn check_cut(directory: &mut Directory, whole: &[u8], damaged: &[u8], ends: &[u64], from: u64, what: &str) {
    let path = directory.file(SEGMENT);
    fs::write(&path, damaged).expect("damaged");
    let partition = directory.crash();
    let kept = ends.iter().filter(|end| **end <= from).count();
    let expected = kept.checked_sub(1).map_or(0, |last| ends[last]);
    assert_eq!(partition.offsets().expect("recovered").log_end, kept as i64, "{what}");
    assert_eq!(read_all(&partition, 0).len(), kept, "{what}");
    let stored = fs::read(&path).expect("read");
    assert_eq!(stored.len() as u64, expected, "{what}");
    assert_eq!(stored, whole[..expected as usize], "{what}");
    assert_eq!(offset(&partition, &idempotent(1, 0, kept as i32, 1)), kept as i64, "{what}");
}

#[test]
fn tail_truncated_at_any_byte_leaves_the_complete_batches() {
    let mut directory = Directory::new();
    let ends = written(&directory, 80);
    let whole = fs::read(directory.file(SEGMENT)).expect("read");
    for cut in (1..=4096).map(|back| whole.len() - back) {
        check_cut(&mut directory, &whole, &whole[..cut], &ends, cut as u64, &format!("cut at {cut}"));
    }
}

#[test]
fn tail_of_zeros_or_garbage_is_truncated() {
    let mut directory = Directory::new();
    let ends = written(&directory, 40);
    let whole = fs::read(directory.file(SEGMENT)).expect("read");
    for from in (whole.len() - 500..=whole.len()).step_by(7) {
        for filler in [0, 0xff, 2] {
            let mut damaged = whole[..from].to_vec();
            damaged.resize(whole.len() + 1000, filler);
            // If the last bytes of a batch happen to equal the filler, the batch is intact.
            let same = whole[from..].iter().take_while(|byte| **byte == filler).count();
            let from = (from + same) as u64;
            check_cut(&mut directory, &whole, &damaged, &ends, from, &format!("{filler} from {from}"));
        }
    }
}

#[test]
fn bit_flip_in_the_last_batch_truncates_that_batch() {
    let mut directory = Directory::new();
    let ends = written(&directory, 10);
    let whole = fs::read(directory.file(SEGMENT)).expect("read");
    let start = ends[ends.len() - 2] as usize;
    // The checksum covers neither the base offset nor the leader epoch. A wrong base offset is found even so, because
    // it does not follow the batch before. The bytes of the leader epoch are left out here.
    for at in (start..start + 12).chain(start + 16..whole.len()) {
        let mut damaged = whole.clone();
        damaged[at] ^= 1 << (at % 8);
        check_cut(&mut directory, &whole, &damaged, &ends, start as u64, &format!("byte {at}"));
    }
}

#[test]
fn bit_flip_before_other_batches_is_refused_by_name_and_changes_nothing() {
    let mut directory = Directory::new();
    let ends = written(&directory, 20);
    let path = directory.file(SEGMENT);
    let whole = fs::read(&path).expect("read");
    let (start, end) = (ends[8] as usize, ends[9] as usize);
    for at in (start..start + 12).chain(start + 16..end) {
        let mut damaged = whole.clone();
        damaged[at] ^= 1 << (at % 8);
        fs::write(&path, &damaged).expect("damaged");
        let partition = directory.crash();
        assert_eq!(append(&partition, &idempotent(1, 0, 20, 1)).expect_err("refused"), AppendError::Storage);
        assert!(partition.read(0, 100, true).is_err());
        assert_eq!(fs::read(&path).expect("read"), damaged, "byte {at}");
    }
    fs::write(&path, &whole).expect("restored");
    assert_eq!(read_all(&directory.crash(), 0).len(), 20);
}

#[test]
fn damaged_segment_is_refused_unless_all_later_ones_are_empty() {
    let mut directory = Directory::new().with(|config| config.segment_bytes = 1000);
    let partition = directory.partition();
    (0..8).for_each(|_| _ = append(&partition, &plain(1, &[1; 400])).expect("appended"));
    drop(partition);
    let path = directory.file(SEGMENT);
    let whole = fs::read(&path).expect("read");
    fs::write(&path, &whole[..whole.len() - 1]).expect("cut");
    let partition = directory.crash();
    assert_eq!(append(&partition, &plain(1, b"v")).expect_err("refused"), AppendError::Storage);
    drop(partition);
    for later in directory.files(".log").into_iter().skip(1) {
        fs::File::create(directory.file(&later)).expect("emptied");
    }
    let partition = directory.crash();
    assert_eq!(partition.offsets().expect("recovered").log_end, 1);
    assert_eq!(directory.files(".log"), [SEGMENT]);
}

/// Returns a directory with 40 records, which a clean stop has flushed. The last of them is damaged.
fn flushed_and_damaged() -> (Directory, Vec<u8>) {
    let mut directory = Directory::new();
    let partition = directory.partition();
    (0..40).for_each(|n| _ = append(&partition, &idempotent(1, 0, n, 1)).expect("appended"));
    drop(partition);
    directory.restart();
    let path = directory.file(SEGMENT);
    let mut bytes = fs::read(&path).expect("read");
    *bytes.last_mut().expect("not empty") ^= 1;
    fs::write(&path, &bytes).expect("damaged");
    (directory, bytes)
}

/// A clean stop has flushed the batch, and nothing was written since. So a crash cannot have torn this batch, and the
/// damaged log must be refused.
#[test]
fn damaged_last_batch_is_refused_if_it_was_flushed() {
    let (mut directory, bytes) = flushed_and_damaged();
    let partition = directory.crash();
    assert_eq!(append(&partition, &idempotent(1, 0, 40, 1)).expect_err("refused"), AppendError::Storage);
    assert_eq!(fs::read(directory.file(SEGMENT)).expect("read"), bytes, "nothing is changed");
}

/// If a later write begins in the middle of a flushed page, a power loss may tear the whole page. So after a power
/// loss, damaged records are truncated and set aside even if they were flushed.
#[test]
fn page_before_the_recovery_point_torn_by_a_power_loss_is_set_aside() {
    let (mut directory, bytes) = flushed_and_damaged();
    let partition = directory.power_cut();
    assert_eq!(partition.offsets().expect("recovered").log_end, 39);
    let left = fs::read(directory.file(SEGMENT)).expect("read");
    let aside = directory.files(".log.aside-1");
    assert_eq!(aside.len(), 1);
    assert_eq!(fs::read(directory.file(&aside[0])).expect("read"), bytes[left.len()..]);
}

/// Returns the names of the files of a log without gaps. Each file has two batches, except for the last one.
fn filled(directory: &mut Directory) -> Vec<String> {
    let partition = directory.partition();
    (0..9).for_each(|n| assert_eq!(offset(&partition, &plain(1, &[1; 400])), n));
    drop(partition);
    directory.restart();
    directory.files(".log")
}

#[test]
fn log_without_a_middle_segment_is_refused_until_it_is_restored() {
    for is_killed in [false, true] {
        let mut directory = Directory::new().with(|config| config.segment_bytes = 1000);
        let segments = filled(&mut directory);
        assert!(segments.len() > 3, "{segments:?}");
        let path = directory.file(&segments[1]);
        let whole = fs::read(&path).expect("read");
        for is_missing in [true, false] {
            if is_missing { fs::remove_file(&path) } else { fs::write(&path, "") }.expect("damaged");
            let partition = if is_killed { directory.crash() } else { directory.restart() };
            assert_eq!(append(&partition, &plain(1, b"v")).expect_err("refused"), AppendError::Storage);
            assert!(partition.read(0, 100, true).is_err());
            drop(partition);
            fs::write(&path, &whole).expect("restored");
            let partition = if is_killed { directory.crash() } else { directory.restart() };
            assert_eq!(read_all(&partition, 0).len(), 9);
        }
    }
}

#[test]
fn log_without_its_first_segments_begins_at_the_first_existing_one() {
    let mut directory = Directory::new().with(|config| config.segment_bytes = 1000);
    let segments = filled(&mut directory);
    fs::remove_file(directory.file(&segments[0])).expect("removed");
    let partition = directory.restart();
    assert_eq!(partition.offsets().expect("open").log_start, 2);
    assert_eq!(read_all(&partition, 2).len(), 7);
}
