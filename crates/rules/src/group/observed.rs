//! Consumer group inside [`super::Group`], with its settings. Reports changes of its epochs as events.

use super::consumer::ConsumerGroup;
use super::{Effect, Effects, Event, GroupSettings};

/// Consumer group with the settings of its last request.
#[derive(Debug)]
pub struct Consumer {
    pub(super) group: ConsumerGroup,
    pub(super) settings: GroupSettings,
}

/// Applies an event to a group. Adds effects for changes of its epochs.
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
