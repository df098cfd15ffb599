//! Sends the failed batches of a window again, in order.
//!
//! `window` assigns the sequences, and `settle.rs` decides if the epoch can go on. Invariant: a round sends each
//! waiting batch at most once, so that every round ends.

use super::{Slot, SlotState, Ticket, Window};
use fullbore_wire::batch::Stamp;

/// A pass over the batches that wait for a retry, oldest first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    /// The `place` of the next batch to send.
    pub(super) next: u64,
    /// A `place` before which no batch is in flight.
    pub(super) waits_from: u64,
    /// The number of batches that the round still has to send, from `next` on. At least one.
    pub(super) left: usize,
}

impl<B> Window<B> {
    /// Returns the next batch to send again, or `None` if none may be sent. Normally the batches are sent in order, in
    /// a round. If `missing` is true, the broker may have parked batches in flight until the oldest waiting batch
    /// arrives. That batch is then sent at once, outside of a round, and responses count as evidence only from the next
    /// round on.
    pub(crate) fn next_retry(&mut self, missing: bool) -> Option<(Ticket, Stamp, B)> {
        let place = self.retry_place(missing)?;
        if self.round.is_none() {
            self.generation += 1;
        }
        let slot = &mut self.slots[(place - self.first) as usize];
        let SlotState::Retry(batch) = std::mem::replace(&mut slot.state, SlotState::InFlight) else {
            unreachable!("a round stands at a batch that waits");
        };
        (slot.out_of_order, slot.sent, slot.sent_to) = (false, self.generation, self.log);
        let sequence = slot.sequence;
        self.retries -= 1;
        self.in_flight += 1;
        self.advance_round(place + 1);
        Some((Ticket { place, sequence }, self.stamp(sequence), batch))
    }

    /// Returns the batch that [`Window::next_retry`] would return, without sending it.
    pub(crate) fn peek_retry(&mut self, missing: bool) -> Option<&B> {
        let place = self.retry_place(missing)?;
        match &self.slots[(place - self.first) as usize].state {
            SlotState::Retry(batch) => Some(batch),
            _ => None,
        }
    }

    /// Replaces the batch that [`Window::next_retry`] would return by its parts, like [`Window::split`].
    pub(crate) fn part_retry(&mut self, missing: bool, parts: Vec<(u32, B)>) {
        let Some(place) = self.retry_place(missing) else { return };
        self.retries -= 1;
        if let Some(round) = &mut self.round {
            round.left += parts.len() - 1;
        }
        self.put_parts((place - self.first) as usize, parts);
    }

    /// Returns the place of the next batch to send again, or `None` if no batch may be sent again now.
    fn retry_place(&mut self, missing: bool) -> Option<u64> {
        if missing && self.in_flight > 0 && self.round.is_none() {
            if self.retries == 0 || !self.established || self.must_settle() {
                return None;
            }
            let waits = |slot: &Slot<B>| matches!(slot.state, SlotState::Retry(_));
            return self.slots.iter().take(self.limit()).position(waits).map(|at| self.first + at as u64);
        }
        self.settle();
        if self.retries == 0 || (self.idempotent && self.identity.is_none()) {
            return None;
        }
        if self.round.is_none() && self.in_flight == 0 {
            // A new round sends all waiting batches, including those that were out of order. The front is one of them,
            // since it is unresolved and not in flight.
            self.generation += 1;
            self.round = Some(Round { next: self.first, waits_from: self.first, left: self.retries });
        }
        self.within_reach()
    }

    /// Returns the `place` of the round's next batch. Returns `None` if there is no round, or if the limit does not
    /// permit a batch that far after the oldest one in flight.
    fn within_reach(&mut self) -> Option<u64> {
        let Round { next, waits_from, left } = self.round?;
        let mut waits_from = waits_from.max(self.first);
        while waits_from < next && !matches!(self.slots[(waits_from - self.first) as usize].state, SlotState::InFlight)
        {
            waits_from += 1;
            self.visit();
        }
        self.round = Some(Round { next, waits_from, left });
        ((next - waits_from) < self.limit() as u64).then_some(next)
    }

    /// Advances the round to the next waiting batch at or after `place`. Ends the round after its last batch. Batches
    /// that fail during the round wait for the next one.
    fn advance_round(&mut self, place: u64) {
        let Some(mut round) = self.round.take().filter(|round| round.left > 1) else { return };
        (round.next, round.left) = (place, round.left - 1);
        while !matches!(self.slots[(round.next - self.first) as usize].state, SlotState::Retry(_)) {
            round.next += 1;
            self.visit();
        }
        self.round = Some(round);
    }

    /// Returns true if a failure should not start a pause, because a round is in progress. In addition, batches must be
    /// in flight, or the round's next batch may already be in the log.
    pub(crate) fn in_round(&self) -> bool {
        let next = self.round.map(|round| &self.slots[(round.next - self.first) as usize]);
        next.is_some_and(|next| next.ambiguous || self.in_flight > 0)
    }
}
