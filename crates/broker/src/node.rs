//! The parts of the broker that requests use, one struct for each group of APIs.
//!
//! Every part is complete before the first connection is accepted, and none is ever replaced. A handler gets only the
//! parts that it needs (`serve!` in `api/mod.rs`). A future that runs longer than its handler clones the `Arc` of a
//! part.

use crate::fetch_sessions::Sessions;
use crate::groups::Groups;
use crate::loggers::Loggers;
use crate::partitions::append::AppendServices;
use crate::partitions::{Partitions, ReorderBuffer};
use crate::replication::{IsrChanges, Replication};
use crate::telemetry::Telemetry;
use crate::transactions::Transactions;
use fullbore_config::BrokerConfig;
use fullbore_control::Control;
use fullbore_host::disk_space::DiskSpace;
use fullbore_host::long_work::LongWork;
use fullbore_host::metrics::Metrics;
use fullbore_host::unread_responses::UnreadResponses;
use fullbore_host::wide_work::WideWork;
use fullbore_wire::Text;
use fullbore_wire::api::ApiKey;
use std::sync::Arc;
use tokio::sync::watch;

/// All parts of the broker. Most code uses only a few of them. The exceptions are connections, the admin page, and the
/// start and stop of the broker.
pub struct Node {
    /// The metadata and the settings.
    pub metadata: Arc<MetadataServices>,
    /// The partitions that this broker has.
    pub partitions: Arc<Partitions>,
    /// The parts that Produce uses.
    pub produce: Arc<ProduceServices>,
    /// The parts that Fetch uses.
    pub fetch: Arc<FetchServices>,
    /// The parts that the APIs of groups and transactions use.
    pub coordinators: Arc<CoordinatorServices>,
    /// The parts that the APIs of configs and of telemetry use.
    pub observation: ObservationServices,
    /// The fetchers that replicate partitions which other brokers lead.
    pub(crate) replication: Replication,
    /// The space on the disk of the data directory.
    pub space: Arc<DiskSpace>,
    /// Slots for long work.
    pub long_work: Arc<LongWork>,
    /// Slots and a memory budget for requests with thousands of entries.
    pub wide: Arc<WideWork>,
    /// The counters of the broker.
    pub metrics: Metrics,
    /// Large responses that their clients have not read yet.
    pub(crate) unread: Arc<UnreadResponses>,
    /// Sends true when the broker stops.
    pub(crate) stop: watch::Sender<bool>,
}

impl Node {
    /// Returns a receiver that gets true when the broker stops.
    pub fn stopping(&self) -> watch::Receiver<bool> {
        self.stop.subscribe()
    }
}

/// The metadata of the cluster, and the properties that this broker reports about itself.
pub struct MetadataServices {
    /// Settings of the broker.
    pub config: Arc<BrokerConfig>,
    /// The control plane, which stores and changes the metadata.
    pub control: Control,
    /// The cluster id that clients get.
    pub cluster_id: Text,
    /// The APIs that this broker serves, in key order.
    pub served: &'static [ApiKey],
    /// The host and port that clients of each listener get.
    pub(crate) endpoints: Vec<(Text, i32)>,
}

impl MetadataServices {
    /// Returns the host and port that clients of this listener get.
    pub fn endpoint(&self, listener: usize) -> (Text, i32) {
        self.endpoints[listener].clone()
    }
}

/// The parts that Produce uses.
pub struct ProduceServices {
    /// The metadata and the settings.
    pub metadata: Arc<MetadataServices>,
    /// The partitions that this broker has.
    pub partitions: Arc<Partitions>,
    /// The parts that an append to a partition uses.
    pub append: AppendServices,
    /// The buffer for batches that arrive out of order.
    pub reordering: Arc<ReorderBuffer>,
}

/// The parts that Fetch uses, for consumers and for followers.
pub struct FetchServices {
    /// The metadata and the settings.
    pub metadata: Arc<MetadataServices>,
    /// The partitions that this broker has.
    pub partitions: Arc<Partitions>,
    /// The fetch sessions of consumers.
    pub sessions: Sessions,
    /// The queue of proposed ISR changes. The leader proposes them when it handles fetches of followers.
    pub(crate) isr: Arc<IsrChanges>,
    /// Slots and a memory budget for fetches of thousands of partitions.
    pub wide: Arc<WideWork>,
    /// The counters of fetches.
    pub metrics: Metrics,
    /// Gets true when the broker stops, so that waiting fetches are answered.
    pub(crate) stopping: watch::Receiver<bool>,
}

/// The parts that the APIs of groups and transactions use.
pub struct CoordinatorServices {
    /// The metadata and the settings.
    pub metadata: Arc<MetadataServices>,
    /// The coordinator of consumer groups.
    pub groups: Arc<Groups>,
    /// The coordinator of transactions.
    pub transactions: Arc<Transactions>,
    /// The counters of commits.
    pub metrics: Metrics,
}

/// The parts that the APIs of configs and of telemetry use. They share a struct because the configs include client
/// metrics subscriptions and the log levels of the broker.
pub struct ObservationServices {
    /// The metadata and the settings.
    pub metadata: Arc<MetadataServices>,
    /// The clients that push their own metrics.
    pub telemetry: Telemetry,
    /// The log levels.
    pub loggers: Loggers,
    /// The counters of refused pushes.
    pub metrics: Metrics,
}
