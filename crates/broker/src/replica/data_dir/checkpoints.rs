//! The checkpoint files of a data directory. They contain, for each log, the offsets that the broker needs before it
//! opens the log.
//!
//! [`fullbore_log::files`] defines the file formats. As in Kafka, the key of an entry is the topic's name and the
//! partition's number, and a new topic may reuse a name. So the entries of a deleted partition are removed from the
//! files before the next partition with the same name creates its directory ([`Checkpoints::purge`]).
//!
//! Locks: a writer holds `writing` while it collects the offsets and writes them, so that an old log start never
//! replaces a newer one. Meanwhile the writer locks partitions, so a thread that has locked a partition must not take
//! `writing`. The thread that applies metadata takes `entries` and must not block. So no thread holds `entries` during
//! a blocking call, except `finish` at shutdown.

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

/// The topic's name and the partition's number.
pub type TopicPartition = (String, i32);

/// Mark of an unrecovered partition if the machine was not booted since the crash.
const KILLED: i64 = 0;
/// Mark of an unrecovered partition if the machine was booted after the crash.
const REBOOTED: i64 = 1;

/// The checkpoint files and their contents.
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
    /// True if the file of recovery points was read, or does not exist. If false, the broker does not know which
    /// records were flushed.
    knows_flushed: bool,
    log_starts: OffsetsByPartition,
    high_watermarks: OffsetsByPartition,
    /// True if a high watermark has changed since the file was written.
    has_moved: bool,
    /// True if the file of log starts was read. A log whose partition is missing from the file begins with its first
    /// segment.
    knows_log_starts: bool,
    /// Partitions whose logs were not opened since a crash, even if the broker was shut down cleanly after it. The
    /// value is [`REBOOTED`] or [`KILLED`].
    unrecovered: OffsetsByPartition,
    /// The partitions of `unrecovered` that this process has opened.
    recovered: HashSet<TopicPartition>,
    /// Deleted partitions whose entries are still in the files.
    stale: HashSet<TopicPartition>,
}

/// The checkpointed offsets of an open log.
#[derive(Debug, Clone, Copy)]
pub struct Noted {
    pub recovery_point: i64,
    pub log_start: i64,
    pub high_watermark: i64,
}

/// The state of one log at a clean shutdown.
#[derive(Debug)]
pub struct CleanShutdown {
    pub key: TopicPartition,
    pub log_start: i64,
    /// The end of the log, or `None` if its files may lack records.
    pub finished: Option<i64>,
}

impl Checkpoints {
    /// Reads the checkpoint files of a data directory, and stores the id of the machine's current boot in the
    /// directory.
    pub fn read(dir: &Arc<Path>, space: Arc<DiskSpace>) -> Checkpoints {
        let mut entries = Entries::read(dir);
        if let Err(error) = entries.note_boot(dir) {
            // Start even if the boot id cannot be stored, for example on a full disk. The next start will then assume
            // that the machine was booted in between.
            space.note(&error);
            tracing::error!(dir = %dir.display(), %error, "cannot record the machine's boot in the data directory: after an unclean end, the next start recovers logs as after a power loss; check the disk and the directory's permissions");
        }
        Checkpoints { dir: dir.clone(), space, entries: Mutex::new(entries), writing: Mutex::default() }
    }

    /// Returns the checkpointed offsets of a partition, for its recovery.
    pub fn known(&self, key: &TopicPartition) -> RecoveryHint {
        let entries = self.entries.lock();
        RecoveryHint {
            clean: entries.clean && !entries.unrecovered.contains_key(key),
            recovery_point: entries.recovery_points.get(key).copied().unwrap_or(0),
            log_start: entries.knows_log_starts.then(|| entries.log_starts.get(key).copied().unwrap_or(0)),
            rebooted: entries.unrecovered.get(key) == Some(&REBOOTED),
            may_have_gaps: false,
            others_are_complete: false,
        }
    }

    /// Returns the checkpointed high watermark of a partition, or 0 if there is none.
    pub fn high_watermark(&self, key: &TopicPartition) -> i64 {
        self.entries.lock().high_watermarks.get(key).copied().unwrap_or(0)
    }

