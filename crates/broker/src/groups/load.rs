//! Loads groups and offsets from a shard's log, and removes them when this broker leaves the shard.
//!
//! [`CoordinatorTopic`] decides which shards there are.

use super::entry::Entry;
use super::offsets::{CommitOffset, TopicName};
use super::records::{self, OffsetKey};
use super::replayed::{FoundOffsets, FoundPending, ReplayedShard};
use super::{Groups, Missing, fresh_parts_id};
use crate::coordinator::{Coordinator, CoordinatorTopic, InternalTopic, LogEntry, Records, ReplayError, Shard, replay};
use fullbore_rules::group::{Group, Parts, Restoring, Snapshot};
use fullbore_wire::{ErrorCode, Text, Uuid};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use tokio::sync::watch;

impl Coordinator for Groups {
    const STATE: &'static str = "groups";

    fn topic(&self) -> &CoordinatorTopic {
        &self.topic
    }

    fn install(self: &Arc<Self>, shard: &Arc<Shard>) -> Result<(), ReplayError> {
        let mut found = ReplayedShard::default();
        replay(shard.partition(), |entry| {
            match entry {
                LogEntry::Marker(marker) => found.end_transaction(&marker),
                LogEntry::Record { key, value, transaction } => found.note(records::read(key, value)?, transaction),
            }
            Ok(())
        })?;
        self.topic.having(shard, |topic| {
            if shard.is_successor() {
                // This broker has led the partition before. Removes what it still has in memory from that time, since
                // the log has the newer state.
                self.forget_shards(topic, std::slice::from_ref(shard));
            }
            let snapshots = std::mem::take(&mut found.snapshots);
            let all_known = snapshots.values().all(Snapshot::is_known);
            for (id, snapshot) in snapshots {
                self.restore(shard, id, &snapshot, &found.take_parts(&snapshot));
            }
            // `parts` contains the records of members and regular expressions to which no group refers. If the record
            // of a group could not be read, that group may refer to some of them, so nothing is deleted.
            if all_known {
                delete_parts(shard, std::mem::take(&mut found.parts));
            }
            self.install_offsets(shard, found.offsets, &found.pending);
            self.install_pending(shard, found.pending);
        });
        Ok(())
    }

    /// Takes every group of these shards out of service and removes all committed offsets. This includes the offsets of
    /// groups that are not listed because of `fullbore.groups.max`.
    fn forget_shards(&self, topic: &InternalTopic, shards: &[Arc<Shard>]) {
        let indices: HashSet<i32> = shards.iter().map(|shard| shard.partition().index()).collect();
        let is_of_them = |shard: &Arc<Shard>| indices.contains(&shard.partition().index());
        let entries: Vec<_> = self.table.lock().values().filter(|entry| is_of_them(&entry.shard)).cloned().collect();
        for entry in entries {
            self.remove(&entry, &mut entry.lock());
        }
        self.offsets.remove_groups(|group| topic.shard(group).is_some_and(is_of_them));
    }

    fn clear(&self) {
        let left: Vec<_> = self.table.lock().values().cloned().collect();
        for entry in left {
            self.remove(&entry, &mut entry.lock());
        }
        self.offsets.clear();
    }
}

