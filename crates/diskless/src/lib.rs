//! Diskless topics. Their records are in an object store. An index (SQLite or PostgreSQL) has the order of the records.
//!
//! When a batch is written, a [`partition`] passes it to the [`pipeline`]. The pipeline uploads it as a part of an
//! object and commits the object to the [`index`]. When records are read, the [`reader`] looks up their extents in the
//! index. The reader takes the bytes from the [`cache`], or [`fetch`] gets them from the store. An extent consists of
//! the adjacent batches of one partition within one object.
//!
//! The validation of batches is in `fullbore-log`. The broker chooses between classic and diskless partitions.
//!
//! Invariant: an acknowledged batch is in the store and in the index.

mod append_clock;
mod assemble;
mod block_claims;
pub mod cache;
mod change_feed;
pub mod failed;
mod fair_permits;
mod fetch;
#[cfg(test)]
mod flooded;
mod get_window;
mod health;
mod hedge;
mod housekeeping;
pub mod index;
pub mod objects;
pub mod partition;
pub mod partition_view;
pub mod pipeline;
mod read_ahead;
pub mod reader;
mod response_budget;
mod retention;
#[cfg(test)]
mod schedules;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod transactions_tests;
mod tries;

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use fullbore_rules::commit::DisklessPartitionId;
use fullbore_rules::commit::rotation::RotationSettings;
use fullbore_rules::sequence::ProducerTails;
use fullbore_wire::Uuid;
use parking_lot::Mutex;

pub use health::StoreHealth;
pub use index::TailsBefore;
pub use objects::counts::StoreUse;
pub use partition::{DisklessPartition, Unblocked};

use cache::ObjectCache;
use fetch::RangeFetcher;
use fullbore_config::{BrokerConfig, DisklessConfig, TopicConfig};
use fullbore_db::StoreError;
use fullbore_db::postgres::known_changes::KnownChanges;
use fullbore_host::disk_space::DiskSpace;
use fullbore_host::metrics::Metrics;
use fullbore_host::start_retries::StartRetries;
use fullbore_log::partition::error::ReadError;
use fullbore_log::partition::left_out::LeftOut;
use housekeeping::{DisklessTopics, RetentionTerms};
use index::{
    Deleted, Index, IndexChanges, IndexOwner, IndexThread, Lacking, OpenFileError, RunFinder, SqliteIndex, postgres,
};
use objects::counts::StoreCounts;
use objects::{Objects, StartObjectsError};
use partition::Services;
use partition_view::PartitionView;
use pipeline::Pipeline;
use pipeline::upload::{UploadSettings, Uploader};
use reader::{AHEAD_BYTES, Reader};
use response_budget::ResponseBudget;

/// Maximum number of concurrent GETs.
const GETS: usize = 16;
/// Maximum number of partitions whose rows one query of the index reads.
const ROWS_LOOKED_AT: usize = 1_000;

/// All diskless partitions of a broker, and the services that they share.
pub struct Diskless {
    topics: Arc<DisklessTopics>,
    services: Services,
    counts: Arc<StoreCounts>,
    health: Arc<StoreHealth>,
    thread: Mutex<Option<IndexThread>>,
    /// `producer.id.expiration.ms`, or `i64::MAX` before the first call of [`Diskless::expire_producers_after`].
    producers_expire_after_ms: Arc<AtomicI64>,
    /// See [`Diskless::keep_records_until`].
    keeps_records_until_ms: Arc<AtomicI64>,
}

/// The reason why diskless topics cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum OpenDisklessError {
    /// The object store cannot be used.
    #[error(transparent)]
    Objects(#[from] StartObjectsError),
    /// The index in the cluster's database is an older copy: it lacks changes that this broker has counted.
    #[error(
        "cannot use the index of diskless topics: {0}; restore the newest backup of its database, or run fullbore \
         admin accept-copy to continue without the missing records"
    )]
    OlderIndex(Lacking),
    /// The index file lacks changes that this broker has counted: it is an older copy, or its write-ahead log is
    /// damaged.
    #[error(
        "cannot use diskless.db: {0}, so acknowledged records are missing; restore the newest diskless.db and \
         diskless.db-wal (which may be damaged), or remove {FILE} to continue without the missing records", FILE = index::NOTED_CHANGES
    )]
    OlderFile(Lacking),
    /// The index or its thread has failed.
    #[error("cannot use the index of diskless topics: {0}")]
    Index(String),
}

