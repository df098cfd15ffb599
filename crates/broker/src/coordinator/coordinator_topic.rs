//! The internal topic that stores a coordinator's state. The topic is created when it is first used. Each of its
//! partitions stores one *shard* of the state. When this broker begins to lead the partition, it *loads* the shard: it
//! reads the partition's log and installs the state in memory. Then the shard *serves*. When another broker begins to
//! lead, this one *leaves* the shard and removes its state.
//!
//! A request reaches the state of a key only while the key's shard serves.

use super::{InternalTopic, ReplayError, Shard, Status};
use crate::partitions::{Partitions, ReadError};
use fullbore_control::{Control, CreateTopic, CreateTopics, Image};
use fullbore_host::log_rate_limit::LogRateLimit;
use fullbore_host::task;
use fullbore_wire::ErrorCode;
use fullbore_wire::batch::Compression;
use parking_lot::{RwLock, RwLockReadGuard};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

/// How long a request waits for shards that are loading. After that, the client has to retry. Equal to the wait for a
/// log that is being recovered.
const LOADING_WAIT: Duration = Duration::from_secs(5);
/// Maximum number of shards that are read at the same time.
const LOADS_MAX: usize = 2;
/// How long the broker pauses after a shard could not be loaded. The pause doubles with each further failure.
const RELOAD_FIRST: Duration = Duration::from_secs(1);
/// Maximum pause before the broker tries again to load a shard.
const RELOAD_MOST: Duration = Duration::from_secs(60);

/// A coordinator whose state is stored in an internal topic.
pub trait Coordinator: Send + Sync + 'static {
    /// Name of the stored state in log lines, such as `groups`.
    const STATE: &'static str;

    /// Returns the internal topic.
    fn topic(&self) -> &CoordinatorTopic;

    /// Reads the shard's log. Then installs the state that the log contains, unless the shard was replaced meanwhile
    /// ([`CoordinatorTopic::having`]). Blocks.
    ///
    /// # Errors
    /// Returns [`ReplayError`] if the log cannot be read. The shard is then loaded again later.
    fn install(self: &Arc<Self>, shard: &Arc<Shard>) -> Result<(), ReplayError>;

    /// Removes the state that belongs to the partitions of `shards` from memory.
    fn forget_shards(&self, topic: &InternalTopic, shards: &[Arc<Shard>]);

    /// Removes all state from memory, because the topic was deleted.
    fn clear(&self);
}

/// How an internal topic is created and written.
#[derive(Clone)]
pub struct InternalTopicSettings {
    /// The topic's name.
    pub name: &'static str,
    /// The number of partitions. Keys are spread over them.
    pub partitions: i32,
    /// The number of replicas of each partition in a cluster.
    pub replication_factor: i16,
    /// The compression of batches.
    pub compression: Compression,
    /// Settings of the topic.
    pub configs: Vec<(String, Option<String>)>,
}

/// The internal topic of a coordinator, with its shards. Other brokers may lead the partitions of some shards.
pub struct CoordinatorTopic {
    settings: InternalTopicSettings,
    control: Control,
    logs: Arc<Partitions>,
    /// The shards of the topic. `None` while the topic does not exist.
    topic: RwLock<Option<Arc<InternalTopic>>>,
    /// True if the last check found no shard that is loading, so requests need not check again.
    all_loaded: AtomicBool,
    /// Limits how often a failure to create the topic is logged.
    unmade: LogRateLimit,
}

impl CoordinatorTopic {
    /// Creates a topic without shards. [`CoordinatorTopic::adopt`] finds them.
    pub fn new(settings: InternalTopicSettings, control: Control, logs: Arc<Partitions>) -> CoordinatorTopic {
        let (all_loaded, unmade) = (AtomicBool::new(true), LogRateLimit::default());
        CoordinatorTopic { settings, control, logs, topic: RwLock::default(), all_loaded, unmade }
    }

