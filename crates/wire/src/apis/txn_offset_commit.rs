//! TxnOffsetCommit, key 28 (TxnOffsetCommitRequest.json, TxnOffsetCommitResponse.json).
//!
//! Changes by version: 2 leader epoch (KIP-320); 3 flexible, the member (KIP-447); 4 TRANSACTION_ABORTABLE; 5 the group
//! joins the transaction without AddOffsetsToTxn (KIP-890).

use crate::message::message;
use crate::{ErrorCode, Text};

message! {
    /// Offsets that a group commits with a transaction.
    pub struct TxnOffsetCommitRequest {
        /// The transactional id.
        transactional_id: Text, 0..;
        /// The group.
        group_id: Text, 0..;
        /// The producer id.
        producer_id: i64, 0..;
        /// The producer epoch.
        producer_epoch: i16, 0..;
        /// The generation in a classic group, the member epoch in one of the consumer protocol; -1 from outside the
        /// group.
        generation_id: i32, 3.., default -1;
        /// The member's id, or empty.
        member_id: Text, 3..;
        /// Static name of the member, or null.
        group_instance_id: Option<Text>, 3..;
        /// Each topic.
        topics: Vec<TxnOffsetCommitRequestTopic>, 0..;
    }

    /// Partitions of a topic.
    pub struct TxnOffsetCommitRequestTopic {
        /// The topic name.
        name: Text, 0..;
        /// Each partition.
        partitions: Vec<TxnOffsetCommitRequestPartition>, 0..;
    }

    /// Offset of a partition.
    pub struct TxnOffsetCommitRequestPartition {
        /// The partition.
        partition_index: i32, 0..;
        /// The offset of the record to be read next.
        committed_offset: i64, 0..;
        /// Leader epoch of the record before that offset, or -1.
        committed_leader_epoch: i32, 2.., default -1;
        /// Metadata that the client keeps beside the offset, or null.
        committed_metadata: Option<Text>, 0..;
    }

    /// The outcome for each partition.
    pub struct TxnOffsetCommitResponse {
        /// Time for which the client must pause, in milliseconds.
        throttle_time_ms: i32, 0..;
        /// Each topic of the request.
        topics: Vec<TxnOffsetCommitResponseTopic>, 0..;
    }

    /// Outcomes of a topic.
    pub struct TxnOffsetCommitResponseTopic {
        /// The topic name.
        name: Text, 0..;
        /// Each partition of the request.
        partitions: Vec<TxnOffsetCommitResponsePartition>, 0..;
    }

    /// Outcome of a partition.
    pub struct TxnOffsetCommitResponsePartition {
        /// The partition.
        partition_index: i32, 0..;
        /// The error, or 0.
        error_code: ErrorCode, 0..;
    }
}
