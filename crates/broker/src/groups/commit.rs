//! Commits of offsets: checks them, writes them to the log, and deletes them later.
//!
//! A commit is visible once it is written, and the offset disappears once its deletion is written. A decision under a
//! group's lock also queues its write under that lock, so the writes have the order of the decisions.

use super::entry::Entry;
use super::offsets::{CommitOffset, GroupOffsets, OffsetAndMetadata, OffsetsView, TopicName, TopicOffsets};
use super::records::{self, OffsetKey};
use super::{Groups, not_kept};
use crate::coordinator::{KeyValue, PendingWrite, Records, Shard, Unwritten, VerifiedProducer, size_of_record};
use fullbore_control::Image;
use fullbore_rules::group::consumer::TopicIdPartition;
use fullbore_rules::group::{Committer, Group, PartKey, PendingOffsets};
use fullbore_wire::{ErrorCode, Text, Uuid};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};

/// First version of OffsetCommit that has its own error for a missing group.
const GROUP_ID_NOT_FOUND: i16 = 9;

/// Maximum size of the records of one commit or deletion. Each record contains the group's id, so a short request with
/// a long id has large records. Kafka's limit is `max.message.bytes`, 1 MiB.
pub const COMMIT_BYTES_MAX: usize = 16 << 20;

/// Maximum size of the records of all commits in flight. Beyond it, further commits are refused, and their clients
/// retry.
const COMING_BYTES_MAX: usize = 64 << 20;

/// Offsets that were not committed, each as its index in the request and its error.
type RefusedOffsets = Vec<(usize, ErrorCode)>;

/// A capacity for committed offsets and their metadata.
#[derive(Debug, Clone, Copy, Default)]
struct OffsetsRoom {
    offsets: usize,
    /// Number of bytes of metadata.
    bytes: usize,
}

impl OffsetsRoom {
    /// Returns the capacity that `committed` needs beyond that of `before`, the offset which it replaces.
    fn between(before: Option<&OffsetAndMetadata>, committed: &OffsetAndMetadata) -> OffsetsRoom {
        let held = before.map_or(0, |before| before.metadata.len());
        OffsetsRoom { offsets: usize::from(before.is_none()), bytes: committed.metadata.len().saturating_sub(held) }
    }

    fn has(self, needed: OffsetsRoom) -> bool {
        needed.offsets <= self.offsets && needed.bytes <= self.bytes
    }
}

/// A request to delete the committed offset of a partition.
#[derive(Debug, Clone)]
pub struct DeleteOffset {
    /// The topic.
    pub topic: TopicName,
    /// The partition.
    pub partition: i32,
    /// Commit time of the offset to delete. Nothing is deleted if the partition's offset has another commit time, or if
    /// the partition has a pending offset. `None` deletes the offset in any case.
    pub committed_ms: Option<i64>,
}

/// A commit in flight.
#[derive(Default)]
pub struct PendingCommit {
    /// The write of the offsets. `None` if all of them were refused.
    pending: Option<PendingWrite<Result<RefusedOffsets, ErrorCode>>>,
    /// For each offset in flight, its index in the request.
    places: Vec<usize>,
    /// Offsets that were refused before the write.
    refused: RefusedOffsets,
    /// Size of the commit's records in bytes.
    bytes: usize,
}

impl PendingCommit {
    /// Returns the size of the commit's records, which stay in memory until they are written.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Waits for the commit. Returns the offsets that were not committed, as pairs of index and error.
    ///
    /// # Errors
    /// Returns an error code if no offset was committed.
    pub async fn done(mut self) -> Result<RefusedOffsets, ErrorCode> {
        if let Some(pending) = self.pending.take() {
            let refused = pending.kept().await.map_err(not_kept)??;
            self.refused.extend(refused.into_iter().map(|(index, code)| (self.places[index], code)));
        }
        Ok(self.refused)
    }
}

