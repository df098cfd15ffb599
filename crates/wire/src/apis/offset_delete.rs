//! OffsetDelete, key 47 (OffsetDeleteRequest.json, OffsetDeleteResponse.json).
//!
//! Introduced by KIP-496. Never flexible.

use crate::message::message;
use crate::{ErrorCode, Text};

message! {
    /// Committed offsets to forget.
    pub struct OffsetDeleteRequest {
        /// The group.
        group_id: Text, 0..;
        /// Each topic.
        topics: Vec<OffsetDeleteRequestTopic>, 0..;
    }

    /// Partitions of a topic.
    pub struct OffsetDeleteRequestTopic {
        /// The topic name.
        name: Text, 0..;
        /// Each partition.
        partitions: Vec<OffsetDeleteRequestPartition>, 0..;
    }

    /// A partition.
    pub struct OffsetDeleteRequestPartition {
        /// The partition.
        partition_index: i32, 0..;
    }

    /// The outcome for each partition.
    pub struct OffsetDeleteResponse {
        /// The error of the whole request, or 0.
        error_code: ErrorCode, 0..;
        /// Time for which the client must pause, in milliseconds.
        throttle_time_ms: i32, 0..;
        /// Each topic of the request.
        topics: Vec<OffsetDeleteResponseTopic>, 0..;
    }

    /// Outcomes of a topic.
    pub struct OffsetDeleteResponseTopic {
        /// The topic name.
        name: Text, 0..;
        /// Each partition of the request.
        partitions: Vec<OffsetDeleteResponsePartition>, 0..;
    }

    /// Outcome of a partition.
    pub struct OffsetDeleteResponsePartition {
        /// The partition.
        partition_index: i32, 0..;
        /// The error, or 0; GROUP_SUBSCRIBED_TO_TOPIC while a member reads the topic.
        error_code: ErrorCode, 0..;
    }
}
