//! The broker's own settings that may change while it runs.
//!
//! Not the defaults of topics' settings, which end in each topic's configuration. Each use reads them from the metadata
//! image.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::error::ConfigError;
use super::listener::parse_per_ip;
use super::reader::ConfigReader;

/// Settings in force. Names and meanings are Kafka's, units are in the names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LiveConfig {
    /// Most connections of all listeners together.
    pub max_connections: usize,
    pub max_connections_per_ip: usize,
    /// Limits of single addresses, which override `max_connections_per_ip`.
    pub max_connections_per_ip_overrides: BTreeMap<IpAddr, usize>,
    pub producer_id_expiration_ms: u64,
    /// Batches retained per producer and partition of a topic without a setting of its own
    /// (`max.idempotence.batches.to.retain`).
    pub batches_to_retain: i32,
    /// True if the coordinator verifies a batch of an older client before it begins a transaction in a partition
    /// (`transaction.partition.verification.enable`).
    pub verifies_partitions: bool,
}

impl LiveConfig {
    pub(super) fn read<F: Fn(&str) -> Option<String>>(values: &ConfigReader<F>) -> Result<Self, ConfigError> {
        let per_ip = "max.connections.per.ip.overrides";
        Ok(Self {
            max_connections: values.number("max.connections"),
            max_connections_per_ip: values.number("max.connections.per.ip"),
            max_connections_per_ip_overrides: parse_per_ip(per_ip, &values.text(per_ip).unwrap_or_default())?,
            producer_id_expiration_ms: values.number("producer.id.expiration.ms"),
            batches_to_retain: values.number("max.idempotence.batches.to.retain"),
            verifies_partitions: values.boolean("transaction.partition.verification.enable"),
        })
    }
}
