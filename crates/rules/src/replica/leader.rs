//! Decisions of a leader: how far its log is replicated, and which follower joins or leaves the ISR.
//!
//! Not here: the role, and the high watermark itself (see `partition`). Every rule is Kafka's, of
//! `kafka.cluster.Partition`.

use super::follower::Replica;
use super::state::PartitionState;
use super::{AlterPartition, BrokerState, NO_BROKER_EPOCH, Now, PartitionRegistration, ReplicaSettings};

/// A leader's knowledge of the others.
#[derive(Clone, Debug)]
pub(super) struct Leader {
    /// The first epoch of those that this broker has led without a break; its log has not been truncated since.
    pub since_epoch: i32,
    /// End of the log when the epoch began.
    pub epoch_start_offset: i64,
    pub state: PartitionState,
    /// True if the metadata has others who may lead, since nothing was committed without them (`elr`, `lost`).
    pub may_others_lead: bool,
    /// Every replica but its own.
    pub followers: Vec<Replica>,
}

impl Leader {
    /// A leader of a new epoch.
    pub fn new(
        broker_id: i32,
        registration: &PartitionRegistration,
        since_epoch: i32,
        epoch_start_offset: i64,
        now_ms: i64,
    ) -> Leader {
        let mut leader = Leader {
            since_epoch,
            epoch_start_offset,
            state: PartitionState::committed(&registration.isr),
            may_others_lead: false,
            followers: Vec::new(),
        };
        leader.assign(broker_id, registration, now_ms);
        leader
    }

    /// Takes over the replicas and the ISR. Keeps what is known of replicas that stay.
    pub fn assign(&mut self, broker_id: i32, registration: &PartitionRegistration, now_ms: i64) {
        let before = std::mem::replace(&mut self.state, PartitionState::committed(&registration.isr));
        self.may_others_lead = !registration.elr.is_empty() || !registration.lost.is_empty();
        let others = registration.replicas.iter().filter(|id| **id != broker_id);
        let known = std::mem::take(&mut self.followers);
        self.followers = others
            .map(|id| match known.iter().find(|replica| replica.broker_id == *id) {
                Some(replica) => {
                    let mut replica = replica.clone();
                    if before.isr().contains(id) && !registration.isr.contains(id) {
                        replica.left_isr();
                    }
                    replica
                }
                None => Replica::new(*id, registration.isr.contains(id), now_ms),
            })
            .collect();
    }

    /// The least ISR that acks=all asks for: not more than there are replicas, since Kafka 3.7.
    pub fn isr_min(&self, settings: &ReplicaSettings) -> usize {
        settings.min_insync_replicas.min(self.followers.len() + 1)
    }

    /// Returns true if acks=all is refused.
    pub fn is_under_min_isr(&self, settings: &ReplicaSettings) -> bool {
        self.state.isr().len() < self.isr_min(settings)
    }

    /// Up to where every replica has the log that is in the ISR, or may be by now, or is about to join it: one that
    /// keeps up is waited for, or it could never reach a high watermark that moves all the time. `None` while the
    /// ISR is below its least (KIP-966), here or by the settings of whoever decided on it.
    pub fn replicated(&self, log_end: i64, settings: &ReplicaSettings, now: &Now<'_>) -> Option<i64> {
        if self.is_under_min_isr(settings) || self.may_others_lead {
            return None;
        }
        let behind = self.followers.iter().filter(|replica| replica.log_end_offset < log_end);
        let counts = behind.filter(|replica| {
            self.state.may_be_in_sync(replica.broker_id)
                || (replica.is_caught_up(log_end, now.ms, settings.replica_lag_time_max_ms)
                    && is_eligible(replica, now))
        });
        Some(counts.map(|replica| replica.log_end_offset).min().unwrap_or(log_end))
    }

    /// Returns true if the replica may join: it has all that is committed, and all that there was when this leader
    /// began.
    pub fn may_join(&self, replica: &Replica, high_watermark: i64, now: &Now<'_>) -> bool {
        !self.state.is_pending()
            && !self.state.isr().contains(&replica.broker_id)
            && replica.log_end_offset >= high_watermark.max(self.epoch_start_offset)
            && is_eligible(replica, now)
    }

    /// The log goes on past this end: who is in sync and has everything until there lacks something only from now on.
    /// One that is not in sync has to fetch to be waited for.
    pub fn grows_past(&mut self, log_end: i64, now_ms: i64) {
        let Leader { state, followers, .. } = self;
        let in_sync = followers.iter_mut().filter(|replica| state.isr().contains(&replica.broker_id));
        in_sync.for_each(|replica| replica.lacks_from_now_on(log_end, now_ms));
    }

    /// A replica that has everything and may join.
    pub fn joining(&self, log_end: i64, high_watermark: i64, now: &Now<'_>) -> Option<i32> {
        let complete = self.followers.iter().filter(|replica| replica.log_end_offset == log_end);
        complete
            .map(|replica| (replica, replica.broker_id))
            .find(|(replica, _)| self.may_join(replica, high_watermark, now))
            .map(|(_, id)| id)
    }

    /// Members of the ISR that have been behind for too long.
    pub fn lagging(&self, log_end: i64, settings: &ReplicaSettings, now: &Now<'_>) -> Vec<i32> {
        let lag_ms = settings.replica_lag_time_max_ms;
        let in_sync = self.followers.iter().filter(|replica| self.state.isr().contains(&replica.broker_id));
        in_sync
            .filter(|replica| !replica.is_caught_up(log_end, now.ms, lag_ms))
            .map(|replica| replica.broker_id)
            .collect()
    }

    /// The ISR with `joining` and without `leaving`, as it is asked for.
    pub fn proposal(&self, epochs: (i32, i32), joining: Option<i32>, leaving: &[i32], now: &Now<'_>) -> AlterPartition {
        let stay = self.state.isr().iter().copied().filter(|id| !leaving.contains(id));
        let member = |broker_id| match self.followers.iter().find(|replica| replica.broker_id == broker_id) {
            Some(replica) => BrokerState { broker_id, broker_epoch: replica.broker_epoch.unwrap_or(NO_BROKER_EPOCH) },
            None => BrokerState { broker_id, broker_epoch: now.broker_epoch },
        };
        let (leader_epoch, partition_epoch) = epochs;
        AlterPartition { leader_epoch, partition_epoch, new_isr: stay.chain(joining).map(member).collect() }
    }
}

/// Returns true if the replica's broker may be in the ISR: it serves, stays, has room, and is the one that fetched
/// (KIP-841, KIP-903).
fn is_eligible(replica: &Replica, now: &Now<'_>) -> bool {
    now.brokers.get(&replica.broker_id).is_some_and(|broker| {
        let is_the_same = replica.broker_epoch.is_none_or(|epoch| epoch == NO_BROKER_EPOCH || epoch == broker.epoch);
        broker.is_fit() && is_the_same
    })
}
