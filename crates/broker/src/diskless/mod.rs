//! Diskless topics at a broker: records in an object store, their order in the index.
//!
//! The way of a batch: [`partition`] admits it to the [`writer`]'s [`line`], whose objects are [`upload`]ed and committed to the [`index`]. The
//! way back: the [`reader`] finds runs in the index and their bytes in the [`cache`], or [`fetch`]es them.
//!
//! Invariant: what was acknowledged is in the store and in the index.

mod assemble;
pub mod cache;
pub mod fetch;
mod given;
mod hear;
mod hedge;
mod housekeeping;
pub mod index;
mod keys;
pub mod known;
pub mod line;
pub mod objects;
pub mod partition;
pub mod reader;
mod retention;
#[cfg(test)]
mod schedules;
pub mod upload;
mod windows;
pub mod writer;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use fullbore_rules::commit::rotation::RotationSettings;
use fullbore_wire::Uuid;
use parking_lot::Mutex;

pub use assemble::LEADER_EPOCH;
pub use partition::DisklessPartition;
pub use upload::StoreUse;
pub use writer::{Admitted, PendingAnswer, Room};

use crate::config::{BrokerConfig, DisklessConfig, TopicConfig};
use crate::metrics::Metrics;
use crate::space::Space;
use cache::ObjectCache;
use fetch::RangeFetcher;
use given::GivenOut;
use housekeeping::{DisklessTopics, Expiring};
use index::{Deleted, Index, IndexChanges, IndexOwner, IndexThread, RunFinder, SqliteIndex, postgres};
use known::KnownPartition;
use objects::{Objects, StartObjectsError};
use partition::Services;
use reader::{AHEAD_BYTES, Reader};
use upload::{StoreCounts, UploadSettings, Uploader};
use writer::Writer;

/// GETs at a time.
const GETS: usize = 16;

/// Every diskless partition of a broker, and what they share.
pub struct Diskless {
    topics: Arc<DisklessTopics>,
    services: Services,
    counts: Arc<StoreCounts>,
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
    /// The index, or its thread.
    #[error("the index of diskless topics: {0}")]
    Index(String),
}

/// What a start has of the index, with the thread that is to be kept.
type OpenedIndex = (IndexOwner, RunFinder, Option<IndexChanges>, IndexThread);

/// The one in the data folder, or in the cluster's database.
fn open_index(config: &BrokerConfig, cluster_id: Uuid, space: Arc<Space>) -> Result<OpenedIndex, OpenDisklessError> {
    let retained = config.diskless.batches_to_retain;
    match &config.control_plane {
        None => {
            let store = SqliteIndex::open_in(&config.data_dir, space).map_err(of_index)?;
            let finder = RunFinder::open(&config.data_dir).map_err(of_index)?;
            let (index, thread) = IndexOwner::start(Index::new(store, retained)).map_err(of_index)?;
            Ok((index, finder, None, thread))
        }
        Some(plane) => {
            let opened = postgres::open(plane, config.node_id, &config.data_dir, cluster_id).map_err(of_index)?;
            let (store, finder, changes) = opened;
            let (index, thread) = IndexOwner::start(Index::new(store, retained)).map_err(of_index)?;
            Ok((index, finder, Some(IndexChanges::over(Box::new(changes))), thread))
        }
    }
}

fn of_index(error: impl fmt::Display) -> OpenDisklessError {
    OpenDisklessError::Index(error.to_string())
}

impl fmt::Debug for Diskless {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Diskless").finish_non_exhaustive()
    }
}

impl Diskless {
    /// Opens the object store and the index, in the data folder, with this room on its disk, or in the cluster's database, and starts what works on
    /// them; to be called in a tokio runtime.
    ///
    /// # Errors
    /// [`OpenDisklessError`].
    pub async fn open(
        config: &BrokerConfig,
        cluster_id: Uuid,
        space: Arc<Space>,
        metrics: Metrics,
    ) -> Result<Diskless, OpenDisklessError> {
        let retention = Duration::from_millis(config.log_retention_check_interval_ms);
        let delay = |ms| Duration::from_millis(ms);
        let (put, get) = (delay(config.diskless.put_delay_ms), delay(config.diskless.get_delay_ms));
        let (index, finder, changes, thread) = open_index(config, cluster_id, space)?;
        let objects = Objects::open(&config.diskless.storage, &cluster_id.to_string(), index.clone()).await?;
        let objects = objects.delayed(put, get);
        let diskless = Diskless::with_index(objects, &config.diskless, (index, finder, changes), retention, metrics);
        *diskless.thread.lock() = Some(thread);
        Ok(diskless)
    }

