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
    /// The leader epoch in the request, or -1 if the client does not send one.
    pub current_leader_epoch: i32,
    /// In a session that reads ahead, true if the client continues at the session's position and not at `fetch_offset`
    /// of its request.
    pub(super) reads_on: bool,
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
            reads_on: requested.read_on,
            sent: SentOffsets::NEVER,
        }
    }

    /// Returns the partition's key.
    pub(super) fn key(&self) -> PartitionKey {
        PartitionKey { topic: Arc::clone(&self.topic.key), index: self.index }
    }

    /// Returns true if `fetched` is the outcome of this partition.
    pub(super) fn is_of(&self, fetched: &Fetched) -> bool {
        self.index == fetched.index && (Arc::ptr_eq(&self.topic, &fetched.topic) || self.topic == fetched.topic)
    }

    /// Takes over the values of a later request for the same partition. With `reads_on`, `fetch_offset` stays.
    pub(super) fn change(&mut self, change: PartitionFetch, reads_on: bool) {
        let (fetch_offset, sent, topic) = (self.fetch_offset, self.sent, Arc::clone(&self.topic));
        *self = PartitionFetch { sent, topic, ..change };
        if reads_on {
            self.fetch_offset = fetch_offset;
        }
    }

    /// Returns true if an incremental response must contain the outcome. Also stores the outcome's offsets as sent.
    pub(super) fn is_news(&mut self, fetched: &Fetched) -> bool {
        let sent = SentOffsets::of(fetched);
        let changed = std::mem::replace(&mut self.sent, sent) != sent;
        changed || !matches!(&fetched.outcome, PartitionOutcome::Read(data) if !has_records(data))
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
    /// offset after these records.
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

    /// Returns the position to which the session moves after the read. `None` if the position stays, or if the session
    /// does not read ahead.
    pub(super) fn moves_to(&self) -> Option<i64> {
        match self {
            PartitionOutcome::Read(data)
                if data.next_offset != Self::UNKNOWN && data.next_offset != data.from_offset =>
            {
                Some(data.next_offset)
            }
            _ => None,
        }
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
