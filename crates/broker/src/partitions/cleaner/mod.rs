//! The cleaner: threads that compact, one log at a time each, the dirtiest first (Kafka's `LogCleaner`).
//!
//! What it is not: the decisions, which are in `fullbore_rules::compaction`. `pick` looks how dirty a log is, `job` reads it and
//! writes it anew with `reader` and `output`, `swap` puts the new segments in place. Memory: the maps of all threads
//! share log.cleaner.dedupe.buffer.size and are given back after each cleaning, the buffers log.cleaner.io.buffer.size; a
//! thread holds two more batches as they are opened and written.
//!
//! Locks: `tracking` is never taken while a partition is locked; the other way round it may be.
//!
//! Invariant: one log is cleaned by one thread at a time, and the checkpoint never passes what is clean.

mod job;
mod pick;
mod settings;

#[cfg(test)]
mod tests;

pub use settings::CleanerSettings;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fullbore_rules::compaction::{Dirty, Throttle};
use fullbore_wire::Uuid;
use parking_lot::{Condvar, Mutex};

use crate::config::TopicConfig;
use crate::log::cleaner::error::CleanError;
use crate::log::files::{self, CLEANER_OFFSETS, OffsetsByPartition};
use crate::partitions::registry::Logs;
use crate::replica::replica::{LogState, Partition};
use crate::space::Space;
use crate::system::{give_way, now_ms};
use job::{Job, Tally};

pub use job::OPENED_MAX;

/// How long a partition is left alone after the system refused something.
const RETRY_AFTER: Duration = Duration::from_secs(60);
/// The most threads.
const THREADS_MAX: usize = 64;

type Key = (String, i32);

/// What all threads share.
#[derive(Debug)]
pub struct Cleaner {
    checkpoint_path: PathBuf,
    space: Arc<Space>,
    settings: Mutex<CleanerSettings>,
    tracking: Mutex<Tracking>,
    throttle: Mutex<Throttle>,
    started: Instant,
    stopping: Mutex<bool>,
    /// Told when the cleaner stops, or a partition is to be left.
    stop: Condvar,
    /// Told when a cleaning has ended.
    left: Condvar,
    counts: Counts,
}

/// Who is clean up to where, who is being cleaned, and who cannot be.
#[derive(Debug)]
struct Tracking {
    checkpoints: OffsetsByPartition,
    /// Whether the file still says something else, because it could not be written.
    is_unsaved: bool,
    /// With the topic's id.
    in_progress: HashMap<Key, Uuid>,
    /// With the time from which it is tried again; `None` is at the next start.
    uncleanable: HashMap<Key, Option<Instant>>,
    threads: usize,
}

#[derive(Debug, Default)]
struct Counts {
    runs: AtomicU64,
    failures: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    records_removed: AtomicU64,
    /// The bits of an f64.
    max_dirty_ratio: AtomicU64,
}

/// What the cleaner has done since the start, for whoever watches the broker.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct CleanerStatus {
    /// Cleanings that came to their end.
    pub runs: u64,
    /// Those that did not, because of a damaged batch or the system.
    pub failures: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
    pub records_removed: u64,
    /// Of the dirtiest log at the last look.
    pub max_dirty_ratio: f64,
    /// Partitions left alone because cleaning them has failed.
    pub uncleanable_partitions: usize,
}

impl Cleaner {
    /// Reads the checkpoint of a data folder. Starts nothing.
    pub fn new(data_dir: &Path, settings: CleanerSettings, space: Arc<Space>) -> Cleaner {
        let checkpoint_path = data_dir.join(CLEANER_OFFSETS);
        let checkpoints = files::read_offsets(&checkpoint_path).unwrap_or_default();
        let tracking = Tracking {
            checkpoints,
            is_unsaved: false,
            in_progress: HashMap::new(),
            uncleanable: HashMap::new(),
            threads: 0,
        };
        Cleaner {
            checkpoint_path,
            space,
            settings: Mutex::new(settings),
            tracking: Mutex::new(tracking),
            throttle: Mutex::default(),
            started: Instant::now(),
            stopping: Mutex::new(false),
            stop: Condvar::new(),
            left: Condvar::new(),
            counts: Counts::default(),
        }
    }

    /// Puts settings in force, from the next log on; the rate at once.
    pub fn configure(&self, settings: CleanerSettings) {
        *self.settings.lock() = settings;
    }

    /// The settings in force.
    fn settings(&self) -> CleanerSettings {
        *self.settings.lock()
    }

