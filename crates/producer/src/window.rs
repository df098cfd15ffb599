//! The window of a partition: its sequence numbers, and the batches that were sent and are not acknowledged.
//!
//! This module has no I/O and no clock, and treats batches as opaque values. The window limits how many batches a
//! partition may send *after its oldest unacknowledged batch*. This is also what a broker remembers (KIP-1269). The
//! window does not limit the requests on a connection (max.in.flight.requests.per.connection). `settle.rs` decides
//! about failed batches once nothing is in flight, and `round.rs` sends batches again.
//!
//! Invariant: within one producer epoch, a sequence number is never used for two different records, and every batch
//! before an acknowledged one is in the log.
//!
//! After a failure nothing is sent until every batch in flight has its result or waits for a retry. These retries are
//! then sent in order, in a *round*. Responses prove the following:
//!
//! * The acknowledgement of a batch proves that every earlier batch of its epoch with an unknown outcome was written,
//!   because the broker accepts sequences only in order. The earlier batches need no retry, even if the broker has
//!   forgotten them (Kafka after a restart).
//! * If the broker refuses every batch of a round as out of order, none was written. Otherwise the broker would retain
//!   at least the newest written batch, and would recognise its retry. The epoch is bumped (KIP-360), and all batches
//!   are sent again from sequence 0. There is no such proof if a batch with an unknown outcome was given up. The other
//!   batches with an unknown outcome are then *unresolved* and fail.
//! * A batch that was given up leaves a hole in the sequences. The epoch is bumped once nothing is in flight, so that a
//!   late copy of the batch is fenced.
//!
//! Responses may come in any order, as they do over several connections. OUT_OF_ORDER_SEQUENCE_NUMBER is then evidence
//! only if no batch was acknowledged since the refused batch was sent. Otherwise the missing batch before it may have
//! arrived in the meantime.
//!
//! The limit may change at any time. It applies to new batches and to the batches of a round: a round sends at most
//! that many batches after its oldest batch in flight. A round does not wait for batches that were refused as out of
//! order, so that every round ends.
//!
//! The cost per sent batch and per response is constant. The cost of a new epoch, of a delivery timeout, and of a round
//! whose first batch is out of order is proportional to the window.
//!
//! Each partition has its own epoch, as at the broker, so that a bump in one window does not affect other partitions.

use fullbore_wire::Uuid;
use fullbore_wire::batch::Stamp;
use round::Round;
pub(crate) use sequences::sequence_add;
use sequences::sequence_distance;
use std::collections::VecDeque;

mod round;
mod sequences;
mod settle;

/// The number of batches per producer and partition that a broker is assumed to retain until it reports a value.
pub(crate) const WINDOW_DEFAULT: usize = 5;

/// Upper bound for the window that a broker grants.
pub(crate) const WINDOW_MAX: usize = 10_000;

/// Number of sequences from which the window accepts no further batch. A batch is shorter than 2^31 bytes and has fewer
/// than 2^29 records. The window thus covers fewer than 2^30 sequences. This is the most that brokers retain, because
/// the order of two sequences that are further apart is ambiguous.
const SEQUENCES_MAX: u32 = 1 << 29;

/// The producer id and epoch in the batches of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProducerIdAndEpoch {
    pub(crate) producer_id: i64,
    pub(crate) epoch: i16,
}

/// The key of a sent batch in the window, until the batch is resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    /// The position of the batch when it was sent, counted over the window's life. If an earlier batch is split, the
    /// position changes, but the sequence still identifies the batch.
    place: u64,
    sequence: i32,
}

/// The reason why an attempt was not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Setback {
    /// The attempt failed, and the batch is sent again unchanged. `maybe` is true if this attempt may have been
    /// written.
    Retry { maybe: bool },
    /// The broker answered OUT_OF_ORDER_SEQUENCE_NUMBER, so this attempt wrote nothing.
    OutOfOrder,
    /// The broker knows a newer epoch, or no longer knows the producer. A new identity is needed.
    Fenced,
}

