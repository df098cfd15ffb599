//! DescribeConfigs, key 32 (DescribeConfigsRequest.json, DescribeConfigsResponse.json).
//!
//! Changes by version: 1 synonyms and sources; 3 types and documentation (KIP-569); 4 flexible.

use crate::message::message;
use crate::{ErrorCode, Text};

message! {
    /// Resources whose configurations are wanted.
    pub struct DescribeConfigsRequest {
        /// Each resource.
        resources: Vec<DescribeConfigsResource>, 0..;
        /// True to include other sources of each value.
        include_synonyms: bool, 1..;
        /// True to include the description of each configuration.
        include_documentation: bool, 3..;
    }

    /// A resource.
    pub struct DescribeConfigsResource {
        /// Type of the resource: 2 a topic, 4 a broker.
        resource_type: i8, 0..;
        /// The topic's name or the broker's id.
        resource_name: Text, 0..;
        /// The configurations wanted, or null for all.
        configuration_keys: Option<Vec<Text>>, 0..;
    }

    /// The configurations.
    pub struct DescribeConfigsResponse {
        /// Time for which the client must pause, in milliseconds.
        throttle_time_ms: i32, 0..;
        /// Each resource of the request.
        results: Vec<DescribeConfigsResult>, 0..;
    }

    /// Configurations of a resource.
    pub struct DescribeConfigsResult {
        /// The error, or 0.
        error_code: ErrorCode, 0..;
        /// Error message, or null.
        error_message: Option<Text>, 0..;
        /// Type of the resource.
        resource_type: i8, 0..;
        /// The resource's name.
        resource_name: Text, 0..;
        /// Each configuration.
        configs: Vec<DescribeConfigsResourceResult>, 0..;
    }

    /// A configuration.
    pub struct DescribeConfigsResourceResult {
        /// Name of the configuration.
        name: Text, 0..;
        /// Value of the configuration; null when unset or secret.
        value: Option<Text>, 0..;
        /// True if the configuration cannot be changed.
        read_only: bool, 0..;
        /// Source of the value: 1 topic, 2 broker, 3 all brokers, 4 the file, 5 the default; -1 unknown.
        config_source: i8, 1.., default -1;
        /// True if the value is a secret.
        is_sensitive: bool, 0..;
        /// Other sources of the value, the strongest first.
        synonyms: Vec<DescribeConfigsSynonym>, 1..;
        /// Type of the configuration: 1 bool, 2 string, 3 int, 4 short, 5 long, 6 double, 7 list, 8 class, 9 password;
        /// 0 unknown.
        config_type: i8, 3..;
        /// Description of the configuration, or null.
        documentation: Option<Text>, 3..;
    }

    /// A source of a value.
    pub struct DescribeConfigsSynonym {
        /// Name of the configuration in this source.
        name: Text, 1..;
        /// Value in this source, or null.
        value: Option<Text>, 1..;
        /// The source.
        source: i8, 1..;
    }
}
