//! The broker around the state machine, with its log, its partitions and the network.

mod checks;

use super::super::*;
use super::clients::{Call, Client, Next, Packet, Truth};
use super::partitions::{Marked, Partition};
use super::{Fault, Outcome};
use fullbore_schedules::Random;
use fullbore_wire::Text;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

const CLIENTS: usize = 3;
const PARTITIONS: usize = 4;
const TIMEOUT_MS: i32 = 1_000;
const EXPIRATION_MS: i64 = 10_000;
/// Maximum number of requests in flight. A request beyond this number is lost.
const NETWORK_MAX: usize = 12;

type Record = Option<TransactionMetadata>;

pub struct World {
    random: Random,
    fault: Option<Fault>,
    settings: TransactionSettings,
    now: i64,
    transaction: Transaction,
    coordinator_epoch: i32,
    /// All records of the id that were written.
    log: Vec<Record>,
    in_flight: Option<Option<Arc<TransactionMetadata>>>,
    needs_id: bool,
    ids: i64,
    tickets: u64,
    calls: u64,
    waiting: BTreeMap<RequestTicket, Packet>,
    network: Vec<Packet>,
    markers: Vec<(Markers, i32)>,
    replies: Vec<(DecisionId, i32)>,
    decision: Option<DecisionId>,
    /// The partitions that have the marker of the last written decision.
    marked: BTreeSet<i32>,
    partitions: Vec<Partition>,
    clients: Vec<Client>,
    incarnations: usize,
    transactions: Vec<Truth>,
    /// The process that got each producer id and epoch.
    owners: HashMap<ProducerIdAndEpoch, usize>,
    /// The last process that got a producer. All earlier ones are zombies.
    last_owner: Option<usize>,
    /// All producer ids that have been in the state in force. `in_force` is the current producer.
    seen: HashSet<i64>,
    in_force: Option<ProducerIdAndEpoch>,
}

fn partition(partition: i32) -> TopicPartition {
    TopicPartition { topic: Text::from_static("t"), partition }
}

impl World {
    pub fn new(seed: u64, fault: Option<Fault>) -> World {
        let mut random = Random::new(seed);
        let server_version = if random.one_in(3) { TransactionVersion::V0 } else { TransactionVersion::V2 };
        let settings =
            TransactionSettings { timeout_max_ms: TIMEOUT_MS, partitions_max: 3, waiters_max: 2, server_version };
        let mut world = World {
            random,
            fault,
            settings,
            now: 100_000,
            transaction: Transaction::new(0),
            coordinator_epoch: 0,
            log: Vec::new(),
            in_flight: None,
            needs_id: false,
            ids: 1,
            tickets: 0,
            calls: 0,
            waiting: BTreeMap::new(),
            network: Vec::new(),
            markers: Vec::new(),
            replies: Vec::new(),
            decision: None,
            marked: BTreeSet::new(),
            partitions: (0..PARTITIONS).map(|_| Partition::default()).collect(),
            clients: Vec::new(),
            incarnations: 0,
            transactions: Vec::new(),
            owners: HashMap::new(),
            last_owner: None,
            seen: HashSet::new(),
            in_force: None,
        };
        world.clients = (0..CLIENTS).map(|_| world.client()).collect();
        if world.random.one_in(2) {
            // Starts close to the last epoch, so that schedules also reach the end of the epochs.
            let old = TransactionMetadata::created(1, TIMEOUT_MS, world.now);
            let last = ProducerIdAndEpoch { id: 1, epoch: i16::MAX - 1 - world.random.below(6) as i16 };
            world.log.push(Some(old.initialized(last, -1, TIMEOUT_MS, world.now)));
        }
        world.load().expect("nothing has happened yet");
        world
    }

    fn client(&mut self) -> Client {
        self.incarnations += 1;
        let is_new = self.settings.server_version == TransactionVersion::V2 && !self.random.one_in(4);
        Client::new(self.incarnations, if is_new { TransactionVersion::V2 } else { TransactionVersion::V0 })
    }

    pub fn step(&mut self) -> Result<(), String> {
        match self.random.below(32) {
            0..=8 => self.client_step(),
            9..=15 => self.arrive(),
            16..=20 => self.end_append(),
            21..=22 => self.give_id(),
            23..=25 => self.mark(),
            26..=28 => self.reply(),
            29..=30 => self.pass(),
            _ if self.random.one_in(4) => self.move_coordinator(),
            _ => Ok(()),
        }
    }

