//! OffsetForLeaderEpoch, key 23 (OffsetForLeaderEpochRequest.json, OffsetForLeaderEpochResponse.json).
//!
//! Changes by version: 2 the current leader epoch (KIP-320); 3 replica id; 4 flexible.

use crate::message::message;
use crate::{ErrorCode, Text};

message! {
    /// Epochs whose end offsets are wanted (KIP-101).
    pub struct OffsetForLeaderEpochRequest {
        /// The follower's broker id, -1 for a consumer, -2 for a consumer that may see all of the log.
        replica_id: i32, 3.., default -2;
        /// Each topic.
        topics: Vec<OffsetForLeaderTopic>, 0..;
    }

    /// Partitions of a topic.
    pub struct OffsetForLeaderTopic {
        /// The topic name.
        topic: Text, 0..;
        /// Each partition.
        partitions: Vec<OffsetForLeaderPartition>, 0..;
    }

    /// Epoch of a partition.
    pub struct OffsetForLeaderPartition {
        /// The partition.
        partition: i32, 0..;
        /// The leader epoch the client knows, or -1.
        current_leader_epoch: i32, 2.., default -1;
        /// The epoch whose end is wanted.
        leader_epoch: i32, 0..;
    }

    /// The end offsets.
    pub struct OffsetForLeaderEpochResponse {
        /// Time for which the client must pause, in milliseconds.
        throttle_time_ms: i32, 2..;
        /// Each topic of the request.
        topics: Vec<OffsetForLeaderTopicResult>, 0..;
    }

    /// Partitions of a topic.
    pub struct OffsetForLeaderTopicResult {
        /// The topic name.
        topic: Text, 0..;
        /// Each partition.
        partitions: Vec<EpochEndOffset>, 0..;
    }

    /// Leader epoch of a partition, and its end.
    pub struct EpochEndOffset {
        /// The error, or 0.
        error_code: ErrorCode, 0..;
        /// The partition.
        partition: i32, 0..;
        /// The largest epoch not above the requested one, or -1.
        leader_epoch: i32, 1.., default -1;
        /// The offset after that epoch's last record, or -1.
        end_offset: i64, 0.., default -1;
    }
}
