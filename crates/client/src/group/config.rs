//! Settings of a group's member.

use super::assign::Assignor;
use fullbore_wire::Text;
use std::time::Duration;

/// Pause before a request to the coordinator is retried.
pub(super) const RETRY_BACKOFF: Duration = Duration::from_millis(100);
/// Longest wait for a response that does not depend on other members (Kafka's request.timeout.ms).
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Protocol of a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// Classic protocol: JoinGroup and SyncGroup; a member assigns the partitions.
    #[default]
    Classic,
    /// Consumer protocol: ConsumerGroupHeartbeat; the broker assigns the partitions (KIP-848).
    Consumer,
}

/// Settings of a member, with Kafka's names and defaults.
#[derive(Clone, Debug)]
pub struct GroupConfig {
    /// group.id.
    pub group: Text,
    /// group.instance.id.
    pub instance: Option<Text>,
    /// Topics to read.
    pub topics: Vec<Text>,
    /// group.protocol.
    pub protocol: Protocol,
    /// session.timeout.ms; classic only.
    pub session_timeout: Duration,
    /// heartbeat.interval.ms; classic only.
    pub heartbeat_interval: Duration,
    /// max.poll.interval.ms: time within which members must give up partitions and rejoin.
    pub rebalance_timeout: Duration,
    /// metadata.max.age.ms: interval at which the leader counts the topics' partitions.
    pub metadata_max_age: Duration,
    /// partition.assignment.strategy; classic only. Rebalances are cooperative if cooperative-sticky is the only
    /// assignor.
    pub assignors: Vec<Assignor>,
    /// group.remote.assignor; KIP-848 only.
    pub remote_assignor: Option<Text>,
    /// True if committed offsets are read only once no open transaction may change them (KIP-447). Then brokers before
    /// 2.5 are refused.
    pub require_stable: bool,
}

impl GroupConfig {
    /// Returns the settings of a member of this group, with Kafka's defaults.
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
