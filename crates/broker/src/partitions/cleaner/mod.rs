//! The log cleaner: threads that compact logs, the dirtiest first (Kafka's `LogCleaner`). Each thread compacts one log
//! at a time.
//!
//! The rules of compaction are in `fullbore_rules::compaction`. Here, `pick` finds out how dirty a log is, `job` reads
//! and rewrites it, and `replace` replaces its segments.
//!
//! Memory: the key maps of all threads share log.cleaner.dedupe.buffer.size, and each map is freed after its cleaning.
//! The buffers of all threads share log.cleaner.io.buffer.size. In addition, each thread has two batches in memory
//! while it decompresses and writes them.
//!
//! The module [`crate::replica::data_dir::cleanings`] records up to which offset each log is clean, and which logs are
//! being cleaned.

mod job;
mod pick;
mod replace;

#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fullbore_rules::compaction::{Dirty, Throttle};
use parking_lot::Mutex;

use super::registry::Registry;
use crate::replica::Replica;
use crate::replica::data_dir::cleanings::{Cleanings, Ending};
use crate::replica::state::LogState;
use fullbore_config::{CleanerSettings, TopicConfig};
use fullbore_host::files::{give_way, is_full, now_ms};
use fullbore_log::cleaner::error::CleanError;
use job::{Cleaning, Pace, Tally};

/// How long a partition is skipped after an I/O error during its cleaning.
const RETRY_AFTER: Duration = Duration::from_secs(60);
/// Maximum number of threads.
const THREADS_MAX: usize = 64;

/// The state that the threads share.
#[derive(Debug)]
pub struct Cleaner {
    registry: Arc<Registry>,
    settings: Mutex<CleanerSettings>,
    threads: Mutex<usize>,
    throttle: Mutex<Throttle>,
    started: Instant,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    runs: AtomicU64,
    failures: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    records_removed: AtomicU64,
    /// [`CleanerStatus::max_dirty_ratio`] as the bits of a float.
    max_dirty_ratio: AtomicU64,
}

/// Counters of the cleaner since the broker started, for metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct CleanerStatus {
    /// The number of completed cleanings.
    pub runs: u64,
    /// The number of cleanings that failed because of a damaged batch or an I/O error.
    pub failures: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
    pub records_removed: u64,
    /// The dirty share of the dirtiest log when a thread last looked for work.
    pub max_dirty_ratio: f64,
    /// The number of partitions that the cleaner skips because their last cleaning failed.
    pub uncleanable_partitions: usize,
}

impl Cleaner {
    /// Creates a cleaner without threads.
    pub fn new(registry: Arc<Registry>, settings: CleanerSettings) -> Cleaner {
        Cleaner {
            registry,
            settings: Mutex::new(settings),
            threads: Mutex::new(0),
            throttle: Mutex::default(),
            started: Instant::now(),
            counts: Counts::default(),
        }
    }

    fn cleanings(&self) -> &Cleanings {
        &self.registry.log_dir().cleanings
    }

    /// Applies new settings. The new I/O rate applies at once. The other settings apply when a thread begins its next
    /// cleaning.
    pub fn configure(&self, settings: CleanerSettings) {
        *self.settings.lock() = settings;
    }

    /// Returns the current settings.
    fn settings(&self) -> CleanerSettings {
        *self.settings.lock()
    }

    /// Starts threads until the configured number of them runs. A thread ends when this number is reduced below the
    /// number of threads, and when the cleaner stops.
    pub fn start_threads(self: &Arc<Self>) -> io::Result<Vec<JoinHandle<()>>> {
        let wanted = self.settings().threads.min(THREADS_MAX);
        let mut threads = self.threads.lock();
        let mut started = Vec::new();
        while *threads < wanted {
            let cleaner = self.clone();
            let name = format!("cleaner-{}", *threads);
            started.push(std::thread::Builder::new().name(name).spawn(move || cleaner.run())?);
            *threads += 1;
        }
        Ok(started)
    }

