//! Changes that a decision makes, and the versions of the metadata. Not here: their form in a store.
//!
//! A change contains the new values, not the request for them. Applied to an image, it gives the next image
//! (`image/apply.rs`). Each back end stores changes in its own form, and reads them back. Only `decide` creates new
//! changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use fullbore_rules::cluster::LogEndReport;
use fullbore_rules::replica::PartitionRegistration;
use fullbore_rules::sequence::PastTopics;
use fullbore_wire::Uuid;
use imbl::Vector;

use super::node::RegisteredBroker;
use fullbore_config::Resource;

/// Deleted topic whose files or rows may still exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeletedTopic {
    pub id: Uuid,
    /// Name before the deletion; a newer topic may have the same name.
    pub name: String,
    pub partitions: i32,
}

/// Partitions of a topic by number.
pub type Partitions = Vector<Arc<PartitionRegistration>>;

/// Version of the metadata: a committed state. Equal versions are the same commit of the same store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Version {
    /// Number of the version; grows by 1 with each commit.
    pub number: u64,
    /// Random nonce of this commit. It distinguishes two commits with the same number, which occur if an older backup
    /// is restored.
    pub nonce: u64,
}

/// Single change of the metadata. Each version is the result of a list of such changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A broker started, under a new epoch.
    BrokerRegistered {
        id: i32,
        node: RegisteredBroker,
    },
    TopicCreated {
        topic: Uuid,
        name: String,
        partitions: Partitions,
        overrides: BTreeMap<String, String>,
    },
    /// New registrations of the partitions from number `first` on. Partitions past the topic's last one are added to
    /// the topic.
    PartitionsChanged {
        topic: Uuid,
        first: usize,
        partitions: Partitions,
    },
    /// Log end that a broker has reported for a partition without a leader. Kept until the partition has a leader.
    LogEndTold {
        topic: Uuid,
        partition: i32,
        end: LogEndReport,
    },
    /// All overrides of the topic after the change.
    TopicConfigured {
        topic: Uuid,
        overrides: BTreeMap<String, String>,
    },
    /// Deletion of a topic whose files and rows may still exist.
    TopicDeleted(DeletedTopic),
    /// Completed removal of a deleted topic's files and rows.
    DeletionFinished {
        topic: Uuid,
    },
    /// All deleted topics of a name that matter to the next topic of that name. If `past` is empty, the name is
    /// forgotten.
    NameRemembered {
        name: String,
        past: PastTopics,
    },
    /// All dynamic settings of the broker with id `broker`, after the change; `None` stands for every broker.
    BrokerConfigured {
        broker: Option<i32>,
        overrides: BTreeMap<String, String>,
    },
    /// All overrides of the resource after the change; an empty map removes the resource.
    ResourceConfigured {
        resource: Resource,
        name: String,
        overrides: BTreeMap<String, String>,
    },
    /// New level of a feature.
    FeatureUpdated {
        name: String,
        level: i16,
    },
    /// Reservation of all producer ids below `next`.
    ProducerIdsTaken {
        next: i64,
    },
}

/// Resource type under which the stores keep levels of features, beside those of Kafka's `ConfigResource.Type`.
pub const FEATURE_RESOURCE: i8 = 127;
/// Name of the only setting of a resource of type [`FEATURE_RESOURCE`].
pub const FEATURE_LEVEL: &str = "level";

impl Change {
    /// Returns true if the change may free disk space, since logs may retain less.
    pub fn frees_space(&self) -> bool {
        matches!(self, Change::TopicDeleted(_) | Change::TopicConfigured { .. } | Change::BrokerConfigured { .. })
    }
}
