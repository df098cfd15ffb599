//! The cluster's metadata in memory, which every request reads. An image never changes.
//!
//! An image shows exactly the state after one committed transaction of the store. Each new version gets a new image
//! (see `apply`), which shares all unchanged data with the previous image. The cost of a new image therefore depends
//! only on the size of the change.

mod apply;
mod group_topics;
mod past;

use std::collections::BTreeMap;
use std::sync::Arc;

use fullbore_rules::cluster::LogEndReport;
use fullbore_rules::replica::{Brokers, PartitionRegistration};
use fullbore_rules::sequence::{PastTopic, PastTopics};
use fullbore_wire::Uuid;
use imbl::ordmap::DiffItem;
use imbl::{OrdMap, Vector};

use super::change::{CopyAcceptance, DeletedTopic, Version};
use super::features::Feature;
use super::node::{Nodes, RegisteredBroker};
use super::resources::{ConfiguredResource, Resources};
use fullbore_config::{ClientMetricsConfig, DynamicConfig, GroupTimeouts, LiveConfig, Resource, TopicConfig};

pub use apply::Inapplicable;
use past::PastNames;

/// Maximum leader epoch in which a partition begins. It leaves enough larger epochs for later elections.
pub(crate) const FIRST_LEADER_EPOCH_MAX: i32 = i32::MAX / 2;

/// The state of a topic in one image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topic {
    pub name: String,
    pub id: Uuid,
    /// The partitions in the order of their numbers. Partitions with equal values may share one registration.
    pub partitions: Vector<Arc<PartitionRegistration>>,
    /// The topic's own settings, which are valid.
    pub overrides: BTreeMap<String, String>,
    /// The effective settings, including the broker's values.
    pub config: Arc<TopicConfig>,
}

impl Topic {
    /// Returns the number of partitions, which are numbered from 0.
    pub fn partition_count(&self) -> i32 {
        i32::try_from(self.partitions.len()).unwrap_or(i32::MAX)
    }

    /// Returns the registration of a partition, or `None` if the topic does not have that partition.
    pub fn partition(&self, index: i32) -> Option<&Arc<PartitionRegistration>> {
        self.partitions.get(usize::try_from(index).ok()?)
    }

    /// Returns the number of replicas of the topic's first partition. This is the replication factor with which the
    /// topic was created.
    pub fn replication_factor(&self) -> i16 {
        let replicas = self.partitions.front().map_or(0, |first| first.replicas.len());
        i16::try_from(replicas).unwrap_or(i16::MAX)
    }
}

/// A topic that differs between two images, as its state in the older image and its state in the newer one. A state is
/// `None` if that image does not contain the topic.
pub type TopicChange<'a> = (Option<&'a Arc<Topic>>, Option<&'a Arc<Topic>>);

/// All metadata at one version: topics, brokers, and the settings of brokers, groups and client metrics.
#[derive(Debug, Clone, Default)]
pub struct Image {
    /// The version that the image shows. `None` for the empty image, before the store is read.
    version: Option<Version>,
    partitions: usize,
    by_name: OrdMap<String, Arc<Topic>>,
    by_id: OrdMap<Uuid, Arc<Topic>>,
    /// Topic names by their form in metrics, where `.` and `_` are equal. Contains only names with one of these
    /// characters, since other names cannot collide.
    by_metric: OrdMap<String, String>,
    nodes: Nodes,
    dynamic: Arc<DynamicConfig>,
    live: Arc<LiveConfig>,
    resources: Arc<Resources>,
    /// Levels of those features whose level was changed at least once.
    features: Arc<BTreeMap<String, i16>>,
    deleted: OrdMap<Uuid, DeletedTopic>,
    past: PastNames,
    /// The ends of logs that brokers have reported for partitions without a leader, by topic id and partition number. A
    /// partition's log ends are removed once it has a leader.
    log_ends: OrdMap<(Uuid, i32), Vec<LogEndReport>>,
    next_producer_id: i64,
    accepted_copy: Option<CopyAcceptance>,
    /// True if this broker stands down, see [`Image::stands_down`]. This is no metadata: the next version clears it.
    stands_down: bool,
}

impl Image {
    /// Returns the number of the image's version. It increases by one with every commit, also across restarts.
    pub fn epoch(&self) -> u64 {
        self.version.map_or(0, |version| version.number)
    }

    /// Returns the version that the image shows, or `None` for the empty image.
    pub(super) fn version(&self) -> Option<Version> {
        self.version
    }

