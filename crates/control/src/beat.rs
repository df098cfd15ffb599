//! Answer of the database to a heartbeat. The database has recorded this heartbeat, and returns the last heartbeat of
//! each broker's process.

use fullbore_wire::Uuid;

/// Answer of the database to one heartbeat.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Beaten {
    /// Last heartbeat of each process in the database.
    pub peers: Vec<PeerBeat>,
}

/// Last heartbeat of a broker's process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerBeat {
    /// Id of the broker.
    pub id: i32,
    /// Id of the broker's process.
    pub process: Uuid,
    /// Sequence number of the heartbeat.
    pub number: u64,
    /// Age of the heartbeat by the database's clock, ms.
    pub age_ms: i64,
    /// Version of the metadata that the broker had published at this heartbeat.
    pub version: u64,
}
