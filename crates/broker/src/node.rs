//! The broker as requests see it: the components that the start has put together.
//!
//! Invariant: the node is complete before the first connection is accepted, and no component is replaced after that.

use crate::fetch_sessions::Sessions;
use crate::groups::Groups;
use crate::loggers::Loggers;
use crate::partitions::{Partitions, ReorderBuffer};
use crate::replication::Replication;
use crate::telemetry::Telemetry;
use crate::transactions::Transactions;
use fullbore_config::BrokerConfig;
use fullbore_control::Control;
use fullbore_host::disk_space::DiskSpace;
use fullbore_host::long_work::LongWork;
use fullbore_host::metrics::Metrics;
use fullbore_host::wide_work::WideWork;
use fullbore_log::validation::Decompression;
use fullbore_wire::Text;
use fullbore_wire::api::ApiKey;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::watch;

/// Broker as a request sees it.
pub struct Node {
    /// Settings of the broker.
    pub config: Arc<BrokerConfig>,
    /// Control plane.
    pub control: Control,
    /// Partitions of this broker.
    pub partitions: Arc<Partitions>,
    /// Replication as a follower, and ISR changes as a leader.
    pub(crate) replication: Replication,
    /// Disk space.
    pub space: Arc<DiskSpace>,
    /// Buffer of out-of-order batches.
    pub reordering: Arc<ReorderBuffer>,
    /// Consumer groups.
    pub groups: Arc<Groups>,
    /// Transactional ids.
    pub transactions: Arc<Transactions>,
    /// Fetch sessions.
    pub sessions: Sessions,
    /// Clients that push their own metrics.
    pub telemetry: Telemetry,
    /// Counters.
    pub metrics: Metrics,
    /// Log levels.
    pub loggers: Loggers,
    /// Permits and threads of long work.
    pub long_work: LongWork,
    /// Permits and memory budget of requests with thousands of entries.
    pub wide: WideWork,
    /// Memory budget of decompressed batches.
    pub decompression: Decompression,
    /// Served APIs, in key order.
    pub served: &'static [ApiKey],
    /// Cluster id as clients see it.
    pub cluster_id: Text,
    /// Host and port for clients, by listener.
    pub(crate) endpoints: Vec<(Text, i32)>,
    /// Sender of a value that becomes true when the broker stops.
    pub(crate) stop: watch::Sender<bool>,
}

impl Node {
    /// Returns the host and port for clients of this listener.
    pub fn endpoint(&self, listener: usize) -> (Text, i32) {
        self.endpoints[listener].clone()
    }

    /// Returns the wall clock in milliseconds since 1970.
    pub fn now_ms(&self) -> i64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
    }

    /// Returns a receiver of a value that becomes true when the broker stops.
    pub fn stopping(&self) -> watch::Receiver<bool> {
        self.stop.subscribe()
    }
}