impl From<OpenFileError> for OpenDisklessError {
    fn from(error: OpenFileError) -> OpenDisklessError {
        match error {
            OpenFileError::Lacks(lacking) => OpenDisklessError::OlderFile(lacking),
            OpenFileError::Store(error) => of_index(error),
        }
    }
}

/// An opened index: the handle of its thread, the finder of extents, the change feed (only with PostgreSQL), and the
/// thread itself.
type OpenedIndex = (IndexOwner, RunFinder, Option<IndexChanges>, IndexThread);

/// Opens the index. A standalone broker has its index in the data directory, a cluster has it in the database.
fn open_index(
    config: &BrokerConfig,
    cluster_id: Uuid,
    known: Arc<KnownChanges>,
    space: Arc<DiskSpace>,
) -> Result<OpenedIndex, OpenDisklessError> {
    let retained = config.diskless.batches_to_retain;
    match &config.membership.control_plane {
        None => {
            let store = SqliteIndex::open_in(&config.node.data_dir, cluster_id, config.node.id, space)?;
            let finder = RunFinder::open(&config.node.data_dir).map_err(of_index)?;
            let (index, thread) = IndexOwner::start(Index::new(store, retained)).map_err(of_index)?;
            Ok((index, finder, None, thread))
        }
        Some(plane) => {
            let opened = postgres::open(plane, config.node.id, &config.node.data_dir, cluster_id, known);
            let (store, finder, changes) = opened.map_err(of_index)?;
            let (index, thread) = IndexOwner::start(Index::new(store, retained)).map_err(of_index)?;
            Ok((index, finder, Some(IndexChanges::over(Box::new(changes))), thread))
        }
    }
}

/// Checks with [`postgres::lacks`] that the index in the database of the cluster `cluster_id` is not an older copy.
/// Retries while the database cannot be used. If an error is lasting, nothing is checked, since the control plane then
/// refuses the start. `known` gets the changes that this broker has counted.
///
/// # Errors
/// Returns [`OpenDisklessError::OlderIndex`] if the database lacks changes that this broker has counted, and
/// [`OpenDisklessError::Index`] if the database cannot be used before the time for retries is over.
pub fn check_index(
    config: &BrokerConfig,
    cluster_id: Uuid,
    known: &KnownChanges,
    retries: &StartRetries,
) -> Result<(), OpenDisklessError> {
    let Some(plane) = config.membership.control_plane.as_ref().filter(|_| config.diskless.is_served) else {
        return Ok(());
    };
    let lacks = || postgres::lacks(plane, config.node.id, &config.node.data_dir, cluster_id, known);
    match retries.run(StoreError::is_transient, lacks) {
        Ok(Some(lacks)) => Err(OpenDisklessError::OlderIndex(lacks)),
        Err(error) if error.is_transient() => Err(of_index(error)),
        Ok(None) | Err(_) => Ok(()),
    }
}

/// Returns true if `data_dir` contains the index file of diskless partitions.
pub fn has_index(data_dir: &Path) -> bool {
    data_dir.join(index::SQLITE_FILE).exists()
}

/// Returns true if `data_dir` has an index file without the file of counted changes, which would reveal an older copy.
/// The index file may then be an older copy.
pub fn may_have_older_index(data_dir: &Path) -> bool {
    has_index(data_dir) && !data_dir.join(index::NOTED_CHANGES).exists()
}

fn of_index(error: impl fmt::Display) -> OpenDisklessError {
    OpenDisklessError::Index(error.to_string())
}

impl fmt::Debug for Diskless {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Diskless").finish_non_exhaustive()
    }
}

/// The reason why the object store is unusable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreTrouble {
    /// The ownership marker is not verified yet, so the store may belong to another cluster.
    Unverified,
    /// Requests have failed or made no progress for this long.
    Failing(Duration),
}

