//! Checkpoint files of the data directory: offsets of partitions whose logs are not open.
//!
//! Not here: the formats ([`fullbore_log::files`]). As in Kafka, the key of an entry is the topic's name and the
//! partition's number, and a new topic may reuse a name. The entries of a deleted partition are therefore removed from
//! the files before the next partition of the name creates its directory ([`Checkpoints::purge`]).
//!
//! Locks: a writer holds `writing` while it collects the offsets and writes them, so that no older log start replaces a
//! newer one. It locks partitions during the collection. A thread that has locked a partition must therefore not take
//! `writing`. Threads that apply metadata take `entries`, so no thread holds it across blocking calls, except `finish`
//! at shutdown.

use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::replica::Replica;
use fullbore_host::disk_space::DiskSpace;
use fullbore_host::files::is_full;
use fullbore_log::boot::Boots;
use fullbore_log::files::{
    self, CLEAN_SHUTDOWN, HIGH_WATERMARKS, LOG_STARTS, OffsetsByPartition, RECOVERY_POINTS, UNRECOVERED,
};
use fullbore_log::recovery::RecoveryHint;

/// Name of the topic and number of the partition.
pub type TopicPartition = (String, i32);

/// Value in the list of unrecovered partitions after a crash of the process.
const KILLED: i64 = 0;
/// Value in that list if the machine has booted since the crash.
const REBOOTED: i64 = 1;

/// Checkpoint files and their entries.
#[derive(Debug)]
pub struct Checkpoints {
    dir: Arc<Path>,
    space: Arc<DiskSpace>,
    entries: Mutex<Entries>,
    writing: Mutex<()>,
}

#[derive(Debug)]
struct Entries {
    clean: bool,
    recovery_points: OffsetsByPartition,
    /// True if the file of recovery points could be read or does not exist. If false, it is unknown which records were
    /// flushed.
    knows_flushed: bool,
    log_starts: OffsetsByPartition,
    high_watermarks: OffsetsByPartition,
    /// True if a high watermark in memory differs from the one in the file.
    has_moved: bool,
    /// True if the file of log starts could be read. A partition without an entry in it begins with its first segment.
    knows_log_starts: bool,
    /// Partitions whose logs were not opened since a crash, even if a clean shutdown has followed. The value is
    /// [`REBOOTED`] or [`KILLED`].
    unrecovered: OffsetsByPartition,
    /// Partitions of `unrecovered` whose logs this process has opened.
    recovered: HashSet<TopicPartition>,
    /// Deleted partitions that are still in the files.
    stale: HashSet<TopicPartition>,
}

/// Offsets of an open log.
#[derive(Debug, Clone, Copy)]
pub struct Noted {
    pub recovery_point: i64,
    pub log_start: i64,
    pub high_watermark: i64,
}

/// State of a log at a clean shutdown.
#[derive(Debug)]
pub struct CleanShutdown {
    pub key: TopicPartition,
    pub log_start: i64,
    /// End of the log; `None` if its files may lack records.
    pub finished: Option<i64>,
}

impl Checkpoints {
    /// Reads the files of a data directory, and records the machine's boot.
    pub fn read(dir: &Arc<Path>, space: Arc<DiskSpace>) -> Checkpoints {
        let mut entries = Entries::read(dir);
        if let Err(error) = entries.note_boot(dir) {
            // The broker starts even on a full disk. The next start will assume that the machine has booted since this
            // run.
            space.note(&error);
            tracing::error!(dir = %dir.display(), %error, "cannot record the machine's boot in the data directory: after an unclean end, the next start recovers logs as after a power loss; check the disk and the directory's permissions");
        }
        Checkpoints { dir: dir.clone(), space, entries: Mutex::new(entries), writing: Mutex::default() }
    }

    /// Returns the checkpointed state of a partition, as a hint for its recovery.
    pub fn known(&self, key: &TopicPartition) -> RecoveryHint {
        let entries = self.entries.lock();
        RecoveryHint {
            clean: entries.clean && !entries.unrecovered.contains_key(key),
            recovery_point: entries.recovery_points.get(key).copied().unwrap_or(0),
            log_start: entries.knows_log_starts.then(|| entries.log_starts.get(key).copied().unwrap_or(0)),
            rebooted: entries.unrecovered.get(key) == Some(&REBOOTED),
            may_have_gaps: false,
        }
    }

