//! Sends the batches of a window again, in order, after failures.
//!
//! Batches get their sequences in `window`, and whether the epoch goes on is decided in `settle.rs`. Invariant: a round
//! sends each waiting batch at most once, so that every round ends.

use super::{Slot, SlotState, Ticket, Window};
use fullbore_wire::batch::Stamp;

/// A pass over the batches that must be sent again, oldest first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    /// The `place` of the batch that is sent next.
    pub(super) next: u64,
    /// No batch before this `place` is in flight.
    pub(super) waits_from: u64,
    /// How many batches are left to send, from `next` on. At least one.
    pub(super) left: usize,
}

impl<B> Window<B> {
    /// Returns the next batch to send again, or `None` if none may leave. In a round the batches leave in order, one
    /// after another. If `missing` is true, the broker holds batches in flight until the oldest waiting batch comes.
    /// The oldest batch then leaves at once, outside of a round, and no response is evidence until a round begins.
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
            // A new round sends all waiting batches again, including those that were out of order. The front is one of
            // them, since it is neither acknowledged nor in flight.
            self.generation += 1;
            self.round = Some(Round { next: self.first, waits_from: self.first, left: self.retries });
        }
        self.within_reach()
    }

    /// Returns the `place` of the round's next batch. Returns `None` if there is no round, or if that batch is too far
    /// after the oldest one in flight.
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

    /// Moves the round on to the next waiting batch at or after `place`. The round is over when the last batch is sent.
    /// Batches that fail now wait for the next round.
    fn advance_round(&mut self, place: u64) {
        let Some(mut round) = self.round.take().filter(|round| round.left > 1) else { return };
        (round.next, round.left) = (place, round.left - 1);
        while !matches!(self.slots[(round.next - self.first) as usize].state, SlotState::Retry(_)) {
            round.next += 1;
            self.visit();
        }
        self.round = Some(round);
    }

    /// Returns true if a failure should start no pause, because a round goes on. The round must have a next batch, and
    /// batches must be in flight or that batch may already have been written.
    pub(crate) fn in_round(&self) -> bool {
        let next = self.round.map(|round| &self.slots[(round.next - self.first) as usize]);
        next.is_some_and(|next| next.ambiguous || self.in_flight > 0)
    }
}
