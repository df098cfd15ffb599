//! The committed offsets of groups in memory. Requests look them up by group, topic id and partition. The offsets that
//! are pending in transactions are stored here as well.
//!
//! The log is the source of truth. The offsets in memory change only in the callbacks of writes and when a shard is
//! loaded, so memory and log always agree. Of two commits for a partition, the later one in the log also wins in
//! memory. When this broker leaves a shard, it removes the shard's offsets, and callbacks that run later add none.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::coordinator::{Shard, Status};
use fullbore_rules::group::PendingOffsets;
use fullbore_wire::Uuid;
use parking_lot::{Mutex, RwLock, RwLockWriteGuard};

/// Number of locks among which the groups are divided, so that reading one group rarely waits for a commit of another.
const STRIPES: usize = 32;

/// The committed offset of one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OffsetAndMetadata {
    /// The offset of the next record that the group will read.
    pub offset: i64,
    /// The leader epoch of the record before `offset`, or -1 if the client sent none.
    pub leader_epoch: i32,
    /// A text that the client has stored with the offset.
    pub metadata: Box<str>,
    /// When the offset was committed, in milliseconds since 1970.
    pub committed_ms: i64,
    /// When the offset expires, in milliseconds since 1970. `None` if the client did not set a time, so that the
    /// broker's retention applies.
    pub expires_ms: Option<i64>,
}

/// The topic for which offsets are committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicName {
    /// The topic's id, by which offsets are looked up. A topic that is recreated with the same name has another id and
    /// no offsets.
    pub id: Uuid,
    /// The topic's name, as the records contain it.
    pub name: Arc<str>,
}

/// A committed offset, with its topic and partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitOffset {
    /// The topic.
    pub topic: TopicName,
    /// Number of the partition.
    pub partition: i32,
    /// The committed offset.
    pub committed: OffsetAndMetadata,
}

/// The committed offsets of one topic.
#[derive(Debug, Clone)]
pub struct TopicOffsets {
    /// The topic's name.
    pub name: Arc<str>,
    /// Offsets by partition.
    pub partitions: BTreeMap<i32, OffsetAndMetadata>,
}

/// All committed offsets of one group, by topic id.
pub type GroupOffsets = BTreeMap<Uuid, TopicOffsets>;

/// The offsets of one group that are pending in transactions, by topic id and partition.
pub type PendingGroupOffsets = PendingOffsets<(Uuid, i32), CommitOffset>;

/// The offsets of one group while its lock is held.
#[derive(Clone, Copy, Debug)]
pub struct OffsetsView<'a> {
    /// The committed offsets. `None` if there are none.
    pub committed: Option<&'a GroupOffsets>,
    /// The offsets that are pending in transactions. `None` if there are none.
    pub pending: Option<&'a PendingGroupOffsets>,
}

impl OffsetsView<'_> {
    /// Returns true if an open transaction has an offset for the partition.
    pub fn is_pending(&self, topic: Uuid, partition: i32) -> bool {
        self.pending.is_some_and(|pending| pending.contains(&(topic, partition)))
    }
}

#[derive(Debug, Default)]
struct Stripe {
    committed: HashMap<Arc<str>, GroupOffsets>,
    pending: HashMap<Arc<str>, PendingGroupOffsets>,
}

/// An open transaction: the partition of `__consumer_offsets` that is part of it, and its producer's id.
type OpenTransaction = (i32, i64);

/// The committed offsets of all groups.
#[derive(Debug)]
pub struct CommittedOffsets {
    hasher: RandomState,
    stripes: [RwLock<Stripe>; STRIPES],
    /// The groups that have pending offsets in each open transaction. A thread that holds this lock must not lock a
    /// stripe.
    open: Mutex<HashMap<OpenTransaction, HashSet<Arc<str>>>>,
    held: AtomicUsize,
    pending: AtomicUsize,
    metadata_bytes: AtomicUsize,
}

impl Default for CommittedOffsets {
    fn default() -> Self {
        Self {
            hasher: RandomState::new(),
            stripes: std::array::from_fn(|_| RwLock::default()),
            open: Mutex::default(),
            held: AtomicUsize::new(0),
            pending: AtomicUsize::new(0),
            metadata_bytes: AtomicUsize::new(0),
        }
    }
}

impl CommittedOffsets {
    /// Returns the number of committed offsets of all groups.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Returns the number of offsets of all groups that are pending in transactions.
    pub fn pending(&self) -> usize {
        self.pending.load(Ordering::Relaxed)
    }

    /// Returns the size of the metadata of all committed and pending offsets.
    pub fn metadata_bytes(&self) -> usize {
        self.metadata_bytes.load(Ordering::Relaxed)
    }

