//! Commands of the control plane, and their outcomes.
//!
//! No storage and no decisions here. An answered outcome is on disk; a refused one changed nothing.

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

/// Commands on topics. Each is answered with the topics, in the order asked.
#[derive(Debug, Clone)]
pub enum TopicsCommand {
    Create(CreateTopics),
    Grow(CreatePartitions),
    Delete(Vec<TopicRef>),
    Alter(AlterTopicConfigs),
}

/// Commands on configurations of other resources than topics. Each is answered in the order asked.
#[derive(Debug, Clone)]
pub enum ConfigsCommand {
    Brokers(AlterBrokerConfigs),
    Resources(AlterResourceConfigs),
    /// All or none.
    Features(UpdateFeatures),
}

/// Commands on partitions. Each is answered with their registrations, in the order asked.
#[derive(Debug, Clone)]
pub enum PartitionsCommand {
    /// Changes of ISRs that a leader proposes.
    AlterIsr(AlterIsr),
    /// Partitions are to be led by another replica.
    ElectLeaders(ElectLeaders),
}

/// Commands that are done as a whole, or refused.
#[derive(Debug, Clone)]
pub enum ChangeCommand {
    /// Forgets deleted topics whose files and rows are removed.
    ForgetDeleted(Vec<Uuid>),
    /// A process takes a broker's place. Carried out in pieces.
    RegisterBroker(RegisterBroker),
    /// A broker's state changes.
    ChangeBroker(ChangeBroker),
    /// Elects live leaders and removes dead brokers from ISRs, in pieces.
    Settle(Urgent),
    /// Ends of logs of a broker that have lost records: partitions by topic id and number.
    ReportLogEnds(BrokerState, Vec<(Uuid, i32, Position)>),
    /// A broker cannot write these partitions any more.
    Resign(BrokerState, Resigned),
}

/// Partitions, by topic id and number, that a broker cannot write any more, with what it knows of their logs.
pub type Resigned = HashMap<(Uuid, i32), ResignedLog>;

/// Takes an id that no producer ever had.
#[derive(Debug, Clone, Copy)]
pub struct InitProducerId;

/// Partitions, by topic id and number, that are settled before others.
pub type Urgent = Arc<[(Uuid, i32)]>;

/// A change of a broker's state, and what follows for partitions: all of it if that is one piece, else the first piece.
#[derive(Debug, Clone)]
pub struct ChangeBroker {
    /// The broker, in the epoch that is meant.
    pub broker: BrokerState,
    /// Its next state.
    pub change: BrokerChange,
    /// Partitions that are settled first.
    pub urgent: Urgent,
}

/// A broker that starts, and where its clients reach it.
#[derive(Debug, Clone)]
pub struct RegisterBroker {
    /// `node.id`
    pub id: i32,
    /// Its folder, its process, and how the one before it ended.
    pub joining: Joining,
    /// `broker.rack`
    pub rack: Option<Text>,
    /// True if the broker serves diskless topics.
    pub serves_diskless: bool,
    /// By the name of the listener.
    pub endpoints: BTreeMap<String, Endpoint>,
}

/// New state of a registered broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BrokerChange {
    /// Fenced: dead or stopped. The broker leads nothing, and is in an ISR only where no other replica can lead.
    Fence,
    /// Alive after a fence.
    Unfence,
    /// In controlled shutdown: its leaderships go to other replicas.
    ShutDown,
    /// Its disk is full, or hangs: it leads only what no other replica in sync may lead, and is in no ISR that another
    /// leads.
    Full,
    /// Its disk has room again, and answers.
    Room,
    /// The object store is lost to it: it serves no diskless partitions, as long as others do.
    StoreLost,
    /// The object store answers it again: it serves diskless partitions.
    StoreBack,
}

/// The ISRs that a leader asks for, each for itself (KIP-497).
#[derive(Debug, Clone)]
pub struct AlterIsr {
    /// The asking leader.
    pub from: BrokerState,
    /// A partition of a topic, by id and number, and what is asked for it.
    pub partitions: Vec<(Uuid, i32, AlterPartition)>,
}

/// Elections that somebody asks for (KIP-460).
#[derive(Debug, Clone)]
pub struct ElectLeaders {
    /// Which replica is to lead.
    pub kind: ElectionKind,
    /// Partitions by topic name and number.
    pub topics: Vec<(Text, Vec<i32>)>,
}

/// Kafka's `ElectionType`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ElectionKind {
    /// The first replica, if it is in sync.
    Preferred,
    /// Any that lives, where none leads.
    Unclean,
}

/// Topics to create, each for itself: one refused does not stop the others.
#[derive(Debug, Clone, Default)]
pub struct CreateTopics {
    pub topics: Vec<CreateTopic>,
    /// True if the outcome is returned without any change. The topics answered then have [`Uuid::ZERO`].
    pub validate_only: bool,
}

