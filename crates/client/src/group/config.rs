//! A member's settings.

use super::assign::Assignor;
use fullbore_wire::Text;
use std::time::Duration;

/// The pause before a coordinator is asked again.
pub(super) const RETRY_BACKOFF: Duration = Duration::from_millis(100);
/// How long an answer may take that waits for no other member (Kafka's request.timeout.ms).
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Which protocol a member speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// JoinGroup and SyncGroup: a member assigns.
    #[default]
    Classic,
    /// ConsumerGroupHeartbeat: the broker assigns (KIP-848).
    Consumer,
}

/// A member's settings; names and defaults are those of Kafka's consumer.
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
    /// max.poll.interval.ms: how long members may take to let go and come back.
    pub rebalance_timeout: Duration,
    /// metadata.max.age.ms: how often partitions are counted again.
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
    /// A member of this group with Kafka's defaults.
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
