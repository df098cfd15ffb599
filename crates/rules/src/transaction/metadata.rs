//! Written state of a transactional id (Kafka's `TransactionMetadata`), and its transitions.
//!
//! Not here: the choice of the transition for a request ([`super::epochs`]).
//!
//! Invariant: a transition returns the whole next state. The present state stays in force until the next one is
//! written.

use super::state::{TransactionState, TransactionVersion};
use crate::sequence::NO_PRODUCER_ID;
use fullbore_wire::Text;
use std::collections::BTreeSet;

/// Epoch of a missing producer.
pub const NO_PRODUCER_EPOCH: i16 = -1;
/// Start time of a transaction that has not begun.
pub const NO_TIMESTAMP: i64 = -1;
/// Timeout of a transaction without one (KIP-939; such a record may come from another broker).
pub const NO_TIMEOUT_MS: i32 = i32::MAX;
/// Last epoch that a client gets; the next and last epoch is reserved for fencing the client.
pub(super) const LAST_CLIENT_EPOCH: i16 = i16::MAX - 1;

/// Partition, with the name of its topic.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicPartition {
    /// Topic name.
    pub topic: Text,
    /// Index of the partition.
    pub partition: i32,
}

impl TopicPartition {
    /// Returns the partitions grouped by topic, in their order. Adjacent partitions of a topic become one entry.
    pub fn by_topic(partitions: impl IntoIterator<Item = TopicPartition>) -> Vec<(Text, Vec<i32>)> {
        let mut topics: Vec<(Text, Vec<i32>)> = Vec::new();
        for TopicPartition { topic, partition } in partitions {
            match topics.last_mut() {
                Some((last, partitions)) if *last == topic => partitions.push(partition),
                _ => topics.push((topic, vec![partition])),
            }
        }
        topics
    }

    /// Returns these partitions of a topic.
    pub fn each_of(topic: &Text, partitions: &[i32]) -> impl Iterator<Item = TopicPartition> {
        partitions.iter().map(|&partition| TopicPartition { topic: topic.clone(), partition })
    }
}

/// Producer id with an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProducerIdAndEpoch {
    /// Producer id.
    pub id: i64,
    /// Producer epoch.
    pub epoch: i16,
}

/// Whole state of a transactional id: the fields of `TransactionLogValue`, and the last epoch, which is in no record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionMetadata {
    pub producer_id: i64,
    /// Producer id before the last transition, or -1.
    pub previous_producer_id: i64,
    /// Producer id that the client got for its next transaction, while the present one ends; -1 otherwise.
    pub next_producer_id: i64,
    pub producer_epoch: i16,
    /// Epoch before the last bump if the same client may still use it for a retry; -1 otherwise, and after a load,
    /// since no record contains it.
    pub last_producer_epoch: i16,
    /// Timeout of an ongoing transaction, in ms.
    pub timeout_ms: i32,
    pub state: TransactionState,
    /// Partitions of the transaction. In a Prepare state of a running machine, the partitions that still lack their
    /// marker.
    pub partitions: BTreeSet<TopicPartition>,
    /// Start of the transaction in milliseconds since 1970; -1 without one.
    pub start_ms: i64,
    /// Time of the last change of the state, in milliseconds since 1970.
    pub last_update_ms: i64,
    /// Transaction version of the client at the last change.
    pub client_version: TransactionVersion,
}

impl TransactionMetadata {
    pub fn producer(&self) -> ProducerIdAndEpoch {
        ProducerIdAndEpoch { id: self.producer_id, epoch: self.producer_epoch }
    }

    /// Returns true if `id` was the producer id before the last transition. Records of version 0 do not contain that
    /// id.
    pub(super) fn had_producer_id(&self, id: i64) -> bool {
        id != NO_PRODUCER_ID && id == self.previous_producer_id
    }

    /// Returns true if no further epoch of this producer id can be assigned to the client (Kafka's
    /// `isProducerEpochExhausted`).
    pub fn is_epoch_exhausted(&self) -> bool {
        self.producer_epoch >= LAST_CLIENT_EPOCH
    }

    /// Returns true if the transaction has been open for longer than its timeout (Kafka's `timedOutTransactions`).
    pub fn has_timed_out(&self, now: i64) -> bool {
        self.state == TransactionState::Ongoing
            && self.timeout_ms != NO_TIMEOUT_MS
            && self.start_ms.saturating_add(i64::from(self.timeout_ms)) < now
    }

    /// Returns true if the id has been idle for `expiration_ms` (Kafka's `shouldExpire`).
    pub fn has_expired(&self, now: i64, expiration_ms: i64) -> bool {
        self.state.is_expiration_allowed() && self.last_update_ms <= now.saturating_sub(expiration_ms)
    }

    /// Returns the state of a new id, without an epoch, before its first transition.
    pub(super) fn created(producer_id: i64, timeout_ms: i32, now: i64) -> TransactionMetadata {
        TransactionMetadata {
            producer_id,
            previous_producer_id: NO_PRODUCER_ID,
            next_producer_id: NO_PRODUCER_ID,
            producer_epoch: NO_PRODUCER_EPOCH,
            last_producer_epoch: NO_PRODUCER_EPOCH,
            timeout_ms,
            state: TransactionState::Empty,
            partitions: BTreeSet::new(),
            start_ms: NO_TIMESTAMP,
            last_update_ms: now,
            client_version: TransactionVersion::V0,
        }
    }