    /// Ends the running cleanings and the threads.
    pub fn stop(&self) {
        self.cleanings().stop();
    }

    fn run(&self) {
        give_way();
        loop {
            let settings = self.settings();
            let has_cleaned = settings.enable && self.clean_dirtiest(now_ms());
            let backoff = Duration::from_millis(if has_cleaned { 0 } else { settings.backoff_ms });
            if self.cleanings().pause(backoff, || false) || self.is_too_many() {
                return;
            }
        }
    }

    /// Returns true if this thread must end because there are more threads than configured. If so, removes the thread
    /// from the count.
    fn is_too_many(&self) -> bool {
        let wanted = self.settings().threads.min(THREADS_MAX);
        let mut threads = self.threads.lock();
        let is_too_many = *threads > wanted;
        *threads -= usize::from(is_too_many);
        is_too_many
    }

    /// Cleans the log that [`Cleaner::pick`] returns. Returns false if it returns no log.
    pub fn clean_dirtiest(&self, now_ms: i64) -> bool {
        let Some((partition, dirty, config)) = self.pick(now_ms) else {
            return false;
        };
        let started = Instant::now();
        let settings = self.settings();
        let log_dir = self.registry.log_dir();
        let making_room = MakingRoom(self);
        let cleaning = |pace| {
            let config = config.clone();
            Cleaning { pace, log_dir, partition: &partition, config, settings, dirty, now_ms }
        };
        let space = &log_dir.space;
        let within_room = (!space.is_full()).then(|| cleaning(self).run());
        let result = match within_room {
            Some(result) if !result.as_ref().is_err_and(is_full_error) => result,
            // Compaction may use the disk reserve: if all topics are compacted, only compaction can free space.
            _ => space.freeing(is_full_error, || cleaning(&making_room).run()),
        };
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

    /// Returns the dirtiest log that is due, and marks it as being cleaned. Returns `None` if no log is due, or if
    /// compaction must not delete records now. Also returns `None` if another thread has just begun to clean that log,
    /// or if the log can no longer be cleaned.
    fn pick(&self, now_ms: i64) -> Option<(Arc<Replica>, Dirty, Arc<TopicConfig>)> {
        if self.registry.log_dir().keeps_records(now_ms) {
            return None;
        }
        let mut best: Option<(Arc<Replica>, Dirty, Arc<TopicConfig>)> = None;
        let mut max_ratio = 0.0_f64;
        for partition in self.registry.partitions() {
            let Some(checkpoint) = self.cleanings().checkpoint_if_free(&partition.key()) else { continue };
            let Some((dirty, config)) = partition.dirty(checkpoint, now_ms) else { continue };
            max_ratio = max_ratio.max(dirty.ratio());
            let is_dirtier = best.as_ref().is_none_or(|best| dirty.ratio() > best.1.ratio());
            if dirty.is_due(config.min_cleanable_dirty_ratio.0) && is_dirtier {
                best = Some((partition, dirty, config));
            }
        }
        self.counts.max_dirty_ratio.store(max_ratio.to_bits(), Relaxed);
        // `begin` returns false if another thread has just begun to clean this log. The caller then looks for work
        // again after `log.cleaner.backoff.ms`.
        let (partition, ..) = best.filter(|(of, ..)| self.cleanings().begin(of.key(), of.topic_id(), of.as_ref()))?;
        // Determine the dirty part again, because the log may have been truncated before `begin`. From now on,
        // `cleanings` records each truncation of this log. The checkpoint of the cleaning then never lies beyond the
        // new log end.
        match partition.dirty(self.cleanings().checkpoint(&partition.key()), now_ms) {
            Some((dirty, config)) => Some((partition, dirty, config)),
            None => {
                self.done(&partition, Err(CleanError::Changed));
                None
            }
        }
    }

    fn done(&self, partition: &Replica, result: Result<i64, CleanError>) {
        let has_gone = || partition.phase().is_leaving() || matches!(partition.lock().log, LogState::Gone);
        let ending = match &result {
            Ok(clean_to) => Some(Ending::CleanTo(*clean_to)),
            Err(CleanError::Stopping | CleanError::Changed) => None,
            Err(CleanError::Io(_)) => Some(Ending::Uncleanable(Some(Instant::now() + RETRY_AFTER))),
            Err(_) => Some(Ending::Uncleanable(None)),
        };
        if !has_gone() {
            self.report(partition, &result);
        }
        self.cleanings().ended(partition.key(), has_gone, ending);
    }

    fn report(&self, partition: &Replica, result: &Result<i64, CleanError>) {
        let error = match result {
            Ok(_) => {
                self.counts.runs.fetch_add(1, Relaxed);
                return;
            }
            Err(CleanError::Stopping | CleanError::Changed) => return,
            Err(error) => error,
        };
        self.counts.failures.fetch_add(1, Relaxed);
        let again = if matches!(error, CleanError::Io(_)) { "in a minute" } else { "at the next start" };
        if !matches!(error, CleanError::Io(error) if self.registry.log_dir().space.note(error)) {
            let (topic, partition) = (partition.topic(), partition.index());
            tracing::error!(topic, partition, %error, again, "cannot compact a log: it keeps growing until an attempt succeeds; `again` is the time of the next attempt");
        }
    }

    /// Pauses if another `bytes` of I/O would exceed the configured rate.
    fn throttle(&self, partition: &Replica, bytes: u64) -> Result<(), CleanError> {
        let rate = self.settings().io_max_bytes_per_second;
        let pause = self.throttle.lock().pause_after(self.started.elapsed(), bytes, rate);
        let stops = self.cleanings().pause(pause, || partition.phase().is_leaving());
        if stops {
            Err(CleanError::Stopping)
        } else if partition.phase().is_leaving() {
            Err(CleanError::Changed)
        } else {
            Ok(())
        }
    }

    /// Counts bytes that will be written, and pauses like [`Cleaner::throttle`].
    fn write(&self, partition: &Replica, bytes: u64) -> Result<(), CleanError> {
        self.counts.bytes_written.fetch_add(bytes, Relaxed);
        self.throttle(partition, bytes)
    }

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
            uncleanable_partitions: self.cleanings().uncleanable_partitions(),
        }
    }
}

