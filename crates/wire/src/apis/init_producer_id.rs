//! InitProducerId, key 22 (InitProducerIdRequest.json, InitProducerIdResponse.json).
//!
//! Changes by version: 2 flexible; 3 the current id and epoch (KIP-360); 4 PRODUCER_FENCED; 5 TRANSACTION_ABORTABLE
//! (KIP-890); 6 two-phase commit (KIP-939; Kafka 4.3 does not offer it by default).

use crate::message::message;
use crate::{ErrorCode, Text};

message! {
    /// Request of a producer for its id and epoch.
    pub struct InitProducerIdRequest {
        /// The transactional id, or null.
        transactional_id: Option<Text>, 0..;
        /// Timeout of a transaction, in milliseconds.
        transaction_timeout_ms: i32, 0..;
        /// The id the producer has, or -1.
        producer_id: i64, 3.., default -1;
        /// The epoch the producer has, or -1.
        producer_epoch: i16, 3.., default -1;
        /// True if transactions are part of a two-phase commit.
        enable_2pc: bool, 6..;
        /// True if a prepared transaction continues instead of being aborted.
        keep_prepared_txn: bool, 6..;
    }

    /// The producer's id and epoch.
    pub struct InitProducerIdResponse {
        /// Time for which the client must pause, in milliseconds.
        throttle_time_ms: i32, 0..;
        /// The error, or 0.
        error_code: ErrorCode, 0..;
        /// The id, or -1.
        producer_id: i64, 0.., default -1;
        /// The epoch.
        producer_epoch: i16, 0..;
        /// The producer id of the transaction that continues, or -1.
        ongoing_txn_producer_id: i64, 6.., default -1;
        /// The producer epoch of the transaction that continues, or -1.
        ongoing_txn_producer_epoch: i16, 6.., default -1;
    }
}
