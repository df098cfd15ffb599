//! Names of the files and directories in a data directory, and its small text files.
//!
//! Segments, indexes and snapshots have modules of their own. A text file is never half written: the new version is
//! written under another name and then renamed.
//!
//! The formats are those of Kafka's `LogFileUtils`, `OffsetCheckpointFile`, `PartitionMetadataFile` and
//! `CleanShutdownFileHandler`.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use fullbore_wire::Uuid;

pub use fullbore_host::files::{replace, replace_unsynced};

pub const LOG: &str = "log";
pub const OFFSET_INDEX: &str = "index";
pub const TIME_INDEX: &str = "timeindex";
pub const TXN_INDEX: &str = "txnindex";
pub const SNAPSHOT: &str = "snapshot";
/// Suffix of the files of a retired segment, which will be removed later. A number precedes it.
pub const DELETED: &str = "deleted";
/// Suffix of the files of a segment that compaction is writing.
pub const CLEANED: &str = "cleaned";
/// Suffix of the files of a segment that is about to replace other segments.
pub const SWAP: &str = "swap";
/// Suffix of files with records that were set aside. A number follows it.
pub const ASIDE: &str = "aside-";
/// Suffix of the directory of a deleted partition, which will be removed later.
pub const DELETED_DIR: &str = "delete";
pub const CLEAN_SHUTDOWN: &str = ".kafka_cleanshutdown";
pub const RECOVERY_POINTS: &str = "recovery-point-offset-checkpoint";
/// The file with the high watermarks. Its name and format are Kafka's (`ReplicaManager.HighWatermarkFilename`).
pub const HIGH_WATERMARKS: &str = "replication-offset-checkpoint";
pub const LOG_STARTS: &str = "log-start-offset-checkpoint";
/// The file with the offsets up to which compacted logs have been cleaned.
pub const CLEANER_OFFSETS: &str = "cleaner-offset-checkpoint";
/// The file that lists the partitions that have not been opened since a crash. For each of them, it also records
/// whether the machine has booted since the crash. Kafka does not have this file.
pub const UNRECOVERED: &str = "unrecovered-checkpoint";
pub const LEADER_EPOCHS: &str = "leader-epoch-checkpoint";
const METADATA: &str = "partition.metadata";
/// Maximum length of a file name on Linux.
const NAME_MAX: usize = 255;

/// Returns the path `<20 digits>.<suffix>` in `dir`.
pub fn offset_path(dir: &Path, offset: i64, suffix: &str) -> PathBuf {
    dir.join(format!("{offset:020}.{suffix}"))
}

/// Returns the offset and suffix of a name that [`offset_path`] has made; `None` for other names.
pub fn parse_offset_name(name: &str) -> Option<(i64, &str)> {
    let (digits, suffix) = name.split_once('.')?;
    (digits.len() == 20).then(|| digits.parse().ok().map(|offset| (offset, suffix)))?
}

/// Returns the directory of a partition.
pub fn partition_dir(data_dir: &Path, topic: &str, index: i32) -> PathBuf {
    data_dir.join(format!("{topic}-{index}"))
}

/// Returns the path to which a partition's directory is renamed when the partition is no longer used. `unique`
/// distinguishes topics that were deleted and created again.
pub fn retired_dir(data_dir: &Path, topic: &str, index: i32, unique: u128, suffix: &str) -> PathBuf {
    let tail = format!("-{index}.{unique:032x}-{suffix}");
    let room = NAME_MAX - tail.len();
    data_dir.join(format!("{}{tail}", &topic[..topic.len().min(room)]))
}

/// Returns topic and number of the partition from a name that [`retired_dir`] has made; `None` for other names. A long
/// topic name may be cut off.
pub fn retired_partition(name: &str) -> Option<(String, i32)> {
    let (partition, _) = name.rsplit_once('.')?;
    let (topic, index) = partition.rsplit_once('-')?;
    Some((topic.to_owned(), index.parse().ok()?))
}

/// Flushes the directory, so that new and renamed files in it survive a power loss.
pub fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// The contents of a checkpoint file: offsets by topic and partition.
pub type OffsetsByPartition = HashMap<(String, i32), i64>;