    fn client_step(&mut self) -> Result<(), String> {
        // Most of the time, only one client is active, and the others are its zombies.
        let slot =
            if self.random.one_in(12) { self.random.below(CLIENTS) } else { self.now as usize / 5_000 % CLIENTS };
        match self.clients[slot].next(&mut self.random, PARTITIONS) {
            Next::Crash => self.clients[slot] = self.client(),
            Next::Send => self.send(slot),
            Next::Write(producer, at) => self.write(slot, producer, at),
            Next::Begin(call) => {
                self.begin(slot, call);
                self.send(slot);
            }
        }
        Ok(())
    }

    fn begin(&mut self, slot: usize, call: Call) {
        self.calls += 1;
        let client = &mut self.clients[slot];
        client.call = Some((self.calls, call));
        match call {
            Call::Init(_) => client.transaction = None,
            Call::Add(..) | Call::End(..) if client.transaction.is_none() => {
                client.transaction = Some(self.transactions.len());
                self.transactions.push(Truth::default());
            }
            Call::Add(..) | Call::End(..) => {}
        }
        if let (Call::End(_, is_commit), Some(transaction)) = (call, client.transaction) {
            self.transactions[transaction].requested = Some(is_commit);
        }
    }

    fn send(&mut self, slot: usize) {
        let Client { incarnation, version, transaction, call, .. } = self.clients[slot];
        let Some((number, call)) = call.filter(|_| self.network.len() < NETWORK_MAX) else { return };
        let is_sent = self.network.iter().any(|packet| packet.number == number)
            || self.waiting.values().any(|packet| packet.number == number);
        if is_sent && !self.random.one_in(8) {
            return;
        }
        self.network.push(Packet { call, number, slot, incarnation, version, transaction });
    }

    fn write(&mut self, slot: usize, producer: ProducerIdAndEpoch, at: i32) {
        let Client { version, transaction, .. } = self.clients[slot];
        let added = partition(at);
        let verified = self.transaction.verify_partitions(producer, [&added]);
        // With TV2 no check is needed: the append itself adds the partition, and the epoch shows if the append is late.
        let is_verified = version == TransactionVersion::V2 || verified == Ok(vec![(&added, ErrorCode::NONE)]);
        let Some(transaction) = transaction.filter(|_| is_verified) else { return };
        if self.partitions[at as usize].write(producer, transaction) {
            self.transactions[transaction].records += 1;
        }
    }

    /// Delivers a request. A copy of it may arrive later.
    fn arrive(&mut self) -> Result<(), String> {
        if self.network.is_empty() {
            return Ok(());
        }
        let at = self.random.below(self.network.len());
        let packet = if self.random.one_in(4) { self.network[at] } else { self.network.swap_remove(at) };
        if self.random.one_in(12) {
            return Ok(());
        }
        self.tickets += 1;
        let ticket = RequestTicket(self.tickets);
        self.waiting.insert(ticket, packet);
        let wait_until = self.random.one_in(2).then_some(self.now + 20);
        let version = packet.version;
        self.event(|transaction, turn| match packet.call {
            Call::Init(current) => {
                let request = InitProducerId { current, timeout_ms: TIMEOUT_MS, wait_until };
                transaction.init_producer_id(request, ticket, turn);
            }
            Call::Add(producer, at) => {
                let request = AddPartitions { producer, partitions: vec![partition(at)], version, wait_until };
                transaction.add_partitions(request, ticket, turn);
            }
            Call::End(producer, is_commit) => {
                transaction.end_txn(EndTxn { producer, is_commit, version }, ticket, turn);
            }
        })
    }

    /// Ends the append in flight. The append succeeds, fails, or fails although its record is written.
    fn end_append(&mut self) -> Result<(), String> {
        let Some(record) = self.in_flight.take() else { return Ok(()) };
        let draw = self.random.below(10);
        let is_done = draw > 1 || self.fault == Some(Fault::ReportsBeforeAppend);
        if is_done || draw == 1 {
            self.append(record);
        }
        if self.fault == Some(Fault::ReportsBeforeAppend) {
            return Ok(());
        }
        let is_reported = is_done || self.fault == Some(Fault::TakesFailureForSuccess);
        let result = if is_reported { Ok(()) } else { Err(ErrorCode::NOT_ENOUGH_REPLICAS) };
        self.event(|transaction, turn| transaction.persisted(result, turn))
    }