    /// The same over these objects, with an index of which somebody has charge, and what others change in it, if they do.
    fn with_index(
        objects: Objects,
        config: &DisklessConfig,
        (index, finder, changes): (IndexOwner, RunFinder, Option<IndexChanges>),
        retention: Duration,
        metrics: Metrics,
    ) -> Diskless {
        // Half for what was uploaded here, half for what was fetched.
        let uploaded_bytes = config.cache_bytes / 2;
        // Who reads gets what was fetched from there, so that there is room for what is fetched ahead of a reader, whatever is set.
        let fetched_bytes = uploaded_bytes.max(AHEAD_BYTES as usize);
        let cache = Arc::new(Mutex::new(ObjectCache::new(uploaded_bytes, fetched_bytes)));
        let counts = Arc::new(StoreCounts::default());
        let fetcher = RangeFetcher::new(objects.clone(), Arc::clone(&cache), GETS, Arc::clone(&counts));
        let given = GivenOut::new(fetched_bytes as u64);
        let reader = Reader::new((cache, given), fetcher, finder);
        let uploads = UploadSettings {
            attempts_max: config.upload_attempts_max,
            backoff: Duration::from_millis(config.upload_backoff_ms),
            slots: config.upload_slots,
        };
        let uploader = Uploader::new(objects.clone(), uploads, Arc::clone(&counts));
        let rotation = RotationSettings {
            bytes_max: config.object_bytes_max,
            interval: Duration::from_millis(config.commit_interval_ms),
            slots: config.upload_slots,
            early_puts_per_second: config.puts_per_second_max,
        };
        let others_commit = changes.is_some();
        let limits = (config.memory_bytes, others_commit);
        let writer = Writer::start(rotation, limits, (index.clone(), uploader, reader.clone()), metrics);
        let topics = Arc::<DisklessTopics>::default();
        let producers_expire_after_ms = Arc::new(AtomicI64::new(i64::MAX));
        let expiring = Expiring { writer: writer.clone(), after_ms: Arc::clone(&producers_expire_after_ms) };
        let claim = Arc::clone(objects.claim());
        housekeeping::start(&topics, objects, index.clone(), (retention, expiring), config.cleaner);
        if let Some(changes) = changes {
            hear::start(Arc::downgrade(&topics), changes, reader.clone());
        }
        let services = Services { claim, writer, reader, index, others_commit };
        Diskless { topics, services, counts, thread: Mutex::default(), producers_expire_after_ms }
    }

    /// From now on the topic has this many partitions, with these settings. Waits for nobody; the index is told in the background.
    pub fn put_topic(&self, (name, id): (&str, Uuid), count: i32, config: &Arc<TopicConfig>) {
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
            let key = (Arc::clone(&topic), id, index);
            let known = KnownPartition::new(key, Arc::clone(config));
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
        self.services.index.create((topic, id), count, Box::new(settle));
    }

    fn retain_batches(&self, partitions: &[Arc<DisklessPartition>], window: usize) {
        let numbers: Vec<_> = partitions.iter().filter_map(|partition| partition.known.number()).collect();
        if !numbers.is_empty() {
            self.services.writer.retain_batches(&numbers, window);
            self.services.index.retain_batches(numbers, window);
        }
    }

    /// From now on, forgets producers silent for so long. Until this is said, none is.
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

    /// The topic's partitions are gone at once; who is told so knows that no start need see to it any more.
    pub fn delete_topic(&self, id: Uuid, deleted: Deleted) {
        let partitions = self.topics.write().remove(&id).unwrap_or_default();
        for partition in &partitions {
            partition.known.retire();
            if let Some(number) = partition.known.number() {
                // First, so that nobody who looked at it keeps what was found.
                self.services.reader.retired(number);
                self.services.writer.forget(number);
            }
        }
        let numbers = partitions.iter().filter_map(|partition| partition.known.number());
        self.services.index.delete(id, numbers.collect(), deleted);
    }