    /// Writes the high watermarks of the open logs in `partitions`. Does nothing if none has changed since the last
    /// write.
    ///
    /// # Errors
    /// Fails with an I/O error if the files cannot be written.
    pub fn write_high_watermarks(&self, partitions: &[Arc<Replica>]) -> io::Result<()> {
        let _writing = self.writing.lock();
        let noted: Vec<_> = noted(partitions).collect();
        let high_watermarks = {
            let mut entries = self.entries.lock();
            for (partition, Noted { high_watermark, .. }) in noted {
                // A deletion first sets `leaving` and then calls `forget`. So if `leaving` is not set yet, `forget`
                // will remove this entry later.
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
        // No fsync is needed: if the write is lost, the file has an older high watermark, which is lower and still
        // valid.
        self.space.check_place()?;
        files::write_offsets_unsynced(&self.dir.join(HIGH_WATERMARKS), &high_watermarks)?;
        self.entries.lock().has_moved = false;
        Ok(())
    }

    /// Records that the partition's log was opened after the crash. [`Checkpoints::forget_recovered`] later removes the
    /// partition from the list of unrecovered partitions.
    pub fn note_recovered(&self, key: TopicPartition) {
        let mut entries = self.entries.lock();
        if entries.unrecovered.contains_key(&key) {
            entries.recovered.insert(key);
        }
    }

    /// Removes the entries of a deleted partition from memory. They stay in the files until the next write.
    pub fn forget(&self, key: TopicPartition) {
        self.entries.lock().forget(key);
    }

    /// Removes the entries of a deleted partition from the files. Must be called before a new partition with the same
    /// name creates its directory.
    ///
    /// # Errors
    /// Fails with an I/O error if the files cannot be written. In that case the caller must not create the directory.
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

    /// Writes the files, with the current offsets of the logs in `partitions` that are open and not deleted. All other
    /// partitions keep their entries.
    ///
    /// # Errors
    /// Fails with an I/O error if the files cannot be written.
    pub fn write(&self, partitions: &[Arc<Replica>]) -> io::Result<()> {
        let _writing = self.writing.lock();
        let noted: Vec<_> = noted(partitions).collect();
        {
            let mut entries = self.entries.lock();
            for (partition, Noted { recovery_point, log_start, .. }) in noted {
                // A deletion first sets `leaving` and then calls `forget`. So if `leaving` is not set yet, `forget`
                // will remove this entry later.
                if !partition.phase().is_leaving() {
                    entries.recovery_points.insert(partition.key(), recovery_point);
                    entries.log_starts.insert(partition.key(), log_start);
                }
            }
        }
        self.write_files()
    }

    /// Writes one of the files. Fails if another directory has replaced the data directory at its path.
    fn put(&self, name: &str, offsets: &OffsetsByPartition) -> io::Result<()> {
        self.space.check_place()?;
        files::write_offsets(&self.dir.join(name), offsets)
    }

    /// Writes the entries to the files. The caller must hold `writing`.
    fn write_files(&self) -> io::Result<()> {
        let (recovery_points, log_starts, unrecovered, stale) = {
            let entries = self.entries.lock();
            let unrecovered = entries.unrecovered.clone();
            (entries.recovery_points.clone(), entries.log_starts.clone(), unrecovered, entries.stale.clone())
        };
        self.put(RECOVERY_POINTS, &recovery_points)?;
        self.put(LOG_STARTS, &log_starts)?;
        if !stale.is_empty() {
            let high_watermarks = self.entries.lock().high_watermarks.clone();
            self.put(HIGH_WATERMARKS, &high_watermarks)?;
            self.put(UNRECOVERED, &unrecovered)?;
            self.entries.lock().stale.retain(|key| !stale.contains(key));
        }
        Ok(())
    }

    /// Writes the checkpoints of a partition that was truncated, including its high watermark.
    ///
    /// # Errors
    /// Fails with an I/O error if the files cannot be written.
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
        self.put(RECOVERY_POINTS, &recovery_points)?;
        self.put(LOG_STARTS, &log_starts)?;
        self.put(HIGH_WATERMARKS, &high_watermarks)
    }

    /// Lowers the partition's recovery point to `log_end` if it is higher. Otherwise a later recovery would assume that
    /// new records after `log_end` were flushed.
    ///
    /// # Errors
    /// Fails with an I/O error if the file cannot be written. Does not fail on a full disk, because the next checkpoint
    /// will write the lower recovery point.
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
        let write = || self.put(RECOVERY_POINTS, &recovery_points);
        self.space.freeing(is_full, write).or_else(|error| if is_full(&error) { Ok(()) } else { Err(error) })?;
        // Lower only an existing entry. Do not restore an entry that a deletion has removed during the write.
        let mut entries = self.entries.lock();
        entries.recovery_points.entry(key.clone()).and_modify(|point| *point = log_end.min(*point));
        Ok(())
    }

    /// Writes the log starts of `partitions` to the disk.
    ///
    /// # Errors
    /// Fails with an I/O error if the files cannot be written.
    pub fn keep_log_starts(&self, partitions: &[Arc<Replica>]) -> io::Result<()> {
        let _writing = self.writing.lock();
        let noted: Vec<_> = noted(partitions).collect();
        let log_starts = {
            let mut entries = self.entries.lock();
            let in_use = noted.into_iter().filter(|(partition, _)| !partition.phase().is_leaving());
            in_use.for_each(|(partition, noted)| _ = entries.log_starts.insert(partition.key(), noted.log_start));
            entries.log_starts.clone()
        };
        self.space.freeing(is_full, || self.put(LOG_STARTS, &log_starts))?;
        files::sync_dir(&self.dir)
    }

