//! Brings one member a step nearer to its target (KIP-848).
//!
//! First the member gives up partitions outside its target, in its old epoch. Once the member has confirmed that, it
//! moves to the epoch of the target and gets the free partitions. Partitions that other members still hold follow
//! later, in the same epoch.
//!
//! Not here: other members. The caller passes in whether a partition is free. Invariant: a partition is assigned only
//! if no other member holds it.

use super::member::{ConsumerGroupMember, HeldPartitions, MemberState, PartitionSet, TopicIdPartition};

/// Input of a step, in addition to the member.
pub(super) struct ReconcileInput<'a, Subscribes, IsFree> {
    /// Epoch of the target.
    pub epoch: i32,
    /// Owned partitions in the member's request; None if the request lacks the field.
    pub owned: Option<&'a PartitionSet>,
    /// True if the subscription has changed, so that the partitions of a stable member must be checked too.
    pub subscription_changed: bool,
    /// Predicate: true if the member subscribes to the topic of a partition, and the topic exists.
    pub subscribes: Subscribes,
    /// Predicate: true if no other member holds a partition.
    pub is_free: IsFree,
}

/// State of the member after a step.
#[derive(Debug, PartialEq)]
pub(super) struct Step {
    pub state: MemberState,
    pub epoch: i32,
    pub assigned: HeldPartitions,
    pub revoking: HeldPartitions,
}

impl<Subscribes, IsFree> ReconcileInput<'_, Subscribes, IsFree>
where
    Subscribes: Fn(&TopicIdPartition) -> bool,
    IsFree: Fn(&TopicIdPartition) -> bool,
{
    /// Returns the next step; None if the member stays as it is.
    pub fn step(&self, member: &ConsumerGroupMember) -> Option<Step> {
        match member.state {
            MemberState::Stable if member.epoch != self.epoch => Some(self.advance(member)),
            MemberState::UnreleasedPartitions => Some(self.advance(member)),
            MemberState::UnrevokedPartitions if !self.still_has(&member.revoking) => Some(self.advance(member)),
            _ if self.subscription_changed => self.withdraw(member),
            _ => None,
        }
    }

    /// Returns true if the member may still have one of these partitions: its request lists one, or lacks the field of
    /// owned partitions.
    fn still_has(&self, partitions: &HeldPartitions) -> bool {
        self.owned.is_none_or(|owned| partitions.keys().any(|partition| owned.contains(partition)))
    }

    /// Moves the member towards its target.
    fn advance(&self, member: &ConsumerGroupMember) -> Step {
        let wanted = |partition: &TopicIdPartition| member.target.contains(partition) && (self.subscribes)(partition);
        let (mut assigned, revoking): (HeldPartitions, HeldPartitions) =
            member.assigned.iter().map(|(&partition, &epoch)| (partition, epoch)).partition(|(p, _)| wanted(p));
        if !revoking.is_empty() && self.still_has(&revoking) {
            let state = MemberState::UnrevokedPartitions;
            return Step { state, epoch: member.epoch, assigned, revoking };
        }
        let mut state = MemberState::Stable;
        for &partition in member.target.iter().filter(|partition| (self.subscribes)(partition)) {
            if assigned.contains_key(&partition) {
                continue;
            }
            if (self.is_free)(&partition) {
                assigned.insert(partition, self.epoch);
            } else {
                state = MemberState::UnreleasedPartitions;
            }
        }
        Step { state, epoch: self.epoch, assigned, revoking: HeldPartitions::new() }
    }

    /// Returns the step that revokes partitions to which the member no longer subscribes, before there is a new target.
    /// None if there are no such partitions.
    fn withdraw(&self, member: &ConsumerGroupMember) -> Option<Step> {
        let (assigned, withdrawn): (HeldPartitions, HeldPartitions) =
            member.assigned.iter().map(|(&p, &epoch)| (p, epoch)).partition(|(p, _)| (self.subscribes)(p));
        if withdrawn.is_empty() {
            return None;
        }
        let mut revoking = member.revoking.clone();
        revoking.extend(withdrawn);
        if self.still_has(&revoking) {
            return Some(Step { state: MemberState::UnrevokedPartitions, epoch: member.epoch, assigned, revoking });
        }
        Some(Step { state: member.state, epoch: member.epoch, assigned, revoking: HeldPartitions::new() })
    }
}
