//! Entries of the simulated logs, and the names of the partitions.

use std::sync::Arc;

use fullbore_rules::sequence::{Marker, Stamp};
use fullbore_rules::transaction::{TopicPartition, TransactionMetadata};
use fullbore_wire::Text;

/// How many brokers the cluster has.
pub const BROKERS: usize = 3;
/// How many partitions have records. The last three are special: diskless, recreated, and compacted, in this order.
pub const DATA: usize = 5;
/// The diskless partition. It has no leader and no replicas.
pub const DISKLESS: PartitionId = DATA - 3;
/// The partition whose topic is deleted and recreated.
pub const MADE_AGAIN: PartitionId = DATA - 2;
/// The compacted partition.
pub const COMPACTED: PartitionId = DATA - 1;
/// The only partition of `__consumer_offsets`.
pub const OFFSETS: PartitionId = DATA;
/// The first partition of `__transaction_state`.
pub const STATE: PartitionId = DATA + 1;
/// How many partitions `__transaction_state` has.
const STATES: usize = 2;
/// How many partitions there are in total.
pub const PARTITIONS: usize = STATE + STATES;

/// The index of a broker, counted from 0.
pub type BrokerId = usize;
/// The index of a partition, counted from 0.
pub type PartitionId = usize;
/// The index of a transactional id, and of the group for which its client commits offsets.
pub type TransactionalId = usize;

/// Returns the partition of `__transaction_state` that has the states of `id`.
pub fn state_of(id: TransactionalId) -> PartitionId {
    STATE + id % STATES
}

/// Returns the name by which coordinators know a partition.
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

/// Returns the partition with the name `name`.
pub fn place_of(name: &TopicPartition) -> PartitionId {
    (0..=OFFSETS).find(|at| name_of(*at) == *name).expect("no other is in a transaction")
}

/// A batch in a log.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub leader_epoch: i32,
    /// The batch's producer, epoch and sequence. Offsets and markers have no sequence. States of transactional ids have
    /// no producer either.
    pub stamp: Stamp,
    pub is_transactional: bool,
    pub payload: Payload,
}

/// The content of a batch, which always has one record.
#[derive(Clone, Debug, PartialEq)]
pub enum Payload {
    /// A number that a client copies, and the transaction that copies it.
    Number {
        id: TransactionalId,
        number: u64,
        transaction: usize,
    },
    /// A record of a producer that uses no transactions.
    Plain,
    /// The last number that a client has copied.
    Offset {
        id: TransactionalId,
        upto: u64,
        transaction: usize,
    },
    Marker(Marker),
    /// The state of a transactional id. `None` is the tombstone of a removed id.
    State(TransactionalId, Option<Arc<TransactionMetadata>>),
}

impl Payload {
    /// Returns the transaction to which the record belongs. `None` if it belongs to none.
    pub fn transaction(&self) -> Option<usize> {
        match self {
            Payload::Number { transaction, .. } | Payload::Offset { transaction, .. } => Some(*transaction),
            Payload::Plain | Payload::Marker(_) | Payload::State(..) => None,
        }
    }
}