/// The outcome of a batch that the window has inferred without a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The batch is in the log, at an unknown offset.
    Written,
    /// The batch may or may not be in the log. No further attempt can show which.
    Unresolved,
    /// The batch was certainly not written, and cannot be sent again because its transaction has failed.
    Refused,
}

#[derive(Debug)]
enum SlotState<B> {
    InFlight,
    Retry(B),
    Acked,
    /// A batch that was given up. `maybe` is true if an attempt may have been written.
    Hole {
        maybe: bool,
    },
}

#[derive(Debug)]
struct Slot<B> {
    sequence: i32,
    records: u32,
    /// The value of `generation` when the batch was last sent.
    sent: u64,
    /// True if the last response was OUT_OF_ORDER_SEQUENCE_NUMBER.
    out_of_order: bool,
    /// True if an attempt in this epoch may have been written.
    ambiguous: bool,
    /// The log to which the last attempt was sent, by its topic id. Zero if the attempt had only the topic's name, so
    /// that it may be in any log of this name.
    sent_to: Uuid,
    /// The log in which an attempt of any epoch may have been written. Zero if it may be in one of several logs, `None`
    /// if it is in none.
    maybe_in: Option<Uuid>,
    state: SlotState<B>,
}

/// The window of a partition.
#[derive(Debug)]
pub(crate) struct Window<B> {
    /// All batches from the oldest unresolved one on, in order, including resolved ones and holes. The front is always
    /// unresolved.
    slots: VecDeque<Slot<B>>,
    /// The `place` of the front. Places number the batches over the window's life.
    first: u64,
    /// The present identity. `None` before the first one, when the old one must not be used any more, and always
    /// without idempotence.
    identity: Option<ProducerIdAndEpoch>,
    /// A producer id that must not be used again.
    spent: Option<i64>,
    idempotent: bool,
    /// True if the transaction coordinator assigns the epochs, so that the window does not begin any.
    transactional: bool,
    next_sequence: i32,
    /// The window that the broker has granted, in batches.
    limit: usize,
    /// True if the broker has acknowledged a batch of this epoch. Until then, one batch is sent at a time, because a
    /// broker older than Kafka 4.5 would accept any first sequence (KAFKA-15591).
    established: bool,
    in_flight: usize,
    /// How many batches wait to be sent again.
    retries: usize,
    /// The number of holes in `slots`. Each has an unresolved batch before it.
    holes: usize,
    round: Option<Round>,
    /// A counter of acknowledgements and rounds. A refusal as out of order is evidence only if the counter has not
    /// changed since the batch was sent.
    generation: u64,
    /// The `place` of the newest batch acknowledged in this epoch. Earlier batches of the epoch with an unknown outcome
    /// were therefore written.
    proven_to: u64,
    /// `Some` once a hole has reached the front in this epoch. The value is true if the batch of any such hole was
    /// certainly not written.
    hole: Option<bool>,
    fenced: bool,
    /// The log to which batches must be written: the topic's id, or zero if topics have no ids.
    log: Uuid,
    /// True if the topic was recreated in this epoch, so that batches must be written to another log.
    renew: bool,
    /// Batches with an inferred outcome that the caller has not taken yet.
    settled: Vec<(B, Fate)>,
    /// The number of visited slots, with which a test measures the cost.
    #[cfg(test)]
    visits: usize,
}

impl<B> Window<B> {
    pub(crate) fn new(idempotent: bool) -> Self {
        Window {
            slots: VecDeque::new(),
            first: 0,
            identity: None,
            spent: None,
            idempotent,
            transactional: false,
            next_sequence: 0,
            limit: if idempotent { WINDOW_DEFAULT } else { usize::MAX },
            established: !idempotent,
            in_flight: 0,
            retries: 0,
            holes: 0,
            round: None,
            generation: 0,
            proven_to: 0,
            hole: None,
            fenced: false,
            log: Uuid::default(),
            renew: false,
            settled: Vec::new(),
            #[cfg(test)]
            visits: 0,
        }
    }

