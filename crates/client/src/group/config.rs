//! Settings of a member.

use super::assign::Assignor;
use fullbore_wire::Text;
use std::time::Duration;

/// Time between two requests to a coordinator.
pub(super) const RETRY_BACKOFF: Duration = Duration::from_millis(100);
/// Time limit of a response that does not wait for other members (Kafka's request.timeout.ms).
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Protocol of a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// Classic protocol: JoinGroup and SyncGroup, a member assigns.
    #[default]
    Classic,
    /// Consumer protocol: ConsumerGroupHeartbeat, the broker assigns (KIP-848).
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
    /// max.poll.interval.ms: time in which members must give up partitions and rejoin.
    pub rebalance_timeout: Duration,
    /// metadata.max.age.ms: time between two counts of the partitions.
    pub metadata_max_age: Duration,
    /// partition.assignment.strategy; classic only. If it is cooperative-sticky alone, rebalances are cooperative.
    pub assignors: Vec<Assignor>,
    /// group.remote.assignor; KIP-848 only.
    pub remote_assignor: Option<Text>,
    /// True if committed offsets are read only once no open transaction may change them (KIP-447). Brokers before 2.5
    /// are refused then.
    pub require_stable: bool,
}

impl GroupConfig {
    /// Makes a member of this group with Kafka's defaults.
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
