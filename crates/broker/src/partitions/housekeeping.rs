//! Background work that is done once a second: retention, the removal of files, the expiry of producers, checkpoints,
//! and the release of file descriptors and memory.
//!
//! A single thread does this work for all partitions. It does not wait until a log is opened, because that may take
//! seconds. If retention is due for an unopened log, the thread queues the opening and applies the retention in a later
//! round.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::producer_limit::ProducerLimit;
use super::registry::Registry;
use crate::replica::Replica;
use crate::replica::data_dir::LogDir;
use crate::replica::state::LogState;
use fullbore_config::StorageConfig;
use fullbore_host::files::{now_ms, remove_for_good};
use fullbore_host::log_rate_limit::LogRateLimit;
use fullbore_host::memory::Trimmer;
use fullbore_log::{retention, segment};

const ROUND: Duration = Duration::from_secs(1);
/// Maximum time of one round for removing files and the directories of deleted partitions. A round on a full disk has
/// no limit. On a slow disk, later rounds remove the rest.
const REMOVALS_MAX: Duration = Duration::from_secs(1);
/// Maximum time of one round for checking partitions whose appends or reads fail.
const CHECKS_MAX: Duration = Duration::from_secs(1);
/// Maximum time between the broker's start and the first retention.
const FIRST_RETENTION: Duration = Duration::from_secs(30);
/// How often retention is applied while the disk is full, unless the configured interval is shorter.
const RETENTION_WHEN_FULL: Duration = Duration::from_secs(10);
/// How long to wait before a failed removal is repeated.
const REMOVE_AGAIN: Duration = Duration::from_secs(10);
/// How often the offsets are checkpointed (Kafka's log.flush.offset.checkpoint.interval.ms).
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(60);
/// Number of rounds without use after which a log's file descriptors are closed.
const IDLE_ROUNDS: u32 = 60;
/// Number of rounds for which a partition counts as in use after its last use. They must last longer than the detection
/// of a failed leader, so that a failover still knows which partitions are in use.
pub const IN_USE_ROUNDS: u32 = 30;
/// Number of rounds without use after which a log's file descriptors are closed if the process has few left.
const IDLE_ROUNDS_WHEN_FEW: u32 = 2;
/// Maximum number of directories that one round checks for files that an earlier process has set aside.
const DIRECTORIES_PER_ROUND: usize = 2_000;

/// The time at which each kind of work is due, and the partitions whose work is left for later rounds.
struct HousekeepingSchedule {
    retention: Instant,
    /// The partitions that the last retention skipped because their logs were not open.
    unopened: Vec<Arc<Replica>>,
    retention_when_full: Instant,
    expiry: Instant,
    checkpoint: Instant,
    high_watermarks: Instant,
    /// The partitions whose directories must still be checked for files that were set aside. `None` until all
    /// partitions are registered.
    unchecked: Option<Vec<Arc<Replica>>>,
    /// The failing partitions that must still be checked, in this round or later.
    failing: Vec<Arc<Replica>>,
    trimmer: Trimmer,
}

/// The housekeeping thread's settings and shared state.
#[derive(Debug)]
pub struct Housekeeping {
    registry: Arc<Registry>,
    intervals: Intervals,
    /// The value of producer.id.expiration.ms, which may change.
    producer_id_expiration_ms: AtomicI64,
    producer_limit: ProducerLimit,
    /// Rate limits for log lines about failures that may recur in each round, for example on a read-only disk. Each
    /// kind of work has its own limit.
    unwritten_high_watermarks: LogRateLimit,
    unwritten_list: LogRateLimit,
    unremoved: LogRateLimit,
    unretained: LogRateLimit,
    is_stopping: Mutex<bool>,
    stop: Condvar,
}

/// The configured intervals.
#[derive(Debug, Clone, Copy)]
struct Intervals {
    /// log.retention.check.interval.ms
    retention: Duration,
    /// producer.id.expiration.check.interval.ms
    expiry: Duration,
    /// replica.high.watermark.checkpoint.interval.ms
    high_watermarks: Duration,
}

impl Housekeeping {
    /// Creates the state without starting the thread.
    pub fn new(registry: Arc<Registry>, config: &StorageConfig) -> Housekeeping {
        Housekeeping {
            registry,
            intervals: Intervals {
                retention: Duration::from_millis(config.retention_check_interval_ms),
                expiry: Duration::from_millis(config.producer_id_expiration_check_interval_ms),
                high_watermarks: Duration::from_millis(config.high_watermark_checkpoint_interval_ms),
            },
            producer_id_expiration_ms: AtomicI64::new(i64::MAX),
            producer_limit: ProducerLimit::new(config.producers_max),
            unwritten_high_watermarks: LogRateLimit::default(),
            unwritten_list: LogRateLimit::default(),
            unremoved: LogRateLimit::default(),
            unretained: LogRateLimit::default(),
            is_stopping: Mutex::new(false),
            stop: Condvar::new(),
        }
    }

