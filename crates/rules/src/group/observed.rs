//! A group of the consumer protocol as [`super::Group`] has it: with its settings, and with what it did to its epochs
//! told.

use super::consumer::ConsumerGroup;
use super::{Effect, Effects, Event, GroupSettings};

/// A group of the consumer protocol with the settings it was last asked under.
#[derive(Debug)]
pub struct Consumer {
    pub(super) group: ConsumerGroup,
    pub(super) settings: GroupSettings,
}

/// Puts an event to a group and tells what it did to its epochs.
pub(super) fn observed<T>(
    group: &mut ConsumerGroup,
    effects: &mut Effects,
    event: impl FnOnce(&mut ConsumerGroup) -> T,
) -> T {
    let (group_epoch, assignment_epoch) = (group.group_epoch(), group.assignment_epoch());
    let said = event(group);
    if group.group_epoch() != group_epoch {
        let reason = format!("group epoch {}", group.group_epoch());
        effects.push(Effect::Tell(Event::RebalanceBegun { generation: group_epoch, reason }));
    }
    if group.assignment_epoch() != assignment_epoch {
        let (generation, members) = (group.assignment_epoch(), group.members().len());
        effects.push(Effect::Tell(Event::RebalanceCompleted { generation, members }));
    }
    said
}
