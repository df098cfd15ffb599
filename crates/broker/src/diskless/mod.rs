//! Diskless topics at a broker: records in an object store, their order in the index.
//!
//! The way of a batch: [`partition`] offers it to the [`pipeline`], whose objects are uploaded and committed to the
//! [`index`]. The way back: the [`reader`] finds runs in the index and their bytes in the [`cache`], or [`fetch`]es
//! them.
//!
//! Invariant: what was acknowledged is in the store and in the index.

mod assemble;
pub mod cache;
mod change_feed;
pub mod failed;
mod fetch;
#[cfg(test)]
mod flooded;
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
use fullbore_rules::sequence::Stops;
use fullbore_wire::Uuid;
use parking_lot::Mutex;

pub use assemble::LEADER_EPOCH;
pub use health::StoreHealth;
pub use index::StopsBefore;
pub use objects::counts::StoreUse;
pub use partition::DisklessPartition;
pub use pipeline::Refreshed;

use cache::ObjectCache;
use fetch::RangeFetcher;
use fullbore_config::{BrokerConfig, DisklessConfig, TopicConfig};
use fullbore_control::identity_of;
use fullbore_host::disk_space::DiskSpace;
use fullbore_host::metrics::Metrics;
use fullbore_log::partition::error::ReadError;
use fullbore_log::partition::left_out::LeftOut;
use housekeeping::{DisklessTopics, Expiring};
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

/// GETs at a time.
const GETS: usize = 16;
/// Partitions whose rows are read at a time.
const ROWS_LOOKED_AT: usize = 1_000;

/// Every diskless partition of a broker, and what they share.
pub struct Diskless {
    topics: Arc<DisklessTopics>,
    services: Services,
    counts: Arc<StoreCounts>,
    health: Arc<StoreHealth>,
    thread: Mutex<Option<IndexThread>>,
    /// `producer.id.expiration.ms`; the largest number before it is known.
    producers_expire_after_ms: Arc<AtomicI64>,
}

/// Why diskless topics cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum OpenDisklessError {
    /// The object store.
    #[error(transparent)]
    Objects(#[from] StartObjectsError),
    /// The index is an older copy.
    #[error(
        "the index of diskless topics went back to an older state, or is another one: {0}; restore the newest copy, or remove {FILE} from the \
         data folder of each broker to go on without the records that it lacks", FILE = index::NOTED_CHANGES
    )]
    OlderIndex(Lacking),
    /// The file of the index is an older copy, or its write-ahead log is damaged.
    #[error(
        "cannot use diskless.db: {0}, so that diskless records are missing which were acknowledged; bring back the newest diskless.db with its \
         diskless.db-wal, which may be damaged, or remove {FILE} from the data folder to go on without them", FILE = index::NOTED_CHANGES
    )]
    OlderFile(Lacking),
    /// The index, or its thread.
    #[error("the index of diskless topics: {0}")]
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

/// Index of a start, with the thread to keep.
type OpenedIndex = (IndexOwner, RunFinder, Option<IndexChanges>, IndexThread);

/// The one in the data folder, or in the cluster's database.
fn open_index(
    config: &BrokerConfig,
    cluster_id: Uuid,
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
            let opened = postgres::open(plane, config.node.id, &config.node.data_dir, cluster_id).map_err(of_index)?;
            let (store, finder, changes) = opened;
            let (index, thread) = IndexOwner::start(Index::new(store, retained)).map_err(of_index)?;
            Ok((index, finder, Some(IndexChanges::over(Box::new(changes))), thread))
        }
    }
}

/// Refuses to start on an older copy of a cluster's index, as [`postgres::lacks`] finds it.
///
/// # Errors
/// [`OpenDisklessError::OlderIndex`].
pub fn check_index(config: &BrokerConfig) -> Result<(), OpenDisklessError> {
    let Some(plane) = config.membership.control_plane.as_ref().filter(|_| config.diskless.is_served) else {
        return Ok(());
    };
    // The control plane refuses a folder without an identity that can be read.
    let Ok(Some(known)) = identity_of(&config.node.data_dir) else { return Ok(()) };
    match postgres::lacks(plane, config.node.id, &config.node.data_dir, known.cluster_id) {
        Some(lacks) => Err(OpenDisklessError::OlderIndex(lacks)),
        None => Ok(()),
    }
}

/// Returns true if a data folder has the index of its broker, and with it diskless partitions.
pub fn has_index(data_dir: &Path) -> bool {
    data_dir.join(index::SQLITE_FILE).exists()
}

fn of_index(error: impl fmt::Display) -> OpenDisklessError {
    OpenDisklessError::Index(error.to_string())
}

impl fmt::Debug for Diskless {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Diskless").finish_non_exhaustive()
    }
}

