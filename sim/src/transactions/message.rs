//! What goes over the network, in any order: lost, late, and more than once.

use super::entry::{BrokerId, PartitionId, Payload, TransactionalId};
use fullbore_rules::sequence::{Marker, Stamp};
use fullbore_rules::transaction::{DecisionId, ProducerIdAndEpoch, TransactionAnswer, TransactionVersion};
use fullbore_wire::ErrorCode;

/// Process of a client: its place, and its number among all processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientProcess {
    pub slot: usize,
    pub incarnation: usize,
}

/// Process of a broker: its place, and how often it has started.
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
    /// True for a commit.
    End(ProducerIdAndEpoch, bool),
    /// Produce, or TxnOffsetCommit.
    Write(Write),
    /// OffsetFetch that requires stable offsets.
    FetchOffset,
}

/// One batch, for the topic that its partition had then.
#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    pub partition: PartitionId,
    pub life: u32,
    pub stamp: Stamp,
    pub payload: Payload,
}

/// A request with who sent it.
#[derive(Clone, Debug)]
pub struct Asked {
    pub by: ClientProcess,
    /// The number of the request, by which the client knows its answer.
    pub number: u64,
    pub id: TransactionalId,
    pub version: TransactionVersion,
    /// The transaction, by the count of all.
    pub transaction: Option<usize>,
    pub request: Request,
}

/// An answer to a client.
#[derive(Clone, Copy, Debug)]
pub enum Answer {
    Transaction(TransactionAnswer),
    Written(Result<(), ErrorCode>),
    Offset(Result<u64, ErrorCode>),
}

#[derive(Clone, Debug)]
pub enum Message {
    Ask(BrokerProcess, Asked),
    Answer(Asked, Answer),
    /// A broker asks a coordinator about a batch that waits.
    Verify {
        to: BrokerProcess,
        by: BrokerProcess,
        waits: u64,
        asked: Asked,
    },
    Verified {
        to: BrokerProcess,
        waits: u64,
        /// The coordinator's epoch.
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
    /// Who leads a partition.
    Leads {
        to: BrokerProcess,
        partition: PartitionId,
        epoch: i32,
        leader: BrokerId,
    },
}

/// A marker on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marking {
    pub id: TransactionalId,
    pub decision: DecisionId,
    pub partition: PartitionId,
    pub marker: Marker,
    pub version: TransactionVersion,
}

impl Message {
    /// The process of a broker that it is for.
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
