//! Every partition under one data folder, from start to clean shutdown.
//!
//! Not the topics' registry: the control plane says which partitions there are. Nothing is opened at
//! start; what a partition's log needs to know before it is opened is in the checkpoint files.
//!
//! Locks, in this order: `writing`, `topics`, `checkpoints`, a partition's state; `doomed` last.
//!
//! Invariant: the marker of a clean shutdown is on the disk only while no partition is in use, and only
//! if every log it vouches for is.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fullbore_wire::Uuid;
use parking_lot::{Condvar, Mutex};

use super::answer::{AppendError, OpenError};
use super::boot::Boots;
use super::cleaner::{Cleaner, CleanerSettings, CleanerStatus};
use super::files::{self, CLEAN_SHUTDOWN, LOG_STARTS, OffsetsByPartition, RECOVERY_POINTS, UNRECOVERED};
use super::flusher::Flusher;
use super::housekeeping;
use super::partition::{LogState, Partition};
use super::recovery::Known;
use crate::config::{BrokerConfig, TopicConfig};
use crate::space::{Space, is_full};

/// The broker-wide settings of the log; names are Kafka's.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// log.retention.check.interval.ms
    pub retention_check_interval_ms: u64,
    /// producer.id.expiration.check.interval.ms
    pub producer_id_expiration_check_interval_ms: u64,
    /// fullbore.page.cache.kept.bytes; `None` leaves the page cache to the system.
    pub page_cache_kept: Option<u64>,
    /// Those of compaction, until others are put in force.
    pub cleaner: CleanerSettings,
}

impl From<&BrokerConfig> for Settings {
    fn from(config: &BrokerConfig) -> Self {
        Settings {
            retention_check_interval_ms: config.log_retention_check_interval_ms,
            producer_id_expiration_check_interval_ms: config.producer_id_expiration_check_interval_ms,
            page_cache_kept: config.page_cache_kept,
            cleaner: config.cleaner,
        }
    }
}

/// Every partition under one data folder.
#[derive(Debug)]
pub struct Logs {
    dir: Arc<Path>,
    pub(super) settings: Settings,
    /// producer.id.expiration.ms, which may change.
    producer_id_expiration_ms: AtomicI64,
    topics: Mutex<HashMap<String, Topic>>,
    checkpoints: Mutex<Checkpoints>,
    /// Held while checkpoint files are written, so that the newest stays.
    writing: Mutex<()>,
    /// Files and folders out of use, and when they may be removed.
    pub(super) doomed: Mutex<Vec<(Instant, PathBuf)>>,
    pub(super) flusher: Arc<Flusher>,
    cleaner: Arc<Cleaner>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    pub(super) stopping: Mutex<bool>,
    pub(super) stop: Condvar,
}

#[derive(Debug)]
struct Topic {
    id: Uuid,
    partitions: HashMap<i32, Arc<Partition>>,
}

/// What the files say of partitions that are not open.
#[derive(Debug)]
struct Checkpoints {
    clean: bool,
    recovery_points: OffsetsByPartition,
    /// Whether their file could be read: otherwise any record may be one that was flushed.
    knows_flushed: bool,
    log_starts: OffsetsByPartition,
    /// Whether their file could be read: then a partition that is not in it begins with its first segment.
    knows_log_starts: bool,
    /// Partitions not opened since a crash, though the broker was shut down cleanly in between; [`REBOOTED`] or
    /// [`KILLED`] for each.
    unrecovered: OffsetsByPartition,
}

/// Whether the machine has booted since the crash.
const KILLED: i64 = 0;
const REBOOTED: i64 = 1;

impl Checkpoints {
    fn read(dir: &Path) -> Checkpoints {
        let log_starts = files::read_offsets(&dir.join(LOG_STARTS));
        let recovery_points = files::read_offsets(&dir.join(RECOVERY_POINTS));
        let unrecovered = files::read_offsets(&dir.join(UNRECOVERED));
        Checkpoints {
            // The marker is written after the list of partitions it does not vouch for.
            clean: dir.join(CLEAN_SHUTDOWN).exists() && unrecovered.is_some(),
            // Without the file nothing was ever said to be flushed.
            knows_flushed: recovery_points.is_some() || !dir.join(RECOVERY_POINTS).exists(),
            recovery_points: recovery_points.unwrap_or_default(),
            knows_log_starts: log_starts.is_some(),
            log_starts: log_starts.unwrap_or_default(),
            unrecovered: unrecovered.unwrap_or_default(),
        }
    }

