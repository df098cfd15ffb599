//! The settings of groups and of client metrics, as part of an image.
//!
//! The crate `config` defines the keys of these settings. A resource without settings is not stored. A group without
//! settings uses the broker's values.

use std::collections::BTreeMap;
use std::sync::Arc;

use fullbore_config::{
    BrokerConfig, ClientMetricsConfig, ConfigError, DynamicConfig, GroupTimeouts, Resource, check_values,
};

/// A resource that has settings, with the effective values.
#[derive(Debug)]
pub struct ConfiguredResource {
    /// The settings by name. Never empty.
    pub overrides: BTreeMap<String, String>,
    in_force: InForce,
}

#[derive(Debug)]
enum InForce {
    Group(GroupTimeouts),
    ClientMetrics(ClientMetricsConfig),
}

impl ConfiguredResource {
    fn new(
        broker: &BrokerConfig,
        dynamic: &DynamicConfig,
        resource: Resource,
        overrides: BTreeMap<String, String>,
    ) -> Result<Self, ConfigError> {
        let overrides = check_values(resource, &overrides)?;
        let in_force = match resource {
            Resource::Group => InForce::Group(GroupTimeouts::resolve(broker, dynamic, &overrides)),
            Resource::ClientMetrics => InForce::ClientMetrics(ClientMetricsConfig::resolve(&overrides)?),
        };
        Ok(Self { overrides, in_force })
    }
}

/// All resources that have settings.
#[derive(Debug, Clone, Default)]
pub(super) struct Resources {
    configured: BTreeMap<(Resource, String), Arc<ConfiguredResource>>,
    /// The timeouts of groups that have no settings.
    group_default: GroupTimeouts,
}

impl Resources {
    pub fn get(&self, resource: Resource, name: &str) -> Option<&Arc<ConfiguredResource>> {
        self.configured.get(&(resource, name.to_owned()))
    }

    pub fn names(&self, resource: Resource) -> impl Iterator<Item = &str> {
        self.of(resource).map(|(name, _)| name)
    }

    pub fn len(&self) -> usize {
        self.configured.len()
    }

    pub fn group(&self, name: &str) -> GroupTimeouts {
        match self.get(Resource::Group, name).map(|configured| &configured.in_force) {
            Some(InForce::Group(config)) => *config,
            _ => self.group_default,
        }
    }

    pub fn client_metrics(&self) -> impl Iterator<Item = (&str, &ClientMetricsConfig)> {
        self.of(Resource::ClientMetrics).filter_map(|(name, configured)| match &configured.in_force {
            InForce::ClientMetrics(config) => Some((name, config)),
            InForce::Group(_) => None,
        })
    }

    /// Replaces the settings of a resource. An empty map removes the resource.
    pub fn set(
        &mut self,
        broker: &BrokerConfig,
        dynamic: &DynamicConfig,
        resource: Resource,
        name: &str,
        overrides: BTreeMap<String, String>,
    ) -> Result<(), ConfigError> {
        let key = (resource, name.to_owned());
        if overrides.is_empty() {
            self.configured.remove(&key);
        } else {
            let configured = ConfiguredResource::new(broker, dynamic, resource, overrides)?;
            self.configured.insert(key, Arc::new(configured));
        }
        Ok(())
    }

    /// Computes the timeouts of all groups again after the broker's settings have changed.
    pub fn follow(&mut self, broker: &BrokerConfig, dynamic: &DynamicConfig) {
        self.group_default = GroupTimeouts::resolve(broker, dynamic, &BTreeMap::new());
        for ((_, _), configured) in self.configured.iter_mut().filter(|((resource, _), _)| *resource == Resource::Group)
        {
            let overrides = configured.overrides.clone();
            let in_force = InForce::Group(GroupTimeouts::resolve(broker, dynamic, &overrides));
            *configured = Arc::new(ConfiguredResource { overrides, in_force });
        }
    }

    fn of(&self, wanted: Resource) -> impl Iterator<Item = (&str, &Arc<ConfiguredResource>)> {
        let all = self.configured.iter().filter(move |((resource, _), _)| *resource == wanted);
        all.map(|((_, name), configured)| (name.as_str(), configured))
    }
}
