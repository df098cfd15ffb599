//! Counters of the broker.
use fullbore_wire::api::ApiKey;
use std::time::Duration;

/// Placeholder until the counters land.
#[derive(Default)]
pub struct Metrics;
impl Metrics {
    /// A connection was accepted.
    pub fn connection_opened(&self) {}
    /// A connection ended.
    pub fn connection_closed(&self) {}
    /// A response is out.
    pub fn answered(&self, _api: ApiKey, _elapsed: Duration, _bytes: usize) {}
    /// A batch is in the log.
    pub fn appended(&self, _bytes: usize, _records: i32) {}
}
