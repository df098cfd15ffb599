//! All partitions of this broker, from start to clean shutdown: the registry, and operations on all of them.
//!
//! A request finds its partition in the [`registry`] and continues with that [`Replica`]. The broker's start opens no
//! log; the facts that an opening needs are in the checkpoint files.
//!
//! Invariant: the marker of a clean shutdown is on the disk only while no partition is in use. It vouches only for logs
//! that are whole on the disk.

mod any;
pub mod append;
mod cleaner;
mod deletion;
mod housekeeping;
mod producer_limit;
pub(crate) mod registry;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
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
pub use fullbore_log::partition::durability::{Durability, ReplicationTicket};
pub use fullbore_log::partition::error::{AppendError, ReadError};
pub use fullbore_log::partition::flushed::FlushTicket;
pub use fullbore_log::partition::outcome::{Acks, AppendStep, AppendTicket, Appended, Blocker, WrittenBatch};
pub use fullbore_log::partition::read::{EpochEnd, LogOffsets, Read, TimestampOffset};
pub use fullbore_log::partition::reorder_buffer::ReorderBuffer;
pub use fullbore_log::partition::terms::{AppendTerms, EarlyBatches, VerificationTime};
pub use fullbore_log::partition::waiters::Registration;
pub use fullbore_log::validation::{InvalidBatch, ValidBatch};

pub use registry::Origin;

use crate::diskless::{Diskless, TailsBefore};
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
    /// Diskless topics; set once, before the first topic.
    diskless: OnceLock<Diskless>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    is_closed: Mutex<bool>,
    /// True once the data directory records that its logs may lack acknowledged records ([`Partitions::mark_unclean`]).
    is_marked_unclean: AtomicBool,
}

impl Partitions {
    /// Opens the data directory, which exists and is locked by the caller, and starts the threads. Several threads
    /// flush, open and compact; one thread each serves the page cache, deletions and housekeeping. Opens no log.
    ///
    /// # Errors
    /// [`OpenError`] with the path, if it cannot be read or written.
    pub fn open(data_dir: &Path, config: &BrokerConfig) -> Result<Arc<Partitions>, OpenError> {
        Partitions::open_with(data_dir, config, Arc::new(DiskSpace::open(data_dir, 0)))
    }

    /// Opens the directory as [`Partitions::open`] does, with the broker's shared `space`.
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
            aside: aside::SetAsideFolders::default(),
            pending_removal: Mutex::new(pending_removal),
            leftovers: Default::default(),
            transient_read: LogRateLimit::default(),
            not_replicated: LogRateLimit::default(),
            cold,
            failing: Failures::default(),
            unwritable: Failures::default(),
            space,
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

    /// Starts the threads. Threads started before an error end when `self` is dropped.
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

    /// Serves diskless topics from now on.
    pub fn serve_diskless(&self, diskless: Diskless) {
        if self.diskless.set(diskless).is_err() {
            tracing::error!("cannot serve diskless topics twice: the first server stays");
        }
    }

    /// Returns the server of diskless topics, if there is one.
    pub fn diskless(&self) -> Option<&Diskless> {
        self.diskless.get()
    }

    /// Returns the partition of either kind, if it exists. Does not block.
    pub fn find_any(&self, topic_id: &Uuid, index: i32) -> Option<AnyPartition> {
        match self.find(topic_id, index) {
            Some(replica) => Some(AnyPartition::Classic(replica)),
            None => self.diskless()?.find(topic_id, index).map(AnyPartition::Diskless),
        }
    }

    /// Returns the classic partition, if it exists. Does not block.
    pub fn find(&self, topic_id: &Uuid, index: i32) -> Option<Arc<Replica>> {
        self.registry.find(topic_id, index)
    }

    /// Returns the state of direct reads, which go around the page cache.
    pub(crate) fn cold(&self) -> &Arc<DirectReads> {
        &self.log_dir.cold
    }

    /// Replaces the known brokers.
    pub fn put_brokers(&self, brokers: &Arc<Brokers>) {
        self.log_dir.cluster.put_brokers(brokers);
    }