    /// Returns the partition's high watermark in the checkpoint; 0 if there is none.
    pub fn high_watermark(&self, key: &TopicPartition) -> i64 {
        self.entries.lock().high_watermarks.get(key).copied().unwrap_or(0)
    }

    /// Writes the high watermarks of the open logs among `partitions`, if one has changed since the last write.
    ///
    /// # Errors
    /// [`io::Error`] if the file cannot be written.
    pub fn write_high_watermarks(&self, partitions: &[Arc<Replica>]) -> io::Result<()> {
        let _writing = self.writing.lock();
        let noted: Vec<_> = noted(partitions).collect();
        let high_watermarks = {
            let mut entries = self.entries.lock();
            for (partition, Noted { high_watermark, .. }) in noted {
                // A deletion sets `leaving` before it calls `forget`, so no forgotten entry comes back.
                if !partition.phase().is_leaving() {
                    let before = entries.high_watermarks.insert(partition.key(), high_watermark);
                    entries.has_moved |= before != Some(high_watermark);
                }
            }
            if !entries.has_moved {
                return Ok(());
            }
            entries.high_watermarks.clone()
        };
        // No fsync: a lost write leaves an older, lower high watermark, which is still valid.
        files::write_offsets_unsynced(&self.dir.join(HIGH_WATERMARKS), &high_watermarks)?;
        self.entries.lock().has_moved = false;
        Ok(())
    }

    /// Notes that the partition's log has been opened since the crash. [`Checkpoints::forget_recovered`] removes the
    /// partition from the list later.
    pub fn note_recovered(&self, key: TopicPartition) {
        let mut entries = self.entries.lock();
        if entries.unrecovered.contains_key(&key) {
            entries.recovered.insert(key);
        }
    }

    /// Removes the entries of a deleted partition from memory. The files have them until the next write.
    pub fn forget(&self, key: TopicPartition) {
        self.entries.lock().forget(key);
    }

    /// Removes the entries of a deleted partition from the files. Call it before a new partition of the name creates
    /// its directory.
    ///
    /// # Errors
    /// [`io::Error`] if a file cannot be written. The caller must then not create the directory.
    pub fn purge(&self, key: &TopicPartition) -> io::Result<()> {
        {
            let mut entries = self.entries.lock();
            entries.forget(key.clone());
            if !entries.stale.contains(key) {
                return Ok(());
            }
        }
        let writing = self.writing.lock();
        self.write_files()?;
        drop(writing);
        files::sync_dir(&self.dir)
    }

    /// Rewrites the files. Takes the current offsets of the logs in `partitions` that are open and not deleted; the
    /// others keep their entries.
    ///
    /// # Errors
    /// [`io::Error`] if a file cannot be written.
    pub fn write(&self, partitions: &[Arc<Replica>]) -> io::Result<()> {
        let _writing = self.writing.lock();
        let noted: Vec<_> = noted(partitions).collect();
        {
            let mut entries = self.entries.lock();
            for (partition, Noted { recovery_point, log_start, .. }) in noted {
                // A deletion sets `leaving` before it calls `forget`, so no forgotten entry comes back.
                if !partition.phase().is_leaving() {
                    entries.recovery_points.insert(partition.key(), recovery_point);
                    entries.log_starts.insert(partition.key(), log_start);
                }
            }
        }
        self.write_files()
    }

    /// Writes the entries to the files. The caller holds `writing`.
    fn write_files(&self) -> io::Result<()> {
        let (recovery_points, log_starts, unrecovered, stale) = {
            let entries = self.entries.lock();
            let unrecovered = entries.unrecovered.clone();
            (entries.recovery_points.clone(), entries.log_starts.clone(), unrecovered, entries.stale.clone())
        };
        files::write_offsets(&self.dir.join(RECOVERY_POINTS), &recovery_points)?;
        files::write_offsets(&self.dir.join(LOG_STARTS), &log_starts)?;
        if !stale.is_empty() {
            let high_watermarks = self.entries.lock().high_watermarks.clone();
            files::write_offsets(&self.dir.join(HIGH_WATERMARKS), &high_watermarks)?;
            files::write_offsets(&self.dir.join(UNRECOVERED), &unrecovered)?;
            self.entries.lock().stale.retain(|key| !stale.contains(key));
        }
        Ok(())
    }

