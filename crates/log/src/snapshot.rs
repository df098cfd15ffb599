//! Producer snapshots: files that have the last batches of each producer, as of an offset.
//!
//! A snapshot has one entry for each remembered batch, oldest first, so that a restart restores the whole window. Kafka
//! reads only the last entry of each producer.
//!
//! The format is version 1 of Kafka's `ProducerSnapshot.json`: version i16, CRC-32C u32 of everything after it, count
//! i32, entries. Invariant: an entry is read exactly as it was written.

use std::fs;
use std::io;
use std::path::Path;

use fullbore_rules::sequence::SnapshotEntry;
use fullbore_wire::batch::crc32c;

use super::files::{SNAPSHOT, offset_path, parse_offset_name, replace_unsynced};

const VERSION: i16 = 1;
/// The size of the version and the checksum, in bytes.
const HEAD: usize = 6;
const ENTRY: usize = 46;
/// Minimum number of snapshots to keep: the newest one, and another one in case the newest is damaged.
const KEPT: usize = 2;

/// The offset of a snapshot, and its entries.
pub type Snapshot = (i64, Vec<SnapshotEntry>);

/// Writes a snapshot as of `offset`. The snapshot reaches the disk with the next flush. If a crash damages it before,
/// the checksum reveals the damage, and the log is replayed instead. Returns the length of the file in bytes.
pub fn write(dir: &Path, offset: i64, entries: impl Iterator<Item = SnapshotEntry>) -> io::Result<u64> {
    let bytes = encode(entries);
    replace_unsynced(&offset_path(dir, offset, SNAPSHOT), &bytes)?;
    Ok(bytes.len() as u64)
}

/// Returns the length in bytes of a snapshot with this many entries.
pub fn len_of(entries: usize) -> u64 {
    (HEAD + 4 + entries * ENTRY) as u64
}

/// Returns the newest readable snapshot at or before `log_end`, and its offset; `None` if there is none. Removes
/// snapshots after `log_end`, because their batches are no longer in the log. Also removes damaged snapshots, because a
/// replay of the log replaces them.
pub fn load(dir: &Path, log_end: i64) -> io::Result<Option<Snapshot>> {
    let mut offsets = list(dir)?;
    offsets.sort_unstable();
    for offset in offsets.into_iter().rev() {
        let path = offset_path(dir, offset, SNAPSHOT);
        if offset <= log_end
            && let Some(entries) = decode(&fs::read(&path)?)
        {
            return Ok(Some((offset, entries)));
        }
        tracing::warn!(path = %path.display(), log_end, "removed a producer snapshot that is not usable");
        fs::remove_file(&path)?;
    }
    Ok(None)
}

/// Returns the newest readable snapshot at or before `offset`; `None` if there is none.
pub fn load_before(dir: &Path, offset: i64) -> io::Result<Option<Snapshot>> {
    let mut offsets = list(dir)?;
    offsets.sort_unstable();
    for offset in offsets.into_iter().rev().filter(|found| *found <= offset) {
        if let Some(entries) = decode(&fs::read(offset_path(dir, offset, SNAPSHOT))?) {
            return Ok(Some((offset, entries)));
        }
    }
    Ok(None)
}

/// Removes all snapshots after this offset.
pub fn remove_past(dir: &Path, offset: i64) -> io::Result<()> {
    let past = list(dir)?.into_iter().filter(|found| *found > offset);
    past.map(|found| offset_path(dir, found, SNAPSHOT)).try_for_each(fs::remove_file)
}

/// Removes old snapshots, but keeps the newest [`KEPT`]. Also keeps the last snapshot at or before `recovery_point` and
/// all later ones, because a broker that restarts after a crash needs them to find the aborted transactions. If a
/// removal fails, the next call tries again.
pub fn remove_old(dir: &Path, recovery_point: i64) -> io::Result<()> {
    let mut offsets = list(dir)?;
    offsets.sort_unstable();
    let before = offsets.partition_point(|offset| *offset <= recovery_point);
    let old = offsets.len().saturating_sub(KEPT).min(before.saturating_sub(1));
    for offset in &offsets[..old] {
        fs::remove_file(offset_path(dir, *offset, SNAPSHOT))?;
    }
    Ok(())
}

