//! AddOffsetsToTxn, key 25 (AddOffsetsToTxnRequest.json, AddOffsetsToTxnResponse.json).
//!
//! Changes by version: 2 PRODUCER_FENCED; 3 flexible; 4 TRANSACTION_ABORTABLE (KIP-890).

use crate::message::message;
use crate::{ErrorCode, Text};

message! {
    /// A group whose offsets join an open transaction.
    pub struct AddOffsetsToTxnRequest {
        /// The transactional id.
        transactional_id: Text, 0..;
        /// The producer id.
        producer_id: i64, 0..;
        /// The producer epoch.
        producer_epoch: i16, 0..;
        /// The group.
        group_id: Text, 0..;
    }

    /// The outcome.
    pub struct AddOffsetsToTxnResponse {
        /// Time for which the client must pause, in milliseconds.
        throttle_time_ms: i32, 0..;
        /// The error, or 0.
        error_code: ErrorCode, 0..;
    }
}