    fn append(&mut self, record: Option<Arc<TransactionMetadata>>) {
        if record.as_ref().is_some_and(|record| record.state.is_prepared()) {
            self.marked.clear();
        }
        self.log.push(record.map(|record| (*record).clone()));
    }

    fn give_id(&mut self) -> Result<(), String> {
        if !std::mem::take(&mut self.needs_id) {
            return Ok(());
        }
        let is_new = self.fault != Some(Fault::ReusesProducerIds) || self.random.one_in(2);
        self.ids += i64::from(is_new);
        let result = if self.random.one_in(8) { Err(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS) } else { Ok(self.ids) };
        self.event(|transaction, turn| transaction.producer_id(result, turn))
    }

    /// Delivers a marker to its partition. The marker is sent again until the coordinator gets the response.
    fn mark(&mut self) -> Result<(), String> {
        if self.markers.is_empty() {
            return Ok(());
        }
        let at = self.random.below(self.markers.len());
        let (markers, at) = self.markers[at].clone();
        if self.fault == Some(Fault::ReportsUnwrittenMarkers) && self.random.one_in(4) {
            self.replies.push((markers.decision, at));
            return Ok(());
        }
        self.write_marker(&markers, at)
    }

    fn write_marker(&mut self, markers: &Markers, at: i32) -> Result<(), String> {
        let takes_old = self.fault == Some(Fault::TakesOldCoordinators);
        let ended = match self.partitions[at as usize].mark(markers, takes_old) {
            Marked::Written(ended) => ended,
            Marked::Again => Vec::new(),
            Marked::OldEpoch if Some(markers.decision) == self.decision => {
                return Err(format!("{markers:?} has an old epoch"));
            }
            Marked::OldEpoch | Marked::OldCoordinator => {
                self.markers.retain(|(other, _)| other.decision != markers.decision);
                return Ok(());
            }
        };
        for transaction in ended {
            self.ended(transaction, markers.is_commit)?;
        }
        if self.last_decision().is_some_and(|record| record.producer_epoch == markers.producer_epoch) {
            self.marked.insert(at);
        }
        self.replies.push((markers.decision, at));
        Ok(())
    }

    /// Gives the records of a transaction their outcome.
    fn ended(&mut self, transaction: usize, is_commit: bool) -> Result<(), String> {
        let truth = &mut self.transactions[transaction];
        let outcome = *truth.outcome.get_or_insert(is_commit);
        let is_wanted = !is_commit || truth.requested == Some(true);
        if outcome != is_commit || !is_wanted || truth.answered.is_some_and(|answered| answered != is_commit) {
            return Err(format!("transaction {transaction} ends with commit {is_commit}: {truth:?}"));
        }
        Ok(())
    }

    /// Delivers the response to a marker, loses it, or keeps a copy that arrives later.
    fn reply(&mut self) -> Result<(), String> {
        if self.replies.is_empty() {
            return Ok(());
        }
        let at = self.random.below(self.replies.len());
        let (decision, at) = if self.random.one_in(3) { self.replies[at] } else { self.replies.swap_remove(at) };
        if self.random.one_in(6) {
            return Ok(());
        }
        self.markers.retain(|(markers, of)| markers.decision != decision || *of != at);
        let stale = self.fault == Some(Fault::TakesStaleReplies);
        let decision = self.decision.filter(|_| stale).unwrap_or(decision);
        self.event(|transaction, turn| transaction.markers_written(decision, [&partition(at)], turn))
    }

    fn pass(&mut self) -> Result<(), String> {
        self.now += match self.random.below(60) {
            0 => EXPIRATION_MS,
            1..=4 => i64::from(TIMEOUT_MS),
            _ => self.random.below(25) as i64,
        };
        if self.fault != Some(Fault::NeverTicks) {
            self.event(|transaction, turn| transaction.tick(turn))?;
        }
        if self.random.one_in(3) {
            self.event(|transaction, turn| transaction.time_out(turn))?;
            self.event(|transaction, turn| transaction.expire(EXPIRATION_MS, turn))?;
        }
        Ok(())
    }

