//! Role of one partition on one broker, and the events that change it.
//!
//! Not here: decisions of a leader (see `leader`). Invariant: an event of a leader epoch that is not the present one
//! changes nothing.

use super::leader::Leader;
use super::{
    Acknowledgement, AlterPartition, Effects, FollowerFetch, LocalLog, NO_EPOCH, Now, PartitionRegistration,
    ReplicaSettings, RoleChange,
};
use fullbore_wire::ErrorCode;

#[derive(Clone, Debug)]
enum Role {
    Neither,
    Follower { leader: Option<i32> },
    Leader(Box<Leader>),
}

/// Partition on one broker (Kafka's `kafka.cluster.Partition`).
#[derive(Clone, Debug)]
pub struct Partition {
    broker_id: i32,
    settings: ReplicaSettings,
    log_end: i64,
    high_watermark: i64,
    leader_epoch: i32,
    partition_epoch: i32,
    role: Role,
}

impl Partition {
    /// Creates the partition before this broker has its metadata: neither leader nor follower.
    pub fn new(broker_id: i32, log: LocalLog, settings: ReplicaSettings) -> Partition {
        Partition {
            broker_id,
            settings,
            log_end: log.end_offset,
            high_watermark: log.high_watermark.max(log.start_offset).min(log.end_offset),
            leader_epoch: NO_EPOCH,
            partition_epoch: NO_EPOCH,
            role: Role::Neither,
        }
    }

    /// Returns the high watermark, up to which readers see the log.
    pub fn high_watermark(&self) -> i64 {
        self.high_watermark
    }

    /// Returns the leader epoch, or [`NO_EPOCH`].
    pub fn leader_epoch(&self) -> i32 {
        self.leader_epoch
    }

    /// Returns the leader known to this broker; None if there is none.
    pub fn leader(&self) -> Option<i32> {
        match &self.role {
            Role::Neither => None,
            Role::Follower { leader } => *leader,
            Role::Leader(_) => Some(self.broker_id),
        }
    }

    /// Returns true if this broker leads.
    pub fn is_leader(&self) -> bool {
        matches!(self.role, Role::Leader(_))
    }

    /// Returns the ISR if this broker leads; an empty one otherwise.
    pub fn isr(&self) -> &[i32] {
        match &self.role {
            Role::Leader(leader) => leader.state.isr(),
            _ => &[],
        }
    }

    /// Returns true if [`Partition::tick`] may have something to do.
    pub fn has_followers(&self) -> bool {
        matches!(&self.role, Role::Leader(leader) if !leader.followers.is_empty())
    }

    /// Applies the partition's newest metadata. Metadata that is not newer than the last changes nothing: a requested
    /// change of the ISR then stays requested.
    ///
    /// A new leader epoch resets the state of the followers even if the leader stays. The broker may have skipped
    /// metadata of another leader's epoch, in which a follower truncated its log. (Kafka keeps the state if the leader
    /// stays.)
    pub fn apply(&mut self, registration: &PartitionRegistration, now: &Now<'_>) -> Effects {
        if registration.partition_epoch <= self.partition_epoch || registration.leader_epoch < self.leader_epoch {
            return Effects::default();
        }
        let is_new_epoch = registration.leader_epoch > self.leader_epoch;
        self.leader_epoch = registration.leader_epoch;
        self.partition_epoch = registration.partition_epoch;
        let role = if !registration.replicas.contains(&self.broker_id) {
            self.stop()
        } else if registration.leader == Some(self.broker_id) {
            self.lead(registration, is_new_epoch, now)
        } else {
            self.follow(registration.leader, is_new_epoch)
        };
        Effects { role, high_watermark: self.advance(now), propose: None }
    }

    fn stop(&mut self) -> Option<RoleChange> {
        let was = std::mem::replace(&mut self.role, Role::Neither);
        (!matches!(was, Role::Neither)).then_some(RoleChange::Stop)
    }

