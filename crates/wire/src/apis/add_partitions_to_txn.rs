//! AddPartitionsToTxn, key 24 (AddPartitionsToTxnRequest.json, AddPartitionsToTxnResponse.json).
//!
//! Changes by version: 2 PRODUCER_FENCED; 3 flexible; 4 several transactions and verification, which only brokers
//! request; 5 TRANSACTION_ABORTABLE (KIP-890). Fullbore's own field between brokers has tag 1000.

use crate::message::message;
use crate::{ErrorCode, Text};

message! {
    /// Partitions that join open transactions, or that are looked up in them.
    pub struct AddPartitionsToTxnRequest {
        /// Each transaction.
        transactions: Vec<AddPartitionsToTxnTransaction>, 4..;
        /// The transactional id.
        v3_and_below_transactional_id: Text, 0..=3;
        /// The producer id.
        v3_and_below_producer_id: i64, 0..=3;
        /// The producer epoch.
        v3_and_below_producer_epoch: i16, 0..=3;
        /// Each topic.
        v3_and_below_topics: Vec<AddPartitionsToTxnTopic>, 0..=3;
    }

    /// A transaction.
    pub struct AddPartitionsToTxnTransaction {
        /// The transactional id.
        transactional_id: Text, 4..;
        /// The producer id.
        producer_id: i64, 4..;
        /// The producer epoch.
        producer_epoch: i16, 4..;
        /// True if partitions are looked up in the transaction instead of added to it.
        verify_only: bool, 4..;
        /// Each topic.
        topics: Vec<AddPartitionsToTxnTopic>, 4..;
    }

    /// Partitions of a topic.
    pub struct AddPartitionsToTxnTopic {
        /// The topic name.
        name: Text, 0..;
        /// The partitions.
        partitions: Vec<i32>, 0..;
    }

    /// The outcome for each partition.
    pub struct AddPartitionsToTxnResponse {
        /// Time for which the client must pause, in milliseconds.
        throttle_time_ms: i32, 0..;
        /// The error of the whole request, or 0.
        error_code: ErrorCode, 4..;
        /// Each transaction of the request.
        results_by_transaction: Vec<AddPartitionsToTxnResult>, 4..;
        /// Each topic of the request.
        results_by_topic_v3_and_below: Vec<AddPartitionsToTxnTopicResult>, 0..=3;
    }

    /// Outcomes of a transaction.
    pub struct AddPartitionsToTxnResult {
        /// The transactional id.
        transactional_id: Text, 4..;
        /// Each topic.
        topic_results: Vec<AddPartitionsToTxnTopicResult>, 4..;
        /// Fullbore's own: the epoch of the coordinator, read before the request was handled, or -1.
        coordinator_epoch: i32, 4.., default -1, tag 1000;
    }

    /// Outcomes of a topic.
    pub struct AddPartitionsToTxnTopicResult {
        /// The topic name.
        name: Text, 0..;
        /// Each partition.
        results_by_partition: Vec<AddPartitionsToTxnPartitionResult>, 0..;
    }

    /// Outcome of a partition.
    pub struct AddPartitionsToTxnPartitionResult {
        /// The partition.
        partition_index: i32, 0..;
        /// The error, or 0.
        partition_error_code: ErrorCode, 0..;
    }
}
