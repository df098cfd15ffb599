//! Answer to a heartbeat: the database has recorded it, and when it last recorded those of the other brokers.

use fullbore_wire::Uuid;

/// Answer to a heartbeat.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Beaten {
    /// Last heartbeat of each process in the database.
    pub peers: Vec<PeerBeat>,
}

/// Last heartbeat of a broker's process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerBeat {
    /// Broker's id.
    pub id: i32,
    /// Id of its process.
    pub process: Uuid,
    /// Sequence number of the heartbeat.
    pub number: u64,
    /// Age of the heartbeat by the database's clock, ms.
    pub age_ms: i64,
    /// Version of the metadata that the broker had published then.
    pub version: u64,
}
