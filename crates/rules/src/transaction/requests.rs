//! Requests of producers for one transactional id, and their refusals.

use super::effects::{RequestTicket, TransactionAnswer, Turn};
use super::metadata::{ProducerIdAndEpoch, TopicPartition};
use super::settings::TransactionSettings;
use super::state::TransactionVersion;
use fullbore_wire::{ErrorCode, Text};

/// Topic of committed offsets.
const CONSUMER_OFFSETS: Text = Text::from_static("__consumer_offsets");

/// InitProducerId (KIP-98, KIP-360).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitProducerId {
    /// Present producer of the client; None for a new client, which fences the former one.
    pub current: Option<ProducerIdAndEpoch>,
    /// Timeout of transactions, in ms.
    pub timeout_ms: i32,
    /// Deadline of a wait for a transition. With None, CONCURRENT_TRANSACTIONS is returned at once, as in Kafka.
    pub wait_until: Option<i64>,
}

impl InitProducerId {
    /// Returns true if the timeout is within the limits.
    pub(super) fn has_valid_timeout(&self, settings: &TransactionSettings) -> bool {
        self.timeout_ms > 0 && self.timeout_ms <= settings.timeout_max_ms
    }
}

/// AddPartitionsToTxn of one transactional id, or AddOffsetsToTxn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddPartitions {
    /// Producer that the client believes to be its own.
    pub producer: ProducerIdAndEpoch,
    /// Partitions to add.
    pub partitions: Vec<TopicPartition>,
    /// Client's transaction version ([`TransactionVersion::of_add_partitions`]).
    pub version: TransactionVersion,
    /// Deadline of a wait for a transition. With None, CONCURRENT_TRANSACTIONS is returned at once, as in Kafka.
    pub wait_until: Option<i64>,
}

impl AddPartitions {
    /// Returns the request for an AddOffsetsToTxn, which adds the group's partition of `__consumer_offsets`. Clients of
    /// TV2 do not send AddOffsetsToTxn.
    pub fn offsets(producer: ProducerIdAndEpoch, partition: i32, wait_until: Option<i64>) -> AddPartitions {
        let partitions = vec![TopicPartition { topic: CONSUMER_OFFSETS, partition }];
        AddPartitions { producer, partitions, version: TransactionVersion::V0, wait_until }
    }

    /// Returns the error of a transaction with too many partitions.
    pub(super) fn too_many(&self) -> ErrorCode {
        match self.version.supports_epoch_bump() {
            true => ErrorCode::TRANSACTION_ABORTABLE,
            // Clients of TV1 do not know that code, and treat an error that they do not handle specially as abortable.
            false => ErrorCode::POLICY_VIOLATION,
        }
    }

    /// Returns the partitions with copied topic names: a name in a request keeps the request's whole frame in memory.
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

/// EndTxn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndTxn {
    /// Producer that the client believes to be its own.
    pub producer: ProducerIdAndEpoch,
    /// True for a commit.
    pub is_commit: bool,
    /// Client's transaction version ([`TransactionVersion::of_end_txn`]).
    pub version: TransactionVersion,
}

/// Request with the ticket of its response, or the coordinator's own abort.
#[derive(Clone, Debug)]
pub(super) enum Request {
    InitProducerId(RequestTicket, InitProducerId),
    AddPartitions(RequestTicket, AddPartitions),
    EndTxn(RequestTicket, EndTxn),
    /// Abort of a transaction that has timed out, without a response.
    TimeOut,
}

impl Request {
    /// Refuses the request with an error.
    pub(super) fn refuse(&self, code: ErrorCode, turn: &mut Turn<'_>) {
        match self {
            Request::InitProducerId(ticket, _) => turn.answer(*ticket, TransactionAnswer::InitProducerId(Err(code))),
            Request::AddPartitions(ticket, _) => turn.answer(*ticket, TransactionAnswer::AddPartitions(Err(code))),
            Request::EndTxn(ticket, _) => turn.answer(*ticket, TransactionAnswer::EndTxn(Err(code))),
            Request::TimeOut => {}
        }
    }

    /// Returns the deadline of the request's wait; None if it may not wait.
    pub(super) fn wait_until(&self) -> Option<i64> {
        match self {
            Request::InitProducerId(_, request) => request.wait_until,
            Request::AddPartitions(_, request) => request.wait_until,
            Request::EndTxn(..) | Request::TimeOut => None,
        }
    }
}