    /// Writes the checkpoints of one truncated partition, with its high watermark.
    ///
    /// # Errors
    /// [`io::Error`] if a file cannot be written.
    pub fn write_of(&self, partition: &Replica) -> io::Result<()> {
        let _writing = self.writing.lock();
        let Some(noted) = partition.noted() else { return Ok(()) };
        let (recovery_points, log_starts, high_watermarks) = {
            let mut entries = self.entries.lock();
            if partition.phase().is_leaving() {
                return Ok(());
            }
            entries.recovery_points.insert(partition.key(), noted.recovery_point);
            entries.log_starts.insert(partition.key(), noted.log_start);
            entries.high_watermarks.insert(partition.key(), noted.high_watermark);
            (entries.recovery_points.clone(), entries.log_starts.clone(), entries.high_watermarks.clone())
        };
        files::write_offsets(&self.dir.join(RECOVERY_POINTS), &recovery_points)?;
        files::write_offsets(&self.dir.join(LOG_STARTS), &log_starts)?;
        files::write_offsets(&self.dir.join(HIGH_WATERMARKS), &high_watermarks)
    }

    /// Lowers the partition's recovery point to `log_end`, because the disk has no record after it. With the old
    /// recovery point, a recovery would later take new records for flushed ones.
    ///
    /// # Errors
    /// [`io::Error`] if the write fails, unless the disk is full: the next checkpoint then writes the lower recovery
    /// point.
    pub fn lower(&self, key: &TopicPartition, log_end: i64) -> io::Result<()> {
        let _writing = self.writing.lock();
        let mut recovery_points = {
            let entries = self.entries.lock();
            if entries.recovery_points.get(key).is_none_or(|point| *point <= log_end) {
                return Ok(());
            }
            entries.recovery_points.clone()
        };
        recovery_points.insert(key.clone(), log_end);
        let write = || files::write_offsets(&self.dir.join(RECOVERY_POINTS), &recovery_points);
        self.space.freeing(is_full, write).or_else(|error| if is_full(&error) { Ok(()) } else { Err(error) })?;
        // `writing` excludes other writers, but a deletion may have removed the partition's entry since the check
        // above.
        let mut entries = self.entries.lock();
        entries.recovery_points.entry(key.clone()).and_modify(|point| *point = log_end.min(*point));
        Ok(())
    }

    /// Writes the log starts of `partitions` to the disk.
    ///
    /// # Errors
    /// [`io::Error`] if the file cannot be written.
    pub fn keep_log_starts(&self, partitions: &[Arc<Replica>]) -> io::Result<()> {
        let _writing = self.writing.lock();
        let noted: Vec<_> = noted(partitions).collect();
        let log_starts = {
            let mut entries = self.entries.lock();
            let in_use = noted.into_iter().filter(|(partition, _)| !partition.phase().is_leaving());
            in_use.for_each(|(partition, noted)| _ = entries.log_starts.insert(partition.key(), noted.log_start));
            entries.log_starts.clone()
        };
        self.space.freeing(is_full, || files::write_offsets(&self.dir.join(LOG_STARTS), &log_starts))?;
        files::sync_dir(&self.dir)
    }

    /// Removes recovered partitions from the list of unrecovered ones.
    ///
    /// # Errors
    /// [`io::Error`] if the write fails. The next call repeats it.
    pub fn forget_recovered(&self) -> io::Result<()> {
        let recovered = self.entries.lock().recovered.clone();
        if recovered.is_empty() {
            return Ok(());
        }
        let _writing = self.writing.lock();
        let mut left = self.entries.lock().unrecovered.clone();
        left.retain(|key, _| !recovered.contains(key));
        files::write_offsets(&self.dir.join(UNRECOVERED), &left)?;
        let mut entries = self.entries.lock();
        entries.unrecovered.retain(|key, _| !recovered.contains(key));
        entries.recovered.retain(|key| !recovered.contains(key));
        Ok(())
    }