    /// Starts the thread. It ends after [`Housekeeping::stop`].
    pub fn start(self: &Arc<Self>) -> io::Result<JoinHandle<()>> {
        let housekeeping = self.clone();
        std::thread::Builder::new().name("housekeeping".to_owned()).spawn(move || housekeeping.run())
    }

    /// Makes the thread end.
    pub fn stop(&self) {
        *self.is_stopping.lock() = true;
        self.stop.notify_all();
    }

    /// Sets how long producers may be silent before they expire. Until this is called, no producer expires.
    pub fn expire_producers_after(&self, ms: u64) {
        self.producer_id_expiration_ms.store(i64::try_from(ms).unwrap_or(i64::MAX), Relaxed);
    }

    fn run(&self) {
        let now = Instant::now();
        let mut agenda = HousekeepingSchedule {
            retention: now + self.intervals.retention.min(FIRST_RETENTION),
            unopened: Vec::new(),
            retention_when_full: now,
            expiry: now + self.intervals.expiry,
            checkpoint: now + CHECKPOINT_INTERVAL,
            high_watermarks: now,
            unchecked: None,
            failing: Vec::new(),
            trimmer: Trimmer::default(),
        };
        loop {
            let mut is_stopping = self.is_stopping.lock();
            if !*is_stopping {
                self.stop.wait_for(&mut is_stopping, ROUND);
            }
            if *is_stopping {
                return;
            }
            drop(is_stopping);
            self.round(&mut agenda);
        }
    }

    fn log_dir(&self) -> &LogDir {
        self.registry.log_dir()
    }
}

/// Returns true if the time `at` has passed. If so, sets `at` to `interval` from now.
fn is_due(at: &mut Instant, interval: Duration) -> bool {
    let now = Instant::now();
    let due = *at <= now;
    if due {
        *at = now + interval;
    }
    due
}

impl Housekeeping {
    fn round(&self, agenda: &mut HousekeepingSchedule) {
        if !self.log_dir().space.is_unwritable() {
            self.log_dir().retire_leftovers();
        }
        self.remove_pending();
        let partitions = self.registry.partitions();
        close_idle_files(&partitions);
        self.find_files_set_aside(agenda, &partitions);
        let space = &self.log_dir().space;
        let is_wanted = space.is_full() && is_due(&mut agenda.retention_when_full, RETENTION_WHEN_FULL);
        if is_due(&mut agenda.retention, self.intervals.retention) || is_wanted {
            agenda.unopened = partitions.iter().filter(|partition| !self.retain(partition)).cloned().collect();
        } else {
            agenda.unopened.retain(|partition| !partition.phase().is_open() || !self.retain(partition));
        }
        if is_due(&mut agenda.expiry, self.intervals.expiry) {
            let expiration_ms = self.producer_id_expiration_ms.load(Relaxed);
            partitions.iter().for_each(|partition| expire(partition, expiration_ms));
        }
        self.producer_limit.apply(&partitions);
        if is_due(&mut agenda.checkpoint, CHECKPOINT_INTERVAL)
            && let Err(error) = self.log_dir().checkpoints.write(&partitions)
            && !space.note(&error)
        {
            tracing::error!(%error, "cannot write checkpoints: after a crash, a start has to recover more of the \
                 logs; check the disk");
        }
        if is_due(&mut agenda.high_watermarks, self.intervals.high_watermarks)
            && let Err(error) = self.log_dir().checkpoints.write_high_watermarks(&partitions)
            && !space.note(&error)
            && let Some(left_out) = self.unwritten_high_watermarks.due()
        {
            tracing::error!(%error, left_out, "cannot write high watermarks: a restart begins with older high watermarks; check the disk");
        }
        if let Err(error) = self.log_dir().checkpoints.forget_recovered()
            && !space.note(&error)
            && let Some(left_out) = self.unwritten_list.due()
        {
            tracing::error!(%error, left_out, "cannot write the list of partitions to recover: a restart recovers some of them again; check the disk");
        }
        space.check();
        self.note_failed_reads(&partitions);
        // Skip the check of single partitions if no file can be created in the data directory. In that case the
        // membership hands over all partitions.
        if self.log_dir().failing.count() > 0 && !space.is_unwritable() {
            self.check_failing(agenda, &partitions);
        }
        agenda.trimmer.trim_if_due();
    }

    /// Reports each failed read to the partition of its file, because the threads that read the files knew only their
    /// paths. Compares only the name of the file's directory. Whole paths may differ: the path of the file is resolved,
    /// while the path of the data directory may contain symbolic links.
    fn note_failed_reads(&self, partitions: &[Arc<Replica>]) {
        for failed in self.log_dir().cold.failed().take() {
            let Some(name) = failed.path.parent().and_then(Path::file_name) else { continue };
            if let Some(partition) = partitions.iter().find(|partition| partition.dir().file_name() == Some(name)) {
                partition.note_failed_range(&failed);
            }
        }
    }