impl Diskless {
    /// Opens the object store and the index, and spawns the tasks that use them. A standalone broker has its index in
    /// the data directory, whose disk is `space`. A cluster has its index in the database; `known` are the changes of
    /// the index that other connections of this process know. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// Returns an [`OpenDisklessError`] if the index or the object store cannot be opened.
    pub async fn open(
        config: &BrokerConfig,
        cluster_id: Uuid,
        known: Arc<KnownChanges>,
        space: Arc<DiskSpace>,
        metrics: Metrics,
    ) -> Result<Diskless, OpenDisklessError> {
        let retention = Duration::from_millis(config.storage.retention_check_interval_ms);
        let delay = |ms| Duration::from_millis(ms);
        let (put, get) = (delay(config.diskless.put_delay_ms), delay(config.diskless.get_delay_ms));
        let (index, finder, changes, thread) = open_index(config, cluster_id, known, space)?;
        let objects = Objects::open(&config.diskless.storage, &cluster_id.to_string(), index.clone()).await?;
        let objects = objects.delayed(put, get);
        let of_index = (index, finder, changes);
        let diskless = Diskless::with_index(objects.clone(), &config.diskless, of_index, retention, metrics);
        if !objects.ownership().is_verified() {
            diskless.counts.put_failed();
        }
        StoreHealth::start(&diskless.health, objects);
        *diskless.thread.lock() = Some(thread);
        Ok(diskless)
    }

    /// Creates the pipeline, the reader and the periodic tasks for an opened store and index. Starts the change feed if
    /// the index has one.
    fn with_index(
        objects: Objects,
        config: &DisklessConfig,
        (index, finder, changes): (IndexOwner, RunFinder, Option<IndexChanges>),
        retention: Duration,
        metrics: Metrics,
    ) -> Diskless {
        // Uploaded objects get half of the cache, fetched blocks the other half.
        let uploaded_bytes = config.cache_bytes / 2;
        // Reading ahead needs `AHEAD_BYTES` for fetched blocks, even if the configured cache is smaller.
        let fetched_bytes = uploaded_bytes.max(AHEAD_BYTES as usize);
        let cache = Arc::new(Mutex::new(ObjectCache::new(uploaded_bytes, fetched_bytes)));
        let counts = Arc::new(StoreCounts::default());
        let fetcher = RangeFetcher::new(objects.clone(), Arc::clone(&cache), GETS, Arc::clone(&counts));
        let given = ResponseBudget::new(fetched_bytes as u64);
        let gets = Arc::clone(fetcher.tries());
        let reader = Reader::new(cache, given, fetcher, finder);
        let uploads = UploadSettings {
            attempts_max: config.upload_attempts_max,
            backoff: Duration::from_millis(config.upload_backoff_ms),
            slots: config.upload_slots,
        };
        let uploader = Uploader::new(objects.clone(), uploads, Arc::clone(&counts));
        let health = Arc::new(StoreHealth::new(Arc::clone(&counts), Arc::clone(uploader.tries()), gets));
        let rotation = RotationSettings {
            bytes_max: config.object_bytes_max,
            interval: Duration::from_millis(config.commit_interval_ms),
            slots: config.upload_slots,
            early_puts_per_second: config.puts_per_second_max,
        };
        let others_commit = changes.is_some();
        let memory_bytes = config.memory_bytes;
        let (of_index, of_reader) = (index.clone(), reader.clone());
        let pipeline = Pipeline::start(rotation, memory_bytes, others_commit, of_index, uploader, of_reader, metrics);
        let topics = Arc::<DisklessTopics>::default();
        let producers_expire_after_ms = Arc::new(AtomicI64::new(i64::MAX));
        let keeps_records_until_ms = Arc::new(AtomicI64::new(i64::MIN));
        let terms = RetentionTerms {
            interval: retention,
            keeps_records_until_ms: Arc::clone(&keeps_records_until_ms),
            pipeline: pipeline.clone(),
            producers_expire_after_ms: Arc::clone(&producers_expire_after_ms),
        };
        let ownership = Arc::clone(objects.ownership());
        housekeeping::start(&topics, objects, index.clone(), terms, config.cleaner);
        if let Some(changes) = changes {
            change_feed::start(Arc::downgrade(&topics), changes, reader.clone());
        }
        let services = Services { ownership, pipeline, reader, index, others_commit, left_out: LeftOut::default() };
        Diskless {
            topics,
            services,
            counts,
            health,
            thread: Mutex::default(),
            producers_expire_after_ms,
            keeps_records_until_ms,
        }
    }

    /// Sets the leader epochs of a topic's partitions to those in the metadata.
    pub fn set_leader_epochs(&self, id: Uuid, leader_epochs: impl Iterator<Item = i32>) {
        let topics = self.topics.read();
        let partitions = topics.get(&id).into_iter().flatten();
        partitions.zip(leader_epochs).for_each(|(partition, epoch)| partition.view.set_leader_epoch(epoch));
    }

