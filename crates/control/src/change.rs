//! The changes that result from a decision, and the versions of the metadata.
//!
//! A change contains new values, not the request that led to them. An image with a change applied is the next image
//! (see `image/apply.rs`). Only `decide` creates new changes. Each store writes them in its own format, and converts
//! them back when it reads them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fullbore_rules::cluster::LogEndReport;
use fullbore_rules::replica::PartitionRegistration;
use fullbore_rules::sequence::PastTopics;
use fullbore_wire::Uuid;
use imbl::Vector;

use super::node::RegisteredBroker;
use fullbore_config::Resource;

pub use fullbore_db::Version;

/// A deleted topic whose files or rows may still exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeletedTopic {
    pub id: Uuid,
    /// The topic's former name. A newer topic may have the same name.
    pub name: String,
    pub partitions: i32,
}

/// The partitions of a topic, in the order of their numbers.
pub type Partitions = Vector<Arc<PartitionRegistration>>;

/// The most recent acceptance of an older copy of the database by an operator (`fullbore admin accept-copy`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyAcceptance {
    /// The version from which the brokers continued. It is larger than every version that was committed after the copy
    /// was made.
    pub version: u64,
    /// The leader epoch in which the classic partitions of the copy continued. It is larger than every epoch that a
    /// partition reached after the copy was made. Partitions created later begin in this epoch or a larger one.
    pub first_leader_epoch: i32,
    /// The time of the acceptance by the database's clock, in ms since 1970.
    pub at_ms: i64,
}

impl CopyAcceptance {
    /// Time after the acceptance of an older copy of the database in which retention and compaction delete no records.
    /// The topic settings in the copy may be outdated, and operators can correct them during this time.
    pub const RECORDS_KEPT: Duration = Duration::from_secs(3600);

    /// Returns the time before which retention and compaction delete no records, in ms since 1970.
    pub fn records_kept_until_ms(&self) -> i64 {
        self.at_ms.saturating_add(i64::try_from(Self::RECORDS_KEPT.as_millis()).unwrap_or(i64::MAX))
    }

    /// Returns the acceptance as the text that the stores contain.
    pub fn text(&self) -> String {
        format!("{} {} {}", self.version, self.first_leader_epoch, self.at_ms)
    }

    /// Parses a text of [`CopyAcceptance::text`]. Returns `None` for any other text.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(' ');
        let (version, first_leader_epoch) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some(Self { version, first_leader_epoch, at_ms: parts.next()?.parse().ok()? })
    }
}

/// A single change of the metadata. Each commit is a list of changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A broker was registered with a new epoch, or its state has changed. `node` is its complete new registration.
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
    /// New states of consecutive partitions. The first of them has the number `first`. Numbers beyond the topic's last
    /// partition add partitions to the topic.
    PartitionsChanged {
        topic: Uuid,
        first: usize,
        partitions: Partitions,
    },
    /// A broker has reported the end of its log of a partition without a leader. The report is kept until the partition
    /// has a leader.
    LogEndReported {
        topic: Uuid,
        partition: i32,
        end: LogEndReport,
    },
    /// The topic's settings have changed; `overrides` contains all of them.
    TopicConfigured {
        topic: Uuid,
        overrides: BTreeMap<String, String>,
    },
    /// A topic was deleted, but its files and rows may still exist.
    TopicDeleted(DeletedTopic),
    /// A deleted topic's files and rows have been removed.
    DeletionFinished {
        topic: Uuid,
    },
    /// A new topic of this name must take the deleted topics in `past` into account. If `past` is empty, the name is
    /// forgotten.
    NameRemembered {
        name: String,
        past: PastTopics,
    },
    /// The dynamic settings of one broker have changed, or those for all brokers if `broker` is `None`. `overrides`
    /// contains all of them.
    BrokerConfigured {
        broker: Option<i32>,
        overrides: BTreeMap<String, String>,
    },
    /// The settings of a resource have changed; `overrides` contains all of them. An empty map removes the resource.
    ResourceConfigured {
        resource: Resource,
        name: String,
        overrides: BTreeMap<String, String>,
    },
    /// A feature has a new level.
    FeatureUpdated {
        name: String,
        level: i16,
    },
    /// All producer ids below `next` are reserved.
    ProducerIdsTaken {
        next: i64,
    },
    /// An older copy of the database was accepted.
    CopyAccepted(CopyAcceptance),
}

/// The resource type of feature levels in the stores. Kafka's `ConfigResource.Type` does not use this number.
pub const FEATURE_RESOURCE: i8 = 127;
/// The resource type of the newest [`CopyAcceptance`] in the stores, which has a single row. Kafka's
/// `ConfigResource.Type` does not use this number.
pub const ACCEPTANCE_RESOURCE: i8 = 126;
/// The name of the only resource of type [`ACCEPTANCE_RESOURCE`]. The resource has one setting, with the same name.
pub const ACCEPTANCE: &str = "accepted-copy";
/// The name of the only setting that a resource of type [`FEATURE_RESOURCE`] has.
pub const FEATURE_LEVEL: &str = "level";

impl Change {
    /// Returns true if the change may free disk space: it deletes a topic, or may shorten the retention of logs.
    pub fn frees_space(&self) -> bool {
        matches!(self, Change::TopicDeleted(_) | Change::TopicConfigured { .. } | Change::BrokerConfigured { .. })
    }
}
