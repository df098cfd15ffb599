//! Brings one member a step nearer to its target (KIP-848).
//!
//! First it gives up what it should not have, in its old epoch; once it has said so it moves to the epoch of the target
//! and gets what is free; what others still hold it gets later, in the same epoch.
//!
//! What it is not: concerned with anybody else; whether a partition is free is asked. Invariant: a partition is
//! assigned only if nobody else holds it.

use super::member::{ConsumerGroupMember, HeldPartitions, MemberState, PartitionSet, TopicIdPartition};

/// Input of a step beside the member.
pub(super) struct ReconcileInput<'a, Subscribes, IsFree> {
    /// The epoch of the target.
    pub epoch: i32,
    /// The partitions that the member says it has, if it said so.
    pub owned: Option<&'a PartitionSet>,
    /// True if what it has must be looked through even if it is where it should be: its subscription has changed.
    pub subscription_changed: bool,
    /// Returns true if the member subscribes to the topic of a partition, and the topic exists.
    pub subscribes: Subscribes,
    /// Returns true if no other member holds a partition.
    pub is_free: IsFree,
}

/// Outcome for the member.
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
    /// The next step, or `None` if the member stays as it is.
    pub fn step(&self, member: &ConsumerGroupMember) -> Option<Step> {
        match member.state {
            MemberState::Stable if member.epoch != self.epoch => Some(self.advance(member)),
            MemberState::UnreleasedPartitions => Some(self.advance(member)),
            MemberState::UnrevokedPartitions if !self.still_has(&member.revoking) => Some(self.advance(member)),
            _ if self.subscription_changed => self.withdraw(member),
            _ => None,
        }
    }

    /// Returns true if the member has said that it has none of these any more. Silence means that it has.
    fn still_has(&self, partitions: &HeldPartitions) -> bool {
        self.owned.is_none_or(|owned| partitions.keys().any(|partition| owned.contains(partition)))
    }

    /// Towards the target.
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

    /// Takes back what the member no longer subscribes to, before there is a new target.
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