    /// Starts threads up to the number configured; they end when there are to be fewer, and when the cleaner stops.
    pub fn start_threads(self: &Arc<Self>, logs: &Weak<Logs>) -> io::Result<Vec<JoinHandle<()>>> {
        let wanted = self.settings().threads.min(THREADS_MAX);
        let mut tracking = self.tracking.lock();
        let mut started = Vec::new();
        while tracking.threads < wanted {
            let (cleaner, logs) = (self.clone(), logs.clone());
            let name = format!("cleaner-{}", tracking.threads);
            started.push(std::thread::Builder::new().name(name).spawn(move || cleaner.run(&logs))?);
            tracking.threads += 1;
        }
        Ok(started)
    }

    /// Makes threads end, and cleanings give up.
    pub fn stop(&self) {
        *self.stopping.lock() = true;
        self.stop.notify_all();
    }

    fn run(&self, logs: &Weak<Logs>) {
        give_way();
        loop {
            let settings = self.settings();
            let has_cleaned = match logs.upgrade() {
                Some(logs) if settings.enable => self.clean_dirtiest(&logs, now_ms()),
                Some(_) => false,
                None => return,
            };
            let backoff = Duration::from_millis(if has_cleaned { 0 } else { settings.backoff_ms });
            if self.pause(backoff, || false) || self.is_too_many() {
                return;
            }
        }
    }

    /// Whether there are more threads than configured; then this one is not counted any more.
    fn is_too_many(&self) -> bool {
        let wanted = self.settings().threads.min(THREADS_MAX);
        let mut tracking = self.tracking.lock();
        let is_too_many = tracking.threads > wanted;
        tracking.threads -= usize::from(is_too_many);
        is_too_many
    }

