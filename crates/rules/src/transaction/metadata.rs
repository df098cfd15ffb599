//! The stored state of a transactional id (Kafka's `TransactionMetadata`), and its transitions.
//!
//! [`super::epochs`] decides on the transition that a request causes.
//!
//! Invariant: a transition returns the whole next state. The current state stays in force until the next one is
//! written.

use super::state::{TransactionState, TransactionVersion};
use crate::sequence::NO_PRODUCER_ID;
use fullbore_wire::Text;
use std::collections::BTreeSet;

/// The epoch that stands for "no producer".
pub const NO_PRODUCER_EPOCH: i16 = -1;
/// The value of a start time if no transaction has begun.
pub const NO_TIMESTAMP: i64 = -1;
/// The value that stands for no timeout (KIP-939). It can be in a record that a Kafka broker has written.
pub const NO_TIMEOUT_MS: i32 = i32::MAX;
/// The last epoch that a client can get. The next epoch is the largest one, and is reserved for fencing the client.
pub(super) const LAST_CLIENT_EPOCH: i16 = i16::MAX - 1;

/// A partition, with the name of its topic.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicPartition {
    /// The name of the topic.
    pub topic: Text,
    /// The index of the partition.
    pub partition: i32,
}

impl TopicPartition {
    /// Groups adjacent partitions of the same topic into one entry each, without a change of the order.
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

/// A producer id and an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProducerIdAndEpoch {
    /// The producer id.
    pub id: i64,
    /// The producer epoch.
    pub epoch: i16,
}

/// Returns a time of [`TransactionMetadata`] moved by `by_ms`. [`NO_TIMESTAMP`] stays as it is.
pub fn shifted_time(at_ms: i64, by_ms: i64) -> i64 {
    if at_ms == NO_TIMESTAMP { at_ms } else { at_ms.saturating_add(by_ms) }
}

/// The whole state of a transactional id: the fields of `TransactionLogValue`, and the last epoch, which records do not
/// have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionMetadata {
    pub producer_id: i64,
    /// The producer id before the last transition, or -1.
    pub previous_producer_id: i64,
    /// While a transaction ends whose epochs are used up, the producer id that the client got for its next transaction;
    /// -1 otherwise.
    pub next_producer_id: i64,
    pub producer_epoch: i16,
    /// The epoch before it was last raised, if a retry of the same client may have it; -1 otherwise. Records do not
    /// have this field, so it is -1 after a load.
    pub last_producer_epoch: i16,
    /// The timeout of transactions, in ms.
    pub timeout_ms: i32,
    pub state: TransactionState,
    /// The partitions of the transaction. In a Prepare state, the coordinator removes each partition that has its
    /// marker.
    pub partitions: BTreeSet<TopicPartition>,
    /// When the transaction began, by the clock of [`super::Turn::now`]; -1 if there is none.
    pub start_ms: i64,
    /// When the state last changed, by the same clock.
    pub last_update_ms: i64,
    /// The transaction version in the request that last changed the state.
    pub client_version: TransactionVersion,
}

impl TransactionMetadata {
    pub fn producer(&self) -> ProducerIdAndEpoch {
        ProducerIdAndEpoch { id: self.producer_id, epoch: self.producer_epoch }
    }

    /// Returns true if `id` was the producer id before the last transition. Returns false after a load from a record of
    /// version 0, which does not have that id.
    pub(super) fn had_producer_id(&self, id: i64) -> bool {
        id != NO_PRODUCER_ID && id == self.previous_producer_id
    }

    /// Returns the state with its times moved by `by_ms`, from the coordinator's clock to the system's or back.
    pub fn shifted(self, by_ms: i64) -> TransactionMetadata {
        let (start_ms, last_update_ms) = (self.start_ms, self.last_update_ms);
        TransactionMetadata {
            start_ms: shifted_time(start_ms, by_ms),
            last_update_ms: shifted_time(last_update_ms, by_ms),
            ..self
        }
    }

    /// Returns the state with its times limited to `now`. If the clock of the broker that wrote the record was ahead,
    /// the transaction would otherwise outlive its timeout by the difference.
    pub(super) fn begun_by(self, now: i64) -> TransactionMetadata {
        let (start_ms, last_update_ms) = (self.start_ms.min(now), self.last_update_ms.min(now));
        TransactionMetadata { start_ms, last_update_ms, ..self }
    }

    /// Returns true if the client cannot get another epoch of this producer id (Kafka's `isProducerEpochExhausted`).
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

    /// Creates the state of a new id. It has no epoch before its first transition.
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

    /// Returns the next state with this transaction state and these partitions, and with the other fields as they are.
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
    /// request may have.
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

    /// Returns the state with these partitions added (Kafka's `prepareAddPartitions`).
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

    /// Returns the state in which the transaction is decided (Kafka's `prepareAbortOrCommit`). With TV2 the epoch is
    /// raised. `next_producer_id` is the id for the next transaction if the epochs are used up, and -1 otherwise.
    pub(super) fn decided(
        &self,
        is_commit: bool,
        version: TransactionVersion,
        next_producer_id: i64,
        now: i64,
    ) -> TransactionMetadata {
        let state = if is_commit { TransactionState::PrepareCommit } else { TransactionState::PrepareAbort };
        // If the epoch is already the largest, the addition saturates and an abort keeps the epoch, as in Kafka. Only
        // fencing with TV1 or `retired` sets the largest epoch.
        let (epoch, last) = match version.supports_epoch_bump() {
            true => (self.producer_epoch.saturating_add(1), self.producer_epoch),
            false => (self.producer_epoch, self.last_producer_epoch),
        };
        // A client of TV2 can abort although no transaction has begun. Then a transaction begins and ends now.
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

    /// Returns the state that aborts an ongoing transaction and fences its producer (Kafka's
    /// `prepareFenceProducerEpoch`, then `endTransaction`). With TV2, each end of a transaction raises the epoch. With
    /// TV1, only this one does, and it resets the last epoch.
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

    /// Returns the state with the largest epoch, which no client has, so that the next InitProducerId allocates another
    /// producer id. A Prepare state keeps its epoch, because its markers have that epoch.
    pub(super) fn retired(self) -> TransactionMetadata {
        match self.state.is_prepared() {
            true => self,
            false => TransactionMetadata { producer_epoch: i16::MAX, last_producer_epoch: NO_PRODUCER_EPOCH, ..self },
        }
    }

    /// Returns the producer of the next transaction. A client of TV2 gets it in the response to its EndTxn.
    pub(super) fn next_producer(&self) -> ProducerIdAndEpoch {
        match self.next_producer_id != NO_PRODUCER_ID && self.client_version.supports_epoch_bump() {
            true => ProducerIdAndEpoch { id: self.next_producer_id, epoch: 0 },
            false => self.producer(),
        }
    }

    /// Returns the state after the last marker was written (Kafka's `prepareComplete`).
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