    /// Returns the number of batches that were sent from the oldest unacknowledged one on.
    pub(crate) fn span(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    pub(crate) fn has_retries(&self) -> bool {
        self.retries > 0
    }

    /// Returns true if no batch waits for a response or a retry.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight == 0 && self.retries == 0
    }

    /// Returns the maximum number of batches in the window, counted from the oldest unacknowledged one.
    pub(crate) fn limit(&self) -> usize {
        if self.established { self.limit } else { 1 }
    }

    /// Sets the window that the broker has granted. If it shrinks, new batches and retries wait until fewer are in
    /// flight.
    pub(crate) fn grant(&mut self, batches: usize) {
        if self.idempotent {
            self.limit = batches.max(1);
        }
    }

    /// Returns `Some` if a new identity is needed before a batch can be sent. If the inner value is `Some`, the new
    /// identity must not have this producer id.
    pub(crate) fn wants_identity(&self) -> Option<Option<i64>> {
        (self.idempotent && self.identity.is_none()).then_some(self.spent)
    }

    /// Begins an epoch with a new identity. Batches that wait for a retry get new sequence numbers.
    pub(crate) fn adopt(&mut self, identity: ProducerIdAndEpoch) {
        self.start_epoch(identity);
    }

    /// Sets the log to which batches must be written. Returns true if the topic was recreated, so that this is another
    /// log than before. Once nothing is in flight, a new epoch then begins with sequence 0. A transactional producer
    /// keeps its epoch.
    pub(crate) fn write_to(&mut self, log: Uuid) -> bool {
        let before = std::mem::replace(&mut self.log, log);
        let is_another = before != Uuid::default() && log != Uuid::default() && before != log;
        if is_another {
            self.renew = self.idempotent && self.identity.is_some();
            // The round ends, because its next batches would be sent to the new log while those in flight were sent to
            // the old one.
            self.round = None;
        }
        is_another
    }

    /// Returns the log to which batches must be written, as set by [`Window::write_to`].
    pub(crate) fn log(&self) -> Uuid {
        self.log
    }

    /// Notes that the attempt had only the topic's name, so that it may be in any log of this name.
    pub(crate) fn went_by_name(&mut self, ticket: Ticket) {
        let at = self.find(ticket);
        self.slots[at].sent_to = Uuid::default();
    }

    /// Returns true if a new batch may be sent now. If nothing is in flight, first settles failed batches.
    pub(crate) fn may_open(&mut self) -> bool {
        self.settle();
        self.is_open() && (!self.idempotent || self.identity.is_some())
    }

    /// Returns the result of [`Window::may_open`] without settling failed batches first. The result is therefore only a
    /// hint.
    pub(crate) fn is_open(&self) -> bool {
        let sequences = self.slots.front().map_or(0, |front| sequence_distance(front.sequence, self.next_sequence));
        self.retries == 0
            && !self.must_settle()
            && self.slots.len() < self.limit()
            && (sequences < SEQUENCES_MAX || !self.idempotent)
    }

    /// Returns true if new batches wait only for the limit of the window.
    pub(crate) fn is_full(&self) -> bool {
        self.established && self.retries == 0 && !self.must_settle() && self.slots.len() >= self.limit
    }

    /// Returns true if at most three quarters of the limit are in use.
    pub(crate) fn takes_more(&self) -> bool {
        4 * self.slots.len() <= 3 * self.limit()
    }

    /// Notes that the partition was idle for long. The broker may have forgotten the producer and would accept any
    /// first sequence. The window therefore permits only one batch until the next acknowledgement.
    pub(crate) fn rested(&mut self) {
        if self.slots.is_empty() {
            self.established = !self.idempotent;
        }
    }

