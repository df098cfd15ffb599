//! DescribeTransactions, key 65 (DescribeTransactionsRequest.json, DescribeTransactionsResponse.json).
//!
//! Introduced by KIP-664.

use crate::message::message;
use crate::{ErrorCode, Text};

message! {
    /// Transactional ids whose transactions are wanted.
    pub struct DescribeTransactionsRequest {
        /// The ids; an empty list selects none.
        transactional_ids: Vec<Text>, 0..;
    }

    /// The transactions.
    pub struct DescribeTransactionsResponse {
        /// Time for which the client must pause, in milliseconds.
        throttle_time_ms: i32, 0..;
        /// Each transactional id of the request.
        transaction_states: Vec<TransactionState>, 0..;
    }

    /// A transactional id.
    pub struct TransactionState {
        /// The error, or 0.
        error_code: ErrorCode, 0..;
        /// The id.
        transactional_id: Text, 0..;
        /// State of the id's transaction.
        transaction_state: Text, 0..;
        /// Timeout of the transaction, in milliseconds.
        transaction_timeout_ms: i32, 0..;
        /// Begin of the transaction, in milliseconds since 1970, or -1.
        transaction_start_time_ms: i64, 0..;
        /// The producer id.
        producer_id: i64, 0..;
        /// The producer epoch.
        producer_epoch: i16, 0..;
        /// Each topic of the transaction; once the transaction is decided, only topics that wait for a marker.
        topics: Vec<TopicData>, 0..;
    }

    /// Partitions of a topic.
    pub struct TopicData {
        /// The topic name.
        topic: Text, 0..;
        /// The partitions.
        partitions: Vec<i32>, 0..;
    }
}
