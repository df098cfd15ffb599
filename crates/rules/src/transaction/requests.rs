//! The requests of producers for a transactional id, and the error responses to them.

use super::effects::{RequestTicket, TransactionAnswer, Turn};
use super::metadata::{ProducerIdAndEpoch, TopicPartition};
use super::settings::TransactionSettings;
use super::state::TransactionVersion;
use fullbore_wire::{ErrorCode, Text};

/// The topic that stores committed offsets.
const CONSUMER_OFFSETS: Text = Text::from_static("__consumer_offsets");

/// An InitProducerId request (KIP-98, KIP-360).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitProducerId {
    /// The client's current producer. `None` if the client is new. A new client fences the former one.
    pub current: Option<ProducerIdAndEpoch>,
    /// The timeout of the client's transactions, in ms.
    pub timeout_ms: i32,
    /// The time until which the request may wait for a transition. With `None`, CONCURRENT_TRANSACTIONS is returned at
    /// once, as in Kafka.
    pub wait_until: Option<i64>,
}

impl InitProducerId {
    /// Returns true if the timeout is within the limits.
    pub(super) fn has_valid_timeout(&self, settings: &TransactionSettings) -> bool {
        self.timeout_ms > 0 && self.timeout_ms <= settings.timeout_max_ms
    }
}

/// An AddPartitionsToTxn request for a transactional id, or an AddOffsetsToTxn request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddPartitions {
    /// The producer id and epoch that the client considers its own.
    pub producer: ProducerIdAndEpoch,
    /// The partitions to add.
    pub partitions: Vec<TopicPartition>,
    /// The client's transaction version ([`TransactionVersion::of_add_partitions`]).
    pub version: TransactionVersion,
    /// The time until which the request may wait for a transition. With `None`, CONCURRENT_TRANSACTIONS is returned at
    /// once, as in Kafka.
    pub wait_until: Option<i64>,
}

impl AddPartitions {
    /// Creates the request for an AddOffsetsToTxn, which adds the group's partition of `__consumer_offsets`. Clients of
    /// TV2 do not send it.
    pub fn offsets(producer: ProducerIdAndEpoch, partition: i32, wait_until: Option<i64>) -> AddPartitions {
        let partitions = vec![TopicPartition { topic: CONSUMER_OFFSETS, partition }];
        AddPartitions { producer, partitions, version: TransactionVersion::V0, wait_until }
    }

    /// Returns the error for a transaction that has too many partitions.
    pub(super) fn too_many(&self) -> ErrorCode {
        match self.version.supports_epoch_bump() {
            true => ErrorCode::TRANSACTION_ABORTABLE,
            // Clients of TV1 do not know TRANSACTION_ABORTABLE. POLICY_VIOLATION makes them abort the transaction, like
            // any error that they do not handle specially.
            false => ErrorCode::POLICY_VIOLATION,
        }
    }

    /// Returns the partitions with copied topic names. The names in the request are slices of its frame, and would keep
    /// the whole frame in memory.
    pub(super) fn owned(&self) -> Vec<TopicPartition> {
        let mut topic = Text::default();
        let mut own = |partition: &TopicPartition| {
            if topic != partition.topic {
                topic = Text::from(&*partition.topic);
            }
            TopicPartition { topic: topic.clone(), partition: partition.partition }
        };
        self.partitions.iter().map(&mut own).collect()
    }
}

/// An EndTxn request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndTxn {
    /// The producer id and epoch that the client considers its own.
    pub producer: ProducerIdAndEpoch,
    /// True to commit, false to abort.
    pub is_commit: bool,
    /// The client's transaction version ([`TransactionVersion::of_end_txn`]).
    pub version: TransactionVersion,
}

/// A request with the ticket for its response, or the coordinator's own abort.
#[derive(Clone, Debug)]
pub(super) enum Request {
    InitProducerId(RequestTicket, InitProducerId),
    AddPartitions(RequestTicket, AddPartitions),
    EndTxn(RequestTicket, EndTxn),
    /// Aborts a transaction that has timed out. There is no response.
    TimeOut,
}

impl Request {
    /// Responds to the request with an error.
    pub(super) fn refuse(&self, code: ErrorCode, turn: &mut Turn<'_>) {
        match self {
            Request::InitProducerId(ticket, _) => turn.answer(*ticket, TransactionAnswer::InitProducerId(Err(code))),
            Request::AddPartitions(ticket, _) => turn.answer(*ticket, TransactionAnswer::AddPartitions(Err(code))),
            Request::EndTxn(ticket, _) => turn.answer(*ticket, TransactionAnswer::EndTxn(Err(code))),
            Request::TimeOut => {}
        }
    }

    /// Returns the time until which the request may wait; None if it must not wait.
    pub(super) fn wait_until(&self) -> Option<i64> {
        match self {
            Request::InitProducerId(_, request) => request.wait_until,
            Request::AddPartitions(_, request) => request.wait_until,
            Request::EndTxn(..) | Request::TimeOut => None,
        }
    }
}
