//! One partition's window: sequence numbers, and which batches are sent but not acknowledged.
//!
//! Pure: no I/O, no clock; batches are opaque. Not here: how many requests a connection carries
//! (max.in.flight.requests.per.connection); the window bounds how far a partition runs *past its oldest
//! unacknowledged batch*, since that is what the broker's memory of sequences bounds (KIP-1269).
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
//! Epochs are per partition: brokers keep them so, and a bump here can then disturb no other partition.

use fullbore_wire::batch::Stamp;
use std::collections::VecDeque;

/// Batches a broker surely remembers per producer and partition, when it does not say.
pub(crate) const WINDOW_DEFAULT: usize = 5;

/// The most batches it ever is, whatever the broker says.
pub(crate) const WINDOW_MAX: usize = 10_000;

/// A producer's identity on a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) producer_id: i64,
    pub(crate) epoch: i16,
}

/// Names a batch that was sent, until it is resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket(u64);

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

#[derive(Debug)]
enum State<B> {
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
    ticket: Ticket,
    sequence: i32,
    records: u32,
    /// The broker's last answer was OUT_OF_ORDER_SEQUENCE_NUMBER.
    out_of_order: bool,
    /// Some attempt in this epoch may have been written.
    ambiguous: bool,
    /// A later batch proves it written; it goes again only to learn its offset.
    proven: bool,
    state: State<B>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Window<B> {
    /// Sent and not resolved, in order; the front is never acknowledged.
    slots: VecDeque<Slot<B>>,
    next_ticket: u64,
    /// `None`: no identity yet, or the old one is used up. Without idempotence it stays so.
    identity: Option<Identity>,
    /// The producer id that must not be used again.
    spent: Option<i64>,
    idempotent: bool,
    next_sequence: i32,
    /// Batches past the oldest unacknowledged one that the broker remembers.
    limit: usize,
    /// Whether the broker acknowledged a batch of this epoch. Before, a broker older than Kafka 4.5 would take any
    /// first sequence (KAFKA-15591), so that one batch is sent at a time.
    established: bool,
    in_flight: usize,
    /// Retries not yet sent again.
    retries: usize,
    /// In a round: the position from which slots are still to be sent again.
    round: Option<usize>,
    /// A hole was left in this epoch; whether it is certain that it was not written.
    hole: Option<bool>,
    fenced: bool,
    renew: bool,
    /// Batches whose fate is settled without an answer of their own.
    settled: Vec<(B, Fate)>,
}

/// What is known of a batch that has no answer of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is in the log, at an offset that nobody remembers.
    Written,
    /// Nobody can say any more whether it is.
    Unresolved,
}

/// The sequence `count` records after `sequence`; 2^31-1 is followed by 0.
pub(crate) fn sequence_add(sequence: i32, count: u32) -> i32 {
    sequence.wrapping_add(count as i32) & i32::MAX
}

impl<B> Window<B> {
    pub(crate) fn new(idempotent: bool) -> Self {
        Window {
            slots: VecDeque::new(),
            next_ticket: 0,
            identity: None,
            spent: None,
            idempotent,
            next_sequence: 0,
            limit: if idempotent { WINDOW_DEFAULT } else { usize::MAX },
            established: !idempotent,
            in_flight: 0,
            retries: 0,
            round: None,
            hole: None,
            fenced: false,
            renew: false,
            settled: Vec::new(),
        }
    }

    /// Batches sent and not resolved, from the oldest unacknowledged one on.
    #[cfg(test)]
    pub(crate) fn span(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    pub(crate) fn has_retries(&self) -> bool {
        self.retries > 0
    }

    /// Whether nothing waits for a response or a retry.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight == 0 && self.retries == 0
    }

    fn limit(&self) -> usize {
        if self.established { self.limit } else { 1 }
    }

    /// The broker remembers this many batches past the oldest unacknowledged one. A smaller grant than before holds new
    /// batches back until those sent are fewer; it takes none back.
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
    pub(crate) fn adopt(&mut self, identity: Identity) {
        self.start_epoch(identity);
    }

    /// The log behind this partition is another one (the topic was deleted and created again): once nothing is in
    /// flight, sequences start again in a new epoch.
    pub(crate) fn restart(&mut self) {
        self.renew = self.idempotent && self.identity.is_some();
    }

    /// Whether a batch that was never sent may leave now. Settles what failed batches left behind first.
    pub(crate) fn may_open(&mut self) -> bool {
        self.settle();
        self.retries == 0
            && !self.must_settle()
            && self.slots.len() < self.limit()
            && (!self.idempotent || self.identity.is_some())
    }