    fn lead(&mut self, registration: &PartitionRegistration, is_new_epoch: bool, now: &Now<'_>) -> Option<RoleChange> {
        let since_epoch = match &mut self.role {
            Role::Leader(leader) if !is_new_epoch => {
                leader.assign(self.broker_id, registration, now.ms);
                return None;
            }
            Role::Leader(leader) => leader.since_epoch,
            _ => self.leader_epoch,
        };
        let leader = Leader::new(self.broker_id, registration, since_epoch, self.log_end, now.ms);
        self.role = Role::Leader(Box::new(leader));
        Some(RoleChange::Lead { epoch: self.leader_epoch, start_offset: self.log_end })
    }

    fn follow(&mut self, leader: Option<i32>, is_new_epoch: bool) -> Option<RoleChange> {
        let is_change = is_new_epoch || matches!(self.role, Role::Neither);
        self.role = Role::Follower { leader };
        is_change.then_some(RoleChange::Follow { epoch: self.leader_epoch, leader })
    }

    /// Applies new settings.
    pub fn configure(&mut self, settings: ReplicaSettings, now: &Now<'_>) -> Effects {
        self.settings = settings;
        Effects { high_watermark: self.advance(now), ..Effects::default() }
    }

    /// Checks that a request has the present leader epoch; -1 always passes.
    ///
    /// # Errors
    ///
    /// FENCED_LEADER_EPOCH for an older epoch, UNKNOWN_LEADER_EPOCH for a newer one.
    pub fn check_leader_epoch(&self, epoch: i32) -> Result<(), ErrorCode> {
        match epoch {
            NO_EPOCH => Ok(()),
            older if older < self.leader_epoch => Err(ErrorCode::FENCED_LEADER_EPOCH),
            newer if newer > self.leader_epoch => Err(ErrorCode::UNKNOWN_LEADER_EPOCH),
            _ => Ok(()),
        }
    }

    /// Checks that a batch may be appended.
    ///
    /// # Errors
    /// NOT_LEADER_OR_FOLLOWER if this broker does not lead; NOT_ENOUGH_REPLICAS for acks=all if the ISR is below
    /// `min.insync.replicas`.
    pub fn check_append(&self, is_acks_all: bool) -> Result<(), ErrorCode> {
        match &self.role {
            Role::Leader(leader) if is_acks_all && leader.is_under_min_isr(&self.settings) => {
                Err(ErrorCode::NOT_ENOUGH_REPLICAS)
            }
            Role::Leader(_) => Ok(()),
            _ => Err(ErrorCode::NOT_LEADER_OR_FOLLOWER),
        }
    }

    /// Records the new end of the leader's log.
    pub fn appended(&mut self, log_end: i64, now: &Now<'_>) -> Effects {
        debug_assert!(self.is_leader() && log_end >= self.log_end, "a leader's log grows");
        if let Role::Leader(leader) = &mut self.role {
            leader.grows_past(self.log_end, now.ms);
        }
        self.log_end = log_end;
        Effects { high_watermark: self.advance(now), ..Effects::default() }
    }

    /// Records the position of a follower's fetch, as leader. Proposes that the follower joins the ISR, if it may.
    ///
    /// # Errors
    ///
    /// Errors of [`Partition::check_leader_epoch`]. NOT_LEADER_OR_FOLLOWER if this broker does not lead, the fetch has
    /// no epoch, or the follower has since registered again. UNKNOWN_LEADER_EPOCH for a broker without a replica in
    /// this broker's metadata. OFFSET_OUT_OF_RANGE past the log end.
    pub fn fetched(&mut self, fetch: &FollowerFetch, now: &Now<'_>) -> Result<Effects, ErrorCode> {
        self.check_leader_epoch(fetch.leader_epoch)?;
        let Role::Leader(leader) = &mut self.role else { return Err(ErrorCode::NOT_LEADER_OR_FOLLOWER) };
        if fetch.leader_epoch == NO_EPOCH {
            return Err(ErrorCode::NOT_LEADER_OR_FOLLOWER);
        }
        let at = leader.followers.iter().position(|replica| replica.broker_id == fetch.broker_id);
        let at = at.ok_or(ErrorCode::UNKNOWN_LEADER_EPOCH)?;
        if fetch.offset > self.log_end {
            return Err(ErrorCode::OFFSET_OUT_OF_RANGE);
        }
        leader.followers[at].fetched(fetch, self.log_end, now.ms)?;
        let epochs = (self.leader_epoch, self.partition_epoch);
        let joins = leader.may_join(&leader.followers[at], self.high_watermark, now);
        let propose = joins.then(|| {
            let proposal = leader.proposal(epochs, Some(fetch.broker_id), &[], now);
            leader.state.propose(proposal, Some(fetch.broker_id))
        });
        Ok(Effects { role: None, high_watermark: self.advance(now), propose })
    }