impl Groups {
    /// Queues a commit of `offsets` if the group allows it. If there is a `producer`, the commit is part of its
    /// transaction. If the group is missing and the client does not commit as a member, the group is created. It stays
    /// only if an offset is written.
    ///
    /// # Errors
    /// Returns an error code if no offset can be committed.
    pub fn commit(
        self: &Arc<Self>,
        id: &Text,
        committer: &Committer<'_>,
        producer: Option<VerifiedProducer>,
        offsets: Vec<CommitOffset>,
        unwritten: &Unwritten,
    ) -> Result<PendingCommit, ErrorCode> {
        let (mut offsets, mut has_created) = (Some(offsets), false);
        loop {
            let requested = self.touch_entry(id, |group, entry, now| {
                group.check_commit(committer, now)?;
                if self.bytes_coming.load(Relaxed) > COMING_BYTES_MAX {
                    return Err(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS);
                }
                // The image is read under the group's lock, under which the commit is also queued. If the topic is then
                // recreated, commits for the new topic are queued after this one, which therefore cannot replace their
                // offsets.
                let image = self.control.image();
                let (mut refused, mut wanted) = (Vec::new(), Vec::new());
                for (index, offset) in offsets.take().unwrap_or_default().into_iter().enumerate() {
                    match check(group, committer, &offset).and_then(|()| check_topic(&image, &offset)) {
                        Ok(()) => wanted.push((index, offset)),
                        Err(code) => refused.push((index, code)),
                    }
                }
                Ok(self.write_commit(entry, producer, wanted, refused))
            })?;
            match requested {
                Some(requested) => {
                    match requested.as_ref().ok().and_then(|commit: &PendingCommit| commit.pending.as_ref()) {
                        Some(pending) => unwritten.note(pending.shard()),
                        None if has_created => self.remove_unused(id),
                        None => {}
                    }
                    return requested;
                }
                None if committer.generation < 0 && offsets.as_ref().is_some_and(Vec::is_empty) => {
                    return Ok(PendingCommit::default());
                }
                None if committer.generation < 0 => {
                    self.create(id)?;
                    has_created = true;
                }
                None if !committer.is_transactional && committer.version >= GROUP_ID_NOT_FOUND => {
                    return Err(ErrorCode::GROUP_ID_NOT_FOUND);
                }
                None => return Err(ErrorCode::ILLEGAL_GENERATION),
            }
        }
    }

    /// Queues a write of those offsets for which there is capacity. Adds the others to `refused`.
    fn write_commit(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        producer: Option<VerifiedProducer>,
        wanted: Vec<(usize, CommitOffset)>,
        mut refused: RefusedOffsets,
    ) -> PendingCommit {
        let group: Arc<str> = Arc::from(&*entry.id);
        let (mut room, mut taken) = (self.room(), OffsetsRoom::default());
        let (mut accepted, mut places, mut records) = (Vec::new(), Vec::new(), Vec::new());
        let (mut bytes, mut is_unfit) = (0, false);
        self.offsets.read(&group, |held| {
            for (index, offset) in wanted {
                // A transactional offset replaces the earlier one only when the transaction ends. Until then both
                // exist, so this one needs its full capacity.
                let before = find(held, offset.topic.id, offset.partition).filter(|_| producer.is_none());
                let needed = OffsetsRoom::between(before, &offset.committed);
                is_unfit |= !room.has(needed);
                if !room.has(needed) || bytes > COMMIT_BYTES_MAX {
                    refused.push((index, ErrorCode::INVALID_COMMIT_OFFSET_SIZE));
                    continue;
                }
                let place = OffsetKey { group: &group, topic: &offset.topic.name, partition: offset.partition };
                match records::offset(place, Some((offset.topic.id, &offset.committed))) {
                    Ok(record) => {
                        bytes += size_of_record(&record);
                        records.push(record);
                    }
                    Err(_) => {
                        refused.push((index, ErrorCode::OFFSET_METADATA_TOO_LARGE));
                        continue;
                    }
                }
                room = OffsetsRoom { offsets: room.offsets - needed.offsets, bytes: room.bytes - needed.bytes };
                // The metadata counts in full, even if the offset replaces one with metadata. Replacing an offset frees
                // its bytes only once, but two commits in flight might both replace the same offset.
                taken.offsets += needed.offsets;
                taken.bytes += offset.committed.metadata.len();
                places.push(index);
                accepted.push(offset);
            }
        });
        if is_unfit {
            self.note_unfit();
        }
        if accepted.is_empty() {
            return PendingCommit { refused, ..PendingCommit::default() };
        }
        self.offsets_coming.fetch_add(taken.offsets, Relaxed);
        self.metadata_bytes_coming.fetch_add(taken.bytes, Relaxed);
        self.bytes_coming.fetch_add(bytes, Relaxed);
        entry.commits.fetch_add(1, Relaxed);
        let (groups, of) = (Arc::clone(self), Arc::clone(entry));
        let records = match producer {
            None => Records::Plain(records),
            Some(producer) => Records::Transactional(producer, records),
        };
        let pending = entry.shard.write(records, move |kept| {
            groups.bytes_coming.fetch_sub(bytes, Relaxed);
            let kept = kept.map_err(not_kept).map(|()| groups.put(&of.shard, &group, producer, accepted));
            // Releases the capacity of this commit only after `put` has counted its offsets as committed. Otherwise
            // another commit could take the same capacity in between.
            groups.offsets_coming.fetch_sub(taken.offsets, Relaxed);
            groups.metadata_bytes_coming.fetch_sub(taken.bytes, Relaxed);
            of.commits.fetch_sub(1, Release);
            kept
        });
        PendingCommit { pending: Some(pending), places, refused, bytes }
    }

