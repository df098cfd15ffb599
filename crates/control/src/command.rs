//! Commands of the control plane, and their outcomes.
//!
//! Not here: storage and decisions. A caller gets an outcome only once it is on disk. A refused command has changed
//! nothing, with two exceptions: REQUEST_TIMED_OUT also stands for an unknown outcome, and pieces committed before a
//! refusal stay in force.

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

/// Commands on topics. The answer has an outcome for each topic, in the order of the command.
#[derive(Debug, Clone)]
pub enum TopicsCommand {
    Create(CreateTopics),
    Grow(CreatePartitions),
    Delete(Vec<TopicRef>),
    Alter(AlterTopicConfigs),
}

/// Commands on configurations of brokers and of other resources than topics. The answer has an outcome for each
/// resource, in the order of the command.
#[derive(Debug, Clone)]
pub enum ConfigsCommand {
    Brokers(AlterBrokerConfigs),
    Resources(AlterResourceConfigs),
    /// Changes of feature levels. If one is refused, all are.
    Features(UpdateFeatures),
}

/// Commands on partitions. The answer has the registration of each partition, in the order of the command.
#[derive(Debug, Clone)]
pub enum PartitionsCommand {
    /// ISR changes that a leader proposes.
    AlterIsr(AlterIsr),
    /// Elections of other leaders.
    ElectLeaders(ElectLeaders),
}

/// Commands with one outcome: done as a whole, or refused.
#[derive(Debug, Clone)]
pub enum ChangeCommand {
    /// Forgets deleted topics whose files and rows are removed.
    ForgetDeleted(Vec<Uuid>),
    /// Registers a process as a broker, in pieces.
    RegisterBroker(RegisterBroker),
    /// Changes a broker's state.
    ChangeBroker(ChangeBroker),
    /// Elects live leaders and removes failed brokers from ISRs, in pieces.
    Settle(Urgent),
    /// Reports a broker's log ends of partitions without a leader, by topic id and partition number.
    ReportLogEnds(BrokerState, Vec<(Uuid, i32, Position)>),
    /// Removes a broker from the ISRs of partitions that it can no longer write.
    Resign(BrokerState, Resigned),
}

/// Partitions, by topic id and number, that a broker can no longer write, with the state of their logs.
pub type Resigned = HashMap<(Uuid, i32), ResignedLog>;

/// Command that takes a new producer id.
#[derive(Debug, Clone, Copy)]
pub struct InitProducerId;

/// Partitions, by topic id and number, whose leaders and ISRs are decided first.
pub type Urgent = Arc<[(Uuid, i32)]>;

/// Change of a broker's state. The consequences for partitions are decided in the same transaction: all of them, or the
/// first piece.
#[derive(Debug, Clone)]
pub struct ChangeBroker {
    /// Broker, in the epoch for which the change is meant.
    pub broker: BrokerState,
    /// Next state of the broker.
    pub change: BrokerChange,
    /// Partitions whose leaders and ISRs are decided first.
    pub urgent: Urgent,
}

/// Registration of a starting broker, with the addresses for its clients.
#[derive(Debug, Clone)]
pub struct RegisterBroker {
    /// `node.id`
    pub id: i32,
    /// Data directory, process, and how the former process ended.
    pub joining: Joining,
    /// `broker.rack`
    pub rack: Option<Text>,
    /// True if the broker serves diskless topics.
    pub serves_diskless: bool,
    /// Addresses by listener name.
    pub endpoints: BTreeMap<String, Endpoint>,
}

/// New state of a registered broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BrokerChange {
    /// The broker has failed or stopped. It leads nothing, and stays in an ISR only if no other replica can lead.
    Fence,
    /// The broker is alive again after a fence.
    Unfence,
    /// The broker is in controlled shutdown: other replicas take over its leaderships.
    ShutDown,
    /// The broker's disk is full or hangs. The broker keeps only leaderships that no other in-sync replica can take. It
    /// leaves the ISRs of other leaders.
    Full,
    /// The broker's disk has space again, and responds.
    Room,
    /// The broker cannot reach the object store. It serves no diskless partitions while other brokers do.
    StoreLost,
    /// The broker reaches the object store again, and serves diskless partitions.
    StoreBack,
}

/// ISRs that a leader requests (KIP-497). Each is decided separately.
#[derive(Debug, Clone)]
pub struct AlterIsr {
    /// Leader that sends the request.
    pub from: BrokerState,
    /// Topic id, partition number and requested ISR.
    pub partitions: Vec<(Uuid, i32, AlterPartition)>,
}

/// Elections that a client or the balancer requests (KIP-460).
#[derive(Debug, Clone)]
pub struct ElectLeaders {
    /// Rule by which the leader is chosen.
    pub kind: ElectionKind,
    /// Partitions by topic name and number.
    pub topics: Vec<(Text, Vec<i32>)>,
}

/// Kafka's `ElectionType`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ElectionKind {
    /// Elects the first replica, if it is in sync.
    Preferred,
    /// Elects any live replica, if the partition has no leader.
    Unclean,
}

/// Topics to create. Each is decided separately: a refused topic does not stop the others.
#[derive(Debug, Clone, Default)]
pub struct CreateTopics {
    pub topics: Vec<CreateTopic>,
    /// True to return the outcome without any change. The returned topics then have [`Uuid::ZERO`].
    pub validate_only: bool,
}

