//! OffsetFetch, key 9 (OffsetFetchRequest.json, OffsetFetchResponse.json).
//!
//! Changes by version: 2 all topics, an error for the group. 3 throttle time. 5 leader epoch (KIP-320). 6 flexible. 7
//! only stable offsets (KIP-447). 8 several groups (KIP-709). 9 groups of the consumer protocol (KIP-848). 10 topic
//! ids.

use crate::message::message;
use crate::{ErrorCode, Text, Uuid};

message! {
    /// Groups whose committed offsets are wanted.
    pub struct OffsetFetchRequest {
        /// The group.
        group_id: Text, 0..=7;
        /// Each topic, or null for all.
        topics: Option<Vec<OffsetFetchRequestTopic>>, 0..=7, nullable 2..=7, default Some(Vec::new());
        /// Each group.
        groups: Vec<OffsetFetchRequestGroup>, 8..;
        /// True if the response must have UNSTABLE_OFFSET_COMMIT for a partition with offsets of an open transaction.
        require_stable: bool, 7..;
    }

    /// Partitions of a topic.
    pub struct OffsetFetchRequestTopic {
        /// The topic name.
        name: Text, 0..=7;
        /// The partitions.
        partition_indexes: Vec<i32>, 0..=7;
    }

    /// Topics of a group.
    pub struct OffsetFetchRequestGroup {
        /// The group.
        group_id: Text, 8..;
        /// The member that sends the request, or null.
        member_id: Option<Text>, 9..;
        /// Epoch of the member in a group of the consumer protocol, or -1.
        member_epoch: i32, 9.., default -1;
        /// Each topic, or null for all.
        topics: Option<Vec<OffsetFetchRequestTopics>>, 8..;
    }

    /// Partitions of a topic.
    pub struct OffsetFetchRequestTopics {
        /// The topic name.
        name: Text, 8..=9;
        /// The topic id.
        topic_id: Uuid, 10..;
        /// The partitions.
        partition_indexes: Vec<i32>, 8..;
    }

    /// The committed offsets.
    pub struct OffsetFetchResponse {
        /// Time for which the client must pause, in milliseconds.
        throttle_time_ms: i32, 3..;
        /// Each topic with an answer.
        topics: Vec<OffsetFetchResponseTopic>, 0..=7;
        /// The error of the group, or 0.
        error_code: ErrorCode, 2..=7;
        /// Each group of the request.
        groups: Vec<OffsetFetchResponseGroup>, 8..;
    }

    /// Partitions of a topic.
    pub struct OffsetFetchResponseTopic {
        /// The topic name.
        name: Text, 0..=7;
        /// Each partition.
        partitions: Vec<OffsetFetchResponsePartition>, 0..=7;
    }

    /// Offset of a partition.
    pub struct OffsetFetchResponsePartition {
        /// The partition.
        partition_index: i32, 0..=7;
        /// The offset of the record to be read next, or -1 when none is committed.
        committed_offset: i64, 0..=7;
        /// Leader epoch of the record before that offset, or -1.
        committed_leader_epoch: i32, 5..=7, default -1;
        /// Metadata that the client keeps beside the offset, or null.
        metadata: Option<Text>, 0..=7;
        /// The error, or 0.
        error_code: ErrorCode, 0..=7;
    }

    /// Offsets of a group.
    pub struct OffsetFetchResponseGroup {
        /// The group.
        group_id: Text, 8..;
        /// Each topic with an answer.
        topics: Vec<OffsetFetchResponseTopics>, 8..;
        /// The error of the group, or 0.
        error_code: ErrorCode, 8..;
    }

    /// Partitions of a topic.
    pub struct OffsetFetchResponseTopics {
        /// The topic name.
        name: Text, 8..=9;
        /// The topic id.
        topic_id: Uuid, 10..;
        /// Each partition.
        partitions: Vec<OffsetFetchResponsePartitions>, 8..;
    }

    /// Offset of a partition.
    pub struct OffsetFetchResponsePartitions {
        /// The partition.
        partition_index: i32, 8..;
        /// The offset of the record to be read next, or -1 when none is committed.
        committed_offset: i64, 8..;
        /// Leader epoch of the record before that offset, or -1.
        committed_leader_epoch: i32, 8.., default -1;
        /// Metadata that the client keeps beside the offset, or null.
        metadata: Option<Text>, 8..;
        /// The error, or 0.
        error_code: ErrorCode, 8..;
    }
}
