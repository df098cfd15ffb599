//! The `uniform` assignor: makes the loads as even as the subscriptions allow, and moves few partitions.
//!
//! If all members subscribe to the same topics, loads differ by at most one, and as few partitions move as possible.
//! Otherwise owners keep the partitions that they subscribe to, and the others go to the least loaded subscriber. Then
//! `balance.rs` evens out the loads.

use super::{MemberIndex, NO_MEMBER, Owners, Subscriptions, balance};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

pub(super) fn assign(group: &Subscriptions, owners: &mut Owners) {
    for (topic, row) in owners.iter_mut().enumerate() {
        for owner in row {
            if *owner != NO_MEMBER && !group.subscribes(*owner, topic) {
                *owner = NO_MEMBER;
            }
        }
    }
    if group.members == 0 {
        return;
    }
    if group.is_homogeneous() {
        trim(group.members, owners);
        let mut loads = loads(group.members, owners);
        let everybody: Vec<MemberIndex> = (0..group.members as MemberIndex).collect();
        deal(&everybody, &mut loads, owners.iter_mut().flatten());
    } else {
        let before = owners.clone();
        let mut loads = loads(group.members, owners);
        for topic in by_scarcity(group) {
            deal(&group.subscribers[topic], &mut loads, owners[topic].iter_mut());
        }
        balance::balance(group, &before, owners, &mut loads);
    }
}

/// Returns how many partitions each member owns.
pub(super) fn loads(members: usize, owners: &Owners) -> Vec<usize> {
    let mut loads = vec![0; members];
    for &owner in owners.iter().flatten().filter(|&&owner| owner != NO_MEMBER) {
        loads[owner as usize] += 1;
    }
    loads
}

/// Takes partitions away from members that have more than an even share. All members must subscribe to all topics. If
/// the partitions cannot be divided evenly, the last of these members keep one more.
fn trim(members: usize, owners: &mut Owners) {
    let partitions: usize = owners.iter().map(Vec::len).sum();
    let (share, mut extras) = (partitions / members, partitions % members);
    let mut room = loads(members, owners);
    for load in room.iter_mut().rev() {
        let extra = usize::from(*load > share && extras > 0);
        extras -= extra;
        *load = (*load).min(share + extra);
    }
    for owner in owners.iter_mut().flatten().filter(|owner| **owner != NO_MEMBER) {
        match &mut room[*owner as usize] {
            0 => *owner = NO_MEMBER,
            room => *room -= 1,
        }
    }
}

/// Gives each partition without an owner to the least loaded of `members`. In a tie, the first of them gets it.
fn deal<'a>(members: &[MemberIndex], loads: &mut [usize], partitions: impl Iterator<Item = &'a mut MemberIndex>) {
    let mut queue: BinaryHeap<_> = members.iter().map(|&member| Reverse((loads[member as usize], member))).collect();
    for owner in partitions.filter(|owner| **owner == NO_MEMBER) {
        let Some(mut least) = queue.peek_mut() else { return };
        let Reverse((load, member)) = &mut *least;
        *owner = *member;
        *load += 1;
        loads[*member as usize] = *load;
    }
}

/// Returns the topics in ascending order of how many subscribers they have.
fn by_scarcity(group: &Subscriptions) -> Vec<usize> {
    let mut topics: Vec<usize> = (0..group.subscribers.len()).collect();
    topics.sort_by_key(|&topic| group.subscribers[topic].len());
    topics
}