    /// Gives a topic its partitions and settings, without blocking. Queues the recovery of partitions that a crash may
    /// have damaged. One thread at a time may call this and [`Partitions::delete_topic`].
    pub fn put_topic<'a>(
        &self,
        topic: (&str, Uuid),
        partitions: impl IntoIterator<Item = &'a Arc<PartitionRegistration>>,
        config: &Arc<TopicConfig>,
        origin: Origin,
    ) {
        self.put_topic_after(topic, partitions, config, origin, PastTopics::default());
    }

    /// Gives a topic its partitions, as [`Partitions::put_topic`] does. `past` are the deleted topics of its name that
    /// the metadata remembers.
    pub fn put_topic_after<'a>(
        &self,
        (name, id): (&str, Uuid),
        partitions: impl IntoIterator<Item = &'a Arc<PartitionRegistration>>,
        config: &Arc<TopicConfig>,
        origin: Origin,
        past: PastTopics,
    ) {
        if config.diskless {
            let count = i32::try_from(partitions.into_iter().count()).unwrap_or(i32::MAX);
            match self.diskless() {
                Some(diskless) => diskless.put_topic((name, id), count, config, self.tails_before(name, past)),
                None => tracing::warn!(
                    topic = name,
                    "cannot serve a diskless topic: clients use the brokers that have diskless.storage; set it here as well"
                ),
            }
            return;
        }
        let before = |topic: &Arc<str>, index| Before {
            replica: self.deletion.predecessor_of(topic, index),
            topic: past.before(index),
        };
        self.registry.put_topic((name, id), partitions, config, origin, before);
    }

    /// Returns a function from a partition's number to the producer tails of the deleted classic partition with that
    /// name and number.
    fn tails_before(&self, name: &str, past: PastTopics) -> TailsBefore {
        let (deletion, log_dir, name) = (Arc::clone(&self.deletion), Arc::clone(&self.log_dir), Arc::<str>::from(name));
        Box::new(move |index| {
            if let Some(deleted) = deletion.predecessor_of(&name, index) {
                // The deleted partition's log may still be open, and leaves its tails when it is retired.
                deleted.retire();
            }
            log_dir.carried_tails.of_classic(&(name.to_string(), index), past.before(index))
        })
    }

    /// Notes that all partitions of earlier runs are known.
    pub fn all_told(&self) {
        self.log_dir.opener.all_told();
        self.log_dir.aside.set_all_told();
    }

    /// Deletes a topic without blocking: its partitions are gone at once. [`Partitions::deleted`] waits until their
    /// directories are renamed. Their files are removed after file.delete.delay.ms.
    pub fn delete_topic(&self, id: Uuid) {
        match self.registry.remove_topic(id) {
            logs if logs.is_empty() => self.delete_logs_and_in_index(id, &[]),
            logs => self.deletion.add(id, &logs),
        }
    }

    /// Deletes a topic, classic or diskless, whose deletion an earlier process began.
    pub fn delete_topic_of_either_kind(&self, id: Uuid) {
        self.delete_logs_and_in_index(id, &self.registry.remove_topic(id));
    }

    /// Deletes a topic's logs and its rows in the index. Notes both deletions before it requests the one in the index,
    /// since either may end at once.
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

    /// Notes the deletion of those partitions of a classic topic that have no replica here. Their producers may begin
    /// anywhere in the next topic of the name.
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

    /// Notes that a diskless topic of `count` partitions is about to be deleted. If this broker may not know all
    /// producers of a partition, leaves partial tails. They let unknown producers begin anywhere in the next topic of
    /// the name. A broker that does not serve diskless topics knows no producers. A broker that does may lack the tails
    /// of an earlier topic of the name.
    pub fn note_diskless_deletion(&self, (name, id): (&str, Uuid), count: i32, past: &PastTopics) {
        let carried_tails = &self.log_dir.carried_tails;
        for index in 0..count {
            let key = (name.to_owned(), index);
            if self.diskless().is_none() || carried_tails.lacks(&key, past.before(index)) {
                carried_tails.leave_indexed(key, id, ProducerTails::partial());
            }
        }
    }

    /// Notes the version of the newest image and its next producer id. `is_gap` is true if this process has not
    /// followed the deletions before that image.
    pub fn note_image(&self, epoch: u64, next_producer_id: i64, is_gap: bool) {
        self.log_dir.carried_tails.note_image(epoch, next_producer_id, is_gap);
    }

    /// Waits until a deleted topic's logs are out of use and its directories renamed. The deletion goes on without a
    /// waiter.
    pub async fn deleted(&self, id: Uuid) {
        self.deletion.carried_out(id).await;
    }

    /// Waits for deleted topics of which only files to be removed are left, and returns their ids. Each id is returned
    /// once.
    pub async fn gone(&self) -> Vec<Uuid> {
        self.deletion.gone().await
    }

    /// Waits until the queues of classic and of diskless topics take further deletions.
    pub async fn deletions_have_room(&self) {
        self.deletion.has_room().await;
        if let Some(diskless) = self.diskless() {
            diskless.deletions_have_room().await;
        }
    }

    /// Sets the time after which silent producers are forgotten. Without this call, no producer is forgotten.
    pub fn expire_producers_after(&self, ms: u64) {
        self.housekeeping.expire_producers_after(ms);
        if let Some(diskless) = self.diskless() {
            diskless.expire_producers_after(ms);
        }
    }

    /// Returns the number of partitions with a failed write or fsync. They take no records until the broker's next
    /// start.
    pub fn failed_partitions(&self) -> usize {
        self.log_dir.flusher.failures.count()
    }

    /// Returns the number of partitions whose appends or reads have failed for seconds, though their logs are whole.
    pub fn unwritable_partitions(&self) -> usize {
        self.log_dir.unwritable.count()
    }

    /// Records in the data directory that logs may lack acknowledged records, since a write or an fsync has failed. The
    /// broker's next start reports that. Writes to the disk once.
    ///
    /// # Errors
    /// [`io::Error`] if the write fails. The next call repeats it.
    pub fn mark_unclean(&self) -> io::Result<()> {
        if !self.is_marked_unclean.load(Ordering::Acquire) {
            boot::forget(&self.log_dir.path)?;
            self.is_marked_unclean.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Returns the number of damaged partitions. A damaged partition is neither read nor written until it is repaired.
    pub fn refused_partitions(&self) -> usize {
        self.log_dir.flusher.refused.count()
    }

    /// Returns the files that power losses have left beside the logs, in the directories that were checked. Reads the
    /// disk.
    pub fn set_aside(&self) -> SetAside {
        self.log_dir.aside.total()
    }

    /// Ends the waits of requests, since the broker stops. Refuses parked batches, wakes the waiters of acks=all, and
    /// ends openings.
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

    /// Applies settings of compaction.
    pub fn configure_cleaner(&self, settings: CleanerSettings) {
        self.cleaner.configure(settings);
        let is_closed = self.is_closed.lock();
        if *is_closed {
            return;
        }
        match self.cleaner.start_threads() {
            Ok(started) => self.threads.lock().extend(started),
            Err(error) => {
                tracing::error!(%error, "cannot start more compaction threads: the running ones compact alone")
            }
        }
    }

    /// Cleans the dirtiest log that is due at `now_ms`, as the cleaner's threads do. Returns false if no log is due, or
    /// another thread cleans that log.
    pub fn clean_dirtiest(&self, now_ms: i64) -> bool {
        self.cleaner.clean_dirtiest(now_ms)
    }

    /// Returns the work of the cleaner since the broker's start.
    pub fn cleaner_status(&self) -> CleanerStatus {
        self.cleaner.status()
    }

    /// Returns the partitions that were written or read in the last half minute, by topic id and number. Does not
    /// block.
    pub fn in_use(&self) -> Vec<(Uuid, i32)> {
        let partitions = self.registry.partitions();
        let in_use = partitions.iter().filter(|partition| partition.is_in_use(IN_USE_ROUNDS));
        in_use.map(|partition| (partition.topic_id(), partition.index())).collect()
    }

    /// Returns the largest number of records of a partition between last stable offset and high watermark. Counts
    /// partitions that this broker leads, and diskless ones. Skips logs that are not open, or locked by another thread.
    pub fn stable_lag_max(&self) -> u64 {
        let led = self.registry.partitions().iter().filter_map(|partition| partition.stable_lag()).max();
        led.max(self.diskless().map(Diskless::stable_lag_max)).unwrap_or(0)
    }

    /// Returns all known partitions.
    pub(crate) fn partitions(&self) -> Vec<Arc<Replica>> {
        self.registry.partitions()
    }

    /// Returns the topics that have directories: name, id, and one more than the largest partition number. Skips
    /// directories without a topic id.
    ///
    /// # Errors
    /// [`io::Error`] if the data directory cannot be read.
    pub fn topics_on_disk(&self) -> io::Result<BTreeMap<(String, Uuid), i32>> {
        files::topics_in(&self.log_dir.path)
    }

    /// Returns the names of directories of unknown partitions, in order.
    ///
    /// # Errors
    /// [`io::Error`] if the data directory cannot be read.
    pub fn strays(&self) -> io::Result<Vec<String>> {
        let mut known: HashSet<_> = self.partitions().iter().map(|partition| partition.key()).collect();
        // The names are read before the list of directories, because a deleted partition's directory may be renamed
        // between the two.
        known.extend(self.deletion.names());
        let found = list_partitions(&self.log_dir.path)?;
        let strays = found.iter().filter(|key| !known.contains(*key));
        let mut names: Vec<String> = strays.map(|(topic, index)| format!("{topic}-{index}")).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// Writes the log starts of `partitions` to the disk.
    ///
    /// # Errors
    /// [`io::Error`] if the write fails. Even then, segments before a log start may be removed.
    pub fn keep_log_starts(&self, partitions: &[Arc<Replica>]) -> io::Result<()> {
        if partitions.is_empty() { Ok(()) } else { self.log_dir.checkpoints.keep_log_starts(partitions) }
    }

    /// Flushes all logs to the disk.
    ///
    /// # Errors
    /// [`io::Error`] if the data directory's file system cannot be flushed.
    pub fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(fs::File::open(&self.log_dir.path)?)?)
    }

    /// Shuts down cleanly: puts all records on the disk, so that the broker's next start recovers nothing. Blocks.
    /// Appends and reads fail from now on. A second call does nothing.
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
                tracing::error!("a thread of the log has panicked");
            }
        }
        if let Err(error) = self.log_dir.checkpoints.write_high_watermarks(&self.partitions()) {
            tracing::warn!(%error, "cannot write high watermarks: a restart begins with older ones; check the disk");
        }
        if let Err(error) = self.close_partitions() {
            tracing::error!(%error, dir = %self.log_dir.path.display(), "cannot shut down cleanly: the next start recovers the logs; check the disk");
        }
    }

    fn stop_threads(&self) {
        self.housekeeping.stop();
        self.log_dir.opener.stop();
        // Openings under way end early, so that the threads of the opener end soon.
        self.partitions().iter().for_each(|partition| partition.hurry());
        self.cleaner.stop();
        self.deletion.stop();
        self.log_dir.flusher.stop();
    }

    /// Finishes every open log, syncs the file system, and writes the marker that vouches for the logs.
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
        let all = list_partitions(dir)?;
        self.sync()?;
        self.log_dir.checkpoints.finish(left, all)?;
        if is_any_broken {
            // A broken log may lack records, so no clean-shutdown marker is written.
            return finished;
        }
        let marker = dir.join(CLEAN_SHUTDOWN);
        let space = &self.log_dir.space;
        space.freeing(is_full, || files::replace(&marker, b"{\"version\":0,\"brokerEpoch\":-1}"))?;
        files::sync_dir(dir)?;
        finished
    }

    /// Finishes a log. On a full disk the log may use half of the reserve; the other half is left for the checkpoints.
    /// If a log finds no space, the broker's next start recovers it.
    fn finish(&self, log: &mut Log) -> io::Result<()> {
        let space = &self.log_dir.space;
        if space.has_half() { space.freeing(is_full, || log.finish()) } else { log.finish() }
    }
}

impl Drop for Partitions {
    /// Ends the threads. Without [`Partitions::close`] the files are as after a crash.
    fn drop(&mut self) {
        self.stop_threads();
    }
}

/// Removes the marker before the first use of the directory, and syncs the removal.
fn remove_marker(dir: &Path) -> io::Result<()> {
    match fs::remove_file(dir.join(CLEAN_SHUTDOWN)) {
        Ok(()) => files::sync_dir(dir),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Returns the directories of deleted partitions that an earlier run has not removed.
fn list_pending_removal(dir: &Path) -> io::Result<Vec<(Instant, PathBuf)>> {
    let now = Instant::now();
    let is_doomed = |name: &str| name.ends_with(&format!("-{}", files::DELETED_DIR));
    Ok(list_dirs(dir)?.into_iter().filter(|name| is_doomed(name)).map(|name| (now, dir.join(name))).collect())
}