impl Groups {
    /// Loads and leaves shards, and deletes the offsets of deleted topics, until the broker stops. Both run at the same
    /// time: a deletion may wait for replicas, and must not delay a change of leaders.
    pub async fn run_topics(self: Arc<Self>, mut stop: watch::Receiver<bool>) {
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => {}
            _ = CoordinatorTopic::follow(&self) => {}
            _ = self.forget_deleted_topics() => {}
        }
    }

    /// Deletes the offsets of each topic that is deleted. Returns when the broker stops, since it then publishes no
    /// more images.
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

    /// Waits for a limited time until `groups` are loaded. If the topic does not exist and `missing` allows it, the
    /// topic is created first.
    ///
    /// # Errors
    /// Fails with COORDINATOR_NOT_AVAILABLE if the topic cannot be created.
    pub async fn prepare<'a>(
        self: &Arc<Self>,
        missing: Missing,
        groups: impl IntoIterator<Item = &'a Text, IntoIter: Send> + Send,
    ) -> Result<(), ErrorCode> {
        let keys = groups.into_iter().map(Text::as_str);
        CoordinatorTopic::prepare(self, missing == Missing::Create, keys).await
    }

    /// Waits for a limited time until all groups are loaded.
    pub async fn prepare_all(&self) {
        self.topic.prepare_all().await;
    }

    fn install_offsets(
        self: &Arc<Self>,
        shard: &Arc<Shard>,
        found: HashMap<Text, FoundOffsets>,
        pending: &HashMap<Text, FoundPending>,
    ) {
        let image = self.control.image();
        let mut names: HashMap<Uuid, TopicName> = HashMap::new();
        let mut gone = Vec::new();
        for (group, found) in found {
            let pending = pending.get(&group);
            let mut offsets = Vec::with_capacity(found.len());
            for ((name, partition), (topic_id, committed)) in found {
                let topic = image.topic(&name).filter(|topic| topic_id.is_zero() || topic.id == topic_id);
                let Some(topic) = topic else {
                    // The topic was deleted, but its offset still exists, so a tombstone is written now. It is not
                    // written if the partition also has a pending offset. That offset may belong to a newer topic of
                    // the same name, and the tombstone would delete it too.
                    let place = (name, partition);
                    if !pending.is_some_and(|pending| pending.contains(&place)) {
                        gone.push((group.clone(), place.0, partition));
                    }
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
            self.list(shard, &group);
        }
        if !gone.is_empty() {
            let tombstone = |(group, topic, partition): (Text, Text, i32)| {
                records::offset(OffsetKey { group: &group, topic: &topic, partition }, None).ok()
            };
            drop(shard.write(Records::late(move || gone.into_iter().filter_map(tombstone)), drop));
        }
    }

    /// Installs the pending offsets of open transactions, except for those of deleted topics.
    fn install_pending(&self, shard: &Arc<Shard>, found: HashMap<Text, FoundPending>) {
        let image = self.control.image();
        for (group, found) in found {
            let pending = found.converted(|(name, partition), (topic_id, committed)| {
                let topic = image.topic(name).filter(|topic| topic_id.is_zero() || topic.id == topic_id)?;
                let topic = TopicName { id: topic.id, name: Arc::from(topic.name.as_str()) };
                let key = (topic.id, *partition);
                Some((key, CommitOffset { topic, partition: *partition, committed }))
            });
            if !pending.is_empty() {
                self.offsets.install_pending(shard, &group, pending);
                self.list(shard, &group);
            }
        }
    }

    /// Lists a group that has committed offsets, unless there are too many groups.
    fn list(&self, shard: &Arc<Shard>, group: &Text) {
        if let Err(error) = self.create_in(shard, group) {
            tracing::error!(group = &**group, %error, "cannot restore a group that has committed offsets: clients can \
                 read the offsets, but ListGroups leaves the group out");
        }
    }

    fn restore(&self, shard: &Arc<Shard>, id: Text, snapshot: &Snapshot, parts: &Parts) {
        let image = self.control.image();
        let restoring = Restoring {
            topics: &*image,
            settings: self.settings,
            fresh_parts_id: fresh_parts_id(),
            now: self.now_ms(),
        };
        match Group::restore(snapshot, parts, &restoring) {
            Ok(group) => {
                let entry = Entry::new(id.clone(), group, Arc::clone(shard));
                self.note_bytes(&mut entry.lock());
                self.arm(&entry, &entry.lock());
                self.table.lock().insert(id, entry);
            }
            Err(error) => {
                tracing::error!(group = &*id, %error, "cannot read the records of a group's members: the members must \
                     join again");
            }
        }
    }
}

/// Writes tombstones for the members and regular expressions (*parts*) of groups that no longer exist. Such parts exist
/// if a write of their tombstones has failed, or if the code of their group has panicked.
fn delete_parts(shard: &Arc<Shard>, parts: HashMap<Uuid, Parts>) {
    if !parts.is_empty() {
        let keys = parts.into_values().flat_map(Parts::into_keys);
        drop(shard.write(Records::late(move || keys.map(|key| records::part(&key, None))), drop));
    }
}
