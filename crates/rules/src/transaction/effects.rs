//! Effects of an event, for the broker to carry out in order.
//!
//! Invariant: no effect waits for a [`Effect::Persist`] before it in the same list. Its outcome is an event of its own.

use super::metadata::{ProducerIdAndEpoch, TopicPartition, TransactionMetadata};
use super::settings::TransactionSettings;
use super::state::TransactionVersion;
use fullbore_wire::ErrorCode;
use std::sync::Arc;

/// Number of a request that waits for its answer; unique within its transactional id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestTicket(pub u64);

/// Identity of one decision, by which late replies to the markers of an earlier one are recognized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DecisionId {
    /// The coordinator's epoch: the leader epoch of its partition of `__transaction_state`.
    pub coordinator_epoch: i32,
    /// The decision's number since the id was loaded.
    pub number: u64,
}

/// Markers of one decided transaction (WriteTxnMarkers; KIP-98, KIP-1228).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Markers {
    /// The decision, for [`super::Transaction::markers_written`]. Its coordinator epoch is that of the markers.
    pub decision: DecisionId,
    /// The producer id in the markers.
    pub producer_id: i64,
    /// The epoch in the markers: with TV2 above that of the transaction's records.
    pub producer_epoch: i16,
    /// True for a commit.
    pub is_commit: bool,
    /// The partitions, at least one.
    pub partitions: Vec<TopicPartition>,
    /// The protocol by which the partition checks the epoch.
    pub transaction_version: TransactionVersion,
}

/// Effect of an event.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Append this state, or a tombstone, to `__transaction_state`, and report by [`super::Transaction::persisted`]
    /// once it is replicated or has failed. At most one is in flight.
    Persist(Option<Arc<TransactionMetadata>>),
    /// Write these markers, again and again until each partition has its one or is gone, and report partitions by
    /// [`super::Transaction::markers_written`]. Markers of local partitions may be appended before the effects that
    /// follow.
    WriteMarkers(Markers),
    /// Answer this request.
    Answer(RequestTicket, TransactionAnswer),
    /// Take a producer id that was never given to any client, and report it by [`super::Transaction::producer_id`].
    NeedProducerId,
}

/// Answer to a request. An error is Kafka's for the newest version of the API: below InitProducerId 4,
/// AddPartitionsToTxn 2, AddOffsetsToTxn 2 and EndTxn 2, PRODUCER_FENCED is sent as INVALID_PRODUCER_EPOCH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionAnswer {
    /// To InitProducerId: the producer to use from now on.
    InitProducerId(Result<ProducerIdAndEpoch, ErrorCode>),
    /// To AddPartitionsToTxn and AddOffsetsToTxn. An error counts for each partition.
    AddPartitions(Result<(), ErrorCode>),
    /// To EndTxn: with TV2 the producer of the next transaction, else `None` (-1 and -1 in the response).
    EndTxn(Result<Option<ProducerIdAndEpoch>, ErrorCode>),
}

/// Surroundings of one event.
#[derive(Debug)]
pub struct Turn<'a> {
    /// The settings, which may change from event to event.
    pub settings: &'a TransactionSettings,
    /// The time, in milliseconds since 1970.
    pub now: i64,
    /// The effects so far; those of the event are appended.
    pub effects: &'a mut Vec<Effect>,
}

impl Turn<'_> {
    /// Appends an answer.
    pub(super) fn answer(&mut self, ticket: RequestTicket, answer: TransactionAnswer) {
        self.effects.push(Effect::Answer(ticket, answer));
    }
}

/// Returns Kafka's error for a request whose record cannot be appended with `code`
/// (`TransactionStateManager.appendTransactionToLog`).
pub fn persist_error(code: ErrorCode) -> ErrorCode {
    match code {
        ErrorCode::UNKNOWN_TOPIC_OR_PARTITION
        | ErrorCode::NOT_ENOUGH_REPLICAS
        | ErrorCode::NOT_ENOUGH_REPLICAS_AFTER_APPEND
        | ErrorCode::REQUEST_TIMED_OUT => ErrorCode::COORDINATOR_NOT_AVAILABLE,
        ErrorCode::NOT_LEADER_OR_FOLLOWER | ErrorCode::KAFKA_STORAGE_ERROR => ErrorCode::NOT_COORDINATOR,
        ErrorCode::MESSAGE_TOO_LARGE | ErrorCode::RECORD_LIST_TOO_LARGE => ErrorCode::UNKNOWN_SERVER_ERROR,
        other => other,
    }
}