    /// Writes the checkpoint files at a clean shutdown. The caller writes the clean-shutdown marker after them.
    /// `left` lists the logs that were open, `all` every partition with a directory.
    ///
    /// # Errors
    /// [`io::Error`] if a file cannot be written.
    pub fn finish(&self, left: Vec<CleanShutdown>, all: Vec<TopicPartition>) -> io::Result<()> {
        let _writing = self.writing.lock();
        let mut entries = self.entries.lock();
        let mut unrecovered = std::mem::take(&mut entries.unrecovered);
        if !entries.clean {
            all.into_iter().for_each(|key| _ = unrecovered.entry(key).or_insert(KILLED));
        }
        for CleanShutdown { key, log_start, finished } in left {
            entries.log_starts.insert(key.clone(), log_start);
            match finished {
                Some(log_end) => {
                    entries.recovery_points.insert(key.clone(), log_end);
                    unrecovered.remove(&key);
                }
                None => _ = unrecovered.insert(key, KILLED),
            }
        }
        let written = [
            (RECOVERY_POINTS, &entries.recovery_points),
            (LOG_STARTS, &entries.log_starts),
            (UNRECOVERED, &unrecovered),
        ];
        // On a full disk the reserve is freed, so that this shutdown, too, is clean.
        written.into_iter().try_for_each(|(name, offsets)| {
            self.space.freeing(is_full, || files::write_offsets(&self.dir.join(name), offsets))
        })
    }
}

/// Returns the current offsets of the open partitions among `partitions`.
fn noted(partitions: &[Arc<Replica>]) -> impl Iterator<Item = (&Replica, Noted)> {
    partitions.iter().filter_map(|partition| Some((partition.as_ref(), partition.noted()?)))
}

impl Entries {
    fn read(dir: &Path) -> Entries {
        let log_starts = files::read_offsets(&dir.join(LOG_STARTS));
        let recovery_points = files::read_offsets(&dir.join(RECOVERY_POINTS));
        let unrecovered = files::read_offsets(&dir.join(UNRECOVERED));
        Entries {
            // The marker counts only if the list of unrecovered partitions can be read. A shutdown writes that list
            // first.
            clean: dir.join(CLEAN_SHUTDOWN).exists() && unrecovered.is_some(),
            // Without the file, no record was ever checkpointed as flushed.
            knows_flushed: recovery_points.is_some() || !dir.join(RECOVERY_POINTS).exists(),
            recovery_points: recovery_points.unwrap_or_default(),
            knows_log_starts: log_starts.is_some(),
            log_starts: log_starts.unwrap_or_default(),
            high_watermarks: files::read_offsets(&dir.join(HIGH_WATERMARKS)).unwrap_or_default(),
            has_moved: false,
            unrecovered: unrecovered.unwrap_or_default(),
            recovered: HashSet::new(),
            stale: HashSet::new(),
        }
    }

    /// Notes the machine's boot when the broker starts. If the last run crashed and the machine has booted since then,
    /// a power loss may have damaged every partition: marks all of them. Writes their list before the boot. A kill
    /// between the two writes then only repeats the marking.
    fn note_boot(&mut self, dir: &Path) -> io::Result<()> {
        let boots = Boots::look(dir);
        let before = self.unrecovered.clone();
        if !self.knows_flushed {
            self.unrecovered.values_mut().for_each(|since| *since = KILLED);
        } else if !self.clean && boots.differ() {
            // `KILLED` stays: a clean shutdown after that kill has flushed every record, so the power loss took none of
            // them.
            let since = |key: &_| if before.get(key) == Some(&KILLED) { KILLED } else { REBOOTED };
            self.unrecovered = files::list_partitions(dir)?.into_iter().map(|key| (key.clone(), since(&key))).collect();
        }
        if self.unrecovered != before {
            files::write_offsets(&dir.join(UNRECOVERED), &self.unrecovered)?;
        }
        boots.keep(dir)
    }

