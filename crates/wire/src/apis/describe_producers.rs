//! DescribeProducers, key 61 (DescribeProducersRequest.json, DescribeProducersResponse.json).
//!
//! Introduced by KIP-664.

use crate::message::message;
use crate::{ErrorCode, Text};

message! {
    /// Partitions whose producers are wanted.
    pub struct DescribeProducersRequest {
        /// Each topic.
        topics: Vec<TopicRequest>, 0..;
    }

    /// Partitions of a topic.
    pub struct TopicRequest {
        /// The topic name.
        name: Text, 0..;
        /// The partitions.
        partition_indexes: Vec<i32>, 0..;
    }

    /// The producers that the partitions' leader remembers.
    pub struct DescribeProducersResponse {
        /// Time for which the client must pause, in milliseconds.
        throttle_time_ms: i32, 0..;
        /// Each topic of the request.
        topics: Vec<TopicResponse>, 0..;
    }

    /// Partitions of a topic.
    pub struct TopicResponse {
        /// The topic name.
        name: Text, 0..;
        /// Each partition.
        partitions: Vec<PartitionResponse>, 0..;
    }

    /// Producers of a partition.
    pub struct PartitionResponse {
        /// The partition.
        partition_index: i32, 0..;
        /// The error, or 0.
        error_code: ErrorCode, 0..;
        /// Error message, or null.
        error_message: Option<Text>, 0..;
        /// Each producer.
        active_producers: Vec<ProducerState>, 0..;
    }

    /// A producer.
    pub struct ProducerState {
        /// Id of the producer.
        producer_id: i64, 0..;
        /// Epoch of the producer.
        producer_epoch: i32, 0..;
        /// Sequence number of the producer's last record, or -1.
        last_sequence: i32, 0.., default -1;
        /// Timestamp of the producer's last batch, in milliseconds, or -1.
        last_timestamp: i64, 0.., default -1;
        /// Epoch of the coordinator that ended the producer's last transaction.
        coordinator_epoch: i32, 0..;
        /// First offset of the producer's open transaction, or -1.
        current_txn_start_offset: i64, 0.., default -1;
    }
}
