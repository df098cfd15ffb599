//! What goes over a connection.

use fullbore_rules::replica::epochs::{EpochEnd, Position};
use fullbore_rules::replica::pipe::Ask;
use fullbore_wire::ErrorCode;

use crate::cluster::{Command, Known, Snapshot};

/// One record, which is one batch. No two have the same value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    pub epoch: i32,
    pub value: u64,
    /// Producer id and sequence, of an idempotent producer.
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
    /// The value that it was about, and its offset.
    Produced {
        value: u64,
        result: Result<i64, ErrorCode>,
    },
    WhoLeads,
    /// As far as the broker knows.
    Leads(Option<i32>),
    Beat {
        id: i32,
        known: Known,
        note: Note,
    },
    Beaten(Box<Beaten>),
    Transact {
        number: u64,
        command: Command,
        known: Known,
    },
    Transacted {
        number: u64,
        result: Result<(), ErrorCode>,
        snapshot: Snapshot,
    },
    /// The database has a newer version.
    Notify,
    /// The database never had what the broker has seen of it, or has lost it.
    WentBack,
}

/// A follower's fetch.
#[derive(Clone, Copy, Debug)]
pub struct Fetch {
    pub broker_id: i32,
    pub broker_epoch: i64,
    pub leader_epoch: i32,
    /// Where the follower's log ends.
    pub position: Position,
    pub ask: Ask,
    /// Among those over the connection.
    pub number: i32,
    /// How many answers over the connection the follower has carried out.
    pub carried_out: i64,
}

/// A leader's answer.
#[derive(Clone, Debug)]
pub struct Fetched {
    pub leader_epoch: i32,
    /// The fetch that asked from the log end.
    pub asked_in: i32,
    /// Where the records begin.
    pub from: i64,
    pub high_watermark: i64,
    /// What the fetch said of the follower's log.
    pub asked: Position,
    pub found: Result<Found, ErrorCode>,
}

#[derive(Clone, Debug)]
pub enum Found {
    Records(Vec<Record>),
    Diverging(EpochEnd),
}

/// Facts that a beat tells of the disk of the process that sent it.
#[derive(Clone, Copy, Debug)]
pub struct Note {
    pub process: u128,
    /// A number that was on the disk by then.
    pub number: u64,
    /// Beats of the broker up to this one.
    pub beats: u64,
}

/// What a beat is answered with.
#[derive(Clone, Debug)]
pub struct Beaten {
    pub snapshot: Snapshot,
    /// The others: who, and how long ago its last beat was.
    pub ages: Vec<(i32, i64)>,
}
