//! GetTelemetrySubscriptions, key 71 (GetTelemetrySubscriptionsRequest.json, GetTelemetrySubscriptionsResponse.json).
//!
//! Introduced by KIP-714.

use crate::message::message;
use crate::{ErrorCode, Text, Uuid};

message! {
    /// Request of a client for the metrics wanted from it.
    pub struct GetTelemetrySubscriptionsRequest {
        /// The client instance; zero in its first request.
        client_instance_id: Uuid, 0..;
    }

    /// The metrics wanted.
    pub struct GetTelemetrySubscriptionsResponse {
        /// Time for which the client must pause, in milliseconds.
        throttle_time_ms: i32, 0..;
        /// The error, or 0.
        error_code: ErrorCode, 0..;
        /// The id given to the client instance, or zero if the request had one.
        client_instance_id: Uuid, 0..;
        /// Id that changes when the subscriptions change.
        subscription_id: i32, 0..;
        /// The codecs a push may use, the broker's favourite first: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.
        accepted_compression_types: Vec<i8>, 0..;
        /// Interval of pushes, in milliseconds.
        push_interval_ms: i32, 0..;
        /// The largest push, in bytes.
        telemetry_max_bytes: i32, 0..;
        /// True to push counters as differences since the last push.
        delta_temporality: bool, 0..;
        /// Prefixes of the metrics wanted; none when empty, all when one of them is the empty string.
        requested_metrics: Vec<Text>, 0..;
    }
}
