//! The producer of a client for one partition. It has the batches to be sent or sent again, and the outcomes that the
//! client knows.
//!
//! A producer follows Kafka's rules. It sends batches in the order of their sequences. They are within a window that
//! begins at the oldest unresolved batch. A failed batch is sent again, with the same sequence, before the batches
//! behind it.
//!
//! If a new epoch is needed, it begins as soon as no batch is in flight. Batches that may have been written are given
//! up then, because a copy with another sequence would be a duplicate.
//!
//! This module knows neither connections nor time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use fullbore_rules::sequence::{NO_PRODUCER_ID, SequenceRefusal};
use fullbore_tests::Random;
use fullbore_wire::batch::{BatchBuilder, Compression, Stamp};
use fullbore_wire::{ErrorCode, Uuid};
use parking_lot::Mutex;

use super::world::{Setup, World, ms, random};
use fullbore_log::partition::error::AppendError;

/// Number of connections to each broker, for a producer that uses several of them.
const STRIPES: usize = 3;

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Response {
    Appended(i64),
    Refused(AppendError),
    /// The connection was lost.
    Nothing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchFate {
    /// The outcome is not known yet.
    Open,
    /// The batch is in this topic, at this offset. The offset is -1 if it is unknown.
    Acknowledged {
        topic: Uuid,
        offset: i64,
    },
    GivenUp,
}

/// A batch of a client.
#[derive(Debug)]
pub struct ProducerBatch {
    pub fate: BatchFate,
    /// True if this batch was in a request whose outcome is unknown.
    pub may_be_written: bool,
    pub bytes: Bytes,
    pub epoch: i16,
    base_sequence: i32,
    pub record_count: i32,
    in_flight: Vec<u64>,
    not_before: Duration,
}

/// A request that is under way.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    batch: usize,
    /// True if all earlier batches were resolved when the request was sent.
    was_first: bool,
}

/// The next step of a producer.
pub enum Step {
    Send(Sent),
    /// Wait until this time, or until an answer arrives. `None` means that only an answer ends the wait.
    Wait(Option<Duration>),
    Done,
}

/// A request that a producer sends.
pub struct Sent {
    pub attempt: u64,
    pub topic: Uuid,
    pub bytes: Bytes,
    pub may_reorder: bool,
    pub connection: usize,
}

/// The batches of a producer for one partition.
pub struct PartitionProducer {
    pub index: usize,
    pub partition: i32,
    pub producer_id: i64,
    stripes: usize,
    window: usize,
    total: usize,
    epoch: i16,
    next_sequence: i32,
    pub batches: Vec<ProducerBatch>,
    attempts: BTreeMap<u64, Attempt>,
    next_attempt: u64,
    topic: Option<Uuid>,
    /// True if a batch of the current epoch was acknowledged in the current topic.
    is_known: bool,
    wants_epoch: bool,
    next_at: Duration,
    pub by: Random,
}

impl PartitionProducer {
    /// Returns the producers of a schedule.
    pub fn all(setup: &Setup) -> Vec<Arc<Mutex<PartitionProducer>>> {
        let mut by = random(setup.seed, 4);
        let count = by.between(2, 6);
        let producer = |index: usize| {
            let mut by = random(setup.seed, 1000 + index as u64);
            let is_idempotent = by.below(8) > 0;
            PartitionProducer {
                index,
                partition: by.below(setup.partitions as usize) as i32,
                // Each idempotent producer has its own id, because two producers with the same id must not write to the
                // same partition.
                producer_id: if is_idempotent { 100 + index as i64 } else { NO_PRODUCER_ID },
                stripes: if is_idempotent && by.below(3) == 0 { STRIPES } else { 1 },
                window: by.between(2, setup.window + 1),
                total: setup.batches,
                epoch: 0,
                next_sequence: 0,
                batches: Vec::new(),
                attempts: BTreeMap::new(),
                next_attempt: 0,
                topic: None,
                is_known: false,
                wants_epoch: false,
                next_at: ms(by.below(2_000)),
                by,
            }
        };
        (0..count).map(|index| Arc::new(Mutex::new(producer(index)))).collect()
    }

    pub fn is_idempotent(&self) -> bool {
        self.producer_id != NO_PRODUCER_ID
    }

    /// Returns the unresolved batches as text for an error message.
    pub fn open(&self) -> String {
        let open = self.batches.iter().enumerate().filter(|(_, batch)| batch.fate == BatchFate::Open);
        let of = |(at, batch): (usize, &ProducerBatch)| format!("{}.{at} in flight {:?}", self.index, batch.in_flight);
        format!("{:?} of {}", open.map(of).collect::<Vec<_>>(), self.total)
    }

    /// Returns true if the producer moves to another broker now, as a client does after a change of the metadata. A
    /// producer without sequences moves only if at most one request is under way. Otherwise a batch might be overtaken.
    pub fn moves(&mut self, world: &World) -> bool {
        (self.is_idempotent() || self.attempts.len() <= 1) && self.by.below(world.setup.moves) == 0
    }

    pub fn stripes(&self) -> usize {
        self.stripes
    }

