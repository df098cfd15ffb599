//! Entries of logs, and the partitions that there are.

use std::sync::Arc;

use fullbore_rules::sequence::{Marker, Stamp};
use fullbore_rules::transaction::{TopicPartition, TransactionMetadata};
use fullbore_wire::Text;

/// Brokers of the cluster.
pub const BROKERS: usize = 3;
/// Partitions that records are written to. The last one is compacted, the one before it is deleted and made again, and
/// the one before that is diskless.
pub const DATA: usize = 5;
/// The diskless partition, which has no leader and no replicas.
pub const DISKLESS: PartitionId = DATA - 3;
/// The partition whose topic is made again.
pub const MADE_AGAIN: PartitionId = DATA - 2;
/// The partition that is compacted.
pub const COMPACTED: PartitionId = DATA - 1;
/// The one partition of `__consumer_offsets`.
pub const OFFSETS: PartitionId = DATA;
/// The first of `__transaction_state`.
pub const STATE: PartitionId = DATA + 1;
/// Partitions of `__transaction_state`.
const STATES: usize = 2;
/// All partitions.
pub const PARTITIONS: usize = STATE + STATES;

/// Place of a broker, from 0.
pub type BrokerId = usize;
/// Place of a partition, from 0.
pub type PartitionId = usize;
/// Place of a transactional id, and of the group that its client commits offsets for.
pub type TransactionalId = usize;

/// The partition of `__transaction_state` that an id is in.
pub fn state_of(id: TransactionalId) -> PartitionId {
    STATE + id % STATES
}

/// The name by which coordinators know a partition.
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

/// The partition of this name.
pub fn place_of(name: &TopicPartition) -> PartitionId {
    (0..=OFFSETS).find(|at| name_of(*at) == *name).expect("no other is in a transaction")
}

/// One batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub leader_epoch: i32,
    /// Without a sequence, of offsets and markers; of no producer, of states.
    pub stamp: Stamp,
    pub is_transactional: bool,
    pub payload: Payload,
}

/// Content of a batch: one record.
#[derive(Clone, Debug, PartialEq)]
pub enum Payload {
    /// A number that a client copies, in its try of a transaction.
    Number {
        id: TransactionalId,
        number: u64,
        transaction: usize,
    },
    /// A record of a producer without transactions.
    Plain,
    /// The numbers up to this one are copied.
    Offset {
        id: TransactionalId,
        upto: u64,
        transaction: usize,
    },
    Marker(Marker),
    /// The state of a transactional id, or its end.
    State(TransactionalId, Option<Arc<TransactionMetadata>>),
}

impl Payload {
    /// The transaction that a record was written in, by the count of all.
    pub fn transaction(&self) -> Option<usize> {
        match self {
            Payload::Number { transaction, .. } | Payload::Offset { transaction, .. } => Some(*transaction),
            Payload::Plain | Payload::Marker(_) | Payload::State(..) => None,
        }
    }
}
