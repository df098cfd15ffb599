//! State of compaction of each partition: the offset up to which it is compacted, a cleaning under way, or a log that
//! cannot be cleaned. The state may exist while the partition has no directory.
//!
//! Not here: the threads that compact ([`crate::partitions::cleaner`]).
//!
//! Locks: a partition's lock may be held when `tracking` is taken, never the other way round.
//!
//! Invariant: one thread at a time cleans a log, and the checkpoint never passes the end of the clean part.

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

/// Outcome of a cleaning.
#[derive(Debug, Clone, Copy)]
pub enum Ending {
    /// Log that is clean up to this offset.
    CleanTo(i64),
    /// Log that is not cleaned before this time; with `None`, not before the broker's next start.
    Uncleanable(Option<Instant>),
}

/// Cleanings of one data directory.
#[derive(Debug)]
pub struct Cleanings {
    checkpoint_path: PathBuf,
    space: Arc<DiskSpace>,
    tracking: Mutex<Tracking>,
    /// Notified when a cleaning has ended.
    left: Condvar,
    stopping: Mutex<bool>,
    /// Notified when the cleaner stops or a partition is leaving.
    stop: Condvar,
}

#[derive(Debug)]
struct Tracking {
    checkpoints: OffsetsByPartition,
    /// True if the checkpoints differ from the file, after a failed write.
    is_unsaved: bool,
    in_progress: HashMap<TopicPartition, InProgress>,
    /// Logs that cannot be cleaned, with the time of the next try; `None` is the broker's next start.
    uncleanable: HashMap<TopicPartition, Option<Instant>>,
}

#[derive(Debug, Clone, Copy)]
struct InProgress {
    topic_id: Uuid,
    /// Lowest offset to which the log was truncated during the cleaning.
    cut_to: i64,
}

impl Cleanings {
    /// Reads the checkpoint of a data directory.
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

    /// Requests all cleanings to end.
    pub fn stop(&self) {
        *self.stopping.lock() = true;
        self.stop.notify_all();
    }

    /// Waits for `pause`, or until `over` returns true or the cleaner stops. Returns true if the cleaner stops.
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

    /// Marks the partition as being cleaned. Returns false if a cleaning is under way already, or the partition is
    /// leaving.
    pub fn begin(&self, key: TopicPartition, topic_id: Uuid, partition: &Replica) -> bool {
        let mut tracking = self.tracking.lock();
        match tracking.in_progress.entry(key) {
            // A deletion sets `leaving` before it calls `wait_until_left`, which then finds this entry.
            Entry::Vacant(place) if !partition.phase().is_leaving() => {
                place.insert(InProgress { topic_id, cut_to: i64::MAX });
                true
            }
            _ => false,
        }
    }

    /// Returns the offset up to which the partition is clean; `None` if that is unknown.
    pub fn checkpoint(&self, key: &TopicPartition) -> Option<i64> {
        self.tracking.lock().checkpoints.get(key).copied()
    }

    /// Returns true if the partition is being cleaned.
    pub fn is_under_way(&self, key: &TopicPartition) -> bool {
        self.tracking.lock().in_progress.contains_key(key)
    }

    /// Returns the checkpoint, `Some(None)` if there is none yet; `None` if the partition is being cleaned or cannot be
    /// cleaned now.
    pub fn checkpoint_if_free(&self, key: &TopicPartition) -> Option<Option<i64>> {
        let mut tracking = self.tracking.lock();
        match tracking.uncleanable.get(key) {
            Some(Some(until)) if *until <= Instant::now() => drop(tracking.uncleanable.remove(key)),
            Some(_) => return None,
            None => {}
        }
        (!tracking.in_progress.contains_key(key)).then(|| tracking.checkpoints.get(key).copied())
    }

    /// Ends a cleaning. Records `ending`, unless `has_gone` returns true because the partition is deleted.
    pub fn ended(&self, key: TopicPartition, has_gone: impl FnOnce() -> bool, ending: Option<Ending>) {
        let mut tracking = self.tracking.lock();
        let cut_to = tracking.in_progress.remove(&key).map_or(i64::MAX, |cleaning| cleaning.cut_to);
        self.left.notify_all();
        // A deletion removes the log before it calls `forget`. If the log is gone, `forget` may have run already, and
        // an entry would be the next topic's. Otherwise `forget` runs later and removes the entry.
        if has_gone() {
            return;
        }
        match ending {
            Some(Ending::CleanTo(offset)) => {
                tracking.checkpoints.insert(key, offset.min(cut_to));
                self.tell(self.save(&mut tracking));
            }
            Some(Ending::Uncleanable(until)) => _ = tracking.uncleanable.insert(key, until),
            None => {}
        }
    }

    fn save(&self, tracking: &mut Tracking) -> io::Result<()> {
        tracking.is_unsaved = true;
        files::write_offsets(&self.checkpoint_path, &tracking.checkpoints)?;
        tracking.is_unsaved = false;
        Ok(())
    }

    fn tell(&self, saved: io::Result<()>) {
        if let Err(error) = saved
            && !self.space.note(&error)
        {
            tracing::error!(path = %self.checkpoint_path.display(), %error, "cannot write the compaction checkpoint: logs may be compacted again after a restart; check the disk and the file's permissions");
        }
    }

    /// Lowers the checkpoint to `log_end` after a truncation, because records that are appended after `log_end` are
    /// dirty.
    pub fn cut_off(&self, key: &TopicPartition, log_end: i64) {
        let mut tracking = self.tracking.lock();
        if let Some(cleaning) = tracking.in_progress.get_mut(key) {
            cleaning.cut_to = cleaning.cut_to.min(log_end);
        }
        if let Some(checkpoint) = tracking.checkpoints.get_mut(key).filter(|checkpoint| **checkpoint > log_end) {
            *checkpoint = log_end;
            self.tell(self.save(&mut tracking));
        }
    }

    /// Removes the entries of a deleted partition.
    pub fn forget(&self, key: &TopicPartition) {
        self.tell(self.purge(key));
    }

    /// Removes a deleted partition's entry from the file. Call it before a new partition of the name creates its
    /// directory. With the old checkpoint, new records would count as clean. A cleaning could then remove a tombstone
    /// before the older value of its key, which would come back.
    ///
    /// # Errors
    /// [`io::Error`] if the file cannot be written. The caller must then not create the directory.
    pub fn purge(&self, key: &TopicPartition) -> io::Result<()> {
        let mut tracking = self.tracking.lock();
        tracking.uncleanable.remove(key);
        let was_known = tracking.checkpoints.remove(key).is_some();
        if was_known || tracking.is_unsaved { self.save(&mut tracking) } else { Ok(()) }
    }

    /// Waits until no thread compacts a partition that is leaving. A cleaning writes files by name, and the next topic
    /// of the name may use the same names.
    pub fn wait_until_left(&self, key: &TopicPartition, topic_id: Uuid) {
        {
            // `stopping` is locked here. Otherwise a `pause` that has checked `over` and does not wait yet would miss
            // the notification.
            let _stopping = self.stopping.lock();
            self.stop.notify_all();
        }
        let mut tracking = self.tracking.lock();
        while tracking.in_progress.get(key).is_some_and(|cleaning| cleaning.topic_id == topic_id) {
            self.left.wait(&mut tracking);
        }
    }

    /// Returns the number of partitions that are not cleaned because a cleaning has failed.
    pub fn uncleanable_partitions(&self) -> usize {
        self.tracking.lock().uncleanable.len()
    }
}
