//! Produce, key 0 (ProduceRequest.json, ProduceResponse.json).
//!
//! Changes by version: 3 record batches of magic 2. 5 log start offset. 8 record errors. 9 flexible. 10 current leader
//! (KIP-951). 12 transactions v2 (KIP-890). 13 topic ids. 14 the number of batches that a producer may run ahead
//! (KIP-1269, not yet released).
//!
//! This is the one place that knows the tags of version 14. KIP-1269's two revisions have a tag for the whole broker
//! and one for each topic. Fullbore's own tags are for batches of one partition over several connections. They begin at
//! 1000, so that they do not collide with later tags of Kafka. A client skips a tag that it does not know.

use crate::message::message;
use crate::{ErrorCode, Records, Text, Uuid};

/// Batches that a broker remembers per producer and partition if its response has no number (Kafka's
/// `ProducerStateEntry.NUM_BATCHES_TO_RETAIN`).
pub const BATCHES_TO_RETAIN: i32 = 5;

message! {
    /// Batches for any number of partitions.
    pub struct ProduceRequest {
        /// The transactional id, or null.
        transactional_id: Option<Text>, 3..;
        /// Replicas that must have the records: 0, 1, or -1 for all in sync.
        acks: i16, 3..;
        /// Time that the broker may wait for these replicas, in milliseconds.
        timeout_ms: i32, 3..;
        /// Each topic to produce to.
        topic_data: Vec<TopicProduceData>, 3..;
        /// Fullbore's own: the batches of a partition are sent over several connections. A batch whose sequence is
        /// ahead of the next one waits for the batches before it. A batch of an unknown producer with a sequence above
        /// 0 counts as ahead. Clients may set this only if the broker's responses have `reorder_batches`. They need not
        /// set it while all earlier batches are acknowledged.
        reorder: bool, 14.., tag 1000;
        /// Fullbore's own: these are the last batches of their transaction in their partitions, as far as the producer
        /// knows. The producer waits for them before it commits.
        ends_transaction: bool, 14.., tag 1001;
    }

    /// Partitions of a topic.
    pub struct TopicProduceData {
        /// The topic name.
        name: Text, 3..=12;
        /// The topic id.
        topic_id: Uuid, 13..;
        /// Each partition to produce to.
        partition_data: Vec<PartitionProduceData>, 3..;
    }

    /// Records of a partition.
    pub struct PartitionProduceData {
        /// The partition.
        index: i32, 3..;
        /// Record batches.
        records: Option<Records>, 3..;
    }

    /// The outcome for each partition of the request.
    pub struct ProduceResponse {
        /// Each topic of the request.
        responses: Vec<TopicProduceResponse>, 3..;
        /// Time for which the client must pause, in milliseconds.
        throttle_time_ms: i32, 3..;
        /// Endpoints of the current leaders named in the partitions.
        node_endpoints: Vec<NodeEndpoint>, 10.., tag 0;
        /// KIP-1269, first revision (`max.idempotence.batches.to.retain`): the batches that this broker remembers per
        /// producer and partition. See [`ProduceResponse::batches_to_retain`].
        max_idempotence_batches_to_retain: i32, 14.., default BATCHES_TO_RETAIN, tag 1;
        /// Fullbore's own: maximum number of out-of-order batches per producer and partition that this broker holds
        /// until earlier batches arrive, if the request has `reorder`; 0 if the broker holds none.
        reorder_batches: i32, 14.., tag 1000;
    }

    /// Outcomes of a topic.
    pub struct TopicProduceResponse {
        /// The topic name.
        name: Text, 3..=12;
        /// The topic id.
        topic_id: Uuid, 13..;
        /// Each partition of the request.
        partition_responses: Vec<PartitionProduceResponse>, 3..;
        /// KIP-1269, second revision (`producer.state.batches.to.retain`): the batches that this broker remembers for
        /// this topic, or -1 if the broker sends no number.
        producer_state_batches_to_retain: i32, 14.., default -1, tag 0;
    }

    /// Outcome of a partition.
    pub struct PartitionProduceResponse {
        /// The partition.
        index: i32, 3..;
        /// The error, or 0.
        error_code: ErrorCode, 3..;
        /// The offset of the first record.
        base_offset: i64, 3.., default -1;
        /// The broker's time of the append in milliseconds when the topic uses LogAppendTime, else -1.
        log_append_time_ms: i64, 3.., default -1;
        /// The first offset of the log.
        log_start_offset: i64, 5.., default -1;
        /// Records that caused the refusal of the batch.
        record_errors: Vec<BatchIndexAndErrorMessage>, 8..;
        /// Error message, or null.
        error_message: Option<Text>, 8..;
        /// The leader the client should use from now on.
        current_leader: LeaderIdAndEpoch, 10.., tag 0;
    }

    /// A record that caused the refusal of its batch.
    pub struct BatchIndexAndErrorMessage {
        /// The record's index in the batch.
        batch_index: i32, 8..;
        /// Reason, or null.
        batch_index_error_message: Option<Text>, 8..;
    }

    /// A partition's leader.
    pub struct LeaderIdAndEpoch {
        /// The leader's broker id, or -1.
        leader_id: i32, 0.., default -1;
        /// The leader's epoch, or -1.
        leader_epoch: i32, 0.., default -1;
    }

    /// Endpoint of a broker.
    pub struct NodeEndpoint {
        /// The broker id.
        node_id: i32, 0..;
        /// Host of the broker.
        host: Text, 0..;
        /// Port of the broker.
        port: i32, 0..;
        /// Rack of the broker, or null.
        rack: Option<Text>, 0..;
    }
}

impl ProduceResponse {
    /// Returns the number of batches that the broker remembers per producer and partition of `topic`, as in the
    /// response, unchecked. The topic's own value takes precedence over the broker's.
    pub fn batches_to_retain(&self, topic: &TopicProduceResponse) -> i32 {
        match topic.producer_state_batches_to_retain {
            -1 => self.max_idempotence_batches_to_retain,
            of_topic => of_topic,
        }
    }
}