    /// Returns the next step.
    pub fn step(&mut self, world: &World) -> Step {
        let now = world.now();
        if self.wants_epoch {
            if !self.attempts.is_empty() {
                return Step::Wait(None);
            }
            self.begin_epoch();
        }
        let Some(current) = world.topic.lock().current else { return Step::Wait(Some(now + ms(50))) };
        if self.topic != Some(current) {
            if !self.attempts.is_empty() {
                return Step::Wait(None);
            }
            (self.topic, self.is_known) = (Some(current), false);
        }
        let open = |batch: &ProducerBatch| batch.fate == BatchFate::Open;
        let queued = self.batches.iter().position(|batch| open(batch) && batch.in_flight.is_empty());
        let first = self.batches.iter().position(open).unwrap_or(self.batches.len());
        // With several connections, only one batch is sent until the partition knows the producer. Otherwise, a batch
        // that overtakes the first one would be accepted as the first one.
        let window = if self.stripes > 1 && !self.is_known { 1 } else { self.window };
        let next = queued.unwrap_or(self.batches.len());
        if queued.is_none() && next == self.total {
            return if self.attempts.is_empty() { Step::Done } else { Step::Wait(None) };
        }
        if next - first >= window {
            return Step::Wait(None);
        }
        let not_before = queued.map_or(self.next_at, |at| self.batches[at].not_before);
        if not_before > now {
            return Step::Wait(Some(not_before));
        }
        if queued.is_none() {
            self.make(world);
        }
        Step::Send(self.send(next, next == first, current))
    }

    /// Creates the next batch, and decides when the batch after it will be created.
    fn make(&mut self, world: &World) {
        let spread = world.setup.calm_from.as_millis() as usize / self.total + 200;
        let pause = if self.by.below(3) > 0 { self.by.below(8) } else { self.by.below(spread * 4) };
        self.next_at = world.now() + ms(pause);
        let record_count = self.by.between(1, 4);
        let batch = ProducerBatch {
            fate: BatchFate::Open,
            may_be_written: false,
            bytes: Bytes::new(),
            epoch: self.epoch,
            base_sequence: self.next_sequence,
            record_count,
            in_flight: Vec::new(),
            not_before: Duration::ZERO,
        };
        self.next_sequence += record_count;
        self.batches.push(batch);
        self.write(self.batches.len() - 1);
    }

    /// Writes the bytes of a batch. The value of each record has the numbers of the producer, the batch and the record.
    fn write(&mut self, at: usize) {
        let batch = &mut self.batches[at];
        let mut builder = BatchBuilder::new(BytesMut::new(), Compression::None, None);
        for n in 0..batch.record_count {
            let mut value = format!("{}.{at}.{n} ", self.index).into_bytes();
            value.resize(20 + (at * 37 + n as usize * 11) % 80, b'-');
            builder.append(1_700_000_000_000 + at as i64, None, Some(&value), &[]);
        }
        let stamp = match self.producer_id {
            NO_PRODUCER_ID => Stamp::NONE,
            producer_id => Stamp { producer_id, producer_epoch: batch.epoch, base_sequence: batch.base_sequence },
        };
        batch.bytes = builder.seal(stamp).expect("sealed").0.freeze();
    }

    fn send(&mut self, at: usize, was_first: bool, topic: Uuid) -> Sent {
        let attempt = self.next_attempt;
        self.next_attempt += 1;
        self.attempts.insert(attempt, Attempt { batch: at, was_first });
        let batch = &mut self.batches[at];
        batch.in_flight.push(attempt);
        let connection = self.by.below(self.stripes);
        Sent { attempt, topic, bytes: batch.bytes.clone(), may_reorder: self.stripes > 1 && self.is_known, connection }
    }

    /// Sends the same batch once more, over any connection. Returns `None` if the producer is not idempotent.
    pub fn copy(&mut self, of: &Sent) -> Option<Sent> {
        let attempt = *self.attempts.get(&of.attempt)?;
        // Without sequences, the broker would append the copy a second time.
        (self.is_idempotent()).then(|| self.send(attempt.batch, attempt.was_first, of.topic))
    }