    /// Removes and returns the batches with an inferred outcome. Like [`Window::may_open`], first settles failed
    /// batches if nothing is in flight.
    pub(crate) fn settled(&mut self) -> Vec<(B, Fate)> {
        self.settle();
        std::mem::take(&mut self.settled)
    }

    /// Assigns sequence numbers to a new batch of `records` records. [`Window::may_open`] must have returned true.
    pub(crate) fn open(&mut self, records: u32) -> (Ticket, Stamp) {
        let (place, sequence) = (self.first + self.slots.len() as u64, self.next_sequence);
        self.next_sequence = sequence_add(sequence, records);
        let slot = Slot::new(sequence, records, SlotState::InFlight);
        self.slots.push_back(Slot { sent: self.generation, sent_to: self.log, ..slot });
        self.in_flight += 1;
        (Ticket { place, sequence }, self.stamp(sequence))
    }

    /// Notes that the batch is in the log.
    pub(crate) fn acked(&mut self, ticket: Ticket) {
        let at = self.resolve(ticket, SlotState::Acked);
        self.established = true;
        self.generation += 1;
        // The acknowledgement proves that earlier batches were written. They need no retry, and the broker might not
        // even recognise one.
        let (from, to) = (self.proven_to.max(self.first), self.first + at as u64);
        self.proven_to = self.proven_to.max(to);
        for place in from..to {
            let at = (place - self.first) as usize;
            if self.slots[at].out_of_order && self.is_proven(at) {
                self.settle_slot(at, Fate::Written);
            }
            self.visit();
        }
        self.trim();
    }

    /// Notes that an attempt failed. The batch then waits for a retry. There is one exception: if the attempt was out
    /// of order, and the acknowledgement of a later batch proves that an earlier attempt was written, the batch is
    /// complete.
    pub(crate) fn set_back(&mut self, ticket: Ticket, setback: Setback, batch: B) {
        let at = self.resolve(ticket, SlotState::Retry(batch));
        self.retries += 1;
        let slot = &mut self.slots[at];
        slot.out_of_order = setback == Setback::OutOfOrder;
        if setback == (Setback::Retry { maybe: true }) && self.idempotent {
            slot.ambiguous = true;
            slot.maybe_in =
                Some(if slot.maybe_in.is_none_or(|log| log == slot.sent_to) { slot.sent_to } else { Uuid::default() });
        }
        self.fenced |= setback == Setback::Fenced;
        if setback != Setback::OutOfOrder {
            // The round ends, because batches behind this one would be out of order.
            self.round = None;
        } else if self.is_proven(at) {
            self.settle_slot(at, Fate::Written);
            self.trim();
        }
    }

    /// Notes that the batch failed for good.
    pub(crate) fn given_up(&mut self, ticket: Ticket, maybe: bool) {
        let at = self.resolve(ticket, SlotState::Acked);
        self.slots[at].ambiguous = maybe;
        self.leave_hole(at);
        self.trim();
    }

    /// Replaces a batch that is too large by its parts, which reuse its sequence numbers. The caller knows that no
    /// attempt of the batch was written.
    pub(crate) fn split(&mut self, ticket: Ticket, parts: Vec<(u32, B)>) {
        let at = self.resolve(ticket, SlotState::Acked);
        self.put_parts(at, parts);
        // The round ends, because the places have changed and batches behind this one would be out of order.
        self.round = None;
    }

    fn put_parts(&mut self, at: usize, parts: Vec<(u32, B)>) {
        let mut sequence = self.slots[at].sequence;
        let behind = self.slots.split_off(at + 1);
        self.slots.pop_back();
        self.retries += parts.len();
        if self.proven_to > self.first + at as u64 {
            self.proven_to += parts.len() as u64 - 1;
        }
        for (records, batch) in parts {
            self.slots.push_back(Slot::new(sequence, records, SlotState::Retry(batch)));
            sequence = sequence_add(sequence, records);
        }
        self.slots.extend(behind);
    }

