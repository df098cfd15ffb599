//! All partitions of this broker, from its start to a clean shutdown: the registry, and the operations that apply to
//! all partitions.
//!
//! A request finds its partition in the [`registry`] and then uses that [`Replica`]. No log is opened when the broker
//! starts. The checkpoint files contain all data that is needed to open a log later.
//!
//! Invariant: the clean-shutdown marker is on the disk only while no partition is in use. The marker does not apply to
//! logs that are incomplete on the disk. The list of unrecovered partitions contains such logs.

mod any;
pub mod append;
mod cleaner;
mod deletion;
mod housekeeping;
mod producer_limit;
pub(crate) mod registry;
mod restored;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Instant;

use fullbore_rules::replica::{Brokers, PartitionRegistration};
use fullbore_rules::sequence::{PastTopics, ProducerTails};
use fullbore_wire::Uuid;
use parking_lot::Mutex;

pub use crate::replica::Replica;
pub use crate::replica::data_dir::cluster::led_by;
pub use crate::replica::follower_reads::FollowerPlace;
pub use crate::replica::following::{FollowError, FromLeader, Replicated};
pub use crate::replica::read::LeaderRead;
pub use any::AnyPartition;
pub use cleaner::CleanerStatus;
pub use fullbore_config::CleanerSettings;
pub use fullbore_log::aside::SetAside;
pub use fullbore_log::error::{OpenError, StorageError};
pub use fullbore_log::partition::dirty_partitions::DirtyPartitions;
pub use fullbore_log::partition::error::{AppendError, ReadError};
pub use fullbore_log::partition::flushed::FlushTicket;
pub use fullbore_log::partition::outcome::{
    Acks, AppendStep, AppendTicket, Appended, Blocker, Durability, ReplicationTicket, WrittenBatch,
};
pub use fullbore_log::partition::read::{EpochEnd, LogOffsets, Read, TimeQuery, TimestampOffset};
pub use fullbore_log::partition::reorder_buffer::ReorderBuffer;
pub use fullbore_log::partition::terms::{AppendTerms, EarlyBatches, VerificationTime};
pub use fullbore_log::partition::waiters::Registration;
pub use fullbore_log::validation::{InvalidBatch, ValidBatch};

pub use registry::Origin;

use crate::replica::Before;
use crate::replica::data_dir::LogDir;
use crate::replica::data_dir::carried_tails::CarriedTails;
use crate::replica::data_dir::checkpoints::{Checkpoints, CleanShutdown};
use crate::replica::data_dir::cleanings::Cleanings;
use crate::replica::data_dir::cluster::ClusterView;
use crate::replica::data_dir::failures::Failures;
use crate::replica::data_dir::flusher::Flusher;
use cleaner::Cleaner;
use deletion::Deletion;
use fullbore_config::{BrokerConfig, TopicConfig};
use fullbore_diskless::{Diskless, TailsBefore};
use fullbore_host::disk_space::DiskSpace;
use fullbore_host::files::is_full;
use fullbore_host::log_rate_limit::LogRateLimit;
use fullbore_log::Log;
use fullbore_log::aside;
use fullbore_log::boot;
use fullbore_log::direct_io::DirectReads;
use fullbore_log::files::{self, CLEAN_SHUTDOWN, list_dirs, list_partitions};
use fullbore_log::page_cache::PageCache;
use housekeeping::{Housekeeping, IN_USE_ROUNDS};
use registry::Registry;

/// All partitions of one data directory.
#[derive(Debug)]
pub struct Partitions {
    registry: Arc<Registry>,
    log_dir: Arc<LogDir>,
    cleaner: Arc<Cleaner>,
    deletion: Arc<Deletion>,
    housekeeping: Arc<Housekeeping>,
    /// The service of diskless topics. Set at most once, before the first topic is registered.
    diskless: OnceLock<Diskless>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    is_closed: Mutex<bool>,
    /// True once [`Partitions::mark_unclean`] has recorded on the disk that acknowledged records may be missing.
    is_marked_unclean: AtomicBool,
}