fn list(dir: &Path) -> io::Result<Vec<i64>> {
    let mut offsets = Vec::new();
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        if let Some((offset, SNAPSHOT)) = name.to_str().and_then(parse_offset_name) {
            offsets.push(offset);
        }
    }
    Ok(offsets)
}

fn encode(entries: impl Iterator<Item = SnapshotEntry>) -> Vec<u8> {
    let mut bytes = vec![0; HEAD + 4];
    let mut count: i32 = 0;
    for entry in entries {
        bytes.extend_from_slice(&entry.producer_id.to_be_bytes());
        bytes.extend_from_slice(&entry.producer_epoch.to_be_bytes());
        bytes.extend_from_slice(&entry.last_sequence.to_be_bytes());
        bytes.extend_from_slice(&entry.last_offset.to_be_bytes());
        bytes.extend_from_slice(&entry.offset_delta.to_be_bytes());
        bytes.extend_from_slice(&entry.timestamp.to_be_bytes());
        bytes.extend_from_slice(&entry.coordinator_epoch.to_be_bytes());
        bytes.extend_from_slice(&entry.current_txn_first_offset.to_be_bytes());
        count += 1;
    }
    bytes[HEAD..HEAD + 4].copy_from_slice(&count.to_be_bytes());
    bytes[..2].copy_from_slice(&VERSION.to_be_bytes());
    let crc = crc32c(&bytes[HEAD..]);
    bytes[2..HEAD].copy_from_slice(&crc.to_be_bytes());
    bytes
}

fn decode(bytes: &[u8]) -> Option<Vec<SnapshotEntry>> {
    let (head, body) = bytes.split_at_checked(HEAD)?;
    let crc = u32::from_be_bytes(head[2..].try_into().expect("4 bytes"));
    if head[..2] != VERSION.to_be_bytes() || crc32c(body) != crc {
        return None;
    }
    let (count, rows) = body.split_at_checked(4)?;
    let count = i32::from_be_bytes(count.try_into().expect("4 bytes"));
    let whole = usize::try_from(count).is_ok_and(|count| rows.len() == count * ENTRY);
    whole.then(|| rows.chunks_exact(ENTRY).map(decode_entry).collect())
}

fn decode_entry(row: &[u8]) -> SnapshotEntry {
    let i32_at = |at: usize| i32::from_be_bytes(row[at..at + 4].try_into().expect("4 bytes"));
    let i64_at = |at: usize| i64::from_be_bytes(row[at..at + 8].try_into().expect("8 bytes"));
    SnapshotEntry {
        producer_id: i64_at(0),
        producer_epoch: i16::from_be_bytes([row[8], row[9]]),
        last_sequence: i32_at(10),
        last_offset: i64_at(14),
        offset_delta: i32_at(22),
        timestamp: i64_at(26),
        coordinator_epoch: i32_at(34),
        current_txn_first_offset: i64_at(38),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(n: i64) -> SnapshotEntry {
        SnapshotEntry {
            producer_id: n,
            producer_epoch: 2,
            last_sequence: 3,
            last_offset: 4,
            offset_delta: 5,
            timestamp: 6,
            coordinator_epoch: -1,
            current_txn_first_offset: -1,
        }
    }

    #[test]
    fn an_entry_is_46_bytes_and_comes_back() {
        let bytes = encode((0..3).map(entry));
        assert_eq!(bytes.len(), HEAD + 4 + 3 * ENTRY);
        assert_eq!(decode(&bytes), Some((0..3).map(entry).collect()));
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&damaged), None, "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert_eq!(decode(&bytes[..len]), None, "{len} bytes");
        }
    }

    #[test]
    fn the_newest_good_one_before_the_end_counts() {
        let dir = tempfile::tempdir().expect("temporary directory");
        for offset in [10, 20, 30, 40] {
            write(dir.path(), offset, std::iter::once(entry(offset))).expect("written");
        }
        fs::write(offset_path(dir.path(), 30, SNAPSHOT), b"torn").expect("written");
        let loaded = load(dir.path(), 35).expect("read");
        assert_eq!(loaded, Some((20, vec![entry(20)])));
        assert_eq!(list(dir.path()).expect("read").len(), 2);
        write(dir.path(), 50, std::iter::empty()).expect("written");
        remove_old(dir.path(), i64::MAX).expect("removed");
        let mut kept = list(dir.path()).expect("read");
        kept.sort_unstable();
        assert_eq!(kept, [20, 50]);
    }
}
