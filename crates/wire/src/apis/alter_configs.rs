//! AlterConfigs, key 33 (AlterConfigsRequest.json, AlterConfigsResponse.json).
//!
//! Introduced by KIP-133. Flexible from version 2 on. Replaces all configurations of a resource; newer tools use
//! IncrementalAlterConfigs.

use crate::message::message;
use crate::{ErrorCode, Text};

message! {
    /// Resources, each with all of its new configurations.
    pub struct AlterConfigsRequest {
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
        /// Each configuration; the others go back to their defaults.
        configs: Vec<AlterableConfig>, 0..;
    }

    /// A configuration.
    pub struct AlterableConfig {
        /// Name of the configuration.
        name: Text, 0..;
        /// Value of the configuration, or null.
        value: Option<Text>, 0..;
    }

    /// The outcome for each resource.
    pub struct AlterConfigsResponse {
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