    /// Batches whose fate is settled without an answer of their own. Settles, as [`Window::may_open`] does.
    pub(crate) fn settled(&mut self) -> Vec<(B, Fate)> {
        self.settle();
        std::mem::take(&mut self.settled)
    }

    /// As [`Window::may_open`], without settling: for a hint.
    pub(crate) fn is_open(&self) -> bool {
        self.retries == 0 && !self.must_settle() && self.slots.len() < self.limit()
    }

    /// Numbers a new batch of `records`; only when [`Window::may_open`].
    pub(crate) fn open(&mut self, records: u32) -> (Ticket, Stamp) {
        let ticket = self.take_ticket();
        let sequence = self.next_sequence;
        self.next_sequence = sequence_add(sequence, records);
        self.slots.push_back(Slot {
            ticket,
            sequence,
            records,
            out_of_order: false,
            ambiguous: false,
            proven: false,
            state: State::InFlight,
        });
        self.in_flight += 1;
        (ticket, self.stamp(sequence))
    }

    /// The next batch to be sent again. In a round they leave in order, one after another.
    pub(crate) fn next_retry(&mut self) -> Option<(Ticket, Stamp, B)> {
        self.settle();
        if self.retries == 0 || (self.idempotent && self.identity.is_none()) {
            return None;
        }
        let found = match self.round.and_then(|from| self.find_retry(from)) {
            Some(found) => found,
            None if self.in_flight == 0 => self.find_retry(0)?,
            None => return None,
        };
        let slot = &mut self.slots[found];
        let State::Retry(batch) = std::mem::replace(&mut slot.state, State::InFlight) else {
            unreachable!("just matched");
        };
        slot.out_of_order = false;
        let (ticket, sequence) = (slot.ticket, slot.sequence);
        self.retries -= 1;
        self.in_flight += 1;
        // With the last one sent the round is over; what fails now waits for the next.
        self.round = (self.retries > 0).then_some(found + 1);
        Some((ticket, self.stamp(sequence), batch))
    }

    fn find_retry(&self, from: usize) -> Option<usize> {
        let reach = self.slots.len().min(self.limit());
        (from..reach).find(|i| matches!(self.slots[*i].state, State::Retry(_)))
    }

    /// Whether batches are still to be sent again before the answers to those that were mean anything.
    pub(crate) fn in_round(&self) -> bool {
        self.round.is_some_and(|from| self.find_retry(from).is_some())
    }

    /// The batch is in the log.
    pub(crate) fn acked(&mut self, ticket: Ticket) {
        let at = self.resolve(ticket, State::Acked);
        self.established = true;
        for slot in self.slots.range_mut(..at).filter(|slot| slot.ambiguous) {
            slot.proven = true;
        }
        self.settle_slots(Fate::Written, |slot| slot.proven && slot.out_of_order);
        // What was out of order before this batch was there may be in order now.
        self.slots.iter_mut().for_each(|slot| slot.out_of_order = false);
        self.trim();
    }

    /// The attempt failed, the batch remains.
    pub(crate) fn set_back(&mut self, ticket: Ticket, setback: Setback, batch: B) {
        let at = self.resolve(ticket, State::Retry(batch));
        self.retries += 1;
        let slot = &mut self.slots[at];
        slot.out_of_order = setback == Setback::OutOfOrder;
        slot.ambiguous |= setback == Setback::Retry { maybe: true } && self.idempotent;
        self.fenced |= setback == Setback::Fenced;
        if setback == Setback::OutOfOrder {
            self.settle_slots(Fate::Written, |slot| slot.proven && slot.out_of_order);
            self.trim();
        } else {
            // What comes behind it would be out of order.
            self.round = None;
        }
    }

    /// Takes batches that wait for a retry out of the window.
    fn settle_slots(&mut self, fate: Fate, which: impl Fn(&Slot<B>) -> bool) {
        for slot in self.slots.iter_mut().filter(|slot| which(slot)) {
            let resolved = if fate == Fate::Written { State::Acked } else { State::Hole { maybe: true } };
            match std::mem::replace(&mut slot.state, resolved) {
                State::Retry(batch) => {
                    self.retries -= 1;
                    self.settled.push((batch, fate));
                }
                other => slot.state = other,
            }
        }
    }

    /// The batch failed for good.
    pub(crate) fn given_up(&mut self, ticket: Ticket, maybe: bool) {
        self.resolve(ticket, State::Hole { maybe });
        self.trim();
    }

