//! CreatePartitions, key 37 (CreatePartitionsRequest.json, CreatePartitionsResponse.json).
//!
//! Introduced by KIP-195. Changes by version: 2 flexible; 3 THROTTLING_QUOTA_EXCEEDED (KIP-599).

use crate::message::message;
use crate::{ErrorCode, Text};

message! {
    /// Topics that get more partitions.
    pub struct CreatePartitionsRequest {
        /// Each topic.
        topics: Vec<CreatePartitionsTopic>, 0..;
        /// Time that the broker may take, in milliseconds.
        timeout_ms: i32, 0..;
        /// True to only check the request, and create nothing.
        validate_only: bool, 0..;
    }

    /// A topic.
    pub struct CreatePartitionsTopic {
        /// The topic name.
        name: Text, 0..;
        /// Number of the topic's partitions after the change.
        count: i32, 0..;
        /// Brokers that hold each new partition, or null to let the cluster choose.
        assignments: Option<Vec<CreatePartitionsAssignment>>, 0..;
    }

    /// Brokers of a new partition.
    pub struct CreatePartitionsAssignment {
        /// Brokers of the partition, the preferred leader first.
        broker_ids: Vec<i32>, 0..;
    }

    /// The outcome for each topic.
    pub struct CreatePartitionsResponse {
        /// Time for which the client must pause, in milliseconds.
        throttle_time_ms: i32, 0..;
        /// Each topic of the request.
        results: Vec<CreatePartitionsTopicResult>, 0..;
    }

    /// Outcome of a topic.
    pub struct CreatePartitionsTopicResult {
        /// The topic name.
        name: Text, 0..;
        /// The error, or 0.
        error_code: ErrorCode, 0..;
        /// Error message, or null.
        error_message: Option<Text>, 0..;
    }
}
