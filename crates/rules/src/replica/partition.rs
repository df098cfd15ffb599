//! The role of a partition on this broker, and the events that change it.
//!
//! The leader's decisions are in `leader`. Invariant: only newer metadata changes the leader epoch. Every other event
//! of another leader epoch changes nothing.

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

/// A partition on this broker (Kafka's `kafka.cluster.Partition`).
#[derive(Clone, Debug)]
pub struct Partition {
    broker_id: i32,
    settings: ReplicaSettings,
    log_end: i64,
    high_watermark: i64,
    leader_epoch: i32,
    partition_epoch: i32,
    role: Role,
    /// The state of the leader while this broker stands down. The role is then that of a follower without a leader.
    stood_down: Option<Box<Leader>>,
}

impl Partition {
    /// Creates a partition without metadata. Until its metadata is applied, the broker is neither leader nor follower.
    pub fn new(broker_id: i32, log: LocalLog, settings: ReplicaSettings) -> Partition {
        Partition {
            broker_id,
            settings,
            log_end: log.end_offset,
            high_watermark: log.high_watermark.max(log.start_offset).min(log.end_offset),
            leader_epoch: NO_EPOCH,
            partition_epoch: NO_EPOCH,
            role: Role::Neither,
            stood_down: None,
        }
    }

    /// Returns the high watermark. Consumers see only records before it.
    pub fn high_watermark(&self) -> i64 {
        self.high_watermark
    }

    /// Returns the leader epoch, or [`NO_EPOCH`].
    pub fn leader_epoch(&self) -> i32 {
        self.leader_epoch
    }

    /// Returns the leader, as far as this broker knows it.
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

    /// Returns the ISR if this broker leads, and an empty list otherwise.
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