    /// Returns the current shards, or `None` while the topic does not exist. While the caller holds the guard, the set
    /// of shards does not change.
    pub fn read(&self) -> RwLockReadGuard<'_, Option<Arc<InternalTopic>>> {
        self.topic.read()
    }

    #[cfg(test)]
    pub fn replace(&self, topic: Arc<InternalTopic>) {
        *self.topic.write() = Some(topic);
        self.all_loaded.store(false, Ordering::Release);
    }

    /// Calls `put` with the topic if `shard` is still one of its shards. The shard cannot be replaced during the call.
    pub fn having(&self, shard: &Arc<Shard>, put: impl FnOnce(&InternalTopic)) {
        let topic = self.topic.read();
        let is_here = |topic: &&Arc<InternalTopic>| topic.shards().iter().any(|known| Arc::ptr_eq(known, shard));
        if let Some(topic) = topic.as_ref().filter(is_here) {
            put(topic);
        }
    }

    /// Adopts the topic's shards now and after each new image. Returns when the broker stops, since it then publishes
    /// no more images.
    pub async fn follow<C: Coordinator>(coordinator: &Arc<C>) {
        let mut images = coordinator.topic().control.watch();
        CoordinatorTopic::adopt(coordinator);
        while images.changed().await.is_ok() {
            CoordinatorTopic::adopt(coordinator);
        }
    }

    /// Waits until the shards of `keys` are loaded, for at most [`LOADING_WAIT`]. With `creates`, first creates the
    /// topic if it is missing.
    ///
    /// # Errors
    /// Fails with COORDINATOR_NOT_AVAILABLE if the topic cannot be created.
    pub async fn prepare<'a, C: Coordinator>(
        coordinator: &Arc<C>,
        creates: bool,
        keys: impl IntoIterator<Item = &'a str, IntoIter: Send> + Send,
    ) -> Result<(), ErrorCode> {
        let this = coordinator.topic();
        let is_there = this.topic.read().is_some();
        if !is_there {
            if this.control.image().topic(this.settings.name).is_none() && creates {
                this.create::<C>().await?;
            }
            CoordinatorTopic::adopt(coordinator);
        }
        if !this.all_loaded.load(Ordering::Acquire) {
            let topic = this.topic.read().clone();
            wait_for(keys.into_iter().filter_map(|key| topic.as_ref()?.shard(key).cloned()).collect()).await;
        }
        Ok(())
    }

    /// Waits until all shards are loaded, for at most [`LOADING_WAIT`].
    pub async fn prepare_all(&self) {
        let topic = self.topic.read().clone();
        wait_for(topic.iter().flat_map(|topic| topic.shards()).cloned().collect()).await;
    }

    /// Waits until no shard is loading any more.
    #[cfg(test)]
    pub async fn loaded(&self) {
        let topic = self.topic.read().clone();
        for shard in topic.iter().flat_map(|topic| topic.shards()) {
            shard.loaded().await;
        }
    }

    async fn create<C: Coordinator>(&self) -> Result<(), ErrorCode> {
        let InternalTopicSettings { name, partitions, replication_factor, configs, .. } = self.settings.clone();
        let topic = CreateTopic {
            name: name.to_owned(),
            num_partitions: partitions,
            replication_factor: if self.control.heartbeats().is_some() { replication_factor } else { 1 },
            configs,
            ..Default::default()
        };
        let made = self.control.create_topics(CreateTopics { topics: vec![topic], validate_only: false }).await;
        match made.into_iter().next() {
            Some(Err(refusal)) if refusal.code != ErrorCode::TOPIC_ALREADY_EXISTS => {
                if let Some(left_out) = self.unmade.due() {
                    tracing::error!(error = %refusal, left_out, "cannot create {name}: clients cannot begin to use {}", C::STATE);
                }
                Err(ErrorCode::COORDINATOR_NOT_AVAILABLE)
            }
            _ => Ok(()),
        }
    }

    /// Compares the shards with the image. If the topic or the leaders of its partitions have changed, replaces the
    /// shards and starts to load the new ones that this broker leads.
    pub fn adopt<C: Coordinator>(coordinator: &Arc<C>) {
        let this = coordinator.topic();
        let name = this.settings.name;
        let id_in = |image: &Image| image.topic(name).map(|topic| topic.id);
        let is_adopted = |topic: &Option<Arc<InternalTopic>>, image: &Image| {
            let is_same = topic.as_ref().map(|topic| topic.id()) == id_in(image);
            is_same && topic.as_ref().is_none_or(|topic| topic.keeps_its_roles())
        };
        // Most images do not change this topic, and then only the read lock is taken. The write lock would have to wait
        // while another thread installs the state of a shard.
        if is_adopted(&this.topic.read(), &this.control.image()) {
            return;
        }
        let mut topic = this.topic.write();
        // The image is read under the lock. If it were read before, another thread could meanwhile leave a deleted
        // topic according to a newer image, and this thread would adopt that topic again.
        let image = this.control.image();
        if is_adopted(&topic, &image) {
            return;
        }
        let new = match (topic.take(), image.topic(name)) {
            (Some(before), Some(found)) if before.id() == found.id => {
                let (new, left) = before.with_roles();
                CoordinatorTopic::unload(&**coordinator, &new, &left);
                // The other shards were taken over from `before`. Each is loaded already or is being loaded by another
                // task.
                let is_new = |shard: &&Arc<Shard>| !before.shards().iter().any(|known| Arc::ptr_eq(known, shard));
                let loading = new.shards().iter().filter(is_new).filter(|shard| shard.status() == Status::Loading);
                let loading: Vec<_> = loading.cloned().collect();
                Some((new, loading))
            }
            (before, found) => {
                if let Some(before) = before {
                    before.shards().iter().for_each(|shard| shard.leave());
                    coordinator.clear();
                    tracing::warn!("{name} was deleted: all {} and their state are lost", C::STATE);
                }
                found.map(|found| {
                    let compression = this.settings.compression;
                    let new = InternalTopic::new(found.id, found.partition_count(), compression, &this.logs);
                    let loading = new.shards().iter().filter(|shard| shard.status() == Status::Loading);
                    let loading: Vec<_> = loading.cloned().collect();
                    (new, loading)
                })
            }
        };
        if let Some((new, loading)) = new {
            this.all_loaded.store(!new.is_loading(), Ordering::Release);
            *topic = Some(Arc::new(new));
            CoordinatorTopic::load_all(coordinator, loading);
        }
    }

    /// Leaves shards whose partitions have changed their role ([`Shard::keeps_its_role`]), and removes their state.
    fn unload<C: Coordinator>(coordinator: &C, topic: &InternalTopic, left: &[Arc<Shard>]) {
        left.iter().for_each(|shard| shard.leave());
        coordinator.forget_shards(topic, left);
        for shard in left {
            let (partition, name) = (shard.partition().index(), coordinator.topic().settings.name);
            tracing::info!(partition, "this broker no longer coordinates the {} of a partition of {name}", C::STATE);
        }
    }

    fn load_all<C: Coordinator>(coordinator: &Arc<C>, shards: Vec<Arc<Shard>>) {
        let slots = Arc::new(Semaphore::new(LOADS_MAX));
        // Requests all logs first, so that other threads open them while the first shards are read.
        shards.iter().for_each(|shard| shard.partition().request_open());
        for shard in shards {
            task::spawn(CoordinatorTopic::load(Arc::downgrade(coordinator), shard, Arc::clone(&slots)));
        }
    }

    /// Loads a shard. A failure may pass, such as a lack of descriptors or memory. So this retries until the shard is
    /// loaded or no longer used.
    async fn load<C: Coordinator>(coordinator: Weak<C>, shard: Arc<Shard>, slots: Arc<Semaphore>) {
        let mut pause = RELOAD_FIRST;
        while let Some(coordinator) = coordinator.upgrade().filter(|_| shard.status() != Status::Gone) {
            let loaded = CoordinatorTopic::load_once(&coordinator, &shard, &slots).await;
            shard.set_loaded(loaded.is_ok());
            let topic = coordinator.topic();
            topic.note_loaded();
            let name = topic.settings.name;
            drop(coordinator);
            let error = match loaded {
                Ok(()) => return,
                Err(error) => error,
            };
            // The partition was deleted or another broker leads it. This broker will leave the shard when it gets the
            // image, so nothing is logged.
            if !matches!(error, ReplayError::Read(ReadError::Gone)) {
                let (partition, again_in) = (shard.partition().index(), pause);
                tracing::error!(partition, %error, ?again_in, "cannot load the {} of a partition of {name}: their clients must wait until a retry succeeds", C::STATE);
            }
            sleep(pause).await;
            pause = (pause * 2).min(RELOAD_MOST);
        }
    }

    async fn load_once<C: Coordinator>(
        coordinator: &Arc<C>,
        shard: &Arc<Shard>,
        slots: &Semaphore,
    ) -> Result<(), ReplayError> {
        // Opening the log may take long, so the slot is taken only afterwards.
        shard.partition().opened().await.map_err(ReadError::from)?;
        // Records of an earlier leader may still be truncated, so this waits until all in-sync replicas have them.
        shard.partition().replicated().await.map_err(ReadError::from)?;
        let _slot = slots.acquire().await.map_err(io::Error::other)?;
        let (coordinator, loading) = (Arc::clone(coordinator), Arc::clone(shard));
        tokio::task::spawn_blocking(move || coordinator.install(&loading)).await.map_err(io::Error::other)?
    }

    /// Checks whether all shards are loaded. If they are, requests no longer wait.
    fn note_loaded(&self) {
        let topic = self.topic.read();
        if topic.as_ref().is_none_or(|topic| !topic.is_loading()) {
            self.all_loaded.store(true, Ordering::Release);
        }
    }
}

async fn wait_for(shards: Vec<Arc<Shard>>) {
    let loaded = async {
        for shard in shards {
            shard.loaded().await;
        }
    };
    let _ = timeout(LOADING_WAIT, loaded).await;
}
