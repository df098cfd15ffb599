//! Leaders of partitions. They append batches, markers and offsets, and hold requests until these are replicated.

use super::broker::{GroupOffsets, Parked, Waiter, Waiting};
use super::coordinate::Place;
use super::entry::{BrokerId, DISKLESS, Entry, OFFSETS, PartitionId, Payload, STATE, state_of};
use super::message::{Answer, BrokerProcess, ClientRequest, Marking, Message, Request, Write};
use super::replica::{Moment, Offer, Verification};
use super::world::World;
use fullbore_rules::sequence::{NO_PRODUCER_ID, SequenceRefusal};
use fullbore_wire::ErrorCode;

fn code_of(refusal: SequenceRefusal) -> ErrorCode {
    match refusal {
        SequenceRefusal::OutOfOrderSequence => ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER,
        SequenceRefusal::DuplicateSequence => ErrorCode::DUPLICATE_SEQUENCE_NUMBER,
        SequenceRefusal::InvalidProducerEpoch => ErrorCode::INVALID_PRODUCER_EPOCH,
        SequenceRefusal::InvalidTxnState => ErrorCode::INVALID_TXN_STATE,
        _ => ErrorCode::INVALID_RECORD,
    }
}

/// Returns the error code that the producer gets if its coordinator refuses to confirm a batch.
fn code_of_confirmation(code: ErrorCode) -> ErrorCode {
    match code {
        ErrorCode::PRODUCER_FENCED => ErrorCode::INVALID_PRODUCER_EPOCH,
        ErrorCode::TRANSACTION_ABORTABLE => ErrorCode::INVALID_TXN_STATE,
        code if code.is_retriable() => ErrorCode::NOT_ENOUGH_REPLICAS,
        code => code,
    }
}

impl World {
    pub fn deliver(&mut self, message: Message) -> Result<(), String> {
        if let Some(to) = message.to() {
            let broker = &self.brokers[to.broker];
            if !broker.is_up || broker.process() != to {
                return Ok(());
            }
        }
        match message {
            Message::Ask(to, requested) => match requested.request {
                Request::Write(_) => self.write(to.broker, requested, Verification::None),
                Request::FetchOffset => {
                    self.fetch_offset(to.broker, requested);
                    Ok(())
                }
                _ => self.request(to.broker, requested),
            },
            Message::Answer(requested, answer) => {
                self.client_answered(&requested, answer);
                Ok(())
            }
            Message::Verify { to, by, waits, requested } => self.verify(to.broker, by, waits, &requested),
            Message::Verified { to, waits, outcome } => self.verified(to.broker, waits, outcome),
            Message::Mark { to, by, marking } => self.mark(to.broker, by, marking),
            Message::Marked { to, marking } => self.marked(to.broker, marking),
            Message::Leads { to, partition, epoch, leader } => self.learn(to.broker, partition, epoch, leader),
        }
    }

    fn learn(&mut self, broker: BrokerId, at: PartitionId, epoch: i32, leader: BrokerId) -> Result<(), String> {
        if self.brokers[broker].known[at].0 >= epoch {
            return Ok(());
        }
        self.brokers[broker].known[at] = (epoch, leader);
        self.resign(broker, at)?;
        let leads = self.partitions[at].learn(broker, epoch, leader, self.now, &mut self.random);
        if leads && at >= STATE {
            self.begin_coordinating(broker, at, epoch);
            return self.load(broker, at);
        }
        if leads && at == OFFSETS {
            self.brokers[broker].groups = Some(GroupOffsets::default());
        }
        Ok(())
    }

