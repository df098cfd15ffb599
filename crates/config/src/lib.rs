//! Configuration: turns the text that a user typed into the values that the program uses.
//!
//! All keys are rows of tables (`broker_keys`, `kafka_keys`, `topic_keys`, `resource_keys`). The parser, the help text,
//! `docs/configuration.md` and the answers to DescribeConfigs are all made from these rows. [`Properties`] holds what
//! the user typed. After all checks, [`BrokerConfig`] and [`TopicConfig`] hold what the program needs.
//!
//! Invariant: a value that a user sets is honoured, refused with a message, or reported in a [`Warning`]. It is never
//! stored and then ignored.

mod broker;
mod broker_keys;
mod cleaner;
mod cleaner_keys;
#[cfg(test)]
mod conformance;
mod describe;
mod diskless;
mod diskless_keys;
mod diskless_storage;
mod docs;
mod dynamic;
mod error;
mod group_keys;
mod inert;
mod kafka_keys;
mod key;
mod listener;
mod live;
mod lookup;
mod network;
mod node;
mod plane;
mod properties;
mod reader;
mod replication;
mod requests;
mod resolve;
mod resource_keys;
mod resources;
mod ssl;
mod storage;
mod topic;
mod topic_keys;
mod topics;
mod transaction_keys;

pub use broker::BrokerConfig;
pub use broker_keys::broker_keys;
pub use cleaner::CleanerSettings;
pub use describe::{
    ConfigEntry, ConfigSynonym, describe_broker, describe_cluster, describe_resource, describe_topic, in_force,
};
pub use diskless::{DisklessConfig, NEEDS_STORAGE, ObjectCleanerConfig};
pub use diskless_storage::{DisklessStorage, ENDPOINT as S3_ENDPOINT, S3Storage, TRUSTSTORE as S3_TRUSTSTORE};
pub use docs::{help, markdown};
pub use dynamic::{DynamicConfig, check_dynamic};
pub use error::{ConfigError, Mistakes, Warning};
pub use group_keys::{GroupConfig, OffsetsConfig, OffsetsTopicConfig};
pub use key::{Allowed, Effect, Key, Source, Type};
pub use listener::{Listener, ListenerTls};
pub use live::LiveConfig;
pub use network::{ConnectionLimits, NetworkConfig};
pub use node::NodeConfig;
pub use plane::{MembershipConfig, PlaneSettings};
pub use properties::Properties;
pub use replication::ReplicationConfig;
pub use requests::{ApiConfig, ReorderConfig};
pub use resource_keys::{CLIENT_METRICS_KEYS, GROUP_CONFIG_KEYS};
pub use resources::{
    ClientMetricsConfig, ClientTrait, GroupTimeouts, Resource, check_dynamic_limits, check_resource, check_values,
};
pub use storage::StorageConfig;
pub use topic::{CleanupPolicy, ProduceValidation, Ratio, StoredAs, TimestampType, TopicConfig, requested_diskless};
pub use topic_keys::{DISKLESS_ENABLE, INKLESS_ENABLE, TOPIC_KEYS};
pub use topics::TopicsConfig;
pub use transaction_keys::{TransactionConfig, TransactionLogConfig};
