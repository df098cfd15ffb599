//! A group that uses the consumer protocol, as [`super::Group`] contains it. Changes of the group's epochs are reported
//! as events.

use super::consumer::ConsumerGroup;
use super::{Effect, Effects, Event, GroupSettings};

/// A consumer group, with the settings of its last request.
#[derive(Debug)]
pub struct Consumer {
    pub(super) group: ConsumerGroup,
    pub(super) settings: GroupSettings,
}

/// Applies an event to a group, and adds effects if an epoch has changed.
pub(super) fn observed<T>(
    group: &mut ConsumerGroup,
    effects: &mut Effects,
    event: impl FnOnce(&mut ConsumerGroup) -> T,
) -> T {
    let (group_epoch, assignment_epoch) = (group.group_epoch(), group.assignment_epoch());
    let outcome = event(group);
    if group.group_epoch() != group_epoch {
        let reason = format!("group epoch {}", group.group_epoch());
        effects.push(Effect::Report(Event::RebalanceBegun { generation: group_epoch, reason }));
    }
    if group.assignment_epoch() != assignment_epoch {
        let (generation, members) = (group.assignment_epoch(), group.members().len());
        effects.push(Effect::Report(Event::RebalanceCompleted { generation, members }));
    }
    outcome
}