    /// To be called at start. After a crash in another boot, every partition is listed as one that a power cut may have
    /// damaged; the list is on the disk before the boot of this run is, so that a kill of this run changes nothing.
    fn note_boot(&mut self, dir: &Path) -> io::Result<()> {
        let boots = Boots::look(dir);
        let before = self.unrecovered.clone();
        if !self.knows_flushed {
            self.unrecovered.values_mut().for_each(|since| *since = KILLED);
        } else if !self.clean && boots.differ() {
            // What was only killed before a clean stop had everything written: of that the power cut took nothing.
            let since = |key: &_| if before.get(key) == Some(&KILLED) { KILLED } else { REBOOTED };
            self.unrecovered = list_partitions(dir)?.into_iter().map(|key| (key.clone(), since(&key))).collect();
        }
        if self.unrecovered != before {
            files::write_offsets(&dir.join(UNRECOVERED), &self.unrecovered)?;
        }
        boots.keep(dir)
    }

    fn known(&self, key: &(String, i32)) -> Known {
        Known {
            clean: self.clean && !self.unrecovered.contains_key(key),
            recovery_point: self.recovery_points.get(key).copied().unwrap_or(0),
            log_start: self.knows_log_starts.then(|| self.log_starts.get(key).copied().unwrap_or(0)),
            rebooted: self.unrecovered.get(key) == Some(&REBOOTED),
        }
    }

    fn forget(&mut self, key: &(String, i32)) {
        self.recovery_points.remove(key);
        self.log_starts.remove(key);
        self.unrecovered.remove(key);
    }
}

impl Logs {
    /// From now on, forgets producers silent for so long. Until this is said, none is.
    pub fn expire_producers_after(&self, ms: u64) {
        self.producer_id_expiration_ms.store(i64::try_from(ms).unwrap_or(i64::MAX), Ordering::Relaxed);
    }

    pub(super) fn producer_id_expiration_ms(&self) -> i64 {
        self.producer_id_expiration_ms.load(Ordering::Relaxed)
    }

    /// Opens a folder, which exists and is locked by the caller, and starts threads: two that flush,
    /// one that looks after the page cache, one for retention and other housekeeping, and those that compact. Opens no partition.
    ///
    /// # Errors
    /// [`OpenError`] naming what cannot be read or written.
    pub fn open(data_dir: &Path, settings: Settings) -> Result<Arc<Logs>, OpenError> {
        Logs::open_with(data_dir, settings, Arc::new(Space::open(data_dir, 0)))
    }

    /// As [`Logs::open`], with the folder's room as others of the broker know it.
    pub(crate) fn open_with(data_dir: &Path, settings: Settings, space: Arc<Space>) -> Result<Arc<Logs>, OpenError> {
        let failed = |error| OpenError { path: data_dir.to_owned(), error };
        let mut checkpoints = Checkpoints::read(data_dir);
        if let Err(error) = checkpoints.note_boot(data_dir) {
            // A full disk keeps no broker from starting. The next start takes this run for one of an earlier boot.
            space.note(&error);
            tracing::error!(dir = %data_dir.display(), %error, "not written in which boot the folder is used");
        }
        let doomed = list_doomed(data_dir).map_err(failed)?;
        remove_marker(data_dir).map_err(failed)?;
        let flusher = Arc::new(Flusher::new(settings.page_cache_kept, space));
        let logs = Arc::new(Logs {
            dir: data_dir.into(),
            settings,
            producer_id_expiration_ms: AtomicI64::new(i64::MAX),
            topics: Mutex::default(),
            checkpoints: Mutex::new(checkpoints),
            writing: Mutex::default(),
            doomed: Mutex::new(doomed),
            flusher: flusher.clone(),
            cleaner: Arc::new(Cleaner::new(data_dir, settings.cleaner, flusher.space.clone())),
            threads: Mutex::default(),
            stopping: Mutex::new(false),
            stop: Condvar::new(),
        });
        let mut threads = flusher.start().map_err(failed)?;
        threads.push(housekeeping::start(Arc::downgrade(&logs)).map_err(failed)?);
        threads.extend(logs.cleaner.start_threads(&Arc::downgrade(&logs)).map_err(failed)?);
        *logs.threads.lock() = threads;
        Ok(logs)
    }

