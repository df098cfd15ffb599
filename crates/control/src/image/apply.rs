//! Applies changes to an image.
//!
//! Only this module changes images. The changes are decisions of this broker, commits of another broker, or the content
//! of the store when the broker starts. Invariant: a change is applied completely, or not at all if this broker cannot
//! apply it.

use std::collections::BTreeMap;
use std::sync::Arc;

use fullbore_wire::Uuid;

use super::{Image, Topic};
use crate::change::{Change, Partitions, Version};
use crate::store::Commit;
use fullbore_config::{BrokerConfig, ConfigError, DynamicConfig, LiveConfig, TopicConfig, check_dynamic};

/// The reason why this broker cannot apply a change.
#[derive(Debug, thiserror::Error)]
pub enum Inapplicable {
    #[error("topic {topic}: {source}")]
    Topic { topic: String, source: ConfigError },
    #[error("dynamic settings of brokers: {0}")]
    Broker(ConfigError),
    #[error("settings of a group or of client metrics: {0}")]
    Resource(ConfigError),
    #[error("the database returned metadata version {found} after version {known}")]
    Skipped { known: u64, found: u64 },
    #[error("a change refers to a topic with id {0}, but there is no such topic")]
    NoTopic(Uuid),
    #[error("topic {topic} has {count} partitions, but a change adds more from number {first} on")]
    Gap { topic: String, count: usize, first: usize },
}

impl Image {
    /// Returns the image of an empty store.
    pub(crate) fn empty(broker: &BrokerConfig) -> Result<Self, Inapplicable> {
        let mut image = Self::default();
        image.configure(broker, None, &BTreeMap::new())?;
        Ok(image)
    }

    /// Returns the image after this commit.
    pub(crate) fn after(&self, broker: &BrokerConfig, commit: &Commit) -> Result<Self, Inapplicable> {
        let (known, found) = (self.epoch(), commit.version.number);
        if self.version.is_some() && found != known + 1 {
            return Err(Inapplicable::Skipped { known, found });
        }
        let mut next = self.clone();
        next.apply_all(broker, &commit.changes)?;
        Ok(next.at(commit.version))
    }

    /// Returns the image with the number and nonce of `version`, whose changes the caller has already applied. This
    /// broker has just reached the database, so it does not stand down.
    pub(crate) fn at(self, version: Version) -> Self {
        Self { version: Some(version), stands_down: false, ..self }
    }

    /// Applies the changes in order. If one fails, the changes before it may remain applied.
    pub(crate) fn apply_all(&mut self, broker: &BrokerConfig, changes: &[Change]) -> Result<(), Inapplicable> {
        // Group the changes of a topic, so that its partitions are copied only once.
        let topic_of = |change: &Change| match change {
            Change::PartitionsChanged { topic, .. } => Some(*topic),
            _ => None,
        };
        let is_same = |one: &Change, next: &Change| topic_of(one).is_some_and(|topic| topic_of(next) == Some(topic));
        for together in changes.chunk_by(is_same) {
            match topic_of(&together[0]) {
                Some(topic) => self.change_partitions(topic, together)?,
                None => together.iter().try_for_each(|change| self.apply(broker, change))?,
            }
        }
        Ok(())
    }

