//! The commands that change the metadata, and the refusal that a caller may get.
//!
//! `decide` makes the decisions, and the stores behind `store` save them. A caller gets a response only after the
//! changes are on disk. A refused command has normally changed nothing, with two exceptions. REQUEST_TIMED_OUT is also
//! returned if the outcome is unknown. Some commands are split into pieces, one transaction each (see `pieces`). If
//! such a command is refused, the pieces that were already committed remain in force.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use fullbore_rules::cluster::{Joining, ResignedLog};
use fullbore_rules::replica::epochs::Position;
use fullbore_rules::replica::{AlterPartition, BrokerState};
use fullbore_wire::{ErrorCode, Text, Uuid};

use super::node::Endpoint;
use fullbore_config::{ConfigError, Resource};

/// Commands that create, extend, delete or configure topics. The response has one outcome for each topic, in the order
/// of the command.
#[derive(Debug, Clone)]
pub enum TopicsCommand {
    Create(CreateTopics),
    Grow(CreatePartitions),
    Delete(Vec<TopicRef>),
    Alter(AlterTopicConfigs),
}

/// Commands that configure brokers, groups, client metrics and features. The response has one outcome for each of them,
/// in the order of the command.
#[derive(Debug, Clone)]
pub enum ConfigsCommand {
    Brokers(AlterBrokerConfigs),
    Resources(AlterResourceConfigs),
    /// Changes the levels of features. If one update is refused, no level is changed.
    Features(UpdateFeatures),
}

/// Commands on partitions. The response has one outcome for each partition, in the order of the command.
#[derive(Debug, Clone)]
pub enum PartitionsCommand {
    /// A leader requests new ISRs for its partitions.
    AlterIsr(AlterIsr),
    /// A client or the balancer requests leader elections.
    ElectLeaders(ElectLeaders),
}

/// Commands with a single outcome: the whole command is either carried out or refused.
#[derive(Debug, Clone)]
pub enum ChangeCommand {
    /// Forgets deleted topics whose files and rows have been removed.
    ForgetDeleted(Vec<Uuid>),
    /// Registers a starting broker. Carried out in pieces.
    RegisterBroker(RegisterBroker),
    /// Changes a broker's state.
    ChangeBroker(ChangeBroker),
    /// Elects live leaders, and removes failed brokers from ISRs. Carried out in pieces.
    Settle(Urgent),
    /// Reports the ends of a broker's logs, for partitions without a leader. Each entry contains the topic id, the
    /// partition number and the log end.
    ReportLogEnds(BrokerState, Vec<(Uuid, i32, Position)>),
    /// Removes a broker from the ISRs of partitions that it can no longer write or read.
    Resign(BrokerState, Resigned),
}

/// The partitions that a broker can no longer write or read, by topic id and number, with the state of each log.
pub type Resigned = HashMap<(Uuid, i32), ResignedLog>;

/// A command that reserves a new producer id.
#[derive(Debug, Clone, Copy)]
pub struct InitProducerId;

/// Partitions whose leaders and ISRs are decided before those of all others, by topic id and number.
pub type Urgent = Arc<[(Uuid, i32)]>;

/// A change of a broker's state. The same transaction also changes the broker's partitions, or a first piece of them.
#[derive(Debug, Clone)]
pub struct ChangeBroker {
    /// The broker, in the epoch to which the change applies.
    pub broker: BrokerState,
    /// The kind of change, which determines the broker's new state.
    pub change: BrokerChange,
    /// Partitions whose leaders and ISRs are decided before those of all others.
    pub urgent: Urgent,
}

/// The registration of a starting broker, with the addresses that clients use.
#[derive(Debug, Clone)]
pub struct RegisterBroker {
    /// `node.id`
    pub id: i32,
    /// The registering process and its data directory, and how the previous process ended.
    pub joining: Joining,
    /// `broker.rack`
    pub rack: Option<Text>,
    /// True if the broker serves diskless topics.
    pub serves_diskless: bool,
    /// `fullbore.lost.directory.accept`
    pub accepts_lost_directory: bool,
    /// Addresses by listener name.
    pub endpoints: BTreeMap<String, Endpoint>,
}

/// The kind of change of a registered broker's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BrokerChange {
    /// The broker has failed or stopped. Afterwards it leads no partition, and stays in an ISR only if no other replica
    /// could lead.
    Fence,
    /// The broker is alive again after it was fenced.
    Unfence,
    /// The broker is shutting down cleanly, so other replicas take over its leaderships.
    ShutDown,
    /// The broker's disk is full, hangs, or cannot create files. The broker leaves the ISRs of other leaders. It
    /// remains leader only of partitions that no other in-sync replica can lead.
    Full,
    /// The broker's disk works again and has free space.
    Room,
    /// The broker cannot reach the object store. From then on, it serves diskless partitions only if no other broker
    /// can.
    StoreLost,
    /// The broker serves diskless partitions again, because it can reach the object store or no other broker serves
    /// them.
    StoreBack,
}