    /// Applies the partition's newest metadata. If the metadata is not newer than the current one, nothing changes, so
    /// a requested change of the ISR stays requested.
    ///
    /// A new leader epoch resets the state of the followers even if this broker stays the leader. Another broker may
    /// have led in an epoch whose metadata this broker has missed, and a follower may have truncated its log then.
    /// Kafka does not reset the state.
    pub fn apply(&mut self, registration: &PartitionRegistration, now: &Now<'_>) -> Effects {
        if registration.partition_epoch <= self.partition_epoch || registration.leader_epoch < self.leader_epoch {
            return Effects::default();
        }
        self.stand_down(false);
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

    /// Makes this broker stand down, or lead again. While it stands down, it serves the partition like a broker that
    /// does not lead. Newer metadata end that, so the caller must call this function after [`Partition::apply`].
    pub fn stand_down(&mut self, stands_down: bool) {
        if !stands_down {
            if let Some(leader) = self.stood_down.take() {
                self.role = Role::Leader(leader);
            }
        } else if self.is_leader()
            && let Role::Leader(leader) = std::mem::replace(&mut self.role, Role::Follower { leader: None })
        {
            self.stood_down = Some(leader);
        }
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

    /// Checks that a request is for the current leader epoch. An epoch of -1 always passes.
    ///
    /// # Errors
    ///
    /// Fails with FENCED_LEADER_EPOCH if the epoch is older, and with UNKNOWN_LEADER_EPOCH if it is newer.
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
    /// Fails with NOT_LEADER_OR_FOLLOWER if this broker does not lead. Fails with NOT_ENOUGH_REPLICAS for acks=all if
    /// the ISR is below `min.insync.replicas`.
    pub fn check_append(&self, is_acks_all: bool) -> Result<(), ErrorCode> {
        match &self.role {
            Role::Leader(leader) if is_acks_all && leader.is_under_min_isr(&self.settings) => {
                Err(ErrorCode::NOT_ENOUGH_REPLICAS)
            }
            Role::Leader(_) => Ok(()),
            _ => Err(ErrorCode::NOT_LEADER_OR_FOLLOWER),
        }
    }

    /// Notes that the leader's log now ends at `log_end`.
    pub fn appended(&mut self, log_end: i64, now: &Now<'_>) -> Effects {
        debug_assert!(self.is_leader() && log_end >= self.log_end, "a leader's log grows");
        if let Role::Leader(leader) = &mut self.role {
            leader.grows_past(self.log_end, now.ms);
        }
        self.log_end = log_end;
        Effects { high_watermark: self.advance(now), ..Effects::default() }
    }

    /// Notes the log end in a follower's fetch, and proposes to add the follower to the ISR if it may join. For leaders
    /// only.
    ///
    /// # Errors
    ///
    /// Fails like [`Partition::check_leader_epoch`]. Fails with NOT_LEADER_OR_FOLLOWER if this broker does not lead, if
    /// the fetch has no epoch, or if the follower has registered again since it sent the fetch. Fails with
    /// UNKNOWN_LEADER_EPOCH if the follower has no replica in this broker's metadata, and with OFFSET_OUT_OF_RANGE if
    /// the offset is beyond the log end.
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
        let (leader_epoch, partition_epoch) = (self.leader_epoch, self.partition_epoch);
        let joins = leader.may_join(&leader.followers[at], self.high_watermark, now);
        let propose = joins.then(|| {
            let proposal = leader.proposal(leader_epoch, partition_epoch, Some(fetch.broker_id), &[], now);
            leader.state.propose(proposal, Some(fetch.broker_id))
        });
        Ok(Effects { role: None, high_watermark: self.advance(now), propose })
    }

    /// Notes where a follower's log starts, as reported in a fetch of the current leader epoch. For leaders only.
    pub fn begins_at(&mut self, broker_id: i32, log_start: i64) {
        if let Role::Leader(leader) = &mut self.role
            && let Some(replica) = leader.followers.iter_mut().find(|replica| replica.broker_id == broker_id)
        {
            replica.log_start_offset = log_start;
        }
    }

    /// Returns true if no in-sync replica has records before this offset.
    ///
    /// # Errors
    ///
    /// Fails with NOT_LEADER_OR_FOLLOWER if this broker does not lead.
    pub fn is_deleted_before(&self, offset: i64) -> Result<bool, ErrorCode> {
        let Role::Leader(leader) = &self.role else { return Err(ErrorCode::NOT_LEADER_OR_FOLLOWER) };
        let mut in_sync = leader.followers.iter().filter(|replica| leader.state.may_be_in_sync(replica.broker_id));
        Ok(in_sync.all(|replica| replica.log_start_offset >= offset))
    }

    /// Proposes a change of the ISR if one is due. The leader calls this twice in every `replica.lag.time.max.ms`.
    /// Lagging members leave. If no member lags, a follower that has all records and is allowed to join is added, even
    /// if it sends no more fetches. A proposal whose outcome is unknown is made again.
    pub fn tick(&mut self, now: &Now<'_>) -> Effects {
        let (leader_epoch, partition_epoch) = (self.leader_epoch, self.partition_epoch);
        let Role::Leader(leader) = &mut self.role else { return Effects::default() };
        let propose = match leader.state.is_pending() {
            true => leader.state.again(),
            false => {
                let lagging = leader.lagging(self.log_end, &self.settings, now);
                let joining = leader.joining(self.log_end, self.high_watermark, now).filter(|_| lagging.is_empty());
                (joining.is_some() || !lagging.is_empty()).then(|| {
                    let proposal = leader.proposal(leader_epoch, partition_epoch, joining, &lagging, now);
                    leader.state.propose(proposal, joining)
                })
            }
        };
        // The high watermark no longer waits for a lagging replica outside the ISR, so it may advance now.
        Effects { role: None, high_watermark: self.advance(now), propose }
    }

    /// Handles the control plane's response to a proposal, which is the current partition or an error. The response to
    /// an older proposal is ignored. For leaders only.
    ///
    /// If the error is not a refusal, the change may have been made. The next [`Partition::tick`] then proposes it
    /// again, unless newer metadata shows the outcome before.
    pub fn altered(
        &mut self,
        proposal: &AlterPartition,
        answer: Result<&PartitionRegistration, ErrorCode>,
        now: &Now<'_>,
    ) -> Effects {
        let Role::Leader(leader) = &mut self.role else { return Effects::default() };
        if !leader.state.is_requested(proposal) {
            return Effects::default();
        }
        match answer {
            Ok(registration) if registration.partition_epoch != self.partition_epoch => {
                return self.apply(registration, now);
            }
            // The ISR was already as proposed, or the control plane has refused the change.
            Ok(_) | Err(ErrorCode::INELIGIBLE_REPLICA | ErrorCode::OPERATION_NOT_ATTEMPTED) => leader.state.withdraw(),
            // There is newer metadata, which will show the outcome of the proposal.
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

    /// Returns the progress of an acks=all request whose records were appended in `epoch` and end before `end_offset`.
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
            // Another broker has led since the append, so this broker's log may have been truncated.
            _ => Acknowledgement::Refused(ErrorCode::NOT_LEADER_OR_FOLLOWER),
        }
    }

    /// Returns the latest offset for ListOffsets (KIP-207).
    ///
    /// # Errors
    ///
    /// Fails with OFFSET_NOT_AVAILABLE while the high watermark is below the start of this leader's epoch, because an
    /// earlier leader may have returned a larger offset. Fails with NOT_LEADER_OR_FOLLOWER if this broker does not
    /// lead.
    pub fn latest_offset(&self) -> Result<i64, ErrorCode> {
        match &self.role {
            Role::Leader(leader) if self.high_watermark < leader.epoch_start_offset => {
                Err(ErrorCode::OFFSET_NOT_AVAILABLE)
            }
            Role::Leader(_) => Ok(self.high_watermark),
            _ => Err(ErrorCode::NOT_LEADER_OR_FOLLOWER),
        }
    }

    /// Checks that a follower may use a response of the leader of `epoch`, to append its records or to truncate the
    /// log.
    ///
    /// # Errors
    /// Fails like [`Partition::check_leader_epoch`], and with NOT_LEADER_OR_FOLLOWER if this broker does not follow.
    pub fn check_following(&self, epoch: i32) -> Result<(), ErrorCode> {
        self.check_leader_epoch(epoch)?;
        match &self.role {
            Role::Follower { leader: Some(_) } if epoch != NO_EPOCH => Ok(()),
            _ => Err(ErrorCode::NOT_LEADER_OR_FOLLOWER),
        }
    }

    /// Notes where a follower's log ends after an append, and the high watermark in the leader's response.
    ///
    /// # Errors
    ///
    /// Fails like [`Partition::check_following`], which the caller must call before the append.
    pub fn replicated(&mut self, epoch: i32, log_end: i64, high_watermark: i64) -> Result<Effects, ErrorCode> {
        self.check_following(epoch)?;
        self.log_end = log_end;
        Ok(Effects { high_watermark: self.raise(high_watermark.min(log_end)), ..Effects::default() })
    }

    /// Notes where a follower's log ends after it was truncated or recreated. Only an unclean election truncates
    /// below the high watermark.
    pub fn truncated(&mut self, log_end: i64) {
        debug_assert!(!self.is_leader(), "a leader's log is not truncated");
        self.log_end = log_end;
        self.high_watermark = self.high_watermark.min(log_end);
    }

    /// Notes where this follower's log starts. All earlier records were committed or are deleted, so the high watermark
    /// is at least `log_start`.
    pub fn started_at(&mut self, log_start: i64) -> Effects {
        self.log_end = self.log_end.max(log_start);
        Effects { high_watermark: self.raise(log_start), ..Effects::default() }
    }

    /// Raises a leader's high watermark to the offset up to which the log is replicated. Returns the new high
    /// watermark, or None if it has not changed.
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
