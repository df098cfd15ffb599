//! CreateTopics, key 19 (CreateTopicsRequest.json, CreateTopicsResponse.json).
//!
//! Changes by version: 2 throttle time; 4 the broker's default counts (KIP-464); 5 flexible, configurations in the
//! response (KIP-525); 6 THROTTLING_QUOTA_EXCEEDED (KIP-599); 7 topic ids.

use crate::message::message;
use crate::{ErrorCode, Text, Uuid};

message! {
    /// Topics to create.
    pub struct CreateTopicsRequest {
        /// Each topic.
        topics: Vec<CreatableTopic>, 0..;
        /// Time that the broker may take, in milliseconds.
        timeout_ms: i32, 0.., default 60_000;
        /// True to only check the request, and create nothing.
        validate_only: bool, 1..;
    }

    /// A topic to create.
    pub struct CreatableTopic {
        /// The topic name.
        name: Text, 0..;
        /// The number of partitions, or -1 for the default or for `assignments`.
        num_partitions: i32, 0..;
        /// The number of replicas, or -1 for the default or for `assignments`.
        replication_factor: i16, 0..;
        /// Brokers that hold each partition; empty to let the cluster choose.
        assignments: Vec<CreatableReplicaAssignment>, 0..;
        /// Configurations that differ from the defaults.
        configs: Vec<CreatableTopicConfig>, 0..;
    }

    /// Brokers of a partition.
    pub struct CreatableReplicaAssignment {
        /// The partition.
        partition_index: i32, 0..;
        /// Brokers of the partition, the preferred leader first.
        broker_ids: Vec<i32>, 0..;
    }

    /// A configuration to set.
    pub struct CreatableTopicConfig {
        /// Name of the configuration.
        name: Text, 0..;
        /// Value of the configuration, or null.
        value: Option<Text>, 0..;
    }

    /// The outcome for each topic of the request.
    pub struct CreateTopicsResponse {
        /// Time for which the client must pause, in milliseconds.
        throttle_time_ms: i32, 2..;
        /// Each topic of the request.
        topics: Vec<CreatableTopicResult>, 0..;
    }

    /// Outcome of a topic.
    pub struct CreatableTopicResult {
        /// The topic name.
        name: Text, 0..;
        /// The new topic's id.
        topic_id: Uuid, 7..;
        /// The error, or 0.
        error_code: ErrorCode, 0..;
        /// Error message, or null.
        error_message: Option<Text>, 1..;
        /// The error because of which the configurations are left out, or 0.
        topic_config_error_code: ErrorCode, 5.., tag 0;
        /// The number of partitions, or -1.
        num_partitions: i32, 5.., default -1;
        /// The number of replicas, or -1.
        replication_factor: i16, 5.., default -1;
        /// The topic's configurations, or null.
        configs: Option<Vec<CreatableTopicConfigs>>, 5..;
    }

    /// A configuration of the new topic.
    pub struct CreatableTopicConfigs {
        /// Name of the configuration.
        name: Text, 5..;
        /// Value of the configuration, or null.
        value: Option<Text>, 5..;
        /// True if the configuration cannot be changed.
        read_only: bool, 5..;
        /// Source of the value, or -1.
        config_source: i8, 5.., default -1;
        /// True if the value is a secret.
        is_sensitive: bool, 5..;
    }
}