/// ISR changes that a leader requests (KIP-497). The control plane decides each partition separately.
#[derive(Debug, Clone)]
pub struct AlterIsr {
    /// The leader that sends the request.
    pub from: BrokerState,
    /// The topic id, the partition number and the requested ISR of each partition.
    pub partitions: Vec<(Uuid, i32, AlterPartition)>,
}

/// Leader elections that a client or the balancer requests (KIP-460).
#[derive(Debug, Clone)]
pub struct ElectLeaders {
    /// The rule for choosing the new leader.
    pub kind: ElectionKind,
    /// Partitions by topic name and number.
    pub topics: Vec<(Text, Vec<i32>)>,
}

/// Kafka's `ElectionType`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ElectionKind {
    /// Elects the first replica if it is in the ISR.
    Preferred,
    /// Elects any live replica if the partition has no leader.
    Unclean,
}

/// Topics to create. The control plane decides each topic separately, so a refusal of one does not affect the others.
#[derive(Debug, Clone, Default)]
pub struct CreateTopics {
    pub topics: Vec<CreateTopic>,
    /// If true, the command only returns the outcome and changes nothing. The returned topics then have the id
    /// [`Uuid::ZERO`].
    pub validate_only: bool,
}

/// A topic to create.
#[derive(Debug, Clone, Default)]
pub struct CreateTopic {
    pub name: String,
    /// The number of partitions. -1 means the broker's `num.partitions`, and is also required together with
    /// `assignments`.
    pub num_partitions: i32,
    /// The number of replicas. -1 means the broker's `default.replication.factor`, and is also required together with
    /// `assignments`.
    pub replication_factor: i16,
    /// The brokers of each partition, by partition number. If the list is empty, the control plane chooses the brokers.
    pub assignments: Vec<(i32, Vec<i32>)>,
    /// The topic's settings by name. A value is `None` if the client sent null, which is refused.
    pub configs: Vec<(String, Option<String>)>,
}

/// Topics that get more partitions. The control plane decides each topic separately.
#[derive(Debug, Clone, Default)]
pub struct CreatePartitions {
    pub topics: Vec<GrowTopic>,
    /// If true, the command only returns the outcome and changes nothing.
    pub validate_only: bool,
}

/// A topic that gets more partitions.
#[derive(Debug, Clone, Default)]
pub struct GrowTopic {
    pub name: String,
    /// The number of partitions after the change, including the present ones.
    pub count: i32,
    /// The brokers of each new partition. If `None`, the control plane chooses the brokers.
    pub assignments: Option<Vec<Vec<i32>>>,
}

/// A topic, given by its name or its id.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum TopicRef {
    Name(Text),
    Id(Uuid),
}

/// Topics whose settings change. The control plane decides each topic separately.
#[derive(Debug, Clone, Default)]
pub struct AlterTopicConfigs {
    pub topics: Vec<AlterTopicConfig>,
    /// If true, the command only returns the outcome and changes nothing.
    pub validate_only: bool,
}

/// Changes to one topic's settings. If one change is refused, no setting is changed.
#[derive(Debug, Clone, Default)]
pub struct AlterTopicConfig {
    pub name: String,
    /// The names of the settings and their changes, in the order in which they are applied.
    pub changes: Vec<(String, ConfigChange)>,
}

/// Brokers whose settings change. The control plane decides each entry separately.
#[derive(Debug, Clone, Default)]
pub struct AlterBrokerConfigs {
    pub brokers: Vec<AlterBrokerConfig>,
    /// If true, the command only returns the outcome and changes nothing.
    pub validate_only: bool,
}

/// Changes to the dynamic settings of one broker or of all brokers. If one change is refused, no setting is changed.
#[derive(Debug, Clone)]
pub struct AlterBrokerConfig {
    pub scope: BrokerScope,
    /// The names of the settings and their changes, in the order in which they are applied.
    pub changes: Vec<(String, ConfigChange)>,
}

/// Groups and client metrics subscriptions whose settings change. The control plane decides each of them separately.
#[derive(Debug, Clone, Default)]
pub struct AlterResourceConfigs {
    pub resources: Vec<AlterResourceConfig>,
    /// If true, the command only returns the outcome and changes nothing.
    pub validate_only: bool,
}

