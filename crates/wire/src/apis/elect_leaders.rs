//! ElectLeaders, key 43 (ElectLeadersRequest.json, ElectLeadersResponse.json).
//!
//! Introduced by KIP-183. Changes by version: 1 unclean elections, an error for the whole response (KIP-460); 2
//! flexible.

use crate::message::message;
use crate::{ErrorCode, Text};

message! {
    /// Partitions to elect leaders for.
    pub struct ElectLeadersRequest {
        /// Election type: 0 elects the preferred replica; 1 elects any live replica if none in sync is left.
        election_type: i8, 1..;
        /// Each topic, or null for every partition.
        topic_partitions: Option<Vec<TopicPartitions>>, 0..;
        /// Time that the broker may take, in milliseconds.
        timeout_ms: i32, 0.., default 60_000;
    }

    /// Partitions of a topic.
    pub struct TopicPartitions {
        /// The topic name.
        topic: Text, 0..;
        /// The partitions.
        partitions: Vec<i32>, 0..;
    }

    /// The outcome for each partition.
    pub struct ElectLeadersResponse {
        /// Time for which the client must pause, in milliseconds.
        throttle_time_ms: i32, 0..;
        /// The error of the whole request, or 0.
        error_code: ErrorCode, 1..;
        /// Each topic.
        replica_election_results: Vec<ReplicaElectionResult>, 0..;
    }

    /// Outcomes of a topic.
    pub struct ReplicaElectionResult {
        /// The topic name.
        topic: Text, 0..;
        /// Each partition.
        partition_result: Vec<PartitionResult>, 0..;
    }

    /// Outcome of a partition.
    pub struct PartitionResult {
        /// The partition.
        partition_id: i32, 0..;
        /// The error, or 0; ELECTION_NOT_NEEDED if the partition already has the right leader.
        error_code: ErrorCode, 0..;
        /// Error message, or null.
        error_message: Option<Text>, 0..;
    }
}