    /// Applies one change. If it fails, the image is unchanged.
    pub(crate) fn apply(&mut self, broker: &BrokerConfig, change: &Change) -> Result<(), Inapplicable> {
        match change {
            Change::BrokerRegistered { id, node } => self.put_node(*id, node.clone()),
            Change::TopicCreated { topic, name, partitions, overrides } => {
                debug_assert!(partitions.iter().all(|partition| partition.is_consistent()), "{partitions:?}");
                self.put(self.with_settings(broker, *topic, name.clone(), partitions.clone(), overrides)?);
                self.past.hold(name);
            }
            Change::PartitionsChanged { topic, .. } => self.change_partitions(*topic, std::slice::from_ref(change))?,
            Change::LogEndReported { topic, partition, end } => {
                let ends = self.log_ends.entry((*topic, *partition)).or_default();
                ends.retain(|other| other.broker_id != end.broker_id);
                ends.push(*end);
                ends.sort_unstable_by_key(|end| end.broker_id);
            }
            Change::TopicConfigured { topic, overrides } => {
                let before = self.there(*topic)?;
                let (name, partitions) = (before.name.clone(), before.partitions.clone());
                self.put(self.with_settings(broker, *topic, name, partitions, overrides)?);
            }
            Change::TopicDeleted(topic) => {
                if let Some(known) = self.by_id.get(&topic.id).cloned() {
                    (0..known.partitions.len()).for_each(|number| self.forget_log_ends(topic.id, number));
                    self.remove(&topic.name);
                    self.past.release(&topic.name);
                }
                self.deleted.insert(topic.id, topic.clone());
            }
            Change::DeletionFinished { topic } => drop(self.deleted.remove(topic)),
            Change::NameRemembered { name, past } => self.past.remember(name, past, self.by_name.contains_key(name)),
            Change::BrokerConfigured { broker: whom, overrides } => self.configure(broker, *whom, overrides)?,
            Change::ResourceConfigured { resource, name, overrides } => {
                let resources = Arc::make_mut(&mut self.resources);
                let set = resources.set(broker, &self.dynamic, *resource, name, overrides.clone());
                set.map_err(Inapplicable::Resource)?;
            }
            Change::FeatureUpdated { name, level } => {
                Arc::make_mut(&mut self.features).insert(name.clone(), *level);
            }
            Change::ProducerIdsTaken { next } => self.next_producer_id = *next,
            Change::CopyAccepted(accepted) => self.accepted_copy = Some(*accepted),
        }
        Ok(())
    }

    /// Checks a change before this broker decides it: the change must not make the settings of a topic contradict each
    /// other. Commits of other brokers are applied without this check, because their defaults may differ from this
    /// broker's. If this broker refused such a commit, it could never apply later ones.
    pub(crate) fn check(&self, broker: &BrokerConfig, change: &Change) -> Result<(), Inapplicable> {
        let contradiction = |dynamic: &DynamicConfig, topic: &str, overrides: &BTreeMap<String, String>| {
            let config = TopicConfig::resolve(broker, dynamic, overrides);
            let refused = |source| Inapplicable::Topic { topic: topic.to_owned(), source };
            config.map(|config| config.contradiction()).map_err(refused)
        };
        let refuse = |topic: &str, source| Err(Inapplicable::Topic { topic: topic.to_owned(), source });
        match change {
            Change::TopicCreated { name, overrides, .. } => match contradiction(&self.dynamic, name, overrides)? {
                Some(source) => refuse(name, source),
                None => Ok(()),
            },
            Change::TopicConfigured { topic, overrides } => {
                let topic = self.there(*topic)?;
                let Some(source) = contradiction(&self.dynamic, &topic.name, overrides)? else { return Ok(()) };
                // Allow the change if the topic had the same contradiction before.
                match contradiction(&self.dynamic, &topic.name, &topic.overrides)? {
                    Some(before) if before == source => Ok(()),
                    _ => refuse(&topic.name, source),
                }
            }
            Change::BrokerConfigured { broker: whom, overrides } => {
                let Some(dynamic) = self.dynamic_with(broker, *whom, overrides)? else { return Ok(()) };
                self.topics().try_for_each(|topic| {
                    let after = contradiction(&dynamic, &topic.name, &topic.overrides)?;
                    let Some(source) = after else { return Ok(()) };
                    // Allow the change if the topic already contradicts the broker's configuration file. Such a topic
                    // must not prevent changes of other dynamic settings.
                    match contradiction(&self.dynamic, &topic.name, &topic.overrides)? {
                        Some(before) if before.key == source.key => Ok(()),
                        _ => refuse(&topic.name, source),
                    }
                })
            }
            _ => Ok(()),
        }
    }

    /// Returns the dynamic settings of this broker after the change, or `None` if `whom` is another broker.
    fn dynamic_with(
        &self,
        broker: &BrokerConfig,
        whom: Option<i32>,
        overrides: &BTreeMap<String, String>,
    ) -> Result<Option<DynamicConfig>, Inapplicable> {
        let mut dynamic = DynamicConfig::clone(&self.dynamic);
        match whom {
            None => dynamic.cluster = overrides.clone(),
            Some(id) if id == broker.node.id => dynamic.broker = overrides.clone(),
            Some(_) => return Ok(None),
        }
        check_dynamic(overrides).map_err(Inapplicable::Broker)?;
        Ok(Some(dynamic))
    }

