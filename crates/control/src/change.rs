//! Changes that a decision makes, and the versions that they lead to, without any table.
//!
//! A change is the new state, not the request for it. Applied to an image it gives the next image (`image/apply.rs`).
//! Each back end stores changes in its own form, and reads them back. Only `decide` creates changes.

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
    /// Former name; a newer topic may have it.
    pub name: String,
    pub partitions: i32,
}

/// Partitions of a topic by number.
pub type Partitions = Vector<Arc<PartitionRegistration>>;

/// Version of the metadata, a committed state. Two equal versions are the same commit of the same store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Version {
    /// Number, which grows by 1 with each version.
    pub number: u64,
    /// Nonce drawn for this commit. Differs from that of another commit with the same number, such as one lost in a
    /// restore.
    pub nonce: u64,
}

/// Change that holds from some version on.
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
    /// The partitions from the number `first` on become these: new partitions, or new registrations.
    PartitionsChanged {
        topic: Uuid,
        first: usize,
        partitions: Partitions,
    },
    /// End of a replica's log that an unclean shutdown truncated. Kept until the partition has a leader.
    LogEndTold {
        topic: Uuid,
        partition: i32,
        end: LogEndReport,
    },
    /// All overrides of the topic.
    TopicConfigured {
        topic: Uuid,
        overrides: BTreeMap<String, String>,
    },
    /// The topic is deleted; its files and rows may still exist.
    TopicDeleted(DeletedTopic),
    /// Files and rows of a deleted topic are removed.
    DeletionFinished {
        topic: Uuid,
    },
    /// All deleted topics of this name that matter to the next one. Without any, the name is forgotten.
    NameRemembered {
        name: String,
        past: PastTopics,
    },
    /// All dynamic settings of the broker with this id; `None` stands for every broker.
    BrokerConfigured {
        broker: Option<i32>,
        overrides: BTreeMap<String, String>,
    },
    /// All overrides of the resource with this name; an empty map removes them.
    ResourceConfigured {
        resource: Resource,
        name: String,
        overrides: BTreeMap<String, String>,
    },
    /// The level of a feature.
    FeatureUpdated {
        name: String,
        level: i16,
    },
    /// Producer ids below `next` are taken.
    ProducerIdsTaken {
        next: i64,
    },
}

/// Resource type under which the stores keep levels of features, beside those of Kafka's `ConfigResource.Type`.
pub const FEATURE_RESOURCE: i8 = 127;
/// Name of the only setting of such a resource.
pub const FEATURE_LEVEL: &str = "level";

impl Change {
    /// Returns true if logs may retain less after the change.
    pub fn frees_space(&self) -> bool {
        matches!(self, Change::TopicDeleted(_) | Change::TopicConfigured { .. } | Change::BrokerConfigured { .. })
    }
}
