//! The database's response to a heartbeat. The database sends it after it has recorded the heartbeat. The response
//! contains the last heartbeats of all brokers.

use fullbore_wire::Uuid;

/// The database's response to a heartbeat.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HeartbeatAnswer {
    /// The last heartbeat of each process whose heartbeats the database still has.
    pub peers: Vec<PeerHeartbeat>,
}

/// The last heartbeat of a broker's process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerHeartbeat {
    /// Id of the broker.
    pub id: i32,
    /// Id of the broker's process.
    pub process: Uuid,
    /// The heartbeat's number, which increases with each heartbeat.
    pub number: u64,
    /// The time since the heartbeat arrived, by the database's clock, in ms.
    pub age_ms: i64,
    /// The metadata version that the broker had published when it sent the heartbeat.
    pub version: u64,
}