    /// Waits, unless it is `over`; whether the cleaner stops.
    fn pause(&self, pause: Duration, over: impl Fn() -> bool) -> bool {
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

    /// Cleans the dirtiest log that is due; false if none is.
    pub fn clean_dirtiest(&self, logs: &Logs, now_ms: i64) -> bool {
        let Some((partition, dirty, config)) = self.pick(logs, now_ms) else {
            return false;
        };
        let started = Instant::now();
        let settings = self.settings();
        let job = Job { cleaner: self, logs, partition: &partition, config, settings, dirty, now_ms };
        let result = job.run();
        if let Ok((clean_to, tally)) = &result {
            let Tally { bytes_before, bytes_after, records_removed, keys } = *tally;
            let elapsed_ms = started.elapsed().as_millis() as u64;
            let (topic, index) = (partition.topic(), partition.index());
            tracing::info!(
                topic,
                partition = index,
                clean_to,
                bytes_before,
                bytes_after,
                records_removed,
                keys,
                elapsed_ms,
                "compacted"
            );
            self.counts.records_removed.fetch_add(records_removed, Relaxed);
        }
        self.done(&partition, result.map(|(clean_to, _)| clean_to));
        true
    }

    /// The dirtiest log that is due, marked as being cleaned.
    fn pick(&self, logs: &Logs, now_ms: i64) -> Option<(Arc<Partition>, Dirty, Arc<TopicConfig>)> {
        let mut best: Option<(Arc<Partition>, Dirty, Arc<TopicConfig>)> = None;
        let mut max_ratio = 0.0_f64;
        for partition in logs.partitions() {
            let Some(checkpoint) = self.checkpoint_if_free(&partition) else { continue };
            let Some((dirty, config)) = partition.dirty(checkpoint, now_ms) else { continue };
            max_ratio = max_ratio.max(dirty.ratio());
            let is_dirtier = best.as_ref().is_none_or(|best| dirty.ratio() > best.1.ratio());
            if dirty.is_due(config.min_cleanable_dirty_ratio.0) && is_dirtier {
                best = Some((partition, dirty, config));
            }
        }
        self.counts.max_dirty_ratio.store(max_ratio.to_bits(), Relaxed);
        // Another thread may have been faster; then there is another round at once.
        best.filter(|(partition, ..)| self.begin(partition))
    }

    /// Marks the partition as being cleaned, unless it is already or is leaving.
    fn begin(&self, partition: &Partition) -> bool {
        let mut tracking = self.tracking.lock();
        match tracking.in_progress.entry(key(partition)) {
            // Who has it leave looks here afterwards.
            Entry::Vacant(place) if !partition.is_leaving() => {
                place.insert(partition.topic_id());
                true
            }
            _ => false,
        }
    }

    /// `None` if the partition is being cleaned or cannot be; else its checkpoint, if it has one.
    fn checkpoint_if_free(&self, partition: &Partition) -> Option<Option<i64>> {
        let key = key(partition);
        let mut tracking = self.tracking.lock();
        match tracking.uncleanable.get(&key) {
            Some(Some(until)) if *until <= Instant::now() => drop(tracking.uncleanable.remove(&key)),
            Some(_) => return None,
            None => {}
        }
        (!tracking.in_progress.contains_key(&key)).then(|| tracking.checkpoints.get(&key).copied())
    }

    fn done(&self, partition: &Partition, result: Result<i64, CleanError>) {
        let key = key(partition);
        let mut tracking = self.tracking.lock();
        tracking.in_progress.remove(&key);
        self.left.notify_all();
        // A deletion takes the log away first and then has it forgotten: that was before this, and nothing may be said of
        // the next topic of that name, or it comes after this.
        if partition.is_leaving() || matches!(partition.lock().log, LogState::Gone) {
            return;
        }
        let error = match result {
            Ok(clean_to) => {
                self.counts.runs.fetch_add(1, Relaxed);
                tracking.checkpoints.insert(key, clean_to);
                self.tell(self.save(&mut tracking));
                return;
            }
            Err(CleanError::Stopping | CleanError::Changed) => return,
            Err(error) => error,
        };
        self.counts.failures.fetch_add(1, Relaxed);
        let retry = matches!(error, CleanError::Io(_)).then(|| Instant::now() + RETRY_AFTER);
        let again = if retry.is_some() { "in a minute" } else { "at the next start" };
        if !matches!(&error, CleanError::Io(error) if self.space.note(error)) {
            tracing::error!(topic = %key.0, partition = key.1, %error, again, "compaction failed; the log is as it was");
        }
        tracking.uncleanable.insert(key, retry);
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

    /// What was known of a partition that is deleted.
    pub fn forget(&self, topic: &str, index: i32) {
        self.tell(self.purge(topic, index));
    }

    /// To be called before a partition's folder is made: the file says nothing of an older one with its name when this
    /// returns. To be clean up to an offset is to have no older value of a key before it, which a removed tombstone would
    /// bring back.
    ///
    /// # Errors
    /// What the system says; the folder must not be made then.
    pub fn purge(&self, topic: &str, index: i32) -> io::Result<()> {
        let key = (topic.to_owned(), index);
        let mut tracking = self.tracking.lock();
        tracking.uncleanable.remove(&key);
        let was_known = tracking.checkpoints.remove(&key).is_some();
        if was_known || tracking.is_unsaved { self.save(&mut tracking) } else { Ok(()) }
    }

    fn before_read(&self, partition: &Partition, bytes: u64) -> Result<(), CleanError> {
        self.counts.bytes_read.fetch_add(bytes, Relaxed);
        self.throttle(partition, bytes)
    }

    fn before_write(&self, partition: &Partition, bytes: u64) -> Result<(), CleanError> {
        // What is freed by compaction comes after it has taken as much.
        self.space.admit().ok_or(io::ErrorKind::StorageFull).map_err(io::Error::from)?;
        self.counts.bytes_written.fetch_add(bytes, Relaxed);
        self.throttle(partition, bytes)
    }

    /// Pauses as the rate wants it.
    fn throttle(&self, partition: &Partition, bytes: u64) -> Result<(), CleanError> {
        let rate = self.settings().io_max_bytes_per_second;
        let pause = self.throttle.lock().pause_after(self.started.elapsed(), bytes, rate);
        let stops = self.pause(pause, || partition.is_leaving());
        if stops {
            Err(CleanError::Stopping)
        } else if partition.is_leaving() {
            Err(CleanError::Changed)
        } else {
            Ok(())
        }
    }

    /// Waits until no thread is at the files of a partition that is [leaving](Partition::is_leaving): it writes by their
    /// names, which are the next topic's then.
    pub fn wait_until_left(&self, partition: &Partition) {
        {
            // With the lock, or a pause that has just looked would not be told.
            let _stopping = self.stopping.lock();
            self.stop.notify_all();
        }
        let key = key(partition);
        let mut tracking = self.tracking.lock();
        while tracking.in_progress.get(&key) == Some(&partition.topic_id()) {
            self.left.wait(&mut tracking);
        }
    }

    /// What there is to be seen.
    pub fn status(&self) -> CleanerStatus {
        let of = |count: &AtomicU64| count.load(Relaxed);
        let counts = &self.counts;
        CleanerStatus {
            runs: of(&counts.runs),
            failures: of(&counts.failures),
            bytes_read: of(&counts.bytes_read),
            bytes_written: of(&counts.bytes_written),
            records_removed: of(&counts.records_removed),
            max_dirty_ratio: f64::from_bits(of(&counts.max_dirty_ratio)),
            uncleanable_partitions: self.tracking.lock().uncleanable.len(),
        }
    }
}

fn key(partition: &Partition) -> Key {
    (partition.topic().to_owned(), partition.index())
}
