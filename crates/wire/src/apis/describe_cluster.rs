//! DescribeCluster, key 60 (DescribeClusterRequest.json, DescribeClusterResponse.json).
//!
//! 0 flexible; 1 endpoint types (KIP-919); 2 fenced brokers (KIP-1073).

use crate::message::message;
use crate::{ErrorCode, Text};

message! {
    /// The cluster's brokers are wanted.
    pub struct DescribeClusterRequest {
        /// True if to say what the client may do with the cluster.
        include_cluster_authorized_operations: bool, 0..;
        /// Whose endpoints are wanted: 1 brokers, 2 controllers.
        endpoint_type: i8, 1.., default 1;
        /// True if fenced brokers count.
        include_fenced_brokers: bool, 2..;
    }

    /// The cluster's brokers.
    pub struct DescribeClusterResponse {
        /// How long the client should pause, in milliseconds.
        throttle_time_ms: i32, 0..;
        /// The error, or 0.
        error_code: ErrorCode, 0..;
        /// Why, in words, or null.
        error_message: Option<Text>, 0..;
        /// Whose endpoints these are: 1 brokers, 2 controllers.
        endpoint_type: i8, 1.., default 1;
        /// The cluster's id.
        cluster_id: Text, 0..;
        /// The broker that changes to the cluster go to, or -1.
        controller_id: i32, 0.., default -1;
        /// Each broker.
        brokers: Vec<DescribeClusterBroker>, 0..;
        /// What the client may do with the cluster, one bit an operation; the minimum when not asked for.
        cluster_authorized_operations: i32, 0.., default i32::MIN;
    }

    /// One broker.
    pub struct DescribeClusterBroker {
        /// The broker id.
        broker_id: i32, 0..;
        /// Its host.
        host: Text, 0..;
        /// Its port.
        port: i32, 0..;
        /// Its rack, or null.
        rack: Option<Text>, 0..;
        /// True if it is fenced.
        is_fenced: bool, 2..;
    }
}
