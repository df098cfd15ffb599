//! The broker as requests see it: the parts that the start has put together.
//!
//! Invariant: it is complete before the first connection is accepted, and nothing in it is replaced after that.

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

/// The broker as a request sees it.
pub struct Node {
    /// The settings.
    pub config: Arc<BrokerConfig>,
    /// The control plane.
    pub control: Control,
    /// The partitions it has.
    pub partitions: Arc<Partitions>,
    /// Fetches as a follower, and changes of ISRs as a leader.
    pub(crate) replication: Replication,
    /// Room on the disk.
    pub space: Arc<DiskSpace>,
    /// Buffer of batches that came before their turn.
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
    /// The levels of the log.
    pub loggers: Loggers,
    /// Permits and threads of long work.
    pub long_work: LongWork,
    /// Places and memory for requests of thousands of entries.
    pub wide: WideWork,
    /// Bounds the memory of batches that are decompressed.
    pub decompression: Decompression,
    /// The APIs that are served, in key order.
    pub served: &'static [ApiKey],
    /// The cluster's id as clients see it.
    pub cluster_id: Text,
    /// By listener: host and port at which clients reach it.
    pub(crate) endpoints: Vec<(Text, i32)>,
    /// Becomes true when the broker stops.
    pub(crate) stop: watch::Sender<bool>,
}

impl Node {
    /// Host and port at which a client of this listener reaches the broker.
    pub fn endpoint(&self, listener: usize) -> (Text, i32) {
        self.endpoints[listener].clone()
    }

    /// The wall clock in milliseconds since 1970.
    pub fn now_ms(&self) -> i64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
    }

    /// Becomes true when the broker stops.
    pub fn stopping(&self) -> watch::Receiver<bool> {
        self.stop.subscribe()
    }
}
