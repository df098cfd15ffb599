//! The decisions of a leader: which part of the log is replicated, and when the ISR changes.
//!
//! The role and the high watermark itself are in `partition`. The rules are those of `kafka.cluster.Partition`.

use super::follower::Replica;
use super::state::PartitionState;
use super::{AlterPartition, BrokerState, NO_BROKER_EPOCH, Now, PartitionRegistration, ReplicaSettings};

/// State that a broker has while it leads a partition.
#[derive(Clone, Debug)]
pub(super) struct Leader {
    /// The epoch in which this broker became the leader. It has been the leader in every epoch since then that it knows
    /// of, so its log has not been truncated.
    pub since_epoch: i32,
    /// The offset at which the log ended when the current leader epoch began.
    pub epoch_start_offset: i64,
    pub state: PartitionState,
    /// True if a replica outside the ISR may be elected (`elr`, `lost`). The leader then commits nothing, because that
    /// replica might lack its new records.
    pub may_others_lead: bool,
    /// All replicas except that of the leader.
    pub followers: Vec<Replica>,
}

impl Leader {
    /// Creates the state for a new epoch.
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

    /// Updates the replicas and the ISR. Replicas that stay keep their state.
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

    /// Returns the `min.insync.replicas` in force, which is at most the number of replicas, as in Kafka since 3.7.
    pub fn isr_min(&self, settings: &ReplicaSettings) -> usize {
        settings.min_insync_replicas.min(self.followers.len() + 1)
    }

    /// Returns true if acks=all must be refused because the ISR is smaller than `min.insync.replicas`.
    pub fn is_under_min_isr(&self, settings: &ReplicaSettings) -> bool {
        self.state.isr().len() < self.isr_min(settings)
    }

    /// Returns the offset up to which all relevant replicas have the log. These are the members of the ISR, and a
    /// replica that the control plane might already have added to it. Caught-up replicas that are allowed to join count
    /// as well: without them the high watermark could pass their log ends, and they could not join. Returns None while
    /// the leader must not commit: the ISR is below `min.insync.replicas` (KIP-966), or a replica outside the ISR may
    /// be elected (`elr`, `lost`).
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

    /// Returns true if the replica may join the ISR. No change may be pending, and the replica must be outside the ISR
    /// and eligible. The replica must also have all committed records, and all records from before this leader's epoch.
    pub fn may_join(&self, replica: &Replica, high_watermark: i64, now: &Now<'_>) -> bool {
        !self.state.is_pending()
            && !self.state.isr().contains(&replica.broker_id)
            && replica.log_end_offset >= high_watermark.max(self.epoch_start_offset)
            && is_eligible(replica, now)
    }

    /// Notes that the log is about to grow beyond `log_end`. The lag of an ISR member that has all records before
    /// `log_end` begins now. A replica outside the ISR counts as caught up only by its fetches.
    pub fn grows_past(&mut self, log_end: i64, now_ms: i64) {
        let Leader { state, followers, .. } = self;
        let in_sync = followers.iter_mut().filter(|replica| state.isr().contains(&replica.broker_id));
        in_sync.for_each(|replica| replica.lacks_from_now_on(log_end, now_ms));
    }

    /// Returns a replica that has all records and may join the ISR, if there is one.
    pub fn joining(&self, log_end: i64, high_watermark: i64, now: &Now<'_>) -> Option<i32> {
        let complete = self.followers.iter().filter(|replica| replica.log_end_offset == log_end);
        complete
            .map(|replica| (replica, replica.broker_id))
            .find(|(replica, _)| self.may_join(replica, high_watermark, now))
            .map(|(_, id)| id)
    }

    /// Returns the members of the ISR whose lag exceeds the limit.
    pub fn lagging(&self, log_end: i64, settings: &ReplicaSettings, now: &Now<'_>) -> Vec<i32> {
        let lag_ms = settings.replica_lag_time_max_ms;
        let in_sync = self.followers.iter().filter(|replica| self.state.isr().contains(&replica.broker_id));
        in_sync
            .filter(|replica| !replica.is_caught_up(log_end, now.ms, lag_ms))
            .map(|replica| replica.broker_id)
            .collect()
    }

    /// Returns the request to add `joining` to the ISR and to remove `leaving` from it.
    pub fn proposal(
        &self,
        leader_epoch: i32,
        partition_epoch: i32,
        joining: Option<i32>,
        leaving: &[i32],
        now: &Now<'_>,
    ) -> AlterPartition {
        let stay = self.state.isr().iter().copied().filter(|id| !leaving.contains(id));
        let member = |broker_id| match self.followers.iter().find(|replica| replica.broker_id == broker_id) {
            Some(replica) => BrokerState { broker_id, broker_epoch: replica.broker_epoch.unwrap_or(NO_BROKER_EPOCH) },
            None => BrokerState { broker_id, broker_epoch: now.broker_epoch },
        };
        AlterPartition { leader_epoch, partition_epoch, new_isr: stay.chain(joining).map(member).collect() }
    }
}

/// Returns true if the replica's broker may be in the ISR. The broker must be unfenced, must not be about to stop, and
/// must have room on its disk. It must not have registered again since its last fetch (KIP-841, KIP-903).
fn is_eligible(replica: &Replica, now: &Now<'_>) -> bool {
    now.brokers.get(&replica.broker_id).is_some_and(|broker| {
        let is_the_same = replica.broker_epoch.is_none_or(|epoch| epoch == NO_BROKER_EPOCH || epoch == broker.epoch);
        broker.is_fit() && is_the_same
    })
}
