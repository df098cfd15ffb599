//! Changes that a decision makes, and the versions that they lead to: data that knows no tables.
//!
//! A change is the new state, not the request for it. Applied to an image it gives the next one (`image/apply.rs`); a
//! back end writes it down in its own way, and gives it out again. Nobody but `decide` makes one up.

use std::collections::BTreeMap;
use std::sync::Arc;

use fullbore_rules::cluster::LogEnd;
use fullbore_rules::replica::PartitionRegistration;
use fullbore_rules::sequence::PastTopics;
use fullbore_wire::Uuid;
use imbl::Vector;

use super::node::RegisteredBroker;
use fullbore_config::Resource;

/// A topic that was deleted, and of which something may be left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeletedTopic {
    pub id: Uuid,
    /// Former name; a newer topic may have it.
    pub name: String,
    pub partitions: i32,
}

/// A topic's partitions by number.
pub type Partitions = Vector<Arc<PartitionRegistration>>;

/// Version of the metadata, a committed state. Two that are equal are the same commit of the same store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Version {
    /// Number, which grows by 1 with each version.
    pub number: u64,
    /// Drawn for this commit: tells it from another of the same number, as one that was taken back.
    pub mark: u64,
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
    /// The partitions from the number `first` on are these, as many as there are here: new ones, or registered
    /// otherwise.
    PartitionsChanged {
        topic: Uuid,
        first: usize,
        partitions: Partitions,
    },
    /// End of a replica's log that lost records. Kept until the partition has a leader.
    LogEndTold {
        topic: Uuid,
        partition: i32,
        end: LogEnd,
    },
    /// All that the topic sets itself.
    TopicConfigured {
        topic: Uuid,
        overrides: BTreeMap<String, String>,
    },
    /// The topic is deleted; files and rows of it may be left.
    TopicDeleted(DeletedTopic),
    /// Files and rows of a deleted topic are removed.
    DeletionFinished {
        topic: Uuid,
    },
    /// All deleted topics of this name that count for the next one. The name is forgotten where there are none.
    NameRemembered {
        name: String,
        past: PastTopics,
    },
    /// All that is set, while it runs, for the broker of this id; `None` is for every broker.
    BrokerConfigured {
        broker: Option<i32>,
        overrides: BTreeMap<String, String>,
    },
    /// All that the resource of this name sets; nothing takes it out.
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
    /// Ids below `next` are taken.
    ProducerIdsTaken {
        next: i64,
    },
}

/// Type of resource under which the stores keep levels of features, beside Kafka's `ConfigResource.Type`.
pub const FEATURE_RESOURCE: i8 = 127;
/// Name of the only value of such a resource.
pub const FEATURE_LEVEL: &str = "level";

impl Change {
    /// Returns true if logs may keep less after the change.
    pub fn frees_space(&self) -> bool {
        matches!(self, Change::TopicDeleted(_) | Change::TopicConfigured { .. } | Change::BrokerConfigured { .. })
    }
}