    /// The batch is too large: its parts take its place, with its sequence numbers.
    pub(crate) fn split(&mut self, ticket: Ticket, parts: Vec<(u32, B)>) {
        let at = self.resolve(ticket, State::Acked);
        let mut sequence = self.slots[at].sequence;
        self.slots.remove(at);
        self.retries += parts.len();
        for (i, (records, batch)) in parts.into_iter().enumerate() {
            let ticket = self.take_ticket();
            let slot = Slot {
                ticket,
                sequence,
                records,
                out_of_order: false,
                ambiguous: false,
                proven: false,
                state: State::Retry(batch),
            };
            self.slots.insert(at + i, slot);
            sequence = sequence_add(sequence, records);
        }
        // Positions have moved, and what comes behind would be out of order.
        self.round = None;
    }

    /// Gives up batches that wait for a retry and are not wanted any more.
    pub(crate) fn drop_retries(&mut self, mut unwanted: impl FnMut(&B) -> bool) {
        for slot in &mut self.slots {
            if matches!(&slot.state, State::Retry(batch) if unwanted(batch)) {
                slot.state = State::Hole { maybe: true };
                self.retries -= 1;
            }
        }
        self.trim();
    }

    fn stamp(&self, sequence: i32) -> Stamp {
        match self.identity {
            Some(Identity { producer_id, epoch }) => {
                Stamp { producer_id, producer_epoch: epoch, base_sequence: sequence }
            }
            None => Stamp::NONE,
        }
    }

    fn take_ticket(&mut self) -> Ticket {
        self.next_ticket += 1;
        Ticket(self.next_ticket)
    }

    fn resolve(&mut self, ticket: Ticket, state: State<B>) -> usize {
        let at = self.slots.iter().position(|s| s.ticket == ticket).expect("a ticket is resolved once");
        debug_assert!(matches!(self.slots[at].state, State::InFlight));
        self.slots[at].state = state;
        self.in_flight -= 1;
        at
    }

    /// Removes what is resolved at the front.
    fn trim(&mut self) {
        while let Some(slot) = self.slots.front() {
            match slot.state {
                State::Acked => {}
                State::Hole { maybe } => self.hole = Some(!maybe || self.hole == Some(true)),
                _ => break,
            }
            self.slots.pop_front();
            self.round = self.round.map(|from| from.saturating_sub(1));
        }
    }

    fn must_settle(&self) -> bool {
        self.idempotent && (self.hole.is_some() || self.fenced || self.renew || self.has_buried_hole())
    }

    fn has_buried_hole(&self) -> bool {
        self.slots.iter().any(|s| matches!(s.state, State::Hole { .. }))
    }

    /// Once nothing is in flight: starts a new epoch if the old one cannot go on.
    fn settle(&mut self) {
        if self.in_flight > 0 {
            return;
        }
        let Some(identity) = self.identity else { return };
        let mut waiting = self.slots.iter().filter(|slot| matches!(slot.state, State::Retry(_))).peekable();
        // A batch that was surely not written is no witness either way, unless it is the next one expected.
        let all_out_of_order = waiting.peek().is_some_and(|first| first.out_of_order)
            && waiting.all(|slot| slot.out_of_order || !slot.ambiguous);
        let dead_end = match self.hole {
            // Nothing after a batch that was surely not written can have been written.
            Some(certain) => certain || self.retries == 0,
            None => false,
        };
        if !(all_out_of_order || dead_end || self.fenced || self.renew) {
            return;
        }
        self.settle_slots(Fate::Written, |slot| slot.proven);
        if all_out_of_order && !self.renew {
            self.give_up_ambiguous();
        }
        if self.fenced || identity.epoch == i16::MAX {
            self.spent = Some(identity.producer_id);
            self.identity = None;
        } else {
            self.start_epoch(Identity { epoch: identity.epoch + 1, ..identity });
        }
    }

    /// That all are out of order proves nothing where another was given up that may be written, or may yet be: it could be
    /// the newest, which is not among them, or come late and make way for late copies of those behind it.
    fn give_up_ambiguous(&mut self) {
        let in_doubt = |slot: &Slot<B>| matches!(slot.state, State::Hole { maybe: true });
        if self.hole != Some(false) && !self.slots.iter().any(in_doubt) {
            return;
        }
        self.settle_slots(Fate::Unresolved, |slot| slot.ambiguous);
    }

    fn start_epoch(&mut self, identity: Identity) {
        debug_assert_eq!(self.in_flight, 0);
        self.identity = Some(identity);
        self.established = false;
        (self.hole, self.fenced, self.renew, self.round) = (None, false, false, None);
        self.slots.retain(|slot| matches!(slot.state, State::Retry(_)));
        self.next_sequence = 0;
        for slot in &mut self.slots {
            slot.sequence = self.next_sequence;
            (slot.out_of_order, slot.ambiguous) = (false, false);
            self.next_sequence = sequence_add(self.next_sequence, slot.records);
        }
    }
}

#[cfg(test)]
mod tests;
