//! DescribeTopicPartitions, key 75 (DescribeTopicPartitionsRequest.json, DescribeTopicPartitionsResponse.json).
//!
//! Changes by version: 0 flexible; topics in pages, with eligible leader replicas (KIP-966).

use crate::message::message;
use crate::{ErrorCode, Text, Uuid};

message! {
    /// Request for a page of partitions.
    pub struct DescribeTopicPartitionsRequest {
        /// Each topic; empty for all.
        topics: Vec<TopicRequest>, 0..;
        /// Maximum number of partitions in the response.
        response_partition_limit: i32, 0.., default 2000;
        /// Start of the page, or null for the beginning.
        cursor: Option<Cursor>, 0..;
    }

    /// A topic.
    pub struct TopicRequest {
        /// The topic name.
        name: Text, 0..;
    }

    /// A position among the partitions.
    pub struct Cursor {
        /// The topic name.
        topic_name: Text, 0..;
        /// The partition.
        partition_index: i32, 0..;
    }

    /// A page of partitions.
    pub struct DescribeTopicPartitionsResponse {
        /// Time for which the client must pause, in milliseconds.
        throttle_time_ms: i32, 0..;
        /// Each topic.
        topics: Vec<DescribeTopicPartitionsResponseTopic>, 0..;
        /// Start of the next page, or null after the last.
        next_cursor: Option<Cursor>, 0..;
    }

    /// A topic.
    pub struct DescribeTopicPartitionsResponseTopic {
        /// The error, or 0.
        error_code: ErrorCode, 0..;
        /// The topic name, or null.
        name: Option<Text>, 0..;
        /// The topic id.
        topic_id: Uuid, 0..;
        /// True for a topic in which Kafka keeps its own state.
        is_internal: bool, 0..;
        /// Each partition.
        partitions: Vec<DescribeTopicPartitionsResponsePartition>, 0..;
        /// Operations on the topic that the client is allowed, one bit each; the smallest int32 if not requested.
        topic_authorized_operations: i32, 0.., default i32::MIN;
    }

    /// A partition.
    pub struct DescribeTopicPartitionsResponsePartition {
        /// The error, or 0.
        error_code: ErrorCode, 0..;
        /// The partition.
        partition_index: i32, 0..;
        /// The leader's broker id, or -1.
        leader_id: i32, 0..;
        /// The leader's epoch, or -1.
        leader_epoch: i32, 0.., default -1;
        /// The brokers that hold the partition.
        replica_nodes: Vec<i32>, 0..;
        /// Replicas in sync with the leader.
        isr_nodes: Vec<i32>, 0..;
        /// Replicas that may lead although they left the in-sync set, or null.
        eligible_leader_replicas: Option<Vec<i32>>, 0..;
        /// Replicas last known to be eligible, or null.
        last_known_elr: Option<Vec<i32>>, 0..;
        /// Replicas whose brokers are not running.
        offline_replicas: Vec<i32>, 0..;
    }
}