/// Topic to create.
#[derive(Debug, Clone, Default)]
pub struct CreateTopic {
    pub name: String,
    /// -1 for the broker's `num.partitions`, or with `assignments`.
    pub num_partitions: i32,
    /// -1 for the broker's `default.replication.factor`, or with `assignments`.
    pub replication_factor: i16,
    /// Partition and its brokers; empty lets the broker choose.
    pub assignments: Vec<(i32, Vec<i32>)>,
    /// Kafka's protocol allows null values; they are refused.
    pub configs: Vec<(String, Option<String>)>,
}

/// Topics that are to have more partitions, each for itself.
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
    /// How many partitions it is to have, old and new.
    pub count: i32,
    /// The brokers of each new partition; `None` lets the broker choose.
    pub assignments: Option<Vec<Vec<i32>>>,
}

/// A topic by name or by id.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum TopicRef {
    Name(Text),
    Id(Uuid),
}

/// Topics whose configuration changes, each for itself.
#[derive(Debug, Clone, Default)]
pub struct AlterTopicConfigs {
    pub topics: Vec<AlterTopicConfig>,
    /// True if the outcome is returned without any change.
    pub validate_only: bool,
}

/// Changes to one topic's configuration, all or none.
#[derive(Debug, Clone, Default)]
pub struct AlterTopicConfig {
    pub name: String,
    /// Config name and what happens to it, in order.
    pub changes: Vec<(String, ConfigChange)>,
}

/// Brokers whose configuration changes, each for itself.
#[derive(Debug, Clone, Default)]
pub struct AlterBrokerConfigs {
    pub brokers: Vec<AlterBrokerConfig>,
    /// True if the outcome is returned without any change.
    pub validate_only: bool,
}

/// Changes to what is set for brokers while they run, all or none.
#[derive(Debug, Clone)]
pub struct AlterBrokerConfig {
    pub scope: BrokerScope,
    /// Config name and what happens to it, in order.
    pub changes: Vec<(String, ConfigChange)>,
}

/// Groups and clients' metrics whose configuration changes, each for itself.
#[derive(Debug, Clone, Default)]
pub struct AlterResourceConfigs {
    pub resources: Vec<AlterResourceConfig>,
    /// True if the outcome is returned without any change.
    pub validate_only: bool,
}

/// Changes to what one of them sets, all or none. It need not exist.
#[derive(Debug, Clone)]
pub struct AlterResourceConfig {
    pub resource: Resource,
    pub name: String,
    /// Config name and what happens to it, in order.
    pub changes: Vec<(String, ConfigChange)>,
}

/// Features that are to have other levels, all or none.
#[derive(Debug, Clone, Default)]
pub struct UpdateFeatures {
    pub updates: Vec<FeatureUpdate>,
    /// True if the outcome is returned without any change.
    pub validate_only: bool,
}

/// Feature that is to have another level.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeatureUpdate {
    pub name: String,
    /// 0 switches it off.
    pub level: i16,
    /// `None` is one that this version does not know.
    pub kind: Option<UpgradeType>,
}

/// Kafka's `FeatureUpdate.UpgradeType`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpgradeType {
    /// The level may rise.
    Upgrade,
    /// The level may fall if nothing is lost.
    SafeDowngrade,
    /// The level may fall.
    UnsafeDowngrade,
}

/// Brokers that a configuration applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum BrokerScope {
    /// This broker alone.
    This,
    /// Every broker of the cluster, unless it has a value of its own.
    Every,
}

/// Kafka's `AlterConfigOp`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigChange {
    Set(String),
    /// Back to the broker's value.
    Delete,
    /// Every value that is set, whatever the name beside it.
    DeleteAll,
    /// Lists only.
    Append(String),
    /// Lists only.
    Subtract(String),
}

/// Why something was not done, as clients are told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub code: ErrorCode,
    /// Sentence; a constant one takes no memory, however many entries have it.
    pub message: Cow<'static, str>,
}

impl ElectLeaders {
    /// Elections for partitions by topic name and number, those of one topic behind each other.
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

    /// Each partition, in the order of the outcomes.
    pub fn partitions(&self) -> impl Iterator<Item = (&Text, i32)> {
        self.topics.iter().flat_map(|(topic, partitions)| partitions.iter().map(move |index| (topic, *index)))
    }

    /// The number of outcomes.
    pub fn partition_count(&self) -> usize {
        self.topics.iter().map(|(_, partitions)| partitions.len()).sum()
    }
}

impl Refusal {
    pub fn new(code: ErrorCode, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code, message: message.into() }
    }

    /// A configuration that cannot be had.
    pub fn of_config(error: ConfigError) -> Self {
        Self::new(ErrorCode::INVALID_CONFIG, error.to_string())
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.code, self.message)
    }
}