    /// Moves the coordinator to another broker. The former one is stopped or killed, and its markers may still be in
    /// flight.
    fn move_coordinator(&mut self) -> Result<(), String> {
        if self.random.one_in(2) {
            self.event(|transaction, turn| transaction.kill(ErrorCode::NOT_COORDINATOR, turn))?;
            if !self.waiting.is_empty() {
                return Err(format!("not answered: {:?}", self.waiting));
            }
        }
        if let Some(record) = self.in_flight.take().filter(|_| self.random.one_in(2)) {
            self.append(record);
        }
        self.waiting.clear();
        self.needs_id = false;
        self.load()
    }

    fn load(&mut self) -> Result<(), String> {
        self.coordinator_epoch += 1;
        let back = if self.fault == Some(Fault::LoadsOldRecord) && self.random.one_in(4) { 2 } else { 1 };
        let mut record = self.log.iter().nth_back(back - 1).cloned().flatten();
        if let Some(record) = &mut record {
            record.last_producer_epoch = -1;
            if self.settings.server_version == TransactionVersion::V0 {
                // Records of version 0 have no fields for these values.
                (record.previous_producer_id, record.next_producer_id) = (-1, -1);
                record.client_version = TransactionVersion::V0;
            }
            let is_prepared = record.state.is_prepared();
            match self.fault {
                Some(Fault::LosesPartition) => drop(record.partitions.pop_first()),
                Some(Fault::LosesEpoch) if is_prepared => record.producer_epoch -= 1,
                Some(Fault::FlipsDecision) if is_prepared => {
                    let is_commit = record.state == TransactionState::PrepareCommit;
                    record.state =
                        if is_commit { TransactionState::PrepareAbort } else { TransactionState::PrepareCommit };
                }
                _ => {}
            }
        }
        let (mut effects, epoch) = (Vec::new(), self.coordinator_epoch);
        let turn = &mut Turn { settings: &self.settings, now: self.now, effects: &mut effects };
        self.transaction = match record {
            Some(record) => Transaction::load(epoch, record, turn),
            None => Transaction::new(epoch),
        };
        self.follow(effects)
    }

