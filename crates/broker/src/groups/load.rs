//! Which shards the groups are in: the topic is made when a group first needs it, read at a start, and left when it is deleted.
//!
//! Invariant: a group is asked something only while its shard serves, and what a shard has is all there before it does.

use super::entry::Entry;
use super::offsets::{CommitOffset, OffsetAndMetadata, TopicName};
use super::records::{self, GroupRecord, OffsetKey};
use super::{Groups, Missing};
use crate::coordinator::{InternalTopic, Records, ReplayError, Shard, Status, replay};
use crate::partitions::ReadError;
use fullbore_control::{CONSUMER_OFFSETS, CreateTopic, CreateTopics, Image};
use fullbore_host::task;
use fullbore_rules::group::{Group, Snapshot};
use fullbore_wire::{ErrorCode, Text, Uuid};
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};

/// How long a request waits for what is being loaded, before its client is told to come again: as for a log being recovered.
const LOADING_WAIT: Duration = Duration::from_secs(5);
/// Shards that are read at the same time.
const LOADS_MAX: usize = 2;
/// When a shard that could not be loaded is tried again: soon, and then less and less often.
const RELOAD_FIRST: Duration = Duration::from_secs(1);
const RELOAD_MOST: Duration = Duration::from_secs(60);

/// Content of a shard's log.
#[derive(Default)]
struct ReplayedShard {
    snapshots: HashMap<Text, Snapshot>,
    /// By group: its id may be long.
    offsets: HashMap<Text, FoundOffsets>,
}

/// Offsets of a group by topic name and partition, with the topic's id.
type FoundOffsets = HashMap<(Text, i32), (Uuid, OffsetAndMetadata)>;

