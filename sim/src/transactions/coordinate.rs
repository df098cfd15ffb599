//! Coordinators of transactions. They pass events to the state machines of transactional ids and carry out the effects.

use std::sync::Arc;

use super::broker::{Asker, Coordinator, InFlight, Machine, last_states};
use super::entry::{
    BROKERS, BrokerId, DISKLESS, Entry, PartitionId, Payload, TransactionalId, name_of, place_of, state_of,
};
use super::fault::Fault;
use super::message::{Answer, BrokerProcess, ClientRequest, Marking, Message, Request};
use super::world::{TIMEOUT_MS, World};
use fullbore_rules::sequence::{Marker, NO_PRODUCER_ID, Stamp};
use fullbore_rules::transaction::{
    AddPartitions, DecisionId, Effect, EndTxn, InitProducerId, Markers, ProducerIdAndEpoch, RequestTicket, Transaction,
    TransactionAnswer, TransactionMetadata, TransactionVersion, Turn,
};
use fullbore_wire::ErrorCode;

/// A transactional id together with the broker that coordinates it.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub broker: BrokerId,
    pub partition: PartitionId,
    pub id: TransactionalId,
}

impl World {
    /// Returns the id as this broker coordinates it. Fails with an error code if the broker is not its coordinator, or
    /// is still loading.
    fn serving(&self, broker: BrokerId, id: TransactionalId) -> Result<Place, ErrorCode> {
        let partition = state_of(id);
        match self.brokers[broker].coordinators.get(&partition) {
            None => Err(ErrorCode::NOT_COORDINATOR),
            Some(coordinator) if !coordinator.is_loaded => Err(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS),
            Some(_) => Ok(Place { broker, partition, id }),
        }
    }

