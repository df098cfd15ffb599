//! What groups committed, as every request reads it: in memory, by group, topic id and partition.
//!
//! Not the source of truth, which is the store, and no rules: who may commit is settled before. The control thread
//! alone changes it, after the transaction with the same changes, and in the order written.
//!
//! Invariant: what is here is what the tables hold, so that two connections that commit the same partition leave the
//! same winner in both.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fullbore_wire::Uuid;
use parking_lot::RwLock;

use super::command::{CommitOffsets, DeleteOffsets};

/// Groups are spread over so many locks, so that those who read one seldom meet a commit of another.
const SHARDS: usize = 32;

/// What a group committed for one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// Of the record to be read next.
    pub offset: i64,
    /// Of the record before it; -1 when the client did not say.
    pub leader_epoch: i32,
    /// What the client wants to be kept beside it.
    pub metadata: Box<str>,
    /// Since 1970.
    pub committed_ms: i64,
    /// Since 1970, where the client said so; else the broker's retention goes.
    pub expires_ms: Option<i64>,
}

/// Everything one group committed: topic id, partition, offset.
pub type GroupOffsets = BTreeMap<Uuid, BTreeMap<i32, Committed>>;

type Shard = HashMap<Arc<str>, GroupOffsets>;

/// The committed offsets of all groups.
#[derive(Debug)]
pub struct Offsets {
    hasher: RandomState,
    shards: [RwLock<Shard>; SHARDS],
    held: AtomicUsize,
}

impl Default for Offsets {
    fn default() -> Self {
        let shards = std::array::from_fn(|_| RwLock::default());
        Self { hasher: RandomState::new(), shards, held: AtomicUsize::new(0) }
    }
}

impl Offsets {
    /// Committed offsets of all groups together.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// What the group committed for the partition.
    pub fn get(&self, group: &str, topic: Uuid, partition: i32) -> Option<Committed> {
        self.read(group, |offsets| offsets?.get(&topic)?.get(&partition).cloned())
    }

    /// Looks at one group's offsets; `None` when it has none. Commits to groups of its shard wait meanwhile.
    pub fn read<T>(&self, group: &str, look: impl FnOnce(Option<&GroupOffsets>) -> T) -> T {
        look(self.shard(group).read().get(group))
    }

    /// Whether the group committed anything that is still kept.
    pub fn has(&self, group: &str) -> bool {
        self.shard(group).read().contains_key(group)
    }

    /// Every group that has offsets, in no order. Groups may come and go meanwhile.
    pub fn groups(&self) -> Vec<Arc<str>> {
        self.shards.iter().flat_map(|shard| shard.read().keys().map(Arc::clone).collect::<Vec<_>>()).collect()
    }

    pub(super) fn commit(&self, commit: CommitOffsets) {
        let CommitOffsets { group, offsets } = commit;
        if offsets.is_empty() {
            return;
        }
        let mut shard = self.shard(&group).write();
        let of_group = shard.entry(group).or_default();
        let mut added = 0;
        for one in offsets {
            let before = of_group.entry(one.topic).or_default().insert(one.partition, one.committed);
            added += usize::from(before.is_none());
        }
        self.held.fetch_add(added, Ordering::Relaxed);
    }

    pub(super) fn delete(&self, delete: &DeleteOffsets) {
        let mut shard = self.shard(&delete.group).write();
        let Some(of_group) = shard.get_mut(&delete.group) else { return };
        let mut removed = 0;
        for one in &delete.offsets {
            let Some(of_topic) = of_group.get_mut(&one.topic) else { continue };
            let means = |held: &Committed| one.committed_ms.is_none_or(|ms| ms == held.committed_ms);
            if of_topic.get(&one.partition).is_some_and(means) {
                of_topic.remove(&one.partition);
                removed += 1;
            }
            if of_topic.is_empty() {
                of_group.remove(&one.topic);
            }
        }
        if of_group.is_empty() {
            shard.remove(&delete.group);
        }
        self.held.fetch_sub(removed, Ordering::Relaxed);
    }

    pub(super) fn delete_group(&self, group: &str) {
        let removed = self.shard(group).write().remove(group);
        let removed = removed.iter().flat_map(BTreeMap::values).map(BTreeMap::len).sum();
        self.held.fetch_sub(removed, Ordering::Relaxed);
    }

    /// Forgets a topic in every group.
    pub(super) fn delete_topic(&self, topic: Uuid) {
        for shard in &self.shards {
            let mut removed = 0;
            shard.write().retain(|_, of_group| {
                removed += of_group.remove(&topic).map_or(0, |of_topic| of_topic.len());
                !of_group.is_empty()
            });
            self.held.fetch_sub(removed, Ordering::Relaxed);
        }
    }

    fn shard(&self, group: &str) -> &RwLock<Shard> {
        let hash = self.hasher.hash_one(group);
        &self.shards[usize::try_from(hash % SHARDS as u64).expect("below the number of shards")]
    }
}
