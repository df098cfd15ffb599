//! Committed offsets of groups, as every request reads them: in memory, by group, topic id and partition.
//!
//! Not the source of truth, which is the log. Not here: the check of a commit. Only callbacks of writes and the load of a shard
//! change it.
//!
//! Invariant: it has the offsets of the log, so that two connections that commit the same partition leave the same
//! winner in both. Of a shard that was left it has nothing: the shard is left first, and then its offsets are forgotten.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::coordinator::{Shard, Status};
use fullbore_wire::Uuid;
use parking_lot::{RwLock, RwLockWriteGuard};

/// Groups are spread over so many locks, so that those who read one seldom meet a commit of another.
const STRIPES: usize = 32;

/// Committed offset of one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OffsetAndMetadata {
    /// The offset of the record to be read next.
    pub offset: i64,
    /// The leader epoch of the record before it; -1 when the client did not say.
    pub leader_epoch: i32,
    /// Metadata of the client.
    pub metadata: Box<str>,
    /// Since 1970.
    pub committed_ms: i64,
    /// Since 1970, where the client said so; else the broker's retention goes.
    pub expires_ms: Option<i64>,
}

/// A topic as offsets of it are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicName {
    /// The topic's id, by which offsets are found: a topic made again under the same name has none.
    pub id: Uuid,
    /// The topic's name, which is in the records.
    pub name: Arc<str>,
}

/// Offset of a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitOffset {
    /// The topic.
    pub topic: TopicName,
    /// The partition.
    pub partition: i32,
    /// The committed offset.
    pub committed: OffsetAndMetadata,
}

/// Committed offsets of one topic.
#[derive(Debug, Clone)]
pub struct TopicOffsets {
    /// The topic's name.
    pub name: Arc<str>,
    /// By partition.
    pub partitions: BTreeMap<i32, OffsetAndMetadata>,
}

/// Everything one group committed, by topic id.
pub type GroupOffsets = BTreeMap<Uuid, TopicOffsets>;

type Stripe = HashMap<Arc<str>, GroupOffsets>;

/// The committed offsets of all groups.
#[derive(Debug)]
pub struct CommittedOffsets {
    hasher: RandomState,
    stripes: [RwLock<Stripe>; STRIPES],
    held: AtomicUsize,
    metadata_bytes: AtomicUsize,
}

impl Default for CommittedOffsets {
    fn default() -> Self {
        let stripes = std::array::from_fn(|_| RwLock::default());
        Self { hasher: RandomState::new(), stripes, held: AtomicUsize::new(0), metadata_bytes: AtomicUsize::new(0) }
    }
}

impl CommittedOffsets {
    /// Committed offsets of all groups together.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Bytes of the metadata of all of them.
    pub fn metadata_bytes(&self) -> usize {
        self.metadata_bytes.load(Ordering::Relaxed)
    }

    /// Takes note of offsets that are here no more.
    fn count_out<'a>(&self, gone: impl Iterator<Item = &'a OffsetAndMetadata>) {
        let (offsets, bytes) = gone.fold((0, 0), |(offsets, bytes), gone| (offsets + 1, bytes + gone.metadata.len()));
        self.held.fetch_sub(offsets, Ordering::Relaxed);
        self.metadata_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Looks at one group's offsets; `None` when it has none. Commits to groups of its stripe wait meanwhile.
    pub fn read<T>(&self, group: &str, look: impl FnOnce(Option<&GroupOffsets>) -> T) -> T {
        look(self.stripe(group).read().get(group))
    }

    /// Returns true if the group has a committed offset.
    pub fn has(&self, group: &str) -> bool {
        self.stripe(group).read().contains_key(group)
    }

    /// Every group that has offsets of a topic, in no order.
    pub(super) fn groups_of(&self, topic: Uuid) -> Vec<Arc<str>> {
        let of_stripe = |stripe: &RwLock<Stripe>| -> Vec<Arc<str>> {
            let stripe = stripe.read();
            stripe.iter().filter(|(_, of_group)| of_group.contains_key(&topic)).map(|(id, _)| Arc::clone(id)).collect()
        };
        self.stripes.iter().flat_map(of_stripe).collect()
    }

    /// All of them are seen at once, unless their shard was left: whoever leaves it forgets what is here, before or after this.
    pub(super) fn put(&self, shard: &Shard, group: &str, offsets: Vec<CommitOffset>) {
        if offsets.is_empty() {
            return;
        }
        let Some(mut stripe) = self.of_shard(shard, group) else { return };
        if !stripe.contains_key(group) {
            stripe.insert(Arc::from(group), GroupOffsets::new());
        }
        let Some(of_group) = stripe.get_mut(group) else { return };
        let (mut added, mut bytes, mut replaced) = (0, 0, 0);
        for CommitOffset { topic, partition, committed } in offsets {
            let of_topic = of_group
                .entry(topic.id)
                .or_insert_with(|| TopicOffsets { name: topic.name, partitions: BTreeMap::new() });
            bytes += committed.metadata.len();
            match of_topic.partitions.insert(partition, committed) {
                Some(before) => replaced += before.metadata.len(),
                None => added += 1,
            }
        }
        self.held.fetch_add(added, Ordering::Relaxed);
        self.metadata_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.metadata_bytes.fetch_sub(replaced, Ordering::Relaxed);
    }

    /// Forgets an offset, unless its shard was left: it may be there again, as whoever led it meanwhile has it.
    pub(super) fn remove(&self, shard: &Shard, group: &str, topic: Uuid, partition: i32) {
        let Some(mut stripe) = self.of_shard(shard, group) else { return };
        let Some(of_group) = stripe.get_mut(group) else { return };
        let Some(of_topic) = of_group.get_mut(&topic) else { return };
        let removed = of_topic.partitions.remove(&partition);
        if of_topic.partitions.is_empty() {
            of_group.remove(&topic);
        }
        if of_group.is_empty() {
            stripe.remove(group);
        }
        self.count_out(removed.iter());
    }

    /// Forgets these groups.
    pub(super) fn remove_groups(&self, is_meant: impl Fn(&str) -> bool) {
        for stripe in &self.stripes {
            stripe.write().retain(|group, of_group| {
                let is_meant = is_meant(group);
                if is_meant {
                    self.count_out(each(of_group));
                }
                !is_meant
            });
        }
    }

    /// Forgets a group, unless its shard was left.
    pub(super) fn remove_group(&self, shard: &Shard, group: &str) {
        let Some(mut stripe) = self.of_shard(shard, group) else { return };
        self.count_out(stripe.remove(group).iter().flat_map(each));
    }

    /// Forgets everything.
    pub(super) fn clear(&self) {
        for stripe in &self.stripes {
            let cleared = std::mem::take(&mut *stripe.write());
            self.count_out(cleared.values().flat_map(each));
        }
    }

    /// Locks the offsets of a group in this shard; `None` if the shard was left.
    fn of_shard(&self, shard: &Shard, group: &str) -> Option<RwLockWriteGuard<'_, Stripe>> {
        let stripe = self.stripe(group).write();
        (shard.status() != Status::Gone).then_some(stripe)
    }

    fn stripe(&self, group: &str) -> &RwLock<Stripe> {
        let hash = self.hasher.hash_one(group);
        &self.stripes[usize::try_from(hash % STRIPES as u64).expect("below the number of stripes")]
    }
}

/// Returns everything that a group has committed.
fn each(of_group: &GroupOffsets) -> impl Iterator<Item = &OffsetAndMetadata> {
    of_group.values().flat_map(|of_topic| of_topic.partitions.values())
}
