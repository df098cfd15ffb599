//! ApiVersions, key 18 (ApiVersionsRequest.json, ApiVersionsResponse.json).
//!
//! Changes by version: 1 throttle time; 3 flexible, client software and features; 4 features with a minimum of 0.

use crate::message::message;
use crate::{ErrorCode, Text};

message! {
    /// The first request on a connection.
    pub struct ApiVersionsRequest {
        /// The client library's name.
        client_software_name: Text, 3..;
        /// The client library's version.
        client_software_version: Text, 3..;
    }

    /// APIs and features that the broker serves.
    pub struct ApiVersionsResponse {
        /// The error, or 0.
        error_code: ErrorCode, 0..;
        /// Each API served.
        api_keys: Vec<ApiVersion>, 0..;
        /// Time for which the client must pause, in milliseconds.
        throttle_time_ms: i32, 1..;
        /// Features that the broker supports.
        supported_features: Vec<SupportedFeatureKey>, 3.., tag 0;
        /// The epoch of the finalized features, or -1 when unknown.
        finalized_features_epoch: i64, 3.., default -1, tag 1;
        /// Features in force in the cluster.
        finalized_features: Vec<FinalizedFeatureKey>, 3.., tag 2;
        /// True if a ZooKeeper cluster is ready to migrate (KIP-866).
        zk_migration_ready: bool, 3.., tag 3;
    }

    /// Version range of an API.
    pub struct ApiVersion {
        /// The API's key.
        api_key: i16, 0..;
        /// The lowest version served.
        min_version: i16, 0..;
        /// The highest version served.
        max_version: i16, 0..;
    }

    /// Supported range of a feature.
    pub struct SupportedFeatureKey {
        /// The feature.
        name: Text, 3..;
        /// Lowest level.
        min_version: i16, 3..;
        /// Highest level.
        max_version: i16, 3..;
    }

    /// Level in use of a feature.
    pub struct FinalizedFeatureKey {
        /// The feature.
        name: Text, 3..;
        /// Highest level.
        max_version_level: i16, 3..;
        /// Lowest level.
        min_version_level: i16, 3..;
    }
}
