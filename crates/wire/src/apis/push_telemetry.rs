//! PushTelemetry, key 72 (PushTelemetryRequest.json, PushTelemetryResponse.json).
//!
//! Introduced by KIP-714.

use crate::message::message;
use crate::{ErrorCode, Uuid};
use bytes::Bytes;

message! {
    /// A client's metrics.
    pub struct PushTelemetryRequest {
        /// The client instance.
        client_instance_id: Uuid, 0..;
        /// Subscription that the metrics are for.
        subscription_id: i32, 0..;
        /// True if this is the client's last push.
        terminating: bool, 0..;
        /// The codec of the metrics: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.
        compression_type: i8, 0..;
        /// OpenTelemetry's MetricsData v1 in protobuf, compressed.
        metrics: Bytes, 0..;
    }

    /// The outcome.
    pub struct PushTelemetryResponse {
        /// Time for which the client must pause, in milliseconds.
        throttle_time_ms: i32, 0..;
        /// The error, or 0.
        error_code: ErrorCode, 0..;
    }
}
