//! DescribeQuorum, key 55 (DescribeQuorumRequest.json, DescribeQuorumResponse.json).
//!
//! KIP-595; 1 when each replica last fetched (KIP-836); 2 error messages, directories, nodes (KIP-853).

use crate::message::message;
use crate::{ErrorCode, Text, Uuid};

message! {
    /// Partitions of the metadata log whose replicas are wanted.
    pub struct DescribeQuorumRequest {
        /// Each topic; Kafka's tools send `__cluster_metadata`.
        topics: Vec<TopicRequest>, 0..;
    }

    /// Partitions of a topic (Kafka's `TopicData`).
    pub struct TopicRequest {
        /// The topic name.
        topic_name: Text, 0..;
        /// Each partition.
        partitions: Vec<PartitionRequest>, 0..;
    }

    /// A partition (Kafka's `PartitionData`).
    pub struct PartitionRequest {
        /// The partition.
        partition_index: i32, 0..;
    }

    /// The quorum.
    pub struct DescribeQuorumResponse {
        /// The error, or 0.
        error_code: ErrorCode, 0..;
        /// Error message, or null.
        error_message: Option<Text>, 2..;
        /// Each topic of the request.
        topics: Vec<TopicData>, 0..;
        /// Endpoints of the nodes of the quorum.
        nodes: Vec<Node>, 2..;
    }

    /// Partitions of a topic.
    pub struct TopicData {
        /// The topic name.
        topic_name: Text, 0..;
        /// Each partition.
        partitions: Vec<PartitionData>, 0..;
    }

    /// Replicas of a partition.
    pub struct PartitionData {
        /// The partition.
        partition_index: i32, 0..;
        /// The error, or 0.
        error_code: ErrorCode, 0..;
        /// Error message, or null.
        error_message: Option<Text>, 2..;
        /// The leader, or -1.
        leader_id: i32, 0..;
        /// Epoch of the leader.
        leader_epoch: i32, 0..;
        /// The offset up to which a majority has the log.
        high_watermark: i64, 0..;
        /// The replicas with a vote.
        current_voters: Vec<ReplicaState>, 0..;
        /// The replicas without a vote.
        observers: Vec<ReplicaState>, 0..;
    }

    /// A replica.
    pub struct ReplicaState {
        /// Node id of the replica.
        replica_id: i32, 0..;
        /// Id of the replica's metadata directory.
        replica_directory_id: Uuid, 2..;
        /// End of the replica's log, or -1.
        log_end_offset: i64, 0..;
        /// Time of the last fetch, in milliseconds by the leader's clock; -1 for the leader.
        last_fetch_timestamp: i64, 1.., default -1;
        /// Time at which the replica last fetched up to the log end, in milliseconds by the leader's clock; the present
        /// time for the leader, -1 if unknown.
        last_caught_up_timestamp: i64, 1.., default -1;
    }

    /// A node of the quorum.
    pub struct Node {
        /// Id of the node.
        node_id: i32, 2..;
        /// Endpoints of the node.
        listeners: Vec<Listener>, 2..;
    }

    /// An address of a node.
    pub struct Listener {
        /// The listener's name.
        name: Text, 2..;
        /// The host.
        host: Text, 2..;
        /// The port.
        port: u16, 2..;
    }
}