    fn forget_log_ends(&mut self, topic: Uuid, number: usize) {
        if !self.log_ends.is_empty()
            && let Ok(partition) = i32::try_from(number)
        {
            self.log_ends.remove(&(topic, partition));
        }
    }

    fn there(&self, topic: Uuid) -> Result<&Arc<Topic>, Inapplicable> {
        self.by_id.get(&topic).ok_or(Inapplicable::NoTopic(topic))
    }

    fn with_settings(
        &self,
        broker: &BrokerConfig,
        id: Uuid,
        name: String,
        partitions: Partitions,
        overrides: &BTreeMap<String, String>,
    ) -> Result<Arc<Topic>, Inapplicable> {
        let config = Arc::new(resolved(broker, &self.dynamic, &name, overrides)?);
        Ok(Arc::new(Topic { name, id, partitions, overrides: overrides.clone(), config }))
    }

    /// Applies changes of this topic's partitions.
    fn change_partitions(&mut self, topic: Uuid, changes: &[Change]) -> Result<(), Inapplicable> {
        let mut after = Topic::clone(self.there(topic)?);
        for change in changes {
            let Change::PartitionsChanged { first, partitions: changed, .. } = change else { continue };
            debug_assert!(changed.iter().all(|partition| partition.is_consistent()), "{changed:?}");
            let (first, count) = (*first, after.partitions.len());
            if first > count {
                return Err(Inapplicable::Gap { topic: after.name, count, first });
            }
            let known = changed.len().min(count - first);
            for (number, registered) in (first..).zip(changed.iter().take(known)) {
                after.partitions.set(number, Arc::clone(registered));
            }
            after.partitions.append(changed.skip(known));
            let led = (first..).zip(changed).filter(|(_, partition)| partition.leader.is_some());
            led.for_each(|(number, _)| self.forget_log_ends(topic, number));
        }
        self.put(Arc::new(after));
        Ok(())
    }

    /// Sets the dynamic settings of the broker `whom`, or those for all brokers if `whom` is `None`. Then computes all
    /// settings that depend on them again. Does nothing if `whom` is another broker.
    fn configure(
        &mut self,
        broker: &BrokerConfig,
        whom: Option<i32>,
        overrides: &BTreeMap<String, String>,
    ) -> Result<(), Inapplicable> {
        let Some(dynamic) = self.dynamic_with(broker, whom, overrides)? else { return Ok(()) };
        let live = LiveConfig::resolve(broker, &dynamic).map_err(Inapplicable::Broker)?;
        let mut configured = Vec::new();
        for topic in self.topics() {
            let config = resolved(broker, &dynamic, &topic.name, &topic.overrides)?;
            if config != *topic.config {
                configured.push(Topic { config: Arc::new(config), ..Topic::clone(topic) });
            }
        }
        configured.into_iter().for_each(|topic| self.put(Arc::new(topic)));
        self.live = Arc::new(live);
        Arc::make_mut(&mut self.resources).follow(broker, &dynamic);
        self.dynamic = Arc::new(dynamic);
        Ok(())
    }
}

/// Returns the effective settings of a topic on this broker. Another broker with other defaults may have decided the
/// overrides. If they contradict this broker's defaults, [`TopicConfig::without_contradiction`] chooses the settings.
fn resolved(
    broker: &BrokerConfig,
    dynamic: &DynamicConfig,
    topic: &str,
    overrides: &BTreeMap<String, String>,
) -> Result<TopicConfig, Inapplicable> {
    let config = TopicConfig::resolve(broker, dynamic, overrides)
        .map_err(|source| Inapplicable::Topic { topic: topic.to_owned(), source })?;
    if let Some(error) = config.contradiction() {
        if config.min_compaction_lag_ms > config.max_compaction_lag_ms {
            tracing::warn!(topic, %error, "a setting of the topic contradicts a default of this broker: this broker \
                 uses the lower of the two compaction lags");
        } else {
            tracing::warn!(topic, %error, "a setting of the topic contradicts a default of this broker: this broker \
                 deletes old records of the diskless topic instead of compacting it");
        }
    }
    Ok(config.without_contradiction())
}
