//! Administers a [`Cluster`](crate::blocking::Cluster): describes, creates, changes and deletes topics, configurations,
//! groups, records and transactions.

mod configs;
mod elections;
mod groups;
mod log_dirs;
mod records;
mod topics;
mod transactions;
mod versions;

pub use configs::{
    Change, ConfigEntry, ConfigOf, ConfigSource, ResourceKind, Synonym, alter_configs, config_resources,
    describe_configs,
};
pub use elections::{Elected, Election, PartitionElection, elect_leaders};
pub use groups::{
    CommittedOffset, CommittedOffsets, GroupAdmin, GroupDescription, GroupListing, GroupMember, GroupOutcomes,
    GroupProtocol, OffsetsToCommit,
};
pub use log_dirs::{DamagedLogs, LogDamage, LogDir, LogDirPartition, SetAside, log_damage, log_dirs};
pub use records::{HIGH_WATERMARK, RecordsBefore, RecordsDeleted, delete_records};
pub use topics::{
    PARTITIONS_PER_ANSWER, PartitionLayout, TopicDescription, TopicPartitionInfo, create_partitions, create_topic,
    create_topic_as, delete_topics, describe_topics, list_topics, topic_name,
};
pub use transactions::{
    AbortMarker, PartitionProducer, Termination, TransactionDescription, TransactionListing, abort_transaction,
    describe_producers, describe_transaction, fence, force_terminate, list_transactions,
};
pub use versions::{ServedApi, api_versions};
