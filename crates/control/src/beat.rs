//! The answer to each heartbeat: that the database has it, and when the database had those of the other brokers.

use fullbore_wire::Uuid;

/// The answer to a beat.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Beaten {
    /// The last beat of each process, as the database has it.
    pub peers: Vec<PeerBeat>,
}

/// The last beat of a broker's process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerBeat {
    /// The broker.
    pub id: i32,
    /// Its process.
    pub process: Uuid,
    /// Its number.
    pub number: u64,
    /// How long ago that was by the database's clock, ms.
    pub age_ms: i64,
    /// The version of the metadata that it showed then.
    pub version: u64,
}
