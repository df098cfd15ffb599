//! The messages that nodes send over connections.

use fullbore_rules::replica::epochs::{EpochEnd, Position};
use fullbore_rules::replica::pipe::Ask;
use fullbore_wire::ErrorCode;

use crate::cluster::{Command, SeenVersion, Snapshot};

/// A record, sent as a batch of its own. No two records have the same value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    pub epoch: i32,
    pub value: u64,
    /// The producer id and sequence. `None` if the producer is not idempotent.
    pub stamp: Option<(i64, i32)>,
}

#[derive(Clone, Debug)]
pub enum Message {
    Fetch(Fetch),
    Fetched(Fetched),
    Produce {
        value: u64,
        stamp: Option<(i64, i32)>,
        is_acks_all: bool,
    },
    /// The value of a produced record, and its offset or the error.
    Produced {
        value: u64,
        result: Result<i64, ErrorCode>,
    },
    WhoLeads,
    /// The leader that the broker knows of. `None` if it knows no leader.
    Leads(Option<i32>),
    Heartbeat {
        id: i32,
        known: SeenVersion,
        note: Note,
    },
    HeartbeatAnswer(Box<HeartbeatAnswer>),
    Transact {
        number: u64,
        command: Command,
        known: SeenVersion,
    },
    Transacted {
        number: u64,
        result: Result<(), ErrorCode>,
        snapshot: Snapshot,
    },
    /// The database has a newer version.
    Notify,
    /// The database does not have the last version that the broker has seen, because an older backup was restored.
    WentBack,
}

/// A follower's request for records.
#[derive(Clone, Copy, Debug)]
pub struct Fetch {
    pub broker_id: i32,
    pub broker_epoch: i64,
    pub leader_epoch: i32,
    /// The end of the follower's log.
    pub position: Position,
    pub request: Ask,
    /// The fetch's number on its connection.
    pub number: i32,
    /// How many responses on this connection the follower has handled.
    pub carried_out: i64,
}

/// A leader's response to a fetch.
#[derive(Clone, Debug)]
pub struct Fetched {
    pub leader_epoch: i32,
    /// The number of the last fetch that began at the follower's log end ([`Ask::FromLogEnd`]).
    pub requested_in: i32,
    /// The offset of the first returned record.
    pub from: i64,
    pub high_watermark: i64,
    /// The end of the follower's log when it sent the fetch.
    pub requested: Position,
    pub found: Result<Found, ErrorCode>,
}

#[derive(Clone, Debug)]
pub enum Found {
    Records(Vec<Record>),
    Diverging(EpochEnd),
}

/// State of the sender's disk, reported with each heartbeat.
#[derive(Clone, Copy, Debug)]
pub struct Note {
    pub process: u128,
    /// The number on the disk when the heartbeat was sent.
    pub number: u64,
    /// How many heartbeats the broker has sent, including this heartbeat.
    pub heartbeats: u64,
}

/// The database's response to a heartbeat.
#[derive(Clone, Debug)]
pub struct HeartbeatAnswer {
    pub snapshot: Snapshot,
    /// The other brokers, each with the age of its last heartbeat.
    pub ages: Vec<(i32, i64)>,
}
