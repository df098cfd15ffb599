//! The `range` assignor: every topic is cut into contiguous ranges, one for each subscriber, in the order of the
//! members.
//!
//! If the partitions cannot be divided evenly, the first subscribers get one more. As in Kafka, members keep their
//! partitions only because their order stays the same. Topics that have the same subscribers and the same number of
//! partitions are cut at the same positions.

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
