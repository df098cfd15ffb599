//! Computes the settings in force from the file's values and the dynamic ones, for the broker, the cleaner and each
//! topic.

use std::collections::BTreeMap;

use super::broker::BrokerConfig;
use super::cleaner::CleanerSettings;
use super::cleaner_keys;
use super::dynamic::DynamicConfig;
use super::error::ConfigError;
use super::live::LiveConfig;
use super::lookup::reader;
use super::topic::{self, CleanupPolicy, TopicConfig, check_overrides};

impl LiveConfig {
    /// Returns this broker's settings with the dynamic values applied.
    pub fn resolve(broker: &BrokerConfig, dynamic: &DynamicConfig) -> Result<Self, ConfigError> {
        Self::read(&reader(broker.values(dynamic)))
    }
}

impl BrokerConfig {
    /// Returns the cleaner's settings with the dynamic values applied.
    pub fn cleaner_with(&self, dynamic: &DynamicConfig) -> CleanerSettings {
        cleaner_keys::read(&reader(self.values(dynamic)))
    }
}

impl TopicConfig {
    /// Returns the settings of a topic with `overrides` on this broker, with the dynamic values applied.
    ///
    /// # Errors
    /// Returns [`ConfigError`] if a key is unknown or a value is outside its range.
    pub fn resolve(
        broker: &BrokerConfig,
        dynamic: &DynamicConfig,
        overrides: &BTreeMap<String, String>,
    ) -> Result<Self, ConfigError> {
        Ok(Self::read(&topic::reader(broker.values(dynamic), &check_overrides(overrides)?)))
    }

    /// Returns an error if two settings of this topic contradict each other; `None` otherwise. A request with such
    /// settings must be refused.
    pub fn contradiction(&self) -> Option<ConfigError> {
        let (least, most) = (self.min_compaction_lag_ms, self.max_compaction_lag_ms);
        if least > most {
            let message = format!("must not be more than max.compaction.lag.ms, which is {most}");
            return Some(ConfigError::of_value("min.compaction.lag.ms", &least.to_string(), message));
        }
        if self.diskless && self.cleanup.compact {
            let policy = if self.cleanup.delete { "compact,delete" } else { "compact" };
            let message =
                "compaction of diskless topics is not supported yet, and this topic is diskless (diskless.enable=true)";
            return Some(ConfigError::of_value("cleanup.policy", policy, message));
        }
        None
    }

    /// Returns settings without contradictions. The minimum compaction lag becomes at most the maximum one, and a
    /// diskless topic deletes records instead of compacting them.
    pub fn without_contradiction(mut self) -> Self {
        self.min_compaction_lag_ms = self.min_compaction_lag_ms.min(self.max_compaction_lag_ms);
        if self.diskless && self.cleanup.compact {
            self.cleanup = CleanupPolicy { delete: true, compact: false };
        }
        self
    }
}