    /// Subtracts removed offsets from the counts.
    fn count_out<'a>(&self, gone: impl Iterator<Item = &'a OffsetAndMetadata>) {
        let (offsets, bytes) = gone.fold((0, 0), |(offsets, bytes), gone| (offsets + 1, bytes + gone.metadata.len()));
        self.held.fetch_sub(offsets, Ordering::Relaxed);
        self.metadata_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Subtracts offsets that are no longer pending from the counts.
    fn count_pending_out<'a>(&self, gone: impl IntoIterator<Item = &'a CommitOffset>) {
        for gone in gone {
            self.pending.fetch_sub(1, Ordering::Relaxed);
            self.metadata_bytes.fetch_sub(gone.committed.metadata.len(), Ordering::Relaxed);
        }
    }

    fn count_pending_in(&self, offset: &CommitOffset) {
        self.pending.fetch_add(1, Ordering::Relaxed);
        self.metadata_bytes.fetch_add(offset.committed.metadata.len(), Ordering::Relaxed);
    }

    /// Calls `read_view` with a group's committed offsets, or with `None` if it has none. The call delays commits of
    /// every group with the same lock.
    pub fn read<T>(&self, group: &str, read_view: impl FnOnce(Option<&GroupOffsets>) -> T) -> T {
        self.view(group, |view| read_view(view.committed))
    }

    /// Calls `read_view` with a group's committed and pending offsets. The call delays commits of every group with the
    /// same lock.
    pub fn view<T>(&self, group: &str, read_view: impl FnOnce(OffsetsView<'_>) -> T) -> T {
        let stripe = self.stripe(group).read();
        read_view(OffsetsView { committed: stripe.committed.get(group), pending: stripe.pending.get(group) })
    }

    /// Returns true if the group has any committed or pending offset.
    pub fn has(&self, group: &str) -> bool {
        self.view(group, |view| view.committed.is_some() || view.pending.is_some())
    }

    /// Returns every group that has offsets for a topic, in arbitrary order.
    pub(super) fn groups_of(&self, topic: Uuid) -> Vec<Arc<str>> {
        let mut groups = HashSet::new();
        for stripe in &self.stripes {
            let stripe = stripe.read();
            let committed = stripe.committed.iter().filter(|(_, of_group)| of_group.contains_key(&topic));
            groups.extend(committed.map(|(id, _)| Arc::clone(id)));
            let is_meant = |pending: &PendingGroupOffsets| pending.keys().any(|((of, _), _)| *of == topic);
            let pending = stripe.pending.iter().filter(|(_, pending)| is_meant(pending));
            groups.extend(pending.map(|(id, _)| Arc::clone(id)));
        }
        groups.into_iter().collect()
    }

    /// Makes all of `offsets` visible at the same time. Does nothing if this broker has left their shard. If it leaves
    /// the shard later, it will remove these offsets.
    pub(super) fn put(&self, shard: &Shard, group: &str, offsets: Vec<CommitOffset>) {
        if offsets.is_empty() {
            return;
        }
        let Some(mut stripe) = self.of_shard(shard, group) else { return };
        if let Some(pending) = stripe.pending.get_mut(group) {
            offsets.iter().for_each(|offset| pending.supersede(&(offset.topic.id, offset.partition)));
        }
        self.insert(&mut stripe, group, offsets);
    }

    fn insert(&self, stripe: &mut Stripe, group: &str, offsets: Vec<CommitOffset>) {
        if !stripe.committed.contains_key(group) && !offsets.is_empty() {
            stripe.committed.insert(Arc::from(group), GroupOffsets::new());
        }
        let Some(of_group) = stripe.committed.get_mut(group) else { return };
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

    /// Adds the pending offsets of a producer's transaction. Does nothing if this broker has left their shard.
    pub(super) fn put_pending(&self, shard: &Shard, group: &str, producer_id: i64, offsets: Vec<CommitOffset>) {
        if offsets.is_empty() {
            return;
        }
        let Some(mut stripe) = self.of_shard(shard, group) else { return };
        let group: Arc<str> = Arc::from(group);
        let of_group = stripe.pending.entry(Arc::clone(&group)).or_default();
        for offset in offsets {
            self.count_pending_in(&offset);
            let replaced = of_group.put(producer_id, (offset.topic.id, offset.partition), offset);
            self.count_pending_out(&replaced);
        }
        self.open.lock().entry((shard.partition().index(), producer_id)).or_default().insert(group);
    }

    /// Installs the pending offsets of a group that were found when its shard was loaded.
    pub(super) fn install_pending(&self, shard: &Shard, group: &str, pending: PendingGroupOffsets) {
        let Some(mut stripe) = self.of_shard(shard, group).filter(|_| !pending.is_empty()) else { return };
        let group: Arc<str> = Arc::from(group);
        pending.values().for_each(|offset| self.count_pending_in(offset));
        let mut open = self.open.lock();
        for producer_id in pending.producers() {
            open.entry((shard.partition().index(), producer_id)).or_default().insert(Arc::clone(&group));
        }
        let before = stripe.pending.insert(group, pending);
        self.count_pending_out(before.iter().flat_map(PendingOffsets::values));
    }

    /// Ends a producer's transaction. If the transaction is committed, its pending offsets become the committed ones,
    /// except those for which `is_there` returns false. All others are dropped. The offsets of one group change at the
    /// same time.
    pub(super) fn end_transaction(
        &self,
        shard: &Shard,
        producer_id: i64,
        is_commit: bool,
        is_there: impl Fn(&CommitOffset) -> bool,
    ) {
        let open = self.open.lock().get(&(shard.partition().index(), producer_id)).cloned();
        for group in open.into_iter().flatten() {
            let Some(mut stripe) = self.of_shard(shard, &group) else { return };
            self.close(shard, &group, [producer_id]);
            let Some(pending) = stripe.pending.get_mut(&group) else { continue };
            let ended = pending.end(producer_id, is_commit);
            if pending.is_empty() {
                stripe.pending.remove(&group);
            }
            self.count_pending_out(ended.applied.iter().map(|(_, offset)| offset).chain(&ended.dropped));
            let applied = ended.applied.into_iter().map(|(_, offset)| offset).filter(|offset| is_there(offset));
            self.insert(&mut stripe, &group, applied.collect());
        }
    }

    /// Removes a group from the open transactions of `producers`, which no longer have pending offsets in it. The
    /// caller has locked the group's stripe.
    fn close(&self, shard: &Shard, group: &str, producers: impl IntoIterator<Item = i64>) {
        let mut open = self.open.lock();
        for producer_id in producers {
            let transaction = (shard.partition().index(), producer_id);
            let Some(groups) = open.get_mut(&transaction) else { continue };
            groups.remove(group);
            if groups.is_empty() {
                open.remove(&transaction);
            }
        }
    }

    /// Removes an offset, and any pending offset for the same partition. Does nothing if this broker has left the
    /// shard, because a newer shard may have installed the offsets.
    pub(super) fn remove(&self, shard: &Shard, group: &str, topic: Uuid, partition: i32) {
        let Some(mut stripe) = self.of_shard(shard, group) else { return };
        if let Some(pending) = stripe.pending.get_mut(group) {
            let removed = pending.remove(&(topic, partition));
            if pending.is_empty() {
                stripe.pending.remove(group);
            }
            self.count_pending_out(&removed.values);
            self.close(shard, group, removed.producers);
        }
        let Some(of_group) = stripe.committed.get_mut(group) else { return };
        let Some(of_topic) = of_group.get_mut(&topic) else { return };
        let removed = of_topic.partitions.remove(&partition);
        if of_topic.partitions.is_empty() {
            of_group.remove(&topic);
        }
        if of_group.is_empty() {
            stripe.committed.remove(group);
        }
        self.count_out(removed.iter());
    }

    /// Removes the offsets of every group for which `is_meant` returns true.
    pub(super) fn remove_groups(&self, is_meant: impl Fn(&str) -> bool) {
        for stripe in &self.stripes {
            let mut stripe = stripe.write();
            stripe.committed.retain(|group, of_group| {
                let is_meant = is_meant(group);
                if is_meant {
                    self.count_out(each(of_group));
                }
                !is_meant
            });
            stripe.pending.retain(|group, pending| {
                let is_meant = is_meant(group);
                if is_meant {
                    self.count_pending_out(pending.values());
                }
                !is_meant
            });
        }
        self.open.lock().retain(|_, groups| {
            groups.retain(|group| !is_meant(group));
            !groups.is_empty()
        });
    }

    /// Removes all offsets of a group. Does nothing if this broker has left the shard.
    pub(super) fn remove_group(&self, shard: &Shard, group: &str) {
        let Some(mut stripe) = self.of_shard(shard, group) else { return };
        self.count_out(stripe.committed.remove(group).iter().flat_map(each));
        if let Some(pending) = stripe.pending.remove(group) {
            self.count_pending_out(pending.values());
            self.close(shard, group, pending.producers());
        }
    }

    /// Removes all offsets.
    pub(super) fn clear(&self) {
        self.remove_groups(|_| true);
    }

    /// Locks the offsets of a group. Returns `None` if this broker has left the shard.
    fn of_shard(&self, shard: &Shard, group: &str) -> Option<RwLockWriteGuard<'_, Stripe>> {
        let stripe = self.stripe(group).write();
        (shard.status() != Status::Gone).then_some(stripe)
    }

    fn stripe(&self, group: &str) -> &RwLock<Stripe> {
        let hash = self.hasher.hash_one(group);
        &self.stripes[usize::try_from(hash % STRIPES as u64).expect("below the number of stripes")]
    }
}

/// Returns all committed offsets of a group.
fn each(of_group: &GroupOffsets) -> impl Iterator<Item = &OffsetAndMetadata> {
    of_group.values().flat_map(|of_topic| of_topic.partitions.values())
}
