//! ListTransactions, key 66 (ListTransactionsRequest.json, ListTransactionsResponse.json).
//!
//! Introduced by KIP-664. Changes by version: 0 flexible; 1 by duration (KIP-994); 2 by pattern (KIP-1152). Fullbore's
//! own fields between brokers have tag 1000.

use crate::message::message;
use crate::{ErrorCode, Text};

message! {
    /// Filter of the transactions of this coordinator.
    pub struct ListTransactionsRequest {
        /// States of the transactions; none for all.
        state_filters: Vec<Text>, 0..;
        /// Producers of the transactions; none for all.
        producer_id_filters: Vec<i64>, 0..;
        /// Only transactions that have run for longer than this, in milliseconds; below 0 for all.
        duration_filter: i64, 1.., default -1;
        /// A regular expression that the whole transactional id matches; null or empty for all.
        transactional_id_pattern: Option<Text>, 2..;
        /// Fullbore's own: true if the response must name the served partitions of `__transaction_state`.
        names_served: bool, 0.., tag 1000;
    }

    /// The transactions.
    pub struct ListTransactionsResponse {
        /// Time for which the client must pause, in milliseconds.
        throttle_time_ms: i32, 0..;
        /// The error, or 0.
        error_code: ErrorCode, 0..;
        /// The requested states that do not exist.
        unknown_state_filters: Vec<Text>, 0..;
        /// Each transactional id.
        transaction_states: Vec<TransactionState>, 0..;
        /// Fullbore's own: the partitions of `__transaction_state` whose ids were all examined.
        served: Vec<ServedPartition>, 0.., tag 1000;
    }

    /// A partition of `__transaction_state` that a broker coordinates.
    pub struct ServedPartition {
        /// The partition.
        partition_index: i32, 0..;
        /// The leader epoch in which the broker coordinates it.
        leader_epoch: i32, 0..;
    }

    /// A transactional id.
    pub struct TransactionState {
        /// The id.
        transactional_id: Text, 0..;
        /// The producer id.
        producer_id: i64, 0..;
        /// State of the id's transaction.
        transaction_state: Text, 0..;
    }
}