impl Groups {
    /// Sees to the topic as it is now, and from then on as it changes, until the broker stops. What is committed of topics that are
    /// deleted is forgotten meanwhile: that may wait for replicas, and who leads by now does not.
    pub async fn run_topics(self: Arc<Self>, mut stop: watch::Receiver<bool>) {
        let mut images = self.control.watch();
        let adopting = async {
            self.adopt();
            while images.changed().await.is_ok() {
                self.adopt();
            }
        };
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => {}
            _ = adopting => {}
            _ = self.forget_deleted_topics() => {}
        }
    }

    /// Until there are no more images.
    async fn forget_deleted_topics(self: &Arc<Self>) {
        let mut images = self.control.watch();
        let mut before = Arc::clone(&images.borrow_and_update());
        while images.changed().await.is_ok() {
            let after = Arc::clone(&images.borrow_and_update());
            for deleted in before.topics().filter(|topic| after.topic_by_id(topic.id).is_none()) {
                self.forget_topic(deleted.id).await;
            }
            before = after;
        }
    }

    /// Waits a while until these groups are loaded. Where a group may begin, the topic is made first if there is none.
    ///
    /// # Errors
    /// COORDINATOR_NOT_AVAILABLE: the topic cannot be made.
    pub async fn prepare<'a>(
        self: &Arc<Self>,
        missing: Missing,
        groups: impl IntoIterator<Item = &'a Text, IntoIter: Send> + Send,
    ) -> Result<(), ErrorCode> {
        let is_there = self.topic.read().is_some();
        if !is_there {
            if self.control.image().topic(CONSUMER_OFFSETS).is_none() && missing == Missing::Create {
                self.make_topic().await?;
            }
            self.adopt();
        }
        if !self.all_loaded.load(Ordering::Acquire) {
            let topic = self.topic.read().clone();
            wait_for(groups.into_iter().filter_map(|group| topic.as_ref()?.shard(group).cloned()).collect()).await;
        }
        Ok(())
    }

    /// Waits a while until all groups are loaded.
    pub async fn prepare_all(self: &Arc<Self>) {
        let topic = self.topic.read().clone();
        wait_for(topic.iter().flat_map(|topic| topic.shards()).cloned().collect()).await;
    }

    /// Waits until no shard is being loaded.
    #[cfg(test)]
    pub(super) async fn loaded(&self) {
        let topic = self.topic.read().clone();
        for shard in topic.iter().flat_map(|topic| topic.shards()) {
            shard.loaded().await;
        }
    }

    async fn make_topic(&self) -> Result<(), ErrorCode> {
        let topic = CreateTopic {
            name: CONSUMER_OFFSETS.to_owned(),
            num_partitions: self.topic_config.partitions,
            replication_factor: if self.control.beats().is_some() { self.topic_config.replication_factor } else { 1 },
            configs: self.topic_config.configs(),
            ..Default::default()
        };
        let made = self.control.create_topics(CreateTopics { topics: vec![topic], validate_only: false }).await;
        match made.into_iter().next() {
            Some(Err(refusal)) if refusal.code != ErrorCode::TOPIC_ALREADY_EXISTS => {
                if let Some(left_out) = self.unmade.due() {
                    tracing::error!(error = %refusal, left_out, "{CONSUMER_OFFSETS} cannot be created; no group can begin");
                }
                Err(ErrorCode::COORDINATOR_NOT_AVAILABLE)
            }
            _ => Ok(()),
        }
    }

    /// Takes over the shards of the topic, unless it has them.
    pub(super) fn adopt(self: &Arc<Self>) {
        let id_in = |image: &Image| image.topic(CONSUMER_OFFSETS).map(|topic| topic.id);
        let is_adopted = |topic: &Option<Arc<InternalTopic>>, image: &Image| {
            let is_same = topic.as_ref().map(|topic| topic.id()) == id_in(image);
            is_same && topic.as_ref().is_none_or(|topic| topic.keeps_its_roles())
        };
        // Most images change something else, and who writes waits for shards to be installed, and others wait behind.
        if is_adopted(&self.topic.read(), &self.control.image()) {
            return;
        }
        let mut topic = self.topic.write();
        // Looked at under the lock: an older one would bring back what somebody has left.
        let image = self.control.image();
        if is_adopted(&topic, &image) {
            return;
        }
        let compression = self.topic_config.compression;
        let new = match (topic.take(), image.topic(CONSUMER_OFFSETS)) {
            (Some(before), Some(found)) if before.id() == found.id => {
                let (new, left) = before.with_roles();
                self.unload(&new, &left);
                // Those that stay are loaded by who began it.
                let is_new = |shard: &&Arc<Shard>| !before.shards().iter().any(|known| Arc::ptr_eq(known, shard));
                let loading = new.shards().iter().filter(is_new).filter(|shard| shard.status() == Status::Loading);
                let loading: Vec<_> = loading.cloned().collect();
                Some((new, loading))
            }
            (before, found) => {
                if let Some(before) = before {
                    self.leave(&before);
                }
                found.map(|found| {
                    let new = InternalTopic::new(found.id, found.partition_count(), compression, &self.logs);
                    let loading = new.shards().iter().filter(|shard| shard.status() == Status::Loading);
                    let loading: Vec<_> = loading.cloned().collect();
                    (new, loading)
                })
            }
        };
        if let Some((new, loading)) = new {
            self.all_loaded.store(!new.is_loading(), Ordering::Release);
            *topic = Some(Arc::new(new));
            self.load_all(loading);
        }
    }

    /// Other brokers lead these shards' partitions, and have their groups: here nothing is known of them any more.
    fn unload(&self, topic: &InternalTopic, left: &[Arc<Shard>]) {
        left.iter().for_each(|shard| shard.leave());
        self.forget_shards(topic, left);
        for shard in left {
            let partition = shard.partition().index();
            tracing::info!(partition, "the groups of this partition have another coordinator");
        }
    }

    /// Takes every group of these shards' partitions out of service, and forgets what was committed there: over
    /// `fullbore.groups.max` also by groups that are not listed.
    fn forget_shards(&self, topic: &InternalTopic, shards: &[Arc<Shard>]) {
        let indices: HashSet<i32> = shards.iter().map(|shard| shard.partition().index()).collect();
        let is_of_them = |shard: &Arc<Shard>| indices.contains(&shard.partition().index());
        let entries: Vec<_> = self.table.lock().values().filter(|entry| is_of_them(&entry.shard)).cloned().collect();
        for entry in entries {
            self.remove(&entry, &mut entry.lock());
        }
        self.offsets.remove_groups(|group| topic.shard(group).is_some_and(is_of_them));
    }

    /// The topic is deleted, and with it everything that was in it.
    fn leave(&self, topic: &InternalTopic) {
        topic.shards().iter().for_each(|shard| shard.leave());
        let left: Vec<_> = self.table.lock().values().cloned().collect();
        for entry in left {
            self.remove(&entry, &mut entry.lock());
        }
        self.offsets.clear();
        tracing::warn!("{CONSUMER_OFFSETS} is deleted, and with it all groups and what they had committed");
    }

    fn load_all(self: &Arc<Self>, shards: Vec<Arc<Shard>>) {
        let places = Arc::new(Semaphore::new(LOADS_MAX));
        // All are asked for first: logs are opened by threads of their own.
        shards.iter().for_each(|shard| shard.partition().ask_to_open());
        for shard in shards {
            task::spawn(Groups::load(Arc::downgrade(self), shard, Arc::clone(&places)));
        }
    }

    /// Until it is loaded, or gone. What keeps it from that may pass, as a lack of descriptors or memory.
    async fn load(groups: Weak<Groups>, shard: Arc<Shard>, places: Arc<Semaphore>) {
        let mut pause = RELOAD_FIRST;
        while let Some(groups) = groups.upgrade().filter(|_| shard.status() != Status::Gone) {
            let loaded = groups.load_once(&shard, &places).await;
            shard.set_loaded(loaded.is_ok());
            groups.note_loaded();
            drop(groups);
            let error = match loaded {
                Ok(()) => return,
                Err(error) => error,
            };
            // Of a partition that is gone, or led elsewhere, the shard is about to be, too.
            if !matches!(error, ReplayError::Read(ReadError::Gone)) {
                let (partition, again_in) = (shard.partition().index(), pause);
                tracing::error!(partition, %error, ?again_in, "groups of this partition of {CONSUMER_OFFSETS} are not served");
            }
            sleep(pause).await;
            pause = (pause * 2).min(RELOAD_MOST);
        }
    }

    async fn load_once(self: &Arc<Self>, shard: &Arc<Shard>, places: &Semaphore) -> Result<(), ReplayError> {
        // A log that takes long to be opened takes no place.
        shard.partition().opened().await.map_err(ReadError::from)?;
        // What an earlier leader has appended is to be known here once all replicas have it.
        shard.partition().replicated().await.map_err(ReadError::from)?;
        let _place = places.acquire().await.map_err(io::Error::other)?;
        let (groups, loading) = (Arc::clone(self), Arc::clone(shard));
        tokio::task::spawn_blocking(move || groups.install(&loading)).await.map_err(io::Error::other)?
    }

    /// Takes note whether any shard is still being loaded; only then requests look which.
    fn note_loaded(&self) {
        let topic = self.topic.read();
        if topic.as_ref().is_none_or(|topic| !topic.is_loading()) {
            self.all_loaded.store(true, Ordering::Release);
        }
    }

    /// Reads the shard's log and puts in place what it says.
    pub(super) fn install(self: &Arc<Self>, shard: &Arc<Shard>) -> Result<(), ReplayError> {
        let mut found = ReplayedShard::default();
        let mut unread = None;
        replay(shard.partition(), |key, value| match records::read(key, value) {
            Ok(kept) => found.note(kept),
            Err(error) => unread = Some((unread.as_ref().map_or(1_u64, |(records, _)| records + 1), error)),
        })?;
        if let Some((records, error)) = unread {
            let partition = shard.partition().index();
            tracing::warn!(partition, records, %error, "records of {CONSUMER_OFFSETS} are passed over, since they cannot be read");
        }
        // Whoever deletes the topic, or has another shard take this one's place, waits for this, or was here before.
        let topic = self.topic.read();
        let is_here = |topic: &&Arc<InternalTopic>| topic.shards().iter().any(|known| Arc::ptr_eq(known, shard));
        if let Some(topic) = topic.as_ref().filter(is_here) {
            if shard.is_successor() {
                // What was told of late, when the partition was led here before.
                self.forget_shards(topic, std::slice::from_ref(shard));
            }
            for (id, snapshot) in found.snapshots {
                self.restore(shard, id, &snapshot);
            }
            self.install_offsets(shard, found.offsets);
        }
        Ok(())
    }

    fn install_offsets(self: &Arc<Self>, shard: &Arc<Shard>, found: HashMap<Text, FoundOffsets>) {
        let image = self.control.image();
        let mut names: HashMap<Uuid, TopicName> = HashMap::new();
        let mut gone = Vec::new();
        for (group, found) in found {
            let mut offsets = Vec::with_capacity(found.len());
            for ((name, partition), (topic_id, committed)) in found {
                let topic = image.topic(&name).filter(|topic| topic_id.is_zero() || topic.id == topic_id);
                let Some(topic) = topic else {
                    // Its topic was deleted, and nobody could write that down.
                    gone.push((group.clone(), name, partition));
                    continue;
                };
                let name = || TopicName { id: topic.id, name: Arc::from(topic.name.as_str()) };
                let topic = names.entry(topic.id).or_insert_with(name).clone();
                offsets.push(CommitOffset { topic, partition, committed });
            }
            if offsets.is_empty() {
                continue;
            }
            self.offsets.put(shard, &group, offsets);
            if let Err(error) = self.create_in(shard, &group) {
                tracing::error!(group = &*group, %error, "the group is not listed, but its offsets are there");
            }
        }
        if !gone.is_empty() {
            let tombstone = |(group, topic, partition): (Text, Text, i32)| {
                records::offset(OffsetKey { group: &group, topic: &topic, partition }, None).ok()
            };
            drop(shard.write(Records::late(move || gone.into_iter().filter_map(tombstone)), drop));
        }
    }

    pub(super) fn restore(&self, shard: &Arc<Shard>, id: Text, snapshot: &Snapshot) {
        match Group::restore(snapshot, self.settings, self.now_ms()) {
            Ok(group) => {
                let entry = Entry::new(id.clone(), group, Arc::clone(shard));
                self.note_bytes(&mut entry.lock());
                self.arm(&entry, &entry.lock());
                self.table.lock().insert(id, entry);
            }
            Err(error) => {
                tracing::error!(group = &*id, %error, "the group as it was kept cannot be read; its members join anew");
            }
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

impl ReplayedShard {
    fn note(&mut self, kept: GroupRecord) {
        match kept {
            GroupRecord::Offset { group, topic, partition, committed: Some(committed) } => {
                self.offsets.entry(group).or_default().insert((topic, partition), committed);
            }
            GroupRecord::Offset { group, topic, partition, committed: None } => {
                let Some(of_group) = self.offsets.get_mut(&group) else { return };
                of_group.remove(&(topic, partition));
                if of_group.is_empty() {
                    self.offsets.remove(&group);
                }
            }
            GroupRecord::Group { group, snapshot: Some(snapshot) } => drop(self.snapshots.insert(group, snapshot)),
            GroupRecord::Group { group, snapshot: None } => drop(self.snapshots.remove(&group)),
            GroupRecord::Other => {}
        }
    }
}
