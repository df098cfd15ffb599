//! What is decided once nothing of a window is in flight: whether its epoch can go on, and the start of another.
//!
//! Not here: what a single answer means. Invariant: a batch is numbered anew only if no attempt of it under the old
//! number was written or ever will be in the log that it is for now; where that is in doubt it is failed as unresolved.

use super::{Fate, ProducerIdAndEpoch, Slot, SlotState, Window, sequence_add};
use fullbore_wire::Uuid;

impl<B> Window<B> {
    /// Returns true if something stands in the way of new batches until all is resolved.
    pub(super) fn must_settle(&self) -> bool {
        self.idempotent && (self.hole.is_some() || self.fenced || self.renew || self.holes > 0)
    }

    /// Once nothing is in flight: starts a new epoch if the old one cannot go on.
    pub(super) fn settle(&mut self) {
        if self.in_flight > 0 {
            return;
        }
        let Some(identity) = self.identity else { return };
        let all_out_of_order = self.is_all_out_of_order();
        let dead_end = match self.hole {
            // Nothing after a batch that was surely not written can have been written.
            Some(certain) => certain || self.retries == 0,
            None => false,
        };
        if !(all_out_of_order || dead_end || self.fenced || self.renew) {
            return;
        }
        if self.transactional {
            return self.refuse_retries();
        }
        self.settle_where(Fate::Written, Window::is_proven);
        if self.renew {
            // The log that is gone took its part with it.
            self.settle_where(Fate::Unresolved, Window::may_be_in_log);
        } else {
            self.give_up_what_may_be_written();
        }
        if self.fenced || identity.epoch == i16::MAX {
            self.spent = Some(identity.producer_id);
            self.identity = None;
        } else {
            self.start_epoch(ProducerIdAndEpoch { epoch: identity.epoch + 1, ..identity });
        }
    }

    /// Lets the window of a transactional producer take its epochs from [`Window::begin_epoch`] alone.
    pub(crate) fn transactional(self, transactional: bool) -> Self {
        Window { transactional, ..self }
    }

    /// Goes on under the identity that the transaction coordinator gave, from sequence 0 where that is another one than
    /// before. Returns false while batches of before are not resolved. `established` if the broker takes only 0 as the
    /// first sequence of an epoch, as with `transaction.version` 2, so that no batch need go alone.
    pub(crate) fn begin_epoch(&mut self, identity: ProducerIdAndEpoch, established: bool) -> bool {
        if self.identity == Some(identity) {
            return true;
        }
        if !self.is_idle() {
            return false;
        }
        self.start_epoch(identity);
        self.established = established;
        true
    }

    /// Returns true if every batch of this epoch so far is in the log, so that the next sequence is the one that the
    /// broker expects.
    pub(crate) fn is_clean(&self) -> bool {
        self.slots.is_empty() && !self.must_settle()
    }

    /// Settles what waits to go again, as no epoch begins before the transaction has ended. The topic may have been
    /// created again, which by itself fails nothing.
    fn refuse_retries(&mut self) {
        self.renew = false;
        self.settle_where(Fate::Written, Window::is_proven);
        if self.retries > 0 {
            self.hole.get_or_insert(true);
        }
        self.settle_where(Fate::Unresolved, |window, at| window.slots[at].ambiguous);
        self.settle_where(Fate::Refused, |_, _| true);
        self.round = None;
        self.trim();
    }

    /// Returns true if the broker takes none of what waits. A batch that was surely not written is no witness either
    /// way, unless it is the next one expected.
    fn is_all_out_of_order(&self) -> bool {
        let refused = |slot: &Slot<B>| slot.out_of_order && slot.sent == self.generation;
        // With nothing in flight the front is a batch that waits, if any does.
        if !self.slots.front().is_some_and(refused) {
            return false;
        }
        let mut waiting = self.slots.iter().filter(|slot| matches!(slot.state, SlotState::Retry(_)));
        waiting.all(|slot| refused(slot) || !slot.ambiguous)
    }

    /// Settles as unresolved what may be in the log although all is out of order. A hole that may be written, or may
    /// yet be, could be the newest batch, which is then not among those that were asked; or it could come late and make
    /// way for late copies of those behind it. And who was fenced cannot ask any more.
    fn give_up_what_may_be_written(&mut self) {
        if self.hole == Some(true) {
            return;
        }
        // Where a batch was surely not written, no batch behind it was written either.
        let certain = |slot: &Slot<B>| match slot.state {
            SlotState::Retry(_) => !slot.ambiguous,
            SlotState::Hole { maybe } => !maybe,
            _ => false,
        };
        let end = self.slots.iter().position(certain).unwrap_or(self.slots.len());
        let has_hole = || self.slots.range(..end).any(|slot| matches!(slot.state, SlotState::Hole { .. }));
        if self.fenced || self.hole.is_some() || has_hole() {
            self.settle_where(Fate::Unresolved, |window, at| at < end && window.slots[at].ambiguous);
        }
    }

    /// Returns true if some attempt may have been written to the log that batches are for now.
    fn may_be_in_log(&self, at: usize) -> bool {
        self.slots[at].maybe_in.is_some_and(|log| log == self.log || log == Uuid::default())
    }

    fn settle_where(&mut self, fate: Fate, which: impl Fn(&Self, usize) -> bool) {
        for at in 0..self.slots.len() {
            if which(self, at) {
                self.settle_slot(at, fate);
            }
        }
    }

    /// Takes a batch out of the window, if it waits for a retry.
    pub(super) fn settle_slot(&mut self, at: usize, fate: Fate) {
        let slot = &mut self.slots[at];
        if let SlotState::Retry(_) = slot.state
            && let SlotState::Retry(batch) = std::mem::replace(&mut slot.state, SlotState::Acked)
        {
            self.retries -= 1;
            self.settled.push((batch, fate));
        }
    }

    /// Numbers what waits from 0 on, under a new identity.
    pub(super) fn start_epoch(&mut self, identity: ProducerIdAndEpoch) {
        debug_assert_eq!(self.in_flight, 0);
        self.identity = Some(identity);
        self.established = false;
        (self.hole, self.fenced, self.renew, self.round) = (None, false, false, None);
        self.slots.retain(|slot| matches!(slot.state, SlotState::Retry(_)));
        (self.holes, self.proven_to) = (0, self.first);
        self.next_sequence = 0;
        for slot in &mut self.slots {
            slot.sequence = self.next_sequence;
            (slot.out_of_order, slot.ambiguous) = (false, false);
            // Not in this log; a log that is taken for gone may still turn out to be the topic's.
            slot.maybe_in = slot.maybe_in.filter(|log| *log != self.log && *log != Uuid::default());
            self.next_sequence = sequence_add(self.next_sequence, slot.records);
        }
    }
}