    /// Applies an event, and carries out its effects.
    fn event(&mut self, event: impl FnOnce(&mut Transaction, &mut Turn<'_>)) -> Result<(), String> {
        let mut effects = Vec::new();
        event(&mut self.transaction, &mut Turn { settings: &self.settings, now: self.now, effects: &mut effects });
        self.follow(effects)
    }

    fn follow(&mut self, effects: Vec<Effect>) -> Result<(), String> {
        self.check_in_force()?;
        let mut is_reported = false;
        for effect in effects {
            match effect {
                Effect::Persist(record) => {
                    self.check_record(record.as_deref())?;
                    if self.in_flight.replace(record.clone()).is_some() {
                        return Err(format!("a second record is in flight: {record:?}"));
                    }
                    is_reported = self.fault == Some(Fault::ReportsBeforeAppend);
                    self.mark_early(record.as_deref())?;
                }
                Effect::WriteMarkers(markers) => self.write_markers(markers)?,
                Effect::NeedProducerId if self.needs_id => return Err("two ids are needed".to_owned()),
                Effect::NeedProducerId => self.needs_id = true,
                Effect::Answer(ticket, answer) => {
                    let packet = self.waiting.remove(&ticket).ok_or_else(|| format!("{ticket:?} is answered twice"))?;
                    self.answered(packet, answer)?;
                }
            }
        }
        if is_reported {
            self.event(|transaction, turn| transaction.persisted(Ok(()), turn))?;
        }
        Ok(())
    }

    fn mark_early(&mut self, record: Option<&TransactionMetadata>) -> Result<(), String> {
        let is_planted = self.fault == Some(Fault::MarksBeforeDecision);
        let Some(record) = record.filter(|record| is_planted && record.state.is_prepared()) else { return Ok(()) };
        let decision = DecisionId { coordinator_epoch: self.coordinator_epoch, number: 0 };
        let markers = Markers {
            decision,
            producer_id: record.producer_id,
            producer_epoch: record.producer_epoch,
            is_commit: record.state == TransactionState::PrepareCommit,
            partitions: Vec::new(),
            transaction_version: record.client_version,
        };
        record.partitions.iter().try_for_each(|partition| self.write_marker(&markers, partition.partition))
    }

    fn write_markers(&mut self, markers: Markers) -> Result<(), String> {
        let is_on_record = self.last_decision().is_some_and(|record| {
            record.producer_id == markers.producer_id
                && record.producer_epoch == markers.producer_epoch
                && (record.state == TransactionState::PrepareCommit) == markers.is_commit
                && record.partitions.iter().eq(&markers.partitions)
        });
        if !is_on_record && self.fault != Some(Fault::FlipsDecision) && self.fault != Some(Fault::LosesPartition) {
            return Err(format!("not on record: {markers:?}"));
        }
        self.decision = Some(markers.decision);
        // Only a coordinator that was replaced may still have markers of an earlier decision in flight.
        let epoch = self.coordinator_epoch;
        self.markers.retain(|(other, _)| other.decision.coordinator_epoch != epoch);
        if self.fault != Some(Fault::ForgetsMarkers) || !self.random.one_in(4) {
            let partitions = markers.partitions.iter().map(|partition| partition.partition);
            self.markers.extend(partitions.map(|partition| (markers.clone(), partition)));
        }
        Ok(())
    }

    /// Returns the last record if it is a decision.
    fn last_decision(&self) -> Option<&TransactionMetadata> {
        self.log.last()?.as_ref().filter(|record| record.state.is_prepared())
    }

    fn answered(&mut self, packet: Packet, answer: TransactionAnswer) -> Result<(), String> {
        let answer = match (answer, packet.call, self.fault) {
            (TransactionAnswer::EndTxn(Ok(Some(_))), Call::End(producer, _), Some(Fault::AnswersOldEpoch)) => {
                TransactionAnswer::EndTxn(Ok(Some(producer)))
            }
            _ => answer,
        };
        self.check_owner(&packet, answer)?;
        if let (TransactionAnswer::EndTxn(Ok(_)), Call::End(producer, is_commit)) = (answer, packet.call) {
            self.check_decision(&packet, producer, is_commit)?;
        }
        let client = &mut self.clients[packet.slot];
        let is_awaited =
            client.incarnation == packet.incarnation && client.call.is_some_and(|(number, _)| number == packet.number);
        if is_awaited && !self.random.one_in(5) {
            client.answered(packet.call, answer);
            let has_gone_on = client.call.is_none() && packet.version != TransactionVersion::V2;
            if has_gone_on {
                self.network.retain(|other| other.incarnation != packet.incarnation);
            }
        }
        Ok(())
    }

    /// Lets time pass without failures and without clients. Checks that every transaction has ended.
    pub fn end(mut self) -> Result<Outcome, String> {
        self.network.clear();
        for round in 0..200 {
            self.settle()?;
            if round % 20 == 19 {
                self.now += i64::from(TIMEOUT_MS);
                self.event(|transaction, turn| transaction.time_out(turn))?;
            }
        }
        let open: usize = self.partitions.iter().map(Partition::open).sum();
        let state = self.transaction.describe().map(|state| state.state);
        let is_over = state.is_ok_and(TransactionState::is_expiration_allowed) || self.transaction.is_vacant();
        if !self.waiting.is_empty() || open > 0 || !is_over {
            return Err(format!("no end: {:?}, {open} open, {state:?}", self.waiting));
        }
        let with_records = self.transactions.iter().filter(|truth| truth.records > 0);
        if let Some(truth) = with_records.clone().find(|truth| truth.outcome.is_none()) {
            return Err(format!("no outcome: {truth:?}"));
        }
        let ends = |outcome| with_records.clone().filter(|truth| truth.outcome == Some(outcome)).count();
        Ok(Outcome { committed: ends(true), aborted: ends(false) })
    }

    /// Lets the append in flight, the allocation of a producer id, and all markers and their responses succeed.
    fn settle(&mut self) -> Result<(), String> {
        self.now += 10;
        if self.fault != Some(Fault::NeverTicks) {
            self.event(|transaction, turn| transaction.tick(turn))?;
        }
        if let Some(record) = self.in_flight.take() {
            self.append(record);
            if self.fault != Some(Fault::ReportsBeforeAppend) {
                self.event(|transaction, turn| transaction.persisted(Ok(()), turn))?;
            }
        }
        if std::mem::take(&mut self.needs_id) {
            self.ids += 1;
            let id = self.ids;
            self.event(|transaction, turn| transaction.producer_id(Ok(id), turn))?;
        }
        for (markers, at) in self.markers.clone() {
            self.write_marker(&markers, at)?;
        }
        for (decision, at) in std::mem::take(&mut self.replies) {
            self.markers.retain(|(markers, of)| markers.decision != decision || *of != at);
            self.event(|transaction, turn| transaction.markers_written(decision, [&partition(at)], turn))?;
        }
        Ok(())
    }
}