/// Changes to the settings of a group or subscription, which need not exist. If one change is refused, no setting is
/// changed.
#[derive(Debug, Clone)]
pub struct AlterResourceConfig {
    pub resource: Resource,
    pub name: String,
    /// The names of the settings and their changes, in the order in which they are applied.
    pub changes: Vec<(String, ConfigChange)>,
}

/// Features whose levels change. If one update is refused, no level is changed.
#[derive(Debug, Clone, Default)]
pub struct UpdateFeatures {
    pub updates: Vec<FeatureUpdate>,
    /// If true, the command only returns the outcome and changes nothing.
    pub validate_only: bool,
}

/// A feature whose level changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeatureUpdate {
    pub name: String,
    /// The new level; 0 disables the feature.
    pub level: i16,
    /// The kind of change; `None` if the client sent a kind that this version does not know.
    pub kind: Option<UpgradeType>,
}

/// Kafka's `FeatureUpdate.UpgradeType`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpgradeType {
    /// The level may rise.
    Upgrade,
    /// The level may fall if no metadata is lost.
    SafeDowngrade,
    /// The level may fall, even if metadata is lost.
    UnsafeDowngrade,
}

/// The brokers to which a setting applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum BrokerScope {
    /// Only the broker that decides the command.
    This,
    /// All brokers of the cluster, except those for which the setting has its own value.
    Every,
}

/// Kafka's `AlterConfigOp`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigChange {
    Set(String),
    /// Removes the override, so that the broker's value applies again.
    Delete,
    /// Removes all overrides. The name in the same entry is ignored.
    DeleteAll,
    /// Adds elements to a list.
    Append(String),
    /// Removes elements from a list.
    Subtract(String),
}

/// The reason for a refusal, which the client receives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub code: ErrorCode,
    /// A complete sentence for the client. Constant texts are borrowed, so a request with many refused entries does not
    /// need an allocation for each.
    pub message: Cow<'static, str>,
}

impl ElectLeaders {
    /// Creates a request for elections in these partitions. Groups consecutive partitions of the same topic.
    pub fn new<N: AsRef<str>>(kind: ElectionKind, partitions: impl IntoIterator<Item = (N, i32)>) -> Self {
        let mut topics: Vec<(Text, Vec<i32>)> = Vec::new();
        for (name, index) in partitions {
            match topics.last_mut() {
                Some((last, partitions)) if last.as_str() == name.as_ref() => partitions.push(index),
                _ => topics.push((Text::from(name.as_ref()), vec![index])),
            }
        }
        ElectLeaders { kind, topics }
    }

    /// Returns the topic name and the number of each partition, in the order of the response.
    pub fn partitions(&self) -> impl Iterator<Item = (&Text, i32)> {
        self.topics.iter().flat_map(|(topic, partitions)| partitions.iter().map(move |index| (topic, *index)))
    }

    /// Returns the number of partitions, which is also the number of outcomes in the response.
    pub fn partition_count(&self) -> usize {
        self.topics.iter().map(|(_, partitions)| partitions.len()).sum()
    }

    /// Converts the request into a value that returns smaller requests one by one.
    pub fn split(self) -> SplitElections {
        SplitElections { kind: self.kind, topics: self.topics.into_iter(), begun: None }
    }
}

/// The elections of a request that are not split off yet.
#[derive(Debug)]
pub struct SplitElections {
    kind: ElectionKind,
    topics: std::vec::IntoIter<(Text, Vec<i32>)>,
    /// The remaining partitions of a topic whose first partitions were split off.
    begun: Option<(Text, Vec<i32>)>,
}

impl SplitElections {
    /// Splits off the next `count` partitions, or all remaining ones if there are fewer. Returns `None` if none remain.
    pub fn next(&mut self, count: usize) -> Option<ElectLeaders> {
        let mut left = count;
        let mut topics = Vec::new();
        while left > 0 {
            let Some((topic, mut partitions)) = self.begun.take().or_else(|| self.topics.next()) else { break };
            if partitions.len() > left {
                self.begun = Some((topic.clone(), partitions.split_off(left)));
            }
            left -= partitions.len();
            topics.push((topic, partitions));
        }
        (!topics.is_empty()).then_some(ElectLeaders { kind: self.kind, topics })
    }
}

impl Refusal {
    pub fn new(code: ErrorCode, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code, message: message.into() }
    }

    /// Creates the refusal for an invalid setting.
    pub fn of_config(error: ConfigError) -> Self {
        Self::new(ErrorCode::INVALID_CONFIG, error.to_string())
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.code, self.message)
    }
}