    /// Returns the capacity that committed offsets, pending offsets and commits in flight leave free.
    fn room(&self) -> OffsetsRoom {
        let offsets = self.offsets.held() + self.offsets.pending() + self.offsets_coming.load(Relaxed);
        let bytes = self.offsets.metadata_bytes() + self.metadata_bytes_coming.load(Relaxed);
        OffsetsRoom {
            offsets: self.offsets_max.saturating_sub(offsets),
            bytes: self.metadata_bytes_max.saturating_sub(bytes),
        }
    }

    /// Logs, at a limited rate, that committed offsets have reached a limit.
    fn note_unfit(&self) {
        if let Some(left_out) = self.unfit.due() {
            let (offsets, metadata_bytes) = (self.offsets.held(), self.offsets.metadata_bytes());
            tracing::warn!(
                offsets,
                metadata_bytes,
                left_out,
                "cannot commit offsets: clients get INVALID_COMMIT_OFFSET_SIZE; raise fullbore.offsets.max or \
                 fullbore.offsets.metadata.bytes.max"
            );
        }
    }

    /// Makes written offsets visible. If there is a `producer`, they become part of its transaction.
    ///
    /// Refuses offsets of topics that were deleted since the request, because [`Groups::forget_topic`] may already have
    /// handled this group. If a topic is deleted later, `forget_topic` finds the offsets.
    fn put(
        &self,
        shard: &Shard,
        group: &str,
        producer: Option<VerifiedProducer>,
        offsets: Vec<CommitOffset>,
    ) -> RefusedOffsets {
        let image = self.control.image();
        let mut refused = Vec::new();
        let there = offsets.into_iter().enumerate().filter_map(|(index, offset)| {
            check_topic(&image, &offset).map_err(|code| refused.push((index, code))).ok().map(|()| offset)
        });
        let there = there.collect();
        match producer {
            None => self.offsets.put(shard, group, there),
            Some(of) => self.offsets.put_pending(shard, group, of.producer.id, there),
        }
        refused
    }