/// Topic to create.
#[derive(Debug, Clone, Default)]
pub struct CreateTopic {
    pub name: String,
    /// Number of partitions; -1 for the broker's `num.partitions`, or with `assignments`.
    pub num_partitions: i32,
    /// Number of replicas; -1 for the broker's `default.replication.factor`, or with `assignments`.
    pub replication_factor: i16,
    /// Partition numbers and their brokers. An empty list lets the control plane choose.
    pub assignments: Vec<(i32, Vec<i32>)>,
    /// Names and values of settings. A null value of Kafka's protocol is `None`, and is refused.
    pub configs: Vec<(String, Option<String>)>,
}

/// Topics to add partitions to. Each is decided separately.
#[derive(Debug, Clone, Default)]
pub struct CreatePartitions {
    pub topics: Vec<GrowTopic>,
    /// True if the outcome is returned without any change.
    pub validate_only: bool,
}

/// Topic to add partitions to.
#[derive(Debug, Clone, Default)]
pub struct GrowTopic {
    pub name: String,
    /// Number of partitions after the change, old and new together.
    pub count: i32,
    /// Brokers of each new partition; `None` lets the control plane choose.
    pub assignments: Option<Vec<Vec<i32>>>,
}

/// Topic by name or by id.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum TopicRef {
    Name(Text),
    Id(Uuid),
}

/// Topics whose configuration changes. Each is decided separately.
#[derive(Debug, Clone, Default)]
pub struct AlterTopicConfigs {
    pub topics: Vec<AlterTopicConfig>,
    /// True if the outcome is returned without any change.
    pub validate_only: bool,
}

/// Changes of one topic's configuration. If one is refused, all are.
#[derive(Debug, Clone, Default)]
pub struct AlterTopicConfig {
    pub name: String,
    /// Config names and their changes, in order.
    pub changes: Vec<(String, ConfigChange)>,
}

/// Brokers whose configuration changes. Each is decided separately.
#[derive(Debug, Clone, Default)]
pub struct AlterBrokerConfigs {
    pub brokers: Vec<AlterBrokerConfig>,
    /// True if the outcome is returned without any change.
    pub validate_only: bool,
}

/// Changes of the dynamic settings of one broker or of every broker. If one is refused, all are.
#[derive(Debug, Clone)]
pub struct AlterBrokerConfig {
    pub scope: BrokerScope,
    /// Config names and their changes, in order.
    pub changes: Vec<(String, ConfigChange)>,
}

/// Groups and client metrics subscriptions whose configuration changes. Each is decided separately.
#[derive(Debug, Clone, Default)]
pub struct AlterResourceConfigs {
    pub resources: Vec<AlterResourceConfig>,
    /// True if the outcome is returned without any change.
    pub validate_only: bool,
}

/// Changes of one resource's settings. If one is refused, all are. The resource need not exist.
#[derive(Debug, Clone)]
pub struct AlterResourceConfig {
    pub resource: Resource,
    pub name: String,
    /// Config names and their changes, in order.
    pub changes: Vec<(String, ConfigChange)>,
}

/// Features whose levels change. If one update is refused, all are.
#[derive(Debug, Clone, Default)]
pub struct UpdateFeatures {
    pub updates: Vec<FeatureUpdate>,
    /// True if the outcome is returned without any change.
    pub validate_only: bool,
}

/// Feature whose level changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeatureUpdate {
    pub name: String,
    /// New level; 0 switches the feature off.
    pub level: i16,
    /// Kind of change; `None` if this version of Fullbore does not know the kind.
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

/// Brokers that a configuration applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum BrokerScope {
    /// This broker alone.
    This,
    /// Every broker of the cluster that has no value of its own.
    Every,
}

/// Kafka's `AlterConfigOp`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigChange {
    Set(String),
    /// Removes the override; the broker's value then holds.
    Delete,
    /// Removes every override; the setting's name beside this change is ignored.
    DeleteAll,
    /// Adds elements to a list.
    Append(String),
    /// Removes elements from a list.
    Subtract(String),
}

/// Reason for a refusal, as clients receive it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub code: ErrorCode,
    /// Whole sentence for the client. A constant text is borrowed, so that a request with many refused entries needs no
    /// allocation for each.
    pub message: Cow<'static, str>,
}

impl ElectLeaders {
    /// Returns elections for these partitions. Consecutive partitions of one topic share an entry.
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

    /// Returns topic name and number of each partition, in the order of the outcomes.
    pub fn partitions(&self) -> impl Iterator<Item = (&Text, i32)> {
        self.topics.iter().flat_map(|(topic, partitions)| partitions.iter().map(move |index| (topic, *index)))
    }

    /// Returns the number of outcomes.
    pub fn partition_count(&self) -> usize {
        self.topics.iter().map(|(_, partitions)| partitions.len()).sum()
    }
}

impl Refusal {
    pub fn new(code: ErrorCode, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code, message: message.into() }
    }

    /// Returns the refusal of an invalid configuration.
    pub fn of_config(error: ConfigError) -> Self {
        Self::new(ErrorCode::INVALID_CONFIG, error.to_string())
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.code, self.message)
    }
}
