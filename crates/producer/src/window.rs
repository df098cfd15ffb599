//! One partition's window: sequence numbers, and which batches are sent but not acknowledged.
//!
//! Pure: no I/O, no clock; batches are opaque. Not here: how many requests a connection carries
//! (max.in.flight.requests.per.connection); the window bounds how far a partition runs *past its oldest
//! unacknowledged batch*, since that is what the broker's memory of sequences bounds (KIP-1269). What happens once
//! nothing is in flight is `settle.rs`.
//!
//! Invariant: within one producer epoch a sequence number only ever stands for the same records, and every batch
//! before an acknowledged one is in the log.
//!
//! After a failure nothing is sent until every batch in flight is resolved; then what is left goes again, in order,
//! in a *round*. What follows from the answers:
//!
//! * An acknowledged batch proves every earlier one of its epoch written that may be: the broker takes no sequence
//!   before the one ahead of it. So a broker that forgot them (Kafka after a restart) need not be asked.
//! * If every batch of a round is out of order, the newest was never written, or its retry would be recognised; so
//!   none was. The epoch is bumped (KIP-360) and all go again from sequence 0.
//!   Not so if another was given up that may be written: then those that may be are *unresolved*, and failed.
//! * A batch given up leaves a hole. The epoch is bumped once nothing is in flight, so that a late copy is fenced.
//!
//! Answers may come in any order, as from several connections. OUT_OF_ORDER_SEQUENCE_NUMBER then counts as evidence
//! only if nothing was acknowledged since the batch left: what was missing before it may have come meanwhile.
//!
//! The limit may change at any time. A round keeps to it as new batches do: it runs at most so far past the oldest
//! batch it waits for. Batches that it found out of order are not waited for, so that a round always comes to its end.
//!
//! Cost: constant per batch sent and per answer; linear in the window at the start of a new epoch, at a delivery
//! timeout and where a round finds its first batch out of order.
//!
//! Epochs are per partition: brokers keep them so, and a bump here can then disturb no other partition.

use fullbore_wire::Uuid;
use fullbore_wire::batch::Stamp;
use std::collections::VecDeque;

mod settle;

/// Batches a broker surely remembers per producer and partition, when it does not say.
pub(crate) const WINDOW_DEFAULT: usize = 5;

/// The most batches it ever is, whatever the broker says.
pub(crate) const WINDOW_MAX: usize = 10_000;

/// The sequences a window covers before it opens no further batch. Brokers remember at most 2^30, as of two further
/// apart nobody can say which is older; a batch itself, shorter than 2^31 bytes, has fewer than 2^29 records.
const SEQUENCES_MAX: u32 = 1 << 29;

/// A producer's identity on a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProducerIdAndEpoch {
    pub(crate) producer_id: i64,
    pub(crate) epoch: i16,
}

/// Names a batch that was sent, until it is resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    /// Its place when it was sent. A split before it moves it; the sequence still finds it.
    place: u64,
    sequence: i32,
}

/// Why a batch that was sent is not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Setback {
    /// The attempt failed; the batch goes again as it is. `maybe` if this attempt may have been written.
    Retry { maybe: bool },
    /// OUT_OF_ORDER_SEQUENCE_NUMBER: this attempt wrote nothing.
    OutOfOrder,
    /// The broker knows a newer epoch, or no longer knows the producer: a new identity is needed.
    Fenced,
}

/// What is known of a batch that has no answer of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is in the log, at an offset that nobody remembers.
    Written,
    /// Nobody can say any more whether it is.
    Unresolved,
    /// The broker takes it no more, and its transaction has failed: it was surely not written.
    Refused,
}

#[derive(Debug)]
enum SlotState<B> {
    InFlight,
    Retry(B),
    Acked,
    /// Given up; `maybe` if some attempt may have been written.
    Hole {
        maybe: bool,
    },
}