    /// Queues the deletion of the offsets in `wanted`. They are looked up after all earlier writes. Those that do not
    /// exist by then are skipped.
    pub fn forget_offsets(
        self: &Arc<Self>,
        shard: &Arc<Shard>,
        group: &str,
        wanted: Vec<DeleteOffset>,
    ) -> PendingWrite<Result<(), ErrorCode>> {
        let (groups, of, group): (_, _, Arc<str>) = (Arc::clone(self), Arc::clone(shard), Arc::from(group));
        let (late, of_group) = (Arc::clone(self), Arc::clone(&group));
        let named = Arc::clone(&group);
        // Carries the offsets that `records` has found to the callback, which removes exactly these from memory.
        let (found, find) = std::sync::mpsc::channel();
        let records = move || {
            let due: Vec<_> = wanted.into_iter().filter(|wanted| late.is_meant(&of_group, wanted)).collect();
            let _ = found.send(due.clone());
            let succeeded = late.names_of_several(&of_group);
            let is_last =
                move |due: &DeleteOffset| !(succeeded.contains(&due.topic.name) && late.is_succeeded(&of_group, due));
            let last = due.into_iter().filter(is_last);
            last.filter_map(move |due| tombstone(&named, &due.topic.name, due.partition))
        };
        shard.write(Records::late(records), move |kept| {
            kept.map_err(not_kept)?;
            for due in find.try_iter().flatten() {
                groups.offsets.remove(&of, &group, due.topic.id, due.partition);
            }
            Ok(())
        })
    }

    fn is_meant(&self, group: &str, wanted: &DeleteOffset) -> bool {
        self.offsets.view(group, |view| {
            let found = find(view.committed, wanted.topic.id, wanted.partition);
            let is_pending = view.is_pending(wanted.topic.id, wanted.partition);
            match wanted.committed_ms {
                None => found.is_some() || is_pending,
                Some(ms) => found.is_some_and(|found| found.committed_ms == ms) && !is_pending,
            }
        })
    }

    /// Returns the topic names that several of the group's topics share. This happens if a topic was recreated and the
    /// offsets of the deleted topic still exist, committed or pending.
    fn names_of_several(&self, group: &str) -> HashSet<Arc<str>> {
        self.offsets.view(group, |view| {
            let (mut seen, mut several) = (HashMap::new(), HashSet::new());
            for (id, name) in topics_of(view) {
                if seen.insert(name, id).is_some_and(|other| other != id) {
                    several.insert(Arc::clone(name));
                }
            }
            several
        })
    }

    /// Returns true if the group also has a committed or pending offset for this partition of another topic with the
    /// same name. The key of a record contains only the name, so a tombstone would delete that offset too.
    fn is_succeeded(&self, group: &str, due: &DeleteOffset) -> bool {
        let is_other = |id: Uuid, name: &Arc<str>| id != due.topic.id && *name == due.topic.name;
        self.offsets.view(group, |view| {
            let mut committed = view.committed.into_iter().flatten();
            let mut pending = view.pending.into_iter().flat_map(PendingOffsets::keys);
            committed.any(|(id, topic)| is_other(*id, &topic.name) && topic.partitions.contains_key(&due.partition))
                || pending.any(|((id, at), offset)| is_other(*id, &offset.topic.name) && *at == due.partition)
        })
    }

    /// Queues the deletion of a group. With `offsets`, also deletes all offsets that earlier writes have committed.
    pub(super) fn forget_group(
        self: &Arc<Self>,
        shard: &Arc<Shard>,
        group: &str,
        parts: Vec<PartKey>,
        offsets: bool,
    ) -> PendingWrite<Result<(), ErrorCode>> {
        let (groups, of, group): (_, _, Arc<str>) = (Arc::clone(self), Arc::clone(shard), Arc::from(group));
        let (late, of_group) = (Arc::clone(self), Arc::clone(&group));
        let records = move || {
            let due =
                late.offsets.view(&of_group, |view| if offsets { names_and_partitions(view) } else { BTreeSet::new() });
            let group = records::group(&of_group, None);
            let parts = parts.into_iter().map(|key| records::part(&key, None));
            parts
                .chain(std::iter::once(group))
                .chain(due.into_iter().filter_map(move |(topic, index)| tombstone(&of_group, &topic, index)))
        };
        shard.write(Records::late(records), move |kept| {
            kept.map_err(not_kept)?;
            if offsets {
                groups.offsets.remove_group(&of, &group);
            }
            Ok(())
        })
    }