/// Reads an offset checkpoint. Returns `None` if the file is missing or damaged.
pub fn read_offsets(path: &Path) -> Option<OffsetsByPartition> {
    let bytes = fs::read(path).ok()?;
    let offsets = std::str::from_utf8(&bytes).ok().and_then(parse_offsets);
    if offsets.is_none() {
        tracing::warn!(path = %path.display(), "cannot use a damaged checkpoint file: the broker ignores it");
    }
    offsets
}

fn parse_offsets(text: &str) -> Option<OffsetsByPartition> {
    let mut lines = text.lines();
    if lines.next()? != "0" {
        return None;
    }
    let count: usize = lines.next()?.parse().ok()?;
    let mut offsets = HashMap::new();
    for line in lines {
        let mut words = line.split(' ');
        let (topic, partition) = (words.next()?, words.next()?.parse().ok()?);
        offsets.insert((topic.to_owned(), partition), words.next()?.parse().ok()?);
    }
    (offsets.len() == count).then_some(offsets)
}

/// Writes an offset checkpoint, sorted by topic and partition. The data is on the disk before the file gets its name.
pub fn write_offsets(path: &Path, offsets: &OffsetsByPartition) -> io::Result<()> {
    replace(path, offsets_text(offsets).as_bytes())
}

/// Writes an offset checkpoint without a flush. The system writes it to the disk later.
pub fn write_offsets_unsynced(path: &Path, offsets: &OffsetsByPartition) -> io::Result<()> {
    replace_unsynced(path, offsets_text(offsets).as_bytes())
}

fn offsets_text(offsets: &OffsetsByPartition) -> String {
    let mut rows: Vec<_> = offsets.iter().collect();
    rows.sort();
    let mut text = format!("0\n{}\n", rows.len());
    for ((topic, partition), offset) in rows {
        text.push_str(&format!("{topic} {partition} {offset}\n"));
    }
    text
}

/// The topic id in a partition's directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredTopicId {
    Known(Uuid),
    /// The directory has no file with the id, or does not exist.
    Missing,
    /// The file is empty.
    Empty,
    /// The file has bytes, but no topic id.
    Garbage,
}

impl StoredTopicId {
    /// Returns the topic id; `None` if the directory has no valid one.
    pub fn known(self) -> Option<Uuid> {
        match self {
            StoredTopicId::Known(id) => Some(id),
            StoredTopicId::Missing | StoredTopicId::Empty | StoredTopicId::Garbage => None,
        }
    }
}

/// Returns the file with the topic id in a partition's directory.
pub fn topic_id_path(dir: &Path) -> PathBuf {
    dir.join(METADATA)
}

/// Reads the topic id in a partition's directory.
///
/// # Errors
/// Returns the system's error if the file cannot be read. The topic is then unknown.
pub fn read_topic_id(dir: &Path) -> io::Result<StoredTopicId> {
    let bytes = match fs::read(topic_id_path(dir)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(StoredTopicId::Missing),
        read => read?,
    };
    if bytes.is_empty() {
        return Ok(StoredTopicId::Empty);
    }
    let text = String::from_utf8_lossy(&bytes);
    let id = text.lines().find_map(|line| Uuid::parse(line.strip_prefix("topic_id: ")?.trim()));
    Ok(id.map_or(StoredTopicId::Garbage, StoredTopicId::Known))
}

/// Writes the topic id to a partition's directory. The caller must do this before the first record is written, because
/// a directory with records but without an id is refused. The file reaches the disk with the log's first flush.
pub fn write_topic_id(dir: &Path, topic_id: Uuid) -> io::Result<()> {
    let text = format!("version: 0\ntopic_id: {topic_id}\n");
    replace_unsynced(&dir.join(METADATA), text.as_bytes())
}

/// Flushes the topic id to the disk.
pub fn sync_topic_id(dir: &Path) -> io::Result<()> {
    match File::open(dir.join(METADATA)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        file => file?.sync_all(),
    }
}

