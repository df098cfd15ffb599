//! The broker's own settings that may change while it runs.
//!
//! Code that uses such a setting must read it from the metadata image each time. Broker-wide defaults of topic settings
//! are not here, because they become part of each topic's configuration.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::error::ConfigError;
use super::listener::parse_per_ip;
use super::reader::ConfigReader;

/// Settings in force. The names and meanings are Kafka's. If a setting has a unit, the unit is part of the field's
/// name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LiveConfig {
    /// Maximum number of connections on all listeners together.
    pub max_connections: usize,
    pub max_connections_per_ip: usize,
    /// Limits for single addresses. They override `max_connections_per_ip`.
    pub max_connections_per_ip_overrides: BTreeMap<IpAddr, usize>,
    pub producer_id_expiration_ms: u64,
    /// How many batches of each producer a partition remembers, if the topic does not set a number itself
    /// (`max.idempotence.batches.to.retain`).
    pub batches_to_retain: i32,
    /// True if the coordinator must verify a transactional batch of an older client before the batch opens a
    /// transaction in a partition (`transaction.partition.verification.enable`).
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
