//! The broker as requests see it: the parts that were put together when it started.
//!
//! The node is complete before the first connection is accepted, and none of its parts is ever replaced.

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
use fullbore_host::unread_responses::UnreadResponses;
use fullbore_host::wide_work::WideWork;
use fullbore_log::validation::Decompression;
use fullbore_wire::Text;
use fullbore_wire::api::ApiKey;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::watch;

/// The broker as requests see it.
pub struct Node {
    /// Settings of the broker.
    pub config: Arc<BrokerConfig>,
    /// The control plane, which stores and changes the metadata.
    pub control: Control,
    /// The partitions that this broker has.
    pub partitions: Arc<Partitions>,
    /// Follows partitions that other brokers lead, and changes the ISRs of those that this broker leads.
    pub(crate) replication: Replication,
    /// The space on the disk of the data directory.
    pub space: Arc<DiskSpace>,
    /// The buffer for batches that arrive out of order.
    pub reordering: Arc<ReorderBuffer>,
    /// The coordinator of consumer groups.
    pub groups: Arc<Groups>,
    /// The coordinator of transactions.
    pub transactions: Arc<Transactions>,
    /// The fetch sessions of consumers.
    pub sessions: Sessions,
    /// The clients that push their own metrics.
    pub telemetry: Telemetry,
    /// The counters of the broker.
    pub metrics: Metrics,
    /// The log levels, which clients may change.
    pub loggers: Loggers,
    /// Permits and threads for work that takes long.
    pub long_work: LongWork,
    /// Permits and a memory budget for requests with thousands of entries.
    pub wide: WideWork,
    /// Large responses that their clients have not read yet.
    pub(crate) unread: Arc<UnreadResponses>,
    /// The memory budget for decompressing batches.
    pub decompression: Decompression,
    /// The APIs that this broker serves, in key order.
    pub served: &'static [ApiKey],
    /// The cluster id that clients get.
    pub cluster_id: Text,
    /// The host and port that clients of each listener get.
    pub(crate) endpoints: Vec<(Text, i32)>,
    /// Sends true when the broker stops.
    pub(crate) stop: watch::Sender<bool>,
}

impl Node {
    /// Returns the host and port that clients of this listener get.
    pub fn endpoint(&self, listener: usize) -> (Text, i32) {
        self.endpoints[listener].clone()
    }

    /// Returns the wall clock in milliseconds since 1970.
    pub fn now_ms(&self) -> i64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
    }

    /// Returns a receiver that gets true when the broker stops.
    pub fn stopping(&self) -> watch::Receiver<bool> {
        self.stop.subscribe()
    }
}