    /// Applies a topic's settings, and adds partitions until it has `count` of them. Does not wait: the index creates
    /// the new partitions in the background. `tails_before` returns the last sequences of producers on a deleted
    /// classic topic of the same name.
    pub fn put_topic(&self, name: &str, id: Uuid, count: i32, config: &Arc<TopicConfig>, tails_before: TailsBefore) {
        let mut partitions = self.topics.read().get(&id).cloned().unwrap_or_default();
        let window = config.producer_state_batches_to_retain;
        // The index never reduces the number of batches that it retains, so only a larger `window` is sent to it.
        let retains_more = partitions.first().is_some_and(|first| first.view.window() < window);
        partitions.iter().for_each(|partition| partition.view.configure(config));
        if retains_more {
            self.retain_batches(&partitions, window);
        }
        let known = i32::try_from(partitions.len()).unwrap_or(i32::MAX);
        if count <= known {
            return;
        }
        let topic: Arc<str> = partitions.first().map_or_else(|| name.into(), |first| first.view.topic().into());
        for index in known..count {
            let view = PartitionView::new(Arc::clone(&topic), id, index, Arc::clone(config));
            let partition = DisklessPartition::new(view, self.services.clone());
            partitions.push(Arc::new(partition));
        }
        self.topics.write().insert(id, partitions.clone());
        let (reader, owner) = (self.services.reader.clone(), self.services.index.clone());
        let make_ready = move |rows: Vec<index::PartitionRow>| {
            // Skip partitions that were deleted while the index created them.
            let there = || partitions.iter().zip(&rows).filter(|(partition, _)| !partition.view.is_gone());
            let retain = |window| owner.retain_batches(there().map(|(_, row)| row.id).collect(), window);
            retain(window);
            for (partition, row) in there().filter(|(partition, _)| !partition.view.is_ready()) {
                reader.register(row.id, &partition.view);
                partition.view.make_ready(row);
                if partition.view.is_gone() {
                    reader.retired(row.id);
                }
            }
            // A larger window may have been set before the index returned the ids. The index does not know this window
            // yet.
            let now = partitions.first().map_or(0, |first| first.view.window());
            if now > window {
                retain(now);
            }
        };
        self.services.index.create(topic, id, count, tails_before, Box::new(make_ready));
    }

    fn retain_batches(&self, partitions: &[Arc<DisklessPartition>], window: usize) {
        let numbers: Vec<_> = partitions.iter().filter_map(|partition| partition.view.number()).collect();
        if !numbers.is_empty() {
            self.services.pipeline.retain_batches(&numbers, window);
            self.services.index.retain_batches(numbers, window);
        }
    }

    /// Sets how long a producer may be idle before it is forgotten. Until the first call, no producer is forgotten.
    pub fn expire_producers_after(&self, ms: u64) {
        let ms = i64::try_from(ms).unwrap_or(i64::MAX);
        if self.producers_expire_after_ms.swap(ms, Ordering::SeqCst) != ms {
            self.services.index.expire_producers_after(ms);
        }
    }

    /// Makes retention delete no records until the time `ms`, in ms since 1970.
    pub fn keep_records_until(&self, ms: i64) {
        self.keeps_records_until_ms.store(ms, Ordering::Relaxed);
    }

    /// Waits until the index can queue further deletions of topics.
    pub async fn deletions_have_room(&self) {
        self.services.index.has_room().await;
    }

    /// Removes the topic's partitions at once. Calls `deleted` after the index has deleted the topic. After that, a
    /// restarted broker need not repeat the deletion.
    ///
    /// Returns the last sequences of producers on each partition that may have records. If the next topic of the same
    /// name is a classic one, it needs these sequences. A diskless topic reads them from the index.
    pub fn delete_topic(&self, id: Uuid, deleted: Deleted) -> Vec<((String, i32), ProducerTails)> {
        let partitions = self.topics.write().remove(&id).unwrap_or_default();
        let mut stopped = Vec::new();
        for partition in &partitions {
            partition.view.retire();
            let key = || (partition.view.topic().to_owned(), partition.view.index());
            let Some(number) = partition.view.number() else {
                // The index has not returned the partition's internal id yet, for example because the broker has just
                // started. Nothing is known about the partition's producers then.
                stopped.push((key(), ProducerTails::partial()));
                continue;
            };
            // The reader must forget the partition before the pipeline does. Otherwise, a refresh could end between the
            // two calls and add the partition's state to the pipeline again.
            self.services.reader.retired(number);
            if partition.view.offsets().log_end > 0 || self.services.others_commit {
                stopped.push((key(), self.tails_in(number)));
            }
            self.services.pipeline.forget(number);
        }
        let numbers = partitions.iter().filter_map(|partition| partition.view.number());
        self.services.index.delete(id, numbers.collect(), deleted);
        stopped
    }

