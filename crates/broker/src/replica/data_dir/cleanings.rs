//! State of compaction of each partition: the offset up to which it is compacted, a cleaning under way, a log that
//! cannot be cleaned. It is there before the partition's directory is made, and after that goes.
//!
//! Not here: the threads that compact ([`crate::partitions::cleaner`]).
//!
//! Locks: `tracking` is never taken while a partition is locked; the other way round it may be.
//!
//! Invariant: one log is cleaned by one thread at a time, and the checkpoint never passes what is clean.

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
    /// The log is clean up to this offset.
    CleanTo(i64),
    /// The log is not cleaned until then; `None` is until the next start.
    Uncleanable(Option<Instant>),
}

/// The cleanings of one data folder.
#[derive(Debug)]
pub struct Cleanings {
    checkpoint_path: PathBuf,
    space: Arc<DiskSpace>,
    tracking: Mutex<Tracking>,
    /// Told when a cleaning has ended.
    left: Condvar,
    stopping: Mutex<bool>,
    /// Told when the cleaner stops, or a partition is to be left.
    stop: Condvar,
}

#[derive(Debug)]
struct Tracking {
    checkpoints: OffsetsByPartition,
    /// True if the file differs, since it could not be written.
    is_unsaved: bool,
    in_progress: HashMap<TopicPartition, InProgress>,
    /// With the time from which it is tried again; `None` is at the next start.
    uncleanable: HashMap<TopicPartition, Option<Instant>>,
}

#[derive(Debug, Clone, Copy)]
struct InProgress {
    topic_id: Uuid,
    /// The lowest end that the log was cut off at meanwhile.
    cut_to: i64,
}

impl Cleanings {
    /// Reads the checkpoint of a data folder.
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

    /// Makes cleanings give up.
    pub fn stop(&self) {
        *self.stopping.lock() = true;
        self.stop.notify_all();
    }

    /// Waits, unless it is `over`; whether the cleaner stops.
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

    /// Marks the partition as being cleaned, unless it is already or is leaving.
    pub fn begin(&self, key: TopicPartition, topic_id: Uuid, partition: &Replica) -> bool {
        let mut tracking = self.tracking.lock();
        match tracking.in_progress.entry(key) {
            // Who has it leave looks here afterwards.
            Entry::Vacant(place) if !partition.phase().is_leaving() => {
                place.insert(InProgress { topic_id, cut_to: i64::MAX });
                true
            }
            _ => false,
        }
    }

    /// Up to where the partition is clean, if that is known.
    pub fn checkpoint(&self, key: &TopicPartition) -> Option<i64> {
        self.tracking.lock().checkpoints.get(key).copied()
    }

    /// Returns true if the partition is being cleaned.
    pub fn is_under_way(&self, key: &TopicPartition) -> bool {
        self.tracking.lock().in_progress.contains_key(key)
    }

    /// `None` if the partition is being cleaned or cannot be; else its checkpoint, if it has one.
    pub fn checkpoint_if_free(&self, key: &TopicPartition) -> Option<Option<i64>> {
        let mut tracking = self.tracking.lock();
        match tracking.uncleanable.get(key) {
            Some(Some(until)) if *until <= Instant::now() => drop(tracking.uncleanable.remove(key)),
            Some(_) => return None,
            None => {}
        }
        (!tracking.in_progress.contains_key(key)).then(|| tracking.checkpoints.get(key).copied())
    }

    /// A cleaning has ended; `ending` is kept of it, unless the partition has gone meanwhile.
    pub fn ended(&self, key: TopicPartition, has_gone: impl FnOnce() -> bool, ending: Option<Ending>) {
        let mut tracking = self.tracking.lock();
        let cut_to = tracking.in_progress.remove(&key).map_or(i64::MAX, |cleaning| cleaning.cut_to);
        self.left.notify_all();
        // A deletion takes the log away first and then has it forgotten: that was before this, and nothing may be said
        // of the next topic of that name, or it comes after this.
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
            tracing::error!(path = %self.checkpoint_path.display(), %error, "checkpoint of compaction not written");
        }
    }

    /// The log ends at `log_end` now, as it was cut off: it is clean up to there at most, and what comes behind that is
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

    /// Forgets a deleted partition.
    pub fn forget(&self, key: &TopicPartition) {
        self.tell(self.purge(key));
    }

    /// To be called before a partition's folder is made: the file says nothing of an older one with its name when this
    /// returns. To be clean up to an offset is to have no older value of a key before it, which a removed tombstone
    /// would bring back.
    ///
    /// # Errors
    /// What the system says; the folder must not be made then.
    pub fn purge(&self, key: &TopicPartition) -> io::Result<()> {
        let mut tracking = self.tracking.lock();
        tracking.uncleanable.remove(key);
        let was_known = tracking.checkpoints.remove(key).is_some();
        if was_known || tracking.is_unsaved { self.save(&mut tracking) } else { Ok(()) }
    }

    /// Waits until no thread is at the files of a partition that is leaving: it writes by their
    /// names, which are the next topic's then.
    pub fn wait_until_left(&self, key: &TopicPartition, topic_id: Uuid) {
        {
            // With the lock, or a pause that has just looked would not be told.
            let _stopping = self.stopping.lock();
            self.stop.notify_all();
        }
        let mut tracking = self.tracking.lock();
        while tracking.in_progress.get(key).is_some_and(|cleaning| cleaning.topic_id == topic_id) {
            self.left.wait(&mut tracking);
        }
    }

    /// Partitions left alone because cleaning them has failed.
    pub fn uncleanable_partitions(&self) -> usize {
        self.tracking.lock().uncleanable.len()
    }
}