    /// Applies an event to the state machine of an id and carries out the effects. Creates the machine if there is
    /// none.
    pub fn event(&mut self, place: Place, event: impl FnOnce(&mut Transaction, &mut Turn<'_>)) -> Result<(), String> {
        let (settings, now) = (self.settings, self.now);
        let Some(coordinator) = self.brokers[place.broker].coordinators.get_mut(&place.partition) else {
            return Ok(());
        };
        let epoch = coordinator.epoch;
        let new = || Machine::new(Transaction::new(epoch));
        let machine = coordinator.machines.entry(place.id).or_insert_with(new);
        let mut effects = Vec::new();
        event(&mut machine.transaction, &mut Turn { settings: &settings, now, effects: &mut effects });
        for effect in effects {
            self.follow(place, effect)?;
        }
        Ok(())
    }

    pub fn machine(&mut self, place: Place) -> Option<&mut Machine> {
        self.brokers[place.broker].coordinators.get_mut(&place.partition)?.machines.get_mut(&place.id)
    }

    fn follow(&mut self, place: Place, effect: Effect) -> Result<(), String> {
        match effect {
            Effect::Answer(ticket, answer) => {
                let requester = self.machine(place).and_then(|machine| machine.waiting.remove(&ticket));
                let requester = requester.ok_or_else(|| format!("{ticket:?} of {place:?} is answered twice"))?;
                self.answer(requester, answer)
            }
            Effect::NeedProducerId => {
                self.machine(place).into_iter().for_each(|machine| machine.needs_id = true);
                Ok(())
            }
            Effect::Persist(record) => self.persist(place, record),
            Effect::WriteMarkers(markers) => {
                self.write_markers(place, &markers);
                Ok(())
            }
        }
    }

    fn answer(&mut self, requester: Asker, answer: TransactionAnswer) -> Result<(), String> {
        match requester {
            Asker::Broker(to, waits, epoch) => {
                let TransactionAnswer::AddPartitions(outcome) = answer else { return Err(format!("{answer:?}")) };
                self.send(Message::Verified { to, waits, outcome: outcome.map(|()| epoch) });
            }
            Asker::Client(requested) => {
                if let (TransactionAnswer::EndTxn(Ok(_)), Request::End(producer, is_commit)) =
                    (answer, &requested.request)
                {
                    let bumps = requested.version.supports_epoch_bump() && self.fault != Some(Fault::BumpsNoEpoch);
                    self.check.answered(requested.transaction, *producer, bumps, *is_commit)?;
                }
                self.send(Message::Answer(requested, Answer::Transaction(answer)));
            }
        }
        Ok(())
    }

    fn persist(&mut self, place: Place, record: Option<Arc<TransactionMetadata>>) -> Result<(), String> {
        let draw = if self.is_quiet { 9 } else { self.random.below(40) };
        let replica = &mut self.partitions[place.partition].replicas[place.broker];
        let leads = replica.leads.filter(|_| draw != 0);
        let end = leads.map(|leads| {
            let payload = Payload::State(place.id, record.clone());
            let stamp = Stamp { producer_id: NO_PRODUCER_ID, producer_epoch: -1, base_sequence: -1, record_count: 1 };
            let entry = Entry { leader_epoch: leads.epoch, stamp, is_transactional: false, payload };
            replica.append_state(entry, self.now)
        });
        let is_flushed = record.as_deref().is_some_and(|record| self.flush_before(record));
        // An append is in doubt if it fails although the record may be in the log. It is simulated only in a cluster: a
        // standalone broker writes nothing more to a log after a failed append.
        let is_in_doubt = draw == 1 && !self.is_alone;
        let Some(machine) = self.machine(place) else { return Ok(()) };
        if machine.in_flight.replace(InFlight { end, is_in_doubt, is_flushed }).is_some() {
            return Err(format!("a second record of {place:?} is in flight: {record:?}"));
        }
        let Some(record) = record.filter(|record| record.state.is_prepared()) else { return Ok(()) };
        match self.fault {
            Some(Fault::MarksBeforeDecision) => self.mark_early(place, &record),
            Some(Fault::AnswersBeforeDecision) => self.answer_early(place, &record)?,
            _ => {}
        }
        Ok(())
    }

    fn mark_early(&mut self, place: Place, record: &TransactionMetadata) {
        let coordinator_epoch = self.brokers[place.broker].coordinators[&place.partition].epoch;
        let markers = Markers {
            decision: DecisionId { coordinator_epoch, number: 0 },
            producer_id: record.producer_id,
            producer_epoch: record.producer_epoch,
            is_commit: record.state == fullbore_rules::transaction::TransactionState::PrepareCommit,
            partitions: record.partitions.iter().cloned().collect(),
            transaction_version: record.client_version,
        };
        self.write_markers(place, &markers);
    }

    fn answer_early(&mut self, place: Place, record: &TransactionMetadata) -> Result<(), String> {
        let Some(machine) = self.machine(place) else { return Ok(()) };
        let is_end =
            |requester: &&Asker| matches!(requester, Asker::Client(ClientRequest { request: Request::End(..), .. }));
        let Some(requester) = machine.waiting.values().find(is_end).cloned() else { return Ok(()) };
        let next = ProducerIdAndEpoch { id: record.producer_id, epoch: record.producer_epoch };
        let next = record.client_version.supports_epoch_bump().then_some(next);
        self.answer(requester, TransactionAnswer::EndTxn(Ok(next)))
    }

    fn write_markers(&mut self, place: Place, markers: &Markers) {
        let marker = Marker {
            producer_id: markers.producer_id,
            producer_epoch: markers.producer_epoch,
            coordinator_epoch: markers.decision.coordinator_epoch,
            is_commit: markers.is_commit,
        };
        let (decision, version) = (markers.decision, markers.transaction_version);
        let of = |name| Marking { id: place.id, decision, partition: place_of(name), marker, version };
        let mut markings: Vec<_> = markers.partitions.iter().map(of).collect();
        let Some(machine) = self.machine(place) else { return };
        machine.markings = markings.clone();
        if self.fault == Some(Fault::LeavesPartitionUnmarked) && self.random.one_in(4) {
            let Some(left_out) = markings.pop() else { return };
            let to = self.brokers[place.broker].process();
            self.send(Message::Marked { to, marking: left_out });
        }
        markings.into_iter().for_each(|marking| self.send_marker(place.broker, marking));
    }

    pub fn send_marker(&mut self, broker: BrokerId, marking: Marking) {
        let leader = match marking.partition {
            // The coordinator's broker writes a diskless marker itself. If this broker cannot reach the store, a random
            // broker writes the marker.
            DISKLESS if self.brokers[broker].has_store => broker,
            DISKLESS => self.random.below(BROKERS),
            at => self.brokers[broker].known[at].1,
        };
        let (to, by) = (self.brokers[leader].process(), self.brokers[broker].process());
        self.send(Message::Mark { to, by, marking });
    }

    /// Notes that a marker was written or that its partition was deleted.
    pub fn marked(&mut self, broker: BrokerId, marking: Marking) -> Result<(), String> {
        let place = Place { broker, partition: state_of(marking.id), id: marking.id };
        let Some(machine) = self.machine(place) else { return Ok(()) };
        machine.markings.retain(|other| *other != marking);
        if !marking.version.supports_epoch_bump() {
            // In the old protocol, a late copy of this marker would end the next transaction. All copies still in
            // flight are therefore dropped.
            self.forget(|message| matches!(message, Message::Mark { marking: other, .. } if *other == marking));
            self.forget_queued(&marking);
        }
        let name = name_of(marking.partition);
        self.event(place, |transaction, turn| transaction.markers_written(marking.decision, [&name], turn))
    }

    /// Handles a client's request about its transactional id.
    pub fn request(&mut self, broker: BrokerId, requested: ClientRequest) -> Result<(), String> {
        let place = match self.serving(broker, requested.id) {
            Ok(place) => place,
            Err(code) => {
                let answer = match requested.request {
                    Request::Init(_) => TransactionAnswer::InitProducerId(Err(code)),
                    Request::Add(..) => TransactionAnswer::AddPartitions(Err(code)),
                    _ => TransactionAnswer::EndTxn(Err(code)),
                };
                self.send(Message::Answer(requested, Answer::Transaction(answer)));
                return Ok(());
            }
        };
        let wait_until = self.random.one_in(2).then_some(self.now + 20);
        let version = self.version_of(&requested);
        let ticket = self.ticket(place, Asker::Client(requested.clone()));
        self.event(place, |transaction, turn| match requested.request {
            Request::Init(current) => {
                let request = InitProducerId { current, timeout_ms: TIMEOUT_MS, wait_until };
                transaction.init_producer_id(request, ticket, turn);
            }
            Request::Add(producer, at) => {
                let request = AddPartitions { producer, partitions: vec![name_of(at)], version, wait_until };
                transaction.add_partitions(request, ticket, turn);
            }
            Request::End(producer, is_commit) => {
                transaction.end_txn(EndTxn { producer, is_commit, version }, ticket, turn);
            }
            Request::Write(_) | Request::FetchOffset => unreachable!("they are not for a coordinator of transactions"),
        })
    }

    fn version_of(&self, requested: &ClientRequest) -> TransactionVersion {
        if self.fault == Some(Fault::BumpsNoEpoch) { TransactionVersion::V0 } else { requested.version }
    }

    fn ticket(&mut self, place: Place, requester: Asker) -> RequestTicket {
        self.tickets += 1;
        let ticket = RequestTicket(self.tickets);
        if let Some(coordinator) = self.brokers[place.broker].coordinators.get_mut(&place.partition) {
            let epoch = coordinator.epoch;
            let machine = coordinator.machines.entry(place.id).or_insert_with(|| Machine::new(Transaction::new(epoch)));
            machine.waiting.insert(ticket, requester);
        }
        ticket
    }

    /// Handles a broker's request to verify a batch. The new protocol adds the batch's partition to the transaction.
    /// The old protocol only checks that the partition is in the transaction.
    pub fn verify(
        &mut self,
        broker: BrokerId,
        by: BrokerProcess,
        waits: u64,
        requested: &ClientRequest,
    ) -> Result<(), String> {
        let Request::Write(write) = &requested.request else { return Ok(()) };
        let producer = ProducerIdAndEpoch { id: write.stamp.producer_id, epoch: write.stamp.producer_epoch };
        let place = match self.serving(broker, requested.id) {
            Ok(place) => place,
            Err(code) => {
                self.send(Message::Verified { to: by, waits, outcome: Err(code) });
                return Ok(());
            }
        };
        let name = name_of(write.partition);
        let epoch = self.brokers[broker].coordinators.get(&place.partition).map_or(0, |coordinator| coordinator.epoch);
        if requested.version.supports_epoch_bump() {
            let (ticket, version) = (self.ticket(place, Asker::Broker(by, waits, epoch)), self.version_of(requested));
            let wait_until = self.random.one_in(2).then_some(self.now + 100);
            let request = AddPartitions { producer, partitions: vec![name], version, wait_until };
            return self.event(place, |transaction, turn| transaction.add_partitions(request, ticket, turn));
        }
        let found = self.machine(place).ok_or(ErrorCode::INVALID_PRODUCER_ID_MAPPING).and_then(|machine| {
            let codes = machine.transaction.verify_partitions(producer, [&name])?;
            if codes[0].1.is_err() { Err(codes[0].1) } else { Ok(epoch) }
        });
        self.send(Message::Verified { to: by, waits, outcome: found });
        Ok(())
    }

    /// Starts a coordinator on the new leader of a partition of `__transaction_state`.
    pub fn begin_coordinating(&mut self, broker: BrokerId, partition: PartitionId, epoch: i32) {
        let coordinator = Coordinator { epoch, is_loaded: false, machines: Default::default() };
        self.brokers[broker].coordinators.insert(partition, coordinator);
    }

    /// Loads the states once everything that earlier leaders wrote is replicated.
    pub fn load(&mut self, broker: BrokerId, partition: PartitionId) -> Result<(), String> {
        let replica = &self.partitions[partition].replicas[broker];
        let Some(leads) = replica.leads else { return Ok(()) };
        let reads_all = self.fault == Some(Fault::LoadsUnreplicated);
        let Some(coordinator) = self.brokers[broker].coordinators.get_mut(&partition) else { return Ok(()) };
        if coordinator.is_loaded || !reads_all && leads.high_watermark < leads.begins {
            return Ok(());
        }
        coordinator.is_loaded = true;
        let epoch = coordinator.epoch;
        let upto = if reads_all { replica.log.len() } else { leads.high_watermark };
        let states = last_states(&replica.log[..upto]);
        if self.fault != Some(Fault::LoadsUnflushed) {
            self.flush(partition, upto);
        }
        for (id, state) in states {
            let mut record = TransactionMetadata { last_producer_epoch: -1, ..(*state).clone() };
            if self.settings.server_version == TransactionVersion::V0 {
                // A log of version 0 has no such fields, so they are reset here.
                (record.previous_producer_id, record.next_producer_id) = (-1, -1);
                record.client_version = TransactionVersion::V0;
            }
            let may_lack = self.may_lack_ends();
            self.event(Place { broker, partition, id }, |transaction, turn| {
                *transaction = match may_lack {
                    true => Transaction::load_unsure(epoch, record, turn),
                    false => Transaction::load(epoch, record, turn),
                };
            })?;
        }
        Ok(())
    }

    /// Stops the coordinator of a partition that another broker leads now.
    pub fn leave(&mut self, broker: BrokerId, partition: PartitionId) -> Result<(), String> {
        let ids = self.ids_at(broker, partition);
        for id in ids {
            let place = Place { broker, partition, id };
            self.event(place, |transaction, turn| transaction.kill(ErrorCode::NOT_COORDINATOR, turn))?;
            if let Some(machine) = self.machine(place).filter(|machine| !machine.waiting.is_empty()) {
                return Err(format!("not answered: {:?}", machine.waiting));
            }
        }
        self.brokers[broker].coordinators.remove(&partition);
        Ok(())
    }

    fn ids_at(&self, broker: BrokerId, partition: PartitionId) -> Vec<TransactionalId> {
        let coordinator = self.brokers[broker].coordinators.get(&partition);
        coordinator.into_iter().flat_map(|coordinator| coordinator.machines.keys().copied()).collect()
    }

    /// Returns all transactional ids that a broker coordinates.
    pub fn places(&self, broker: BrokerId) -> Vec<Place> {
        let partitions = self.brokers[broker].coordinators.iter().filter(|(_, coordinator)| coordinator.is_loaded);
        let of = |partition: PartitionId| {
            self.ids_at(broker, partition).into_iter().map(move |id| Place { broker, partition, id })
        };
        partitions.flat_map(|(partition, _)| of(*partition)).collect()
    }

    /// Reports to an id's state machine that its record was replicated or could not be written.
    pub fn report(&mut self, place: Place) -> Result<(), String> {
        let leads = self.partitions[place.partition].replicas[place.broker].leads;
        let keeps_early = self.fault == Some(Fault::KeepsOnOneReplica);
        let Some(machine) = self.machine(place) else { return Ok(()) };
        let Some(InFlight { end, is_in_doubt, is_flushed }) = machine.in_flight else { return Ok(()) };
        let result = match (end, leads) {
            (None, _) => Err(ErrorCode::KAFKA_STORAGE_ERROR),
            (Some(_), _) if is_in_doubt => Err(ErrorCode::NOT_ENOUGH_REPLICAS_AFTER_APPEND),
            (Some(end), Some(leads)) if leads.high_watermark >= end || keeps_early => Ok(()),
            _ => return Ok(()),
        };
        machine.in_flight = None;
        if let (Some(end), Ok(()), true) = (end, &result, is_flushed) {
            self.flush(place.partition, end);
        }
        self.event(place, |transaction, turn| transaction.persisted(result, turn))
    }

    pub fn give_id(&mut self, place: Place) -> Result<(), String> {
        if !self.machine(place).is_some_and(|machine| std::mem::take(&mut machine.needs_id)) {
            return Ok(());
        }
        let fails = !self.is_quiet && self.random.one_in(8);
        let id = self.new_producer_id();
        let result = if fails { Err(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS) } else { Ok(id) };
        self.event(place, |transaction, turn| transaction.producer_id(result, turn))
    }

    /// Resends the markers that have no response.
    pub fn mark_again(&mut self, place: Place) {
        let markings = self.machine(place).map(|machine| machine.markings.clone()).unwrap_or_default();
        markings.into_iter().for_each(|marking| self.send_marker(place.broker, marking));
    }
}
