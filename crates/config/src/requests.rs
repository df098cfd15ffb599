//! Limits of the requests that clients send.

use super::reader::ConfigReader;

/// Limits of single requests and responses, by API.
#[derive(Debug, Clone)]
pub struct ApiConfig {
    /// The highest version of Produce that the broker offers in ApiVersions (`fullbore.produce.version.max`).
    pub produce_version_max: i16,
    /// fetch.max.bytes
    pub fetch_max_bytes: usize,
    /// max.incremental.fetch.session.cache.slots
    pub fetch_sessions_max: usize,
    /// Maximum size of the metrics that a client pushes in a request, in bytes (`telemetry.max.bytes`).
    pub telemetry_max_bytes: i32,
    /// Maximum number of partitions in a response to DescribeTopicPartitions (`max.request.partition.size.limit`).
    pub described_partitions_max: i32,
}

impl ApiConfig {
    pub(super) fn read<F: Fn(&str) -> Option<String>>(values: &ConfigReader<F>) -> Self {
        Self {
            produce_version_max: values.number("fullbore.produce.version.max"),
            fetch_max_bytes: values.number("fetch.max.bytes"),
            fetch_sessions_max: values.number("max.incremental.fetch.session.cache.slots"),
            telemetry_max_bytes: values.number("telemetry.max.bytes"),
            described_partitions_max: values.number("max.request.partition.size.limit"),
        }
    }
}

/// Limits of out-of-order batches, which wait for the earlier batches of their producer.
#[derive(Debug, Clone)]
pub struct ReorderConfig {
    /// Maximum number of waiting batches per producer and partition. With 0, no batch waits.
    pub batches_max: usize,
    /// Maximum size of all waiting batches in the broker, in bytes.
    pub bytes_max: usize,
    /// How long a batch waits for the earlier ones.
    pub wait_ms: u64,
}

impl ReorderConfig {
    pub(super) fn read<F: Fn(&str) -> Option<String>>(values: &ConfigReader<F>) -> Self {
        Self {
            batches_max: values.number("fullbore.reorder.batches.max"),
            bytes_max: values.number("fullbore.reorder.bytes.max"),
            wait_ms: values.number("fullbore.reorder.wait.ms"),
        }
    }
}
