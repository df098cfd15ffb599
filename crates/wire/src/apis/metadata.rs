//! Metadata, key 3 (MetadataRequest.json, MetadataResponse.json).
//!
//! Changes by version: 1 racks, controller, null for all topics. 2 cluster id. 3 throttle time. 4 automatic creation. 5
//! offline replicas. 7 leader epoch. 8 authorized operations. 9 flexible. 10 topic ids. 11 without the cluster's
//! operations (KIP-700). 12 topics by id. 13 an error of the whole response.

use crate::message::message;
use crate::{ErrorCode, Text, Uuid};

message! {
    /// Topics whose partitions and leaders are wanted.
    pub struct MetadataRequest {
        /// Each topic. Null selects all topics, as does an empty list in version 0.
        topics: Option<Vec<MetadataRequestTopic>>, 0.., nullable 1.., default Some(Vec::new());
        /// True if the broker may create topics that do not exist.
        allow_auto_topic_creation: bool, 4.., default true;
        /// True to include the operations on the cluster that the client is allowed.
        include_cluster_authorized_operations: bool, 8..=10;
        /// True to include the operations on each topic that the client is allowed.
        include_topic_authorized_operations: bool, 8..;
    }

    /// A topic, by name or by id.
    pub struct MetadataRequestTopic {
        /// The topic id, or zeros.
        topic_id: Uuid, 10..;
        /// The topic name, or null.
        name: Option<Text>, 0.., nullable 10.., default Some(Text::default());
    }

    /// Brokers, topics, partitions and their leaders.
    pub struct MetadataResponse {
        /// Time for which the client must pause, in milliseconds.
        throttle_time_ms: i32, 3..;
        /// Each broker that is alive.
        brokers: Vec<MetadataResponseBroker>, 0..;
        /// The cluster's id, or null.
        cluster_id: Option<Text>, 2..;
        /// The controller, to which clients send changes of the cluster, or -1.
        controller_id: i32, 1.., default -1;
        /// Each topic.
        topics: Vec<MetadataResponseTopic>, 0..;
        /// Operations on the cluster that the client is allowed, one bit each; the smallest int32 if not requested.
        cluster_authorized_operations: i32, 8..=10, default i32::MIN;
        /// The error of the whole request, or 0.
        error_code: ErrorCode, 13..;
    }

    /// A broker.
    pub struct MetadataResponseBroker {
        /// The broker id.
        node_id: i32, 0..;
        /// Host of the broker.
        host: Text, 0..;
        /// Port of the broker.
        port: i32, 0..;
        /// Rack of the broker, or null.
        rack: Option<Text>, 1..;
    }

    /// A topic.
    pub struct MetadataResponseTopic {
        /// The error, or 0.
        error_code: ErrorCode, 0..;
        /// The topic name; null for an id that no topic has.
        name: Option<Text>, 0.., nullable 12.., default Some(Text::default());
        /// The topic id; zeros for a name that no topic has.
        topic_id: Uuid, 10..;
        /// True for a topic in which Kafka keeps its own state.
        is_internal: bool, 1..;
        /// Each partition.
        partitions: Vec<MetadataResponsePartition>, 0..;
        /// Operations on the topic that the client is allowed, one bit each; the smallest int32 if not requested.
        topic_authorized_operations: i32, 8.., default i32::MIN;
    }

    /// A partition.
    pub struct MetadataResponsePartition {
        /// The error, or 0.
        error_code: ErrorCode, 0..;
        /// The partition.
        partition_index: i32, 0..;
        /// The leader's broker id, or -1.
        leader_id: i32, 0..;
        /// The leader's epoch, or -1.
        leader_epoch: i32, 7.., default -1;
        /// The brokers that hold the partition.
        replica_nodes: Vec<i32>, 0..;
        /// Replicas in sync with the leader.
        isr_nodes: Vec<i32>, 0..;
        /// Replicas whose brokers are not running.
        offline_replicas: Vec<i32>, 5..;
    }
}