    /// Returns the next state. It differs from this one in state, partitions and times only.
    fn moved(&self, state: TransactionState, partitions: BTreeSet<TopicPartition>, now: i64) -> TransactionMetadata {
        debug_assert!(state.follows(self.state), "{state} does not follow {}", self.state);
        TransactionMetadata {
            producer_id: self.producer_id,
            previous_producer_id: self.producer_id,
            next_producer_id: self.next_producer_id,
            producer_epoch: self.producer_epoch,
            last_producer_epoch: self.last_producer_epoch,
            timeout_ms: self.timeout_ms,
            state,
            partitions,
            start_ms: self.start_ms,
            last_update_ms: now,
            client_version: self.client_version,
        }
    }

    /// Returns the state after an InitProducerId, with this producer. `last_epoch` is the epoch that a retry of the
    /// request may state.
    pub(super) fn initialized(
        &self,
        producer: ProducerIdAndEpoch,
        last_epoch: i16,
        timeout_ms: i32,
        now: i64,
    ) -> TransactionMetadata {
        TransactionMetadata {
            producer_id: producer.id,
            producer_epoch: producer.epoch,
            last_producer_epoch: last_epoch,
            timeout_ms,
            start_ms: NO_TIMESTAMP,
            ..self.moved(TransactionState::Empty, BTreeSet::new(), now)
        }
    }

    /// Returns the state with partitions added (Kafka's `prepareAddPartitions`).
    pub(super) fn added(
        &self,
        partitions: impl IntoIterator<Item = TopicPartition>,
        version: TransactionVersion,
        now: i64,
    ) -> TransactionMetadata {
        let mut all = self.partitions.clone();
        all.extend(partitions);
        let start_ms = if self.state == TransactionState::Ongoing { self.start_ms } else { now };
        TransactionMetadata { start_ms, client_version: version, ..self.moved(TransactionState::Ongoing, all, now) }
    }

    /// Returns the state with a decided outcome (Kafka's `prepareAbortOrCommit`). With TV2 the epoch is bumped.
    /// `next_producer_id` is the producer id for the next transaction if epochs are exhausted, -1 otherwise.
    pub(super) fn decided(
        &self,
        is_commit: bool,
        version: TransactionVersion,
        next_producer_id: i64,
        now: i64,
    ) -> TransactionMetadata {
        let state = if is_commit { TransactionState::PrepareCommit } else { TransactionState::PrepareAbort };
        // An abort keeps the largest epoch, as in Kafka: only fencing with TV1 can have led to that epoch.
        let (epoch, last) = match version.supports_epoch_bump() {
            true => (self.producer_epoch.saturating_add(1), self.producer_epoch),
            false => (self.producer_epoch, self.last_producer_epoch),
        };
        // An abort without a transaction begins and ends now.
        let start_ms = if self.state == TransactionState::Ongoing { self.start_ms } else { now };
        TransactionMetadata {
            producer_epoch: epoch,
            last_producer_epoch: last,
            next_producer_id,
            start_ms,
            client_version: version,
            ..self.moved(state, self.partitions.clone(), now)
        }
    }

    /// Returns the aborted state that fences the producer of an ongoing transaction (Kafka's
    /// `prepareFenceProducerEpoch`, then `endTransaction`). TV2 bumps the epoch as at each end of a transaction. TV1
    /// bumps the epoch only here, and resets the last epoch.
    pub(super) fn fenced(&self, version: TransactionVersion, next_producer_id: i64, now: i64) -> TransactionMetadata {
        if version.supports_epoch_bump() {
            return self.decided(false, version, next_producer_id, now);
        }
        TransactionMetadata {
            producer_epoch: self.producer_epoch.saturating_add(1),
            last_producer_epoch: NO_PRODUCER_EPOCH,
            ..self.decided(false, TransactionVersion::V0, NO_PRODUCER_ID, now)
        }
    }

    /// Returns the state with an epoch above every client's, so that the next InitProducerId allocates another producer
    /// id. A decision keeps its epoch, since its markers have that epoch.
    pub(super) fn retired(self) -> TransactionMetadata {
        match self.state.is_prepared() {
            true => self,
            false => TransactionMetadata { producer_epoch: i16::MAX, last_producer_epoch: NO_PRODUCER_EPOCH, ..self },
        }
    }

    /// Returns the producer of the next transaction. A TV2 client gets it once the present transaction is decided.
    pub(super) fn next_producer(&self) -> ProducerIdAndEpoch {
        match self.next_producer_id != NO_PRODUCER_ID && self.client_version.supports_epoch_bump() {
            true => ProducerIdAndEpoch { id: self.next_producer_id, epoch: 0 },
            false => self.producer(),
        }
    }

    /// Returns the state after the last marker is written (Kafka's `prepareComplete`).
    pub(super) fn completed(&self, now: i64) -> TransactionMetadata {
        let is_commit = self.state == TransactionState::PrepareCommit;
        let state = if is_commit { TransactionState::CompleteCommit } else { TransactionState::CompleteAbort };
        let next = self.next_producer();
        TransactionMetadata {
            producer_id: next.id,
            producer_epoch: next.epoch,
            next_producer_id: NO_PRODUCER_ID,
            ..self.moved(state, BTreeSet::new(), now)
        }
    }
}