impl Partitions {
    /// Opens the data directory and starts the threads. The caller must have created and locked the directory. Several
    /// threads flush, open and compact logs. One thread each does housekeeping, deletes topics, and handles the page
    /// cache. Opens no log.
    ///
    /// # Errors
    /// Fails with [`OpenError`] if a path cannot be read or written.
    pub fn open(data_dir: &Path, config: &BrokerConfig) -> Result<Arc<Partitions>, OpenError> {
        Partitions::open_with(data_dir, config, Arc::new(DiskSpace::open(data_dir, 0)))
    }

    /// Like [`Partitions::open`], but uses the broker's shared `space`.
    pub(crate) fn open_with(
        data_dir: &Path,
        config: &BrokerConfig,
        space: Arc<DiskSpace>,
    ) -> Result<Arc<Partitions>, OpenError> {
        let failed = |error| OpenError { path: data_dir.to_owned(), error };
        let path: Arc<Path> = data_dir.into();
        let checkpoints = Checkpoints::read(&path, space.clone());
        let pending_removal = list_pending_removal(data_dir).map_err(failed)?;
        remove_marker(data_dir).map_err(failed)?;
        let cold: Arc<DirectReads> = Arc::default();
        let storage = &config.storage;
        let page_cache = PageCache::new(storage.page_cache_kept, cold.ghosts().clone());
        let log_dir = Arc::new(LogDir {
            path,
            checkpoints,
            cluster: ClusterView::new(config.node.id, config.replication.lag_time_max),
            flusher: Arc::new(Flusher::new(page_cache, space.clone())),
            opener: Arc::default(),
            carried_tails: CarriedTails::default(),
            cleanings: Cleanings::read(data_dir, space.clone()),
            aside: aside::SetAsideDirectories::default(),
            pending_removal: Mutex::new(pending_removal),
            leftovers: Default::default(),
            transient_read: LogRateLimit::default(),
            not_replicated: LogRateLimit::default(),
            cold,
            failing: Failures::default(),
            unwritable: Failures::default(),
            space,
            keeps_records_until_ms: AtomicI64::new(i64::MIN),
            flushes_markers: config.transactions.flushes,
            flushes_transactions: config.transactions.flushes && config.membership.control_plane.is_some(),
        });
        log_dir.note_deleted_earlier();
        let registry = Arc::new(Registry::new(log_dir.clone()));
        let partitions = Arc::new(Partitions {
            cleaner: Arc::new(Cleaner::new(registry.clone(), storage.cleaner)),
            deletion: Arc::default(),
            housekeeping: Arc::new(Housekeeping::new(registry.clone(), storage)),
            diskless: OnceLock::new(),
            registry,
            log_dir,
            threads: Mutex::default(),
            is_closed: Mutex::new(false),
            is_marked_unclean: AtomicBool::new(false),
        });
        partitions.start_threads(storage.recovery_threads).map_err(failed)?;
        Ok(partitions)
    }

    /// Starts the threads. If one cannot be started, the running ones end when `self` is dropped.
    fn start_threads(&self, recovery_threads: usize) -> io::Result<()> {
        let mut threads = self.threads.lock();
        threads.extend(self.log_dir.flusher.start()?);
        threads.push(self.housekeeping.start()?);
        threads.push(self.deletion.start()?);
        for thread in self.log_dir.opener.start(recovery_threads) {
            threads.push(thread?);
        }
        threads.extend(self.cleaner.start_threads()?);
        Ok(())
    }

    /// Starts the service of diskless topics.
    pub fn serve_diskless(&self, diskless: Diskless) {
        if self.diskless.set(diskless).is_err() {
            tracing::error!("cannot start the service of diskless topics a second time: the first one stays in use");
        }
    }

    /// Returns the service of diskless topics, if there is one.
    pub fn diskless(&self) -> Option<&Diskless> {
        self.diskless.get()
    }

    /// Returns the partition if it exists, classic or diskless. Does not block.
    pub fn find_any(&self, topic_id: &Uuid, index: i32) -> Option<AnyPartition> {
        match self.find(topic_id, index) {
            Some(replica) => Some(AnyPartition::Classic(replica)),
            None => self.diskless()?.find(topic_id, index).map(AnyPartition::Diskless),
        }
    }

