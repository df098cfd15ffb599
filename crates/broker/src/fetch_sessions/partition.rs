//! A partition in a fetch: its name, the offset to read from, and the outcome.
//!
//! A fetch may legally have a million partitions. An entry is therefore small, and the entries of one topic share the
//! topic.

use fullbore_wire::apis::fetch::{FetchPartition, PartitionData};
use fullbore_wire::{ErrorCode, Text, Uuid};
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

/// A topic as requests name it: by name or by id, depending on the version.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TopicKey {
    /// The topic's name. Empty if the request has an id.
    pub name: Text,
    /// The topic's id. Zero if the request has a name.
    pub id: Uuid,
}

/// The topic of a fetched partition.
#[derive(Debug)]
pub struct FetchedTopic {
    key: Arc<TopicKey>,
    /// The name that the topic had when a fetch first found it by this id.
    resolved: OnceLock<Box<str>>,
}

impl FetchedTopic {
    /// Creates a topic that has not been looked up yet.
    pub fn new(key: TopicKey) -> FetchedTopic {
        FetchedTopic { key: Arc::new(key), resolved: OnceLock::new() }
    }

    /// Stores the name of the topic if the request has an id.
    pub fn resolve(&self, name: &str) {
        if !self.id.is_zero() {
            self.resolved.get_or_init(|| name.into());
        }
    }

    /// Returns the stored name. `None` if the request has a name, or if the id was never found.
    pub fn resolved(&self) -> Option<&str> {
        self.resolved.get().map(|name| &**name)
    }
}

impl PartialEq for FetchedTopic {
    fn eq(&self, other: &FetchedTopic) -> bool {
        self.key == other.key
    }
}

impl Deref for FetchedTopic {
    type Target = TopicKey;

    fn deref(&self) -> &TopicKey {
        &self.key
    }
}

/// A partition of a topic, as requests name it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PartitionKey {
    /// Topic of the partition.
    pub topic: Arc<TopicKey>,
    /// Number of the partition.
    pub index: i32,
}

/// The offsets of a partition that a session has last sent to its client.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SentOffsets {
    high_watermark: i64,
    log_start_offset: i64,
}

impl SentOffsets {
    /// Stands for offsets that were never sent. No partition has these values.
    pub(super) const NEVER: SentOffsets = SentOffsets { high_watermark: i64::MIN, log_start_offset: i64::MIN };

    fn of(fetched: &Fetched) -> SentOffsets {
        let (high_watermark, log_start_offset) = fetched.outcome.offsets();
        SentOffsets { high_watermark, log_start_offset }
    }
}

/// The last epoch of a partition whose client continues at the session's own position.
const READS_ON: i32 = i32::MIN;

/// A partition to fetch from.
#[derive(Clone, Debug)]
pub struct PartitionFetch {
    /// Topic of the partition.
    pub topic: Arc<FetchedTopic>,
    /// Number of the partition.
    pub index: i32,
    /// The limit that the client has set for this partition. The first batch of a response may exceed it.
    pub partition_max_bytes: i32,
    /// The first offset to read.
    pub fetch_offset: i64,
    /// The leader epoch in the request, or -1 if the client does not send one. In a session that reads ahead, also the
    /// leader epoch in which the session has moved its position.
    pub current_leader_epoch: i32,
    /// The epoch of the last record that the client has read before `fetch_offset`, or -1. [`READS_ON`] if the client
    /// continues at the session's position and not at `fetch_offset` of its request.
    pub(super) last_epoch: i32,
    pub(super) sent: SentOffsets,
}

impl PartitionFetch {
    /// Creates the state of a partition from its entry in a request.
    pub(super) fn new(topic: &Arc<FetchedTopic>, requested: &FetchPartition) -> PartitionFetch {
        PartitionFetch {
            topic: Arc::clone(topic),
            index: requested.partition,
            partition_max_bytes: requested.partition_max_bytes,
            fetch_offset: requested.fetch_offset,
            current_leader_epoch: requested.current_leader_epoch,
            last_epoch: if requested.read_on { READS_ON } else { requested.last_fetched_epoch.max(-1) },
            sent: SentOffsets::NEVER,
        }
    }

    /// Returns the partition's key.
    pub(super) fn key(&self) -> PartitionKey {
        PartitionKey { topic: Arc::clone(&self.topic.key), index: self.index }
    }

    /// Returns the epoch of the last record that the client has read, or `None` if it is unknown.
    pub fn last_fetched_epoch(&self) -> Option<i32> {
        Some(self.last_epoch).filter(|epoch| *epoch >= 0)
    }

