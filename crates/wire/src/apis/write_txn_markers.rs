//! WriteTxnMarkers, key 27 (WriteTxnMarkersRequest.json, WriteTxnMarkersResponse.json).
//!
//! Changes by version: 1 flexible; 2 transaction version (KIP-1228).

use crate::message::message;
use crate::{ErrorCode, Text};

message! {
    /// Markers from a transaction coordinator for partitions of this broker.
    pub struct WriteTxnMarkersRequest {
        /// Each transaction.
        markers: Vec<WritableTxnMarker>, 0..;
    }

    /// Marker of a transaction.
    pub struct WritableTxnMarker {
        /// The producer id.
        producer_id: i64, 0..;
        /// The producer epoch.
        producer_epoch: i16, 0..;
        /// True for a commit, false for an abort.
        transaction_result: bool, 0..;
        /// Each topic.
        topics: Vec<WritableTxnMarkerTopic>, 0..;
        /// The epoch of the coordinator's partition of `__transaction_state`.
        coordinator_epoch: i32, 0..;
        /// The transaction's version: 2 if its marker has an epoch of its own (KIP-890), below 2 if it has the records'
        /// epoch.
        transaction_version: i8, 2..;
    }

    /// Partitions of a topic.
    pub struct WritableTxnMarkerTopic {
        /// The topic name.
        name: Text, 0..;
        /// The partitions.
        partition_indexes: Vec<i32>, 0..;
    }

    /// The outcome for each partition.
    pub struct WriteTxnMarkersResponse {
        /// Each transaction of the request.
        markers: Vec<WritableTxnMarkerResult>, 0..;
    }

    /// Outcomes of a transaction.
    pub struct WritableTxnMarkerResult {
        /// The producer id.
        producer_id: i64, 0..;
        /// Each topic.
        topics: Vec<WritableTxnMarkerTopicResult>, 0..;
    }

    /// Outcomes of a topic.
    pub struct WritableTxnMarkerTopicResult {
        /// The topic name.
        name: Text, 0..;
        /// Each partition.
        partitions: Vec<WritableTxnMarkerPartitionResult>, 0..;
    }

    /// Outcome of a partition.
    pub struct WritableTxnMarkerPartitionResult {
        /// The partition.
        partition_index: i32, 0..;
        /// The error, or 0.
        error_code: ErrorCode, 0..;
    }
}
