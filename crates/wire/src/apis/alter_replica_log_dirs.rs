//! AlterReplicaLogDirs, key 34 (AlterReplicaLogDirsRequest.json, AlterReplicaLogDirsResponse.json).
//!
//! Introduced by KIP-113. Flexible from version 2 on.

use crate::message::message;
use crate::{ErrorCode, Text};

message! {
    /// Directories, each with the partitions to move into it.
    pub struct AlterReplicaLogDirsRequest {
        /// Each directory.
        dirs: Vec<AlterReplicaLogDir>, 0..;
    }

    /// A directory.
    pub struct AlterReplicaLogDir {
        /// Absolute path of the directory.
        path: Text, 0..;
        /// Each topic.
        topics: Vec<AlterReplicaLogDirTopic>, 0..;
    }

    /// Partitions of a topic.
    pub struct AlterReplicaLogDirTopic {
        /// The topic name.
        name: Text, 0..;
        /// The partitions.
        partitions: Vec<i32>, 0..;
    }

    /// The outcome for each partition.
    pub struct AlterReplicaLogDirsResponse {
        /// Time for which the client must pause, in milliseconds.
        throttle_time_ms: i32, 0..;
        /// Each topic.
        results: Vec<AlterReplicaLogDirTopicResult>, 0..;
    }

    /// Outcomes of a topic.
    pub struct AlterReplicaLogDirTopicResult {
        /// The topic name.
        topic_name: Text, 0..;
        /// Each partition.
        partitions: Vec<AlterReplicaLogDirPartitionResult>, 0..;
    }

    /// Outcome of a partition.
    pub struct AlterReplicaLogDirPartitionResult {
        /// The partition.
        partition_index: i32, 0..;
        /// The error, or 0.
        error_code: ErrorCode, 0..;
    }
}
