//! Messages of a connection.

use fullbore_rules::replica::epochs::{EpochEnd, Position};
use fullbore_rules::replica::pipe::Ask;
use fullbore_wire::ErrorCode;

use crate::cluster::{Command, SeenVersion, Snapshot};

/// Record, which is one batch, with a unique value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    pub epoch: i32,
    pub value: u64,
    /// Producer id and sequence of an idempotent producer.
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
    /// Value and offset of a produced record.
    Produced {
        value: u64,
        result: Result<i64, ErrorCode>,
    },
    WhoLeads,
    /// Leader known to the broker; None if it knows none.
    Leads(Option<i32>),
    Beat {
        id: i32,
        known: SeenVersion,
        note: Note,
    },
    Beaten(Box<Beaten>),
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
    /// The database lacks the last version that the broker has seen: it was restored from an older backup.
    WentBack,
}

/// Fetch of a follower.
#[derive(Clone, Copy, Debug)]
pub struct Fetch {
    pub broker_id: i32,
    pub broker_epoch: i64,
    pub leader_epoch: i32,
    /// End of the follower's log.
    pub position: Position,
    pub ask: Ask,
    /// Number of the fetch on its connection.
    pub number: i32,
    /// Number of responses that the follower has handled on the connection.
    pub carried_out: i64,
}

/// Response of a leader.
#[derive(Clone, Debug)]
pub struct Fetched {
    pub leader_epoch: i32,
    /// Number of the last fetch from the log end.
    pub asked_in: i32,
    /// Offset of the first record.
    pub from: i64,
    pub high_watermark: i64,
    /// End of the follower's log, as stated in the fetch.
    pub asked: Position,
    pub found: Result<Found, ErrorCode>,
}

#[derive(Clone, Debug)]
pub enum Found {
    Records(Vec<Record>),
    Diverging(EpochEnd),
}

/// State of the sender's disk in a heartbeat.
#[derive(Clone, Copy, Debug)]
pub struct Note {
    pub process: u128,
    /// Number on the disk when the heartbeat was sent.
    pub number: u64,
    /// Number of heartbeats of the broker up to this one.
    pub beats: u64,
}

/// Response to a heartbeat.
#[derive(Clone, Debug)]
pub struct Beaten {
    pub snapshot: Snapshot,
    /// Other brokers, each with the age of its last heartbeat.
    pub ages: Vec<(i32, i64)>,
}
