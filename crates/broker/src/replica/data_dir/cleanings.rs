//! The state of compaction of each partition: up to which offset its log is clean, whether it is being cleaned now, and
//! whether it cannot be cleaned. A partition may have this state even if it has no directory.
//!
//! The threads that compact logs are in [`crate::partitions::cleaner`].
//!
//! Locks: a thread that has locked a partition may lock `tracking`. A thread that has locked `tracking` must not lock a
//! partition.
//!
//! Invariant: only one thread at a time cleans a log, and the checkpoint never lies beyond the clean part of the log.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fullbore_wire::Uuid;
use parking_lot::{Condvar, Mutex};

use super::checkpoints::TopicPartition;
use crate::replica::Replica;
use fullbore_host::disk_space::DiskSpace;
use fullbore_log::files::{self, CLEANER_OFFSETS, OffsetsByPartition};

/// The outcome of a cleaning.
#[derive(Debug, Clone, Copy)]
pub enum Ending {
    /// The log is clean up to this offset.
    CleanTo(i64),
    /// The log must not be cleaned again before this time. `None`: not before the broker restarts.
    Uncleanable(Option<Instant>),
}

/// The state of compaction of all partitions in a data directory.
#[derive(Debug)]
pub struct Cleanings {
    checkpoint_path: PathBuf,
    space: Arc<DiskSpace>,
    tracking: Mutex<Tracking>,
    /// Notified when a cleaning ends.
    left: Condvar,
    stopping: Mutex<bool>,
    /// Notified when the cleaner stops, and when a partition is being deleted.
    stop: Condvar,
}

#[derive(Debug)]
struct Tracking {
    checkpoints: OffsetsByPartition,
    /// True if the last write of the checkpoints failed, so that the file is outdated.
    is_unsaved: bool,
    in_progress: HashMap<TopicPartition, InProgress>,
    /// Logs that cannot be cleaned, with the time of the next try. `None`: no try before the broker restarts.
    uncleanable: HashMap<TopicPartition, Option<Instant>>,
}

#[derive(Debug, Clone, Copy)]
struct InProgress {
    topic_id: Uuid,
    /// The lowest offset to which the log was truncated while it was being cleaned.
    cut_to: i64,
}

impl Cleanings {
    /// Reads the checkpoint file of a data directory.
    pub fn read(data_dir: &Path, space: Arc<DiskSpace>) -> Cleanings {
        let checkpoint_path = data_dir.join(CLEANER_OFFSETS);
        let checkpoints = files::read_offsets(&checkpoint_path).unwrap_or_default();
        let tracking =
            Tracking { checkpoints, is_unsaved: false, in_progress: HashMap::new(), uncleanable: HashMap::new() };
        Cleanings {
            checkpoint_path,
            space,
            tracking: Mutex::new(tracking),
            left: Condvar::new(),
            stopping: Mutex::new(false),
            stop: Condvar::new(),
        }
    }

    /// Ends all cleanings early.
    pub fn stop(&self) {
        *self.stopping.lock() = true;
        self.stop.notify_all();
    }

    /// Waits for the duration `pause`. Returns early if `over` returns true or the cleaner stops. Returns true if the
    /// cleaner stops.
    pub fn pause(&self, pause: Duration, over: impl Fn() -> bool) -> bool {
        let mut stopping = self.stopping.lock();
        let until = Instant::now().checked_add(pause);
        while !*stopping && !over() {
            match until {
                Some(until) if self.stop.wait_until(&mut stopping, until).timed_out() => break,
                Some(_) => {}
                None => self.stop.wait(&mut stopping),
            }
        }
        *stopping
    }

    /// Marks the partition as being cleaned. Returns false if it is being cleaned already, or is being deleted.
    pub fn begin(&self, key: TopicPartition, topic_id: Uuid, partition: &Replica) -> bool {
        let mut tracking = self.tracking.lock();
        match tracking.in_progress.entry(key) {
            // A deletion sets `leaving` first and then calls `wait_until_left`, which will find this entry.
            Entry::Vacant(place) if !partition.phase().is_leaving() => {
                place.insert(InProgress { topic_id, cut_to: i64::MAX });
                true
            }
            _ => false,
        }
    }

    /// Returns the offset up to which the partition is clean, or `None` if that offset is unknown.
    pub fn checkpoint(&self, key: &TopicPartition) -> Option<i64> {
        self.tracking.lock().checkpoints.get(key).copied()
    }

    /// Returns true if the partition is being cleaned.
    pub fn is_under_way(&self, key: &TopicPartition) -> bool {
        self.tracking.lock().in_progress.contains_key(key)
    }

