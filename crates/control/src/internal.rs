//! The names of the topics in which Kafka stores its own state.
//!
//! Invariant: a metadata request never creates an internal topic, and clients cannot write to one. As in Kafka, an
//! administrator can create one with CreateTopics, except for `__cluster_metadata`.

/// The topic that stores groups and their committed offsets.
pub const CONSUMER_OFFSETS: &str = "__consumer_offsets";
/// The topic that stores transactional ids.
pub const TRANSACTION_STATE: &str = "__transaction_state";
/// All internal topics (Kafka's `Topic.INTERNAL_TOPICS`). The last one stores the state of share groups.
const INTERNAL_TOPICS: [&str; 3] = [CONSUMER_OFFSETS, TRANSACTION_STATE, "__share_group_state"];
/// The topic of Kafka's controllers. Fullbore does not have it.
pub const CLUSTER_METADATA_TOPIC: &str = "__cluster_metadata";

/// Returns true if clients see this topic as internal and cannot write to it.
pub fn is_internal(name: &str) -> bool {
    INTERNAL_TOPICS.contains(&name)
}

/// Returns true if a metadata request may create this topic.
pub fn may_be_auto_created(name: &str) -> bool {
    !is_internal(name) && name != CLUSTER_METADATA_TOPIC
}
