//! OffsetCommit, key 8 (OffsetCommitRequest.json, OffsetCommitResponse.json).
//!
//! Changes by version: 2 retention time. 3 throttle time. 5 no retention time (KIP-211). 6 leader epoch (KIP-320). 7
//! static members (KIP-345). 8 flexible. 9 groups of the consumer protocol (KIP-848). 10 topic ids.

use crate::message::message;
use crate::{ErrorCode, Text, Uuid};

message! {
    /// Offsets to commit for a group.
    pub struct OffsetCommitRequest {
        /// The group.
        group_id: Text, 0..;
        /// The generation in a classic group, the member epoch in one of the consumer protocol; -1 from outside the
        /// group.
        generation_id_or_member_epoch: i32, 1.., default -1;
        /// The member's id, or empty.
        member_id: Text, 1..;
        /// Static name of the member, or null.
        group_instance_id: Option<Text>, 7..;
        /// Retention of the offsets, in milliseconds; -1 for the broker's.
        retention_time_ms: i64, 2..=4, default -1;
        /// Each topic.
        topics: Vec<OffsetCommitRequestTopic>, 0..;
    }

    /// Partitions of a topic.
    pub struct OffsetCommitRequestTopic {
        /// The topic name.
        name: Text, 0..=9;
        /// The topic id.
        topic_id: Uuid, 10..;
        /// Each partition.
        partitions: Vec<OffsetCommitRequestPartition>, 0..;
    }

    /// Offset of a partition.
    pub struct OffsetCommitRequestPartition {
        /// The partition.
        partition_index: i32, 0..;
        /// The offset of the record to be read next.
        committed_offset: i64, 0..;
        /// Leader epoch of the record before that offset, or -1.
        committed_leader_epoch: i32, 6.., default -1;
        /// Metadata that the client keeps beside the offset, or null.
        committed_metadata: Option<Text>, 0..;
    }

    /// The outcome for each partition.
    pub struct OffsetCommitResponse {
        /// Time for which the client must pause, in milliseconds.
        throttle_time_ms: i32, 3..;
        /// Each topic of the request.
        topics: Vec<OffsetCommitResponseTopic>, 0..;
    }

    /// Outcomes of a topic.
    pub struct OffsetCommitResponseTopic {
        /// The topic name.
        name: Text, 0..=9;
        /// The topic id.
        topic_id: Uuid, 10..;
        /// Each partition of the request.
        partitions: Vec<OffsetCommitResponsePartition>, 0..;
    }

    /// Outcome of a partition.
    pub struct OffsetCommitResponsePartition {
        /// The partition.
        partition_index: i32, 0..;
        /// The error, or 0.
        error_code: ErrorCode, 0..;
    }
}