    /// Records the log start in a follower's fetch of this epoch, as leader.
    pub fn begins_at(&mut self, broker_id: i32, log_start: i64) {
        if let Role::Leader(leader) = &mut self.role
            && let Some(replica) = leader.followers.iter_mut().find(|replica| replica.broker_id == broker_id)
        {
            replica.log_start_offset = log_start;
        }
    }

    /// Returns true if no replica in sync has records before this offset, as leader.
    ///
    /// # Errors
    ///
    /// NOT_LEADER_OR_FOLLOWER if this broker does not lead.
    pub fn is_deleted_before(&self, offset: i64) -> Result<bool, ErrorCode> {
        let Role::Leader(leader) = &self.role else { return Err(ErrorCode::NOT_LEADER_OR_FOLLOWER) };
        let mut in_sync = leader.followers.iter().filter(|replica| leader.state.may_be_in_sync(replica.broker_id));
        Ok(in_sync.all(|replica| replica.log_start_offset >= offset))
    }

    /// Proposes a change of the ISR, as leader. The caller calls this every half of `replica.lag.time.max.ms`. Lagging
    /// members leave. If no member lags, a follower that has all records and may join does so, even if it sends no
    /// further fetch. A proposal whose outcome is unknown is made again.
    pub fn tick(&mut self, now: &Now<'_>) -> Effects {
        let epochs = (self.leader_epoch, self.partition_epoch);
        let Role::Leader(leader) = &mut self.role else { return Effects::default() };
        let propose = match leader.state.is_pending() {
            true => leader.state.again(),
            false => {
                let lagging = leader.lagging(self.log_end, &self.settings, now);
                let joining = leader.joining(self.log_end, self.high_watermark, now).filter(|_| lagging.is_empty());
                (joining.is_some() || !lagging.is_empty()).then(|| {
                    let proposal = leader.proposal(epochs, joining, &lagging, now);
                    leader.state.propose(proposal, joining)
                })
            }
        };
        // A lagging replica outside the ISR no longer holds the high watermark back.
        Effects { role: None, high_watermark: self.advance(now), propose }
    }

    /// Handles the control plane's response to a proposal, as leader: the present partition, or an error. Ignores
    /// responses to older proposals.
    ///
    /// After an error that is not a refusal, the change may have been made. The next [`Partition::tick`] proposes it
    /// again, or newer metadata resolves it.
    pub fn altered(
        &mut self,
        proposal: &AlterPartition,
        answer: Result<&PartitionRegistration, ErrorCode>,
        now: &Now<'_>,
    ) -> Effects {
        let Role::Leader(leader) = &mut self.role else { return Effects::default() };
        if !leader.state.is_asked(proposal) {
            return Effects::default();
        }
        match answer {
            Ok(registration) if registration.partition_epoch != self.partition_epoch => {
                return self.apply(registration, now);
            }
            // Either the ISR was the proposed one already, or the control plane certainly has not made the change.
            Ok(_) | Err(ErrorCode::INELIGIBLE_REPLICA | ErrorCode::OPERATION_NOT_ATTEMPTED) => leader.state.withdraw(),
            // Newer metadata exists, and resolves the proposal.
            Err(
                ErrorCode::FENCED_LEADER_EPOCH
                | ErrorCode::INVALID_UPDATE_VERSION
                | ErrorCode::NEW_LEADER_ELECTED
                | ErrorCode::UNKNOWN_TOPIC_OR_PARTITION
                | ErrorCode::UNKNOWN_TOPIC_ID,
            ) => {}
            Err(_) => leader.state.failed(),
        }
        Effects { high_watermark: self.advance(now), ..Effects::default() }
    }