    /// Deletes the offsets that groups have committed for a deleted topic.
    pub(super) async fn forget_topic(self: &Arc<Self>, topic: Uuid) {
        for group in self.offsets.groups_of(topic) {
            let Ok(shard) = self.serving(&group) else { continue };
            let all = self.offsets.view(&group, |view| all_of_topic(view, topic));
            let forgotten = self.forget_offsets(&shard, &group, all).kept().await;
            if !matches!(forgotten, Ok(Ok(()))) {
                // Requests look up offsets by topic id, so no request finds these offsets any more. They are deleted
                // when the group's offsets next expire, or when its shard is next loaded.
                tracing::warn!(
                    group = &*group,
                    "cannot delete committed offsets of a deleted topic: they stay in __consumer_offsets until the \
                     next offsets of the group expire"
                );
            }
        }
    }
}

/// Returns the id and name of each topic for which a group has committed or pending offsets. Topics may be repeated.
fn topics_of(view: OffsetsView<'_>) -> impl Iterator<Item = (Uuid, &Arc<str>)> {
    let committed = view.committed.into_iter().flatten().map(|(id, topic)| (*id, &topic.name));
    let pending = view.pending.into_iter().flat_map(PendingOffsets::keys);
    committed.chain(pending.map(|(_, offset)| (offset.topic.id, &offset.topic.name)))
}

fn check(group: &Group, committer: &Committer<'_>, offset: &CommitOffset) -> Result<(), ErrorCode> {
    group.check_commit_of(committer, &TopicIdPartition { topic: offset.topic.id, index: offset.partition })
}

/// Checks that the topic was not deleted after the request was admitted.
fn check_topic(image: &Image, offset: &CommitOffset) -> Result<(), ErrorCode> {
    image.topic_by_id(offset.topic.id).map(drop).ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)
}

/// Returns topic name and number of every partition for which a group has a committed or pending offset.
fn names_and_partitions(view: OffsetsView<'_>) -> BTreeSet<(Arc<str>, i32)> {
    let topics = view.committed.into_iter().flat_map(GroupOffsets::values);
    let of_topic = |topic: &TopicOffsets| topic.partitions.keys().map(|&at| (Arc::clone(&topic.name), at)).collect();
    let mut all: BTreeSet<_> = topics.flat_map(|topic| -> Vec<_> { of_topic(topic) }).collect();
    let pending = view.pending.into_iter().flat_map(PendingOffsets::keys);
    all.extend(pending.map(|(_, offset)| (Arc::clone(&offset.topic.name), offset.partition)));
    all
}

/// Returns all committed and pending offsets that a group has for a topic.
fn all_of_topic(view: OffsetsView<'_>, topic: Uuid) -> Vec<DeleteOffset> {
    let mut all = BTreeMap::new();
    if let Some(of_topic) = view.committed.and_then(|committed| committed.get(&topic)) {
        all.extend(of_topic.partitions.keys().map(|&partition| (partition, Arc::clone(&of_topic.name))));
    }
    let pending = view.pending.into_iter().flat_map(PendingOffsets::keys).filter(|((of, _), _)| *of == topic);
    all.extend(pending.map(|(_, offset)| (offset.partition, Arc::clone(&offset.topic.name))));
    let delete =
        |(partition, name)| DeleteOffset { topic: TopicName { id: topic, name }, partition, committed_ms: None };
    all.into_iter().map(delete).collect()
}

fn find(held: Option<&GroupOffsets>, topic: Uuid, partition: i32) -> Option<&OffsetAndMetadata> {
    held?.get(&topic)?.partitions.get(&partition)
}

/// Returns the tombstone of an offset. `None` if the names are too long for any record.
fn tombstone(group: &str, topic: &str, partition: i32) -> Option<KeyValue> {
    records::offset(OffsetKey { group, topic, partition }, None).ok()
}