    /// Applies the outcome of a request.
    pub fn answered(&mut self, attempt: u64, response: Response, world: &World) {
        let Some(Attempt { batch: at, was_first }) = self.attempts.remove(&attempt) else { return };
        let producer = self.index;
        let (topic, now) = (self.topic.expect("it was sent to one"), world.now());
        let backoff = ms(self.by.below(100));
        let gives_up = world.strikes(&mut self.by, world.setup.client_trouble * 4);
        let is_first = !self.batches[..at].iter().any(|batch| batch.fate == BatchFate::Open);
        let is_behind_hole = self.is_behind_hole(at, topic);
        let batch = &mut self.batches[at];
        batch.in_flight.retain(|of| *of != attempt);
        let name = || format!("batch {producer}.{at} (epoch {}, sequence {})", batch.epoch, batch.base_sequence);
        world.report(|| format!("{} got {response:?} of {attempt}", name()));
        match response {
            Response::Appended(offset) => {
                match batch.fate {
                    BatchFate::Acknowledged { offset: before, .. } if before != -1 && before != offset => {
                        world.wrong(|| format!("{} is acknowledged at {before} and at {offset}", name()));
                    }
                    BatchFate::Open => batch.fate = BatchFate::Acknowledged { topic, offset },
                    _ => {}
                }
                self.is_known = true;
                return;
            }
            Response::Nothing
            | Response::Refused(AppendError::Gone | AppendError::Role(ErrorCode::REQUEST_TIMED_OUT)) => {
                batch.may_be_written = true;
            }
            Response::Refused(AppendError::UnknownProducer { .. }) => {
                let is_next = was_first && is_first && batch.fate == BatchFate::Open && batch.in_flight.is_empty();
                if is_next && !world.setup.has_forgotten {
                    world.wrong(|| format!("{} is next, and its producer is unknown", name()));
                }
                self.wants_epoch |= is_next;
            }
            Response::Refused(
                AppendError::Storage | AppendError::Again | AppendError::Deleted | AppendError::Role(_),
            ) => {}
            Response::Refused(AppendError::Sequence(SequenceRefusal::BehindRefused(_))) => {
                if was_first && is_first && batch.fate == BatchFate::Open && batch.in_flight.is_empty() {
                    world.wrong(|| format!("{} is next, and is behind another", name()));
                }
            }
            Response::Refused(AppendError::Sequence(SequenceRefusal::DuplicateSequence)) => {
                // If the topic was deleted, this refusal can be correct. The broker may have repeated a commit after
                // the deletion, and the batch then counted as a duplicate.
                let is_there = world.topic.lock().current == Some(topic);
                if is_there && !batch.may_be_written && batch.fate == BatchFate::Open && batch.in_flight.is_empty() {
                    world.wrong(|| format!("{} is a duplicate, and was never written", name()));
                }
                batch.fate = BatchFate::Acknowledged { topic, offset: -1 };
                return;
            }
            Response::Refused(AppendError::Sequence(SequenceRefusal::OutOfOrderSequence)) => {
                if was_first && is_first && batch.fate == BatchFate::Open && batch.in_flight.is_empty() {
                    // This refusal is correct only if a batch before this one is in a deleted topic. A copy of this
                    // batch in a deleted topic is no reason for it.
                    if !is_behind_hole {
                        world.wrong(|| format!("{} is next, and is out of order", name()));
                    }
                    self.wants_epoch = true;
                }
            }
            Response::Refused(why) => world.wrong(|| format!("{} is refused: {why:?}", name())),
        }
        let batch = &mut self.batches[at];
        batch.not_before = now + backoff;
        if batch.fate == BatchFate::Open && (gives_up || self.producer_id == NO_PRODUCER_ID) {
            if !batch.in_flight.is_empty() {
                batch.may_be_written = true;
            }
            batch.fate = BatchFate::GivenUp;
            world.report(|| format!("batch {producer}.{at} is given up"));
            self.wants_epoch |= self.producer_id != NO_PRODUCER_ID;
        }
    }

    /// Returns true if the partition of `topic` lacks the batch before batch `at`. That batch was acknowledged in a
    /// deleted topic, but an even earlier one was acknowledged in `topic`. This happens if the first answer to the
    /// earlier batch was lost, so that the producer sent it again, to the new topic.
    fn is_behind_hole(&self, at: usize, topic: Uuid) -> bool {
        let epoch = self.batches[at].epoch;
        let is_in_topic = |batch: &ProducerBatch| match batch.fate {
            BatchFate::Acknowledged { topic: of, .. } if batch.epoch == epoch => Some(of == topic),
            _ => None,
        };
        let mut before = self.batches[..at].iter().rev().map(is_in_topic);
        before.next() == Some(Some(false)) && before.any(|is_in_topic| is_in_topic == Some(true))
    }

    /// Begins a new epoch. No batch may be in flight.
    fn begin_epoch(&mut self) {
        (self.epoch, self.next_sequence) = (self.epoch + 1, 0);
        (self.wants_epoch, self.is_known) = (false, false);
        for at in 0..self.batches.len() {
            let batch = &mut self.batches[at];
            if batch.fate != BatchFate::Open {
                continue;
            }
            if batch.may_be_written {
                batch.fate = BatchFate::GivenUp;
                continue;
            }
            (batch.epoch, batch.base_sequence) = (self.epoch, self.next_sequence);
            self.next_sequence += batch.record_count;
            self.write(at);
        }
    }

    /// Ends the client. Another client with the same producer id continues, in the next epoch.
    pub fn die(&mut self) {
        for batch in self.batches.iter_mut().filter(|batch| batch.fate == BatchFate::Open) {
            batch.may_be_written |= !batch.in_flight.is_empty();
            batch.in_flight.clear();
            batch.fate = BatchFate::GivenUp;
        }
        self.attempts.clear();
        if self.is_idempotent() {
            self.begin_epoch();
        }
    }

    /// Simulates the loss of all connections of the producer.
    pub fn lose_all(&mut self, world: &World) {
        for attempt in self.attempts.keys().copied().collect::<Vec<_>>() {
            self.answered(attempt, Response::Nothing, world);
        }
    }
}