    /// Returns the classic partition if it exists. Does not block.
    pub fn find(&self, topic_id: &Uuid, index: i32) -> Option<Arc<Replica>> {
        self.registry.find(topic_id, index)
    }

    /// Returns the state of direct reads, which bypass the page cache.
    pub(crate) fn cold(&self) -> &Arc<DirectReads> {
        &self.log_dir.cold
    }

    /// Applies the broker registrations of a new image.
    pub fn put_brokers(&self, brokers: &Arc<Brokers>) {
        self.log_dir.cluster.put_brokers(brokers);
    }

    /// Makes this broker stand down, or lead its partitions again, without blocking.
    pub fn stand_down(&self, stands_down: bool) {
        if self.log_dir.cluster.set_stands_down(stands_down) {
            self.registry.partitions().iter().for_each(|partition| partition.note_news());
        }
    }

    /// Creates or updates the partitions of a topic, without blocking. Queues the recovery of partitions that a crash
    /// may have damaged. Only one thread at a time may call this function or [`Partitions::delete_topic`].
    pub fn put_topic<'a>(
        &self,
        name: &str,
        id: Uuid,
        partitions: impl IntoIterator<Item = &'a Arc<PartitionRegistration>>,
        config: &Arc<TopicConfig>,
        origin: Origin,
    ) {
        self.put_topic_after(name, id, partitions, config, origin, PastTopics::default());
    }

    /// Like [`Partitions::put_topic`]. `past` contains the deleted topics of the same name that the metadata remembers.
    pub fn put_topic_after<'a>(
        &self,
        name: &str,
        id: Uuid,
        partitions: impl IntoIterator<Item = &'a Arc<PartitionRegistration>>,
        config: &Arc<TopicConfig>,
        origin: Origin,
        past: PastTopics,
    ) {
        if config.diskless {
            let epochs: Vec<i32> = partitions.into_iter().map(|partition| partition.leader_epoch).collect();
            let count = i32::try_from(epochs.len()).unwrap_or(i32::MAX);
            match self.diskless() {
                Some(diskless) => {
                    diskless.put_topic(name, id, count, config, self.tails_before(name, past));
                    diskless.set_leader_epochs(id, epochs.into_iter());
                }
                None => tracing::warn!(
                    topic = name,
                    "cannot serve a diskless topic: clients use the brokers that have diskless.storage; set it here as well"
                ),
            }
            return;
        }
        let before = |topic: &Arc<str>, index| Before {
            replica: self.deletion.name_holder_of(topic, index),
            topic: past.before(index),
        };
        self.registry.put_topic(name, id, partitions, config, origin, before);
    }

    /// Returns a function that finds the last sequences of producers (*tails*) of a deleted classic partition. The
    /// topic had this name; the argument of the function is the partition number.
    fn tails_before(&self, name: &str, past: PastTopics) -> TailsBefore {
        let (deletion, log_dir, name) = (Arc::clone(&self.deletion), Arc::clone(&self.log_dir), Arc::<str>::from(name));
        Box::new(move |index| {
            if let Some(deleted) = deletion.name_holder_of(&name, index) {
                // The tails are not stored while the deleted partition's log is open. Retiring the partition closes the
                // log and stores them.
                deleted.retire();
            }
            log_dir.carried_tails.of_classic(&(name.to_string(), index), past.before(index))
        })
    }

    /// Records that all partitions of earlier runs are registered now.
    pub fn note_all_registered(&self) {
        self.log_dir.opener.note_all_queued();
        self.log_dir.aside.set_all_known();
    }

    /// Deletes a topic without blocking. Requests no longer find its partitions. [`Partitions::deleted`] waits until
    /// their directories are renamed. Their files are removed after file.delete.delay.ms.
    pub fn delete_topic(&self, id: Uuid) {
        match self.registry.remove_topic(id) {
            logs if logs.is_empty() => self.delete_logs_and_in_index(id, &[]),
            logs => self.deletion.add(id, &logs),
        }
    }

    /// Deletes a topic that an earlier process had begun to delete. The topic may be classic or diskless.
    pub fn delete_topic_of_either_kind(&self, id: Uuid) {
        self.delete_logs_and_in_index(id, &self.registry.remove_topic(id));
    }

    /// Deletes a topic's logs, and its rows in the index of diskless topics. Registers both deletions before it
    /// requests the one in the index. Otherwise the deletion in the index could end first, and the topic would be
    /// reported as gone while it still has logs.
    fn delete_logs_and_in_index(&self, id: Uuid, logs: &[Arc<Replica>]) {
        let diskless = self.diskless();
        if diskless.is_some() {
            self.deletion.add_to_index(id);
        }
        self.deletion.add(id, logs);
        if let Some(diskless) = diskless {
            let deletion = Arc::clone(&self.deletion);
            let stopped = diskless.delete_topic(id, Box::new(move || deletion.is_out_of_index(id)));
            stopped.into_iter().for_each(|(key, tails)| self.log_dir.carried_tails.leave_indexed(key, id, tails));
        }
    }

    /// Handles the deletion of partitions of a classic topic that have no replica on this broker. This broker does not
    /// know their producers. So it allows any first sequence to producers in the next topic with the same name.
    pub fn note_deleted_elsewhere<'a>(
        &self,
        (name, id): (&str, Uuid),
        partitions: impl IntoIterator<Item = &'a Arc<PartitionRegistration>>,
    ) {
        let carried_tails = &self.log_dir.carried_tails;
        for (index, registered) in (0..).zip(partitions) {
            if !registered.replicas.contains(&self.log_dir.cluster.node_id) {
                carried_tails.leave((name.to_owned(), index), id, ProducerTails::partial(), carried_tails.epoch());
            }
        }
    }

    /// Handles the deletion of a diskless topic with `count` partitions. If this broker may not know all producers of a
    /// partition, stores [`ProducerTails::partial`] for it. Unknown producers may then begin with any sequence in the
    /// next topic of that name. A broker that does not serve diskless topics knows no producers. Any other broker may
    /// lack those that a partition has inherited from earlier deleted ones.
    pub fn note_diskless_deletion(&self, (name, id): (&str, Uuid), count: i32, past: &PastTopics) {
        let carried_tails = &self.log_dir.carried_tails;
        for index in 0..count {
            let key = (name.to_owned(), index);
            if self.diskless().is_none() || carried_tails.lacks(&key, past.before(index)) {
                carried_tails.leave_indexed(key, id, ProducerTails::partial());
            }
        }
    }

    /// Records the version of the newest image and its next producer id. `is_gap` is true if this process may have
    /// missed deletions before that image.
    pub fn note_image(&self, epoch: u64, next_producer_id: i64, is_gap: bool) {
        self.log_dir.carried_tails.note_image(epoch, next_producer_id, is_gap);
    }

    /// Waits until the logs of a deleted topic are closed and its directories renamed. The deletion continues even if
    /// the caller stops waiting.
    pub async fn deleted(&self, id: Uuid) {
        self.deletion.carried_out(id).await;
    }

    /// Waits until the deletion of at least one topic is complete, except for the removal of its files. Returns the
    /// topic ids; each id is returned once.
    pub async fn gone(&self) -> Vec<Uuid> {
        self.deletion.gone().await
    }

    /// Waits until another topic's deletion fits into the queues of deletions.
    pub async fn deletions_have_room(&self) {
        self.deletion.has_room().await;
        if let Some(diskless) = self.diskless() {
            diskless.deletions_have_room().await;
        }
    }

    /// Sets how long producers may be silent before they expire. Until this is called, no producer expires.
    pub fn expire_producers_after(&self, ms: u64) {
        self.housekeeping.expire_producers_after(ms);
        if let Some(diskless) = self.diskless() {
            diskless.expire_producers_after(ms);
        }
    }

    /// Returns the number of partitions with a failed write or fsync. They accept no records until the broker restarts.
    pub fn failed_partitions(&self) -> usize {
        self.log_dir.flusher.failures.count()
    }

    /// Returns the number of partitions without a failed write or fsync whose appends or reads have failed for seconds,
    /// or whose logs lack committed records.
    pub fn unwritable_partitions(&self) -> usize {
        self.log_dir.unwritable.count()
    }

    /// Records on the disk that the logs may lack acknowledged records, because a write or an fsync has failed. The
    /// next start of the broker reports this to the cluster. After a successful call, later calls do nothing.
    ///
    /// # Errors
    /// Fails with an I/O error if the record cannot be written. The next call tries again.
    pub fn mark_unclean(&self) -> io::Result<()> {
        if !self.is_marked_unclean.load(Ordering::Acquire) {
            boot::forget(&self.log_dir.path)?;
            self.is_marked_unclean.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Returns the number of damaged partitions, which are neither read nor written until they are repaired.
    pub fn refused_partitions(&self) -> usize {
        self.log_dir.flusher.refused.count()
    }

    /// Returns the number and size of the files that recoveries after a power loss have set aside. Counts only the
    /// directories that were checked so far. Reads the disk.
    pub fn set_aside(&self) -> SetAside {
        self.log_dir.aside.total()
    }

    /// Ends all waits of requests when the broker stops: refuses parked batches, wakes requests that wait for replicas
    /// (acks=all), and aborts the opening of logs.
    pub fn dismiss_waiting(&self) {
        self.log_dir.opener.stop();
        for partition in self.partitions() {
            partition.dismiss_parked(AppendError::Gone);
            partition.wake_waiters();
        }
        if let Some(diskless) = self.diskless() {
            diskless.dismiss_waiting();
        }
    }

    /// Applies new compaction settings.
    pub fn configure_cleaner(&self, settings: CleanerSettings) {
        self.cleaner.configure(settings);
        let is_closed = self.is_closed.lock();
        if *is_closed {
            return;
        }
        match self.cleaner.start_threads() {
            Ok(started) => self.threads.lock().extend(started),
            Err(error) => {
                tracing::error!(%error, "cannot start more compaction threads: only the running threads compact logs")
            }
        }
    }

    /// Compacts the dirtiest log that is due at `now_ms`, like the threads of the cleaner. Returns false if no log is
    /// due, or if another thread is cleaning that log.
    pub fn clean_dirtiest(&self, now_ms: i64) -> bool {
        self.cleaner.clean_dirtiest(now_ms)
    }

    /// Returns the counters of the cleaner since the broker started.
    pub fn cleaner_status(&self) -> CleanerStatus {
        self.cleaner.status()
    }

    /// Returns the topic id and number of each partition that was used in the last half minute. Does not block.
    pub fn in_use(&self) -> Vec<(Uuid, i32)> {
        let partitions = self.registry.partitions();
        let in_use = partitions.iter().filter(|partition| partition.is_in_use(IN_USE_ROUNDS));
        in_use.map(|partition| (partition.topic_id(), partition.index())).collect()
    }

    /// Returns the largest number of records between the last stable offset and the high watermark of any partition.
    /// Counts diskless partitions, and the classic partitions that this broker leads. Skips logs that are not open or
    /// are locked by another thread.
    pub fn stable_lag_max(&self) -> u64 {
        let led = self.registry.partitions().iter().filter_map(|partition| partition.stable_lag()).max();
        led.max(self.diskless().map(Diskless::stable_lag_max)).unwrap_or(0)
    }

    /// Returns all registered partitions.
    pub(crate) fn partitions(&self) -> Vec<Arc<Replica>> {
        self.registry.partitions()
    }

    /// Returns the topics that have directories: each topic's name and id, and its largest partition number plus one.
    /// Skips directories without a topic id.
    ///
    /// # Errors
    /// Fails with an I/O error if the data directory cannot be read.
    pub fn topics_on_disk(&self) -> io::Result<BTreeMap<(String, Uuid), i32>> {
        files::topics_in(&self.log_dir.path)
    }

    /// Writes the log starts of `partitions` to the disk.
    ///
    /// # Errors
    /// Fails with an I/O error if they cannot be written. The new log starts still apply in memory, so retention may
    /// remove segments before them.
    pub fn keep_log_starts(&self, partitions: &[Arc<Replica>]) -> io::Result<()> {
        if partitions.is_empty() { Ok(()) } else { self.log_dir.checkpoints.keep_log_starts(partitions) }
    }

    /// Writes all data of the file system to the disk.
    ///
    /// # Errors
    /// Fails with an I/O error if the file system cannot be synced.
    pub fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(fs::File::open(&self.log_dir.path)?)?)
    }

    /// Shuts down cleanly, so that the next start does not have to recover any log. Blocks until all records are on the
    /// disk. Appends and reads fail afterwards. A second call does nothing.
    pub fn close(&self) {
        if std::mem::replace(&mut *self.is_closed.lock(), true) {
            return;
        }
        if let Some(diskless) = self.diskless() {
            diskless.close();
        }
        self.stop_threads();
        for thread in std::mem::take(&mut *self.threads.lock()) {
            if thread.join().is_err() {
                tracing::error!("a background thread of the logs has panicked");
            }
        }
        if let Err(error) = self.log_dir.checkpoints.write_high_watermarks(&self.partitions()) {
            tracing::warn!(%error, "cannot write high watermarks: a restart begins with older high watermarks; check \
                 the disk");
        }
        if let Err(error) = self.close_partitions() {
            tracing::error!(%error, dir = %self.log_dir.path.display(), "cannot shut down cleanly: the next start recovers the logs; check the disk");
        }
    }

    fn stop_threads(&self) {
        self.housekeeping.stop();
        self.log_dir.opener.stop();
        // Abort the opening of logs, so that the threads of the opener end soon.
        self.partitions().iter().for_each(|partition| partition.hurry());
        self.cleaner.stop();
        self.deletion.stop();
        self.log_dir.flusher.stop();
    }

    /// Closes every open log, syncs the file system, and writes the clean-shutdown marker.
    fn close_partitions(&self) -> io::Result<()> {
        let (mut finished, mut is_any_broken) = (Ok(()), false);
        let mut left = Vec::new();
        for partition in self.partitions() {
            let Some(mut log) = partition.leave(AppendError::Gone) else {
                continue;
            };
            let result = self.finish(&mut log);
            is_any_broken |= log.is_broken();
            let is_whole = !log.is_broken() && result.is_ok();
            left.push(CleanShutdown {
                key: partition.key(),
                log_start: log.log_start(),
                finished: is_whole.then_some(log.log_end()),
            });
            finished = finished.and(result);
        }
        let dir = &self.log_dir.path;
        self.log_dir.space.check_place()?;
        let all = list_partitions(dir)?;
        self.sync()?;
        self.log_dir.checkpoints.finish(left, all)?;
        if is_any_broken {
            // Do not write the clean-shutdown marker, because the broken log may lack records.
            return finished;
        }
        let marker = dir.join(CLEAN_SHUTDOWN);
        let space = &self.log_dir.space;
        space.freeing(is_full, || files::replace(&marker, b"{\"version\":0,\"brokerEpoch\":-1}"))?;
        files::sync_dir(dir)?;
        finished
    }

    /// Writes the rest of a log to the disk before it is closed. On a full disk, the logs may use half of the disk
    /// reserve, so that space remains for the checkpoints. The next start recovers a log for which there was no space.
    fn finish(&self, log: &mut Log) -> io::Result<()> {
        let space = &self.log_dir.space;
        if space.has_half() { space.freeing(is_full, || log.finish()) } else { log.finish() }
    }
}

impl Drop for Partitions {
    /// Ends the threads. If [`Partitions::close`] was not called before, the files are in the same state as after a
    /// crash.
    fn drop(&mut self) {
        self.stop_threads();
    }
}

/// Removes the clean-shutdown marker before the directory is used, and syncs the removal.
fn remove_marker(dir: &Path) -> io::Result<()> {
    match fs::remove_file(dir.join(CLEAN_SHUTDOWN)) {
        Ok(()) => files::sync_dir(dir),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Returns the directories of deleted partitions that an earlier run has renamed but not removed. Their removal is due
/// at once.
fn list_pending_removal(dir: &Path) -> io::Result<Vec<(Instant, PathBuf)>> {
    let now = Instant::now();
    let is_doomed = |name: &str| name.ends_with(&format!("-{}", files::DELETED_DIR));
    Ok(list_dirs(dir)?.into_iter().filter(|name| is_doomed(name)).map(|name| (now, dir.join(name))).collect())
}
