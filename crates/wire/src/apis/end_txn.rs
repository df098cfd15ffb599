//! EndTxn, key 26 (EndTxnRequest.json, EndTxnResponse.json).
//!
//! Changes by version: 2 PRODUCER_FENCED; 3 flexible; 4 TRANSACTION_ABORTABLE; 5 the id and epoch of the next
//! transaction (KIP-890).

use crate::message::message;
use crate::{ErrorCode, Text};

message! {
    /// The end of a transaction.
    pub struct EndTxnRequest {
        /// The transactional id.
        transactional_id: Text, 0..;
        /// The producer id.
        producer_id: i64, 0..;
        /// The producer epoch.
        producer_epoch: i16, 0..;
        /// True to commit, false to abort.
        committed: bool, 0..;
    }

    /// The outcome.
    pub struct EndTxnResponse {
        /// Time for which the client must pause, in milliseconds.
        throttle_time_ms: i32, 0..;
        /// The error, or 0.
        error_code: ErrorCode, 0..;
        /// The producer id of the next transaction, or -1.
        producer_id: i64, 5.., default -1;
        /// The producer epoch of the next transaction, or -1.
        producer_epoch: i16, 5.., default -1;
    }
}
