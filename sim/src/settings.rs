//! Settings of a schedule.

use crate::fault::Fault;

/// Settings of a schedule. Times are in us.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub min_insync_replicas: usize,
    /// True if all writes are flushed before any effect of them (flush.messages=1).
    pub flushes: bool,
    pub session_timeout_us: i64,
    pub beat_us: i64,
    pub lag_us: i64,
    /// Longest wait for a response. After it the connection is closed.
    pub overdue_us: i64,
    /// Number of fetches that a follower keeps in flight.
    pub fetches: usize,
    pub fault: Option<Fault>,
}