    /// Checks the partitions whose appends or reads fail, for at most [`CHECKS_MAX`]. The next rounds check the rest,
    /// because a disk may need seconds for each read.
    fn check_failing(&self, agenda: &mut HousekeepingSchedule, partitions: &[Arc<Replica>]) {
        if agenda.failing.is_empty() {
            agenda.failing = partitions.iter().filter(|partition| partition.is_failing()).cloned().collect();
        }
        let now = Instant::now();
        while now.elapsed() < CHECKS_MAX
            && let Some(partition) = agenda.failing.pop()
        {
            partition.check_failing(Instant::now());
        }
    }

    fn find_files_set_aside(&self, agenda: &mut HousekeepingSchedule, partitions: &[Arc<Replica>]) {
        if agenda.unchecked.is_none() && self.log_dir().aside.is_all_known() {
            agenda.unchecked = Some(partitions.to_vec());
        }
        if let Some(unchecked) = &mut agenda.unchecked {
            for partition in unchecked.drain(unchecked.len().saturating_sub(DIRECTORIES_PER_ROUND)..) {
                self.log_dir().aside.look(&partition.dir());
            }
        }
    }

    fn remove_pending(&self) {
        let now = Instant::now();
        // On a full disk, remove files before they are due. A connection that is sending such a file breaks.
        let all = self.log_dir().space.is_full();
        let due: Vec<_> = {
            let mut pending_removal = self.log_dir().pending_removal.lock();
            pending_removal.extract_if(.., |(due, _)| all || *due <= now).collect()
        };
        let (until, mut due) = (now + REMOVALS_MAX, due.into_iter());
        for (_, path) in due.by_ref() {
            if let Err(error) = remove(&path) {
                if let Some(left_out) = self.unremoved.due() {
                    tracing::error!(path = %path.display(), %error, left_out, "cannot remove files: they keep their space until a retry succeeds; check the permissions");
                }
                self.log_dir().remove_after(REMOVE_AGAIN, path);
            }
            // On a full disk, one round removes everything. If the broker stops now, it removes the rest after its next
            // start.
            if !all && Instant::now() > until || *self.is_stopping.lock() {
                break;
            }
        }
        self.log_dir().pending_removal.lock().extend(due);
    }

    /// Applies retention to one partition if it is due. If the log is not open, queues its opening if necessary.
    /// Returns false if a later call must apply the retention, because the log is not open yet.
    fn retain(&self, partition: &Arc<Replica>) -> bool {
        let now_ms = now_ms();
        if self.log_dir().keeps_records(now_ms) {
            return true;
        }
        // The high watermark may be outdated, and thus too low. Retention then only keeps more records than it has to.
        let mut state = partition.lock_as_it_is();
        let config = partition.config();
        let high_watermark = state.role.high_watermark();
        let log = match &mut state.log {
            LogState::Open(log) => log,
            LogState::Opening(_) | LogState::Creating(_) => return false,
            LogState::Unopened if retention::may_be_due(&partition.dir(), now_ms, &config).unwrap_or(false) => {
                self.log_dir().opener.request_in_time(partition);
                return false;
            }
            LogState::Unopened | LogState::Absent | LogState::Refused(_) | LogState::Gone => return true,
        };
        let (before, log_start) = (log.active_base_offset(), log.log_start());
        let space = &self.log_dir().space;
        let retired = log.retire_old(now_ms, high_watermark, &config, space.is_full());
        let delay = Duration::from_millis(config.file_delete_delay_ms);
        retired.paths.into_iter().for_each(|path| self.log_dir().remove_after(delay, path));
        if let Err(error) = retired.result
            && !space.note(&error)
            && let Some(left_out) = self.unretained.due()
        {
            tracing::error!(dir = %log.dir().display(), %error, left_out, "cannot apply retention to a log: some old segments stay until the next retention check");
        }
        if log.active_base_offset() != before {
            log.close_files(false);
        }
        let has_moved = log.log_start() != log_start;
        drop(state);
        if has_moved {
            // Wake the followers' fetches that wait for records, because the response must report the new log start.
            partition.wake_waiters();
        }
        true
    }
}

fn close_idle_files(partitions: &[Arc<Replica>]) {
    let few_left = segment::open_files() > descriptors_max() / 2;
    let idle_rounds = if few_left { IDLE_ROUNDS_WHEN_FEW } else { IDLE_ROUNDS };
    for partition in partitions {
        let Some(mut state) = partition.try_lock_as_it_is() else {
            continue;
        };
        if let LogState::Open(log) = &mut state.log {
            let idle = log.note_idle_round();
            if idle == idle_rounds || (few_left && idle > idle_rounds) {
                log.close_files(true);
            }
        }
    }
}

fn descriptors_max() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX)
}

fn expire(partition: &Replica, expiration_ms: i64) {
    partition.forget_old_refusals();
    if let LogState::Open(log) = &mut partition.lock_as_it_is().log {
        log.expire_producers(now_ms(), expiration_ms);
    }
}

/// Removes a file, or a directory with its files. Frees the blocks of a file even if the file is still open.
fn remove(path: &Path) -> io::Result<()> {
    let removed = fs::symlink_metadata(path)
        .and_then(|found| if found.is_dir() { remove_directory(path) } else { remove_for_good(path) });
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

fn remove_directory(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            remove_for_good(&entry.path())?;
        }
    }
    fs::remove_dir_all(path)
}