    /// The partition, known to retention from now on: to be called at start for every partition there is.
    /// `config` replaces the one in force. A topic of the same name with another id is deleted first.
    pub fn partition(&self, topic: &str, topic_id: Uuid, index: i32, config: Arc<TopicConfig>) -> Arc<Partition> {
        let mut topics = self.topics.lock();
        if let Some(known) = topics.get(topic).filter(|known| known.id != topic_id) {
            let id = known.id;
            self.delete_locked(&mut topics, topic, id);
        }
        if !topics.contains_key(topic) {
            let partitions = HashMap::new();
            topics.insert(topic.to_owned(), Topic { id: topic_id, partitions });
        }
        let known = topics.get_mut(topic).expect("inserted when it was missing");
        if let Some(partition) = known.partitions.get(&index) {
            partition.set_config(config);
            return partition.clone();
        }
        let before = self.checkpoints.lock().known(&(topic.to_owned(), index));
        let name = match known.partitions.values().next() {
            Some(sibling) => sibling.topic_name(),
            None => topic.into(),
        };
        let flusher = self.flusher.clone();
        let partition = Partition::new(name, topic_id, index, self.dir.clone(), flusher, config, before);
        let partition = Arc::new(partition);
        known.partitions.insert(index, partition.clone());
        partition
    }

    /// Puts a topic's settings in force in those of its partitions that are known.
    pub fn configure(&self, topic: &str, topic_id: Uuid, config: &Arc<TopicConfig>) {
        let known: Vec<Arc<Partition>> = match self.topics.lock().get(topic) {
            Some(known) if known.id == topic_id => known.partitions.values().cloned().collect(),
            _ => return,
        };
        known.iter().for_each(|partition| partition.set_config(Arc::clone(config)));
    }

    /// Deletes a topic: its partitions are gone at once, their files after file.delete.delay.ms. Does
    /// nothing if the topic of this name has another id.
    pub fn delete_topic(&self, topic: &str, topic_id: Uuid) {
        self.delete_locked(&mut self.topics.lock(), topic, topic_id);
    }

    fn delete_locked(&self, topics: &mut HashMap<String, Topic>, topic: &str, topic_id: Uuid) {
        if topics.get(topic).is_none_or(|known| known.id != topic_id) {
            return;
        }
        let deleted = topics.remove(topic).expect("it has just been found");
        for (index, partition) in deleted.partitions {
            let delay = Duration::from_millis(partition.config().file_delete_delay_ms);
            drop(partition.leave(AppendError::Deleted));
            let dir = files::partition_dir(&self.dir, topic, index);
            let unique = u128::from_be_bytes(topic_id.0);
            let retired = files::retired_dir(&self.dir, topic, index, unique, files::DELETED_DIR);
            match fs::rename(&dir, &retired) {
                Ok(()) => self.doom(delay, retired),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                // Its topic id keeps a topic created later from taking it for its own.
                Err(error) => tracing::error!(dir = %dir.display(), %error, "deleted partition's folder stays"),
            }
            self.checkpoints.lock().forget(&(topic.to_owned(), index));
            self.cleaner.forget(topic, index);
        }
    }

    /// Removes a file or folder after a while.
    pub(super) fn doom(&self, delay: Duration, path: PathBuf) {
        let now = Instant::now();
        let due = now.checked_add(delay).unwrap_or(now + Duration::from_secs(u64::from(u32::MAX)));
        self.doomed.lock().push((due, path));
    }

    /// Partitions that take no records until the next start, because a write or an fsync has failed.
    pub fn failed_partitions(&self) -> usize {
        self.flusher.failures.count()
    }

    /// Partitions found so far whose files are damaged: they are neither read nor written until somebody repairs them.
    pub fn refused_partitions(&self) -> usize {
        self.flusher.refused.count()
    }

