//! Messages in the network, which may arrive in any order, late, twice, or never.

use super::entry::{BrokerId, PartitionId, Payload, TransactionalId};
use fullbore_rules::sequence::{Marker, Stamp};
use fullbore_rules::transaction::{DecisionId, ProducerIdAndEpoch, TransactionAnswer, TransactionVersion};
use fullbore_wire::ErrorCode;

/// Process of a client: the client's slot, and the number of the process among all client processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientProcess {
    pub slot: usize,
    pub incarnation: usize,
}

/// Process of a broker: the broker, and the number of its starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrokerProcess {
    pub broker: BrokerId,
    pub life: u32,
}

/// Request of a client.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    Init(Option<ProducerIdAndEpoch>),
    Add(ProducerIdAndEpoch, PartitionId),
    /// End of a transaction; true for a commit.
    End(ProducerIdAndEpoch, bool),
    /// Produce, or TxnOffsetCommit.
    Write(Write),
    /// OffsetFetch that requires stable offsets.
    FetchOffset,
}

/// Batch, addressed to the topic that the partition belonged to when the client sent it.
#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    pub partition: PartitionId,
    pub life: u32,
    pub stamp: Stamp,
    pub payload: Payload,
}

/// Request with its sender.
#[derive(Clone, Debug)]
pub struct ClientRequest {
    pub by: ClientProcess,
    /// Number of the request, by which the client recognises the response.
    pub number: u64,
    pub id: TransactionalId,
    pub version: TransactionVersion,
    /// Number of the transaction, unique among all clients.
    pub transaction: Option<usize>,
    pub request: Request,
}

/// Response to a client.
#[derive(Clone, Copy, Debug)]
pub enum Answer {
    Transaction(TransactionAnswer),
    Written(Result<(), ErrorCode>),
    Offset(Result<u64, ErrorCode>),
}

#[derive(Clone, Debug)]
pub enum Message {
    Ask(BrokerProcess, ClientRequest),
    Answer(ClientRequest, Answer),
    /// A broker requests the verification of a waiting batch.
    Verify {
        to: BrokerProcess,
        by: BrokerProcess,
        waits: u64,
        asked: ClientRequest,
    },
    Verified {
        to: BrokerProcess,
        waits: u64,
        /// Epoch of the coordinator.
        outcome: Result<i32, ErrorCode>,
    },
    Mark {
        to: BrokerProcess,
        by: BrokerProcess,
        marking: Marking,
    },
    Marked {
        to: BrokerProcess,
        marking: Marking,
    },
    /// Leader of a partition.
    Leads {
        to: BrokerProcess,
        partition: PartitionId,
        epoch: i32,
        leader: BrokerId,
    },
}

/// Marker in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marking {
    pub id: TransactionalId,
    pub decision: DecisionId,
    pub partition: PartitionId,
    pub marker: Marker,
    pub version: TransactionVersion,
}

impl Message {
    /// Returns the broker process that receives the message; None if a client receives it.
    pub fn to(&self) -> Option<BrokerProcess> {
        match self {
            Message::Ask(to, _)
            | Message::Verify { to, .. }
            | Message::Verified { to, .. }
            | Message::Mark { to, .. }
            | Message::Marked { to, .. }
            | Message::Leads { to, .. } => Some(*to),
            Message::Answer(..) => None,
        }
    }
}