impl Pace for Cleaner {
    fn before_read(&self, partition: &Replica, bytes: u64) -> Result<(), CleanError> {
        self.counts.bytes_read.fetch_add(bytes, Relaxed);
        self.throttle(partition, bytes)
    }

    fn before_write(&self, partition: &Replica, bytes: u64) -> Result<(), CleanError> {
        // Fail if the disk is full, because compaction needs space before it frees any. Drop the permit to write at
        // once, because the cleaning must not hold a permit while it pauses below.
        self.registry.log_dir().space.admit().ok_or(io::ErrorKind::StorageFull).map_err(io::Error::from)?;
        self.write(partition, bytes)
    }
}

/// Limits the I/O rate of a cleaning that may use the disk reserve.
struct MakingRoom<'a>(&'a Cleaner);

impl Pace for MakingRoom<'_> {
    fn before_read(&self, partition: &Replica, bytes: u64) -> Result<(), CleanError> {
        self.0.before_read(partition, bytes)
    }

    fn before_write(&self, partition: &Replica, bytes: u64) -> Result<(), CleanError> {
        // Return the space that was freed so far to the reserve. Other writers can then write before this cleaning
        // ends, which may be much later.
        self.0.registry.log_dir().space.regain();
        self.0.write(partition, bytes)
    }
}

fn is_full_error(error: &CleanError) -> bool {
    matches!(error, CleanError::Io(error) if is_full(error))
}
