//! The `range` assignor: every topic is cut into one contiguous range a subscriber, in the members' order.
//!
//! The first subscribers have one partition more if the division has a remainder. As in Kafka, members keep partitions
//! only because their order stays. Topics with the same subscribers and partition counts are cut at the same positions.

use super::{MemberIndex, NO_MEMBER, Owners, Subscriptions};

pub(super) fn assign(group: &Subscriptions, owners: &mut Owners) {
    for (subscribers, row) in group.subscribers.iter().zip(owners) {
        if subscribers.is_empty() {
            row.fill(NO_MEMBER);
            continue;
        }
        deal(subscribers, row);
    }
}

fn deal(subscribers: &[MemberIndex], row: &mut [MemberIndex]) {
    let (each, extra) = (row.len() / subscribers.len(), row.len() % subscribers.len());
    let mut rest = row;
    for (n, &member) in subscribers.iter().enumerate() {
        let (range, after) = rest.split_at_mut(each + usize::from(n < extra));
        range.fill(member);
        rest = after;
    }
}