#[derive(Debug)]
struct Slot<B> {
    sequence: i32,
    records: u32,
    /// The generation in which it was last sent.
    sent: u64,
    /// The last answer was OUT_OF_ORDER_SEQUENCE_NUMBER.
    out_of_order: bool,
    /// Some attempt in this epoch may have been written.
    ambiguous: bool,
    /// The log that the last attempt was for; zeros for whichever has the topic's name.
    sent_to: Uuid,
    /// The log in which some attempt, of whatever epoch, may have been written; zeros for one of several.
    maybe_in: Option<Uuid>,
    state: SlotState<B>,
}

/// One pass over what is to be sent again, oldest first.
#[derive(Clone, Copy, Debug)]
struct Round {
    /// The place of the next batch to be sent.
    next: u64,
    /// No batch before this place is in flight.
    waits_from: u64,
    /// Batches left to be sent, from `next` on; at least one.
    left: usize,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Window<B> {
    /// Sent and not resolved, in order; the front is never acknowledged.
    slots: VecDeque<Slot<B>>,
    /// The place of the front; places count up over the window's life.
    first: u64,
    /// `None`: no identity yet, or the old one is used up. Without idempotence it stays so.
    identity: Option<ProducerIdAndEpoch>,
    /// The producer id that must not be used again.
    spent: Option<i64>,
    idempotent: bool,
    /// True if the transaction coordinator gives the epochs: none begins here.
    transactional: bool,
    next_sequence: i32,
    /// Batches past the oldest unacknowledged one that the broker remembers.
    limit: usize,
    /// True if the broker acknowledged a batch of this epoch. Before, a broker older than Kafka 4.5 would take any
    /// first sequence (KAFKA-15591), so that one batch is sent at a time.
    established: bool,
    in_flight: usize,
    /// Retries not yet sent again.
    retries: usize,
    /// Holes with an unresolved batch before them.
    holes: usize,
    round: Option<Round>,
    /// Counts acknowledgements and rounds: see the module on evidence.
    generation: u64,
    /// The place of the newest batch acknowledged in this epoch: what may be written before it is.
    proven_to: u64,
    /// A hole was left in this epoch; whether it is certain that it was not written.
    hole: Option<bool>,
    fenced: bool,
    /// The log that batches are for: its topic's id, or zeros where topics have none.
    log: Uuid,
    /// It is another one than that of this epoch.
    renew: bool,
    /// Batches whose fate is settled without an answer of their own.
    settled: Vec<(B, Fate)>,
    /// Slots looked at, for the test of the cost.
    #[cfg(test)]
    visits: usize,
}

/// The sequence `count` records after `sequence`; 2^31-1 is followed by 0.
pub(crate) fn sequence_add(sequence: i32, count: u32) -> i32 {
    sequence.wrapping_add(count as i32) & i32::MAX
}

/// How many records `to` comes after `from`, going forward only.
fn sequence_distance(from: i32, to: i32) -> u32 {
    (to.wrapping_sub(from) & i32::MAX) as u32
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

    /// Batches sent and not resolved, from the oldest unacknowledged one on.
    pub(crate) fn span(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    pub(crate) fn has_retries(&self) -> bool {
        self.retries > 0
    }

    /// Returns true if nothing waits for a response or a retry.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight == 0 && self.retries == 0
    }

    /// Batches that may be past the oldest unacknowledged one, that one included.
    pub(crate) fn limit(&self) -> usize {
        if self.established { self.limit } else { 1 }
    }

    /// The broker remembers this many batches past the oldest unacknowledged one. A smaller grant than before holds new
    /// batches and retries back until those in flight are fewer; it takes none back.
    pub(crate) fn grant(&mut self, batches: usize) {
        if self.idempotent {
            self.limit = batches.max(1);
        }
    }

    /// Whether an identity is needed before anything can be sent; if so, the producer id it must not have.
    pub(crate) fn wants_identity(&self) -> Option<Option<i64>> {
        (self.idempotent && self.identity.is_none()).then_some(self.spent)
    }

    /// Takes an identity; what waits for a retry is numbered anew.
    pub(crate) fn adopt(&mut self, identity: ProducerIdAndEpoch) {
        self.start_epoch(identity);
    }

    /// The log that batches are for from now on. Whether it is another one than before (the topic was deleted and
    /// created again): once nothing is in flight, sequences start again in a new epoch.
    pub(crate) fn write_to(&mut self, log: Uuid) -> bool {
        let before = std::mem::replace(&mut self.log, log);
        let is_another = before != Uuid::default() && log != Uuid::default() && before != log;
        if is_another {
            self.renew = self.idempotent && self.identity.is_some();
            // What it would go on with may come behind what has not been answered yet.
            self.round = None;
        }
        is_another
    }

    /// The log that batches are for; see [`Window::write_to`].
    pub(crate) fn log(&self) -> Uuid {
        self.log
    }

    /// The attempt named the topic and not the log, so that it may be in any that has, or had, this name.
    pub(crate) fn went_by_name(&mut self, ticket: Ticket) {
        let at = self.find(ticket);
        self.slots[at].sent_to = Uuid::default();
    }

    /// Returns true if a batch that was never sent may leave now. Settles what failed batches left behind first.
    pub(crate) fn may_open(&mut self) -> bool {
        self.settle();
        self.is_open() && (!self.idempotent || self.identity.is_some())
    }

    /// As [`Window::may_open`], without settling: for a hint.
    pub(crate) fn is_open(&self) -> bool {
        let sequences = self.slots.front().map_or(0, |front| sequence_distance(front.sequence, self.next_sequence));
        self.retries == 0
            && !self.must_settle()
            && self.slots.len() < self.limit()
            && (sequences < SEQUENCES_MAX || !self.idempotent)
    }

    /// Returns true if nothing but its limit keeps new batches from leaving.
    pub(crate) fn is_full(&self) -> bool {
        self.established && self.retries == 0 && !self.must_settle() && self.slots.len() >= self.limit
    }

    /// Returns true if twice as much as now could be past the oldest unacknowledged batch.
    pub(crate) fn takes_twice(&self) -> bool {
        2 * self.slots.len() <= self.limit()
    }

    /// The partition was idle for so long that the broker may have forgotten the producer. It would take any first
    /// sequence, so that one batch is sent at a time until the next acknowledgement.
    pub(crate) fn rested(&mut self) {
        if self.slots.is_empty() {
            self.established = !self.idempotent;
        }
    }

    /// Batches whose fate is settled without an answer of their own. Settles, as [`Window::may_open`] does.
    pub(crate) fn settled(&mut self) -> Vec<(B, Fate)> {
        self.settle();
        std::mem::take(&mut self.settled)
    }

    /// Numbers a new batch of `records`; only when [`Window::may_open`].
    pub(crate) fn open(&mut self, records: u32) -> (Ticket, Stamp) {
        let (place, sequence) = (self.first + self.slots.len() as u64, self.next_sequence);
        self.next_sequence = sequence_add(sequence, records);
        let slot = Slot::new(sequence, records, SlotState::InFlight);
        self.slots.push_back(Slot { sent: self.generation, sent_to: self.log, ..slot });
        self.in_flight += 1;
        (Ticket { place, sequence }, self.stamp(sequence))
    }

    /// The next batch to be sent again. In a round they leave in order, one after another. `missing` if the broker
    /// holds batches in flight until the oldest that waits comes: it then goes at once. That is no round, so that
    /// nothing counts as evidence until there is one.
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

    /// The batch that [`Window::next_retry`] returns next.
    pub(crate) fn peek_retry(&mut self, missing: bool) -> Option<&B> {
        let place = self.retry_place(missing)?;
        match &self.slots[(place - self.first) as usize].state {
            SlotState::Retry(batch) => Some(batch),
            _ => None,
        }
    }

    /// The parts of the batch that [`Window::next_retry`] would return take its place, as with [`Window::split`].
    pub(crate) fn part_retry(&mut self, missing: bool, parts: Vec<(u32, B)>) {
        let Some(place) = self.retry_place(missing) else { return };
        self.retries -= 1;
        if let Some(round) = &mut self.round {
            round.left += parts.len() - 1;
        }
        self.put_parts((place - self.first) as usize, parts);
    }

    /// The place of the batch that goes again next, if one may.
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
            // Batches that were out of order go again. The front waits: it is neither acknowledged nor in flight.
            self.generation += 1;
            self.round = Some(Round { next: self.first, waits_from: self.first, left: self.retries });
        }
        self.within_reach()
    }

    /// The place of the round's next batch, if it may leave.
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

    /// Moves the round to the next batch that waits, from `place` on. With the last one sent the round is over; what
    /// fails now waits for the next.
    fn advance_round(&mut self, place: u64) {
        let Some(mut round) = self.round.take().filter(|round| round.left > 1) else { return };
        (round.next, round.left) = (place, round.left - 1);
        while !matches!(self.slots[(round.next - self.first) as usize].state, SlotState::Retry(_)) {
            round.next += 1;
            self.visit();
        }
        self.round = Some(round);
    }

    /// Returns true if batches are still to be sent again before the answers to those that were mean anything.
    pub(crate) fn in_round(&self) -> bool {
        let next = self.round.map(|round| &self.slots[(round.next - self.first) as usize]);
        next.is_some_and(|next| next.ambiguous || self.in_flight > 0)
    }

    /// The batch is in the log.
    pub(crate) fn acked(&mut self, ticket: Ticket) {
        let at = self.resolve(ticket, SlotState::Acked);
        self.established = true;
        self.generation += 1;
        // What it newly proves and the broker has forgotten need not be asked for again.
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

    /// The attempt failed, the batch remains.
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
            // What comes behind it would be out of order.
            self.round = None;
        } else if self.is_proven(at) {
            self.settle_slot(at, Fate::Written);
            self.trim();
        }
    }

    /// The batch failed for good.
    pub(crate) fn given_up(&mut self, ticket: Ticket, maybe: bool) {
        let at = self.resolve(ticket, SlotState::Acked);
        self.slots[at].ambiguous = maybe;
        self.leave_hole(at);
        self.trim();
    }

    /// The batch is too large: its parts take its place, with its sequence numbers. None of its attempts may have been
    /// written.
    pub(crate) fn split(&mut self, ticket: Ticket, parts: Vec<(u32, B)>) {
        let at = self.resolve(ticket, SlotState::Acked);
        self.put_parts(at, parts);
        // Places have moved, and what comes behind would be out of order.
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

    /// The newest batch has not left after all, and its sequence numbers are free again. Returns false if it is not the
    /// newest.
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

    /// Gives up batches that wait for a retry and are not wanted any more.
    pub(crate) fn drop_retries(&mut self, mut unwanted: impl FnMut(&B) -> bool) {
        if self.retries == 0 {
            return;
        }
        for at in 0..self.slots.len() {
            if matches!(&self.slots[at].state, SlotState::Retry(batch) if unwanted(batch)) {
                self.retries -= 1;
                self.leave_hole(at);
                // What comes behind it would be out of order.
                self.round = None;
            }
        }
        self.trim();
    }

    /// Nobody waits for this batch any more. If it is proven written, nothing is missing.
    fn leave_hole(&mut self, at: usize) {
        if self.is_proven(at) {
            self.slots[at].state = SlotState::Acked;
        } else {
            self.slots[at].state = SlotState::Hole { maybe: self.slots[at].ambiguous };
            self.holes += 1;
        }
    }

    /// Returns true if a later batch proves it written; it goes again only to learn its offset.
    fn is_proven(&self, at: usize) -> bool {
        self.slots[at].ambiguous && self.first + (at as u64) < self.proven_to
    }

    /// Counts a slot looked at beside the one that is acted upon; for the test of the cost.
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

    /// Removes what is resolved at the front.
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