    /// Returns true if this broker stands down: it cannot reach the database, and the other brokers have fenced it in a
    /// newer version. So it neither leads partitions nor coordinates groups and transactions, and its clients use the
    /// other brokers.
    pub fn stands_down(&self) -> bool {
        self.stands_down
    }

    /// Returns the image of the same version in which this broker stands down, or no longer does.
    pub(super) fn standing_down(&self, stands_down: bool) -> Image {
        Image { stands_down, ..self.clone() }
    }

    pub fn topic(&self, name: &str) -> Option<&Arc<Topic>> {
        self.by_name.get(name)
    }

    /// Returns the topic whose name collides with `name` in metrics, where `.` and `_` are equal. Returns `None` if
    /// there is no such topic.
    pub(super) fn topic_colliding_with(&self, name: &str) -> Option<&Arc<Topic>> {
        self.topic(self.by_metric.get(&in_metrics(name)?)?)
    }

    pub fn topic_by_id(&self, id: Uuid) -> Option<&Arc<Topic>> {
        self.by_id.get(&id)
    }

    /// Returns all registered brokers by id.
    pub fn nodes(&self) -> &BTreeMap<i32, RegisteredBroker> {
        self.nodes.by_id()
    }

    /// Returns the broker with this id, or `None` if it is not registered.
    pub fn node(&self, id: i32) -> Option<&RegisteredBroker> {
        self.nodes.by_id().get(&id)
    }

    /// Returns true if a broker other than `id` can serve diskless partitions, and is neither fenced nor shutting down.
    pub fn others_serve_diskless(&self, id: i32) -> bool {
        let stays = |node: &RegisteredBroker| !node.registration.is_fenced && !node.registration.is_shutting_down;
        self.nodes().iter().any(|(other, node)| *other != id && node.serves_diskless && stays(node))
    }

    /// Returns the registrations of the brokers, for decisions about replicas.
    pub fn registrations(&self) -> &Arc<Brokers> {
        self.nodes.registrations()
    }

    /// Returns the topics in the order of their names.
    pub fn topics(&self) -> impl ExactSizeIterator<Item = &Arc<Topic>> {
        self.by_name.values()
    }