    /// Removes recovered partitions from the list of unrecovered ones.
    ///
    /// # Errors
    /// Fails with an I/O error if the list cannot be written. The next call tries again.
    pub fn forget_recovered(&self) -> io::Result<()> {
        let recovered = self.entries.lock().recovered.clone();
        if recovered.is_empty() {
            return Ok(());
        }
        let _writing = self.writing.lock();
        let mut left = self.entries.lock().unrecovered.clone();
        left.retain(|key, _| !recovered.contains(key));
        self.put(UNRECOVERED, &left)?;
        let mut entries = self.entries.lock();
        entries.unrecovered.retain(|key, _| !recovered.contains(key));
        entries.recovered.retain(|key| !recovered.contains(key));
        Ok(())
    }

    /// Writes the checkpoint files at a clean shutdown. The caller writes the clean-shutdown marker afterwards. `left`
    /// contains the logs that were open. `all` contains every partition that has a directory.
    ///
    /// # Errors
    /// Fails with an I/O error if the files cannot be written.
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
        // On a full disk, use the disk reserve, so that the shutdown is still clean.
        written.into_iter().try_for_each(|(name, offsets)| self.space.freeing(is_full, || self.put(name, offsets)))
    }
}

/// Returns the current offsets of the partitions that are open.
fn noted(partitions: &[Arc<Replica>]) -> impl Iterator<Item = (&Replica, Noted)> {
    partitions.iter().filter_map(|partition| Some((partition.as_ref(), partition.noted()?)))
}

impl Entries {
    fn read(dir: &Path) -> Entries {
        let log_starts = files::read_offsets(&dir.join(LOG_STARTS));
        let recovery_points = files::read_offsets(&dir.join(RECOVERY_POINTS));
        let unrecovered = files::read_offsets(&dir.join(UNRECOVERED));
        Entries {
            // A clean shutdown writes the list of unrecovered partitions before its marker. If the list cannot be read,
            // ignore the marker.
            clean: dir.join(CLEAN_SHUTDOWN).exists() && unrecovered.is_some(),
            // If the file does not exist, no flush was ever recorded, so no record counts as flushed.
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

    /// Checks at the broker's start whether the machine was booted since the last run. If it was, and the last run
    /// crashed, marks every partition [`REBOOTED`], because a power loss may have damaged it. If the recovery points
    /// cannot be read, marks no further partitions, and changes the existing marks to [`KILLED`]. Writes the list of
    /// marked partitions before the id of the new boot. If the broker is killed between the two writes, the next start
    /// marks the partitions again.
    fn note_boot(&mut self, dir: &Path) -> io::Result<()> {
        let boots = Boots::look(dir);
        let before = self.unrecovered.clone();
        if !self.knows_flushed {
            self.unrecovered.values_mut().for_each(|since| *since = KILLED);
        } else if !self.clean && boots.differ() {
            // Partitions marked with `KILLED` keep that mark. After the kill, a clean shutdown has flushed all records,
            // so the power loss has not damaged them.
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
    use fullbore_tests::Batch;
    use fullbore_wire::Uuid;

    use super::*;
    use crate::partitions::{Acks, AppendTerms, Origin, Partitions, led_by};
    use fullbore_config::{BrokerConfig, Properties};
    use fullbore_log::validation::ValidBatch;

    fn key(topic: &str) -> TopicPartition {
        (topic.to_owned(), 0)
    }

    #[test]
    fn high_watermark_of_a_deleted_partition_is_out_of_its_file_after_the_next_write() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let dir: Arc<Path> = directory.path().into();
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
        let directory = tempfile::tempdir().expect("temporary directory");
        let dir: Arc<Path> = directory.path().into();
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

        // The entries are in this state if the broker was killed between a deletion and the next write of the files.
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
        let directory = tempfile::tempdir().expect("temporary directory");
        let logs = Partitions::open(directory.path(), &broker).expect("opened");
        logs.put_topic("t", Uuid([1; 16]), &led_by(1, 1), &Arc::new(broker.topics.defaults), Origin::New);
        let partition = logs.find(&Uuid([1; 16]), 0).expect("it has just been told of");
        let bytes = Batch::at(0, &["v"]).bytes();
        let _ =
            partition.append(&ValidBatch::unchecked(&bytes), AppendTerms::in_turn(Acks::Leader, 0)).expect("appended");

        let beside = tempfile::tempdir().expect("temporary directory");
        let dir: Arc<Path> = beside.path().into();
        let checkpoints = Checkpoints::read(&dir, Arc::new(DiskSpace::open(&dir, 0)));
        std::fs::create_dir(dir.join(HIGH_WATERMARKS)).expect("made");
        let partitions = [partition];
        checkpoints.write_high_watermarks(&partitions).expect_err("a directory has the name");
        std::fs::remove_dir(dir.join(HIGH_WATERMARKS)).expect("removed");
        checkpoints.write_high_watermarks(&partitions).expect("written");
        let found = files::read_offsets(&dir.join(HIGH_WATERMARKS)).expect("there");
        assert_eq!(found, OffsetsByPartition::from([(key("t"), 1)]));
        logs.close();
    }
}
