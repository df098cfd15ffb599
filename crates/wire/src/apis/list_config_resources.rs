//! ListConfigResources, key 74 (ListConfigResourcesRequest.json, ListConfigResourcesResponse.json).
//!
//! Changes by version: 0 client metrics only (KIP-714, as ListClientMetricsResources); 1 every type (KIP-1142).

use crate::message::message;
use crate::{ErrorCode, Text};

message! {
    /// Types of resources with configurations to list.
    pub struct ListConfigResourcesRequest {
        /// The types: 2 topics, 4 brokers, 8 broker loggers, 16 client metrics, 32 groups; empty for all.
        resource_types: Vec<i8>, 1..;
    }

    /// The resources.
    pub struct ListConfigResourcesResponse {
        /// Time for which the client must pause, in milliseconds.
        throttle_time_ms: i32, 0..;
        /// The error, or 0.
        error_code: ErrorCode, 0..;
        /// Each resource.
        config_resources: Vec<ConfigResource>, 0..;
    }

    /// A resource.
    pub struct ConfigResource {
        /// Name of the resource.
        resource_name: Text, 0..;
        /// Type of the resource; client metrics before version 1.
        resource_type: i8, 1.., default 16;
    }
}
