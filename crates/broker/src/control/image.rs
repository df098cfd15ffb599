//! The cluster's metadata as every request reads it: immutable, in memory.
//!
//! Not the source of truth, which is the store. An image shows exactly what one committed transaction
//! left behind; the next transaction makes a new one with a higher epoch.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use fullbore_wire::Uuid;

use super::resources::{ConfiguredResource, Resources};
use crate::config::{
    BrokerConfig, ClientMetricsConfig, ConfigError, DynamicConfig, GroupTimeouts, LiveConfig, Resource, TopicConfig,
};

/// One topic, as of some image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topic {
    pub name: String,
    pub id: Uuid,
    /// Numbered from 0.
    pub partitions: i32,
    pub replication_factor: i16,
    /// What the topic sets itself, checked.
    pub overrides: BTreeMap<String, String>,
    /// What is in force.
    pub config: Arc<TopicConfig>,
}

/// All topics, by name and by id, and what was set for brokers, groups and clients' metrics.
#[derive(Debug, Clone, Default)]
pub struct Image {
    epoch: u64,
    partitions: usize,
    by_name: BTreeMap<String, Arc<Topic>>,
    by_id: HashMap<Uuid, Arc<Topic>>,
    dynamic: Arc<DynamicConfig>,
    live: Arc<LiveConfig>,
    resources: Arc<Resources>,
}

impl Image {
    /// Goes up with every commit that changes a topic or a configuration, across restarts too.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    pub fn topic(&self, name: &str) -> Option<&Arc<Topic>> {
        self.by_name.get(name)
    }

    pub fn topic_by_id(&self, id: Uuid) -> Option<&Arc<Topic>> {
        self.by_id.get(&id)
    }

    /// In the order of their names.
    pub fn topics(&self) -> impl ExactSizeIterator<Item = &Arc<Topic>> {
        self.by_name.values()
    }

    /// Partitions of all topics together.
    pub fn partition_count(&self) -> usize {
        self.partitions
    }

    /// What was set for brokers while they ran.
    pub fn dynamic(&self) -> &DynamicConfig {
        &self.dynamic
    }

    /// Batches retained per producer and partition of a topic that does not say
    /// (`max.idempotence.batches.to.retain`).
    pub fn batches_to_retain(&self) -> i32 {
        self.live.batches_to_retain
    }

    /// What is in force for the members of this group, whether it exists or not.
    pub fn group_timeouts(&self, group_id: &str) -> GroupTimeouts {
        self.resources.group(group_id)
    }

    /// The subscriptions to clients' metrics, in the order of their names.
    pub fn client_metrics(&self) -> impl Iterator<Item = (&str, &ClientMetricsConfig)> {
        self.resources.client_metrics()
    }

    /// What a group or subscription sets; `None` for nothing.
    pub fn resource(&self, resource: Resource, name: &str) -> Option<&ConfiguredResource> {
        self.resources.get(resource, name).map(|configured| &**configured)
    }

    /// The names of those that set something, in order.
    pub fn resource_names(&self, resource: Resource) -> impl Iterator<Item = &str> {
        self.resources.names(resource)
    }

    /// How many of all kinds set something.
    pub(super) fn resource_count(&self) -> usize {
        self.resources.len()
    }

    /// Puts in force what a resource sets now, checked.
    pub(super) fn set_resource(
        &mut self,
        broker: &BrokerConfig,
        resource: (Resource, &str),
        overrides: BTreeMap<String, String>,
    ) -> Result<(), ConfigError> {
        Arc::make_mut(&mut self.resources).set(broker, &self.dynamic, resource, overrides)
    }

    /// The broker's own settings that may change while it runs.
    pub fn live(&self) -> &LiveConfig {
        &self.live
    }

    pub(super) fn with_epoch(epoch: u64) -> Self {
        Self { epoch, ..Self::default() }
    }

    /// Puts these in force for the broker. The topics are the caller's to work out anew.
    pub(super) fn set_dynamic(
        &mut self,
        broker: &BrokerConfig,
        dynamic: Arc<DynamicConfig>,
    ) -> Result<(), ConfigError> {
        self.live = Arc::new(LiveConfig::resolve(broker, &dynamic)?);
        Arc::make_mut(&mut self.resources).follow(broker, &dynamic);
        self.dynamic = dynamic;
        Ok(())
    }

    pub(super) fn set_epoch(&mut self, epoch: u64) {
        self.epoch = epoch;
    }

    /// Adds the topic, or replaces the one of the same name.
    pub(super) fn put(&mut self, topic: Arc<Topic>) {
        self.remove(&topic.name);
        self.partitions += usize::try_from(topic.partitions).expect("a topic has at least one partition");
        self.by_id.insert(topic.id, Arc::clone(&topic));
        self.by_name.insert(topic.name.clone(), topic);
    }

    pub(super) fn remove(&mut self, name: &str) {
        if let Some(topic) = self.by_name.remove(name) {
            self.partitions -= usize::try_from(topic.partitions).expect("a topic has at least one partition");
            self.by_id.remove(&topic.id);
        }
    }
}