    /// Returns the state of an acks=all request whose records were appended in `epoch` and end before `end_offset`.
    pub fn acknowledgement(&self, epoch: i32, end_offset: i64) -> Acknowledgement {
        match &self.role {
            Role::Leader(leader) if epoch >= leader.since_epoch => {
                if self.high_watermark < end_offset {
                    Acknowledgement::Wait
                } else if leader.state.maximal_len() < leader.isr_min(&self.settings) {
                    Acknowledgement::Refused(ErrorCode::NOT_ENOUGH_REPLICAS_AFTER_APPEND)
                } else {
                    Acknowledgement::Done
                }
            }
            // This broker's log may have been truncated under another leader after the append.
            _ => Acknowledgement::Refused(ErrorCode::NOT_LEADER_OR_FOLLOWER),
        }
    }

    /// Returns the end offset for ListOffsets (KIP-207).
    ///
    /// # Errors
    ///
    /// OFFSET_NOT_AVAILABLE while the high watermark is below the start of this leader's epoch, since an earlier leader
    /// may have returned a larger offset; NOT_LEADER_OR_FOLLOWER if this broker does not lead.
    pub fn latest_offset(&self) -> Result<i64, ErrorCode> {
        match &self.role {
            Role::Leader(leader) if self.high_watermark < leader.epoch_start_offset => {
                Err(ErrorCode::OFFSET_NOT_AVAILABLE)
            }
            Role::Leader(_) => Ok(self.high_watermark),
            _ => Err(ErrorCode::NOT_LEADER_OR_FOLLOWER),
        }
    }

    /// Checks that a response of the leader of `epoch` may be appended or truncate the log, as follower.
    ///
    /// # Errors
    /// FENCED_LEADER_EPOCH if `epoch` is older than the current one, UNKNOWN_LEADER_EPOCH if it is newer;
    /// NOT_LEADER_OR_FOLLOWER if this broker does not follow.
    pub fn check_following(&self, epoch: i32) -> Result<(), ErrorCode> {
        self.check_leader_epoch(epoch)?;
        match &self.role {
            Role::Follower { leader: Some(_) } if epoch != NO_EPOCH => Ok(()),
            _ => Err(ErrorCode::NOT_LEADER_OR_FOLLOWER),
        }
    }

    /// Records the end of the log after an append, and the leader's high watermark, as follower.
    ///
    /// # Errors
    ///
    /// The error code of [`Partition::check_following`] if it refuses. The caller must make that check before the
    /// append.
    pub fn replicated(&mut self, epoch: i32, log_end: i64, high_watermark: i64) -> Result<Effects, ErrorCode> {
        self.check_following(epoch)?;
        self.log_end = log_end;
        Ok(Effects { high_watermark: self.raise(high_watermark.min(log_end)), ..Effects::default() })
    }

    /// Records the end of a truncated or recreated log, as follower. Only an unclean election truncates below the high
    /// watermark.
    pub fn truncated(&mut self, log_end: i64) {
        debug_assert!(!self.is_leader(), "a leader's log is not truncated");
        self.log_end = log_end;
        self.high_watermark = self.high_watermark.min(log_end);
    }

    /// Notes the start of the log, as follower. All records before this offset were committed, or are deleted.
    pub fn started_at(&mut self, log_start: i64) -> Effects {
        self.log_end = self.log_end.max(log_start);
        Effects { high_watermark: self.raise(log_start), ..Effects::default() }
    }

    /// Advances the high watermark to the replicated end, as leader. Returns the new high watermark; None if it has not
    /// changed.
    fn advance(&mut self, now: &Now<'_>) -> Option<i64> {
        let Role::Leader(leader) = &self.role else { return None };
        self.raise(leader.replicated(self.log_end, &self.settings, now)?)
    }

    fn raise(&mut self, high_watermark: i64) -> Option<i64> {
        assert!(high_watermark <= self.log_end, "{high_watermark} is past the end of the log, {}", self.log_end);
        (high_watermark > self.high_watermark).then(|| {
            self.high_watermark = high_watermark;
            high_watermark
        })
    }
}
