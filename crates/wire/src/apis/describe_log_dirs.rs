//! DescribeLogDirs, key 35 (DescribeLogDirsRequest.json, DescribeLogDirsResponse.json).
//!
//! Introduced by KIP-113. Changes by version: 2 flexible; 3 an error for the whole response; 4 the volume's size
//! (KIP-827); 5 cordoned directories (KIP-1066). Fullbore's own fields are tagged from 1000 on, as those of Produce; a
//! client that does not know a tag skips it.

use crate::message::message;
use crate::{ErrorCode, Text};

message! {
    /// Partitions to look for in the broker's log directories.
    pub struct DescribeLogDirsRequest {
        /// Each topic, or null for all.
        topics: Option<Vec<DescribableLogDirTopic>>, 0..;
    }

    /// Partitions of a topic.
    pub struct DescribableLogDirTopic {
        /// The topic name.
        topic: Text, 0..;
        /// The partitions.
        partitions: Vec<i32>, 0..;
    }

    /// The log directories.
    pub struct DescribeLogDirsResponse {
        /// Time for which the client must pause, in milliseconds.
        throttle_time_ms: i32, 0..;
        /// The error, or 0.
        error_code: ErrorCode, 3..;
        /// Each directory.
        results: Vec<DescribeLogDirsResult>, 0..;
    }

    /// A directory.
    pub struct DescribeLogDirsResult {
        /// The error, or 0; KAFKA_STORAGE_ERROR when the directory is offline.
        error_code: ErrorCode, 0..;
        /// Absolute path of the directory.
        log_dir: Text, 0..;
        /// Each topic with a log in the directory.
        topics: Vec<DescribeLogDirsTopic>, 0..;
        /// Size of the directory's volume, in bytes, or -1.
        total_bytes: i64, 4.., default -1;
        /// Free bytes of the volume, or -1.
        usable_bytes: i64, 4.., default -1;
        /// True if the directory takes no new partitions.
        is_cordoned: bool, 5..;
    }

    /// Partitions of a topic.
    pub struct DescribeLogDirsTopic {
        /// The topic name.
        name: Text, 0..;
        /// Each partition.
        partitions: Vec<DescribeLogDirsPartition>, 0..;
    }

    /// Log of a partition.
    pub struct DescribeLogDirsPartition {
        /// The partition.
        partition_index: i32, 0..;
        /// Size of the log's segments, in bytes.
        partition_size: i64, 0..;
        /// Lag of the log's end behind the high watermark; of a future log, behind the log that it replaces.
        offset_lag: i64, 0..;
        /// True for a future log, which replaces the log of another directory once it has caught up.
        is_future_key: bool, 0..;
        /// Fullbore's own: number of files beside the log that have the records after a hole, which a power loss has
        /// left in the log. These files are no segments of the log.
        set_aside_files: i64, 2.., tag 1000;
        /// Fullbore's own: size of the files in `set_aside_files`, in bytes.
        set_aside_bytes: i64, 2.., tag 1001;
        /// Fullbore's own: true if the log is damaged, and neither read nor written until it is repaired.
        is_refused: bool, 2.., tag 1002;
    }
}
