//! AlterPartitionReassignments, key 45 (AlterPartitionReassignmentsRequest.json,
//! AlterPartitionReassignmentsResponse.json).
//!
//! Introduced by KIP-455. Version 1 can forbid a change of the replication factor (KIP-860).

use crate::message::message;
use crate::{ErrorCode, Text};

message! {
    /// Partitions to move to other brokers.
    pub struct AlterPartitionReassignmentsRequest {
        /// Time that the broker may take, in milliseconds.
        timeout_ms: i32, 0.., default 60_000;
        /// True if a partition may get more or fewer replicas than it has.
        allow_replication_factor_change: bool, 1.., default true;
        /// Each topic.
        topics: Vec<ReassignableTopic>, 0..;
    }

    /// Partitions of a topic.
    pub struct ReassignableTopic {
        /// The topic name.
        name: Text, 0..;
        /// Each partition.
        partitions: Vec<ReassignablePartition>, 0..;
    }

    /// Brokers of a partition.
    pub struct ReassignablePartition {
        /// The partition.
        partition_index: i32, 0..;
        /// Brokers that the partition moves to, or null to cancel a move in progress.
        replicas: Option<Vec<i32>>, 0..;
    }

    /// The outcome for each partition.
    pub struct AlterPartitionReassignmentsResponse {
        /// Time for which the client must pause, in milliseconds.
        throttle_time_ms: i32, 0..;
        /// True if the request allows more or fewer replicas than before.
        allow_replication_factor_change: bool, 1.., default true;
        /// The error of the whole request, or 0.
        error_code: ErrorCode, 0..;
        /// Error message, or null.
        error_message: Option<Text>, 0..;
        /// Each topic of the request.
        responses: Vec<ReassignableTopicResponse>, 0..;
    }

    /// Outcomes of a topic.
    pub struct ReassignableTopicResponse {
        /// The topic name.
        name: Text, 0..;
        /// Each partition.
        partitions: Vec<ReassignablePartitionResponse>, 0..;
    }

    /// Outcome of a partition.
    pub struct ReassignablePartitionResponse {
        /// The partition.
        partition_index: i32, 0..;
        /// The error, or 0; NO_REASSIGNMENT_IN_PROGRESS if there is no move to cancel.
        error_code: ErrorCode, 0..;
        /// Error message, or null.
        error_message: Option<Text>, 0..;
    }
}