/// Why an object store is of no use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreTrouble {
    /// The broker could not find out yet whether it is the right one.
    Unclaimed,
    /// Its requests have failed for this long.
    Failing(Duration),
}

impl Diskless {
    /// Opens the object store and the index, in the data folder, with this room on its disk, or in the cluster's
    /// database, and starts what works on them; to be called in a tokio runtime.
    ///
    /// # Errors
    /// [`OpenDisklessError`].
    pub async fn open(
        config: &BrokerConfig,
        cluster_id: Uuid,
        space: Arc<DiskSpace>,
        metrics: Metrics,
    ) -> Result<Diskless, OpenDisklessError> {
        let retention = Duration::from_millis(config.storage.retention_check_interval_ms);
        let delay = |ms| Duration::from_millis(ms);
        let (put, get) = (delay(config.diskless.put_delay_ms), delay(config.diskless.get_delay_ms));
        let (index, finder, changes, thread) = open_index(config, cluster_id, space)?;
        let objects = Objects::open(&config.diskless.storage, &cluster_id.to_string(), index.clone()).await?;
        let objects = objects.delayed(put, get);
        let of_index = (index, finder, changes);
        let diskless = Diskless::with_index(objects.clone(), &config.diskless, of_index, retention, metrics);
        if !objects.claim().is_made() {
            diskless.counts.put_failed();
        }
        StoreHealth::start(&diskless.health, objects);
        *diskless.thread.lock() = Some(thread);
        Ok(diskless)
    }

    /// Creates the server of diskless topics over these objects and this index, with the changes of others, if there
    /// are any.
    fn with_index(
        objects: Objects,
        config: &DisklessConfig,
        (index, finder, changes): (IndexOwner, RunFinder, Option<IndexChanges>),
        retention: Duration,
        metrics: Metrics,
    ) -> Diskless {
        // Half for what was uploaded here, half for what was fetched.
        let uploaded_bytes = config.cache_bytes / 2;
        // Who reads gets what was fetched from there, so that there is room for what is fetched ahead of a reader,
        // whatever is set.
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
        let expiring = Expiring { pipeline: pipeline.clone(), after_ms: Arc::clone(&producers_expire_after_ms) };
        let claim = Arc::clone(objects.claim());
        housekeeping::start(&topics, objects, index.clone(), retention, expiring, config.cleaner);
        if let Some(changes) = changes {
            change_feed::start(Arc::downgrade(&topics), changes, reader.clone());
        }
        let services = Services { claim, pipeline, reader, index, others_commit, left_out: LeftOut::default() };
        Diskless { topics, services, counts, health, thread: Mutex::default(), producers_expire_after_ms }
    }

    /// Gives a topic `count` partitions and these settings, without waiting. The index gets it in the background, with
    /// the stops of producers on a deleted classic topic of the name.
    pub fn put_topic(
        &self,
        (name, id): (&str, Uuid),
        count: i32,
        config: &Arc<TopicConfig>,
        stops_before: StopsBefore,
    ) {
        let mut partitions = self.topics.read().get(&id).cloned().unwrap_or_default();
        let window = config.producer_state_batches_to_retain;
        // What was retained stays so, and the index is not asked for each change of any setting.
        let retains_more = partitions.first().is_some_and(|first| first.known.window() < window);
        partitions.iter().for_each(|partition| partition.known.configure(config));
        if retains_more {
            self.retain_batches(&partitions, window);
        }
        let known = i32::try_from(partitions.len()).unwrap_or(i32::MAX);
        if count <= known {
            return;
        }
        let topic: Arc<str> = partitions.first().map_or_else(|| name.into(), |first| first.known.topic().into());
        for index in known..count {
            let known = PartitionView::new(Arc::clone(&topic), id, index, Arc::clone(config));
            let partition = DisklessPartition::new(known, self.services.clone());
            partitions.push(Arc::new(partition));
        }
        self.topics.write().insert(id, partitions.clone());
        let (reader, owner) = (self.services.reader.clone(), self.services.index.clone());
        let settle = move |rows: Vec<index::PartitionRow>| {
            // What was deleted meanwhile is not told again.
            let there = || partitions.iter().zip(&rows).filter(|(partition, _)| !partition.known.is_gone());
            let retain = |window| owner.retain_batches(there().map(|(_, row)| row.id).collect(), window);
            retain(window);
            for (partition, row) in there().filter(|(partition, _)| !partition.known.is_settled()) {
                reader.settled(row.id, &partition.known);
                partition.known.settle(row);
                if partition.known.is_gone() {
                    reader.retired(row.id);
                }
            }
            // Who has set more before could not tell the numbers.
            let now = partitions.first().map_or(0, |first| first.known.window());
            if now > window {
                retain(now);
            }
        };
        self.services.index.create((topic, id), count, stops_before, Box::new(settle));
    }