    /// Refuses the requests that wait at this leader, so that clients look for the new one.
    fn resign(&mut self, broker: BrokerId, at: PartitionId) -> Result<(), String> {
        let waiting = std::mem::take(&mut self.brokers[broker].waiting);
        let (over, waiting): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|waiting| waiting.partition == at);
        self.brokers[broker].waiting = waiting;
        for waiting in over {
            if let Waiter::Client(requested) = waiting.whom {
                self.send(Message::Answer(requested, Answer::Written(Err(ErrorCode::NOT_LEADER_OR_FOLLOWER))));
            }
        }
        if at == OFFSETS {
            self.brokers[broker].groups = None;
        }
        if at >= STATE { self.leave(broker, at) } else { Ok(()) }
    }

    /// Handles a batch that has arrived. `verification` is the coordinator's confirmation, if there is one.
    fn write(&mut self, broker: BrokerId, requested: ClientRequest, verification: Verification) -> Result<(), String> {
        let Request::Write(write) = requested.request.clone() else { return Ok(()) };
        if write.partition == DISKLESS {
            return self.write_diskless(broker, requested, verification);
        }
        let answer = match self.offer(broker, &write, verification) {
            Ok(Offer::Written(end)) => {
                self.wait(broker, write.partition, end, Waiter::Client(requested));
                return Ok(());
            }
            // The coordinator has responded and the offsets are still unverified, so they get this error.
            Ok(Offer::Unverified) if write.partition == OFFSETS && verification != Verification::None => {
                Err(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS)
            }
            Ok(Offer::Unverified) => {
                self.park(broker, requested, &write);
                return Ok(());
            }
            Ok(Offer::Refused(refusal)) => Err(code_of(refusal)),
            Err(code) => Err(code),
        };
        self.send(Message::Answer(requested, Answer::Written(answer)));
        Ok(())
    }

    fn offer(&mut self, broker: BrokerId, write: &Write, verification: Verification) -> Result<Offer, ErrorCode> {
        let is_full = !self.is_quiet && self.random.one_in(60);
        let partition = &mut self.partitions[write.partition];
        if write.life != partition.life {
            return Err(ErrorCode::UNKNOWN_TOPIC_ID);
        }
        let replica = &mut partition.replicas[broker];
        let leads = replica.leads.ok_or(ErrorCode::NOT_LEADER_OR_FOLLOWER)?;
        if is_full {
            return Err(ErrorCode::KAFKA_STORAGE_ERROR);
        }
        let before = replica.log.len();
        let is_transactional = !matches!(write.payload, Payload::Plain);
        let entry =
            Entry { leader_epoch: leads.epoch, stamp: write.stamp, is_transactional, payload: write.payload.clone() };
        let offer = replica.offer(entry, verification, self.fault, self.now);
        if is_transactional && replica.log.len() > before {
            self.check.appended(&write.stamp, write.partition).unwrap_or_else(|why| self.wrong = Some(why));
        }
        Ok(offer)
    }

    pub fn park(&mut self, broker: BrokerId, requested: ClientRequest, write: &Write) {
        self.parked += 1;
        let (waits, by) = (self.parked, self.brokers[broker].process());
        let since = match write.partition {
            DISKLESS => Moment::of_index(self.brokers[broker].pipeline.known.next_offset),
            at => self.partitions[at].replicas[broker].moment(write.stamp.producer_id),
        };
        let coordinator = self.brokers[broker].known[state_of(requested.id)].1;
        let to = self.brokers[coordinator].process();
        self.brokers[broker].parked.insert(waits, Parked { requested: requested.clone(), since });
        self.send(Message::Verify { to, by, waits, requested });
    }

    fn verified(&mut self, broker: BrokerId, waits: u64, outcome: Result<i32, ErrorCode>) -> Result<(), String> {
        let Some(Parked { requested, since }) = self.brokers[broker].parked.remove(&waits) else { return Ok(()) };
        let is_of_offsets = matches!(&requested.request, Request::Write(write) if write.partition == OFFSETS);
        let since = since.of_coordinator(outcome.ok().filter(|_| is_of_offsets));
        match outcome {
            Ok(_) if requested.version.supports_epoch_bump() => {
                self.write(broker, requested, Verification::Added(since))
            }
            Ok(_) => self.write(broker, requested, Verification::Found(since)),
            Err(code) => {
                self.send(Message::Answer(requested, Answer::Written(Err(code_of_confirmation(code)))));
                Ok(())
            }
        }
    }

    /// Writes a marker that a coordinator has sent.
    fn mark(&mut self, broker: BrokerId, by: BrokerProcess, marking: Marking) -> Result<(), String> {
        let version = i8::try_from(marking.version.level()).unwrap_or(i8::MAX);
        if marking.partition == DISKLESS {
            self.mark_in_index(broker, by, marking);
            return Ok(());
        }
        if self.is_of_old_protocol_to_a_new_topic(&marking) {
            return Ok(());
        }
        let replica = &mut self.partitions[marking.partition].replicas[broker];
        let Some(leads) = replica.leads else { return Ok(()) };
        let before = replica.log.len();
        let offer = replica.offer_marker(marking.marker, version, leads.epoch, self.fault, self.now);
        if replica.log.len() > before {
            self.check.marked(&marking.marker, marking.partition)?;
        }
        match offer {
            Offer::Written(end) => {
                self.wait(broker, marking.partition, end, Waiter::Coordinator(by, marking));
            }
            // The producer already has a later epoch, so the marker counts as written.
            Offer::Refused(SequenceRefusal::InvalidProducerEpoch) => self.send(Message::Marked { to: by, marking }),
            Offer::Refused(_) | Offer::Unverified => {}
        }
        Ok(())
    }

    /// Returns true if a replaced coordinator sent the marker by the old protocol to a topic that was recreated. The
    /// leader cannot distinguish such a marker from a valid one.
    fn is_of_old_protocol_to_a_new_topic(&self, marking: &Marking) -> bool {
        let is_old = marking.marker.coordinator_epoch < self.partitions[state_of(marking.id)].epoch;
        is_old && !marking.version.supports_epoch_bump() && self.partitions[marking.partition].life > 1
    }

    fn wait(&mut self, broker: BrokerId, partition: PartitionId, end: usize, whom: Waiter) {
        let Some(leads) = self.partitions[partition].replicas[broker].leads else { return };
        self.brokers[broker].waiting.push(Waiting { partition, epoch: leads.epoch, end, whom });
    }

    fn fetch_offset(&mut self, broker: BrokerId, requested: ClientRequest) {
        let partition = &self.partitions[OFFSETS];
        let replica = &partition.replicas[broker];
        // A leader that was replaced without its knowledge returns no offset. On a real broker, its lease has ended
        // before another broker leads.
        let end = replica.log.len();
        let is_whole = replica.leads.is_some_and(|leads| leads.high_watermark == end);
        let is_served = partition.is_led_by(broker) && is_whole;
        let found = match &self.brokers[broker].groups {
            Some(groups) if is_served && groups.has(end) => {
                groups.stable(requested.id).ok_or(ErrorCode::UNSTABLE_OFFSET_COMMIT)
            }
            _ => Err(ErrorCode::NOT_COORDINATOR),
        };
        self.send(Message::Answer(requested, Answer::Offset(found)));
    }

    /// Replicates more of a partition and responds to the requests that waited for this.
    pub fn replicate(&mut self, at: PartitionId) -> Result<(), String> {
        let leader = self.partitions[at].leader;
        let broker = &self.brokers[leader];
        if !broker.is_up || broker.is_paused {
            return Ok(());
        }
        let new = self.partitions[at].replicate(self.is_quiet, &mut self.random);
        for (offset, entry) in new {
            if let Payload::State(id, state) = &entry.payload {
                self.check.kept(*id, state.as_ref(), &self.partitions)?;
            }
            for (transaction, is_commit) in self.partitions[at].settle(offset, &entry) {
                self.check.ended(transaction, is_commit)?;
            }
            debug_assert!(at >= STATE || entry.stamp.producer_id != NO_PRODUCER_ID);
        }
        self.replicated(leader, at)
    }

    fn replicated(&mut self, broker: BrokerId, at: PartitionId) -> Result<(), String> {
        let Some(leads) = self.partitions[at].replicas[broker].leads else { return Ok(()) };
        let stable = self.partitions[at].replicas[broker].last_stable(self.fault);
        if at <= OFFSETS {
            self.partitions[at].check_stable((broker, leads.epoch), stable)?;
        }
        if let Some(groups) = self.brokers[broker].groups.as_mut().filter(|_| at == OFFSETS)
            && leads.high_watermark >= leads.begins
        {
            groups.apply(&self.partitions[OFFSETS].replicas[broker].log, leads.high_watermark, self.fault);
        }
        let is_done = |waiting: &Waiting| {
            waiting.partition == at && waiting.epoch == leads.epoch && waiting.end <= leads.high_watermark
        };
        let waiting = std::mem::take(&mut self.brokers[broker].waiting);
        let (done, waiting): (Vec<_>, Vec<_>) = waiting.into_iter().partition(is_done);
        self.brokers[broker].waiting = waiting;
        for waiting in done {
            let message = match waiting.whom {
                Waiter::Client(requested) => Message::Answer(requested, Answer::Written(Ok(()))),
                Waiter::Coordinator(to, marking) => {
                    if marking.marker.is_commit {
                        self.flush(at, waiting.end);
                    }
                    Message::Marked { to, marking }
                }
            };
            self.send(message);
        }
        if at >= STATE {
            self.load(broker, at)?;
            for place in self.places(broker).into_iter().filter(|place: &Place| place.partition == at) {
                if self.is_quiet || !self.random.one_in(3) {
                    self.report(place)?;
                }
            }
        }
        Ok(())
    }
}
