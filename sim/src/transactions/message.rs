//! Messages of the world of transactions. They may arrive in any order, late, twice or never.

use super::entry::{BrokerId, PartitionId, Payload, TransactionalId};
use fullbore_rules::sequence::{Marker, Stamp};
use fullbore_rules::transaction::{DecisionId, ProducerIdAndEpoch, TransactionAnswer, TransactionVersion};
use fullbore_wire::ErrorCode;

/// A process of a client, identified by the client's slot and the process's number among all client processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientProcess {
    pub slot: usize,
    pub incarnation: usize,
}

/// A process of a broker, identified by the broker and how often it was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrokerProcess {
    pub broker: BrokerId,
    pub life: u32,
}

/// A client's request.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    Init(Option<ProducerIdAndEpoch>),
    Add(ProducerIdAndEpoch, PartitionId),
    /// Ends a transaction: true commits it, false aborts it.
    End(ProducerIdAndEpoch, bool),
    /// A Produce or TxnOffsetCommit request.
    Write(Write),
    /// An OffsetFetch request that requires stable offsets.
    FetchOffset,
}

/// A batch for a partition. `life` identifies the topic that had the partition when the client sent the batch. This
/// topic may have been deleted since.
#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    pub partition: PartitionId,
    pub life: u32,
    pub stamp: Stamp,
    pub payload: Payload,
}

/// A request together with its sender.
#[derive(Clone, Debug)]
pub struct ClientRequest {
    pub by: ClientProcess,
    /// The request's number, by which the client recognises the response.
    pub number: u64,
    pub id: TransactionalId,
    pub version: TransactionVersion,
    /// The transaction's number, which no other client uses.
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
    /// A broker requests that the coordinator verifies a waiting batch.
    Verify {
        to: BrokerProcess,
        by: BrokerProcess,
        waits: u64,
        requested: ClientRequest,
    },
    Verified {
        to: BrokerProcess,
        waits: u64,
        /// The epoch of the coordinator, or the error code of the refusal.
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
    /// A partition has a new leader.
    Leads {
        to: BrokerProcess,
        partition: PartitionId,
        epoch: i32,
        leader: BrokerId,
    },
}

/// A marker that a coordinator has sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marking {
    pub id: TransactionalId,
    pub decision: DecisionId,
    pub partition: PartitionId,
    pub marker: Marker,
    pub version: TransactionVersion,
}

impl Message {
    /// Returns the broker process that receives the message. `None` if its receiver is a client.
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
