//! DescribeCluster, key 60 (DescribeClusterRequest.json, DescribeClusterResponse.json).
//!
//! Changes by version: 0 flexible; 1 endpoint types (KIP-919); 2 fenced brokers (KIP-1073).

use crate::message::message;
use crate::{ErrorCode, Text};

message! {
    /// Request for the cluster's brokers.
    pub struct DescribeClusterRequest {
        /// True to include the operations on the cluster that the client is allowed.
        include_cluster_authorized_operations: bool, 0..;
        /// Type of the endpoints wanted: 1 brokers, 2 controllers.
        endpoint_type: i8, 1.., default 1;
        /// True to include fenced brokers.
        include_fenced_brokers: bool, 2..;
    }

    /// The cluster's brokers.
    pub struct DescribeClusterResponse {
        /// Time for which the client must pause, in milliseconds.
        throttle_time_ms: i32, 0..;
        /// The error, or 0.
        error_code: ErrorCode, 0..;
        /// Error message, or null.
        error_message: Option<Text>, 0..;
        /// Type of these endpoints: 1 brokers, 2 controllers.
        endpoint_type: i8, 1.., default 1;
        /// The cluster's id.
        cluster_id: Text, 0..;
        /// The controller, to which clients send changes of the cluster, or -1.
        controller_id: i32, 0.., default -1;
        /// Each broker.
        brokers: Vec<DescribeClusterBroker>, 0..;
        /// Operations on the cluster that the client is allowed, one bit each; the smallest int32 if not requested.
        cluster_authorized_operations: i32, 0.., default i32::MIN;
    }

    /// A broker.
    pub struct DescribeClusterBroker {
        /// The broker id.
        broker_id: i32, 0..;
        /// Host of the broker.
        host: Text, 0..;
        /// Port of the broker.
        port: i32, 0..;
        /// Rack of the broker, or null.
        rack: Option<Text>, 0..;
        /// True if the broker is fenced.
        is_fenced: bool, 2..;
    }
}