    /// Returns true if the client continues at the session's own position in the partition.
    pub(super) fn reads_on(&self) -> bool {
        self.last_epoch == READS_ON
    }

    /// Returns true if `fetched` is the outcome of this partition.
    pub(super) fn is_of(&self, fetched: &Fetched) -> bool {
        self.index == fetched.index && (Arc::ptr_eq(&self.topic, &fetched.topic) || self.topic == fetched.topic)
    }

    /// Takes over the values of a later request for the same partition. With `reads_on`, the position and its
    /// epochs stay.
    pub(super) fn change(&mut self, change: PartitionFetch, reads_on: bool) {
        let (sent, topic) = (self.sent, Arc::clone(&self.topic));
        let position = (self.fetch_offset, self.last_epoch, self.current_leader_epoch);
        *self = PartitionFetch { sent, topic, ..change };
        if reads_on {
            (self.fetch_offset, self.last_epoch, self.current_leader_epoch) = position;
        }
    }

    /// Moves the position of a session that reads ahead to the end of the records in `read`. From then on, the
    /// partition is read only in the same leader epoch, because the log may be truncated between two epochs.
    pub(super) fn move_after(&mut self, read: &PartitionData) {
        if read.next_offset != PartitionOutcome::UNKNOWN && read.next_offset != read.from_offset {
            (self.fetch_offset, self.last_epoch) = (read.next_offset, -1);
            self.current_leader_epoch = if read.in_epoch >= 0 { read.in_epoch } else { self.current_leader_epoch };
        }
    }

    /// Returns true if an incremental response must contain the outcome. Also stores the outcome's offsets as sent.
    pub(super) fn is_news(&mut self, fetched: &Fetched) -> bool {
        let sent = SentOffsets::of(fetched);
        let changed = std::mem::replace(&mut self.sent, sent) != sent;
        let is_empty = |data: &PartitionData| !has_records(data) && data.diverging_epoch.epoch < 0;
        changed || !matches!(&fetched.outcome, PartitionOutcome::Read(data) if is_empty(data))
    }
}

/// A partition of a fetch, with its outcome.
pub struct Fetched {
    /// Topic of the partition.
    pub topic: Arc<FetchedTopic>,
    /// Number of the partition.
    pub index: i32,
    /// The outcome, as the response contains it.
    pub outcome: PartitionOutcome,
}

/// The outcome of fetching from one partition.
pub enum PartitionOutcome {
    /// The partition could not be read.
    Failed {
        /// Code of the error.
        code: ErrorCode,
        /// In a session that reads ahead, the offset at which the read began. Otherwise -1.
        from_offset: i64,
        /// In a session that reads ahead, the first offset after lost records, if that is why the read has failed.
        /// Otherwise -1.
        next_offset: i64,
    },
    /// The consumer should read from the broker with this id instead.
    Elsewhere(i32),
    /// The offsets and records, as the response contains them. In a session that reads ahead, `next_offset` is the
    /// offset after these records, and `in_epoch` is the leader epoch, which the session keeps for itself.
    Read(Box<PartitionData>),
}

impl PartitionOutcome {
    /// Stands for an unknown offset. The client then keeps the one that it has.
    pub const UNKNOWN: i64 = -1;

    fn offsets(&self) -> (i64, i64) {
        match self {
            PartitionOutcome::Read(data) => (data.high_watermark, data.log_start_offset),
            PartitionOutcome::Failed { .. } | PartitionOutcome::Elsewhere(_) => (Self::UNKNOWN, Self::UNKNOWN),
        }
    }

    /// Returns true for an error.
    pub(super) fn is_failed(&self) -> bool {
        matches!(self, PartitionOutcome::Failed { .. })
    }

    /// Returns the bytes of the records.
    pub fn records_bytes(&self) -> usize {
        match self {
            PartitionOutcome::Read(data) => data.records.as_ref().map_or(0, |records| records.len()),
            PartitionOutcome::Failed { .. } | PartitionOutcome::Elsewhere(_) => 0,
        }
    }
}

fn has_records(data: &PartitionData) -> bool {
    data.records.as_ref().is_some_and(|records| !records.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fetch may have 900,000 partitions, with an entry of each type for each of them. So the entries must be small.
    #[test]
    fn entries_of_lists_are_small() {
        assert!(size_of::<PartitionFetch>() <= 48, "{}", size_of::<PartitionFetch>());
        assert!(size_of::<Fetched>() <= 40, "{}", size_of::<Fetched>());
    }
}
