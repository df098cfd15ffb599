//! What a decision changes, and the versions that changes make: data that knows no tables.
//!
//! A change says what is so from then on, not how that was asked for. Applied to an image it gives the next one
//! (`image/apply.rs`); a back end writes it down in its own way, and gives it out again. Nobody but `decide` makes one up.

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
    /// As it was; others may have it since.
    pub name: String,
    pub partitions: i32,
}

/// A topic's partitions by number.
pub type Partitions = Vector<Arc<PartitionRegistration>>;

/// One committed state of the metadata. Two that are equal are the same commit of the same store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Version {
    /// One more than that of the version before.
    pub number: u64,
    /// Drawn for this commit: tells it from another of the same number, as one that was taken back.
    pub mark: u64,
}

/// One thing that is so from some version on.
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
    /// The partitions from the number `first` on are these, as many as there are here: new ones, or registered otherwise.
    PartitionsChanged {
        topic: Uuid,
        first: usize,
        partitions: Partitions,
    },
    /// Where the log of a replica ends that has lost its end. Kept until somebody leads the partition.
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
    /// It is gone, and something of it may be left.
    TopicDeleted(DeletedTopic),
    /// Nothing is left of a deleted topic.
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
    /// Ids below `next` are taken.
    ProducerIdsTaken {
        next: i64,
    },
}

impl Change {
    /// Whether less is kept of the logs after it, or may be.
    pub fn frees_space(&self) -> bool {
        matches!(self, Change::TopicDeleted(_) | Change::TopicConfigured { .. } | Change::BrokerConfigured { .. })
    }
}
