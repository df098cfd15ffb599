//! How topics are created and deleted on this broker, and the defaults of their settings.
//!
//! The settings of a single topic are in [`TopicConfig`].

use super::error::ConfigError;
use super::properties::Properties;
use super::reader::ConfigReader;
use super::topic::TopicConfig;

/// Settings that concern all topics.
#[derive(Debug, Clone)]
pub struct TopicsConfig {
    /// num.partitions
    pub partitions: i32,
    /// default.replication.factor
    pub replication_factor: i16,
    /// auto.create.topics.enable
    pub auto_create: bool,
    /// delete.topic.enable
    pub delete_enable: bool,
    /// True if a topic becomes diskless when it is created without `diskless.enable` (`log.diskless.enable`).
    pub diskless: bool,
    /// The settings of a topic without overrides, with their values from the file and the command line.
    pub defaults: TopicConfig,
}

impl TopicsConfig {
    pub(super) fn read<F>(
        values: &ConfigReader<F>,
        checked: &Properties,
        is_in_cluster: bool,
    ) -> Result<Self, ConfigError>
    where
        F: Fn(&str) -> Option<String>,
    {
        let factor = "default.replication.factor";
        let replication_factor: i16 = values.number(factor);
        if !is_in_cluster && replication_factor > 1 {
            let message = "must be 1 for a standalone broker; more replicas need a cluster with \
                 control.plane=postgres://...";
            return Err(ConfigError::of_value(factor, &replication_factor.to_string(), message));
        }
        Ok(Self {
            partitions: values.number("num.partitions"),
            replication_factor,
            auto_create: values.boolean("auto.create.topics.enable"),
            delete_enable: values.boolean("delete.topic.enable"),
            diskless: values.boolean("log.diskless.enable"),
            defaults: TopicConfig::defaults(checked),
        })
    }
}