    /// Refuses every parked batch, since the broker stops: what it waits for may not come any more.
    pub fn dismiss_parked(&self) {
        self.partitions().iter().for_each(|partition| partition.dismiss_parked(AppendError::Gone));
    }

    /// Puts settings of compaction in force.
    pub fn configure_cleaner(self: &Arc<Self>, settings: CleanerSettings) {
        self.cleaner.configure(settings);
        if *self.stopping.lock() {
            return;
        }
        match self.cleaner.start_threads(&Arc::downgrade(self)) {
            Ok(started) => self.threads.lock().extend(started),
            Err(error) => tracing::error!(%error, "no more threads for compaction"),
        }
    }

    /// Cleans the dirtiest log that is due at `now_ms`, as the cleaner's threads do; false if none is.
    pub fn clean_dirtiest(&self, now_ms: i64) -> bool {
        self.cleaner.clean_dirtiest(self, now_ms)
    }

    /// What the cleaner has done.
    pub fn cleaner_status(&self) -> CleanerStatus {
        self.cleaner.status()
    }

    /// Every partition known.
    pub(super) fn partitions(&self) -> Vec<Arc<Partition>> {
        let topics = self.topics.lock();
        topics.values().flat_map(|topic| topic.partitions.values().cloned()).collect()
    }

