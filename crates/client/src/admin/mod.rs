//! Topics, configurations and groups from outside: asked about, made, changed and deleted over a [`Cluster`](crate::blocking::Cluster).

mod configs;
mod groups;
mod log_dirs;
mod topics;

pub use configs::{
    Change, ConfigEntry, ConfigOf, ConfigSource, ResourceKind, Synonym, alter_configs, config_resources,
    describe_configs,
};
pub use groups::{CommittedOffset, GroupAdmin, GroupDescription, GroupListing, GroupMember, GroupProtocol};
pub(crate) use groups::{coordinator_in, coordinator_of, coordinator_request};
pub use log_dirs::{DamagedLogs, LogDamage, SetAside, log_damage};
pub use topics::{
    PARTITIONS_PER_ANSWER, PartitionLayout, TopicDescription, TopicPartitionInfo, create_partitions, create_topic,
    create_topic_as, delete_topics, describe_topics, list_topics, topic_name,
};
