//! How the cluster of a schedule is set up.

use crate::fault::Fault;

/// Settings of a schedule. Times are in microseconds.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub min_insync_replicas: usize,
    /// True if each write is flushed before it has any effect (flush.messages=1).
    pub flushes: bool,
    pub session_timeout_us: i64,
    pub heartbeat_us: i64,
    pub lag_us: i64,
    /// How long a node waits for a response before it closes the connection.
    pub overdue_us: i64,
    /// How many fetches a follower keeps in flight.
    pub fetches: usize,
    pub fault: Option<Fault>,
}
