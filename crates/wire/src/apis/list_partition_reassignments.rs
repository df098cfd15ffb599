//! ListPartitionReassignments, key 46 (ListPartitionReassignmentsRequest.json, ListPartitionReassignmentsResponse.json).
//!
//! KIP-455.

use crate::message::message;
use crate::{ErrorCode, Text};

message! {
    /// Partitions of which it is asked whether they are moving.
    pub struct ListPartitionReassignmentsRequest {
        /// How long the broker may take, in milliseconds.
        timeout_ms: i32, 0.., default 60_000;
        /// Each topic, or null for every partition.
        topics: Option<Vec<ListPartitionReassignmentsTopics>>, 0..;
    }

    /// One topic's partitions.
    pub struct ListPartitionReassignmentsTopics {
        /// The topic name.
        name: Text, 0..;
        /// The partitions.
        partition_indexes: Vec<i32>, 0..;
    }

    /// The partitions that are moving.
    pub struct ListPartitionReassignmentsResponse {
        /// How long the client should pause, in milliseconds.
        throttle_time_ms: i32, 0..;
        /// The error, or 0.
        error_code: ErrorCode, 0..;
        /// Why, in words, or null.
        error_message: Option<Text>, 0..;
        /// Each topic with a partition that is moving.
        topics: Vec<OngoingTopicReassignment>, 0..;
    }

    /// One topic's partitions.
    pub struct OngoingTopicReassignment {
        /// The topic name.
        name: Text, 0..;
        /// Each partition.
        partitions: Vec<OngoingPartitionReassignment>, 0..;
    }

    /// One partition's move.
    pub struct OngoingPartitionReassignment {
        /// The partition.
        partition_index: i32, 0..;
        /// The brokers it is on.
        replicas: Vec<i32>, 0..;
        /// Those of them that it moves to.
        adding_replicas: Vec<i32>, 0..;
        /// Those of them that it leaves.
        removing_replicas: Vec<i32>, 0..;
    }
}
