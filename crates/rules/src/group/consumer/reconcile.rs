//! Brings a member a step closer to its target (KIP-848).
//!
//! First the member gives up the partitions that are not in its target, and stays in its old epoch. When it has
//! confirmed that, it moves to the target's epoch and gets the partitions of the target that no other member holds. It
//! gets the others later in the same epoch, when they are free.
//!
//! A step depends on one member only. The caller passes a function that returns true if a partition is free. Invariant:
//! a partition is assigned only if no other member holds it.

use super::member::{ConsumerGroupMember, HeldPartitions, MemberState, PartitionSet, TopicIdPartition};

/// The input of a step, apart from the member.
pub(super) struct ReconcileInput<'a, Subscribes, IsFree> {
    /// The epoch of the target.
    pub epoch: i32,
    /// The owned partitions in the member's request; `None` if the request does not list them.
    pub owned: Option<&'a PartitionSet>,
    /// True if the subscription has changed. The step then also checks the partitions of a member that has reached its
    /// target.
    pub subscription_changed: bool,
    /// Returns true for a partition if its topic exists and the member subscribes to it.
    pub subscribes: Subscribes,
    /// Returns true for a partition if no other member holds it.
    pub is_free: IsFree,
}

/// The state of the member after a step.
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
    /// Returns the next step, or None if the member stays as it is.
    pub fn step(&self, member: &ConsumerGroupMember) -> Option<Step> {
        match member.state {
            MemberState::Stable if member.epoch != self.epoch => Some(self.advance(member)),
            MemberState::UnreleasedPartitions => Some(self.advance(member)),
            MemberState::UnrevokedPartitions if !self.still_has(&member.revoking) => Some(self.advance(member)),
            _ if self.subscription_changed => self.withdraw(member),
            _ => None,
        }
    }

    /// Returns true if the member may still read one of `partitions`: its request lists one of them as owned, or does
    /// not list the owned partitions at all.
    fn still_has(&self, partitions: &HeldPartitions) -> bool {
        self.owned.is_none_or(|owned| partitions.keys().any(|partition| owned.contains(partition)))
    }

    /// Moves the member as far towards its target as possible now.
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

    /// Revokes partitions that the member no longer subscribes to, even before there is a new target. Returns None if
    /// there are no such partitions.
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
