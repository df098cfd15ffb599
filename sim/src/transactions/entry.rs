//! Entries of logs, and the partitions of the model.

use std::sync::Arc;

use fullbore_rules::sequence::{Marker, Stamp};
use fullbore_rules::transaction::{TopicPartition, TransactionMetadata};
use fullbore_wire::Text;

/// Number of brokers of the cluster.
pub const BROKERS: usize = 3;
/// Number of partitions with records. The last partition is compacted, the one before it is deleted and recreated, and
/// the one before that is diskless.
pub const DATA: usize = 5;
/// Diskless partition, which has no leader and no replicas.
pub const DISKLESS: PartitionId = DATA - 3;
/// Partition whose topic is recreated.
pub const MADE_AGAIN: PartitionId = DATA - 2;
/// Compacted partition.
pub const COMPACTED: PartitionId = DATA - 1;
/// Only partition of `__consumer_offsets`.
pub const OFFSETS: PartitionId = DATA;
/// First partition of `__transaction_state`.
pub const STATE: PartitionId = DATA + 1;
/// Number of partitions of `__transaction_state`.
const STATES: usize = 2;
/// Number of all partitions.
pub const PARTITIONS: usize = STATE + STATES;

/// Index of a broker, from 0.
pub type BrokerId = usize;
/// Index of a partition, from 0.
pub type PartitionId = usize;
/// Index of a transactional id, and of the group for which its client commits offsets.
pub type TransactionalId = usize;

/// Returns the partition of `__transaction_state` to which an id belongs.
pub fn state_of(id: TransactionalId) -> PartitionId {
    STATE + id % STATES
}

/// Returns the name of a partition for coordinators.
pub fn name_of(partition: PartitionId) -> TopicPartition {
    let topic = match partition {
        OFFSETS => Text::from_static("__consumer_offsets"),
        DISKLESS => Text::from_static("diskless"),
        MADE_AGAIN => Text::from_static("made-again"),
        COMPACTED => Text::from_static("compacted"),
        _ => Text::from_static("data"),
    };
    let index = if partition < DISKLESS { partition as i32 } else { 0 };
    TopicPartition { topic, partition: index }
}

/// Returns the partition with this name.
pub fn place_of(name: &TopicPartition) -> PartitionId {
    (0..=OFFSETS).find(|at| name_of(*at) == *name).expect("no other is in a transaction")
}

/// Batch in a log.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub leader_epoch: i32,
    /// Stamp of the batch. Offsets and markers have no sequence, and states have no producer.
    pub stamp: Stamp,
    pub is_transactional: bool,
    pub payload: Payload,
}

/// Content of a batch, which has one record.
#[derive(Clone, Debug, PartialEq)]
pub enum Payload {
    /// A number that a client copies, with the attempted transaction around it.
    Number {
        id: TransactionalId,
        number: u64,
        transaction: usize,
    },
    /// A record of a producer without transactions.
    Plain,
    /// The last copied number.
    Offset {
        id: TransactionalId,
        upto: u64,
        transaction: usize,
    },
    Marker(Marker),
    /// A state of a transactional id; None for its tombstone.
    State(TransactionalId, Option<Arc<TransactionMetadata>>),
}

impl Payload {
    /// Returns the number of the transaction of a record; None for a record without one.
    pub fn transaction(&self) -> Option<usize> {
        match self {
            Payload::Number { transaction, .. } | Payload::Offset { transaction, .. } => Some(*transaction),
            Payload::Plain | Payload::Marker(_) | Payload::State(..) => None,
        }
    }
}
