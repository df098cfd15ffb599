//! Effects of an event, which the broker carries out in order.
//!
//! Invariant: no effect waits for an [`Effect::Persist`] before it in the same list; the outcome of the append is an
//! event of its own.

use super::metadata::{ProducerIdAndEpoch, TopicPartition, TransactionMetadata};
use super::settings::TransactionSettings;
use super::state::TransactionVersion;
use fullbore_wire::ErrorCode;
use std::sync::Arc;

/// Number of a waiting request, unique within its transactional id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestTicket(pub u64);

/// Identity of one decision, by which late responses to an earlier decision's markers are recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DecisionId {
    /// Coordinator epoch: the leader epoch of the id's partition of `__transaction_state`.
    pub coordinator_epoch: i32,
    /// Number of decisions after the load of the id.
    pub number: u64,
}

/// Markers of one decided transaction (WriteTxnMarkers; KIP-98, KIP-1228).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Markers {
    /// Decision, for [`super::Transaction::markers_written`]. Its coordinator epoch is also that of the markers.
    pub decision: DecisionId,
    /// Producer id in the markers.
    pub producer_id: i64,
    /// Epoch in the markers. With TV2 it is one above that of the transaction's records.
    pub producer_epoch: i16,
    /// True for a commit.
    pub is_commit: bool,
    /// Partitions that need the marker, at least one.
    pub partitions: Vec<TopicPartition>,
    /// Transaction version by which the partitions check the epoch.
    pub transaction_version: TransactionVersion,
}

/// Effect of an event.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Append this state, or a tombstone for None, to `__transaction_state`. Call [`super::Transaction::persisted`]
    /// once the record is replicated or its append has failed. At most one record is in flight.
    Persist(Option<Arc<TransactionMetadata>>),
    /// Write these markers. Retry until each partition has its marker or is deleted, and report such partitions by
    /// [`super::Transaction::markers_written`]. Markers of local partitions may be appended before later effects.
    WriteMarkers(Markers),
    /// Respond to this request.
    Answer(RequestTicket, TransactionAnswer),
    /// Allocate an unused producer id, and pass it to [`super::Transaction::producer_id`].
    NeedProducerId,
}

/// Response to a request, with Kafka's error code for the newest version of the API. Below InitProducerId 4,
/// AddPartitionsToTxn 2, AddOffsetsToTxn 2 and EndTxn 2, PRODUCER_FENCED is sent as INVALID_PRODUCER_EPOCH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionAnswer {
    /// Response to InitProducerId: the producer to use from now on.
    InitProducerId(Result<ProducerIdAndEpoch, ErrorCode>),
    /// Response to AddPartitionsToTxn and AddOffsetsToTxn. An error applies to each partition of the request.
    AddPartitions(Result<(), ErrorCode>),
    /// Response to EndTxn. With TV2 it contains the producer of the next transaction, otherwise None (-1 and -1 on the
    /// wire).
    EndTxn(Result<Option<ProducerIdAndEpoch>, ErrorCode>),
}

/// Circumstances of one event.
#[derive(Debug)]
pub struct Turn<'a> {
    /// Settings, which may change from event to event.
    pub settings: &'a TransactionSettings,
    /// Time in milliseconds since 1970.
    pub now: i64,
    /// Effects so far. The event appends its own effects.
    pub effects: &'a mut Vec<Effect>,
}

impl Turn<'_> {
    /// Appends a response.
    pub(super) fn answer(&mut self, ticket: RequestTicket, answer: TransactionAnswer) {
        self.effects.push(Effect::Answer(ticket, answer));
    }
}

/// Returns Kafka's error code for a request whose record cannot be appended because of `code`
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