    /// Removes a batch that was opened but not sent, so that its sequence numbers are free again. Returns false if it
    /// is not the newest batch.
    pub(crate) fn take_back(&mut self, ticket: Ticket) -> bool {
        let at = self.find(ticket);
        if at + 1 != self.slots.len() || !matches!(self.slots[at].state, SlotState::InFlight) {
            return false;
        }
        self.slots.pop_back();
        self.in_flight -= 1;
        self.next_sequence = ticket.sequence;
        true
    }

    /// Gives up the batches that wait for a retry and for which `unwanted` returns true.
    pub(crate) fn drop_retries(&mut self, mut unwanted: impl FnMut(&B) -> bool) {
        if self.retries == 0 {
            return;
        }
        for at in 0..self.slots.len() {
            if matches!(&self.slots[at].state, SlotState::Retry(batch) if unwanted(batch)) {
                self.retries -= 1;
                self.leave_hole(at);
                // The round ends, because batches behind this one would be out of order.
                self.round = None;
            }
        }
        self.trim();
    }

    /// Replaces a batch that was given up by a hole, unless it is proven that the batch was written.
    fn leave_hole(&mut self, at: usize) {
        if self.is_proven(at) {
            self.slots[at].state = SlotState::Acked;
        } else {
            self.slots[at].state = SlotState::Hole { maybe: self.slots[at].ambiguous };
            self.holes += 1;
        }
    }

    /// Returns true if the acknowledgement of a later batch proves that this one was written. Only its offset is then
    /// unknown.
    fn is_proven(&self, at: usize) -> bool {
        self.slots[at].ambiguous && self.first + (at as u64) < self.proven_to
    }

    /// Counts one visited slot, for a test that measures the cost. The slot of a method's own batch is not counted.
    fn visit(&mut self) {
        #[cfg(test)]
        {
            self.visits += 1;
        }
    }

    fn stamp(&self, sequence: i32) -> Stamp {
        match self.identity {
            Some(ProducerIdAndEpoch { producer_id, epoch }) => {
                Stamp { producer_id, producer_epoch: epoch, base_sequence: sequence }
            }
            None => Stamp::NONE,
        }
    }

    fn resolve(&mut self, ticket: Ticket, state: SlotState<B>) -> usize {
        let at = self.find(ticket);
        debug_assert!(matches!(self.slots[at].state, SlotState::InFlight));
        self.slots[at].state = state;
        self.in_flight -= 1;
        at
    }

    fn find(&self, ticket: Ticket) -> usize {
        let at = ticket.place.wrapping_sub(self.first) as usize;
        if self.slots.get(at).is_some_and(|slot| slot.sequence == ticket.sequence) {
            return at;
        }
        let front = self.slots.front().expect("a ticket is resolved once");
        let wanted = sequence_distance(front.sequence, ticket.sequence);
        let found = self.slots.binary_search_by_key(&wanted, |slot| sequence_distance(front.sequence, slot.sequence));
        found.expect("a ticket is resolved once")
    }

    /// Removes resolved batches at the front.
    fn trim(&mut self) {
        while let Some(slot) = self.slots.front() {
            match slot.state {
                SlotState::Acked => {}
                SlotState::Hole { maybe } => {
                    self.hole = Some(!maybe || self.hole == Some(true));
                    self.holes -= 1;
                }
                _ => break,
            }
            self.slots.pop_front();
            self.first += 1;
            self.visit();
        }
    }
}

impl<B> Slot<B> {
    fn new(sequence: i32, records: u32, state: SlotState<B>) -> Self {
        let (sent_to, maybe_in) = (Uuid::default(), None);
        Slot { sequence, records, sent: 0, out_of_order: false, ambiguous: false, sent_to, maybe_in, state }
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
