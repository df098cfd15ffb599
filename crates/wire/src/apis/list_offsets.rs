//! ListOffsets, key 2 (ListOffsetsRequest.json, ListOffsetsResponse.json).
//!
//! Changes by version: 1 one offset each. 2 isolation level. 4 leader epoch. 5 OFFSET_NOT_AVAILABLE. 6 flexible. 7
//! timestamp -3, the largest timestamp (KIP-734). 8 timestamp -4, the local log start (KIP-405). 9 timestamp -5, the
//! last tiered offset (KIP-1005). 10 a timeout for remote reads (KIP-1075). 11 timestamp -6, the earliest not yet
//! uploaded (KIP-1023).

use crate::message::message;
use crate::{ErrorCode, Text};

message! {
    /// Timestamps whose offsets are wanted.
    pub struct ListOffsetsRequest {
        /// The follower's broker id, or -1 for a consumer.
        replica_id: i32, 0..;
        /// Isolation level: 0 for all records, 1 for committed ones only.
        isolation_level: i8, 2..;
        /// Each topic.
        topics: Vec<ListOffsetsTopic>, 0..;
        /// Time that reads from remote storage may take, in milliseconds.
        timeout_ms: i32, 10..;
    }

    /// Partitions of a topic.
    pub struct ListOffsetsTopic {
        /// The topic name.
        name: Text, 0..;
        /// Each partition.
        partitions: Vec<ListOffsetsPartition>, 0..;
    }

    /// Timestamp of a partition.
    pub struct ListOffsetsPartition {
        /// The partition.
        partition_index: i32, 0..;
        /// The leader epoch the client knows, or -1.
        current_leader_epoch: i32, 4.., default -1;
        /// The timestamp in milliseconds; -1 is the end, -2 the start, the others are in the list of versions.
        timestamp: i64, 0..;
    }

    /// The offsets found.
    pub struct ListOffsetsResponse {
        /// Time for which the client must pause, in milliseconds.
        throttle_time_ms: i32, 2..;
        /// Each topic of the request.
        topics: Vec<ListOffsetsTopicResponse>, 0..;
    }

    /// Partitions of a topic.
    pub struct ListOffsetsTopicResponse {
        /// The topic name.
        name: Text, 0..;
        /// Each partition.
        partitions: Vec<ListOffsetsPartitionResponse>, 0..;
    }

    /// Offset of a partition.
    pub struct ListOffsetsPartitionResponse {
        /// The partition.
        partition_index: i32, 0..;
        /// The error, or 0.
        error_code: ErrorCode, 0..;
        /// The timestamp of the record found, in milliseconds, or -1.
        timestamp: i64, 1.., default -1;
        /// The offset, or -1 when no record is that late.
        offset: i64, 1.., default -1;
        /// The epoch of the record at that offset, or -1.
        leader_epoch: i32, 4.., default -1;
    }
}
