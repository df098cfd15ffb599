//! IncrementalAlterConfigs, key 44 (IncrementalAlterConfigsRequest.json, IncrementalAlterConfigsResponse.json).
//!
//! Introduced by KIP-339. Flexible from version 1 on.

use crate::message::message;
use crate::{ErrorCode, Text};

message! {
    /// Changes to the configurations of resources.
    pub struct IncrementalAlterConfigsRequest {
        /// Each resource.
        resources: Vec<AlterConfigsResource>, 0..;
        /// True to only check the request, and change nothing.
        validate_only: bool, 0..;
    }

    /// A resource.
    pub struct AlterConfigsResource {
        /// Type of the resource: 2 a topic, 4 a broker.
        resource_type: i8, 0..;
        /// The topic's name or the broker's id; empty for every broker.
        resource_name: Text, 0..;
        /// The changes.
        configs: Vec<AlterableConfig>, 0..;
    }

    /// A change.
    pub struct AlterableConfig {
        /// The configuration's name.
        name: Text, 0..;
        /// Operation: 0 set, 1 delete, 2 append to a list, 3 subtract from a list.
        config_operation: i8, 0..;
        /// The value; null to delete.
        value: Option<Text>, 0..;
    }

    /// The outcome for each resource of the request.
    pub struct IncrementalAlterConfigsResponse {
        /// Time for which the client must pause, in milliseconds.
        throttle_time_ms: i32, 0..;
        /// Each resource of the request.
        responses: Vec<AlterConfigsResourceResponse>, 0..;
    }

    /// Outcome of a resource.
    pub struct AlterConfigsResourceResponse {
        /// The error, or 0.
        error_code: ErrorCode, 0..;
        /// Error message, or null.
        error_message: Option<Text>, 0..;
        /// Type of the resource.
        resource_type: i8, 0..;
        /// The resource's name.
        resource_name: Text, 0..;
    }
}