    /// Returns the last sequences of the partition's producers. If other brokers commit as well, or the pipeline has
    /// not read the partition's state yet, returns [`ProducerTails::partial`] instead.
    fn tails_in(&self, number: DisklessPartitionId) -> ProducerTails {
        let known = self.services.pipeline.known(number, |known| known.producers.tails());
        known.filter(|_| !self.services.others_commit).unwrap_or_else(ProducerTails::partial)
    }

    /// Returns the partition, or `None` if it does not exist. Never waits.
    pub fn find(&self, topic_id: &Uuid, index: i32) -> Option<Arc<DisklessPartition>> {
        let topics = self.topics.read();
        topics.get(topic_id)?.get(usize::try_from(index).ok()?).cloned()
    }

    /// Returns the largest number of offsets between the last stable offset and the high watermark, over all
    /// partitions, as far as this broker knows.
    pub fn stable_lag_max(&self) -> u64 {
        let lag = |partition: &Arc<DisklessPartition>| {
            let bounds = partition.view.bounds();
            bounds.offsets.high_watermark.saturating_sub(bounds.last_stable_offset)
        };
        let most = self.topics.read().values().flatten().map(lag).max().unwrap_or(0);
        u64::try_from(most).unwrap_or(0)
    }

    /// Returns the partitions with open transactions. Before that, waits until the index has created all partitions.
    ///
    /// # Errors
    /// Returns [`ReadError::Storage`] if the index cannot be read.
    pub async fn with_open_transactions(&self) -> Result<Vec<Arc<DisklessPartition>>, ReadError> {
        let all: Vec<_> = self.topics.read().values().flatten().cloned().collect();
        let mut by_number = HashMap::new();
        for partition in all {
            partition.view.opened().await;
            by_number.extend(partition.view.number().map(|number| (number, partition)));
        }
        let (numbers, mut found) = (by_number.keys().copied().collect::<Vec<_>>(), Vec::new());
        for numbers in numbers.chunks(ROWS_LOOKED_AT) {
            let rows = self.services.reader.finder().partitions(numbers.to_vec()).await;
            let rows = rows.map_err(|_| ReadError::Storage)?;
            let open = rows.iter().filter(|row| row.first_unstable.is_some());
            found.extend(open.filter_map(|row| by_number.remove(&row.id)));
        }
        Ok(found)
    }

    /// Returns the counts of requests to the object store.
    pub fn store_use(&self) -> StoreUse {
        self.counts.so_far(self.services.pipeline.bytes())
    }

    /// Returns true if the index's thread has panicked. The broker then accepts no records until it is restarted.
    pub fn index_has_panicked(&self) -> bool {
        self.services.index.has_panicked()
    }

    /// Returns the reason why the object store is unusable, or `None` while its requests succeed.
    pub fn store_trouble(&self) -> Option<StoreTrouble> {
        match self.services.ownership.is_verified() {
            false => Some(StoreTrouble::Unverified),
            true => self.health.lost_for().max(self.counts.unusable_for()).map(StoreTrouble::Failing),
        }
    }

    /// Returns the health of the object store as this broker sees it.
    pub fn health(&self) -> &Arc<StoreHealth> {
        &self.health
    }

    /// Sets whether this broker is left out: the metadata then lists it as one that does not serve diskless topics, and
    /// clients use other brokers. While it is left out, it refuses batches instead of letting them wait for a store
    /// that does not answer, because another broker may accept them.
    pub fn leave_out(&self, is_left_out: bool) {
        if self.services.left_out.set(is_left_out) {
            self.topics.read().values().flatten().for_each(|partition| partition.view.wake());
        }
    }

    /// Prepares for a stop of the broker: refuses parked batches, and uploads admitted batches at once.
    pub fn dismiss_waiting(&self) {
        self.services.pipeline.hurry();
    }

    /// Closes the pipeline. Stops the thread of the index after its current request, and blocks until the thread has
    /// ended.
    pub fn close(&self) {
        self.services.pipeline.close();
        drop(self.thread.lock().take());
    }
}