    fn forget(&mut self, key: TopicPartition) {
        let had_high_watermark = self.high_watermarks.remove(&key).is_some();
        let was_known = [
            self.recovery_points.remove(&key).is_some(),
            self.log_starts.remove(&key).is_some(),
            self.unrecovered.remove(&key).is_some(),
            had_high_watermark,
        ];
        self.has_moved |= had_high_watermark;
        self.recovered.remove(&key);
        if was_known.contains(&true) {
            self.stale.insert(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use fullbore_wire::Uuid;
    use fullbore_wire::batch::{BatchBuilder, Compression, Stamp};

    use super::*;
    use crate::partitions::{Acks, AppendTerms, Origin, Partitions, led_by};
    use fullbore_config::{BrokerConfig, Properties};
    use fullbore_log::validation::ValidBatch;

    fn key(topic: &str) -> TopicPartition {
        (topic.to_owned(), 0)
    }

    #[test]
    fn high_watermark_of_a_deleted_partition_is_out_of_its_file_after_the_next_write() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let dir: Arc<Path> = folder.path().into();
        let offsets = OffsetsByPartition::from([(key("kept"), 7), (key("deleted"), 9)]);
        files::write_offsets(&dir.join(HIGH_WATERMARKS), &offsets).expect("written");
        let checkpoints = Checkpoints::read(&dir, Arc::new(DiskSpace::open(&dir, 0)));
        checkpoints.forget(key("deleted"));
        checkpoints.write_high_watermarks(&[]).expect("written");
        let left = files::read_offsets(&dir.join(HIGH_WATERMARKS)).expect("there");
        assert_eq!(left, OffsetsByPartition::from([(key("kept"), 7)]));
    }

    #[test]
    fn deleted_partition_is_purged_from_the_files_before_the_next_of_its_name_has_a_directory() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let dir: Arc<Path> = folder.path().into();
        let offsets = OffsetsByPartition::from([(key("kept"), 7), (key("deleted"), 9)]);
        for name in [RECOVERY_POINTS, LOG_STARTS, UNRECOVERED] {
            files::write_offsets(&dir.join(name), &offsets).expect("written");
        }
        let in_file =
            |name: &str, of: &str| files::read_offsets(&dir.join(name)).expect("there").get(&key(of)).copied();

        let checkpoints = Checkpoints::read(&dir, Arc::new(DiskSpace::open(&dir, 0)));
        checkpoints.forget(key("deleted"));
        checkpoints.purge(&key("another")).expect("nothing to do");
        assert_eq!(in_file(RECOVERY_POINTS, "deleted"), Some(9), "nobody has asked yet");
        checkpoints.write(&[]).expect("written");
        for name in [RECOVERY_POINTS, LOG_STARTS, UNRECOVERED] {
            assert_eq!((in_file(name, "deleted"), in_file(name, "kept").is_some()), (None, true), "{name}");
        }

        // State after a kill between a deletion and the next write of the files.
        for name in [RECOVERY_POINTS, LOG_STARTS] {
            files::write_offsets(&dir.join(name), &offsets).expect("written");
        }
        let checkpoints = Checkpoints::read(&dir, Arc::new(DiskSpace::open(&dir, 0)));
        checkpoints.purge(&key("deleted")).expect("written");
        assert_eq!((in_file(RECOVERY_POINTS, "deleted"), in_file(LOG_STARTS, "deleted")), (None, None));
        assert_eq!(checkpoints.known(&key("deleted")).recovery_point, 0);
        assert_eq!(checkpoints.known(&key("kept")).recovery_point, 7);
    }

    #[test]
    fn high_watermarks_that_could_not_be_written_are_written_the_next_time() {
        let (broker, _) = BrokerConfig::from_properties(&Properties::default()).expect("valid");
        let folder = tempfile::tempdir().expect("temporary folder");
        let logs = Partitions::open(folder.path(), &broker).expect("opened");
        logs.put_topic(("t", Uuid([1; 16])), &led_by(1, 1), &Arc::new(broker.topics.defaults), Origin::New);
        let partition = logs.find(&Uuid([1; 16]), 0).expect("it has just been told of");
        let mut builder = BatchBuilder::new(Default::default(), Compression::None, None);
        builder.append(0, None, Some(b"v"), &[]);
        let (bytes, _) = builder.seal(Stamp::NONE).expect("sealed");
        let _ =
            partition.append(&ValidBatch::unchecked(&bytes), AppendTerms::in_turn(Acks::Leader, 0)).expect("appended");

        let beside = tempfile::tempdir().expect("temporary folder");
        let dir: Arc<Path> = beside.path().into();
        let checkpoints = Checkpoints::read(&dir, Arc::new(DiskSpace::open(&dir, 0)));
        std::fs::create_dir(dir.join(HIGH_WATERMARKS)).expect("made");
        let partitions = [partition];
        checkpoints.write_high_watermarks(&partitions).expect_err("a folder has the name");
        std::fs::remove_dir(dir.join(HIGH_WATERMARKS)).expect("removed");
        checkpoints.write_high_watermarks(&partitions).expect("written");
        let found = files::read_offsets(&dir.join(HIGH_WATERMARKS)).expect("there");
        assert_eq!(found, OffsetsByPartition::from([(key("t"), 1)]));
        logs.close();
    }
}
