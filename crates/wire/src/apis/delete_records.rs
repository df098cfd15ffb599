//! DeleteRecords, key 21 (DeleteRecordsRequest.json, DeleteRecordsResponse.json).
//!
//! Introduced by KIP-107. Flexible from version 2 on.

use crate::message::message;
use crate::{ErrorCode, Text};

message! {
    /// Partitions whose log start moves forward.
    pub struct DeleteRecordsRequest {
        /// Each topic.
        topics: Vec<DeleteRecordsTopic>, 0..;
        /// Time that the broker may take, in milliseconds.
        timeout_ms: i32, 0..;
    }

    /// Partitions of a topic.
    pub struct DeleteRecordsTopic {
        /// The topic name.
        name: Text, 0..;
        /// Each partition.
        partitions: Vec<DeleteRecordsPartition>, 0..;
    }

    /// New start of a partition.
    pub struct DeleteRecordsPartition {
        /// The partition.
        partition_index: i32, 0..;
        /// The first offset to keep; -1 for the high watermark.
        offset: i64, 0..;
    }

    /// The outcome for each partition.
    pub struct DeleteRecordsResponse {
        /// Time for which the client must pause, in milliseconds.
        throttle_time_ms: i32, 0..;
        /// Each topic of the request.
        topics: Vec<DeleteRecordsTopicResult>, 0..;
    }

    /// Outcomes of a topic.
    pub struct DeleteRecordsTopicResult {
        /// The topic name.
        name: Text, 0..;
        /// Each partition of the request.
        partitions: Vec<DeleteRecordsPartitionResult>, 0..;
    }

    /// Outcome of a partition.
    pub struct DeleteRecordsPartitionResult {
        /// The partition.
        partition_index: i32, 0..;
        /// The lowest log start among the partition's replicas, or -1 after an error.
        low_watermark: i64, 0..;
        /// The error, or 0.
        error_code: ErrorCode, 0..;
    }
}