    /// The partition, if there is one. Waits for nobody.
    pub fn find(&self, topic_id: &Uuid, index: i32) -> Option<Arc<DisklessPartition>> {
        let topics = self.topics.read();
        topics.get(topic_id)?.get(usize::try_from(index).ok()?).cloned()
    }

    /// What was asked of the object store.
    pub fn store_use(&self) -> StoreUse {
        self.counts.so_far(self.services.writer.bytes())
    }

    /// The broker stops: what waits for what may not come any more is refused, and the rest is hurried.
    pub fn dismiss_waiting(&self) {
        self.services.writer.hurry();
    }

    /// Waits until the index has done what it was asked for. Blocks.
    pub fn close(&self) {
        self.services.writer.close();
        drop(self.thread.lock().take());
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use std::ops::Range;

    use fullbore_rules::commit::ObjectBatch;
    use fullbore_rules::commit::admission::Known;
    use fullbore_rules::sequence::Stamp as Stamped;
    use fullbore_wire::batch::{BatchBuilder, Compression, Stamp};
    use index::by_hand::{IndexByHand, Turn};
    use index::{ChangeSource, IndexChanges, IndexStore, UploadedObject};
    use objects::double::StoreDouble;
    use tokio::task::yield_now;

    use super::*;
    use crate::config::{BrokerConfig, Properties};
    use crate::control::StoreError;
    use crate::log::error::AppendError;
    use crate::replica::reorder::{EarlyBatches, Reordering};
    use crate::replica::ticket::{Acks, Appended};
    use crate::validation::ValidBatch;

    const ONE: Uuid = Uuid([1; 16]);

    /// With an index that is carried out by hand.
    struct ByHand {
        diskless: Diskless,
        index: IndexByHand<SqliteIndex>,
        config: Arc<TopicConfig>,
        folder: tempfile::TempDir,
    }

    /// Says nothing.
    struct Unheard;

    impl ChangeSource for Unheard {
        fn changed(&mut self) -> Result<Vec<index::PartitionRow>, StoreError> {
            Ok(Vec::new())
        }
    }

    impl ByHand {
        fn new() -> ByHand {
            ByHand::beside(None)
        }

        /// Beside other brokers, of which this is heard.
        fn beside(changes: Option<IndexChanges>) -> ByHand {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let store = SqliteIndex::open(folder.path()).expect("made");
            let (owner, index) = IndexByHand::new(Index::new(store, 5));
            let finder = RunFinder::open(folder.path()).expect("opened");
            let objects = Objects::over(StoreDouble::taking(Duration::ZERO), "one");
            let (config, _) = BrokerConfig::from_properties(&Properties::default()).expect("valid");
            let of_index = (owner, finder, changes);
            let retention = Duration::from_secs(300);
            let diskless = Diskless::with_index(objects, &config.diskless, of_index, retention, Metrics::default());
            ByHand { diskless, index, config: Arc::new(config.topic_defaults), folder }
        }

        fn put(&self, id: Uuid, count: i32) {
            self.diskless.put_topic(("topic", id), count, &self.config);
        }

        /// Another broker commits batches of one record with these sequences of producer 7, one an object.
        fn committed_elsewhere(&self, sequences: Range<i32>) {
            let partition = self.diskless.find(&ONE, 0).and_then(|of| of.known.number()).expect("settled");
            let mut store = SqliteIndex::open(self.folder.path()).expect("opened");
            let ids = store.register(sequences.len(), 0).expect("registered");
            let mut other = Index::new(store, 5);
            for (base_sequence, id) in sequences.zip(ids) {
                let stamp = Stamped { producer_id: 7, producer_epoch: 0, base_sequence, record_count: 1 };
                let batches = vec![ObjectBatch { partition, position: 0, size: 100, stamp, max_timestamp: 7 }];
                other.commit(&[UploadedObject { id, batches }], 0).expect("committed");
            }
        }

        /// What the index is asked for, so many times.
        async fn carry_out(&mut self) -> usize {
            let mut count = 0;
            while let Turn::Other(asked) = self.index.turn().await {
                self.index.carry_out(asked, 0);
                count += 1;
            }
            count
        }

        fn look(&self, index: i32) -> tokio::task::JoinHandle<Result<(), AppendError>> {
            let partition = self.diskless.find(&ONE, index).expect("it is there");
            tokio::spawn(async move { partition.look().await })
        }

        /// Appends a record with this stamp to the first partition, as a connection does.
        async fn append(&mut self, stamp: Stamp, now_ms: i64) -> Result<i64, AppendError> {
            let partition = self.diskless.find(&ONE, 0).expect("it is there");
            let mut builder = BatchBuilder::new(BytesMut::new(), Compression::None, None);
            builder.append(7, None, Some(b"value"), &[]);
            let bytes = builder.seal(stamp).expect("sealed").0;
            let how = (Acks::All, now_ms, EarlyBatches { are_sent: false, wait_in: None });
            let mut known = Known::Perhaps;
            let pending = loop {
                match partition.admit(&ValidBatch::unchecked(&bytes), how, (known, None))? {
                    Admitted::Known(appended) => return Ok(appended.base_offset),
                    Admitted::Pending(pending) => break pending,
                    Admitted::Ask => {
                        let looking = self.look(0);
                        self.until(|| looking.is_finished(), now_ms).await;
                        known = Known::Now;
                    }
                    other => panic!("{other:?}"),
                }
            };
            let answered = tokio::spawn(pending);
            self.until(|| answered.is_finished(), now_ms).await;
            answered.await.expect("no panic").expect("answered").map(|appended| appended.base_offset)
        }

        /// The index does what it is asked for until then.
        async fn until(&mut self, is_done: impl Fn() -> bool, now_ms: i64) {
            while !is_done() {
                match self.index.turn().await {
                    Turn::Commit(objects, answer) => drop(answer.send(self.index.commit(&objects, now_ms))),
                    Turn::Other(asked) => self.index.carry_out(asked, now_ms),
                    Turn::Idle => yield_now().await,
                }
            }
        }
    }

    #[tokio::test]
    async fn what_is_committed_after_a_look_and_heard_of_before_it_is_not_missed_for_ever() {
        let mut broker = ByHand::new();
        broker.put(ONE, 1);
        broker.carry_out().await;
        let partition = broker.diskless.find(&ONE, 0).expect("it is there");
        // The index has looked, and who asked is slow to hear of it.
        let mut looking = Box::pin(partition.look());
        assert!(tokio::time::timeout(Duration::ZERO, &mut looking).await.is_err());
        broker.carry_out().await;
        assert_eq!(broker.append(Stamp::NONE, 0).await, Ok(0));
        looking.await.expect("looked");
        for sequence in 0..3 {
            let stamp = Stamp { producer_id: 7, producer_epoch: 0, base_sequence: sequence };
            assert_eq!(broker.append(stamp, 0).await, Ok(i64::from(sequence) + 1));
        }
    }

    #[tokio::test]
    async fn nothing_is_kept_in_memory_of_a_topic_that_is_deleted() {
        let mut broker = ByHand::new();
        broker.put(ONE, 2);
        broker.carry_out().await;
        let looking = broker.look(0);
        yield_now().await;
        broker.carry_out().await;
        looking.await.expect("no panic").expect("looked");
        assert_eq!(broker.index.kept(), [1, 2, 0]);
        let number = broker.diskless.find(&ONE, 0).and_then(|of| of.known.number()).expect("settled");
        // One looks while it is deleted, and another topic is deleted before it is made in the index.
        let looking = broker.look(0);
        yield_now().await;
        broker.diskless.delete_topic(ONE, Box::new(|| {}));
        broker.put(Uuid([2; 16]), 2);
        broker.diskless.delete_topic(Uuid([2; 16]), Box::new(|| {}));
        broker.carry_out().await;
        looking.await.expect("no panic").expect_err("it is deleted");
        assert_eq!(broker.index.kept(), [0, 0, 0]);
        assert!(broker.diskless.services.writer.known(number, |_| ()).is_none());
    }

    #[tokio::test]
    async fn after_a_clock_that_jumped_one_object_is_refused_and_not_all_that_were_registered() {
        let mut broker = ByHand::new();
        broker.put(ONE, 1);
        broker.carry_out().await;
        assert_eq!(broker.append(Stamp::NONE, 0).await, Ok(0));
        let later = 7_200_000;
        let index = broker.diskless.services.index.clone();
        let cleaning = tokio::spawn(async move { index.unused(64, 60_000).await });
        broker.until(|| cleaning.is_finished(), later).await;
        assert_eq!(cleaning.await.expect("no panic").map(|unused| unused.len()), Ok(63));
        assert_eq!(broker.append(Stamp::NONE, later).await, Err(AppendError::Storage));
        assert_eq!(broker.append(Stamp::NONE, later).await, Ok(1));
    }

    #[tokio::test]
    async fn a_commit_waits_for_few_log_starts_however_many_were_to_be_moved_and_given_up() {
        let mut broker = ByHand::new();
        broker.put(ONE, 50);
        broker.carry_out().await;
        for index in 0..50 {
            let partition = broker.diskless.find(&ONE, index).expect("it is there");
            let moving = partition.delete_records_before(0);
            assert!(tokio::time::timeout(Duration::ZERO, moving).await.is_err(), "whoever asks waits for nothing");
        }
        let carried_out = broker.carry_out().await;
        assert!((1..=2).contains(&carried_out), "{carried_out} before a commit");
        // Those that come later have their turns.
        let partition = broker.diskless.find(&ONE, 7).expect("it is there");
        let moving = tokio::spawn(async move { partition.delete_records_before(0).await });
        broker.until(|| moving.is_finished(), 0).await;
        assert_eq!(moving.await.expect("no panic"), Ok(0));
    }

    #[tokio::test]
    async fn a_log_start_that_is_moved_after_who_asked_has_given_up_is_known() {
        let mut broker = ByHand::new();
        broker.put(ONE, 1);
        broker.carry_out().await;
        assert_eq!(broker.append(Stamp::NONE, 0).await, Ok(0));
        let partition = broker.diskless.find(&ONE, 0).expect("it is there");
        let moving = partition.delete_records_before(1);
        assert!(tokio::time::timeout(Duration::ZERO, moving).await.is_err(), "the index has not done it yet");
        broker.carry_out().await;
        yield_now().await;
        yield_now().await;
        assert_eq!(partition.known.offsets().log_start, 1);
    }

    #[tokio::test]
    async fn what_others_commit_while_a_partition_gets_its_number_is_read() {
        let mut broker = ByHand::beside(Some(IndexChanges::over(Box::new(Unheard))));
        broker.put(ONE, 1);
        broker.carry_out().await;
        broker.committed_elsewhere(0..3);
        let partition = broker.diskless.find(&ONE, 0).expect("it is there");
        let (waiter, began) = (Arc::default(), std::time::Instant::now());
        let _registration = partition.known.register(&waiter);
        assert!(partition.try_read(0, 1000, true, began).expect("readable").is_none(), "it is asked for");
        waiter.notified().await;
        assert_eq!(partition.known.offsets().log_end, 3);
    }

    /// The broker was told 0 alone; 1 and 2 went over another one, and the answer of 1 was lost.
    #[tokio::test]
    async fn a_batch_that_waits_for_one_that_was_committed_elsewhere_does_not_wait_in_vain() {
        let mut broker = ByHand::beside(Some(IndexChanges::over(Box::new(Unheard))));
        broker.put(ONE, 1);
        broker.carry_out().await;
        let stamp = |base_sequence| Stamp { producer_id: 7, producer_epoch: 0, base_sequence };
        assert_eq!(broker.append(stamp(0), 0).await, Ok(0));
        broker.committed_elsewhere(1..3);
        let (config, _) = BrokerConfig::from_properties(&Properties::default()).expect("valid");
        let (reordering, partition) = (Reordering::new(&config, Metrics::default()), broker.diskless.find(&ONE, 0));
        let partition = partition.expect("it is there");
        let admit = |base_sequence, known| {
            let mut builder = BatchBuilder::new(BytesMut::new(), Compression::None, None);
            builder.append(7, None, Some(b"value"), &[]);
            let bytes = builder.seal(stamp(base_sequence)).expect("sealed").0;
            let early = EarlyBatches { are_sent: false, wait_in: Some(&reordering) };
            partition.admit(&ValidBatch::unchecked(&bytes), (Acks::All, 0, early), (known, None)).expect("taken")
        };
        let Admitted::Pending(second) = admit(1, Known::Perhaps) else { panic!("it seems to be the next") };
        assert!(matches!(admit(3, Known::Perhaps), Admitted::Ask), "one is missing");
        let looking = tokio::spawn({
            let partition = Arc::clone(&partition);
            async move { partition.look().await }
        });
        let mut of_second = None;
        while !looking.is_finished() {
            match broker.index.turn().await {
                Turn::Other(asked) => broker.index.carry_out(asked, 0),
                Turn::Commit(objects, answer) => of_second = Some((objects, answer)),
                Turn::Idle => yield_now().await,
            }
        }
        let Admitted::Parked(fourth) = admit(3, Known::Now) else { panic!("the second one is in line") };
        if let Some((objects, answer)) = of_second {
            drop(answer.send(broker.index.commit(&objects, 0)));
        }
        let (second, fourth) = (tokio::spawn(second), tokio::spawn(async move { fourth.wait().await }));
        broker.until(|| second.is_finished() && fourth.is_finished(), 0).await;
        let offset = |appended: Appended| appended.base_offset;
        assert_eq!(second.await.expect("no panic").expect("answered").map(offset), Ok(1));
        assert_eq!(fourth.await.expect("no panic").map(offset), Ok(3));
    }

    #[tokio::test]
    async fn looks_that_were_given_up_at_once_do_not_gather() {
        let mut broker = ByHand::new();
        broker.put(ONE, 50);
        broker.carry_out().await;
        for index in 0..50 {
            let partition = broker.diskless.find(&ONE, index).expect("it is there");
            assert!(tokio::time::timeout(Duration::ZERO, partition.look()).await.is_err());
        }
        let carried_out = broker.carry_out().await;
        assert!((1..=2).contains(&carried_out), "{carried_out} before a commit");
        assert_eq!(broker.append(Stamp { producer_id: 7, producer_epoch: 0, base_sequence: 0 }, 0).await, Ok(0));
    }

    #[tokio::test]
    async fn the_index_is_told_of_settings_that_concern_it_and_of_no_others() {
        let mut broker = ByHand::new();
        let retain = |broker: &mut ByHand, window| {
            Arc::make_mut(&mut broker.config).producer_state_batches_to_retain = window;
        };
        broker.put(ONE, 2);
        assert_eq!(broker.carry_out().await, 2, "they are made, and so much is retained");
        for window in [128, 5, 128, 5] {
            retain(&mut broker, window);
            (0..25).for_each(|_| broker.put(ONE, 2));
        }
        assert!(broker.carry_out().await <= 2);
        retain(&mut broker, 500);
        broker.put(ONE, 2);
        assert_eq!(broker.carry_out().await, 1);
        // More is set before the partitions have their numbers.
        let two = Uuid([2; 16]);
        broker.put(two, 2);
        retain(&mut broker, 600);
        broker.put(two, 2);
        assert_eq!(broker.carry_out().await, 3);
    }

    #[tokio::test]
    async fn a_commit_waits_for_few_looks_however_many_want_to_look() {
        let mut broker = ByHand::new();
        broker.put(ONE, 50);
        broker.carry_out().await;
        let mut looks: Vec<_> = (0..50).map(|index| broker.look(index)).collect();
        let given_up = looks.split_off(40);
        yield_now().await;
        given_up.iter().for_each(|look| look.abort());
        let index = broker.diskless.services.index.clone();
        let commit = tokio::spawn(async move { index.commit(Vec::new()).await });
        yield_now().await;
        let mut before = 0;
        loop {
            match broker.index.turn().await {
                Turn::Commit(objects, answer) => {
                    let _ = answer.send(broker.index.commit(&objects, 0));
                    break;
                }
                Turn::Other(asked) => {
                    before += 1;
                    broker.index.carry_out(asked, 0);
                }
                Turn::Idle => {}
            }
        }
        assert!(before <= 2, "{before} looks before the commit");
        commit.await.expect("no panic").expect("committed");
        while !looks.iter().all(|look| look.is_finished()) {
            broker.carry_out().await;
        }
        for look in looks {
            look.await.expect("no panic").expect("looked");
        }
    }
}
