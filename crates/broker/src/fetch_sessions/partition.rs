//! Partition in a fetch: its name, the requested offsets, and the outcome.
//!
//! Lists of a million entries are legal, so an entry is small and shares its topic with its neighbours.

use fullbore_wire::apis::fetch::{FetchPartition, PartitionData};
use fullbore_wire::{ErrorCode, Text, Uuid};
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

/// Topic as requests name it: by name or by id, depending on the version.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TopicKey {
    /// Name, or empty.
    pub name: Text,
    /// Id, or zero.
    pub id: Uuid,
}

/// Topic of a fetch.
#[derive(Debug)]
pub struct FetchedTopic {
    key: Arc<TopicKey>,
    /// Name of the topic that had the id at the first lookup.
    resolved: OnceLock<Box<str>>,
}

impl FetchedTopic {
    /// Creates a topic that was not looked up yet.
    pub fn new(key: TopicKey) -> FetchedTopic {
        FetchedTopic { key: Arc::new(key), resolved: OnceLock::new() }
    }

    /// Notes the name of the topic that has the id.
    pub fn resolve(&self, name: &str) {
        if !self.id.is_zero() {
            self.resolved.get_or_init(|| name.into());
        }
    }

    /// Returns the name of the topic that had the id, if one was found.
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

/// Partition of a topic as requests name it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PartitionKey {
    /// Topic of the partition.
    pub topic: Arc<TopicKey>,
    /// Number of the partition.
    pub index: i32,
}

/// Offsets of a partition that a session's client was sent last.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SentOffsets {
    high_watermark: i64,
    log_start_offset: i64,
}

impl SentOffsets {
    /// Offsets that no partition has, for a client that was sent no offsets.
    pub(super) const NEVER: SentOffsets = SentOffsets { high_watermark: i64::MIN, log_start_offset: i64::MIN };

    fn of(fetched: &Fetched) -> SentOffsets {
        let (high_watermark, log_start_offset) = fetched.outcome.offsets();
        SentOffsets { high_watermark, log_start_offset }
    }
}

/// Partition to fetch from.
#[derive(Clone, Debug)]
pub struct PartitionFetch {
    /// Topic of the partition.
    pub topic: Arc<FetchedTopic>,
    /// Number of the partition.
    pub index: i32,
    /// Bytes that the response should not exceed.
    pub partition_max_bytes: i32,
    /// First requested offset.
    pub fetch_offset: i64,
    /// Leader epoch that the client knows, or -1.
    pub current_leader_epoch: i32,
    /// True if a session that reads ahead keeps its position in the partition.
    pub(super) reads_on: bool,
    pub(super) told: SentOffsets,
}

impl PartitionFetch {
    /// Creates a partition from its request.
    pub(super) fn new(topic: &Arc<FetchedTopic>, asked: &FetchPartition) -> PartitionFetch {
        PartitionFetch {
            topic: Arc::clone(topic),
            index: asked.partition,
            partition_max_bytes: asked.partition_max_bytes,
            fetch_offset: asked.fetch_offset,
            current_leader_epoch: asked.current_leader_epoch,
            reads_on: asked.read_on,
            told: SentOffsets::NEVER,
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

    /// Takes over a later request for the same partition. With `reads_on`, keeps the session's position.
    pub(super) fn change(&mut self, change: PartitionFetch, reads_on: bool) {
        let (fetch_offset, told, topic) = (self.fetch_offset, self.told, Arc::clone(&self.topic));
        *self = PartitionFetch { told, topic, ..change };
        if reads_on {
            self.fetch_offset = fetch_offset;
        }
    }

    /// Returns true if the outcome must be in an incremental response. Notes the outcome's offsets as sent.
    pub(super) fn is_news(&mut self, fetched: &Fetched) -> bool {
        let told = SentOffsets::of(fetched);
        let changed = std::mem::replace(&mut self.told, told) != told;
        changed || !matches!(&fetched.outcome, PartitionOutcome::Read(data) if !has_records(data))
    }
}

/// Partition of a fetch, with its outcome.
pub struct Fetched {
    /// Topic of the partition.
    pub topic: Arc<FetchedTopic>,
    /// Number of the partition.
    pub index: i32,
    /// Outcome in the response.
    pub outcome: PartitionOutcome,
}

/// Outcome of a fetch from one partition.
pub enum PartitionOutcome {
    /// Error for the partition.
    Failed {
        /// Code of the error.
        code: ErrorCode,
        /// Offset that was to be read, in a session that reads ahead; otherwise -1.
        from_offset: i64,
        /// Offset after records that are lost, in a session that reads ahead; otherwise -1.
        next_offset: i64,
    },
    /// Broker to fetch from instead.
    Elsewhere(i32),
    /// Offsets and records, as they go into the response. In a session that reads ahead, `next_offset` is the offset
    /// after the records.
    Read(Box<PartitionData>),
}

impl PartitionOutcome {
    /// Offset that is unknown: clients keep their own.
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

    /// Returns the offset after the records in a session that reads ahead; `None` if the read has not moved the
    /// position.
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

    /// A large fetch has up to nine hundred thousand of each in memory.
    #[test]
    fn entries_of_lists_are_small() {
        assert!(size_of::<PartitionFetch>() <= 48, "{}", size_of::<PartitionFetch>());
        assert!(size_of::<Fetched>() <= 40, "{}", size_of::<Fetched>());
    }
}