    /// Calls `visit` for every topic that differs from its state in the image `before`, in the order of the names. The
    /// cost depends on the number of changes, not on the number of topics.
    pub fn each_change_since(&self, before: &Image, mut visit: impl FnMut(TopicChange<'_>)) {
        for item in before.by_name.diff(&self.by_name) {
            match item {
                DiffItem::Add(_, new) => visit((None, Some(new))),
                DiffItem::Update { old: (_, old), new: (_, new) } if !Arc::ptr_eq(old, new) => {
                    visit((Some(old), Some(new)));
                }
                DiffItem::Update { .. } => {}
                DiffItem::Remove(_, old) => visit((Some(old), None)),
            }
        }
    }

    /// Returns the number of partitions of all topics together.
    pub fn partition_count(&self) -> usize {
        self.partitions
    }

    /// Returns the dynamic settings of brokers.
    pub fn dynamic(&self) -> &DynamicConfig {
        &self.dynamic
    }

    /// Returns the number of batches that a partition remembers of each producer (`max.idempotence.batches.to.retain`).
    /// A topic may override this number.
    pub fn batches_to_retain(&self) -> i32 {
        self.live.batches_to_retain
    }

    /// Returns the timeouts of the group with this id. The group need not exist.
    pub fn group_timeouts(&self, group_id: &str) -> GroupTimeouts {
        self.resources.group(group_id)
    }

    /// Returns the client metrics subscriptions, in the order of their names.
    pub fn client_metrics(&self) -> impl Iterator<Item = (&str, &ClientMetricsConfig)> {
        self.resources.client_metrics()
    }

    /// Returns the settings of a group or subscription, or `None` if it has no settings of its own.
    pub fn resource(&self, resource: Resource, name: &str) -> Option<&ConfiguredResource> {
        self.resources.get(resource, name).map(|configured| &**configured)
    }

    /// Returns the names of the resources that have settings, in order.
    pub fn resource_names(&self, resource: Resource) -> impl Iterator<Item = &str> {
        self.resources.names(resource)
    }

    /// Returns the current level of a feature.
    pub fn feature_level(&self, feature: &Feature) -> i16 {
        self.features.get(feature.name).copied().unwrap_or(feature.max)
    }

    /// Returns the number of resources of all kinds that have settings.
    pub(super) fn resource_count(&self) -> usize {
        self.resources.len()
    }

    /// Returns the deleted topics whose files or rows may still exist.
    pub(super) fn deleted(&self) -> &OrdMap<Uuid, DeletedTopic> {
        &self.deleted
    }

    /// Returns the deleted topics that a new topic of this name must take into account.
    pub fn past_topics(&self, name: &str) -> PastTopics {
        self.past.get(name)
    }

    /// Returns the leader epoch in which new partitions of this name begin. It must be larger than every epoch of the
    /// deleted topics of the name, since clients such as librdkafka ignore metadata with an older epoch. So it is twice
    /// the number of the version that deleted the last of these topics. Twice is enough, because one commit raises an
    /// epoch at most twice: when the old leader is removed, and when a new one is elected. If an older copy of the
    /// database was accepted, the result is also larger than all epochs that the copy lacks. Otherwise a partition that
    /// the copy lacks would use its old epochs again when it is created again.
    pub fn first_leader_epoch(&self, name: &str) -> i32 {
        let raised = |deleted_at: u64| i32::try_from(deleted_at.saturating_mul(2)).unwrap_or(i32::MAX);
        let first = self.accepted_copy.map_or(0, |accepted| accepted.first_leader_epoch);
        self.past.get(name).last().map_or(first, |last| raised(last.deleted_at).min(FIRST_LEADER_EPOCH_MAX).max(first))
    }

    /// Returns the most recent acceptance of an older copy of the database, or `None` if no copy was ever accepted.
    pub fn accepted_copy(&self) -> Option<CopyAcceptance> {
        self.accepted_copy
    }

    /// Returns true if a topic was both created and deleted after the image `before`. A comparison of the two images
    /// does not show such a topic.
    pub fn misses_topics_since(&self, before: &Image) -> bool {
        let is_missed = |name: &str, past: &PastTopics| {
            let is_new = |last: &PastTopic| last.deleted_at > before.epoch();
            let is_known = |last: &PastTopic| before.topic(name).is_some_and(|topic| topic.id == last.id);
            past.last().is_some_and(|last| is_new(last) && !is_known(last))
        };
        self.past.changed_since(&before.past).any(|(name, past)| is_missed(name, past))
    }

    /// Returns the name of deleted topics that should be forgotten first, or `None` if not too many names are
    /// remembered.
    pub(super) fn forgettable_name(&self) -> Option<&str> {
        self.past.forgettable()
    }

    /// Returns the log ends that brokers have reported for this partition. The result is empty if the partition has a
    /// leader.
    pub fn log_ends(&self, topic: Uuid, partition: i32) -> &[LogEndReport] {
        self.log_ends.get(&(topic, partition)).map_or(&[], Vec::as_slice)
    }

    /// Returns true if log ends are reported for any partition.
    pub(super) fn has_log_ends(&self) -> bool {
        !self.log_ends.is_empty()
    }

    /// Returns the first producer id that no broker has reserved.
    pub fn next_producer_id(&self) -> i64 {
        self.next_producer_id
    }

    /// Returns the settings of this broker that can change while it runs.
    pub fn live(&self) -> &LiveConfig {
        &self.live
    }

    /// Adds a broker, or replaces the broker of the same id.
    pub fn put_node(&mut self, id: i32, node: RegisteredBroker) {
        self.nodes.put(id, node);
    }

    /// Adds the topic, or replaces the topic of the same name.
    pub fn put(&mut self, topic: Arc<Topic>) {
        self.remove(&topic.name);
        self.partitions += topic.partitions.len();
        self.by_id.insert(topic.id, Arc::clone(&topic));
        if let Some(metric) = in_metrics(&topic.name) {
            self.by_metric.insert(metric, topic.name.clone());
        }
        self.by_name.insert(topic.name.clone(), topic);
    }

    fn remove(&mut self, name: &str) {
        if let Some(topic) = self.by_name.remove(name) {
            self.partitions -= topic.partitions.len();
            self.by_id.remove(&topic.id);
            if let Some(metric) = in_metrics(name) {
                self.by_metric.remove(&metric);
            }
        }
    }
}

/// Returns the form of `name` in metrics, or `None` if no other name can have the same form.
fn in_metrics(name: &str) -> Option<String> {
    name.contains(['.', '_']).then(|| name.replace('.', "_"))
}
