//! The settings of a group's member.

use super::assign::Assignor;
use fullbore_wire::Text;
use std::time::Duration;

/// The pause before a request to the coordinator is retried.
pub(super) const RETRY_BACKOFF: Duration = Duration::from_millis(100);
/// How long to wait for a response that does not depend on other members (Kafka's request.timeout.ms).
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// The protocol of a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// The classic protocol with JoinGroup and SyncGroup, in which a member assigns the partitions.
    #[default]
    Classic,
    /// The consumer protocol with ConsumerGroupHeartbeat, in which the broker assigns the partitions (KIP-848).
    Consumer,
}

/// The settings of a member, with Kafka's names and defaults.
#[derive(Clone, Debug)]
pub struct GroupConfig {
    /// group.id.
    pub group: Text,
    /// group.instance.id.
    pub instance: Option<Text>,
    /// The topics to read.
    pub topics: Vec<Text>,
    /// group.protocol.
    pub protocol: Protocol,
    /// session.timeout.ms, for the classic protocol only.
    pub session_timeout: Duration,
    /// heartbeat.interval.ms, for the classic protocol only.
    pub heartbeat_interval: Duration,
    /// max.poll.interval.ms. Members must give up partitions and rejoin within this time.
    pub rebalance_timeout: Duration,
    /// metadata.max.age.ms. The leader checks at this interval if topics have more partitions.
    pub metadata_max_age: Duration,
    /// partition.assignment.strategy, for the classic protocol only. Rebalances are cooperative if cooperative-sticky
    /// is the only assignor.
    pub assignors: Vec<Assignor>,
    /// group.remote.assignor, for KIP-848 only.
    pub remote_assignor: Option<Text>,
    /// If true, the member reads a committed offset only when no open transaction can change it any more (KIP-447). The
    /// member then refuses brokers before 2.5.
    pub require_stable: bool,
}

impl GroupConfig {
    /// Returns settings for a member of this group, with Kafka's defaults.
    pub fn new(group: Text, topics: Vec<Text>) -> Self {
        GroupConfig {
            group,
            instance: None,
            topics,
            protocol: Protocol::Classic,
            session_timeout: Duration::from_secs(45),
            heartbeat_interval: Duration::from_secs(3),
            rebalance_timeout: Duration::from_secs(300),
            metadata_max_age: Duration::from_secs(300),
            assignors: vec![Assignor::Range, Assignor::RoundRobin],
            remote_assignor: None,
            require_stable: false,
        }
    }
}
