//! Decides if the epoch of a window can go on, when no batch is in flight. If it cannot, begins another epoch.
//!
//! Single responses are handled in `window`. Invariant: a batch gets a new sequence number only if no attempt with the
//! old number is in the log, or can still be appended to it. If that is uncertain, the batch fails as unresolved.

use super::{Fate, ProducerIdAndEpoch, Slot, SlotState, Window, sequence_add};
use fullbore_wire::Uuid;

impl<B> Window<B> {
    /// Returns true if no new batch may be sent before [`Window::settle`] has run with nothing in flight.
    pub(super) fn must_settle(&self) -> bool {
        self.idempotent && (self.hole.is_some() || self.fenced || self.renew || self.holes > 0)
    }

    /// Begins a new epoch if the old one cannot go on. For a transactional producer, settles the waiting batches
    /// instead. Does nothing while a batch is in flight.
    pub(super) fn settle(&mut self) {
        if self.in_flight > 0 {
            return;
        }
        let Some(identity) = self.identity else { return };
        let all_out_of_order = self.is_all_out_of_order();
        let dead_end = match self.hole {
            // If the batch of the hole was certainly not written, no later batch of the epoch was written either.
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
            // The topic was recreated. Attempts in the old log do not matter any more, because that log is deleted.
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

    /// Sets whether the producer is transactional. If it is, the window takes its epochs only from
    /// [`Window::begin_epoch`].
    pub(crate) fn transactional(self, transactional: bool) -> Self {
        Window { transactional, ..self }
    }

    /// Adopts the identity from the transaction coordinator. A new identity begins at sequence 0. Returns false,
    /// without any effect, while batches of the old identity are unresolved. `established` is true if the broker
    /// accepts only 0 as the first sequence of an epoch, as with `transaction.version` 2. Several batches may then be
    /// in flight before the first acknowledgement.
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

    /// Returns true if every batch that was sent in this epoch is in the log, so that the broker expects the window's
    /// next sequence.
    pub(crate) fn is_clean(&self) -> bool {
        self.slots.is_empty() && !self.must_settle()
    }

    /// Settles all batches that wait for a retry. A transactional producer cannot begin a new epoch before the
    /// transaction ends. If the topic was recreated and no batch waits, the old epoch can go on.
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

    /// Returns true if the broker has refused the oldest batch as out of order, and also every waiting batch that may
    /// have been written. Refusals of batches that were certainly not written prove nothing and are not required.
    fn is_all_out_of_order(&self) -> bool {
        let refused = |slot: &Slot<B>| slot.out_of_order && slot.sent == self.generation;
        // Nothing is in flight, so the front, if any, is a waiting batch.
        if !self.slots.front().is_some_and(refused) {
            return false;
        }
        let mut waiting = self.slots.iter().filter(|slot| matches!(slot.state, SlotState::Retry(_)));
        waiting.all(|slot| refused(slot) || !slot.ambiguous)
    }

    /// Settles batches with an unknown outcome as unresolved, if refusals of their retries prove nothing. There are two
    /// such cases. First, a fenced producer gets no more evidence. Second, the window has given up a batch that may
    /// have been written. It may be the newest one in the log and the only one that the broker retains, so the refused
    /// retries of the others prove nothing. A copy of it may also arrive late, and late copies of later batches would
    /// then be appended.
    fn give_up_what_may_be_written(&mut self) {
        if self.hole == Some(true) {
            return;
        }
        // Batches after one that was certainly not written were not written either.
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

    /// Returns true if an attempt of the batch may be in the present log.
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

    /// Settles a batch with this outcome if it waits for a retry.
    pub(super) fn settle_slot(&mut self, at: usize, fate: Fate) {
        let slot = &mut self.slots[at];
        if let SlotState::Retry(_) = slot.state
            && let SlotState::Retry(batch) = std::mem::replace(&mut slot.state, SlotState::Acked)
        {
            self.retries -= 1;
            self.settled.push((batch, fate));
        }
    }

    /// Begins an epoch with a new identity. The waiting batches get new sequence numbers from 0 on.
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
            // No attempt of the batch is in the present log, so `maybe_in` is kept only if it names another log. That
            // log counts as deleted, but may turn out to be the topic's real log if the present id is stale.
            slot.maybe_in = slot.maybe_in.filter(|log| *log != self.log && *log != Uuid::default());
            self.next_sequence = sequence_add(self.next_sequence, slot.records);
        }
    }
}