    fn retain_batches(&self, partitions: &[Arc<DisklessPartition>], window: usize) {
        let numbers: Vec<_> = partitions.iter().filter_map(|partition| partition.known.number()).collect();
        if !numbers.is_empty() {
            self.services.pipeline.retain_batches(&numbers, window);
            self.services.index.retain_batches(numbers, window);
        }
    }

    /// Sets the time after which silent producers are forgotten; without it none is.
    pub fn expire_producers_after(&self, ms: u64) {
        let ms = i64::try_from(ms).unwrap_or(i64::MAX);
        if self.producers_expire_after_ms.swap(ms, Ordering::SeqCst) != ms {
            self.services.index.expire_producers_after(ms);
        }
    }

    /// Waits until there is room for further deletions.
    pub async fn deletions_have_room(&self) {
        self.services.index.has_room().await;
    }

    /// Removes the topic's partitions at once; `deleted` is called when no later start need go on with it. Returns the
    /// sequences at which producers stopped on partitions that may have been written, for a classic topic of the same
    /// name. For a diskless one the index has them.
    pub fn delete_topic(&self, id: Uuid, deleted: Deleted) -> Vec<((String, i32), Stops)> {
        let partitions = self.topics.write().remove(&id).unwrap_or_default();
        let mut stopped = Vec::new();
        for partition in &partitions {
            partition.known.retire();
            let key = || (partition.known.topic().to_owned(), partition.known.index());
            let Some(number) = partition.known.number() else {
                // The index has not been read yet, as right after a start.
                stopped.push((key(), Stops::partial()));
                continue;
            };
            // First, so that no reader that looked at it keeps what it found.
            self.services.reader.retired(number);
            if partition.known.offsets().log_end > 0 || self.services.others_commit {
                stopped.push((key(), self.stops_in(number)));
            }
            self.services.pipeline.forget(number);
        }
        let numbers = partitions.iter().filter_map(|partition| partition.known.number());
        self.services.index.delete(id, numbers.collect(), deleted);
        stopped
    }

    /// Returns the sequences at which producers stopped, in part: other brokers may have taken more, and so may the
    /// index.
    fn stops_in(&self, number: DisklessPartitionId) -> Stops {
        let known = self.services.pipeline.known(number, |known| known.producers.stops());
        known.filter(|_| !self.services.others_commit).unwrap_or_else(Stops::partial)
    }

    /// The partition, if there is one. Waits for nobody.
    pub fn find(&self, topic_id: &Uuid, index: i32) -> Option<Arc<DisklessPartition>> {
        let topics = self.topics.read();
        topics.get(topic_id)?.get(usize::try_from(index).ok()?).cloned()
    }

    /// Returns the most records between last stable offset and high watermark, as far as this broker knows.
    pub fn stable_lag_max(&self) -> u64 {
        let lag = |partition: &Arc<DisklessPartition>| {
            let bounds = partition.known.bounds();
            bounds.offsets.high_watermark.saturating_sub(bounds.last_stable_offset)
        };
        let most = self.topics.read().values().flatten().map(lag).max().unwrap_or(0);
        u64::try_from(most).unwrap_or(0)
    }

    /// Returns the partitions in which the index has open transactions, once the index has all partitions.
    ///
    /// # Errors
    /// [`ReadError::Storage`]: the index cannot be read.
    pub async fn with_open_transactions(&self) -> Result<Vec<Arc<DisklessPartition>>, ReadError> {
        let all: Vec<_> = self.topics.read().values().flatten().cloned().collect();
        let mut by_number = HashMap::new();
        for partition in all {
            partition.known.opened().await;
            by_number.extend(partition.known.number().map(|number| (number, partition)));
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

    /// Returns why the object store is of no use now. `None` where its last answer was a success.
    pub fn store_trouble(&self) -> Option<StoreTrouble> {
        match self.services.claim.is_made() {
            false => Some(StoreTrouble::Unclaimed),
            true => self.health.lost_for().max(self.counts.failing_for()).map(StoreTrouble::Failing),
        }
    }

    /// The object store as this broker finds it.
    pub fn health(&self) -> &Arc<StoreHealth> {
        &self.health
    }

    /// Notes that clients are led to other brokers, or to this one again. Batches that wait for a store that does not
    /// answer are refused: another broker may take them.
    pub fn leave_out(&self, is_left_out: bool) {
        if self.services.left_out.set(is_left_out) {
            self.topics.read().values().flatten().for_each(|partition| partition.known.wake());
        }
    }

    /// The broker stops: what waits for what may not come any more is refused, and the rest is hurried.
    pub fn dismiss_waiting(&self) {
        self.services.pipeline.hurry();
    }

    /// Waits until the index has done what it was asked for. Blocks.
    pub fn close(&self) {
        self.services.pipeline.close();
        drop(self.thread.lock().take());
    }
}