    /// Returns the partition's checkpoint, or `Some(None)` if it has no checkpoint yet. Returns `None` if the partition
    /// cannot be cleaned now, or is being cleaned.
    pub fn checkpoint_if_free(&self, key: &TopicPartition) -> Option<Option<i64>> {
        let mut tracking = self.tracking.lock();
        match tracking.uncleanable.get(key) {
            Some(Some(until)) if *until <= Instant::now() => drop(tracking.uncleanable.remove(key)),
            Some(_) => return None,
            None => {}
        }
        (!tracking.in_progress.contains_key(key)).then(|| tracking.checkpoints.get(key).copied())
    }

    /// Ends a cleaning and records its outcome. If `has_gone` returns true, the partition was deleted, and no outcome
    /// is recorded.
    pub fn ended(&self, key: TopicPartition, has_gone: impl FnOnce() -> bool, ending: Option<Ending>) {
        let mut tracking = self.tracking.lock();
        let cut_to = tracking.in_progress.remove(&key).map_or(i64::MAX, |cleaning| cleaning.cut_to);
        self.left.notify_all();
        // A deletion first removes the log and then calls `forget`. If the log is gone, `forget` may already have run,
        // and a new entry would affect the next topic with the same name. If the log still exists, `forget` will run
        // later and remove the entry.
        if has_gone() {
            return;
        }
        match ending {
            Some(Ending::CleanTo(offset)) => {
                tracking.checkpoints.insert(key, offset.min(cut_to));
                self.log_failure(self.save(&mut tracking));
            }
            Some(Ending::Uncleanable(until)) => _ = tracking.uncleanable.insert(key, until),
            None => {}
        }
    }

    fn save(&self, tracking: &mut Tracking) -> io::Result<()> {
        tracking.is_unsaved = true;
        self.space.check_place()?;
        files::write_offsets(&self.checkpoint_path, &tracking.checkpoints)?;
        tracking.is_unsaved = false;
        Ok(())
    }

    fn log_failure(&self, saved: io::Result<()>) {
        if let Err(error) = saved
            && !self.space.note(&error)
        {
            tracing::error!(path = %self.checkpoint_path.display(), %error, "cannot write the compaction checkpoint: logs may be compacted again after a restart; check the disk and the file's permissions");
        }
    }

    /// Lowers the checkpoint to `log_end` after a truncation, because records that are appended there later are not
    /// clean.
    pub fn cut_off(&self, key: &TopicPartition, log_end: i64) {
        let mut tracking = self.tracking.lock();
        if let Some(cleaning) = tracking.in_progress.get_mut(key) {
            cleaning.cut_to = cleaning.cut_to.min(log_end);
        }
        if let Some(checkpoint) = tracking.checkpoints.get_mut(key).filter(|checkpoint| **checkpoint > log_end) {
            *checkpoint = log_end;
            self.log_failure(self.save(&mut tracking));
        }
    }

    /// Removes all entries of a deleted partition.
    pub fn forget(&self, key: &TopicPartition) {
        self.log_failure(self.purge(key));
    }

    /// Removes a deleted partition from the checkpoint file. Must be called before a new partition with the same name
    /// creates its directory. Otherwise the new records would count as clean. A cleaning could then remove a tombstone
    /// before the older value of its key, and that value would be readable again.
    ///
    /// # Errors
    /// Fails with an I/O error if the file cannot be written. In that case the caller must not create the directory.
    pub fn purge(&self, key: &TopicPartition) -> io::Result<()> {
        let mut tracking = self.tracking.lock();
        tracking.uncleanable.remove(key);
        let was_known = tracking.checkpoints.remove(key).is_some();
        if was_known || tracking.is_unsaved { self.save(&mut tracking) } else { Ok(()) }
    }

    /// Waits until no thread compacts a deleted partition. A cleaning writes files by name, and the next topic with the
    /// same name may use these file names too.
    pub fn wait_until_left(&self, key: &TopicPartition, topic_id: Uuid) {
        {
            // Without this lock, the notification could be lost: a `pause` may have just called `over`, and not wait
            // yet.
            let _stopping = self.stopping.lock();
            self.stop.notify_all();
        }
        let mut tracking = self.tracking.lock();
        while tracking.in_progress.get(key).is_some_and(|cleaning| cleaning.topic_id == topic_id) {
            self.left.wait(&mut tracking);
        }
    }

    /// Returns the number of partitions that the cleaner skips because a cleaning has failed.
    pub fn uncleanable_partitions(&self) -> usize {
        self.tracking.lock().uncleanable.len()
    }
}
