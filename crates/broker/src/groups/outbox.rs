//! The effects of a group that must still be carried out, and the changed records that must still be written.
//!
//! At most one change waits. Further events add their changes to it, and a classic group's snapshot is encoded only
//! when the change is taken. So if many members join at the same time, the group is written only once.
//!
//! Invariant: effects are carried out in the order in which they were pushed, each only after all earlier changes were
//! written. Changes that were pushed after the effect may also be written by then.

use fullbore_rules::group::{Change, Effect, Event, GroupAnswer, RequestTicket};
use fullbore_wire::ErrorCode;
use std::collections::VecDeque;

/// An effect for which nothing has to be written.
pub(super) enum Outgoing {
    Answer(RequestTicket, GroupAnswer),
    Report(Event),
}

#[derive(Default)]
pub(super) struct Outbox {
    /// Effects that do not wait for `change`. They wait for the write under way, if there is one.
    ready: VecDeque<Outgoing>,
    /// The next change to write. A classic group's snapshot is added only when the change is taken.
    change: Option<Change>,
    /// Effects that wait for `change`.
    behind: VecDeque<Outgoing>,
}

impl Outbox {
    pub fn push(&mut self, effect: Effect) {
        let outgoing = match effect {
            Effect::Keep(change) => return self.change.get_or_insert_default().merge(change),
            Effect::Answer(ticket, answer) => Outgoing::Answer(ticket, answer),
            Effect::Report(event) => Outgoing::Report(event),
        };
        let queue = if self.change.is_some() { &mut self.behind } else { &mut self.ready };
        queue.push_back(outgoing);
    }

    /// Removes the next effect that does not wait for a change. The caller has made sure that no write is under way.
    pub fn pop(&mut self) -> Option<Outgoing> {
        self.ready.pop_front()
    }

    /// Returns the next change to write.
    pub fn change(&self) -> Option<&Change> {
        self.change.as_ref()
    }

    /// Takes the change, which the caller writes. The effects that waited for the change now wait for this write.
    pub fn take_change(&mut self) -> Change {
        self.ready.append(&mut self.behind);
        self.change.take().unwrap_or_default()
    }

    /// Drops the records of the next change, because the caller writes all records of the group anew. The effects that
    /// wait for the change still wait for a write.
    pub fn clear_change(&mut self) {
        self.change = self.change.take().map(|_| Change::default());
    }

    /// Replaces the answers that waited for a write with refusals, because that write has failed.
    pub fn refuse_ready(&mut self) {
        for outgoing in &mut self.ready {
            if let Outgoing::Answer(_, answer) = outgoing {
                *answer = GroupAnswer::Refused(ErrorCode::COORDINATOR_NOT_AVAILABLE);
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        self.ready.is_empty() && self.change.is_none()
    }

    /// Frees the memory of an empty outbox.
    pub fn shrink(&mut self) {
        self.ready.shrink_to_fit();
        self.behind.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use fullbore_rules::group::Snapshot;

    fn keep(state: &'static [u8]) -> Effect {
        let group = Some(Snapshot { version: 1, state: Bytes::from_static(state) });
        Effect::Keep(Change { group, ..Change::default() })
    }

    fn answer(ticket: u64) -> Effect {
        Effect::Answer(RequestTicket(ticket), GroupAnswer::Heartbeat(ErrorCode::NONE))
    }

    fn popped(outbox: &mut Outbox) -> Vec<(u64, bool)> {
        let one = |outgoing| match outgoing {
            Outgoing::Answer(ticket, answer) => (ticket.0, answer == GroupAnswer::Heartbeat(ErrorCode::NONE)),
            Outgoing::Report(event) => panic!("{event:?}"),
        };
        std::iter::from_fn(|| outbox.pop()).map(one).collect()
    }

    #[test]
    fn changes_that_wait_share_a_write_and_effects_stay_in_order() {
        let mut outbox = Outbox::default();
        [answer(0), keep(b"a"), answer(1), keep(b"b"), answer(2)].into_iter().for_each(|effect| outbox.push(effect));
        assert_eq!(popped(&mut outbox), [(0, true)]);
        assert_eq!(outbox.take_change().group.map(|group| group.state), Some(Bytes::from_static(b"b")));
        // These effects are pushed while change `b` is being written.
        [answer(3), keep(b"c"), answer(4)].into_iter().for_each(|effect| outbox.push(effect));
        assert!(!outbox.is_empty());
        assert_eq!(popped(&mut outbox), [(1, true), (2, true), (3, true)]);
        assert_eq!(outbox.take_change().group.map(|group| group.state), Some(Bytes::from_static(b"c")));
        outbox.refuse_ready();
        assert_eq!(popped(&mut outbox), [(4, false)]);
        assert!(outbox.is_empty());
    }

    #[test]
    fn failed_write_refuses_only_the_answers_that_waited_for_it() {
        let mut outbox = Outbox::default();
        [keep(b"a"), answer(1)].into_iter().for_each(|effect| outbox.push(effect));
        outbox.take_change();
        [keep(b"b"), answer(2)].into_iter().for_each(|effect| outbox.push(effect));
        outbox.refuse_ready();
        outbox.clear_change();
        assert_eq!(popped(&mut outbox), [(1, false)]);
        assert_eq!(outbox.take_change(), Change::default(), "the change still delays what came after it");
        assert_eq!(popped(&mut outbox), [(2, true)]);
    }
}