    /// Names of folders of partitions that nobody has told of, in order: records of topics that are not known.
    ///
    /// # Errors
    /// What the system says of the data folder.
    pub fn strays(&self) -> io::Result<Vec<String>> {
        let found = list_partitions(&self.dir)?;
        let topics = self.topics.lock();
        let is_known = |topic: &str, index| topics.get(topic).is_some_and(|topic| topic.partitions.contains_key(index));
        let strays = found.iter().filter(|(topic, index)| !is_known(topic, index));
        let mut names: Vec<String> = strays.map(|(topic, index)| format!("{topic}-{index}")).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// Has the log starts of these partitions on the disk when it returns.
    ///
    /// # Errors
    /// What the system says. Segments that are before a log start may be removed all the same.
    pub fn keep_log_starts(&self, starts: impl IntoIterator<Item = (Arc<Partition>, i64)>) -> io::Result<()> {
        let mut starts = starts.into_iter().peekable();
        if starts.peek().is_none() {
            return Ok(());
        }
        let _writing = self.writing.lock();
        let log_starts = {
            let mut checkpoints = self.checkpoints.lock();
            for (partition, log_start) in starts {
                checkpoints.log_starts.insert((partition.topic().to_owned(), partition.index()), log_start);
            }
            // Written without the lock: whoever looks for a partition may need it.
            checkpoints.log_starts.clone()
        };
        self.flusher.space.freeing(is_full, || files::write_offsets(&self.dir.join(LOG_STARTS), &log_starts))?;
        files::sync_dir(&self.dir)
    }

    /// Writes the checkpoint files anew.
    pub(super) fn write_checkpoints(&self) -> io::Result<()> {
        let _writing = self.writing.lock();
        let partitions = self.partitions();
        let mut checkpoints = self.checkpoints.lock();
        for partition in partitions {
            let state = partition.state.lock();
            let key = (partition.topic().to_owned(), partition.index());
            if let LogState::Open(log) = &state.log {
                checkpoints.recovery_points.insert(key.clone(), log.recovery_point);
                checkpoints.log_starts.insert(key, log.log_start);
            }
        }
        self.save(&checkpoints)
    }

    /// Takes partitions that were recovered off the list of those that were not: what damages them from now on is judged by
    /// itself.
    pub(super) fn forget_recovered(&self) -> io::Result<()> {
        let _writing = self.writing.lock();
        let topics = self.topics.lock();
        let checkpoints = self.checkpoints.lock();
        let is_open = |(topic, index): &(String, i32)| {
            let partition = topics.get(topic).and_then(|topic| topic.partitions.get(index));
            let state = partition.and_then(|partition| partition.state.try_lock());
            state.is_some_and(|state| matches!(state.log, LogState::Open(_)))
        };
        let recovered: Vec<_> = checkpoints.unrecovered.keys().filter(|key| is_open(key)).cloned().collect();
        if recovered.is_empty() {
            return Ok(());
        }
        let mut left = checkpoints.unrecovered.clone();
        drop((checkpoints, topics));
        recovered.iter().for_each(|key| _ = left.remove(key));
        files::write_offsets(&self.dir.join(UNRECOVERED), &left)?;
        let mut checkpoints = self.checkpoints.lock();
        recovered.iter().for_each(|key| _ = checkpoints.unrecovered.remove(key));
        Ok(())
    }

    fn save(&self, checkpoints: &Checkpoints) -> io::Result<()> {
        files::write_offsets(&self.dir.join(RECOVERY_POINTS), &checkpoints.recovery_points)?;
        files::write_offsets(&self.dir.join(LOG_STARTS), &checkpoints.log_starts)
    }

    /// Clean shutdown: everything is on the disk and the next start has nothing to recover. Blocks; appends
    /// and reads fail from now on. Does nothing the second time.
    pub fn close(&self) {
        if std::mem::replace(&mut *self.stopping.lock(), true) {
            return;
        }
        self.stop.notify_all();
        self.cleaner.stop();
        self.flusher.stop();
        for thread in std::mem::take(&mut *self.threads.lock()) {
            if thread.join().is_err() {
                tracing::error!("a thread of the log has panicked");
            }
        }
        if let Err(error) = self.close_partitions() {
            tracing::error!(%error, dir = %self.dir.display(), "no clean shutdown, the next start recovers");
        }
    }

    /// Finishes every open log, has the file system write everything at once, and vouches for it.
    fn close_partitions(&self) -> io::Result<()> {
        let _writing = self.writing.lock();
        let partitions = self.partitions();
        let mut checkpoints = self.checkpoints.lock();
        let mut unrecovered = std::mem::take(&mut checkpoints.unrecovered);
        let mut finished = Ok(());
        if !checkpoints.clean {
            for key in list_partitions(&self.dir)? {
                unrecovered.entry(key).or_insert(KILLED);
            }
        }
        for partition in partitions {
            let key = (partition.topic().to_owned(), partition.index());
            let Some(mut log) = partition.leave(AppendError::Gone) else {
                continue;
            };
            let result = log.finish();
            checkpoints.log_starts.insert(key.clone(), log.log_start);
            if log.broken || result.is_err() {
                unrecovered.insert(key, KILLED);
            } else {
                checkpoints.recovery_points.insert(key.clone(), log.log_end);
                unrecovered.remove(&key);
            }
            finished = finished.and(result);
        }
        rustix::fs::syncfs(fs::File::open(&self.dir)?)?;
        self.save(&checkpoints)?;
        files::write_offsets(&self.dir.join(UNRECOVERED), &unrecovered)?;
        files::replace(&self.dir.join(CLEAN_SHUTDOWN), b"{\"version\":0,\"brokerEpoch\":-1}")?;
        files::sync_dir(&self.dir)?;
        finished
    }
}

impl Drop for Logs {
    /// Without [`Logs::close`] this is a crash, as far as the files are concerned; only the threads end.
    fn drop(&mut self) {
        *self.stopping.get_mut() = true;
        self.cleaner.stop();
        self.flusher.stop();
    }
}

/// Takes the marker away before anything is used, and makes sure that it is gone.
fn remove_marker(dir: &Path) -> io::Result<()> {
    match fs::remove_file(dir.join(CLEAN_SHUTDOWN)) {
        Ok(()) => files::sync_dir(dir),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Folders of deleted partitions that an earlier run did not get to remove.
fn list_doomed(dir: &Path) -> io::Result<Vec<(Instant, PathBuf)>> {
    let now = Instant::now();
    let is_doomed = |name: &str| name.ends_with(&format!("-{}", files::DELETED_DIR));
    Ok(list_dirs(dir)?.into_iter().filter(|name| is_doomed(name)).map(|name| (now, dir.join(name))).collect())
}

/// Topic and number of every partition's folder.
fn list_partitions(dir: &Path) -> io::Result<Vec<(String, i32)>> {
    let parse = |name: String| {
        let (topic, index) = name.rsplit_once('-')?;
        Some((topic.to_owned(), index.parse().ok()?))
    };
    Ok(list_dirs(dir)?.into_iter().filter_map(parse).collect())
}

fn list_dirs(dir: &Path) -> io::Result<Vec<String>> {
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