/// Returns true if a partition's directory has a segment with records, or if it had records that retention has removed.
/// Returns false if there is no directory.
///
/// # Errors
/// Returns the system's error if the directory cannot be listed.
pub fn had_records(dir: &Path) -> io::Result<bool> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        if let Some((base_offset, LOG)) = name.to_str().and_then(parse_offset_name)
            && (base_offset > 0 || entry.metadata()?.len() > 0)
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the total size of the segments in a partition's directory; 0 if there is no directory.
pub fn segments_size(dir: &Path) -> io::Result<u64> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        entries => entries?,
    };
    let mut size = 0;
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        if let Some((_, LOG)) = name.to_str().and_then(parse_offset_name) {
            match entry.metadata() {
                Ok(metadata) => size += metadata.len(),
                // Retention has renamed or removed the file in the meantime.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(size)
}

/// Returns topic and number of every partition that has a directory.
pub fn list_partitions(dir: &Path) -> io::Result<Vec<(String, i32)>> {
    let parse = |name: String| {
        let (topic, index) = name.rsplit_once('-')?;
        Some((topic.to_owned(), index.parse().ok()?))
    };
    Ok(list_dirs(dir)?.into_iter().filter_map(parse).collect())
}

/// Returns each topic that has directories, by name and id. The value is the topic's number of partitions, as far as
/// the numbers of its directories show it. Skips directories without a topic id.
pub fn topics_in(dir: &Path) -> io::Result<BTreeMap<(String, Uuid), i32>> {
    let mut topics = BTreeMap::new();
    for (topic, index) in list_partitions(dir)? {
        if let Some(id) = read_topic_id(&partition_dir(dir, &topic, index))?.known() {
            let count = topics.entry((topic, id)).or_insert(0);
            *count = (*count).max(index.saturating_add(1));
        }
    }
    Ok(topics)
}

/// Returns the names of the subdirectories.
pub fn list_dirs(dir: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir()
            && let Ok(name) = entry.file_name().into_string()
        {
            names.push(name);
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_kafkas() {
        let dir = Path::new("/d");
        assert_eq!(offset_path(dir, 42, LOG), Path::new("/d/00000000000000000042.log"));
        assert_eq!(parse_offset_name("00000000000000000042.timeindex"), Some((42, "timeindex")));
        for strange in ["42.log", "leader-epoch-checkpoint", "0000000000000000004x.log"] {
            assert_eq!(parse_offset_name(strange), None, "{strange}");
        }
        let retired = retired_dir(dir, &"t".repeat(249), 7, 1, "delete");
        let name = retired.file_name().expect("has a name").len();
        assert_eq!(name, NAME_MAX);
        let retired = retired_dir(dir, "a.b-c", 7, 1, DELETED_DIR);
        let name = retired.file_name().and_then(|name| name.to_str()).expect("has a name");
        assert_eq!(retired_partition(name), Some(("a.b-c".to_owned(), 7)));
        assert_eq!(retired_partition("stray"), None);
    }

    #[test]
    fn an_offset_checkpoint_reads_back_and_a_damaged_one_is_ignored() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join(RECOVERY_POINTS);
        let offsets = HashMap::from([(("a.b-c".to_owned(), 3), 17), (("a".to_owned(), 0), 0)]);
        write_offsets(&path, &offsets).expect("written");
        assert_eq!(fs::read_to_string(&path).expect("read"), "0\n2\na 0 0\na.b-c 3 17\n");
        assert_eq!(read_offsets(&path), Some(offsets));
        fs::write(&path, "0\n3\na 0 0\na.b-c 3 17\n").expect("written");
        assert_eq!(read_offsets(&path), None);
    }

    #[test]
    fn a_topic_id_comes_back() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let stored = || read_topic_id(dir.path()).expect("read");
        assert_eq!(stored(), StoredTopicId::Missing);
        write_topic_id(dir.path(), Uuid([7; 16])).expect("written");
        assert_eq!(stored(), StoredTopicId::Known(Uuid([7; 16])));
        let garbage: [&[u8]; 4] = [b"xx\n", &[0; 42], b"version: 0\n", b"version: 0\ntopic_id: abc\n"];
        for bytes in garbage {
            fs::write(topic_id_path(dir.path()), bytes).expect("written");
            assert_eq!(stored(), StoredTopicId::Garbage, "{bytes:?}");
        }
        fs::write(topic_id_path(dir.path()), "").expect("written");
        assert_eq!(stored(), StoredTopicId::Empty);
    }

    #[test]
    fn directory_with_a_record_or_a_later_first_segment_had_records() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let had_records = || had_records(dir.path()).expect("listed");
        let log = offset_path(dir.path(), 0, LOG);
        fs::write(&log, "").expect("written");
        assert!(!had_records());
        fs::write(&log, "x").expect("written");
        assert!(had_records());
        fs::remove_file(&log).expect("removed");
        fs::write(offset_path(dir.path(), 7, LOG), "").expect("written");
        assert!(had_records());
    }
}
