//! ListPartitionReassignments, key 46 (ListPartitionReassignmentsRequest.json,
//! ListPartitionReassignmentsResponse.json).
//!
//! Introduced by KIP-455.

use crate::message::message;
use crate::{ErrorCode, Text};

message! {
    /// Partitions to list if they are moving.
    pub struct ListPartitionReassignmentsRequest {
        /// Time that the broker may take, in milliseconds.
        timeout_ms: i32, 0.., default 60_000;
        /// Each topic, or null for every partition.
        topics: Option<Vec<ListPartitionReassignmentsTopics>>, 0..;
    }

    /// Partitions of a topic.
    pub struct ListPartitionReassignmentsTopics {
        /// The topic name.
        name: Text, 0..;
        /// The partitions.
        partition_indexes: Vec<i32>, 0..;
    }

    /// The partitions that are moving.
    pub struct ListPartitionReassignmentsResponse {
        /// Time for which the client must pause, in milliseconds.
        throttle_time_ms: i32, 0..;
        /// The error, or 0.
        error_code: ErrorCode, 0..;
        /// Error message, or null.
        error_message: Option<Text>, 0..;
        /// Each topic with a partition that is moving.
        topics: Vec<OngoingTopicReassignment>, 0..;
    }

    /// Partitions of a topic.
    pub struct OngoingTopicReassignment {
        /// The topic name.
        name: Text, 0..;
        /// Each partition.
        partitions: Vec<OngoingPartitionReassignment>, 0..;
    }

    /// Move of a partition.
    pub struct OngoingPartitionReassignment {
        /// The partition.
        partition_index: i32, 0..;
        /// Brokers of the partition.
        replicas: Vec<i32>, 0..;
        /// Replicas that the partition moves to.
        adding_replicas: Vec<i32>, 0..;
        /// Replicas that the partition leaves.
        removing_replicas: Vec<i32>, 0..;
    }
}
