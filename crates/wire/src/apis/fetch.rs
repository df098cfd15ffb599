//! Fetch, key 1 (FetchRequest.json, FetchResponse.json).
//!
//! Changes by version: 4 isolation level and aborted transactions. 5 log start offset. 7 fetch sessions (KIP-227). 9
//! leader epoch (KIP-320). 10 zstd. 11 rack and preferred replica (KIP-392). 12 flexible, diverging epoch (KIP-595). 13
//! topic ids. 14 tiered storage errors. 15 replica epoch (KIP-903). 16 node endpoints (KIP-951). 17 directory id
//! (KIP-853). 18 the follower's high watermark (KIP-1166), and Fullbore's own fields between brokers, whose tags begin
//! at 1000.

use super::produce::{LeaderIdAndEpoch, NodeEndpoint};
use crate::codec::TagWriter;
use crate::message::{message, within};
use crate::{Codec, EncodeError, ErrorCode, Records, Text, Uuid, Version, Writer};

message! {
    /// Batches wanted from any number of partitions.
    pub struct FetchRequest {
        /// Id of the follower's cluster, or null.
        cluster_id: Option<Text>, 12.., tag 0;
        /// The follower's broker id, or -1 for a consumer.
        replica_id: i32, 0..=14, default -1;
        /// The follower, from version 15 on.
        replica_state: ReplicaState, 15.., tag 1;
        /// Time that the broker may wait for `min_bytes`, in milliseconds.
        max_wait_ms: i32, 0..;
        /// Minimum number of bytes for a response before `max_wait_ms` has passed.
        min_bytes: i32, 0..;
        /// Bytes that the response should not exceed, except for a first batch larger than that (KIP-74).
        max_bytes: i32, 3.., default i32::MAX;
        /// Isolation level: 0 for all records, 1 for committed ones only.
        isolation_level: i8, 4..;
        /// The fetch session, or 0.
        session_id: i32, 7..;
        /// Number of the request in the session; 0 opens a session, -1 closes it or does without one.
        session_epoch: i32, 7.., default -1;
        /// Each topic to fetch from.
        topics: Vec<FetchTopic>, 0..;
        /// Partitions that leave the session.
        forgotten_topics_data: Vec<ForgottenTopic>, 7..;
        /// The consumer's rack, or empty.
        rack_id: Text, 11..;
        /// Fullbore's own, between brokers: the random id of the follower's process, as registered in the metadata. The
        /// leader refuses any other id, so that clients cannot act as followers.
        process: Uuid, 18.., tag 1000;
        /// Fullbore's own, between brokers: the number of responses of the session that the follower has processed.
        carried_out: i64, 18.., tag 1001;
        /// Fullbore's own, of consumers: each response of the session continues where the previous one ended, so that
        /// several fetches may be in flight. Read only in the request that opens the session.
        read_ahead: bool, 18.., tag 1002;
    }

    /// The follower that fetches.
    pub struct ReplicaState {
        /// Broker id of the follower, or -1 for a consumer.
        replica_id: i32, 15.., default -1;
        /// Broker epoch of the follower, or -1.
        replica_epoch: i64, 15.., default -1;
    }

    /// Partitions of a topic.
    pub struct FetchTopic {
        /// The topic name.
        topic: Text, 0..=12;
        /// The topic id.
        topic_id: Uuid, 13..;
        /// Each partition to fetch.
        partitions: Vec<FetchPartition>, 0..;
    }

    /// A partition to fetch.
    pub struct FetchPartition {
        /// The partition.
        partition: i32, 0..;
        /// The leader epoch the client knows, or -1.
        current_leader_epoch: i32, 9.., default -1;
        /// The first offset wanted.
        fetch_offset: i64, 0..;
        /// Epoch of the last record that the follower or the consumer has, or -1.
        last_fetched_epoch: i32, 12.., default -1;
        /// The first offset of the follower's log, or -1.
        log_start_offset: i64, 5.., default -1;
        /// Bytes of this partition the response should not exceed.
        partition_max_bytes: i32, 0..;
        /// The directory of the follower's replica.
        replica_directory_id: Uuid, 17.., tag 0;
        /// High watermark that the follower knows: -1 if it knows none, the maximum if it sends none.
        high_watermark: i64, 18.., default i64::MAX, tag 1;
        /// Fullbore's own: the leader continues where its last response in the session ended. `fetch_offset` is then
        /// only the end of a follower's log, and has no meaning from a consumer.
        read_on: bool, 18.., tag 1000;
    }

    /// Partitions of a topic that leave the session.
    pub struct ForgottenTopic {
        /// The topic name.
        topic: Text, 7..=12;
        /// The topic id.
        topic_id: Uuid, 13..;
        /// The partitions.
        partitions: Vec<i32>, 7..;
    }

    /// Batches and offsets of the requested partitions.
    pub struct FetchResponse {
        /// Time for which the client must pause, in milliseconds.
        throttle_time_ms: i32, 1..;
        /// The error of the whole request, or 0.
        error_code: ErrorCode, 7..;
        /// The fetch session, or 0.
        session_id: i32, 7..;
        /// Each topic; in a session only topics with changes.
        responses: Vec<FetchableTopicResponse>, 0..;
        /// Endpoints of the current leaders named in the partitions.
        node_endpoints: Vec<NodeEndpoint>, 16.., tag 0;
    }

    /// Partitions of a topic.
    pub struct FetchableTopicResponse {
        /// The topic name.
        topic: Text, 0..=12;
        /// The topic id.
        topic_id: Uuid, 13..;
        /// Each partition.
        partitions: Vec<PartitionData>, 0..;
    }

    /// Records and offsets of a partition.
    pub struct PartitionData {
        /// The partition.
        partition_index: i32, 0..;
        /// The error, or 0.
        error_code: ErrorCode, 0..;
        /// The high watermark.
        high_watermark: i64, 0..;
        /// The last stable offset, below which every transaction is decided.
        last_stable_offset: i64, 4.., default -1;
        /// The first offset of the log.
        log_start_offset: i64, 5.., default -1;
        /// Epoch and end offset at which the records of the follower or the consumer diverge from the leader's log.
        diverging_epoch: EpochEndOffset, 12.., tag 0;
        /// The leader the client should use from now on.
        current_leader: LeaderIdAndEpoch, 12.., tag 1;
        /// The snapshot to fetch instead of the log.
        snapshot_id: SnapshotId, 12.., tag 2;
        /// Transactions among the records that were aborted, or null.
        aborted_transactions: Option<Vec<AbortedTransaction>>, 4..;
        /// The replica the consumer should fetch from, or -1.
        preferred_read_replica: i32, 11.., default -1;
        /// Record batches; the last may be cut short.
        records: Option<Records>, 0..;
        /// Fullbore's own, between brokers: the leader epoch of the response, or -1.
        in_epoch: i32, 18.., default -1, tag 1000;
        /// Fullbore's own, between brokers: the session epoch of the last request that fetched the partition from the
        /// end of the follower's log, that is without `read_on`; or -1.
        requested_in: i32, 18.., default -1, tag 1001;
        /// Fullbore's own, between brokers and in sessions with `read_ahead`: the offset that was read from, or -1.
        from_offset: i64, 18.., default -1, tag 1002;
        /// Fullbore's own, between brokers: the end of the leader's log, or -1.
        log_end_offset: i64, 18.., default -1, tag 1003;
        /// Fullbore's own, in sessions with `read_ahead`: the offset where the next response begins, or -1. In a
        /// compacted log there may be a hole before that offset. With an error: the offset after records that are lost
        /// for good.
        next_offset: i64, 18.., default -1, tag 1004;
    }

    /// The last offset of an epoch.
    pub struct EpochEndOffset {
        /// The epoch, or -1.
        epoch: i32, 12.., default -1;
        /// Offset after the epoch's last record, or -1.
        end_offset: i64, 12.., default -1;
    }

    /// A snapshot of a metadata log.
    pub struct SnapshotId {
        /// Offset before which the snapshot ends, or -1.
        end_offset: i64, 0.., default -1;
        /// Epoch of the snapshot's last record, or -1.
        epoch: i32, 0.., default -1;
    }

    /// An aborted transaction.
    pub struct AbortedTransaction {
        /// The producer.
        producer_id: i64, 4..;
        /// The transaction's first offset in this partition.
        first_offset: i64, 4..;
    }
}

