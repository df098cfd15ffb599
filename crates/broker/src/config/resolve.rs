//! Settings with what was set while the broker ran: its own that may change, the cleaner's, and a topic's.

use std::collections::BTreeMap;

use super::broker::BrokerConfig;
use super::cleaner::CleanerSettings;
use super::cleaner_keys;
use super::dynamic::DynamicConfig;
use super::error::ConfigError;
use super::live::LiveConfig;
use super::lookup::reader;
use super::topic::{self, TopicConfig, check_overrides};

impl LiveConfig {
    /// Those of this broker with what was set while it ran.
    pub fn resolve(broker: &BrokerConfig, dynamic: &DynamicConfig) -> Result<Self, ConfigError> {
        Self::read(&reader(broker.values(dynamic)))
    }
}

impl BrokerConfig {
    /// The cleaner's settings with what was set while the broker ran.
    pub fn cleaner_with(&self, dynamic: &DynamicConfig) -> CleanerSettings {
        cleaner_keys::read(&reader(self.values(dynamic)))
    }
}

impl TopicConfig {
    /// The settings of a topic with these `overrides` on this broker, with what was set while it ran. Unknown keys
    /// and values outside their range are refused.
    pub fn resolve(
        broker: &BrokerConfig,
        dynamic: &DynamicConfig,
        overrides: &BTreeMap<String, String>,
    ) -> Result<Self, ConfigError> {
        let checked = check_overrides(overrides)?;
        let config = Self::read(&topic::reader(broker.values(dynamic), &checked));
        let (least, most) = (config.min_compaction_lag_ms, config.max_compaction_lag_ms);
        if least > most {
            let message = format!("must not be more than max.compaction.lag.ms, which is {most}");
            return Err(ConfigError::of_value("min.compaction.lag.ms", &least.to_string(), message));
        }
        if config.diskless && config.cleanup.compact {
            let policy = if config.cleanup.delete { "compact,delete" } else { "compact" };
            let message =
                "compaction of diskless topics is not supported yet, and this topic is diskless (diskless.enable=true)";
            return Err(ConfigError::of_value("cleanup.policy", policy, message));
        }
        Ok(config)
    }
}
