//! UpdateFeatures, key 57 (UpdateFeaturesRequest.json, UpdateFeaturesResponse.json).
//!
//! Introduced by KIP-584. Changes by version: 1 kinds of downgrade, checking only (KIP-778); 2 all or nothing, one
//! error for the whole response (KIP-1022).

use crate::message::message;
use crate::{ErrorCode, Text};

message! {
    /// Features that get other levels.
    pub struct UpdateFeaturesRequest {
        /// Time that the broker may take, in milliseconds.
        timeout_ms: i32, 0.., default 60_000;
        /// Each feature.
        feature_updates: Vec<FeatureUpdateKey>, 0..;
        /// True to only check the request, and change nothing.
        validate_only: bool, 1..;
    }

    /// A feature.
    pub struct FeatureUpdateKey {
        /// Name of the feature.
        feature: Text, 0..;
        /// New level of the feature; 0 switches it off.
        max_version_level: i16, 0..;
        /// True if the new level may be lower than the present one.
        allow_downgrade: bool, 0..=0;
        /// Changes that are allowed: 1 to a higher level, 2 to a lower one that loses nothing, 3 any.
        upgrade_type: i8, 1.., default 1;
    }

    /// The outcome.
    pub struct UpdateFeaturesResponse {
        /// Time for which the client must pause, in milliseconds.
        throttle_time_ms: i32, 0..;
        /// The error of the whole request, or 0.
        error_code: ErrorCode, 0..;
        /// Error message, or null.
        error_message: Option<Text>, 0..;
        /// Each feature of the request.
        results: Vec<UpdatableFeatureResult>, 0..=1;
    }

    /// Outcome of a feature.
    pub struct UpdatableFeatureResult {
        /// The feature.
        feature: Text, 0..=1;
        /// The error, or 0.
        error_code: ErrorCode, 0..=1;
        /// Error message, or null.
        error_message: Option<Text>, 0..=1;
    }
}
