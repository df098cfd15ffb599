//! The effects of an event on a transactional id, which the broker carries out in order.
//!
//! Invariant: no effect depends on the outcome of an earlier [`Effect::Persist`] in the same list. The outcome of an
//! append is an event of its own.

use super::metadata::{ProducerIdAndEpoch, TopicPartition, TransactionMetadata};
use super::settings::TransactionSettings;
use super::state::TransactionVersion;
use fullbore_wire::ErrorCode;
use std::sync::Arc;

/// Identifies a waiting request within its transactional id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestTicket(pub u64);

/// Identifies a decision, so that late responses to the markers of an earlier decision are recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DecisionId {
    /// The coordinator epoch, which is the leader epoch of the id's partition of `__transaction_state`.
    pub coordinator_epoch: i32,
    /// How many decisions were made since the id was loaded.
    pub number: u64,
}

/// The markers of a decided transaction (WriteTxnMarkers; KIP-98, KIP-1228).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Markers {
    /// The decision, to be passed to [`super::Transaction::markers_written`]. Its coordinator epoch is also that of the
    /// markers.
    pub decision: DecisionId,
    /// The producer id in the markers.
    pub producer_id: i64,
    /// The epoch in the markers. With TV2 it is higher than the epoch of the transaction's records, usually by one.
    pub producer_epoch: i16,
    /// True to commit the transaction, false to abort it.
    pub is_commit: bool,
    /// The partitions that need the marker. There is at least one.
    pub partitions: Vec<TopicPartition>,
    /// The transaction version, which determines how the partitions check the epoch.
    pub transaction_version: TransactionVersion,
}

/// A single instruction to the broker.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Append this state to `__transaction_state`, or a tombstone for None. Call [`super::Transaction::persisted`] when
    /// the record is replicated or its append has failed. At most one record is in flight.
    Persist(Option<Arc<TransactionMetadata>>),
    /// Write these markers. Retry until each partition has its marker or is deleted, and report these partitions with
    /// [`super::Transaction::markers_written`]. Markers of local partitions may be appended before later effects.
    WriteMarkers(Markers),
    /// Respond to this request.
    Answer(RequestTicket, TransactionAnswer),
    /// Allocate an unused producer id and pass it to [`super::Transaction::producer_id`].
    NeedProducerId,
}

/// The response to a request, with the error code of the newest version of the API. In versions below InitProducerId 4,
/// AddPartitionsToTxn 2, AddOffsetsToTxn 2 and EndTxn 2, the broker sends INVALID_PRODUCER_EPOCH instead of
/// PRODUCER_FENCED.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionAnswer {
    /// The response to InitProducerId, with the producer to use from now on.
    InitProducerId(Result<ProducerIdAndEpoch, ErrorCode>),
    /// The response to AddPartitionsToTxn and AddOffsetsToTxn. An error applies to each partition in the request.
    AddPartitions(Result<(), ErrorCode>),
    /// The response to EndTxn. With TV2, it contains the producer of the next transaction. Otherwise it contains None,
    /// and the response has -1 for both id and epoch.
    EndTxn(Result<Option<ProducerIdAndEpoch>, ErrorCode>),
}

/// The settings and the time of an event, and the list of its effects.
#[derive(Debug)]
pub struct Turn<'a> {
    /// The settings, which may change from one event to the next.
    pub settings: &'a TransactionSettings,
    /// The time in milliseconds, by a monotonic clock. The times in records are by the system's clock, so the caller
    /// converts them ([`TransactionMetadata::shifted`]).
    pub now: i64,
    /// The effects so far. The event appends its own to them.
    pub effects: &'a mut Vec<Effect>,
}

impl Turn<'_> {
    /// Appends a response to the effects.
    pub(super) fn answer(&mut self, ticket: RequestTicket, answer: TransactionAnswer) {
        self.effects.push(Effect::Answer(ticket, answer));
    }
}

/// Returns the error for a request whose record cannot be appended because of `code`, as in Kafka's
/// `TransactionStateManager.appendTransactionToLog`.
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
