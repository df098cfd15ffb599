//! Limits of clients' requests.

use super::reader::ConfigReader;

/// Bounds of single requests and responses, by API.
#[derive(Debug, Clone)]
pub struct ApiConfig {
    /// The largest Produce version that ApiVersions names (`fullbore.produce.version.max`).
    pub produce_version_max: i16,
    /// fetch.max.bytes
    pub fetch_max_bytes: usize,
    /// max.incremental.fetch.session.cache.slots
    pub fetch_sessions_max: usize,
    /// Most bytes of one push of a client's own metrics (`telemetry.max.bytes`).
    pub telemetry_max_bytes: i32,
    /// Most partitions of one response to DescribeTopicPartitions (`max.request.partition.size.limit`).
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

/// Bounds of out-of-order batches, which arrive before their producer's earlier ones.
#[derive(Debug, Clone)]
pub struct ReorderConfig {
    /// Most batches held per producer and partition; 0 holds none.
    pub batches_max: usize,
    /// Most bytes of these batches in the whole broker.
    pub bytes_max: usize,
    /// Longest time that a batch waits.
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
