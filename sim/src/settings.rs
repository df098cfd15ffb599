//! What all of a schedule goes by.

use crate::fault::Fault;

/// What all of a schedule goes by. Times are us.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub min_insync_replicas: usize,
    /// True if everything is flushed before it counts (flush.messages=1).
    pub flushes: bool,
    pub session_timeout_us: i64,
    pub beat_us: i64,
    pub lag_us: i64,
    /// How long an answer may take before its connection is given up.
    pub overdue_us: i64,
    /// Fetches that a follower keeps under way.
    pub fetches: usize,
    pub fault: Option<Fault>,
}
