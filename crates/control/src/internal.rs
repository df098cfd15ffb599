//! Names of the topics in which Kafka keeps its own state.
//!
//! Invariant: a metadata request does not create an internal topic, and clients do not write to one. An administrator
//! may create one by CreateTopics, as in Kafka, except for `__cluster_metadata`.

/// Topic of groups and of their committed offsets.
pub const CONSUMER_OFFSETS: &str = "__consumer_offsets";
/// Topic of transactional ids.
pub const TRANSACTION_STATE: &str = "__transaction_state";
/// Topics of committed offsets and groups, of transactions, and of positions of share groups (`Topic.INTERNAL_TOPICS`).
const INTERNAL_TOPICS: [&str; 3] = [CONSUMER_OFFSETS, TRANSACTION_STATE, "__share_group_state"];
/// Topic of Kafka's controllers, which Fullbore does not have.
pub const CLUSTER_METADATA_TOPIC: &str = "__cluster_metadata";

/// Returns true if clients see this topic as internal, and may not write to it.
pub fn is_internal(name: &str) -> bool {
    INTERNAL_TOPICS.contains(&name)
}

/// Returns true if a metadata request may create this topic.
pub fn may_be_auto_created(name: &str) -> bool {
    !is_internal(name) && name != CLUSTER_METADATA_TOPIC
}