impl FetchResponse {
    /// Writes the part of a response before its topics. The caller then writes `count` topics one by one, so that a
    /// response of a million partitions need not be in memory as a whole. The topics in `self` are not written.
    /// [`FetchResponse::encode_end`] ends the response.
    ///
    /// # Errors
    /// Returns [`EncodeError`] if the response cannot be written in this version.
    pub fn encode_start(&self, count: usize, w: &mut Writer, v: Version) -> Result<(), EncodeError> {
        if within(1.., v.number) {
            self.throttle_time_ms.encode(w, v)?;
        }
        if within(7.., v.number) {
            self.error_code.encode(w, v)?;
            self.session_id.encode(w, v)?;
        }
        w.put_length(Some(count), v, false)
    }

    /// Writes the part of a response after its topics.
    ///
    /// # Errors
    /// Returns [`EncodeError`] if the response cannot be written in this version.
    pub fn encode_end(&self, w: &mut Writer, v: Version) -> Result<(), EncodeError> {
        if !v.flexible {
            return Ok(());
        }
        let tags = TagWriter::new();
        let tags = match within(16.., v.number) && !self.node_endpoints.is_empty() {
            true => tags.put(0, &self.node_endpoints, v)?,
            false => tags,
        };
        tags.finish(w, &self.tagged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::ApiKey;

    #[test]
    fn response_written_by_topic_is_the_response_as_a_whole() {
        let topic = |partitions: i32| FetchableTopicResponse {
            topic: Text::from_static("t"),
            topic_id: Uuid([7; 16]),
            partitions: (0..partitions)
                .map(|partition_index| PartitionData {
                    partition_index,
                    records: Some(Records::default()),
                    ..Default::default()
                })
                .collect(),
            ..Default::default()
        };
        let of = |topics: Vec<FetchableTopicResponse>, nodes: usize| FetchResponse {
            throttle_time_ms: 1,
            error_code: ErrorCode::UNKNOWN_TOPIC_ID,
            session_id: 7,
            responses: topics,
            node_endpoints: vec![NodeEndpoint::default(); nodes],
            ..Default::default()
        };
        for response in [of(vec![], 0), of(vec![topic(1), topic(200)], 2), of(vec![topic(0); 130], 1)] {
            for number in ApiKey::Fetch.versions() {
                let v = ApiKey::Fetch.version(number).expect("a version of Fetch");
                let (mut whole, mut parts) = (Writer::with_capacity(0), Writer::with_capacity(0));
                response.encode(&mut whole, v).expect("encoded");
                response.encode_start(response.responses.len(), &mut parts, v).expect("encoded");
                response.responses.iter().try_for_each(|topic| topic.encode(&mut parts, v)).expect("encoded");
                response.encode_end(&mut parts, v).expect("encoded");
                assert_eq!(parts.into_bytes(), whole.into_bytes(), "version {number}");
            }
        }
    }
}
